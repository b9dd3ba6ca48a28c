"""A recording and a timeline out of a profile and what its kernels take now."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import accumulate, pairwise
from typing import NamedTuple

from neusight.integrations.profiles.carrying.host_lane import CarriedHost, carried_host
from neusight.integrations.profiles.carrying.prices import CarriedKernel
from neusight.integrations.profiles.carrying.replay import Placed, Replayed
from neusight.integrations.profiles.reading.profile import Profile
from neusight.recording.recording import (
    Alloc,
    Entry,
    Recording,
    Replay,
    Step,
    StepKind,
    Synchronize,
)
from neusight.timeline.spans import KernelSpan, StepSpan, Timeline
from neusight.timeline.steps import busy_times


class _Owned(NamedTuple):
    """The events of one step: their positions, in order of launch."""

    number: int
    events: tuple[int, ...]


class _Places(NamedTuple):
    """Which spans of the host and of kernels are a step's own."""

    first_host: int
    last_host: int
    first_kernel: int
    last_kernel: int


class CarriedProgram:
    """A recording and a timeline out of a profile and what its kernels take now."""

    def __init__(self, profile: Profile, kernels: Sequence[CarriedKernel], now: Replayed) -> None:
        self._profile = profile
        self._kernels = kernels
        self._now = now
        self._owned = list(self._events_of_steps())

    def _events_of_steps(self) -> Iterator[_Owned]:
        place = {id(event): index for index, event in enumerate(self._profile.events)}
        for number, step in enumerate(self._profile.steps):
            events = [place[id(event)] for event in step.events]
            yield _Owned(number, tuple(sorted(events, key=self._launched_ns)))

    def _launched_ns(self, index: int) -> tuple[int, int]:
        event = self._profile.events[index]
        call = self._profile.launch_of(event)
        return (event.start_ns if call is None else call.start_ns, event.start_ns)

    # -- the recording

    def steps(self) -> tuple[Step, ...]:
        """A step for each of the profile: its ops in order, and its waits."""
        steps = [Step(self._kind(owned), self._entries(owned)) for owned in self._owned]
        peak_bytes = self._profile.peak_allocated_bytes
        if peak_bytes:  # measured: as one allocation, since the others are not known
            held = Alloc(0, peak_bytes, op="(the profile's peak)")
            steps[0] = Step(steps[0].kind, (held, *steps[0].entries))
        return tuple(steps)

    def _kind(self, owned: _Owned) -> StepKind:
        names = {self._kernels[index].call.signature.op for index in owned.events}
        return "train" if any("backward" in name for name in names) else "eval"

    def _entries(self, owned: _Owned) -> tuple[Entry, ...]:
        entries: list[tuple[int, Entry]] = []
        seen: set[int] = set()
        for index in owned.events:
            item = self._kernels[index]
            if item.position in seen and item.position >= 0:
                continue
            seen.add(item.position)
            entries.append((self._launched_ns(index)[0], item.call))
        start_ns, end_ns = self._host_range(owned.number)
        entries += [
            (at_ns, Synchronize("synchronize"))
            for at_ns, _ in self._now.waits
            if start_ns <= at_ns < end_ns
        ]
        return tuple(entry for _, entry in sorted(entries, key=lambda pair: pair[0]))

    def _host_range(self, number: int) -> tuple[int, int]:
        step = self._profile.steps[number]
        return step.start_ns, step.start_ns + step.host_ns

    # -- the timeline

    def timeline(self, recording: Recording) -> Timeline:
        """Everything at the time at which it happens now, from the start of the first step."""
        host = carried_host(self._profile, self._kernels, self._now)
        kernels: list[KernelSpan] = []
        steps: list[StepSpan] = []
        origin_ns = done_ns = self._step_start(self._owned[0])
        ends = self._last_hosts(host)
        for owned, step, hosts in zip(
            self._owned, recording.steps, pairwise([0, *ends]), strict=True
        ):
            first = len(kernels)
            kernels += [self._kernel_span(index, host) for index in owned.events]
            own = _Places(*hosts, first, len(kernels))
            steps.append(self._step_span(owned, step, kernels[first:], done_ns, own))
            done_ns = max(done_ns, steps[-1].done_ns)
        memory_ns = (origin_ns,) if self._profile.peak_allocated_bytes else ()
        whole = Timeline(host.spans, tuple(kernels), tuple(steps), done_ns, memory_ns)
        return _moved(whole, -origin_ns)

    def _last_hosts(self, host: CarriedHost) -> list[int]:
        """Where the host spans of each step end: those up to the next step's start are its own."""
        starts = list(accumulate((span.start_ns for span in host.spans), max))
        ends = [bisect_left(starts, self._step_start(owned)) for owned in self._owned[1:]]
        return [*accumulate(ends, max), len(starts)]

    def _step_start(self, owned: _Owned) -> int:
        return self._now.host_ns(self._profile.steps[owned.number].start_ns)

    def _step_span(
        self,
        owned: _Owned,
        step: Step,
        kernels: list[KernelSpan],
        was_done_ns: int,
        places: _Places,
    ) -> StepSpan:
        start_was_ns, end_was_ns = self._host_range(owned.number)
        start_ns, end_ns = self._step_start(owned), self._now.host_ns(end_was_ns)
        done_ns = max([end_ns, *(span.end_ns for span in kernels)])
        begun_ns = was_done_ns if done_ns > was_done_ns > start_ns else start_ns
        busy_ns, communication_ns, exposed_ns = busy_times(kernels)
        waited_ns = sum(ns for at, ns in self._now.waits if start_was_ns <= at < end_was_ns)
        return StepSpan(
            replay=Replay(step, owned.number, 1, {0: owned.number}),
            start_ns=start_ns,
            end_ns=end_ns,
            done_ns=done_ns,
            latency_ns=max(0, done_ns - begun_ns),
            gpu_busy_ns=busy_ns,
            communication_ns=communication_ns,
            exposed_communication_ns=exposed_ns,
            stream_gaps_ns=self._gaps_ns(owned),
            host_ns=max(0, end_ns - start_ns - waited_ns),
            **places._asdict(),
        )

    def _gaps_ns(self, owned: _Owned) -> int:
        """The gaps before kernels that were launched while the one before them still ran."""
        total_ns = 0
        last: dict[int, Placed] = {}
        for index in owned.events:
            stream, placed = self._profile.events[index].stream, self._now.events[index]
            before, last[stream] = last.get(stream), placed
            launch_ns = self._now.host_ns(self._launched_ns(index)[0])
            if before is not None and launch_ns < before.end_ns < placed.start_ns:
                total_ns += placed.start_ns - before.end_ns
        return total_ns

    def _kernel_span(self, index: int, host: CarriedHost) -> KernelSpan:
        item, placed = self._kernels[index], self._now.events[index]
        return KernelSpan(
            kernel=item.kernel,
            estimate=item.estimate,
            stream=item.event.stream,
            start_ns=placed.start_ns,
            duration_ns=placed.end_ns - placed.start_ns,
            correlation=item.event.correlation or 0,
            op=host.place_of_op.get(item.position, -1),
            call=item.call,
        )


def _moved(timeline: Timeline, by_ns: int) -> Timeline:
    """The same, so much later."""
    return Timeline(
        tuple(span._replace(start_ns=span.start_ns + by_ns) for span in timeline.host),
        tuple(span._replace(start_ns=span.start_ns + by_ns) for span in timeline.kernels),
        tuple(
            replace(
                step,
                start_ns=step.start_ns + by_ns,
                end_ns=step.end_ns + by_ns,
                done_ns=step.done_ns + by_ns,
            )
            for step in timeline.steps
        ),
        timeline.end_ns + by_ns,
        tuple(at_ns + by_ns for at_ns in timeline.memory_ns),
    )
