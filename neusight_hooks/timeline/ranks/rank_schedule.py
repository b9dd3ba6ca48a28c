"""The schedule of one rank of several: its host continues until it has to wait for a GPU that waits
for another rank."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from neusight.predictors.kernel import KernelClass
from neusight.recording.recording import Entry, OpCall, Replay, Synchronize
from neusight.timeline.host import HostProfile
from neusight.timeline.launches import Launch, Pricing
from neusight.timeline.ranks.held_streams import HeldKernel, HeldStreams
from neusight.timeline.ranks.meetings import Appointment, Meetings
from neusight.timeline.scheduler import Scheduler
from neusight.timeline.spans import Timeline
from neusight.timeline.steps import Passage, StepEnd

#: The start of a kernel that is held: not known yet.
_UNKNOWN = -1


class RankSchedule:
    """The schedule of rank `rank`, which advances as far as the others let it."""

    def __init__(
        self,
        rank: int,
        replays: Sequence[Replay],
        price: Pricing,
        host: HostProfile,
        meetings: Meetings,
        *,
        stretch_ns: Sequence[int] = (),
    ) -> None:
        self.rank = rank
        self._replays = replays
        self._scheduler = _RankScheduler(rank, price, host, meetings, stretch_ns)
        self._passage = Passage(self._scheduler)
        self._host_fed = self._feed_host()
        self._is_host_done = False

    @property
    def is_done(self) -> bool:
        """Whether the host and all streams have come to their end."""
        return self._is_host_done and not self._scheduler.held.holds_any

    def advance(self) -> bool:
        """Goes as far as it can; whether it went at all."""
        moved = False
        while True:
            went = False
            if not self._is_host_done:
                found = next(self._host_fed, None)
                self._is_host_done = found is None
                went = found is not False
            went |= self._scheduler.held.advance_all()
            if not went:
                return moved
            moved = True

    def waiting(self) -> list[Appointment]:
        """The meetings in which its streams wait for another rank."""
        return list(self._scheduler.held.waiting())

    def timeline(self) -> Timeline:
        """All of it, once it is done."""
        streams = self._scheduler.held
        ends = [
            StepEnd(streams.done_of_step[step], streams.gaps_of_step[step])
            for step in range(len(self._replays))
        ]
        return self._passage.timeline(ends)

    def _feed_host(self) -> Iterator[bool]:
        """Feeds the scheduler; comes back where the host has to wait, with whether it got on."""
        scheduler, went = self._scheduler, False
        for replay in self._replays:
            for entry in self._passage.through(replay):
                while scheduler.held.holds_any and scheduler.is_blocked_at(entry):
                    yield went
                    went = False
                scheduler.feed((entry,))
                went = True
            scheduler.cut()


class _RankScheduler(Scheduler):
    """A scheduler whose kernels may have to meet those of other ranks."""

    def __init__(
        self,
        rank: int,
        price: Pricing,
        host: HostProfile,
        meetings: Meetings,
        stretch_ns: Sequence[int],
    ) -> None:
        self.held = HeldStreams(host, meetings, self._placed)
        super().__init__(price, host, keep_spans=True, streams=self.held, stretch_ns=stretch_ns)
        self._rank = rank
        self._meetings = meetings

    def is_blocked_at(self, entry: Entry) -> bool:
        """Whether the host has to wait in this entry for an unknown time."""
        held = self.held
        if isinstance(entry, Synchronize):
            if entry.event is not None:
                return held.is_unknown(entry.event)
            return held.holds_any if entry.stream is None else held.holds(entry.stream)
        if not isinstance(entry, OpCall) or not held.holds(entry.stream):
            return False
        if self._captured is not None:  # a graph launches it later
            return False
        launches = self._plans.plan_of(entry).launches
        return held.is_full(entry.stream, len(launches)) or any(
            launch.is_staged for launch in launches
        )

    def _execute(
        self, launch: Launch, call: OpCall, position: int, *, is_queued: bool = False
    ) -> int:
        appointments: tuple[Appointment, ...] = ()
        if launch.kernel.kernel_class is KernelClass.COLLECTIVE:
            appointments = self._meetings.appointments(call, self._rank)
        if not appointments and not self.held.holds(call.stream):
            return super()._execute(launch, call, position, is_queued=is_queued)
        launch = self._stretched(launch)
        self._keep(launch, call, position, _UNKNOWN, stream=call.stream)
        number = len(self.kernels) - 1
        kernel = HeldKernel(
            launch, self.lane.now_ns, number, self.held.step, appointments, is_queued
        )
        self.held.hold(call.stream, kernel)
        return self.kernels[number].start_ns

    def _placed(self, number: int, start_ns: int, duration_ns: int, waited_ns: int) -> None:
        self.kernels[number] = self.kernels[number]._replace(
            start_ns=start_ns, duration_ns=duration_ns, waited_ns=waited_ns
        )
