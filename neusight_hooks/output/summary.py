"""The figures people read: the steady step, where its time goes, and how sure that is."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from neusight.failure import ran_out
from neusight.memory.placement import MemoryTimeline
from neusight.output.batch import Batch, batch_of, stated_batch
from neusight.predictors.gpu import GPU
from neusight.predictors.kernel import KernelClass
from neusight.predictors.printable import printable_lines
from neusight.recording.recording import STEP_OPTION, OpCall, Recording, Synchronize
from neusight.timeline.scheduler import bound_of
from neusight.timeline.spans import KernelSpan, StepSpan, Timeline

if TYPE_CHECKING:
    from neusight.forecast import Forecast

__all__ = [
    "SCHEMA_VERSION",
    "Row",
    "StepLatency",
    "Verdict",
    "describe",
    "steady_step_of",
    "to_json",
    "verdict_of",
]

#: Raised when a key of `to_json` changes its meaning or goes.
SCHEMA_VERSION = 1

#: Spread of the host's own time at 80 %: one host against another is not measured yet, so wide.
HOST_SPREAD = 0.25

#: Classes whose FLOPs count as the model's (MFU as in PaLM, arXiv 2204.02311, appendix B, but with
#: the FLOPs that run, recomputation included).
_MODEL_CLASSES = (KernelClass.GEMM, KernelClass.CONVOLUTION, KernelClass.ATTENTION)

_NS_PER_US = 1000
_ROWS_SHOWN = 5
#: Less of a category of memory is not shown.
_SHOWN_BYTES = 2**20 // 10
_ORIGINS = ("trained", "physics", "fallback")


class StepLatency(NamedTuple):
    """Microseconds a step: the median over steady steps and its 80 % interval."""

    median: float
    low: float
    high: float


@dataclass(frozen=True)
class Row:
    """One line of a table: how often, how long, and its share of the step's kernel time."""

    name: str
    count: int
    time_us: float
    share: float


@dataclass(frozen=True)
class Verdict:
    """The steady step in figures; times in microseconds."""

    kind: str
    step_latency: StepLatency
    steps: list[dict[str, Any]]
    latency_us: float
    gpu_busy_us: float
    host_us: float
    bound: str
    coverage: dict[str, float]
    flops: int
    mfu: float
    num_ops: int
    num_kernels: int
    num_synchronizations: int
    num_steps: int
    batch: Batch
    by_kernel_class: list[Row]
    by_module: list[Row]
    by_op: list[Row]

    def headline(self, gpu: GPU) -> str:
        """One line."""
        low, high = self.step_latency.low, self.step_latency.high
        words = (
            f"{_time(self.step_latency.median)} per {_STEP_WORDS[self.kind]} "
            f"({_time(low)} to {_time(high)}), {self.bound}-bound"
        )
        rate = self.batch.per_second(self.step_latency.median)
        return words if rate is None else f"{words}, {rate[0]:,.0f} {rate[1]}/s"


_STEP_WORDS = {"train": "training step", "eval": "inference step", "setup": "block"}


def verdict_of(
    recording: Recording, timeline: Timeline, memory: MemoryTimeline, gpu: GPU
) -> Verdict:
    """The figures of a scheduled recording."""
    steady = _steady_steps(timeline)
    step = steady_step_of(timeline)
    if step is None:
        return _empty_verdict()
    kernels = timeline.kernels[step.first_kernel : step.last_kernel]
    latency_us = step.latency_ns / _NS_PER_US
    matrix = [span for span in kernels if span.kernel.kernel_class in _MODEL_CLASSES]
    flops = sum(span.kernel.flops for span in matrix)
    ideal_us = sum(
        span.kernel.flops / gpu.peak_flops(span.kernel.compute, matrix=True) * 1e6
        for span in matrix
    )
    entries = step.replay.step.entries
    return Verdict(
        kind=step.replay.step.kind,
        step_latency=_with_interval(step, kernels),
        steps=[_step_row(span) for span in timeline.steps],
        latency_us=sum(s.latency_ns * s.represents for s in timeline.steps) / _NS_PER_US,
        gpu_busy_us=step.gpu_busy_ns / _NS_PER_US,
        host_us=step.host_ns / _NS_PER_US,
        bound=bound_of(step, timeline),
        coverage=_coverage(kernels),
        flops=flops,
        mfu=ideal_us / latency_us if latency_us else 0.0,
        num_ops=sum(isinstance(entry, OpCall) for entry in entries),
        num_kernels=len(kernels),
        num_synchronizations=sum(isinstance(entry, Synchronize) for entry in entries),
        num_steps=sum(s.represents for s in steady),
        batch=stated_batch(recording.options) or batch_of(entries),
        by_kernel_class=_rows((s.kernel.kernel_class.value, s) for s in kernels),
        by_module=_rows(_named_by_module(kernels)),
        by_op=_rows(_named_by_op(kernels)),
    )


def _empty_verdict() -> Verdict:
    return Verdict(
        kind="setup",
        step_latency=StepLatency(0.0, 0.0, 0.0),
        steps=[],
        latency_us=0.0,
        gpu_busy_us=0.0,
        host_us=0.0,
        bound="host",
        coverage=dict.fromkeys(_ORIGINS, 0.0),
        flops=0,
        mfu=0.0,
        num_ops=0,
        num_kernels=0,
        num_synchronizations=0,
        num_steps=0,
        batch=Batch(),
        by_kernel_class=[],
        by_module=[],
        by_op=[],
    )


def steady_step_of(timeline: Timeline) -> StepSpan | None:
    """The step that the verdict speaks of: the median of the steady ones; None without steps."""
    return _median_step(_steady_steps(timeline))


def _steady_steps(timeline: Timeline) -> list[StepSpan]:
    """Training steps after the first, else inference steps after the first, else what there is."""
    for kind in ("train", "eval"):
        found = [step for step in timeline.steps if step.replay.step.kind == kind]
        if found:
            return found[1:] or found
    return list(timeline.steps)


def _median_step(steps: list[StepSpan]) -> StepSpan | None:
    if not steps:
        return None
    ordered = sorted(steps, key=lambda step: (step.latency_ns, step.replay.index))
    half = sum(step.represents for step in ordered) / 2
    passed = 0
    for step in ordered:
        passed += step.represents
        if passed >= half:
            return step
    return ordered[-1]


def _with_interval(step: StepSpan, kernels: Iterable[KernelSpan]) -> StepLatency:
    """Errors of kernels taken as wholly correlated (one GPU, one predictor); the time in which the
    GPU idles has the host's spread."""
    spans = list(kernels)
    total = sum(span.estimate.latency_us for span in spans)
    below = total - sum(span.estimate.low_us for span in spans)
    above = sum(span.estimate.high_us for span in spans) - total
    latency = step.latency_ns / _NS_PER_US
    busy = min(step.gpu_busy_ns / _NS_PER_US, latency)
    overlap = busy / total if total else 0.0  # kernels that overlap count once
    idle = (latency - busy) * HOST_SPREAD
    return StepLatency(
        median=round(latency, 3),
        low=round(max(0.0, latency - below * overlap - idle), 3),
        high=round(latency + above * overlap + idle, 3),
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


def _coverage(kernels: Iterable[KernelSpan]) -> dict[str, float]:
    sums = dict.fromkeys(_ORIGINS, 0)
    for span in kernels:
        sums[span.estimate.origin] += span.duration_ns
    total = sum(sums.values())
    return {origin: round(sums[origin] / total, 6) if total else 0.0 for origin in _ORIGINS}


def _named_by_module(
    kernels: Iterable[KernelSpan],
) -> Iterator[tuple[str, KernelSpan]]:
    for span in kernels:
        yield span.call.module or f"({span.call.phase})", span


def _named_by_op(
    kernels: Iterable[KernelSpan],
) -> Iterator[tuple[str, KernelSpan]]:
    for span in kernels:
        yield span.call.signature.op, span


def _rows(named: Iterable[tuple[str, KernelSpan]]) -> list[Row]:
    sums: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for name, span in named:
        row = sums[name]
        row[0] += 1
        row[1] += span.duration_ns
    total = sum(time for _, time in sums.values())
    rows = [
        Row(name, count, time / _NS_PER_US, round(time / total, 6) if total else 0.0)
        for name, (count, time) in sums.items()
    ]
    return sorted(rows, key=lambda row: (-row.time_us, row.name))


# -- words ----------------------------------------------------------------------------------------


def describe(forecast: Forecast, *, changes: Sequence[str] = ()) -> str:
    """The first screen: verdict, where the time goes, memory, coverage, warnings, then `changes`:
    the lines on what to change."""
    verdict, memory, gpu = forecast.verdict, forecast.memory, forecast.gpu
    if forecast.failure:
        return "\n".join(_failure_words(forecast))
    if verdict.num_kernels == 0:
        return printable_lines([f"{gpu.name}: nothing to forecast", *_bullets(forecast.warnings)])
    unmapped = forecast.unmapped
    lines = [
        f"{gpu.name}: {'fits' if forecast.fits else 'does not fit'}, {verdict.headline(gpu)}",
        "",
        f"  where the time goes ({_time(verdict.gpu_busy_us)} of GPU time a step, "
        f"{verdict.num_kernels} kernels, {verdict.num_ops} ops, MFU {verdict.mfu:.1%})",
    ]
    lines += [
        f"    {row.name:<24} {_time(row.time_us):>10}  {row.share:>5.1%}  {row.count:>6} kernels"
        for row in verdict.by_kernel_class[:_ROWS_SHOWN]
    ]
    lines += ["", *_memory_words(memory, gpu), _coverage_words(verdict, unmapped)]
    lines += _host_words(forecast)
    if forecast.calibration is not None:
        lines.append(f"  measured  {forecast.calibration.headline()}")
    if verdict.batch:
        lines.append(f"  batch     {_batch_words(verdict.batch)}")
    taken = forecast.recording.options.get(STEP_OPTION)
    if taken:
        lines.append(f"  step      {taken}; {_counted_steps(verdict.steps)}")
    lines += _bullets(forecast.warnings)
    lines += changes
    if forecast.trace_path:
        lines.append(f"  trace     {forecast.trace_path}")
    return printable_lines(lines)


def _counted_steps(rows: Iterable[dict[str, Any]]) -> str:
    """How many steps of each kind were recorded."""
    counts: dict[str, int] = {}
    for row in rows:
        counts[row["kind"]] = counts.get(row["kind"], 0) + row["count"]
    words = {"train": "training", "eval": "inference", "setup": "setup"}
    return ", ".join(f"{counts[kind]} {word}" for kind, word in words.items() if kind in counts)


def _bullets(texts: Iterable[str]) -> list[str]:
    return [f"  note      {text}" for text in texts]


def _failure_words(forecast: Forecast) -> list[str]:
    """Of a program that failed only what was recorded until then is known: no step, no verdict but
    that it does not fit, where that is why."""
    verdict, memory, gpu = forecast.verdict, forecast.memory, forecast.gpu
    why = "the script failed" if forecast.fits else "does not fit: the script ran out of memory"
    if not forecast.fits and not ran_out(forecast.recording):
        why = "does not fit, and the script failed"
    lines = [f"{gpu.name}: {why}"]
    lines += [f"  failure   {line}" for line in forecast.failure.splitlines()[:1]]
    if forecast.recording.num_ops:
        steps = _counted_steps(verdict.steps)
        lines.append(f"  recorded  until then: {steps}, {_time(verdict.latency_us)} in all")
        lines += _memory_words(memory, gpu)
    else:
        lines.append("  recorded  until then: nothing on the GPU")
    lines += _bullets(forecast.warnings)
    return [*lines, f"  trace     {forecast.trace_path}"] if forecast.trace_path else lines


def _memory_words(memory: MemoryTimeline, gpu: GPU) -> list[str]:
    lines = [
        f"  memory    {_bytes(memory.peak_allocated)} allocated, {_bytes(memory.peak_reserved)} "
        f"reserved, {_bytes(gpu.context_bytes)} context, of {_bytes(gpu.memory_bytes)}"
    ]
    if memory.peak_event is not None:
        source = memory.peak_event.source
        line = f", {source.stack[0]}" if source.stack else ""
        lines.append(f"            peak at {source.op} in {source.module or '(no module)'}{line}")
        held = _category_words(memory)
        lines += [f"            {held}"] if held else []
    failure = memory.out_of_memory
    if failure is not None:
        lines.append(
            f"            out of memory in step {failure.step} at {failure.op} in "
            f"{failure.module or '(no module)'}: {_bytes(failure.num_bytes)} more, with "
            f"{_bytes(failure.allocated)} allocated"
        )
    return lines


def _category_words(memory: MemoryTimeline) -> str:
    held = sorted(memory.by_category.items(), key=lambda item: -item[1])
    return ", ".join(
        f"{name.replace('_', ' ')} {_bytes(num_bytes)}"
        for name, num_bytes in held
        if num_bytes >= _SHOWN_BYTES
    )


def _coverage_words(verdict: Verdict, unmapped: list[str]) -> str:
    shares = ", ".join(
        f"{share:.0%} {origin}" for origin, share in verdict.coverage.items() if share
    )
    words = f"  coverage  {shares or 'no kernels'}"
    if unmapped:
        words += f"; {len(unmapped)} unmapped: {', '.join(unmapped[:5])}"
        if len(unmapped) > _ROWS_SHOWN:
            words += ", …"
    return words


def _host_words(forecast: Forecast) -> list[str]:
    """Which host was assumed, where the verdict hangs on it."""
    verdict = forecast.verdict
    if verdict.bound != "host":
        return []
    return [
        f"  host      the profile {forecast.host.name!r} makes it host-bound: "
        f"{_time(verdict.host_us)} of the host a step, {_time(verdict.gpu_busy_us)} of the GPU"
    ]


def _batch_words(batch: Batch) -> str:
    counts = [
        f"{count:,} {unit}"
        for count, unit in ((batch.samples, "samples"), (batch.tokens, "tokens"))
        if count is not None
    ]
    return f"{', '.join(counts)} a step ({batch.known_by})"


def _time(microseconds: float) -> str:
    if microseconds >= 1e6:
        return f"{microseconds / 1e6:.2f} s"
    if microseconds >= 1e3:
        return f"{microseconds / 1e3:.2f} ms"
    return f"{microseconds:.1f} µs"


def _bytes(count: int) -> str:
    if count >= 2**30:
        return f"{count / 2**30:.2f} GiB"
    return f"{count / 2**20:.1f} MiB"


def to_json(forecast: Forecast) -> dict[str, Any]:
    """The forecast as plain values, the same for the same script byte for byte."""
    verdict, memory, gpu = forecast.verdict, forecast.memory, forecast.gpu
    return {
        "schema_version": SCHEMA_VERSION,
        "gpu": gpu.name,
        "predictor": forecast.predictor_name,
        "host": forecast.host.name,
        "torch_version": forecast.recording.torch_version,
        "steps": verdict.steps,
        "step_is": forecast.recording.options.get(STEP_OPTION),
        "step_latency_us": verdict.step_latency._asdict(),
        "latency_us": verdict.latency_us,
        "gpu_busy_us": verdict.gpu_busy_us,
        "bound": verdict.bound,
        "peak_memory_bytes": memory.peak_allocated,
        "peak_reserved_bytes": memory.peak_reserved,
        "context_bytes": gpu.context_bytes,
        "memory_capacity_bytes": gpu.memory_bytes,
        "memory": _memory_json(memory),
        # Nobody knows whether the rest of a script that failed fits.
        "fits": forecast.fits if not (forecast.failure and forecast.fits) else None,
        "failure": forecast.failure or None,
        "coverage": verdict.coverage,
        "unmapped": forecast.unmapped,
        "flops_per_step": verdict.flops,
        "mfu": round(verdict.mfu, 6),
        "num_ops": verdict.num_ops,
        "num_kernels": verdict.num_kernels,
        "samples_per_step": verdict.batch.samples,
        "tokens_per_step": verdict.batch.tokens,
        "batch_known_by": verdict.batch.known_by,
        "trace": forecast.trace_path,
        "by_kernel_class": [asdict(row) for row in verdict.by_kernel_class],
        "by_module": [asdict(row) for row in verdict.by_module],
        "by_op": [asdict(row) for row in verdict.by_op],
        "warnings": forecast.warnings,
    }


#: Rows of what is alive at the peak that `to_json` tells.
_ALIVE_ROWS = 20


def _memory_json(memory: MemoryTimeline) -> dict[str, Any]:
    """Where the peak is, and what is alive there by category and by module, phase and kind."""
    peak = memory.peak_event
    steps = memory.first_and_steady
    return {
        "peak_at": None
        if peak is None
        else {
            "step": peak.step,
            "op": peak.source.op,
            "module": peak.source.module,
            "phase": peak.source.phase,
            "line": peak.source.stack[0] if peak.source.stack else None,
        },
        "by_category": memory.by_category,
        "alive": [row._asdict() for row in memory.alive[:_ALIVE_ROWS]],
        "first_step_peak_bytes": None if steps is None else steps[0].peak_allocated,
        "steady_step_peak_bytes": None if steps is None else steps[1].peak_allocated,
    }
