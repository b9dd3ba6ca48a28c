"""Fourier transforms: cuFFT's passes, a dimension after the other."""

from __future__ import annotations

import math as mathematics
from math import prod

from neusight.ops.operands import (
    ceil_div,
    copy_kernel,
    memory_kernel,
    output,
    pointwise_kernel,
    wrap_dim,
)
from neusight.ops.registry import register_op
from neusight.predictors.kernel import Kernel, KernelClass
from neusight.recording.recording import OpSignature, TensorSpec

#: log2 of the longest transform that one cuFFT kernel does in shared memory (typical for fp32).
_BITS_A_KERNEL = 12

#: FLOPs of a complex transform of n points are 5 n log2(n), by convention (FFTW, cuFFT).
_FLOPS_A_BUTTERFLY = 5


@register_op("aten::_fft_c2c", "aten::_fft_r2c", "aten::_fft_c2r")
def fourier_transform(
    call: OpSignature, *, self: TensorSpec, dim: tuple[int, ...] = (), normalization: int = 0
) -> list[Kernel]:
    """A kernel a dimension (more for long ones), then the scaling; c2r copies its input first."""
    result = output(call)
    if not self.numel or not result.numel:
        return []
    rank = len(self.shape)
    dims = [wrap_dim(each, rank) for each in dim]
    whole = self if self.numel >= result.numel else result
    kernels: list[Kernel] = []
    if call.op == "aten::_fft_c2r":  # cuFFT overwrites the input of c2r
        kernels += copy_kernel(self, self)
    for position, each in enumerate(dims):
        last = position == len(dims) - 1
        kernels += _passes(self if position == 0 else whole, result if last else whole, each)
    if normalization:
        kernels += pointwise_kernel("mul", (result,), (result,))
    return kernels


def _passes(source: TensorSpec, result: TensorSpec, dim: int) -> list[Kernel]:
    length = max(source.shape[dim], result.shape[dim])
    bits = max(1, mathematics.ceil(mathematics.log2(max(2, length))))
    rows = prod(result.shape) // max(1, result.shape[dim])
    kernel = memory_kernel(
        KernelClass.REDUCTION,
        "fft",
        reads=(source,),
        writes=(result,),
        rows=rows,
        width=length,
        flops=_FLOPS_A_BUTTERFLY * rows * length * bits,
        layout="contiguous" if dim == len(source.shape) - 1 else "strided",
    )
    return [kernel] * ceil_div(bits, _BITS_A_KERNEL)
