"""Multi-tensor kernels: the _foreach ops, fused optimizers, gradient scaling; launch by launch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from neusight.ops.elements.copy import move
from neusight.ops.operands import (
    ceil_div,
    fill_kernel,
    gpu_tensors,
    is_dense,
    is_in_place,
    itemsize,
    memory_kernel,
    new_tensor,
    op_names,
    pointwise_kernel,
    same_storage_order,
    written_tensors,
)
from neusight.ops.registry import register_op
from neusight.ops.rows.reduction import reduce_kernel
from neusight.predictors.kernel import Kernel, KernelClass
from neusight.recording.recording import Argument, OpSignature, TensorSpec

#: Elements that one thread block takes, and what one launch takes, by number of tensor lists
#: (ATen/native/cuda/MultiTensorApply.cuh). Builds for CUDA 13 pass 32 KB of kernel arguments;
#: builds for CUDA 12 pass 4 KB: (110, 64, 48, 36, 30) tensors and 320 blocks.
_CHUNK = 65536
_MAX_TENSORS = (770, 448, 336, 252, 210)
_MAX_TENSORS_SCALARS = (672, 448, 336, 252, 210)
_MAX_BLOCKS = 2240


class FusedOptimizer(NamedTuple):
    """An optimizer of torch with `fused=True`: its op, the lists of tensors that this passes
    through, parameters and gradients first, and the operations an element.

    `replaces` is the multi-tensor op whose place a fused step can take, once for each group: it has
    a list as long as the others. "" where its arguments do not say what states there are.
    """

    op: str
    lists: tuple[str, ...]
    flops: int
    replaces: str = ""

    def step(self, parameters: Argument) -> OpSignature:
        """A step for these parameters; gradients and states have their shapes and dtypes."""
        return OpSignature(self.op, "default", tuple((name, parameters) for name in self.lists), ())


_MOMENTS = ("self", "grads", "exp_avgs", "exp_avg_sqs")

#: By class (torch 2.13). The operations are those of moments, bias correction, square root, update.
FUSED_OPTIMIZERS: dict[str, FusedOptimizer] = {
    "Adagrad": FusedOptimizer("aten::_fused_adagrad_", ("self", "grads", "state_sums"), 7),
    "Adam": FusedOptimizer("aten::_fused_adam_", _MOMENTS, 16, "aten::_foreach_addcdiv_"),
    "AdamW": FusedOptimizer("aten::_fused_adamw_", _MOMENTS, 16, "aten::_foreach_addcdiv_"),
    "SGD": FusedOptimizer("aten::_fused_sgd_", ("self", "grads", "momentum_buffer_list"), 5),
}

_UNARY = op_names(
    """
    abs acos asin atan ceil cos cosh erf erfc exp expm1 floor frac lgamma log log10 log1p log2
    neg reciprocal round rsqrt sigmoid sign sin sinh sqrt tan tanh trunc
    """
)
_BINARY = op_names(
    """
    add clamp_max clamp_min div maximum minimum mul pow sub
    """
)
_TERNARY = ["addcdiv", "addcmul", "lerp"]

#: The elementwise _foreach ops; in-place forms are found by the name without the underscore.
FOREACH: tuple[str, ...] = tuple(sorted((*_UNARY, *_BINARY, *_TERNARY)))


class _Launch(NamedTuple):
    """One launch: (position of a tensor, its elements) for every tensor it touches."""

    parts: tuple[tuple[int, int], ...]


def launches(sizes: Sequence[int], depth: int, *, scalar_list: bool = False) -> list[_Launch]:
    """How multi_tensor_apply cuts tensors of these sizes into launches.

    A launch ends when it holds the most tensors or the most blocks; a tensor may go on in the
    next one.

    >>> len(launches([10] * 771, 1)), len(launches([10] * 770, 1))
    (2, 1)
    """
    limits = _MAX_TENSORS_SCALARS if scalar_list else _MAX_TENSORS
    most_tensors = limits[min(depth, len(limits)) - 1]
    result: list[_Launch] = []
    parts: list[tuple[int, int]] = []
    blocks = 0
    for position, size in enumerate(sizes):
        left = size
        while left > 0:
            taken = min(ceil_div(left, _CHUNK), _MAX_BLOCKS - blocks)
            elements = min(left, taken * _CHUNK)
            parts.append((position, elements))
            blocks += taken
            left -= elements
            if blocks == _MAX_BLOCKS or (len(parts) == most_tensors and left == 0):
                result.append(_Launch(tuple(parts)))
                parts, blocks = [], 0
    if parts:
        result.append(_Launch(tuple(parts)))
    return result


def _multi_tensor_kernels(
    name: str,
    reads: Sequence[Sequence[TensorSpec]],
    writes: Sequence[Sequence[TensorSpec]],
    *,
    flops: int = 1,
    depth: int | None = None,
    scalar_list: bool = False,
) -> list[Kernel]:
    """A kernel per launch over lists of equal length."""
    lists = [specs for specs in (*reads, *writes) if specs]
    if not lists:
        return []
    main = lists[0]
    sizes = [spec.numel for spec in main]
    kernels: list[Kernel] = []
    for launch in launches(sizes, depth or len(lists), scalar_list=scalar_list):
        elements = sum(count for _, count in launch.parts)
        first = main[launch.parts[0][0]]
        kernels.append(
            Kernel.rows(
                KernelClass.OPTIMIZER,
                name,
                1,
                elements,
                dtype=first.dtype,
                bytes_read=_part_bytes(reads, launch),
                bytes_written=_part_bytes(writes, launch),
                flops=flops * elements,
            )
        )
    return kernels


def _part_bytes(lists: Sequence[Sequence[TensorSpec]], launch: _Launch) -> int:
    return sum(
        count * itemsize(specs[position].dtype)
        for specs in lists
        for position, count in launch.parts
        if position < len(specs) and not specs[position].is_repeated
    )


def _lists(call: OpSignature) -> list[tuple[TensorSpec, ...]]:
    """The arguments that are lists of GPU tensors."""
    return [
        gpu_tensors(value)
        for _, value in call.arguments
        if isinstance(value, tuple) and value and isinstance(value[0], TensorSpec)
    ]


def _takes_fast_route(lists: Sequence[Sequence[TensorSpec]], *, same_dtype: bool = True) -> bool:
    """can_use_fast_route (ForeachUtils.h): equal shapes, dense in one order, one dtype."""
    first = lists[0]
    dtype = first[0].dtype if first else ""
    return all(
        len(specs) == len(first)
        and all(
            is_dense(spec)
            and same_storage_order(spec, reference)
            and (not same_dtype or spec.dtype == dtype)
            for spec, reference in zip(specs, first, strict=True)
        )
        for specs in lists
    )


def _foreach_name(call: OpSignature) -> str:
    return "multi_tensor_" + call.op.removeprefix("aten::_foreach_").strip("_")


@register_op(*(f"aten::_foreach_{name}" for name in FOREACH))
def foreach(call: OpSignature) -> list[Kernel]:
    """The fewest launches that hold all tensors; one per tensor where the lists do not match."""
    lists = _lists(call)
    if not lists or not any(lists):
        return []
    results = list(gpu_tensors(written_tensors(call))) if not is_in_place(call) else []
    targets = tuple(results) if len(results) == len(lists[0]) else lists[0]
    name = _foreach_name(call)
    if not _takes_fast_route(lists):
        return _one_by_one(name.removeprefix("multi_tensor_"), lists, targets)
    depth = len(lists) + (0 if is_in_place(call) else 1)
    scalar_list = call.overload == "ScalarList" or call.overload.endswith("Tensor")
    return _multi_tensor_kernels(
        name, lists, (targets,), depth=depth, scalar_list=scalar_list, flops=max(1, len(lists) - 1)
    )


def _one_by_one(
    name: str, lists: Sequence[Sequence[TensorSpec]], targets: Sequence[TensorSpec]
) -> list[Kernel]:
    kernels: list[Kernel] = []
    for position, target in enumerate(targets):
        reads = tuple(specs[position] for specs in lists if position < len(specs))
        kernels += pointwise_kernel(name, reads, (target,))
    return kernels


@register_op("aten::_foreach_zero")
def foreach_zero(call: OpSignature) -> list[Kernel]:
    """Sets all tensors to zero."""
    targets = _lists(call)[0] if _lists(call) else ()
    if not targets:
        return []
    if not all(map(is_dense, targets)):
        return _one_by_one("fill", (), targets)
    return _multi_tensor_kernels("multi_tensor_zero", (), (targets,))


@register_op("aten::_foreach_copy", "aten::_foreach_clone")
def foreach_copy(
    call: OpSignature, *, self: tuple[TensorSpec, ...], src: tuple[TensorSpec, ...] = ()
) -> list[Kernel]:
    """All copies at once, with casts; a copy per tensor where layouts or devices differ."""
    sources = src or self
    if not sources:
        return []
    on_gpu = all(spec.device != "cpu" for spec in (*sources, *self))
    if on_gpu and _takes_fast_route((sources, self), same_dtype=False):
        return _multi_tensor_kernels("multi_tensor_copy", (sources,), (self,))

    return [k for s, t in zip(sources, self, strict=True) for k in move(s, t)]


@register_op("aten::_foreach_norm", "aten::_foreach_max", "aten::_foreach_powsum")
def foreach_norm(call: OpSignature) -> list[Kernel]:
    """A fill with zeros, a norm per chunk, then the norm of each tensor from its chunks."""
    lists = _lists(call)
    sources = lists[0] if lists else ()
    if not sources:
        return []
    name = _foreach_name(call)
    if not all(map(is_dense, sources)):
        results = written_tensors(call)
        pairs = zip(sources, results, strict=True)
        return [k for source, result in pairs for k in reduce_kernel("norm", (source,), (result,))]
    most = max(ceil_div(spec.numel, _CHUNK) for spec in sources)
    partial = new_tensor((len(sources), most), "float32", sources[0].device)
    cleanup = memory_kernel(
        KernelClass.REDUCTION,
        f"{name}_cleanup",
        reads=(partial,),
        writes=written_tensors(call),
        rows=len(sources),
        width=most,
        layout="contiguous",
    )
    sizes = [spec.numel for spec in sources]
    norms = [_norm_a_chunk(name, sources, launch) for launch in launches(sizes, 1)]
    return [*fill_kernel(partial), *norms, cleanup]


def _norm_a_chunk(name: str, sources: tuple[TensorSpec, ...], launch: _Launch) -> Kernel:
    """A launch that computes the norm of each chunk."""
    elements = sum(count for _, count in launch.parts)
    blocks = sum(ceil_div(count, _CHUNK) for _, count in launch.parts)
    return Kernel.rows(
        KernelClass.REDUCTION,
        name,
        max(1, blocks),
        ceil_div(elements, max(1, blocks)),
        dtype=sources[launch.parts[0][0]].dtype,
        bytes_read=_part_bytes((sources,), launch),
        bytes_written=blocks * itemsize("float32"),
        flops=2 * elements,
    )


def _fused(
    name: str,
    parameters: tuple[TensorSpec, ...],
    gradients: tuple[TensorSpec, ...],
    states: Sequence[tuple[TensorSpec, ...]],
    *,
    unscales: bool,
) -> list[Kernel]:
    """A fused optimizer: all lists are read; all but the gradients are written, and these too
    where they are unscaled on the way."""
    reads = [gpu_tensors(specs) for specs in (parameters, gradients, *states)]
    if not reads[0]:
        return []
    if len(reads[1]) != len(reads[0]):
        raise ValueError(f"{len(reads[0])} parameters but {len(reads[1])} gradients")
    present = [specs for specs in reads if specs]
    writes = [specs for specs in present if unscales or specs is not reads[1]]
    return _multi_tensor_kernels(
        f"fused_{name.lower()}",
        present,
        writes,
        depth=len(present),
        flops=FUSED_OPTIMIZERS[name].flops,
    )


@register_op("aten::_fused_adam", "aten::_fused_adamw", "apex::multi_tensor_adam")
def fused_adam(
    call: OpSignature,
    *,
    self: tuple[TensorSpec, ...],
    grads: tuple[TensorSpec, ...],
    exp_avgs: tuple[TensorSpec, ...],
    exp_avg_sqs: tuple[TensorSpec, ...],
    max_exp_avg_sqs: tuple[TensorSpec, ...] = (),
    grad_scale: TensorSpec | None = None,
    **others: Argument,
) -> list[Kernel]:
    """Parameters, moments and gradients in one pass."""
    states = (exp_avgs, exp_avg_sqs, max_exp_avg_sqs)
    name = "AdamW" if "adamw" in call.op else "Adam"
    kernels = _fused(name, self, grads, states, unscales=grad_scale is not None)
    return [replace(kernel, variant="fused_adam") for kernel in kernels]


@register_op("aten::_fused_sgd", "aten::_fused_adagrad", "apex::multi_tensor_sgd")
def fused_with_one_state(
    call: OpSignature,
    *,
    self: tuple[TensorSpec, ...],
    grads: tuple[TensorSpec, ...],
    momentum_buffer_list: tuple[TensorSpec, ...] = (),
    state_sums: tuple[TensorSpec, ...] = (),
    grad_scale: TensorSpec | None = None,
    **others: Argument,
) -> list[Kernel]:
    """Parameters, gradients and momentum, or sums of squares, in one pass."""
    name = "Adagrad" if "adagrad" in call.op else "SGD"
    states = momentum_buffer_list or state_sums
    return _fused(name, self, grads, (states,), unscales=grad_scale is not None)


@register_op("aten::_amp_foreach_non_finite_check_and_unscale")
def amp_unscale(
    call: OpSignature, *, self: tuple[TensorSpec, ...], **others: Argument
) -> list[Kernel]:
    """GradScaler's pass over all gradients: unscaled in place, checked for infinities."""
    gradients = gpu_tensors(self)
    dense = tuple(spec for spec in gradients if is_dense(spec))
    kernels = _multi_tensor_kernels("amp_unscale", (dense,), (dense,), depth=1, flops=2)
    for spec in gradients:
        if not is_dense(spec):
            kernels += pointwise_kernel("amp_unscale", (spec,), (spec,))
    return kernels
