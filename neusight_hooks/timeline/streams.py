"""The GPU's side of a schedule: streams that run in order, events between them, launch queues."""

from __future__ import annotations

from collections import deque

from neusight.timeline.host import HostProfile
from neusight.timeline.launches import Launch, nanoseconds

#: Launches that a stream holds before the next one blocks the host (CUDA's launch queue; the
#: depth is not documented; 1024 is the commonly reported one).
LAUNCH_QUEUE_DEPTH = 1024


#: Numbers of a library's streams: so many for each of the program's.
_FIRST_BRANCH = 1000
_MOST_BRANCHES = 1000


def _branch_of(stream: int, number: int) -> int:
    return _FIRST_BRANCH + stream * _MOST_BRANCHES + number


class Streams:
    """When each stream that the host feeds is free, and when each event happens; all times in
    nanoseconds.

    `latency_ns` lies between a launch and the earliest start of its kernel, `gap_ns` between two
    kernels that were both queued. `gaps_ns` is the sum of such gaps so far.
    """

    def __init__(self, host: HostProfile) -> None:
        self.gaps_ns = 0
        self.latency_ns = nanoseconds(host.launch_latency_us)
        self._gap_ns = nanoseconds(host.kernel_gap_us)
        self._free_ns: dict[int, int] = {}  # stream -> when all that was queued has run
        self._last_end: dict[int, int] = {}  # stream -> end of its last kernel
        self._queues: dict[int, deque[int]] = {}  # stream -> ends of the launches it holds
        self._busy_ns = 0  # when the SMs have done what kernels of branches need of them
        self._events: dict[int, int] = {}
        self._past_events: list[dict[int, int]] = []  # those of the steps before

    def done_ns(self) -> int:
        """When all that was queued so far has run; 0 where nothing was."""
        return max(self._free_ns.values(), default=0)

    def free_ns(self, stream: int) -> int:
        """When all that was queued on a stream so far has run."""
        return self._free_ns.get(stream, 0)

    def accepts_ns(self, stream: int) -> int:
        """When a stream's queue has space for another launch; 0 where it has space already."""
        queue = self._queues.get(stream)
        return queue[0] if queue and len(queue) == LAUNCH_QUEUE_DEPTH else 0

    def enqueue(self, stream: int, done_ns: int) -> None:
        """A launch that stays in the stream's queue until its kernel is done."""
        queue = self._queues.get(stream)
        if queue is None:
            queue = self._queues[stream] = deque(maxlen=LAUNCH_QUEUE_DEPTH)
        queue.append(done_ns)

    def run(self, launch: Launch, *, stream: int, launched_ns: int) -> int:
        """Runs a kernel on a stream; returns when it starts."""
        start_ns = self.start_ns(stream, launched_ns=launched_ns)
        self.occupy(stream, start_ns + launch.duration_ns)
        return start_ns

    def start_ns(self, stream: int, *, launched_ns: int) -> int:
        """When a kernel starts that is the next on a stream; counts the gap before it."""
        free_ns = self._free_ns
        start_ns = launched_ns + self.latency_ns
        last_end_ns = self._last_end.get(stream)
        if last_end_ns is not None and start_ns < last_end_ns + self._gap_ns:
            after_ns = last_end_ns + self._gap_ns
            self.gaps_ns += after_ns - max(start_ns, last_end_ns)
            start_ns = after_ns
        waits_ns = free_ns.get(stream, 0)
        if waits_ns > start_ns:
            start_ns = waits_ns
        return start_ns

    def occupy(self, stream: int, end_ns: int) -> None:
        """The stream is busy until then."""
        self._free_ns[stream] = self._last_end[stream] = end_ns

    # -- streams of libraries

    def fork(self, stream: int, *, host_ns: int) -> None:
        """A library begins to use streams of its own beside one of the program's."""
        self._busy_ns = self._reached_ns(stream, host_ns)

    def branch(self, stream: int, launch: Launch) -> int:
        """The stream on which a library runs a kernel: behind that of the program and what the
        others that it names hold now, and not before the SMs can have done the shares that all
        kernels since the fork need of them."""
        own, *others = (_branch_of(stream, number) for number in launch.kernel.branches)
        self._busy_ns += round(launch.estimate.sm_share * launch.duration_ns)
        self._hold(own, max(self.free_ns(item) for item in (stream, *others)))
        self._hold(own, self._busy_ns - launch.duration_ns)
        return own

    def join(self, stream: int, num_branches: int) -> None:
        """Lets the program's stream go on behind those of the library."""
        ends = (self.free_ns(_branch_of(stream, 1 + number)) for number in range(num_branches))
        self._hold(stream, max(ends, default=0))

    # -- events

    @property
    def last_event(self) -> int:
        """The highest number of an event of this step; 0 where there is none."""
        return max(self._events, default=0)

    def event_ns(self, event: int) -> int:
        """When an event of this step happens; KeyError if it was not recorded."""
        return self._events[event]

    def record_event(self, event: int, *, stream: int, host_ns: int) -> None:
        """An event that happens once the stream has run what it holds."""
        self._events[event] = self._reached_ns(stream, host_ns)

    def wait_for_event(self, event: int, *, stream: int) -> None:
        """Lets a stream go on only after an event."""
        self._hold(stream, self.happens_ns(event))

    def happens_ns(self, event: int) -> int:
        """When an event of this step or, numbered below 1, of an earlier one happens; one that was
        never recorded is done."""
        events, event = self._home_of(event)
        return events.get(event, 0)

    def end_step(self) -> None:
        """Begins a step whose events are numbered again."""
        self._past_events.append(self._events)
        self._events = {}

    def _home_of(self, event: int) -> tuple[dict[int, int], int]:
        """The events of the step in which one is recorded, and its number there."""
        events = self._events
        for earlier in reversed(self._past_events):
            if event >= 1:
                break
            events = earlier
            event += max(earlier, default=0)
        return events, event

    def _reached_ns(self, stream: int, host_ns: int) -> int:
        """When a stream reaches what the host has queued just now."""
        return max(self._free_ns.get(stream, 0), host_ns + self.latency_ns)

    def _hold(self, stream: int, until_ns: int) -> None:
        self._free_ns[stream] = max(self._free_ns.get(stream, 0), until_ns)
