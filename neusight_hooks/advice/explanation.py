"""Why kernels of a step take as long as they do: launch, bound, and where the price is from."""

from __future__ import annotations

import difflib
import fnmatch
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from neusight.output.names.kernel import kernel_display_name
from neusight.predictors.formatting import bytes_text, counted, time_text
from neusight.predictors.gpu import GPU
from neusight.predictors.kernel import (
    AttentionSize,
    CollectiveSize,
    ConvolutionSize,
    GemmSize,
    Kernel,
)
from neusight.predictors.learned.correction import network_text
from neusight.predictors.physics.gemm import is_vector_product
from neusight.predictors.physics.roofline import (
    flop_roofline_us,
    is_winograd,
    memory_roofline_us,
)
from neusight.predictors.predictor import Estimate, Predictor
from neusight.predictors.tiled import Tiled
from neusight.predictors.training.dataset import Group
from neusight.predictors.training.nearest import nearest_rows
from neusight.timeline.spans import KernelSpan

#: Different kernels that are explained; the rest is counted.
_MOST_SHOWN = 12

#: Names suggested where nothing goes by the one that was asked for.
_SUGGESTED = 5

_LIBRARIES = {"nvidia": "CUDA", "amd": "ROCm"}

#: Types by the names of the units that compute in them.
_OWN_UNIT = {
    "float64": "fp64", "float32": "fp32", "float16": "fp16", "bfloat16": "bf16", "int8": "int8",
}  # fmt: skip

_ORIGINS = {
    "trained": "a network on top of the physics",
    "physics": "the physics of its class",
    "fallback": "bytes over bandwidth: no function maps the op to kernels",
    "custom": "bytes over bandwidth: a kernel of the program's own, which may compute more",
}


class NothingToExplainError(ValueError):
    """No kernel of the step has that name."""


def explain_kernels(
    what: str,
    kernels: Sequence[KernelSpan],
    *,
    gpu: GPU,
    predictor: Predictor,
    torch_version: str,
    step_us: float,
    measured: Sequence[Group] = (),
) -> str:
    """What stands behind the prices of the kernels of a step whose module, op or kernel has `what`
    in its name (with `*` and `?`: that matches it), the most expensive first, each beside the rows
    of `measured` that are nearest to it.

    NothingToExplainError names what is like it.
    """
    chosen = [span for span in kernels if _goes_by(what, span, gpu)]
    if not chosen:
        raise NothingToExplainError(_nothing(what, kernels))
    groups: dict[tuple[Kernel, str], list[KernelSpan]] = defaultdict(list)
    for span in chosen:
        groups[span.kernel, span.call.signature.op].append(span)
    ordered = sorted(groups.values(), key=_total_us, reverse=True)
    total_us = _total_us(chosen)
    lines = [
        f"{what} on {gpu.name}: {counted(len(chosen), 'kernel')} of {len(kernels)}, "
        f"{time_text(total_us)} of GPU time in a step of {time_text(step_us)}"
    ]
    for spans in ordered[:_MOST_SHOWN]:
        lines += ["", *_explained(spans, gpu, predictor)]
        lines += _near_lines(spans[0].kernel, gpu, predictor, measured)
    rest = ordered[_MOST_SHOWN:]
    if rest:
        rest_us = sum(map(_total_us, rest))
        lines += ["", f"  and {len(rest)} more, {time_text(rest_us)} together"]
    release, libraries = torch_version.partition("+")[0], _LIBRARIES[gpu.vendor]
    lines += [
        "",
        f"  kernels as torch {release} and its {libraries} libraries choose them "
        "(--torch states another version)",
        f"  constants of {gpu.name}: {gpu.constants_origin}",
    ]
    return "\n".join(lines)


def read_rows(folder: str | Path, gpu: GPU) -> Sequence[Group]:
    """The measured kernels of that GPU in a folder; DataError where that cannot be read."""
    from neusight.predictors.training.reading import read_dataset

    return read_dataset(folder, only=gpu).groups


def _total_us(spans: Iterable[KernelSpan]) -> float:
    return sum(span.duration_ns for span in spans) / 1e3


def _goes_by(what: str, span: KernelSpan, gpu: GPU) -> bool:
    wanted = what.lower()
    if not any(sign in wanted for sign in "*?"):
        wanted = f"*{wanted}*"
    names = (
        span.call.module,
        span.call.signature.op,
        span.kernel.name,
        kernel_display_name(span.kernel, span.estimate, gpu),
    )
    return any(fnmatch.fnmatchcase(name.lower(), wanted) for name in names)


def _nothing(what: str, kernels: Iterable[KernelSpan]) -> str:
    known = {span.call.signature.op for span in kernels}
    known |= {part for span in kernels for part in span.call.module.split(".") if part}
    if not known:
        return f"nothing is called {what!r}: the step has no kernels"
    similar = difflib.get_close_matches(what, sorted(known), _SUGGESTED, 0.4) or sorted(known)
    named = ", ".join(similar[:_SUGGESTED])
    return f"no module, op or kernel of the step has {what!r} in its name; there are {named}"


def _explained(spans: Sequence[KernelSpan], gpu: GPU, predictor: Predictor) -> list[str]:
    first = spans[0]
    kernel, estimate = first.kernel, first.estimate
    each = time_text(estimate.latency_us)
    interval = f"{time_text(estimate.low_us)} to {time_text(estimate.high_us)}"
    modules = list(dict.fromkeys(span.call.module or "(no module)" for span in spans))
    places = modules[0] + (f" and {len(modules) - 1} more" if len(modules) > 1 else "")
    rows = [
        ("what", f"{_size_as_text(kernel)}, {_type_text(kernel, gpu)}"),
        ("how", _algorithm_text(kernel, estimate, gpu)),
        ("where", f"{first.call.signature.op} in {places}"),
        ("launch", _launch_text(kernel, estimate, gpu)),
        ("bound", _bound_text(kernel, estimate, gpu)),
        ("price", _price_text(kernel, estimate, gpu, predictor)),
    ]
    name = kernel_display_name(kernel, estimate, gpu)
    lines = [f"  {len(spans)} x {each} ({interval})  {name}"]
    return lines + [f"      {label:<7} {text}" for label, text in rows if text]


def _near_lines(
    kernel: Kernel, gpu: GPU, predictor: Predictor, measured: Sequence[Group]
) -> list[str]:
    """The measured rows that are nearest, each with what would be forecast of it."""
    if not measured:
        return []
    found = nearest_rows(kernel, gpu, measured)
    if not found:
        return [f"      near    no measured row of {gpu.name} is of this class"]
    estimates = predictor.predict([row.kernel for row in found], gpu)
    lines = []
    for label, row, estimate in zip(("near", "", ""), found, estimates, strict=False):
        error = estimate.latency_us / row.measured_us - 1.0
        is_same = "the same: " if row.distance == 0.0 else ""
        lines.append(
            f"      {label:<7} {is_same}{_size_as_text(row.kernel)}, {_type_text(row.kernel)}: "
            f"measured {time_text(row.measured_us)}, forecast {error:+.0%}"
        )
    return lines


def _size_as_text(kernel: Kernel) -> str:
    size = kernel.size
    if isinstance(size, GemmSize):
        batch = f"{size.batch} x " if size.batch > 1 else ""
        layout = f", {kernel.layout}" if kernel.layout else ""
        return f"product of {batch}[{size.m} x {size.k}] by [{size.k} x {size.n}]{layout}"
    if isinstance(size, ConvolutionSize):
        taps, stride = (" x ".join(map(str, edges)) for edges in (size.kernel, size.stride))
        maps = " x ".join(map(str, size.input))
        groups = f", {size.groups} groups" if size.groups > 1 else ""
        return (
            f"{size.direction} convolution of {size.batch} x {size.in_channels} maps of {maps} to "
            f"{size.out_channels} channels, filter {taps}, stride {stride}{groups}"
            + (f", {kernel.layout}" if kernel.layout else "")
        )
    if isinstance(size, AttentionSize):
        heads = f"{size.heads} heads"
        heads += f" ({size.kv_heads} of keys)" if size.kv_heads != size.heads else ""
        direction = "backward" if size.backward else "forward"
        mask = ", causal" if size.causal else ""
        return (
            f"{direction} attention of {size.batch} x {heads}, {size.seq_q} queries on "
            f"{size.seq_kv} keys of {size.head_dim}{mask}"
        )
    if isinstance(size, CollectiveSize):
        return f"{kernel.name} of {bytes_text(size.num_bytes)} among {size.world_size} ranks"
    parts = f"{kernel.num_parts} tensors, " if kernel.num_parts else ""
    return f"{kernel.name} of {parts}{size.rows:,} x {size.width:,} elements"


def _algorithm_text(kernel: Kernel, estimate: Estimate, gpu: GPU) -> str:
    """The algorithm and the units that run it."""
    unit = _unit(kernel, gpu)
    cores = "tensor cores" if gpu.vendor == "nvidia" else "matrix cores"
    units = cores if gpu.has_matrix_unit(unit) else "ordinary cores"
    if isinstance(kernel.size, GemmSize):
        if is_vector_product(kernel, gpu):
            return "a matrix by a vector: no tiles, as a stream"
        split = f", K split in {estimate.split_k}" if estimate.split_k > 1 else ""
        return f"tiled product in {unit} on {units}{split}"
    if isinstance(kernel.size, ConvolutionSize):
        if is_winograd(replace(kernel, compute=unit), gpu):
            return f"Winograd in {unit} on {units}"
        how = "direct, a group a channel" if kernel.size.is_depthwise else "implicit product"
        chosen = ", the fastest of cuDNN's (benchmark)" if kernel.variant == "fastest" else ""
        return f"{how} in {unit} on {units}{chosen}"
    if isinstance(kernel.size, AttentionSize):
        return f"{kernel.variant or 'fused attention'} in {unit} on {units}"
    return ""


def _unit(kernel: Kernel, gpu: GPU) -> str:
    """The unit that computes there: FP32 where the GPU has no TF32."""
    is_missing = kernel.compute == "tf32" and "tf32" not in gpu.peak_tflops
    return "fp32" if is_missing else kernel.compute


def _type_text(kernel: Kernel, gpu: GPU | None = None) -> str:
    compute = kernel.compute if gpu is None else _unit(kernel, gpu)
    types = kernel.dtype
    if kernel.out_dtype != kernel.dtype:
        types += f" to {kernel.out_dtype}"
    if kernel.flops and compute != _OWN_UNIT.get(kernel.dtype):
        types += f" in {compute}"
    is_shown = not kernel.variant or kernel.name.startswith(kernel.variant)
    return types if is_shown else f"{types}, {kernel.variant}"


def _launch_text(kernel: Kernel, estimate: Estimate, gpu: GPU) -> str:
    if isinstance(kernel.size, CollectiveSize):
        return ""
    words = [] if estimate.tile is None else [f"tiles of {estimate.tile[0]} x {estimate.tile[1]}"]
    if estimate.split_k > 1:
        words.append(f"split-K {estimate.split_k}")
    words.append(f"{counted(estimate.num_ctas, 'CTA')} of {estimate.threads_per_cta} threads")
    words.append(f"{estimate.num_waves:.2g} waves on {gpu.num_sms} SMs")
    return ", ".join(words)


def _bound_text(kernel: Kernel, estimate: Estimate, gpu: GPU) -> str:
    """The bound of the kernel, and its distance from the roofline of the datasheet."""
    words = []
    if kernel.flops:
        us, unit = flop_roofline_us(kernel, gpu), _unit(kernel, gpu)
        words.append(
            f"{kernel.flops / 1e9:,.3g} GFLOP take {time_text(us)} at the peak in {unit} "
            f"({min(1.0, us / estimate.latency_us):.0%})"
        )
    us = memory_roofline_us(kernel, gpu)
    if us:
        words.append(
            f"{bytes_text(kernel.num_bytes)} take {time_text(us)} at the peak bandwidth "
            f"({min(1.0, us / estimate.latency_us):.0%})"
        )
    return f"{estimate.bound}; " + ", ".join(words) if words else estimate.bound


def _price_text(kernel: Kernel, estimate: Estimate, gpu: GPU, predictor: Predictor) -> str:
    reported = f"{predictor.name}: {_ORIGINS.get(estimate.origin, estimate.origin)}"
    if estimate.predictor not in ("tiled", "tiled_burst"):
        return reported
    network = network_text(kernel, gpu)
    if not network:
        return reported
    sustained = estimate.predictor == "tiled"
    [physics] = Tiled(sustained=sustained, correction=None).predict([kernel], gpu)
    inside = "inside" if estimate.in_range else "outside"
    return (
        f"{reported}; the physics alone says {time_text(physics.latency_us)}; {network}; "
        f"{inside} the range of its measurements"
    )
