"""The figures of a forecast: the steady step, where its time goes, and how sure that is."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from neusight.output.batch import batch_of
from neusight.output.replicas import Replicas, replicas_of
from neusight.predictors.gpu import GPU
from neusight.predictors.kernel import KernelClass
from neusight.recording.recording import Batch, OpCall, Recording, Synchronize
from neusight.timeline.host import HostProfile
from neusight.timeline.operators.tree import with_operators
from neusight.timeline.spans import KernelSpan, StepSpan, Timeline
from neusight.timeline.steady import (
    StepBound,
    bound_of,
    kernels_of,
    steady_step_of,
    steady_steps_of,
)

#: Classes whose FLOPs count as the model's (MFU as in PaLM, arXiv 2204.02311, appendix B, but with
#: the FLOPs that run, recomputation included).
_MODEL_CLASSES = (KernelClass.GEMM, KernelClass.CONVOLUTION, KernelClass.ATTENTION)

_NS_PER_US = 1000
_US_PER_S = 1e6
#: Always shown; kernels of the program's own where it has any.
_ORIGINS = ("trained", "physics", "fallback")


class StepLatency(NamedTuple):
    """Microseconds a step: the median over steady steps and its 80 % interval."""

    median: float
    low: float
    high: float


_NO_LATENCY = StepLatency(0.0, 0.0, 0.0)


@dataclass(frozen=True)
class Row:
    """One line of a table: how often, how long, and its share of the step's kernel time."""

    name: str
    count: int
    time_us: float
    share: float


@dataclass(frozen=True)
class Verdict:
    """The steady step in figures; times in microseconds. Without arguments: of nothing. `batch` is
    what this rank consumes, `replicas` says how many others consume as much."""

    kind: str = "setup"
    step_latency: StepLatency = _NO_LATENCY
    steps: list[dict[str, Any]] = field(default_factory=list)
    latency_us: float = 0.0
    gpu_busy_us: float = 0.0
    host_us: float = 0.0
    bound: StepBound = "host"
    coverage: dict[str, float] = field(default_factory=lambda: dict.fromkeys(_ORIGINS, 0.0))
    flops: int = 0
    mfu: float = 0.0
    num_ops: int = 0
    num_kernels: int = 0
    num_synchronizations: int = 0
    num_steps: int = 0
    batch: Batch = field(default_factory=Batch)
    replicas: Replicas = field(default_factory=Replicas)
    by_kernel_class: list[Row] = field(default_factory=list)
    by_module: list[Row] = field(default_factory=list)
    by_op: list[Row] = field(default_factory=list)

    @property
    def whole_batch(self) -> Batch:
        """What all ranks consume; nothing where that is not known."""
        count = self.replicas.count
        return Batch() if count is None else self.batch.times(count)


def verdict_of(recording: Recording, timeline: Timeline, gpu: GPU, host: HostProfile) -> Verdict:
    """The figures of a scheduled recording."""
    step = steady_step_of(timeline)
    if step is None:
        return Verdict()
    kernels = kernels_of(step, timeline)
    entries = step.replay.step.entries
    return Verdict(
        kind=step.replay.step.kind,
        step_latency=step_latency_of(step, kernels, host),
        steps=[_step_row(span) for span in timeline.steps],
        latency_us=sum(s.latency_ns * s.represents for s in timeline.steps) / _NS_PER_US,
        gpu_busy_us=step.gpu_busy_ns / _NS_PER_US,
        host_us=step.host_ns / _NS_PER_US,
        bound=bound_of(step, timeline),
        coverage=coverage_of(kernels),
        flops=sum(span.kernel.flops for span in _of_model(kernels)),
        mfu=mfu_of(kernels, gpu, latency_us=step.latency_ns / _NS_PER_US),
        num_ops=sum(isinstance(entry, OpCall) for entry in entries),
        num_kernels=len(kernels),
        num_synchronizations=sum(isinstance(entry, Synchronize) for entry in entries),
        num_steps=sum(s.represents for s in steady_steps_of(timeline)),
        batch=batch_of(recording, step.replay.step),
        replicas=replicas_of(recording, entries),
        by_kernel_class=_rows((s.kernel.kernel_class.value, s) for s in kernels),
        by_module=_rows((s.call.module or f"({s.call.phase})", s) for s in kernels),
        by_op=_rows((s.call.signature.op, s) for s in kernels),
    )


def step_latency_of(
    step: StepSpan, kernels: Sequence[KernelSpan], host: HostProfile
) -> StepLatency:
    """Errors of kernels are taken as wholly correlated (one GPU, one predictor), the host's costs
    as those of the fastest and the slowest host that the profile stands for; the longer of the two
    sets the step, and what is neither (waits, latencies) stays. What kernels take longer beside
    collectives is a prior: it may be nothing, or twice as much."""
    priced = sum(span.estimate.latency_us for span in kernels)
    total = sum(span.duration_ns - span.waited_ns for span in kernels) / _NS_PER_US
    longer = max(0.0, total - priced)
    below = priced - sum(span.estimate.low_us for span in kernels) + longer
    above = sum(span.estimate.high_us for span in kernels) - priced + longer
    latency = step.latency_ns / _NS_PER_US
    busy = min(step.gpu_busy_ns / _NS_PER_US, latency)
    host_us = min(step.host_ns / _NS_PER_US, latency)
    overlap = busy / total if total else 0.0  # kernels that overlap count once
    waits = latency - max(busy, host_us)
    low = waits + max(0.0, busy - below * overlap, host_us * host.fastest)
    high = waits + max(busy + above * overlap, host_us * host.slowest)
    return StepLatency(
        median=latency,
        low=round(min(latency, low), 3),
        high=round(max(latency, high), 3),
    )


def mfu_of(kernels: Iterable[KernelSpan], gpu: GPU, *, latency_us: float) -> float:
    """Share of the step that the model's FLOPs would take at the peak of the units they run on."""
    ideal_us = sum(
        span.kernel.flops / gpu.peak_flops(span.kernel.compute, matrix=True) * _US_PER_S
        for span in _of_model(kernels)
    )
    return ideal_us / latency_us if latency_us else 0.0


def _of_model(kernels: Iterable[KernelSpan]) -> Iterator[KernelSpan]:
    return (span for span in kernels if span.kernel.kernel_class in _MODEL_CLASSES)


def coverage_of(kernels: Iterable[KernelSpan]) -> dict[str, float]:
    """Share of the kernels' time by who priced them."""
    sums: dict[str, int] = dict.fromkeys(_ORIGINS, 0)
    for span in kernels:
        origin = span.estimate.origin
        sums[origin] = sums.get(origin, 0) + span.duration_ns
    total = sum(sums.values())
    return {origin: round(share / total, 6) if total else 0.0 for origin, share in sums.items()}


def operator_rows(timeline: Timeline) -> list[Row]:
    """The kernels of the steady step by the operators that launch them, themselves or by others
    that they call: what is in one row is in that of the operator around it, too."""
    step = steady_step_of(timeline)
    if step is None:
        return []
    shown = with_operators(timeline, [step])
    names: dict[int, tuple[str, ...]] = {-1: ()}
    for position, span in enumerate(shown.host):
        around = names[span.parent]
        is_new = span.kind in ("op", "operator", "node") and span.name not in around
        names[position] = (*around, span.name) if is_new else around
    total = sum(kernel.duration_ns for kernel in shown.kernels)
    return _rows(
        ((name, kernel) for kernel in shown.kernels for name in names[kernel.op]), total=total
    )


def _step_row(span: StepSpan) -> dict[str, Any]:
    return {
        "kind": span.replay.step.kind,
        "count": span.represents,
        "latency_us": span.latency_ns / _NS_PER_US,
        "gpu_busy_us": span.gpu_busy_ns / _NS_PER_US,
        "host_us": span.host_ns / _NS_PER_US,
        "communication_us": span.communication_ns / _NS_PER_US,
    }


def _rows(named: Iterable[tuple[str, KernelSpan]], *, total: int | None = None) -> list[Row]:
    """Kernels by names, with their shares of `total`; None: of all of them."""
    sums: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for name, span in named:
        row = sums[name]
        row[0] += 1
        row[1] += span.duration_ns
    if total is None:
        total = sum(time for _, time in sums.values())
    rows = [
        Row(name, count, time / _NS_PER_US, round(time / total, 6) if total else 0.0)
        for name, (count, time) in sums.items()
    ]
    return sorted(rows, key=lambda row: (-row.time_us, row.name))
