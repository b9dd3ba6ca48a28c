"""The forecast as torch.profiler's own function events, so that its tables print unchanged."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from neusight.memory.placement import MemoryTimeline
from neusight.output.names.kernel import kernel_display_name, launched_name
from neusight.output.names.rocm import hip_call, miopen_op
from neusight.predictors.gpu import GPU
from neusight.recording.recording import Argument, TensorSpec
from neusight.timeline.operators.tree import shown_positions, with_operators
from neusight.timeline.spans import (
    AUTOGRAD,
    MAIN,
    HostSpan,
    KernelSpan,
    StepSpan,
    Timeline,
    number_of_thread,
)
from neusight.timeline.steady import shown_steps_of

_NS_PER_US = 1000.0
_KINDS = ("op", "operator", "node", "annotation", "compiled")
_RUNTIME_KINDS = ("launch", "event", "sync")
_MAIN_THREAD, _AUTOGRAD_THREAD = 1, 2


def event_list(
    timeline: Timeline,
    gpu: GPU,
    memory: MemoryTimeline | None = None,
    *,
    operators: bool = False,
) -> Any:
    """torch.autograd.profiler_util.EventList of the replayed steps, times in microseconds.

    Setup is left out where there are steps; equal steps are those of the timeline, a few each.
    With `operators` those around the ops and below them are events, too. With `memory` the events
    say, as torch.profiler's do, how many bytes the GPU held more after them than before.
    """
    from torch.autograd import profiler_util

    untyped: Any = profiler_util  # torch's own constructors have no annotations
    listed = untyped.EventList(
        function_events(timeline, gpu, memory, operators=operators),
        use_device="cuda",
        profile_memory=memory is not None,
        with_flops=True,
    )
    listed._build_tree()
    return listed


def function_events(
    timeline: Timeline,
    gpu: GPU,
    memory: MemoryTimeline | None = None,
    *,
    operators: bool = False,
    step_names: Mapping[int, str] | None = None,
    shows_host: bool = True,
    shows_device: bool = True,
) -> list[Any]:
    """What `event_list` lists, each with no parent so far. Without `shows_host` that is calls of
    the runtime and kernels, without `shows_device` neither; steps that have one of `step_names`, by
    number, are events, too."""
    from torch.autograd import profiler_util

    untyped: Any = profiler_util  # torch's own constructors have no annotations
    kinds = (*(_KINDS if shows_host else ()), *(_RUNTIME_KINDS if shows_device else ()))
    steps: Sequence[StepSpan] = shown_steps_of(timeline)
    growth = Counter[int]() if memory is None else _growth(timeline, memory, steps)
    if operators:
        shown = with_operators(timeline, steps)
        growth = _growth_shown(growth, shown_positions(timeline, steps, shown), shown)
        timeline, steps = shown, shown.steps
    named = _named_on(gpu, timeline)
    events = {
        position: untyped.FunctionEvent(
            **_host_fields(position, named(timeline.host[position])),
            device_memory_usage=growth[position],
        )
        for step in steps
        for position in range(step.first_host, step.last_host)
        if timeline.host[position].kind in kinds
    }
    frames = [
        untyped.FunctionEvent(**_step_fields(step, name))
        for step in steps
        if shows_host and (name := (step_names or {}).get(step.replay.index))
    ]
    device_events: list[Any] = []
    shown_steps = steps if shows_device else ()
    for index in (i for step in shown_steps for i in range(step.first_kernel, step.last_kernel)):
        span = timeline.kernels[index]
        name = launched_name(kernel_display_name(span.kernel, span.estimate, gpu), span)
        owner = events.get(span.op)
        if owner is not None:
            owner.append_kernel(name, 0, span.duration_ns / _NS_PER_US)
            owner.flops += span.kernel.flops
        device_events.append(
            untyped.FunctionEvent(
                id=len(timeline.host) + index,
                device_type=untyped.DeviceType.CUDA,
                **_device_fields(name, span),
            )
        )
    return [*frames, *events.values(), *device_events]


def _named_on(gpu: GPU, timeline: Timeline) -> Callable[[HostSpan], HostSpan]:
    """Gives a span the name that its op or call has in a build of torch for that GPU."""
    if gpu.vendor != "amd":
        return lambda span: span
    kernels = {span.correlation: span.kernel for span in timeline.kernels}

    def named(span: HostSpan) -> HostSpan:
        return span._replace(name=hip_call(miopen_op(span.name), kernels.get(span.correlation)))

    return named


def _host_fields(position: int, span: HostSpan) -> dict[str, Any]:
    call = None if span.kind == "operator" else span.call
    number = span.sequence_nr if call is None else call.sequence_nr
    other_thread = _AUTOGRAD_THREAD + number_of_thread(span.thread)
    return {
        "id": position,
        "name": span.name,
        "trace_name": span.name,
        "thread": _MAIN_THREAD if span.thread == MAIN else other_thread,
        "start_us": span.start_ns / _NS_PER_US,
        "end_us": span.end_ns / _NS_PER_US,
        "fwd_thread": _MAIN_THREAD if span.thread == AUTOGRAD else None,
        "input_shapes": _shapes_of(span),
        "stack": list(span.call.stack) if span.call is not None else [],
        "use_device": "cuda",
        "sequence_nr": -1 if number is None else number,
        "flops": 0,
        "is_user_annotation": span.kind == "annotation",
    }


def _step_fields(step: StepSpan, name: str) -> dict[str, Any]:
    """Of what frames a step; tables count all steps as one name."""
    return {
        "id": -step.replay.index,
        "name": f"{name.partition('#')[0]}*",
        "trace_name": name,
        "thread": _MAIN_THREAD,
        "start_us": step.start_ns / _NS_PER_US,
        "end_us": step.end_ns / _NS_PER_US,
        "use_device": "cuda",
        "stack": [],
        "is_user_annotation": True,
    }


def _device_fields(name: str, span: KernelSpan) -> dict[str, Any]:
    return {
        "name": name,
        "trace_name": name,
        "thread": span.stream,
        "start_us": span.start_ns / _NS_PER_US,
        "end_us": span.end_ns / _NS_PER_US,
        "device_index": 0,
        "device_resource_id": span.stream,
        "use_device": "cuda",
        "stack": [],
    }


def _growth(timeline: Timeline, memory: MemoryTimeline, steps: Sequence[StepSpan]) -> Counter[int]:
    """Bytes that each host span allocates less those it frees, its children's included."""
    ops = [
        position
        for step in steps
        for position in range(step.first_host, step.last_host)
        if timeline.host[position].kind == "op"
    ]
    starts = [timeline.host[position].start_ns for position in ops]
    shown = {step.replay.index for step in steps}
    growth: Counter[int] = Counter()
    for event in memory.events:
        if event.step not in shown:
            continue
        time_ns = timeline.memory_ns[event.mark]
        index = bisect_right(starts, time_ns) - 1
        position = ops[index] if index >= 0 else -1
        while position >= 0:
            span = timeline.host[position]
            if span.start_ns <= time_ns <= span.end_ns:
                growth[position] += event.num_bytes
            position = span.parent
    return growth


def _growth_shown(
    growth: Counter[int], positions: Mapping[int, int], shown: Timeline
) -> Counter[int]:
    """The same with the operators around ops, which hold what their ops do."""
    found: Counter[int] = Counter()
    for old, position in positions.items():
        at = position
        while growth[old] and at >= 0:
            found[at] += growth[old]
            at = shown.host[at].parent
    return found


def _shapes_of(span: HostSpan) -> list[Any] | None:
    if span.call is None or span.kind not in ("op", "operator"):
        return None
    return [_shape(value) for _, value in span.call.signature.arguments]


def _shape(value: Argument) -> list[Any]:
    if isinstance(value, TensorSpec):
        return list(value.shape)
    if isinstance(value, tuple):
        return [list(item.shape) for item in value if isinstance(item, TensorSpec)]
    return []
