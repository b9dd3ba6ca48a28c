"""The classes of kernels that published predictors distinguish."""

from __future__ import annotations

from neusight.predictors.kernel import GemmSize, Kernel, KernelClass, RowsSize


def class_of(kernel: Kernel) -> str | None:
    """NeuSight's class of a kernel (arXiv 2407.13853), None where it has none.

    >>> class_of(Kernel.gemm(64, 64, 64)), class_of(Kernel.gemm(64, 64, 64, batch=8))
    ('fully_connected', 'bmm')
    """
    size = kernel.size
    if isinstance(size, GemmSize):
        return None if min(size) < 1 else "bmm" if size.batch > 1 else "fully_connected"
    if not isinstance(size, RowsSize) or min(size) < 1 or kernel.is_backward or kernel.flops < 1:
        return None
    if kernel.kernel_class is KernelClass.ELEMENTWISE:
        return "elementwise"
    if kernel.kernel_class is KernelClass.SOFTMAX:
        return "softmax"
    # What a compiler fused and reduces rows the paper prices as the norm in its middle, with the
    # FLOPs of all and the bytes that cross its border.
    is_reduction = kernel.kernel_class is KernelClass.REDUCTION
    is_fused_norm = kernel.variant == "fused" and is_reduction and not kernel.along_columns
    return "layer_norm" if kernel.variant == "layer_norm" or is_fused_norm else None
