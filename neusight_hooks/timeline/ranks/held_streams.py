"""Streams of one rank among several: entries of unknown time are held, in order."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from neusight.timeline.host import HostProfile
from neusight.timeline.launches import Launch
from neusight.timeline.ranks.meetings import Appointment, Meetings
from neusight.timeline.streams import LAUNCH_QUEUE_DEPTH, Streams

#: The time of an event that is recorded but has not happened, as far as is known.
_UNKNOWN = -1

#: Called when a held kernel runs: its position, start and duration, and how long it waited in it.
Placed = Callable[[int, int, int, int], None]


@dataclass(slots=True)
class HeldKernel:
    """A kernel in a stream's queue: the `position`-th of its rank, with whom it has to meet, and
    when it could start (known once it is the stream's next)."""

    launch: Launch
    launched_ns: int
    position: int
    step: int
    appointments: tuple[Appointment, ...]
    is_queued: bool
    came_ns: int | None = None


@dataclass(slots=True)
class _HeldRecord:
    events: dict[int, int]
    event: int
    host_ns: int


@dataclass(slots=True)
class _HeldWait:
    events: dict[int, int]
    event: int


@dataclass(slots=True)
class _HeldEnd:
    step: int


_Held = HeldKernel | _HeldRecord | _HeldWait | _HeldEnd


class HeldStreams(Streams):
    """Runs at once what can, and holds what must wait for a meeting, or lies behind such.

    Once everybody comes, the order in which ranks and streams are looked at changes nothing: each
    time is the latest of others plus a duration.
    """

    def __init__(self, host: HostProfile, meetings: Meetings, placed: Placed) -> None:
        super().__init__(host)
        #: Of each step when its kernels had run, and the gaps between those that were queued.
        self.done_of_step: Counter[int] = Counter()
        self.gaps_of_step: Counter[int] = Counter()
        self.step = 0
        self._meetings = meetings
        self._placed = placed
        self._held: dict[int, deque[_Held]] = {}
        self._num_held: Counter[int] = Counter()  # kernels by stream

    # -- what is held

    @property
    def holds_any(self) -> bool:
        """Whether anything is held."""
        return bool(self._held)

    def holds(self, stream: int) -> bool:
        """Whether the stream holds anything."""
        return stream in self._held

    def is_unknown(self, event: int) -> bool:
        """Whether the time of an event is still unknown."""
        events, event = self._home_of(event)
        return events.get(event) == _UNKNOWN

    def is_full(self, stream: int, num_launches: int) -> bool:
        """Whether so many launches more would block the host for an unknown time."""
        return self._num_held[stream] + num_launches > LAUNCH_QUEUE_DEPTH

    def waiting(self) -> Iterator[Appointment]:
        """The meetings that the streams wait in, those that are complete left out."""
        for queue in self._held.values():
            first = queue[0]
            if isinstance(first, HeldKernel):
                yield from filter(self._meetings.missing, first.appointments)

    # -- what the scheduler asks

    def accepts_ns(self, stream: int) -> int:
        """When a stream's queue has space for another launch; 0 where it has space already."""
        queue = self._queues.get(stream)
        room = LAUNCH_QUEUE_DEPTH - self._num_held[stream]
        return queue[-room] if queue and len(queue) >= room else 0

    def hold(self, stream: int, kernel: HeldKernel) -> None:
        """A kernel that runs as soon as it can."""
        self._held.setdefault(stream, deque()).append(kernel)
        self._num_held[stream] += 1
        self.advance(stream)

    def record_event(self, event: int, *, stream: int, host_ns: int) -> None:
        """An event that happens once the stream has run what it holds."""
        if stream not in self._held:
            super().record_event(event, stream=stream, host_ns=host_ns)
            return
        self._events[event] = _UNKNOWN
        self._held[stream].append(_HeldRecord(self._events, event, host_ns))

    def wait_for_event(self, event: int, *, stream: int) -> None:
        """Lets a stream go on only after an event."""
        if stream not in self._held and not self.is_unknown(event):
            super().wait_for_event(event, stream=stream)
            return
        self._held.setdefault(stream, deque()).append(_HeldWait(*self._home_of(event)))

    def end_step(self) -> None:
        """Begins a step whose events are numbered again."""
        self.done_of_step[self.step] = max(self.done_of_step[self.step], self.done_ns())
        for queue in self._held.values():
            queue.append(_HeldEnd(self.step))
        self.step += 1
        super().end_step()

    # -- time goes on

    def advance_all(self) -> bool:
        """Lets happen what can; whether anything did."""
        return sum(self.advance(stream) for stream in list(self._held)) > 0

    def advance(self, stream: int) -> bool:
        """Lets the stream go as far as it can; whether it went at all."""
        queue = self._held[stream]
        moved = False
        while queue and self._happens(queue[0], stream):
            queue.popleft()
            moved = True
        if not queue:
            del self._held[stream]
        return moved

    def _happens(self, held: _Held, stream: int) -> bool:
        if isinstance(held, HeldKernel):
            return self._runs(held, stream)
        if isinstance(held, _HeldRecord):
            held.events[held.event] = self._reached_ns(stream, held.host_ns)
        elif isinstance(held, _HeldWait):
            happens_ns = held.events.get(held.event, 0)
            if happens_ns == _UNKNOWN:
                return False
            self._hold(stream, happens_ns)
        else:
            done_ns = max(self.done_of_step[held.step], self.free_ns(stream))
            self.done_of_step[held.step] = done_ns
        return True

    def _runs(self, kernel: HeldKernel, stream: int) -> bool:
        """It runs from when it could until the last one that it meets came, and its time more."""
        if kernel.came_ns is None:
            before_ns = self.gaps_ns
            kernel.came_ns = self.start_ns(stream, launched_ns=kernel.launched_ns)
            self.gaps_of_step[kernel.step] += self.gaps_ns - before_ns
            for appointment in kernel.appointments:
                self._meetings.come(appointment, kernel.came_ns)
        complete_ns = kernel.came_ns
        for appointment in kernel.appointments:
            latest_ns = self._meetings.complete_ns(appointment)
            if latest_ns is None:
                return False
            complete_ns = max(complete_ns, latest_ns)
        end_ns = complete_ns + kernel.launch.duration_ns
        self.occupy(stream, end_ns)
        self._num_held[stream] -= 1
        if kernel.is_queued:
            self.enqueue(stream, end_ns)
        waited_ns = complete_ns - kernel.came_ns
        self._placed(kernel.position, kernel.came_ns, end_ns - kernel.came_ns, waited_ns)
        return True

    def run(self, launch: Launch, *, stream: int, launched_ns: int) -> int:
        """Runs a kernel on a stream that holds nothing; returns when it starts."""
        before_ns = self.gaps_ns
        start_ns = super().run(launch, stream=stream, launched_ns=launched_ns)
        self.gaps_of_step[self.step] += self.gaps_ns - before_ns
        return start_ns
