"""Softmax and its relatives: a row at a time, in one kernel."""

from __future__ import annotations

from neusight.ops.operands import (
    integer,
    kernel_name,
    memory_kernel,
    output,
    pointwise_kernel,
    read_tensors,
    wrap_dim,
    written_tensors,
)
from neusight.ops.registry import register_op
from neusight.ops.rows.reduction import reduce_kernel, temporary
from neusight.predictors.kernel import Kernel, KernelClass
from neusight.recording.recording import MathMode, OpSignature, TensorSpec

__all__: list[str] = []


def _softmax_kernel(
    name: str,
    reads: tuple[TensorSpec, ...],
    writes: tuple[TensorSpec, ...],
    dim: int,
) -> list[Kernel]:
    source = reads[0]
    if not source.numel:
        return []
    rank = len(source.shape)
    axis = wrap_dim(dim, rank)
    width = source.shape[axis] if rank else 1
    # Along an inner dimension the rows are not contiguous: cunn_SpatialSoftMax.
    inner = any(size > 1 for size in source.shape[axis + 1 :])
    return [
        memory_kernel(
            KernelClass.SOFTMAX,
            name,
            reads=reads,
            writes=writes,
            rows=source.numel // max(1, width),
            width=width,
            layout="strided" if inner else "contiguous",
        )
    ]


@register_op("aten::_softmax", "aten::_log_softmax", "aten::_masked_softmax")
def softmax(call: OpSignature, math: MathMode) -> list[Kernel]:
    """One kernel forward."""
    return _softmax_kernel(
        kernel_name(call), read_tensors(call), written_tensors(call), integer(call, "dim", -1)
    )


@register_op(
    "aten::_softmax_backward_data",
    "aten::_log_softmax_backward_data",
    "aten::_masked_softmax_backward",
)
def softmax_backward(call: OpSignature, math: MathMode) -> list[Kernel]:
    """One kernel that reads the gradient and the output."""
    return _softmax_kernel(
        kernel_name(call).removesuffix("_data"),
        read_tensors(call),
        written_tensors(call),
        integer(call, "dim", -1),
    )


@register_op("aten::softmax", "aten::log_softmax")
def whole_softmax(call: OpSignature, math: MathMode) -> list[Kernel]:
    """A softmax seen before it is decomposed."""
    return softmax(call, math)


@register_op("aten::_safe_softmax")
def safe_softmax(call: OpSignature, math: MathMode) -> list[Kernel]:
    """A softmax, then zeros for rows that are masked whole: eq, all, fill, where (SoftMax.cpp)."""
    source, result = call.tensor("self"), output(call)
    dim = integer(call, "dim", -1)
    mask = temporary(source, "bool")
    width = source.shape[wrap_dim(dim, len(source.shape))] if source.shape else 1
    rows = source.numel // max(1, width)
    masked = TensorSpec((rows,), (1,), "bool", source.device)
    zero = TensorSpec((), (), result.dtype, source.device)
    kernels = _softmax_kernel("softmax", (source,), (result,), dim)
    kernels += pointwise_kernel("eq", (source,), (mask,))
    kernels += reduce_kernel("all", (mask,), (masked,))
    kernels += pointwise_kernel("fill", (), (zero,))
    return kernels + pointwise_kernel("where", (masked, zero, result), (result,))
