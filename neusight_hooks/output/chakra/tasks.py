"""A step as tasks that wait for each other: the host's calls, kernels, and what ranks exchange."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

from neusight.ops.communication.messages import Message, messages_of
from neusight.predictors.kernel import Kernel, KernelClass
from neusight.recording.recording import (
    Entry,
    EventRecord,
    EventWait,
    Mark,
    OpCall,
    Synchronize,
)
from neusight.timeline.spans import HostSpan, KernelSpan, StepSpan, Timeline
from neusight.timeline.streams import LAUNCH_QUEUE_DEPTH

#: The lane of the host, beside those of streams.
HOST_LANE = -1

#: Kernels of earlier steps that launch queues may still hold, however many streams there are.
_MOST_QUEUED = 4 * LAUNCH_QUEUE_DEPTH

TaskKind = Literal["host", "kernel", "collective", "transfer"]


class Task(NamedTuple):
    """Something that begins once the tasks `after` have ended, and then takes `duration_ns`.

    They are numbered by their places. `launch` is the place of the host's task that launches it, or
    -1; `start_ns` counts from the begin of the step. Of a collective or a batch of transfers
    `duration_ns` leaves out what it waits for other ranks, and `messages` say what is exchanged.
    """

    kind: TaskKind
    name: str
    lane: int
    start_ns: int
    duration_ns: int
    after: tuple[int, ...]
    launch: int = -1
    kernel: Kernel | None = None
    messages: tuple[Message, ...] = ()

    @property
    def end_ns(self) -> int:
        """When it ends, if it waits for no other task."""
        return self.start_ns + self.duration_ns


def tasks_of(timeline: Timeline, step: StepSpan) -> list[Task]:
    """The tasks of a step, each behind those that it waits for.

    A stream runs its kernels in order, and waits for events; the host launches them one after the
    other, and waits where the program synchronizes. What lies between the end of all that a kernel
    waits for and its start (the launch's latency, the gap between kernels) belongs to the kernel,
    of collectives to none. So a simulator that begins each task as early as possible, with the
    duration stated here, has the timeline but for these. The step begins on a GPU that has nothing
    to do: what the step before left running is not waited for.
    """
    graph = _Graph(timeline, step)
    graph.build()
    return graph.tasks


class _Graph:
    """The tasks so far, and what each lane will wait for."""

    def __init__(self, timeline: Timeline, step: StepSpan) -> None:
        self.tasks: list[Task] = []
        self._timeline = timeline
        self._step = step
        self._ends: list[int] = []  # of each task, waiting for other ranks included
        self._now_ns = step.start_ns  # up to here the host's time is spent by its tasks
        self._host = -1  # the last task of the host
        self._host_awaits: set[int] = set()  # what its next task waits for beside
        self._streams: dict[int, list[int]] = defaultdict(list)  # the kernels of each, in order
        self._pending: dict[int, set[int]] = defaultdict(set)  # what the next of each waits for
        self._events: dict[int, frozenset[int]] = {}
        before = timeline.kernels[: step.first_kernel]
        self._was_done_ns = max((kernel.end_ns for kernel in before), default=0)
        # Of what each stream's launch queue held: the task, or -1 of an earlier step, and its end.
        self._queues: dict[int, list[tuple[int, int]]] = defaultdict(list)
        for kernel in before[-_MOST_QUEUED:]:
            self._queues[kernel.stream].append((-1, kernel.end_ns))
        self._launched: dict[int, list[KernelSpan]] = defaultdict(list)
        for kernel in timeline.kernels[step.first_kernel : step.last_kernel]:
            self._launched[kernel.correlation].append(kernel)

    def build(self) -> None:
        """All of the step: the host's spans in order, with the entries that show what they mean."""
        entries = _Entries(self._step.replay.step.entries)
        for span in self._timeline.host[self._step.first_host : self._step.last_host]:
            if span.kind == "event":
                self._event(next(entries.events))
            elif span.kind == "sync":
                self._synchronize(span, next(entries.waits))
            elif span.kind == "launch":
                kernels = self._launched.get(span.correlation, [])
                is_graph = span.parent < 0 or self._timeline.host[span.parent].kind != "op"
                self._launch(span, kernels, next(entries.graphs) if is_graph else ())
        self._host_until(self._step.end_ns, "end of the step")

    # -- the host

    def _host_until(self, end_ns: int, name: str, after: frozenset[int] = frozenset()) -> int:
        """A task for what the host does up to then, once these have ended; returns its place."""
        after = after | self._host_awaits
        self._host_awaits = set()
        begin_ns = max([self._now_ns, *(self._ends[place] for place in after)])
        if self._host >= 0:
            after = after | {self._host}
        self._now_ns = max(end_ns, begin_ns)
        self._host = self._append(
            Task(
                kind="host",
                name=name,
                lane=HOST_LANE,
                start_ns=begin_ns - self._step.start_ns,
                duration_ns=self._now_ns - begin_ns,
                after=tuple(sorted(after)),
            ),
            self._now_ns,
        )
        return self._host

    def _synchronize(self, span: HostSpan, entry: Synchronize) -> None:
        self._host_until(span.start_ns, f"before {span.name}")
        if entry.event is not None:
            awaited = self._events.get(entry.event, frozenset())
        elif entry.stream is not None:
            awaited = self._reached(entry.stream)
        else:
            lanes = [*self._streams, *self._pending]
            awaited = frozenset().union(*(self._reached(stream) for stream in lanes))
        self._host_until(span.end_ns, span.name, awaited)

    def _launch(
        self, span: HostSpan, kernels: Sequence[KernelSpan], captured: Sequence[Entry]
    ) -> None:
        name = span.name if captured else self._timeline.host[span.parent].name
        full = self._wait_for_space(span, kernels, name)
        # The call of a copy from pageable memory lasts as long as the copy.
        is_awaited = len(kernels) == 1 and span.start_ns < kernels[0].end_ns <= span.end_ns
        launch = self._host_until(kernels[0].start_ns if is_awaited else span.end_ns, name, full)
        if captured:
            self._run_graph(list(kernels), captured, launch)
        else:
            for kernel in kernels:
                self._run(kernel, launch)
        if is_awaited:
            self._host_awaits = {self._streams[kernels[0].stream][-1]}

    def _wait_for_space(
        self, span: HostSpan, kernels: Sequence[KernelSpan], name: str
    ) -> frozenset[int]:
        """What must have ended before a launch finds space in its stream's queue, if it is full."""
        queue = self._queues[kernels[0].stream] if kernels else []
        if len(queue) < LAUNCH_QUEUE_DEPTH:
            return frozenset()
        place, end_ns = queue[-LAUNCH_QUEUE_DEPTH]
        if end_ns <= span.start_ns:
            return frozenset()
        self._host_until(span.start_ns, name)
        if place >= 0:
            return frozenset({place})
        self._now_ns = end_ns
        return frozenset()

    # -- streams

    def _reached(self, stream: int) -> frozenset[int]:
        """What must have ended for a stream to have run all that it holds."""
        return frozenset(self._pending[stream]).union(self._streams[stream][-1:])

    def _event(self, entry: EventRecord | EventWait) -> None:
        if isinstance(entry, EventRecord):
            self._events[entry.event] = self._reached(entry.stream)
        else:  # one of an earlier step has happened
            self._pending[entry.stream] |= self._events.get(entry.event, frozenset())

    def _run_graph(self, kernels: list[KernelSpan], captured: Sequence[Entry], launch: int) -> None:
        """The kernels of a CUDA graph, with its events as they were captured."""
        for entry in captured:
            if isinstance(entry, (EventRecord, EventWait)):
                self._event(entry)
            elif isinstance(entry, OpCall):
                while kernels and kernels[0].call is entry:
                    self._run(kernels.pop(0), launch)

    def _run(self, span: KernelSpan, launch: int) -> None:
        after = self._reached(span.stream) | {launch}
        self._pending[span.stream].clear()
        is_exchange = span.kernel.kernel_class is KernelClass.COLLECTIVE
        messages = messages_of(span.call.signature) if is_exchange else ()
        kind: TaskKind = "transfer" if messages and messages[0].is_transfer else "collective"
        begin_ns = span.start_ns
        if not messages:
            kind = "kernel"
            ready_ns = max(self._was_done_ns, *(self._ends[place] for place in after))
            begin_ns = min(begin_ns, ready_ns)
        place = self._append(
            Task(
                kind=kind,
                name=span.kernel.name,
                lane=span.stream,
                start_ns=begin_ns - self._step.start_ns,
                duration_ns=span.end_ns - begin_ns - span.waited_ns,
                after=tuple(sorted(after)),
                launch=launch,
                kernel=span.kernel,
                messages=messages,
            ),
            span.end_ns,
        )
        self._streams[span.stream].append(place)
        self._queues[span.stream].append((place, span.end_ns))

    def _append(self, task: Task, end_ns: int) -> int:
        self.tasks.append(task)
        self._ends.append(end_ns)
        return len(self.tasks) - 1


class _Entries:
    """The entries of a step that are spans of the host: events and waits outside of CUDA graphs,
    and what lies in each graph."""

    def __init__(self, entries: Sequence[Entry]) -> None:
        events: list[EventRecord | EventWait] = []
        waits: list[Synchronize] = []
        graphs: list[list[Entry]] = []
        in_graph = False
        for entry in entries:
            if isinstance(entry, Mark):
                if entry.kind == "graph_begin":
                    graphs.append([])
                in_graph = entry.kind == "graph_begin" or (in_graph and entry.kind != "graph_end")
            elif in_graph:
                graphs[-1].append(entry)
            elif isinstance(entry, (EventRecord, EventWait)):
                events.append(entry)
            elif isinstance(entry, Synchronize):
                waits.append(entry)
        self.events: Iterator[EventRecord | EventWait] = iter(events)
        self.waits: Iterator[Synchronize] = iter(waits)
        self.graphs: Iterator[list[Entry]] = iter(graphs)
