"""Softmax and its relatives: a row at a time, in one kernel."""

from __future__ import annotations

from neusight.ops.operands import (
    fill_kernel,
    itemsize,
    kernel_name,
    memory_kernel,
    output,
    pointwise_kernel,
    wrap_dim,
    written_tensors,
)
from neusight.ops.registry import register_op
from neusight.ops.rows.reduction import reduce_kernel, temporary
from neusight.predictors.kernel import Kernel, KernelClass, Layout, Variant
from neusight.recording.recording import MathMode, OpSignature, TensorSpec


def _softmax_kernel(
    name: str,
    reads: tuple[TensorSpec, ...],
    writes: tuple[TensorSpec, ...],
    dim: int,
    math: MathMode,
    *,
    variant: Variant = "softmax",
    is_backward: bool = False,
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
            layout="strided" if inner else _layout_of_rows(source, width, math.torch),
            variant=variant,
            is_backward=is_backward,
        )
    ]


#: Bytes that each row of a softmax must be a multiple of, so that all begin where the widest load
#: can (ALIGN_BYTES, SoftMax.cu), and the width up to which a warp takes the row, whatever it is.
_ALIGNED_BYTES = 16
_WARP_WIDTH = 1024

#: The first version of torch that keeps rows in registers (cunn_SoftMaxForwardReg, pull request
#: 144679), wherever they begin. From then on unaligned rows take no longer than others, longer ones
#: and gradients neither (H100, torch 2.11, rows of 2811 to 50257 in benchmarks/measured/h100).
_REGISTERS_SINCE = (2, 7)


def _layout_of_rows(source: TensorSpec, width: int, torch: tuple[int, int]) -> Layout:
    """ "scalar" where rows begin unaligned and so are not copied to shared memory."""
    is_aligned = width * itemsize(source.dtype) % _ALIGNED_BYTES == 0
    is_fast = is_aligned or width <= _WARP_WIDTH or torch >= _REGISTERS_SINCE
    return "contiguous" if is_fast else "scalar"


def _kind_of(call: OpSignature) -> Variant:
    return "log_softmax" if "log_softmax" in call.op else "softmax"


@register_op("aten::_softmax", "aten::_log_softmax", "aten::softmax", "aten::log_softmax")
def softmax_forward(
    call: OpSignature, math: MathMode, *, self: TensorSpec, dim: int
) -> list[Kernel]:
    """One kernel forward, also where it is seen before it is decomposed."""
    return _softmax_kernel(
        kernel_name(call), (self,), written_tensors(call), dim, math, variant=_kind_of(call)
    )


@register_op("aten::_masked_softmax")
def masked_softmax(
    call: OpSignature,
    math: MathMode,
    *,
    self: TensorSpec,
    mask: TensorSpec,
    dim: int | None = None,
) -> list[Kernel]:
    """One kernel that reads the mask too."""
    axis = -1 if dim is None else dim
    return _softmax_kernel(kernel_name(call), (self, mask), written_tensors(call), axis, math)


@register_op("aten::_softmax_backward_data", "aten::_log_softmax_backward_data")
def softmax_backward(
    call: OpSignature, math: MathMode, *, grad_output: TensorSpec, output: TensorSpec, dim: int
) -> list[Kernel]:
    """One kernel that reads the gradient and the output; a softmax's takes their product, which
    another one makes (softmax_backward_cuda_out)."""
    name = kernel_name(call).removesuffix("_data")
    kind = _kind_of(call)
    product = temporary(output, grad_output.dtype)
    is_plain = kind == "softmax"
    kernels = pointwise_kernel("mul", (grad_output, output), (product,)) if is_plain else []
    return kernels + _softmax_kernel(
        name,
        (product if is_plain else grad_output, output),
        written_tensors(call),
        dim,
        math,
        variant=kind,
        is_backward=True,
    )


@register_op("aten::_masked_softmax_backward")
def masked_softmax_backward(
    call: OpSignature,
    math: MathMode,
    *,
    grad_output: TensorSpec,
    output: TensorSpec,
    mask: TensorSpec,
    dim: int | None = None,
) -> list[Kernel]:
    """One kernel that reads the gradient, the output and the mask."""
    reads, axis = (grad_output, output, mask), -1 if dim is None else dim
    return _softmax_kernel(
        kernel_name(call), reads, written_tensors(call), axis, math, is_backward=True
    )


@register_op("aten::_safe_softmax")
def safe_softmax(
    call: OpSignature, math: MathMode, *, self: TensorSpec, dim: int = -1
) -> list[Kernel]:
    """A softmax, then zeros for rows that are masked whole: eq, all, fill, where (SoftMax.cpp)."""
    result = output(call)
    mask = temporary(self, "bool")
    width = self.shape[wrap_dim(dim, len(self.shape))] if self.shape else 1
    rows = self.numel // max(1, width)
    masked = TensorSpec((rows,), (1,), "bool", self.device)
    zero = TensorSpec((), (), result.dtype, self.device)
    kernels = _softmax_kernel("softmax", (self,), (result,), dim, math)
    kernels += pointwise_kernel("eq", (self,), (mask,))
    kernels += reduce_kernel("all", (mask,), (masked,))
    kernels += fill_kernel(zero)
    return kernels + pointwise_kernel("where", (masked, zero, result), (result,))
