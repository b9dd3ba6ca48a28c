"""Timelines written down by hand: kernels one after the other, steps with the figures given."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from neusight.output.trace.events import compact_json
from neusight.output.trace.file import save_trace_text
from neusight.predictors.gpu import GPU, find_gpu
from neusight.predictors.kernel import Kernel
from neusight.predictors.physics.physical_time import Bound
from neusight.predictors.predictor import Estimate, Origin
from neusight.recording.recording import (
    Entry,
    EventRecord,
    EventWait,
    MathMode,
    OpCall,
    OpSignature,
    Recording,
    Replay,
    Step,
    StepKind,
)
from neusight.timeline.spans import KernelSpan, StepSpan, Timeline

#: Its matrix units do 1000 TFLOP/s in bfloat16 and 100 in FP32, its ordinary ones 10 in FP32.
ROUND_GPU: GPU = replace(
    find_gpu("H100"),
    name="Round",
    memory_bytes=10 * 2**30,
    context_bytes=2**30,
    peak_tflops={"fp32": 10.0, "fp32_matrix": 100.0, "bf16": 1000.0},
)
RELU = Kernel.elementwise("relu", 1024, dtype="float32")


def op(name: str = "relu", *, module: str = "") -> OpCall:
    return OpCall(OpSignature(f"aten::{name}", "default", (), ()), MathMode(), module)


def kernel_span(
    kernel: Kernel = RELU,
    microseconds: float = 10.0,
    *,
    low: float | None = None,
    high: float | None = None,
    bound: Bound = "memory",
    origin: Origin = "physics",
    call: OpCall | None = None,
) -> KernelSpan:
    """A kernel that takes so long, with the ends of its interval (default: it is certain)."""
    estimate = Estimate(
        microseconds,
        microseconds if low is None else low,
        microseconds if high is None else high,
        bound,
        origin,
        "test",
    )
    duration_ns = round(microseconds * 1000)
    return KernelSpan(kernel, estimate, 0, 0, duration_ns, 0, 0, call or op(kernel.name))


def step_span(
    kind: StepKind = "train",
    microseconds: float = 100.0,
    *,
    busy: float = 0.0,
    gaps: float = 0.0,
    host: float = 0.0,
    exposed: float = 0.0,
    represents: int = 1,
    index: int = 0,
    kernels: tuple[int, int] = (0, 0),
    entries: tuple[Entry, ...] = (),
) -> StepSpan:
    """A step that takes so long, with its GPU busy for that much of it; `kernels` are its own."""
    return StepSpan(
        replay=Replay(Step(kind, entries, represents), index, represents, {}),
        start_ns=0,
        end_ns=0,
        done_ns=0,
        latency_ns=round(microseconds * 1000),
        gpu_busy_ns=round(busy * 1000),
        communication_ns=0,
        exposed_communication_ns=round(exposed * 1000),
        stream_gaps_ns=round(gaps * 1000),
        host_ns=round(host * 1000),
        first_host=0,
        last_host=0,
        first_kernel=kernels[0],
        last_kernel=kernels[1],
    )


def timeline(steps: Sequence[StepSpan], kernels: Sequence[KernelSpan] = ()) -> Timeline:
    return Timeline(host=(), kernels=tuple(kernels), steps=tuple(steps), end_ns=0)


def recording_of(*steps: Step, **fields: object) -> Recording:
    return replace(Recording(steps, "Round", "2.13"), **fields)  # type: ignore[arg-type]


#: The stream of a communicator.
COMMUNICATION = 100


def on_communicator(call: OpCall, number: int) -> list[Entry]:
    """A collective as it is recorded: on the communicator's stream, after what the default stream
    holds, with an event behind it. `number` counts collectives from 0."""
    before, behind = 2 * number + 1, 2 * number + 2
    return [
        EventRecord(before, 0),
        EventWait(before, COMMUNICATION),
        replace(call, stream=COMMUNICATION),
        EventRecord(behind, COMMUNICATION),
    ]


def save_trace(path: Path, trace: Mapping[str, object]) -> None:
    """Writes what `trace_events` gave, or that with changes."""
    header = {key: value for key, value in trace.items() if key != "traceEvents"}
    save_trace_text(path, header, [compact_json(trace["traceEvents"])[1:-1]])
