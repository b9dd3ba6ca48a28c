"""Kernels and ops placed in time: a host that dispatches, streams that run in order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal, NamedTuple

from neusight.predictors.kernel import Kernel, KernelClass
from neusight.predictors.predictor import Estimate
from neusight.recording.recording import (
    Alloc,
    Entry,
    EventRecord,
    EventWait,
    Free,
    HostWork,
    Mark,
    MathMode,
    OpCall,
    OpSignature,
    Phase,
    Recording,
    Replay,
    Synchronize,
    replays,
)
from neusight.timeline.host import HostProfile, dispatch_us

__all__ = [
    "COMMUNICATION_STREAM",
    "GRAPH_LAUNCH",
    "HostSpan",
    "KernelSpan",
    "Pricing",
    "Scheduler",
    "StepSpan",
    "Timeline",
    "bound_of",
    "is_pinned_copy",
    "schedule",
]

Thread = Literal["main", "autograd"]
SpanKind = Literal["op", "node", "module", "annotation", "launch", "event", "sync", "work"]
StepBound = Literal["host", "compute", "memory", "communication"]

#: The kernels that an op launches, in order, with their estimates. It must answer equal calls
#: equally; the scheduler asks once for each (signature, math mode, phase).
Pricing = Callable[[OpCall], tuple[tuple[Kernel, Estimate], ...]]

#: Collectives run on a stream of their own, as NCCL's process group does.
COMMUNICATION_STREAM = 20
#: Launches that a stream holds before the next one blocks the host (CUDA's launch queue; the
#: depth is not documented; 1024 is the commonly reported one).
LAUNCH_QUEUE_DEPTH = 1024
#: Bytes of a copy from pageable memory that the driver takes over at once; of a larger one the
#: host's call lasts as long as the copy (CUDA's "API synchronization behavior"; V100, 19.3 MB: the
#: call takes 2.02 ms, the copy 1.94).
STAGED_BYTES = 2**16
#: Share of an op's dispatch that lies before its first launch (aten::add on H100: 6.5 of 7.6 us).
DISPATCH_BEFORE_LAUNCH = 0.85
#: A step is host-bound when its GPU idles for more than this share because the host is late.
HOST_BOUND_IDLE_SHARE = 0.25

_COPIES = {"memcpy_h2d", "memcpy_d2h", "memcpy_d2d", "memset"}
#: Ops that make their stream wait for the collectives before.
_WAITS = ("::wait_tensor", "c10d::wait")
#: The runtime call that launches all kernels of a CUDA graph.
GRAPH_LAUNCH = "cudaGraphLaunch"
_EVALUATE = "autograd::engine::evaluate_function: "
#: The node of one parameter's gradient, with one op in it; it has no sequence number.
_ACCUMULATE = "torch::autograd::AccumulateGrad"
#: Waits that the program asks for itself; all others (item, copy, nonzero) happen inside an op.
_OWN_WAITS = {"synchronize", "event", "stream"}
_NO_OP = ("", -1, -1)


class HostSpan(NamedTuple):
    """Something on the host, times in whole nanoseconds from the start of the block.

    kind "op": `call` is the op; "node": an autograd node around backward ops (two, one in the
    other, as the profiler shows them); "module": an nn.Module's forward, `name` its path and
    `detail` its class; "annotation": record_function and the like; "launch": a runtime call with
    the `correlation` of its kernel, or of all kernels of a CUDA graph; "event": cudaEventRecord or
    cudaStreamWaitEvent; "sync": the host waits, because of `detail`; "work": the host is busy
    itself.
    `parent` is the position of the enclosing span in `Timeline.host`, or -1. While ops of
    "autograd" run, "main" waits in backward().
    """

    kind: SpanKind
    name: str
    start_ns: int
    duration_ns: int
    thread: Thread = "main"
    parent: int = -1
    call: OpCall | None = None
    correlation: int = 0
    detail: str = ""

    @property
    def end_ns(self) -> int:
        """When it ends."""
        return self.start_ns + self.duration_ns


_MAIN: Thread = "main"
_AUTOGRAD: Thread = "autograd"
#: Holds an op's place until its duration is known.
_UNFINISHED = HostSpan("op", "", 0, 0)


class KernelSpan(NamedTuple):
    """A kernel on a stream. `call` is the op it is part of, `op` the position in `Timeline.host` of
    that op's span; kernels of a CUDA graph have no such span, but that of the graph's launch."""

    kernel: Kernel
    estimate: Estimate
    stream: int
    start_ns: int
    duration_ns: int
    correlation: int
    op: int
    call: OpCall

    @property
    def end_ns(self) -> int:
        """When it ends."""
        return self.start_ns + self.duration_ns


@dataclass(frozen=True, slots=True)
class StepSpan:
    """One replayed step: where it lies in time, and which host and kernel spans are its own.

    `start_ns` and `end_ns` are the host's; `done_ns` is when the host has ended it and all
    kernels launched so far have run, whichever is later. `latency_ns` is from the step before's
    `done_ns` to this one's: what a loop of such steps costs each. `gpu_busy_ns` is the union of
    the step's kernels over all streams, `exposed_communication_ns` the part of it in which only
    collectives run, `stream_gaps_ns` the gaps between queued kernels, `host_ns` the host's time
    without waits. Host spans are `first_host` up to, not including, `last_host`; kernels alike.
    """

    replay: Replay
    start_ns: int
    end_ns: int
    done_ns: int
    latency_ns: int
    gpu_busy_ns: int
    communication_ns: int
    exposed_communication_ns: int
    stream_gaps_ns: int
    host_ns: int
    first_host: int
    last_host: int
    first_kernel: int
    last_kernel: int

    @property
    def represents(self) -> int:
        """How many equal steps of the program this one stands for."""
        return self.replay.represents


@dataclass(frozen=True)
class Timeline:
    """A whole block in time. Host spans are in order of start, kernels in order of launch.

    `memory_ns` holds the host time of every `Alloc` and `Free`, in order.
    """

    host: tuple[HostSpan, ...]
    kernels: tuple[KernelSpan, ...]
    steps: tuple[StepSpan, ...]
    end_ns: int
    memory_ns: tuple[int, ...] = ()


class _Launch(NamedTuple):
    """A kernel as an op of one signature always launches it."""

    kernel: Kernel
    estimate: Estimate
    duration_ns: int
    call_ns: int
    name: str
    is_collective: bool
    is_staged: bool  # the host itself brings the bytes to where the GPU can copy them


class _Plan(NamedTuple):
    """What an op of one signature always costs; keeps alive what its key identifies."""

    before_ns: int
    between_ns: int
    after_ns: int
    launches: tuple[_Launch, ...]
    is_asynchronous: bool
    waits_for_collectives: bool
    signature: OpSignature
    math: MathMode


class Scheduler:
    """Runs entries through time: the clock of a live forecast, and the maker of a `Timeline`.

    With `keep_spans=False` it only knows what time it is: `host_ns`, `device_ns`, `event_ns`.
    """

    def __init__(self, price: Pricing, host: HostProfile, *, keep_spans: bool = False) -> None:
        self.host_ns = 0
        self.waited_ns = 0
        self.gaps_ns = 0
        self.kernels: list[KernelSpan] = []
        self.memory_ns: list[int] = []
        self._price = price
        self._host = host
        self._keep = keep_spans
        self._plans: dict[tuple[int, int, Phase], _Plan] = {}
        self._free_ns: dict[int, int] = {}  # stream -> when all that was queued has run
        self._last_end: dict[int, int] = {}  # stream -> end of its last kernel
        self._queues: dict[int, deque[int]] = {}
        self._events: dict[int, int] = {}
        self._past_events: list[dict[int, int]] = []  # those of the steps before
        self._captured: list[Entry] | None = None  # what lies in a graph's launch, while it is read
        self._outstanding = False  # a collective that nothing has waited for yet
        self._correlation = 0
        self._spans: list[HostSpan] = []
        self._open: list[int] = []  # positions of open module and annotation spans
        self._nodes: list[int] = []  # positions of the open autograd node's two spans
        self._node: tuple[str, int | None] | None = None
        self._pending_ns: int | None = None  # start of the allocations that the next op makes
        self._last_op = _NO_OP  # name, position, end of the op that may still allocate
        self._launch_ns = _ns(host.launch_us)
        self._graph_ns = _ns(host.graph_launch_us)
        self._memcpy_ns = _ns(host.memcpy_us)
        self._latency_ns = _ns(host.launch_latency_us)
        self._gap_ns = _ns(host.kernel_gap_us)
        self._node_ns = _ns(host.node_us)
        self._event_ns = _ns(host.event_us)
        self._sync_ns = _ns(host.synchronize_us)
        self._alloc_ns = _ns(host.allocate_us)
        self._release_ns = _ns(host.free_us)
        self._mark_ns = {
            "module_begin": _ns(host.module_us / 2),
            "module_end": _ns(host.module_us / 2),
            "annotation_begin": _ns(host.annotation_us / 2),
            "annotation_end": _ns(host.annotation_us / 2),
        }

    @property
    def device_ns(self) -> int:
        """When all kernels launched so far have run; never before `host_ns`."""
        return max(self.host_ns, *self._free_ns.values()) if self._free_ns else self.host_ns

    def event_ns(self, event: int) -> int:
        """When the event happens on its stream; KeyError if it was not recorded."""
        return self._events[event]

    def feed(self, entries: Iterable[Entry]) -> None:
        """Lets the entries happen, one after the other."""
        for entry in entries:
            if self._captured is not None and not isinstance(entry, Mark):
                self._captured.append(entry)
            elif isinstance(entry, OpCall):
                self._run(entry)
            elif isinstance(entry, Alloc):
                self._allocate(entry)
            elif isinstance(entry, Free):
                if self._keep:
                    self.memory_ns.append(self.host_ns)
                self.host_ns += self._release_ns
            else:
                self._pending_ns = None
                self._rare(entry)
                self._last_op = _NO_OP

    def host_spans(self) -> list[HostSpan]:
        """The spans so far; open ones are closed first."""
        self._close_all()
        return self._spans

    def cut(self) -> None:
        """Ends a step: what is still open is closed here and, if anything, opened again."""
        self._pending_ns = None
        self._last_op = _NO_OP
        self._past_events.append(self._events)
        self._events = {}
        reopen = [self._spans[position] for position in self._open]
        self._close_all()
        for span in reopen:
            self._begin(span.kind, span.name, span.detail)

    def _rare(self, entry: Entry) -> None:
        if isinstance(entry, Mark):
            self._mark(entry)
        elif isinstance(entry, Synchronize):
            self._synchronize(entry)
        elif isinstance(entry, EventRecord):
            self._close_node()
            self._runtime("event", "cudaEventRecord", self._event_ns)
            self._record_event(entry)
        elif isinstance(entry, EventWait):
            self._close_node()
            self._runtime("event", "cudaStreamWaitEvent", self._event_ns)
            self._wait_for_event(entry)
        elif isinstance(entry, HostWork):
            self._close_node()
            duration_ns = _ns(entry.duration_us)
            self._add("work", entry.name, self.host_ns, duration_ns)
            self.host_ns += duration_ns

    # -- ops and their kernels

    def _run(self, call: OpCall) -> None:
        plan = self._plan_of(call)
        start_ns = self.host_ns if self._pending_ns is None else self._pending_ns
        self._pending_ns = None
        backward = call.phase == "backward"
        if backward or self._node is not None:
            start_ns = self._enter_node(call, start_ns)
        position = -1
        if self._keep:
            position = len(self._spans)
            self._spans.append(_UNFINISHED)
        self._wait_for_collectives(plan, call)
        self.host_ns += plan.before_ns
        if plan.launches:
            first = True
            for launch in plan.launches:
                if not first:
                    self.host_ns += plan.between_ns
                first = False
                self._launch(launch, call, position, plan.is_asynchronous)
        self.host_ns += plan.after_ns
        if self._keep:
            name, thread = call.signature.op, _AUTOGRAD if backward else _MAIN
            self._spans[position] = HostSpan(
                "op", name, start_ns, self.host_ns - start_ns, thread, self._parent(), call
            )
            self._last_op = (name, position, self.host_ns)

    def _launch(self, launch: _Launch, call: OpCall, position: int, asynchronous: bool) -> None:
        stream = COMMUNICATION_STREAM if launch.is_collective else call.stream
        queue = self._queues.get(stream)
        if queue is None:
            queue = self._queues[stream] = deque(maxlen=LAUNCH_QUEUE_DEPTH)
        begin_ns = self.host_ns
        end_ns = begin_ns + launch.call_ns
        if len(queue) == LAUNCH_QUEUE_DEPTH and queue[0] > begin_ns:
            self.waited_ns += queue[0] - begin_ns
            end_ns = queue[0] + launch.call_ns
        self.host_ns = end_ns
        self._correlation += 1
        done_ns = self._execute(launch, call, position, asynchronous)
        queue.append(done_ns)
        if launch.is_staged:
            self.waited_ns += max(0, done_ns - launch.duration_ns - end_ns - self._latency_ns)
            self.host_ns = end_ns = max(end_ns, done_ns)
        if self._keep:
            thread = _AUTOGRAD if call.phase == "backward" else _MAIN
            self._spans.append(
                HostSpan(
                    "launch", launch.name, begin_ns, end_ns - begin_ns, thread, position, None,
                    self._correlation,
                )
            )  # fmt: skip

    def _execute(self, launch: _Launch, call: OpCall, position: int, asynchronous: bool) -> int:
        """Runs a kernel that was launched just now on its stream; returns when it ends."""
        stream = COMMUNICATION_STREAM if launch.is_collective else call.stream
        free_ns = self._free_ns
        start_ns = self.host_ns + self._latency_ns
        last_end_ns = self._last_end.get(stream, -1)
        after_ns = last_end_ns + self._gap_ns if last_end_ns >= 0 else 0
        if start_ns < after_ns:
            self.gaps_ns += after_ns - max(start_ns, last_end_ns)
            start_ns = after_ns
        waits_ns = free_ns.get(stream, 0)
        if launch.is_collective:
            waits_ns = max(waits_ns, free_ns.get(call.stream, 0))
        if waits_ns > start_ns:
            start_ns = waits_ns
        done_ns = start_ns + launch.duration_ns
        free_ns[stream] = self._last_end[stream] = done_ns
        if launch.is_collective:
            if asynchronous:
                self._outstanding = True
            elif free_ns.get(call.stream, 0) < done_ns:
                free_ns[call.stream] = done_ns
        if self._keep:
            self.kernels.append(
                KernelSpan(
                    launch.kernel, launch.estimate, stream, start_ns, launch.duration_ns,
                    self._correlation, position, call,
                )
            )  # fmt: skip
        return done_ns

    def _launch_graph(self, captured: list[Entry]) -> None:
        """One call of the host; kernels, events and waits follow as they were captured."""
        plans = {id(item): self._plan_of(item) for item in captured if isinstance(item, OpCall)}
        num_kernels = sum(
            len(plans[id(item)].launches) for item in captured if isinstance(item, OpCall)
        )
        self._correlation += 1
        duration_ns = self._graph_ns + _ns(num_kernels * self._host.graph_kernel_us)
        position = self._add("launch", GRAPH_LAUNCH, self.host_ns, duration_ns)
        self.host_ns += duration_ns
        for entry in captured:
            if isinstance(entry, OpCall):
                plan = plans[id(entry)]
                self._wait_for_collectives(plan, entry)
                for launch in plan.launches:
                    self._execute(launch, entry, position, plan.is_asynchronous)
            elif isinstance(entry, EventRecord):
                self._record_event(entry)
            elif isinstance(entry, EventWait):
                self._wait_for_event(entry)

    def _wait_for_collectives(self, plan: _Plan, call: OpCall) -> None:
        """An optimizer reads reduced gradients: DistributedDataParallel waits for them at the end
        of backward, in C++, where no op is dispatched."""
        if plan.waits_for_collectives or (self._outstanding and call.phase == "optimizer"):
            self._outstanding = False
            done_ns = self._free_ns.get(COMMUNICATION_STREAM, 0)
            self._free_ns[call.stream] = max(self._free_ns.get(call.stream, 0), done_ns)

    def _plan_of(self, call: OpCall) -> _Plan:
        key = (id(call.signature), id(call.math), call.phase)
        plan = self._plans.get(key)
        if plan is None:
            plan = self._plans[key] = self._plan(call)
        return plan

    def _plan(self, call: OpCall) -> _Plan:
        priced = self._price(call)
        classes = tuple(kernel.kernel_class for kernel, _ in priced)
        extra_ns = _ns(self._host.extra_kernel_us) if len(priced) > 1 else 0
        total_ns = _ns(dispatch_us(call, classes, host=self._host)) - extra_ns * (len(priced) - 1)
        before_ns = round(total_ns * DISPATCH_BEFORE_LAUNCH)
        return _Plan(
            before_ns=before_ns,
            between_ns=extra_ns,
            after_ns=total_ns - before_ns,
            launches=tuple(
                self._planned_launch(kernel, estimate, call.signature)
                for kernel, estimate in priced
            ),
            is_asynchronous=_is_asynchronous(call.signature),
            waits_for_collectives=call.signature.op.endswith(_WAITS),
            signature=call.signature,
            math=call.math,
        )

    def _planned_launch(
        self, kernel: Kernel, estimate: Estimate, signature: OpSignature
    ) -> _Launch:
        copies = kernel.name in _COPIES
        name = "cudaLaunchKernel"
        if copies:
            name = "cudaMemsetAsync" if kernel.name == "memset" else "cudaMemcpyAsync"
        elif kernel.kernel_class in (KernelClass.GEMM, KernelClass.COLLECTIVE):
            name = "cudaLaunchKernelExC"
        return _Launch(
            kernel=kernel,
            estimate=estimate,
            duration_ns=max(1, _ns(estimate.latency_us)),
            call_ns=self._memcpy_ns if copies else self._launch_ns,
            name=name,
            is_collective=kernel.kernel_class is KernelClass.COLLECTIVE,
            is_staged=kernel.name == "memcpy_h2d"
            and kernel.bytes_read > STAGED_BYTES
            and not is_pinned_copy(signature),
        )

    # -- allocations: they belong into the op that makes them, recorded before or after it

    def _allocate(self, alloc: Alloc) -> None:
        op, position, end_ns = self._last_op
        if self._keep:
            self.memory_ns.append(self.host_ns + self._alloc_ns // 2)
        if position >= 0 and op == alloc.op and end_ns == self.host_ns:
            self.host_ns += self._alloc_ns
            self._close(position)
            self._last_op = (op, position, self.host_ns)
            return
        if self._pending_ns is None:
            self._pending_ns = self.host_ns
        self.host_ns += self._alloc_ns

    # -- what encloses ops: autograd nodes, modules, annotations

    def _enter_node(self, call: OpCall, start_ns: int) -> int:
        """Opens and closes autograd nodes; returns when the op starts."""
        wanted = (call.node, call.sequence_nr) if call.phase == "backward" and call.node else None
        if wanted == self._node and call.node != _ACCUMULATE:
            return start_ns
        self._close_node(start_ns)
        if wanted is None:
            return start_ns
        self._node = wanted
        if not self._keep:
            self.host_ns += self._node_ns
            return start_ns
        outer_ns = self._node_ns // 2
        shift_ns = self._node_ns
        parent = self._parent()
        name, outer = call.node, len(self._spans)
        self._spans.append(
            HostSpan("node", _EVALUATE + name, start_ns, 0, "autograd", parent, call)
        )
        self._spans.append(HostSpan("node", name, start_ns + outer_ns, 0, "autograd", outer, call))
        self._nodes = [outer, outer + 1]
        self._shift_memory(start_ns, shift_ns)
        self.host_ns += shift_ns
        return start_ns + shift_ns

    def _shift_memory(self, start_ns: int, shift_ns: int) -> None:
        """Moves the allocations of the op that follows into its node."""
        times = self.memory_ns
        index = len(times) - 1
        while index >= 0 and times[index] > start_ns:
            times[index] += shift_ns
            index -= 1

    def _close_node(self, end_ns: int | None = None) -> None:
        self._node = None
        if not self._nodes:
            return
        end = self.host_ns if end_ns is None else end_ns
        for position in self._nodes:
            span = self._spans[position]
            self._spans[position] = span._replace(duration_ns=end - span.start_ns)
        self._nodes = []

    def _mark(self, mark: Mark) -> None:
        self._close_node()
        if mark.kind == "graph_begin":
            self._captured = []
            return
        if mark.kind == "graph_end":
            captured, self._captured = self._captured, None
            self._launch_graph(captured or [])
            return
        cost_ns = self._mark_ns[mark.kind]
        kind: SpanKind = "module" if mark.kind.startswith("module") else "annotation"
        if mark.kind.endswith("begin"):
            self._begin(kind, mark.name, mark.detail)
            self.host_ns += cost_ns
            return
        self.host_ns += cost_ns
        self._end(kind, mark.name)

    def _begin(self, kind: SpanKind, name: str, detail: str) -> None:
        if self._keep:
            self._open.append(self._add(kind, name, self.host_ns, 0, detail=detail))

    def _end(self, kind: SpanKind, name: str) -> None:
        matches = [
            level
            for level, position in enumerate(self._open)
            if self._spans[position].kind == kind and self._spans[position].name == name
        ]
        if not matches:
            return
        while len(self._open) > matches[-1]:  # what an exception left open ends here, too
            self._close(self._open.pop())

    def _close(self, position: int) -> None:
        span = self._spans[position]
        self._spans[position] = span._replace(duration_ns=self.host_ns - span.start_ns)

    def _close_all(self) -> None:
        self._close_node()
        while self._open:
            self._close(self._open.pop())

    def _parent(self) -> int:
        if self._nodes:
            return self._nodes[-1]
        return self._open[-1] if self._open else -1

    # -- waiting and runtime calls

    def _record_event(self, entry: EventRecord) -> None:
        idle_ns = self.host_ns + self._latency_ns
        self._events[entry.event] = max(self._free_ns.get(entry.stream, 0), idle_ns)

    def _wait_for_event(self, entry: EventWait) -> None:
        happens_ns = self._happens_ns(entry.event)
        self._free_ns[entry.stream] = max(self._free_ns.get(entry.stream, 0), happens_ns)

    def _happens_ns(self, event: int) -> int:
        """When an event of this step or, numbered below 1, of an earlier one happens; one that was
        never recorded is done."""
        events = self._events
        for earlier in reversed(self._past_events):
            if event >= 1:
                break
            events = earlier
            event += max(earlier, default=0)
        return events.get(event, 0)

    def _synchronize(self, entry: Synchronize) -> None:
        if entry.event is not None:
            name, done_ns = "cudaEventSynchronize", self._happens_ns(entry.event)
        elif entry.stream is not None:
            name, done_ns = "cudaStreamSynchronize", self._free_ns.get(entry.stream, 0)
        else:
            name, done_ns = "cudaDeviceSynchronize", self.device_ns
        wait_ns = max(0, done_ns - self.host_ns)
        self.waited_ns += wait_ns
        _, op, op_end_ns = self._last_op
        if entry.reason in _OWN_WAITS:
            self._close_node()
        elif op >= 0 and op_end_ns == self.host_ns:  # the op itself waits
            self._correlation += 1
            duration_ns = wait_ns + self._sync_ns
            self._spans.append(
                HostSpan(
                    "sync", name, self.host_ns, duration_ns, self._spans[op].thread, op, None,
                    self._correlation, entry.reason,
                )
            )  # fmt: skip
            self.host_ns += duration_ns
            self._close(op)
            return
        self._runtime("sync", name, wait_ns + self._sync_ns, detail=entry.reason)

    def _runtime(self, kind: SpanKind, name: str, duration_ns: int, detail: str = "") -> None:
        self._correlation += 1
        self._add(kind, name, self.host_ns, duration_ns, detail=detail)
        self.host_ns += duration_ns

    def _add(
        self, kind: SpanKind, name: str, start_ns: int, duration_ns: int, *, detail: str = ""
    ) -> int:
        if not self._keep:
            return -1
        thread: Thread = "autograd" if self._nodes else "main"
        correlation = self._correlation if kind in ("event", "launch", "sync") else 0
        self._spans.append(
            HostSpan(
                kind, name, start_ns, duration_ns, thread, self._parent(), None, correlation, detail
            )
        )
        return len(self._spans) - 1


def _ns(microseconds: float) -> int:
    return round(microseconds * 1000)


def _is_asynchronous(signature: OpSignature) -> bool:
    """Whether the current stream goes on without the collective (wait_tensor waits for it)."""
    by_name = signature.by_name
    return by_name.get("async_op") is True or "c10d_functional" in signature.op


def is_pinned_copy(signature: OpSignature) -> bool:
    """Whether the host's side of a copy is pinned memory, as far as the op tells.

    A move to the CPU that does not block gets pinned memory from PyTorch (`_to_copy`), and item()
    reads through such.
    """
    if signature.op.endswith("_local_scalar_dense"):
        return True
    inputs = signature.input_tensors
    if any(spec.device == "cpu" for spec in inputs):
        return any(spec.is_pinned for spec in inputs)
    return signature.by_name.get("non_blocking") is True


def schedule(recording: Recording, price: Pricing, host: HostProfile) -> Timeline:
    """The recording placed in time: what the host does when, and which kernel runs when.

    >>> from neusight.timeline.host import PLAIN
    >>> from neusight.recording.recording import Step
    >>> step = Step("eval", (HostWork("load", 2.5),))
    >>> program = Recording((step,), gpu="H100", torch_version="2.13")
    >>> schedule(program, lambda call: (), PLAIN).end_ns
    2500
    """
    scheduler = Scheduler(price, host, keep_spans=True)
    steps: list[StepSpan] = []
    done_ns = first_host = first_kernel = waited_ns = gaps_ns = start_ns = 0
    for replay in replays(recording):
        scheduler.feed(replay.step.entries)
        last_host, last_kernel = len(scheduler._spans), len(scheduler.kernels)
        kernels = scheduler.kernels[first_kernel:last_kernel]
        busy_ns, communication_ns, exposed_ns = _busy(kernels)
        end_ns, was_done_ns, done_ns = scheduler.host_ns, done_ns, scheduler.device_ns
        steps.append(
            StepSpan(
                replay=replay,
                start_ns=start_ns,
                end_ns=end_ns,
                done_ns=done_ns,
                latency_ns=done_ns - was_done_ns,
                gpu_busy_ns=busy_ns,
                communication_ns=communication_ns,
                exposed_communication_ns=exposed_ns,
                stream_gaps_ns=scheduler.gaps_ns - gaps_ns,
                host_ns=end_ns - start_ns - (scheduler.waited_ns - waited_ns),
                first_host=first_host,
                last_host=last_host,
                first_kernel=first_kernel,
                last_kernel=last_kernel,
            )
        )
        scheduler.cut()
        first_host, first_kernel, start_ns = last_host, last_kernel, end_ns
        waited_ns, gaps_ns = scheduler.waited_ns, scheduler.gaps_ns
    return Timeline(
        host=tuple(scheduler.host_spans()),
        kernels=tuple(scheduler.kernels),
        steps=tuple(steps),
        end_ns=done_ns,
        memory_ns=tuple(scheduler.memory_ns),
    )


def _busy(kernels: list[KernelSpan]) -> tuple[int, int, int]:
    """Union of all kernels, union of the collectives, and what only collectives cover."""
    collectives = [k for k in kernels if k.kernel.kernel_class is KernelClass.COLLECTIVE]
    busy_ns = _union_ns(kernels)
    if not collectives:
        return busy_ns, 0, 0
    others = [k for k in kernels if k.kernel.kernel_class is not KernelClass.COLLECTIVE]
    return busy_ns, _union_ns(collectives), busy_ns - _union_ns(others)


def _union_ns(kernels: list[KernelSpan]) -> int:
    total_ns = reached_ns = 0
    for start_ns, end_ns in sorted((k.start_ns, k.start_ns + k.duration_ns) for k in kernels):
        if end_ns > reached_ns:
            total_ns += end_ns - max(start_ns, reached_ns)
            reached_ns = end_ns
    return total_ns


def bound_of(step: StepSpan, timeline: Timeline) -> StepBound:
    """What to change to make the step faster.

    "host" when the GPU idles for more than a quarter of the step beyond the gaps between queued
    kernels; else the largest of the kernel time bound by arithmetic, the kernel time bound by
    memory (kernels at their shortest possible time count here) and the time that only collectives
    run.
    """
    idle_ns = step.latency_ns - step.gpu_busy_ns - step.stream_gaps_ns
    if step.gpu_busy_ns == 0 or idle_ns > HOST_BOUND_IDLE_SHARE * step.latency_ns:
        return "host"
    shares: dict[StepBound, int] = {
        "compute": 0,
        "memory": 0,
        "communication": step.exposed_communication_ns,
    }
    for span in timeline.kernels[step.first_kernel : step.last_kernel]:
        if span.kernel.kernel_class is not KernelClass.COLLECTIVE:
            shares["compute" if span.estimate.bound == "compute" else "memory"] += span.duration_ns
    return max(shares, key=lambda bound: shares[bound])
