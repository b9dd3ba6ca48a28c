"""Kernels and ops placed in time: a host that dispatches, streams that run in order."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from neusight.predictors.kernel import KernelClass
from neusight.recording.recording import (
    Alloc,
    Entry,
    EventRecord,
    EventWait,
    Free,
    HostWork,
    Mark,
    ModelInput,
    OpCall,
    Synchronize,
)
from neusight.timeline.compiled_calls import begin_compiled, end_compiled
from neusight.timeline.host import HostProfile
from neusight.timeline.host_lane import HostLane, thread_of
from neusight.timeline.launches import (
    Launch,
    OpPlan,
    OpPlans,
    Pricing,
    graph_call_ns,
    nanoseconds,
)
from neusight.timeline.spans import KernelSpan, SpanKind
from neusight.timeline.streams import Streams

#: The runtime call that launches all kernels of a CUDA graph.
GRAPH_LAUNCH = "cudaGraphLaunch"
#: Waits that the program asks for itself; all others (item, copy, nonzero) happen inside an op.
_OWN_WAITS = {"synchronize", "event", "stream"}
_NO_OP = ("", -1, -1)


class Scheduler:
    """Runs entries through time: the clock of a live forecast, and the maker of a `Timeline`.

    With `keep_spans=False` it only knows what time it is: `host_ns`, `device_ns`, `streams`.
    `stretch_ns` is what the kernels, in order of launch, take beyond their estimates.
    """

    def __init__(
        self,
        price: Pricing,
        host: HostProfile,
        *,
        keep_spans: bool = False,
        streams: Streams | None = None,
        stretch_ns: Sequence[int] = (),
    ) -> None:
        self.waited_ns = 0
        self.kernels: list[KernelSpan] = []
        self.lane = HostLane(keep=keep_spans, node_ns=nanoseconds(host.node_us))
        self.streams = streams or Streams(host)
        self._stretch_ns = stretch_ns
        self._host = host
        self._plans = OpPlans(price, host)
        self._captured: list[Entry] | None = None  # what lies in a graph's launch, while it is read
        self._libraries: list[set[KernelClass]] = []  # called so far, by compiled call
        self._library_ns = nanoseconds(host.compiled_library_us)
        self._pending_ns: int | None = None  # start of the allocations that the next op makes
        self._last_op = _NO_OP  # name, position, end of the op that may still allocate
        self._event_ns = nanoseconds(host.event_us)
        self._sync_ns = nanoseconds(host.synchronize_us)
        self._alloc_ns = nanoseconds(host.allocate_us)
        self._release_ns = nanoseconds(host.free_us)
        self._mark_ns: dict[SpanKind, int] = {
            "module": nanoseconds(host.module_us / 2),
            "annotation": nanoseconds(host.annotation_us / 2),
        }

    @property
    def host_ns(self) -> int:
        """What time it is on the host."""
        return self.lane.now_ns

    @property
    def device_ns(self) -> int:
        """When all kernels launched so far have run; never before `host_ns`."""
        return max(self.lane.now_ns, self.streams.done_ns())

    def feed(self, entries: Iterable[Entry]) -> None:
        """Lets the entries happen, one after the other."""
        lane = self.lane
        for entry in entries:
            if self._captured is not None and not isinstance(entry, Mark):
                self._captured.append(entry)
            elif isinstance(entry, OpCall):
                self._run(entry)
            elif isinstance(entry, Alloc):
                self._allocate(entry)
            elif isinstance(entry, Free):
                if lane.keep:
                    lane.memory_ns.append(lane.now_ns)
                lane.now_ns += self._release_ns
            elif not isinstance(entry, ModelInput):
                self._pending_ns = None
                self._schedule_other(entry)
                self._last_op = _NO_OP

    def cut(self) -> None:
        """Ends a step: what is still open is closed here and, if anything, opened again."""
        self._pending_ns = None
        self._last_op = _NO_OP
        self.streams.end_step()
        self.lane.end_step()

    def _schedule_other(self, entry: Entry) -> None:
        if isinstance(entry, Mark):
            self._mark(entry)
        elif isinstance(entry, Synchronize):
            self._synchronize(entry)
        elif isinstance(entry, EventRecord):
            self._call_of_event("cudaEventRecord", entry)
            self._record_event(entry)
        elif isinstance(entry, EventWait):
            self._call_of_event("cudaStreamWaitEvent", entry)
            self.streams.wait_for_event(entry.event, stream=entry.stream)
        elif isinstance(entry, HostWork):
            self.lane.close_node()
            duration_ns = nanoseconds(entry.duration_us)
            self.lane.add("work", entry.name, duration_ns)
            self.lane.now_ns += duration_ns

    def _call_of_event(self, name: str, entry: EventRecord | EventWait) -> None:
        self.lane.close_node(thread=entry.thread)
        self.lane.runtime("event", name, self._event_ns, thread=entry.thread)

    # -- ops and their kernels

    def _run(self, call: OpCall) -> None:
        lane = self.lane
        plan = self._plans.plan_of(call, is_compiled=bool(self._libraries))
        start_ns = lane.now_ns if self._pending_ns is None else self._pending_ns
        self._pending_ns = None
        start_ns = lane.enter_node(call, start_ns)
        position = lane.reserve()
        lane.now_ns += plan.before_ns + self._first_use_ns(plan)
        if plan.num_branches:
            self.streams.fork(call.stream, host_ns=lane.now_ns)
        for number, launch in enumerate(plan.launches):
            if number:
                lane.now_ns += plan.between_ns
            self._launch(launch, call, position)
        if plan.num_branches:
            self.streams.join(call.stream, plan.num_branches)
        lane.now_ns += plan.after_ns
        if lane.keep:
            lane.finish(position, call, start_ns)
            self._last_op = (call.signature.op, position, lane.now_ns)

    def _first_use_ns(self, plan: OpPlan) -> int:
        """What an op of compiled code costs that is the first of the call to enter its library."""
        if plan.library is None or not self._libraries or plan.library in self._libraries[-1]:
            return 0
        self._libraries[-1].add(plan.library)
        return self._library_ns

    def _launch(self, launch: Launch, call: OpCall, position: int) -> None:
        lane, streams = self.lane, self.streams
        begin_ns = lane.now_ns
        accepts_ns = max(begin_ns, streams.accepts_ns(call.stream))
        self.waited_ns += accepts_ns - begin_ns
        lane.now_ns = end_ns = accepts_ns + launch.call_ns
        lane.correlation += 1
        start_ns = self._execute(launch, call, position, is_queued=True)
        if launch.is_staged:
            self.waited_ns += max(0, start_ns - end_ns - streams.latency_ns)
            lane.now_ns = end_ns = max(end_ns, streams.free_ns(call.stream))
        if lane.keep:
            lane.call_within(
                "launch", launch.name, position, begin_ns, end_ns - begin_ns, thread=thread_of(call)
            )

    def _execute(
        self, launch: Launch, call: OpCall, position: int, *, is_queued: bool = False
    ) -> int:
        """Runs a kernel that was launched just now on its stream; returns when it starts."""
        streams, stream = self.streams, call.stream
        launch = self._stretched(launch)
        if launch.kernel.branches:
            stream = streams.branch(stream, launch)
        start_ns = streams.run(launch, stream=stream, launched_ns=self.lane.now_ns)
        if is_queued:
            streams.enqueue(call.stream, start_ns + launch.duration_ns)
        if self.lane.keep:
            self._keep(launch, call, position, start_ns, stream=stream)
        return start_ns

    def _stretched(self, launch: Launch) -> Launch:
        """The next kernel, as long as it takes."""
        number = len(self.kernels)
        if number >= len(self._stretch_ns):
            return launch
        return launch._replace(duration_ns=launch.duration_ns + self._stretch_ns[number])

    def _keep(
        self, launch: Launch, call: OpCall, position: int, start_ns: int, *, stream: int
    ) -> None:
        self.kernels.append(
            KernelSpan(
                launch.kernel, launch.estimate, stream, start_ns, launch.duration_ns,
                self.lane.correlation, position, call,
            )
        )  # fmt: skip

    def _launch_graph(self, captured: list[Entry]) -> None:
        """One call of the host; kernels, events and waits follow as they were captured."""
        calls = [entry for entry in captured if isinstance(entry, OpCall)]
        num_kernels = sum(len(self._plans.plan_of(call).launches) for call in calls)
        duration_ns = nanoseconds(self._host.graph_launch_us)
        duration_ns += nanoseconds(num_kernels * self._host.graph_kernel_us)
        position = self.lane.runtime("launch", GRAPH_LAUNCH, duration_ns)
        for entry in captured:
            if isinstance(entry, OpCall):
                plan = self._plans.plan_of(entry)
                if plan.num_branches:
                    self.streams.fork(entry.stream, host_ns=self.lane.now_ns)
                for launch in plan.launches:
                    self._execute(launch, entry, position)
                if plan.num_branches:
                    self.streams.join(entry.stream, plan.num_branches)
            elif isinstance(entry, EventRecord):
                self._record_event(entry)
            elif isinstance(entry, EventWait):
                self.streams.wait_for_event(entry.event, stream=entry.stream)

    # -- allocations: they belong into the op that makes them, recorded before or after it

    def _allocate(self, alloc: Alloc) -> None:
        lane = self.lane
        op, position, end_ns = self._last_op
        if lane.keep:
            lane.memory_ns.append(lane.now_ns + self._alloc_ns // 2)
        if position >= 0 and op == alloc.op and end_ns == lane.now_ns:
            lane.now_ns += self._alloc_ns
            lane.extend(position)
            self._last_op = (op, position, lane.now_ns)
            return
        if self._pending_ns is None:
            self._pending_ns = lane.now_ns
        lane.now_ns += self._alloc_ns

    # -- marks, events and waits

    def _mark(self, mark: Mark) -> None:
        self.lane.close_node()
        if mark.kind == "graph_begin":
            self.lane.now_ns += graph_call_ns(mark, self._host)
            self._captured = []
            return
        if mark.kind == "graph_end":
            captured, self._captured = self._captured, None
            self._launch_graph(captured or [])
            self.lane.now_ns += graph_call_ns(mark, self._host)
            return
        if mark.kind == "compiled_begin":
            self._libraries.append(set())
            begin_compiled(self.lane, mark, self._host)
            return
        if mark.kind == "compiled_end":
            self._libraries = self._libraries[:-1]
            end_compiled(self.lane, mark, self._host)
            return
        kind: SpanKind = "module" if mark.kind.startswith("module") else "annotation"
        is_begin = mark.kind.endswith("begin")
        if is_begin:
            instance = f" {mark.instance}" if mark.instance else ""
            self.lane.begin(kind, mark.name, mark.detail + instance)
        self.lane.now_ns += self._mark_ns[kind]
        if not is_begin:
            self.lane.end(kind, mark.name)

    def _record_event(self, entry: EventRecord) -> None:
        self.streams.record_event(entry.event, stream=entry.stream, host_ns=self.lane.now_ns)

    def _synchronize(self, entry: Synchronize) -> None:
        lane = self.lane
        name, done_ns = self._awaited(entry)
        wait_ns = max(0, done_ns - lane.now_ns)
        self.waited_ns += wait_ns
        duration_ns = wait_ns + self._sync_ns
        _, op, op_end_ns = self._last_op
        if entry.reason in _OWN_WAITS:
            lane.close_node(thread=entry.thread)
        elif op >= 0 and op_end_ns == lane.now_ns:  # the op itself waits
            lane.correlation += 1
            thread = lane.spans[op].thread
            lane.call_within(
                "sync", name, op, lane.now_ns, duration_ns, thread=thread, detail=entry.reason
            )
            lane.now_ns += duration_ns
            lane.extend(op)
            return
        lane.runtime("sync", name, duration_ns, detail=entry.reason, thread=entry.thread)

    def _awaited(self, entry: Synchronize) -> tuple[str, int]:
        """The runtime call that waits, and what it waits for."""
        if entry.event is not None:
            return "cudaEventSynchronize", self.streams.happens_ns(entry.event)
        if entry.stream is not None:
            return "cudaStreamSynchronize", self.streams.free_ns(entry.stream)
        return "cudaDeviceSynchronize", self.device_ns
