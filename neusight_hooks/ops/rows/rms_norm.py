"""RMS norms as torch computed them before it had kernels for them: an elementwise kernel after the
other, in fp32."""

from __future__ import annotations

from neusight.ops.operands import memory_kernel, pointwise_kernel, vector
from neusight.predictors.kernel import Kernel, KernelClass
from neusight.recording.recording import TensorSpec

#: The first version of torch whose rms_norm is a kernel on CUDA (pull requests 150576 and 153666);
#: before, aten::rms_norm was composed of others (ATen/native/layer_norm.cpp), since 2.4.
FUSED_RMS_NORM_SINCE = (2, 9)

_HALVES = ("float16", "bfloat16")


def separate_rms_norm(
    source: TensorSpec, weight: TensorSpec | None, rows: int, width: int
) -> list[Kernel]:
    """x.float() · rsqrt(mean(x.float()²) + eps), in x's type, · weight."""
    if not source.numel:
        return []
    whole, row = source._replace(dtype="float32"), vector(rows, "float32", source.device)
    is_half = source.dtype in _HALVES
    return [
        *(pointwise_kernel("copy", (source,), (whole,)) if is_half else ()),
        *pointwise_kernel("pow", (whole,), (whole,)),
        _row_sums("mean", whole, row, rows, width),
        *pointwise_kernel("add", (row,), (row,)),
        *pointwise_kernel("rsqrt", (row,), (row,)),
        *pointwise_kernel("mul", (whole, row), (whole,)),
        *(pointwise_kernel("copy", (whole,), (source,)) if is_half else ()),
        *(pointwise_kernel("mul", (source, weight), (source,)) if weight is not None else ()),
    ]


def separate_rms_norm_backward(
    source: TensorSpec, weight: TensorSpec | None, rows: int, width: int, *, wants_weight: bool
) -> list[Kernel]:
    """The gradients of each of those, as autograd runs them."""
    if not source.numel:
        return []
    whole, row = source._replace(dtype="float32"), vector(rows, "float32", source.device)
    is_half = source.dtype in _HALVES
    kernels: list[Kernel] = []
    if weight is not None:
        kernels += pointwise_kernel("mul", (source, weight), (source,))
        if wants_weight:
            kernels += pointwise_kernel("mul", (source, source), (source,))
            kernels.append(_column_sums(source, weight, rows, width))
    kernels += pointwise_kernel("copy", (source,), (whole,)) if is_half else []
    kernels += pointwise_kernel("mul", (whole, row), (whole,))
    kernels += pointwise_kernel("mul", (whole, whole), (whole,))
    kernels.append(_row_sums("sum", whole, row, rows, width))
    for name in ("pow", "mul", "mul", "div"):  # of rsqrt and of the mean
        kernels += pointwise_kernel(name, (row,), (row,))
    kernels += pointwise_kernel("pow", (whole,), (whole,))
    kernels += pointwise_kernel("mul", (whole,), (whole,))
    kernels += pointwise_kernel("mul", (whole, row), (whole,))
    kernels += pointwise_kernel("add", (whole, whole), (whole,))
    return kernels + (pointwise_kernel("copy", (whole,), (source,)) if is_half else [])


def _row_sums(name: str, whole: TensorSpec, row: TensorSpec, rows: int, width: int) -> Kernel:
    return memory_kernel(
        KernelClass.REDUCTION, name, reads=(whole,), writes=(row,), rows=rows, width=width
    )


def _column_sums(source: TensorSpec, weight: TensorSpec, rows: int, width: int) -> Kernel:
    return memory_kernel(
        KernelClass.REDUCTION, "sum",
        reads=(source,), writes=(weight,), rows=width, width=rows, along_columns=True,
    )  # fmt: skip
