"""What a call of compiled code shows on the host, as torch.profiler names it, and when."""

from __future__ import annotations

from neusight.recording.recording import COMPILED_CODE, Mark
from neusight.timeline.host import HostProfile
from neusight.timeline.host_lane import HostLane
from neusight.timeline.launches import nanoseconds

_REGION, _WITH_GRADIENTS, _BACKWARD = COMPILED_CODE

#: What torch.profiler shows before the first kernel: Dynamo's guards (eval_frame_cpp.cpp) and
#: AOTAutograd's wrapper (torch/_functorch/_aot_autograd/runtime_wrappers.py).
CACHE_LOOKUP = "TorchDynamo Cache Lookup"
PROLOGUE = "AOTDispatcher Runtime Wrapper Prologue"

#: Shares of the host's time before the first kernel at which those begin and end (torch 2.13, CPU,
#: one profiled call of two linear layers with gradients: 210 us from the lookup to the first op).
_LOOKUP_ENDS, _PROLOGUE_BEGINS, _PROLOGUE_ENDS, _FUNCTION_BEGINS = 0.26, 0.47, 0.56, 0.77


def frame_of(mark: Mark) -> str:
    """Torch's name for what runs, such as "0/0"; "" where a recording does not know it.

    >>> frame_of(Mark("compiled_begin", "CompiledFunction", "12 0/1"))
    '0/1'
    """
    return mark.detail.partition(" ")[2]


def compiled_call_ns(mark: Mark, host: HostProfile) -> int:
    """What a call of compiled code costs the host around its kernels: guards, prologue, inputs, and
    the ways back out of wrapper, AOTAutograd and Dynamo, which follow the last kernel."""
    calls = (host.compiled_call_us, host.compiled_training_us, host.compiled_backward_us)
    call_us = dict(zip(COMPILED_CODE, calls, strict=True)).get(mark.name, host.compiled_call_us)
    reported = mark.detail.partition(" ")[0]
    num_inputs = int(reported) if reported.isdecimal() else 0
    return nanoseconds(call_us + num_inputs * host.compiled_input_us)


def begin_compiled(lane: HostLane, mark: Mark, host: HostProfile) -> None:
    """The host's work before compiled code launches anything, and the spans around its kernels:
    each region ends with its graph, where torch's own go on to what follows a break. A backward
    runs in its autograd node, and has none."""
    start_ns = lane.now_ns
    total_ns = max(0, compiled_call_ns(mark, host) - nanoseconds(host.compiled_return_us))
    if mark.name != _BACKWARD and lane.keep:
        until = [start_ns + round(share * total_ns) for share in (
            _LOOKUP_ENDS, _PROLOGUE_BEGINS, _PROLOGUE_ENDS, _FUNCTION_BEGINS
        )]  # fmt: skip
        lane.add("compiled", CACHE_LOOKUP, until[0] - start_ns)
        lane.now_ns = until[0]
        lane.begin("compiled", _region(mark), "")
        lane.now_ns = until[1]
        lane.add("compiled", PROLOGUE, until[2] - until[1])
        if mark.name == _WITH_GRADIENTS:
            lane.now_ns = until[3]
            lane.begin("compiled", _WITH_GRADIENTS, "")
    lane.now_ns = start_ns + total_ns


def end_compiled(lane: HostLane, mark: Mark, host: HostProfile) -> None:
    """The host's way back, which ends those spans."""
    lane.now_ns += nanoseconds(host.compiled_return_us)
    if mark.name != _BACKWARD:
        lane.end("compiled", _region(mark))


def _region(mark: Mark) -> str:
    frame = frame_of(mark)
    return f"{_REGION}: {frame}" if frame else _REGION
