"""The host's lanes of a trace: steps, ops, autograd nodes, modules, annotations, runtime calls."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from neusight.output.names.rocm import hip_call, miopen_op
from neusight.output.trace.collectives import Collectives, is_collective, parameters
from neusight.output.trace.composite_inputs import ShownInputs
from neusight.output.trace.device_lanes import DeviceLanes
from neusight.output.trace.events import (
    APART_NS,
    FORWARD_ARROW,
    LAUNCH_ARROW,
    EventLog,
    WrittenRows,
    joined,
    members,
)
from neusight.recording.recording import COMPILED_CODE, OpCall
from neusight.timeline.launches import DRIVER_LAUNCH
from neusight.timeline.operators.repeats import Offset, Repeat
from neusight.timeline.scheduler import GRAPH_LAUNCH
from neusight.timeline.spans import AUTOGRAD, MAIN, HostSpan, KernelSpan, StepSpan, Timeline

#: CUPTI's numbers of the runtime calls (as real profiles show them).
_CALLBACK_IDS = {
    "cudaLaunchKernel": 211,
    "cudaLaunchKernelExC": 430,
    DRIVER_LAUNCH: 307,
    GRAPH_LAUNCH: 311,
    "cudaMemcpyAsync": 41,
    "cudaMemsetAsync": 51,
    "cudaDeviceSynchronize": 165,
    "cudaStreamSynchronize": 131,
    "cudaEventSynchronize": 137,
    "cudaEventRecord": 135,
    "cudaStreamWaitEvent": 147,
}


#: Begins the names of ops that stand for kernels which torch.compile fused.
_FUSED = "inductor::"


class _KnownStep(NamedTuple):
    """A step that was written: how far it is behind the first that it equals, its rows behind its
    frame, and by stream when its first kernel starts and its last one ends after it began."""

    offset: Offset
    rows: WrittenRows
    starts: Mapping[int, int]
    ends: Mapping[int, int]


class HostLanes:
    """Writes what runs on the host, and has the kernels written that it launches."""

    def __init__(
        self,
        log: EventLog,
        device: DeviceLanes,
        timeline: Timeline,
        collectives: Collectives,
        *,
        record_shapes: bool, with_modules: bool, step_names: Mapping[int, str] | None = None,
    ) -> None:  # fmt: skip
        #: Position of a span -> its start and end as they were written.
        self.written: dict[int, tuple[int, int]] = {}
        self._log = log
        self._device = device
        self.timeline = timeline
        self._collectives, self._step_names = collectives, step_names
        self._modules = _Modules() if with_modules else None
        self._spans = timeline.host
        self._names: dict[str, str] = {}
        self._known_steps: dict[int, _KnownStep] = {}  # by the number of the first that is equal
        self._shown = ShownInputs(timeline.host, is_wanted=record_shapes)
        # By the identities of calls, which the timeline keeps.
        self._inputs: dict[int, str] = {}
        self._external: dict[int, int] = {}  # span position -> external id of its launches
        self._announced: set[int] = set()  # ops that are a collective and nothing else
        self._python: dict[int, int] = {}  # span position -> python id
        # Of the step that is written: its external id, its kernels by the correlation of their
        # launch, and where the forward op of each sequence number starts (None once it is tied).
        self._step_id = 0
        self._launched: dict[int, list[KernelSpan]] = {}
        self._forward: dict[int, int | None] = {}

    def step(self, step: StepSpan, repeat: Repeat) -> None:
        """All of a step: its frame, its spans in order, the annotations over its kernels."""
        self._step_id, start, end = self._log.new_id(), step.start_ns, step.end_ns - APART_NS
        if name := step_name(step, self._step_names):
            frame = HostSpan("annotation", name, start, 0)
            self._complete("user_annotation", frame, start, end, self._step_id)
        kernels = self.timeline.kernels[step.first_kernel : step.last_kernel]
        starts = self._device.starts_of(kernels, step.start_ns)
        known = self._known_steps.get(repeat.first)
        if known is None or known.starts != starts:
            self._write(step, repeat, kernels, starts)
            return
        self._log.repeat(
            known.rows,
            time_ns=repeat.offset.time_ns - known.offset.time_ns,
            correlation=repeat.offset.correlation - known.offset.correlation,
        )
        self._device.repeated(known.ends, step.start_ns)

    def _write(
        self, step: StepSpan, repeat: Repeat, kernels: Sequence[KernelSpan],
        starts: Mapping[int, int],
    ) -> None:  # fmt: skip
        log, spans, around = self._log, self._spans, (step.start_ns, step.end_ns - APART_NS)
        first_row, begin = log.num_rows(), log.counters()
        self._launched = defaultdict(list)
        for kernel in kernels:
            self._launched[kernel.correlation].append(kernel)
        self._forward = {}
        for position in range(step.first_host, step.last_host):
            self._span(position, spans[position], around)
        self._device.annotations(kernels, self._external)
        calls = (span.call for span in spans[step.first_host : step.last_host])
        numbers = (call.sequence_nr or 0 for call in calls if call is not None)
        log.num_sequences += 1 + max(numbers, default=0)
        if not self._collectives.are_any:  # these count on, too
            rows = WrittenRows(first_row, log.num_rows(), begin, log.counters())
            ends = self._device.ends_of(starts, step.start_ns)
            self._known_steps[repeat.first] = _KnownStep(repeat.offset, rows, starts, ends)

    def _span(self, position: int, span: HostSpan, around: tuple[int, int]) -> None:
        start, end = self._place(position, span, around)
        kind = span.kind
        if kind == "operator":
            self._operator(position, span, start, end)
        elif kind == "op":
            self._op(position, span, start, end)
        elif kind == "node":
            self._node(position, span, start, end)
        elif kind in ("module", "function"):
            self._function(position, span, start, end)
        elif kind in ("launch", "event", "sync"):
            self._runtime(position, span)
        elif kind == "compiled":
            self._compiled(position, span, start, end)
        else:
            category = "user_annotation" if kind == "annotation" else "cpu_op"
            own = self._external[position] = self._log.new_id()
            self._complete(category, span, start, end, own)

    def _place(self, position: int, span: HostSpan, around: tuple[int, int]) -> tuple[int, int]:
        """Where a span is written: inside its parent, its end apart from its neighbours."""
        parent = span.parent
        if parent >= 0 and self._spans[parent].thread == span.thread:
            around = self.written.get(parent, around)
        low, high = around
        start, end = span.start_ns, span.start_ns + span.duration_ns
        end = (high if end > high else end) - APART_NS
        if start <= low:
            start = low + APART_NS
        if start > end:  # for each span, so without min and max, which are calls
            start = end if end > low else low
        placed = self.written[position] = (start, end if end > start else start)
        return placed

    def _complete(
        self,
        category: str,
        span: HostSpan,
        start: int,
        end: int,
        external: int,
        own: str = "",
        *,
        number: int | None = None,
        forward_thread: int = 0,
    ) -> None:
        """A span as an event, its own arguments between those that all have."""
        name = self._names.get(span.name)
        if name is None:
            # An op of compiled code has its kernel's name.
            name = span.name.removeprefix(_FUSED)
            name = self._names[span.name] = miopen_op(name) if self._device.is_rocm else name
        self._log.operator(
            category, name, span.thread, start, end, external, own,
            number=number, forward_thread=forward_thread,
        )  # fmt: skip

    # -- ops and autograd nodes

    def _op(self, position: int, span: HostSpan, start: int, end: int) -> None:
        external = self._external[position] = self._log.new_id()
        inputs, number = "" if span.call is None else self._inputs_of(span.call), None
        if span.name.startswith(_FUSED):
            inputs = joined(members({"kernel_backend": "triton"}), inputs)
        elif not _is_in_function(span, self._spans):
            number = self._forward_of(self._sequence(span), span, start)
            if number is not None and span.call is not None:
                self._shown.returned(number, span.call.signature)
        self._complete("cpu_op", span, start, end, external, inputs, number=number)
        collective = self._collective_of(position) if self._collectives.are_any else None
        if collective is not None:
            self._communication(position, span, collective)
            self._announced.add(position)

    def _operator(self, position: int, span: HostSpan, start: int, end: int) -> None:
        """An operator around ops, with the number of the first, or below one."""
        external = self._external[position] = self._log.new_id()
        number = span.sequence_nr
        if number is not None:
            number += self._log.num_sequences
        shapes = self._shown.of_operator(position, span)
        self._complete("cpu_op", span, start, end, external, shapes, number=number)

    def _forward_of(self, number: int | None, span: HostSpan, start: int) -> int | None:
        """The number that ties what runs in forward to its autograd node."""
        if number is None or span.thread != MAIN:
            return None
        self._forward.setdefault(number, start)
        return number

    def _compiled(self, position: int, span: HostSpan, start: int, end: int) -> None:
        """Compiled code; autograd gives the number of its node to the first op in it."""
        external = self._external[position] = self._log.new_id()
        number = None
        inside = self.timeline.host[position + 1 : position + 2]
        if span.name == COMPILED_CODE[1] and inside and inside[0].parent == position:
            number = self._forward_of(self._sequence(inside[0]), span, start)
        self._complete("cpu_op", span, start, end, external, number=number)

    def _node(self, position: int, span: HostSpan, start: int, end: int) -> None:
        external = self._external[position] = self._log.new_id()
        number = self._sequence(span)
        is_engine = span.name.startswith("autograd::engine")
        shapes = "" if is_engine else self._shown.of_node(position, span, number)
        self._complete(
            "cpu_op", span, start, end, external, shapes, number=number, forward_thread=1
        )
        if number is not None and not is_engine:
            self._arrow_to_node(number, start)

    def _arrow_to_node(self, number: int, start: int) -> None:
        """The arrow from a forward op to its node, drawn once."""
        leaves = self._forward.get(number)
        if leaves is None:
            return
        self._forward[number] = None
        log, flow = self._log, self._log.new_flow()
        log.arrow_start(FORWARD_ARROW, flow, leaves, MAIN)
        log.arrow_end(FORWARD_ARROW, flow, start, log.process, log.number_of(AUTOGRAD))

    def _sequence(self, span: HostSpan) -> int | None:
        number = span.sequence_nr if span.call is None else span.call.sequence_nr
        return None if number is None else self._log.num_sequences + number

    def _inputs_of(self, call: OpCall) -> str:
        """What an op was called with, and by which lines of the program."""
        known = self._inputs.get(id(call))
        if known is None:
            shapes = self._shown.of_op(call.signature)
            stack = members({"Call stack": ";".join(call.stack)}) if call.stack else ""
            known = self._inputs[id(call)] = joined(shapes, stack)
        return known

    # -- collectives

    def _collective_of(self, position: int) -> KernelSpan | None:
        """What an op launches, if that is a collective and nothing else."""
        found = None
        for index in range(position + 1, len(self.timeline.host)):
            inside = self.timeline.host[index]
            if inside.parent != position:
                break
            for kernel in self._launched.get(inside.correlation, ()):
                if found is not None or not is_collective(kernel.kernel):
                    return None
                found = kernel
        return found

    def _communication(self, position: int, around: HostSpan, kernel: KernelSpan) -> None:
        """The annotation around NCCL's launch, whose id the kernel has, and its parameters.

        It lies in what was written of the span at `position`, and what follows inside of it.
        """
        external = self._external[position] = self._log.new_id()
        start, end = self.written[position]
        name, shapes = self._collectives.annotation(kernel)
        self._complete(
            "user_annotation",
            around._replace(name=name),
            start + APART_NS,
            end - APART_NS,
            external,
            members(shapes),
        )
        params_span = around._replace(name="record_param_comms")
        messages, number = self._collectives.messages(kernel), self._collectives.number(kernel)
        start, end = start + 2 * APART_NS, end - 2 * APART_NS
        for message in messages[:-1]:  # those of a batch that are only counted, one after the other
            facts = parameters(message, self._collectives.rank, number)
            self._recorded_params(params_span, start, start + APART_NS, facts)
            start += 2 * APART_NS
        self._recorded_params(
            params_span, start, end, parameters(messages[-1], self._collectives.rank, number)
        )
        self.written[position] = (start + APART_NS, end - APART_NS)

    def _recorded_params(
        self, span: HostSpan, start: int, end: int, facts: dict[str, object]
    ) -> None:
        args = members({**facts, "Rank": self._collectives.rank})
        self._complete("cpu_op", span, start, end, self._log.new_id(), args)

    # -- modules and runtime calls

    def _function(self, position: int, span: HostSpan, start: int, end: int) -> None:
        """A Python function, or the forward of a module."""
        name, own = span.name, ""
        if span.kind == "module":
            if self._modules is None:
                return
            name, number = self._modules.named(span)
            own = f'"Python module id":{number},'
        parent = _enclosing(span.parent, self._spans, self._python)
        function = self._python[position] = self._log.new_function()
        self._log.function(name, span.thread, start, end, function, parent, own)

    def _runtime(self, position: int, span: HostSpan) -> None:
        """A call of the runtime, and what it launched."""
        kernels = self._launched.get(span.correlation, ())
        is_recorded = span.parent in self._announced
        if len(kernels) == 1 and is_collective(kernels[0].kernel) and not is_recorded:
            self._communication(position, span, kernels[0])  # beside copies of its op
        start, end = self.written[position]
        enclosing = _enclosing(position, self._spans, self._external)
        external = self._step_id if enclosing is None else enclosing
        is_rocm = self._device.is_rocm
        # A profile that was carried over may have any other call.
        is_known = span.name in _CALLBACK_IDS and not is_rocm
        callback = f'"cbid":{_CALLBACK_IDS[span.name]},' if is_known else ""
        name, category = span.name, "cuda_runtime"
        if is_rocm:  # one kind of calls, whose names are HIP's
            name = hip_call(name, kernels[0].kernel if kernels else None)
        elif span.name == DRIVER_LAUNCH:
            category = "cuda_driver"
        self._log.call(
            category, name, span.thread, start, end, external, callback, span.correlation
        )
        if kernels:
            self._log.arrow_start(LAUNCH_ARROW, span.correlation, start, span.thread)
        for kernel in kernels:
            self._device.kernel(kernel, external)


def _is_in_function(span: HostSpan, host: Sequence[HostSpan]) -> bool:
    """Whether an op is part of a function of autograd's, whose node is that of all of it."""
    return span.parent >= 0 and host[span.parent].name == COMPILED_CODE[1]


def _enclosing(position: int, host: Sequence[HostSpan], ids: Mapping[int, int]) -> int | None:
    """The id of the innermost span that has one, of that at a position and those around it."""
    while position >= 0:
        if position in ids:
            return ids[position]
        position = host[position].parent
    return None


class _Modules:
    """The names of nn.Modules, numbered within their class as the profiler does."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], tuple[str, int]] = {}
        self._per_class: dict[str, int] = {}

    def named(self, span: HostSpan) -> tuple[str, int]:
        """Name and number of the module whose forward a span is."""
        known = self._known.get((span.detail, span.name))
        if known is None:
            kind = span.detail.partition(" ")[0]
            instance = self._per_class.get(kind, 0)
            self._per_class[kind] = instance + 1
            known = (f"nn.Module: {kind or 'Module'}_{instance}", instance)
            self._known[(span.detail, span.name)] = known
        return known


def step_name(step: StepSpan, names: Mapping[int, str] | None) -> str:
    """What frames a step, as the profiler's schedule names it; "" where nothing does."""
    index = step.replay.index
    return f"ProfilerStep#{index}" if names is None else names.get(index, "")
