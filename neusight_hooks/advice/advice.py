"""What to change in a program, each change computed by pricing its recorded step again."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from neusight.advice.memory import MemoryAdvice, Remedy
from neusight.advice.optimizers import with_fused_kernels
from neusight.advice.what_if import (
    GOOD_MULTIPLE,
    MATRIX_CLASSES,
    Entries,
    Scheduled,
    WhatIf,
    as_cuda_graphs,
    compiled,
    in_channels_last,
    odd_sizes,
    with_float16,
    with_low_precision,
    with_padding,
    with_tf32,
    without_break,
    without_waits,
)
from neusight.output.compiled import breaks_of, recompiles_of, resumed_frames
from neusight.predictors.formatting import bytes_text, time_text
from neusight.predictors.gpu import GPU
from neusight.predictors.kernel import KernelClass
from neusight.recording.recording import (
    CompiledFrame,
    Entry,
    Mark,
    MarkKind,
    OpCall,
    Synchronize,
)
from neusight.timeline.spans import KernelSpan
from neusight.timeline.steady import kernels_of, steady_step_of

#: Changes that gain less of the step are not shown: the forecast itself is no surer.
SMALLEST_GAIN = 0.03
#: Lines on the first screen.
LINES_SHOWN = 3
#: Lines of the program that are named in one piece of advice.
_SOURCES_SHOWN = 3

#: The kind of the advice to leave bfloat16, on a GPU without tensor cores for it.
FLOAT16 = "float16"
#: The kind of the advice to compile.
COMPILE = "compile"

_NS_PER_US = 1000
#: Batch, channels, height, width.
_IMAGE_RANK = 4


@dataclass(frozen=True)
class Advice:
    """One change: what the step would take with it alone, and what that assumes.

    `gain` is the share of the step's time that goes. `kind` is a short stable name for programs.
    """

    kind: str
    what: str
    latency_us: float
    gain: float
    assumes: str

    @property
    def line(self) -> str:
        """One line of the first screen, in the unit of the step that it changes."""
        step_us = self.latency_us / (1 - self.gain) if self.gain < 1 else self.latency_us
        latency = time_text(self.latency_us, like=step_us)
        return f"    {latency:>11} {-self.gain + 0.0:>6.0%}  {self.what}"

    def to_json(self) -> dict[str, Any]:
        """The advice as plain values."""
        return {**asdict(self), "gain": round(self.gain, 6)}


@dataclass(frozen=True)
class _StepChange:
    kind: str
    what: str
    assumes: str
    entries: Entries
    is_always_shown: bool = False


def advice_for(forecast: Scheduled, *, smallest_gain: float = SMALLEST_GAIN) -> list[Advice]:
    """Changes that gain at least `smallest_gain` of the steady step, the largest first; graph
    breaks and recompiles whatever they cost it."""
    what_if = WhatIf(forecast)
    step = steady_step_of(forecast.timeline)
    if step is None or what_if.latency_us <= 0:
        return []
    found = []
    for change in _changes(what_if, forecast, smallest_gain):
        gain = 1 - what_if.latency_of(change.entries) / what_if.latency_us
        if gain >= smallest_gain or change.is_always_shown:
            # As a share of what the verdict says: the step repeated alone may differ slightly.
            latency_us = step.latency_ns / _NS_PER_US * (1 - gain)
            found.append(
                Advice(change.kind, change.what, round(latency_us, 3), gain, change.assumes)
            )
    return sorted(found, key=lambda advice: (-advice.gain, advice.kind))


def advice_lines(advice: Iterable[Advice]) -> list[str]:
    """The first few, for the first screen; empty where there are none."""
    found = list(advice)
    shown = found[:LINES_SHOWN]
    missed = [item for item in found[LINES_SHOWN:] if item.kind == FLOAT16]
    shown = [*shown[: LINES_SHOWN - len(missed)], *missed]
    if not shown:
        return []
    heading = "  what to change (each alone, computed by pricing the recording again)"
    return [heading, *(advice.line for advice in shown)]


def fitting_lines(advice: MemoryAdvice) -> list[str]:
    """The first few changes that make a program fit, for the first screen: what it then needs."""
    lines = [
        f"    {bytes_text(remedy.total_bytes):>11}  {remedy.what}{_cost_of(remedy)}"
        for remedy in advice.remedies
        if remedy.fits
    ][: LINES_SHOWN - 1]
    if advice.batch is not None and 0 < advice.batch.batch < advice.batch.recorded:
        lines.append(f"{'':>16}a batch of {advice.batch.batch} (now {advice.batch.recorded})")
    if not lines:
        return ["  what would make it fit: nothing tried does; --max-memory shows what comes near"]
    return [
        "  what would make it fit (computed from the recording; --max-memory shows more)",
        *lines,
    ]


def _cost_of(remedy: Remedy) -> str:
    added = remedy.added_us
    words = "" if added is None else f", {time_text(added, signed=True)} a step"
    return f"{words}, {remedy.needs}" if remedy.needs else words


def _changes(what_if: WhatIf, forecast: Scheduled, smallest_gain: float) -> Iterator[_StepChange]:
    """Every change worth computing: one whose upper bound is large enough."""
    step = steady_step_of(forecast.timeline)
    assert step is not None  # else there is nothing to change
    shares = _shares(kernels_of(step, forecast.timeline))
    if step.latency_ns - step.gpu_busy_ns >= smallest_gain * step.latency_ns:
        yield from _of_host(what_if)
    if not _has_mark(what_if.entries, "compiled_begin"):
        yield _of_compiler(what_if)
    yield from _of_compiled_code(what_if, forecast.recording.compiled)
    if shares[KernelClass.OPTIMIZER] >= smallest_gain:
        yield from _of_optimizer(what_if)
    if shares[KernelClass.CONVOLUTION] >= smallest_gain:
        yield from _of_memory_format(what_if)
    if shares[KernelClass.GEMM] >= smallest_gain:
        yield from _of_sizes(what_if)
    yield from _of_precision(what_if, forecast.gpu, smallest_gain)


def _shares(kernels: Sequence[KernelSpan]) -> dict[KernelClass, float]:
    """Each class's share of the kernels' time."""
    total_ns = sum(span.duration_ns for span in kernels) or 1
    shares: dict[KernelClass, float] = defaultdict(float)
    for span in kernels:
        shares[span.kernel.kernel_class] += span.duration_ns / total_ns
    return shares


def _of_host(what_if: WhatIf) -> Iterator[_StepChange]:
    entries = what_if.entries
    waits = [entry for entry in entries if isinstance(entry, Synchronize)]
    if waits:
        sources = [source for source in dict.fromkeys(wait.source for wait in waits) if source]
        yield _StepChange(
            kind="waits",
            what="do not make the host wait for the GPU" + _at(sources),
            assumes="values are read or printed rarely, and timers do not synchronize",
            entries=without_waits(entries),
        )
    if not _has_mark(entries, "graph_begin"):
        yield _StepChange(
            kind="cuda_graphs",
            what='CUDA graphs: torch.compile(mode="reduce-overhead") or torch.cuda.graph',
            assumes="shapes stay the same from step to step, the optimizer is capturable, every "
            "stretch of ops without a wait or a copy from the host is one graph",
            entries=as_cuda_graphs(entries),
        )


def _has_mark(entries: Sequence[Entry], kind: MarkKind) -> bool:
    return any(isinstance(entry, Mark) and entry.kind == kind for entry in entries)


def _at(sources: list[str]) -> str:
    if not sources:
        return ""
    more = ", …" if len(sources) > _SOURCES_SHOWN else ""
    return f": {', '.join(sources[:_SOURCES_SHOWN])}{more}"


def _of_compiler(what_if: WhatIf) -> _StepChange:
    return _StepChange(
        kind=COMPILE,
        what="torch.compile, estimated roughly without compiling; --try compile computes it",
        assumes="all becomes one graph: chains of pointwise ops over equally many elements "
        "become one kernel, with one norm, softmax or sum among them; products and attention keep "
        "their kernels, and calls of compiled code cost the host nothing",
        entries=compiled(what_if, what_if.entries),
    )


def _of_compiled_code(what_if: WhatIf, frames: Sequence[CompiledFrame]) -> Iterator[_StepChange]:
    """Where compiled code breaks off, and what made torch compile it again."""
    for stop in breaks_of(frames):
        yield _StepChange(
            kind="graph_break",
            what=f"no graph break at {stop.line}: {stop.reason}",
            assumes="the line can be traced or moved out of compiled code; it gains at least that, "
            "for the fusion across it is not counted",
            entries=without_break(what_if.entries, stop.line, resumed_frames(frames, stop)),
            is_always_shown=True,
        )
    for again in recompiles_of(frames):
        yield _StepChange(
            kind="recompile",
            what=f"no recompile for {again.line}: {again.reason}{_remedy(again.reason)}",
            assumes="each recompile costs the program seconds once, and no steady step",
            entries=what_if.entries,
            is_always_shown=True,
        )


def _remedy(reason: str) -> str:
    """What helps against a guard that fails, as torch's message says."""
    if "size mismatch" in reason or ".size()" in reason:
        return " (torch.compile(dynamic=True), or torch._dynamo.mark_dynamic)"
    return ""


def _of_optimizer(what_if: WhatIf) -> Iterator[_StepChange]:
    entries, name = with_fused_kernels(what_if.entries)
    if name:
        yield _StepChange(
            kind="fused_optimizer",
            what=f"{name}(…, fused=True): each tensor is read and written once",
            assumes="all parameters are on the GPU and of a floating dtype",
            entries=entries,
        )


def _of_memory_format(what_if: WhatIf) -> Iterator[_StepChange]:
    is_image = any(
        call.signature.input_tensors[0].is_contiguous
        and len(call.signature.input_tensors[0].shape) == _IMAGE_RANK
        for call in _calls(what_if)
        if call.phase == "forward" and _launches(what_if, call, KernelClass.CONVOLUTION)
    )
    attends = any(_launches(what_if, call, KernelClass.ATTENTION) for call in _calls(what_if))
    if is_image and not attends:  # attention's [batch, heads, sequence, width] is no image
        yield _StepChange(
            kind="channels_last",
            what="model and images .to(memory_format=torch.channels_last)",
            assumes="every op of the model keeps that order",
            entries=in_channels_last(what_if.entries),
        )


def _launches(what_if: WhatIf, call: OpCall, kernel_class: KernelClass) -> bool:
    return any(kernel.kernel_class is kernel_class for kernel, _ in what_if.kernels_of(call))


def _of_sizes(what_if: WhatIf) -> Iterator[_StepChange]:
    for size, module in odd_sizes(what_if.entries).items():
        padded = -(-size // GOOD_MULTIPLE) * GOOD_MULTIPLE
        yield _StepChange(
            kind="padding",
            what=f"pad {size:,} to {padded:,} in {module}, a multiple of {GOOD_MULTIPLE}",
            assumes="the added rows are never targets",
            entries=with_padding(what_if.entries, size, padded),
        )


def _of_precision(what_if: WhatIf, gpu: GPU, smallest_gain: float) -> Iterator[_StepChange]:
    times = _product_times(what_if)
    least_us = smallest_gain * what_if.latency_us
    if times["fp32"] >= least_us and gpu.has_matrix_unit("tf32"):
        yield _StepChange(
            kind="tf32",
            what='TF32 products: torch.set_float32_matmul_precision("high")',
            assumes="10 bits of mantissa are enough for products; sums stay in FP32",
            entries=with_tf32(what_if.entries),
        )
    if times["bf16"] and not gpu.has_matrix_unit("bf16") and gpu.has_matrix_unit("fp16"):
        yield _StepChange(
            kind=FLOAT16,
            what=f"float16 instead of bfloat16: {gpu.name} has tensor cores for it, for bfloat16 "
            "it has none (with torch.amp.GradScaler where it trains)",
            assumes="every tensor of bfloat16 is one of float16; the scaler's own work, a pass "
            "over the gradients, is not counted",
            entries=with_float16(what_if.entries),
            is_always_shown=True,
        )
    half = next((unit for unit in ("bf16", "fp16") if gpu.has_matrix_unit(unit)), "")
    if half and times["fp32"] + times["tf32"] >= least_us:
        dtype = {"bf16": "bfloat16", "fp16": "float16"}[half]
        scaler = " with torch.amp.GradScaler" if half == "fp16" else ""
        yield _StepChange(
            kind="autocast",
            what=f'torch.autocast("cuda", torch.{dtype}){scaler}',
            assumes="products, convolutions and attention take that dtype, with a cast of every "
            "operand and result; all else stays",
            entries=with_low_precision(what_if, what_if.entries, dtype),
        )


def _product_times(what_if: WhatIf) -> dict[str, float]:
    """Microseconds of matrix products, convolutions and attention by the unit that computes."""
    times: dict[str, float] = defaultdict(float)
    for call in _calls(what_if):
        for kernel, estimate in what_if.kernels_of(call):
            if kernel.kernel_class in MATRIX_CLASSES:
                times[kernel.compute] += estimate.latency_us
    return times


def _calls(what_if: WhatIf) -> Iterator[OpCall]:
    return (entry for entry in what_if.entries if isinstance(entry, OpCall))
