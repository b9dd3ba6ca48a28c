"""The forecast as torch.profiler's own function events, so that its tables print unchanged."""

from __future__ import annotations

from typing import Any

from neusight.kernel_names import kernel_display_name
from neusight.predictors.gpu import GPU
from neusight.timeline import HostSpan, Timeline

__all__ = ["event_list"]

_NS_PER_US = 1000.0
_KINDS = ("op", "node", "annotation", "launch", "event", "sync")
_THREADS = {"main": 1, "autograd": 2}


def event_list(timeline: Timeline, gpu: GPU) -> Any:
    """torch.autograd.profiler_util.EventList of the replayed steps, times in microseconds.

    Setup is left out where there are steps; equal steps are those of the timeline, a few each.
    """
    from torch.autograd import profiler_util

    untyped: Any = profiler_util  # torch's own constructors have no annotations
    function_event, cuda = untyped.FunctionEvent, untyped.DeviceType.CUDA
    spans, kernels = _steps_of(timeline)
    events: dict[int, Any] = {}
    for position in spans:
        span = timeline.host[position]
        if span.kind not in _KINDS:
            continue
        events[position] = function_event(
            id=position,
            name=_name_of(span),
            thread=_THREADS[span.thread],
            start_us=span.start_ns / _NS_PER_US,
            end_us=span.end_ns / _NS_PER_US,
            fwd_thread=_THREADS["main"] if span.thread == "autograd" else None,
            input_shapes=_shapes_of(span),
            use_device="cuda",
            sequence_nr=_sequence_of(span),
            flops=0,
            stack=[],
        )
    device_events: list[Any] = []
    for index in kernels:
        kernel = timeline.kernels[index]
        name = kernel_display_name(kernel.kernel, kernel.estimate, gpu)
        owner = events.get(kernel.op)
        if owner is not None:
            owner.append_kernel(name, 0, kernel.duration_ns / _NS_PER_US)
            owner.flops += kernel.kernel.flops
        device_events.append(
            function_event(
                id=len(timeline.host) + index,
                name=name,
                thread=kernel.stream,
                start_us=kernel.start_ns / _NS_PER_US,
                end_us=kernel.end_ns / _NS_PER_US,
                device_type=cuda,
                device_index=0,
                device_resource_id=kernel.stream,
                use_device="cuda",
                stack=[],
            )
        )
    listed = untyped.EventList(
        [*events.values(), *device_events], use_device="cuda", with_flops=True
    )
    listed._build_tree()
    return listed


def _steps_of(timeline: Timeline) -> tuple[list[int], list[int]]:
    steps = [step for step in timeline.steps if step.replay.step.kind != "setup"] or list(
        timeline.steps
    )
    spans = [i for step in steps for i in range(step.first_host, step.last_host)]
    kernels = [i for step in steps for i in range(step.first_kernel, step.last_kernel)]
    return spans, kernels


def _name_of(span: HostSpan) -> str:
    return span.call.signature.op if span.call is not None and span.kind == "op" else span.name


def _shapes_of(span: HostSpan) -> list[list[int]] | None:
    if span.call is None:
        return None
    return [list(spec.shape) for spec in span.call.signature.input_tensors]


def _sequence_of(span: HostSpan) -> int:
    if span.call is None or span.call.sequence_nr is None:
        return -1
    return span.call.sequence_nr
