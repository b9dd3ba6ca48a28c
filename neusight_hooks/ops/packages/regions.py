"""Kernels of torchvision's own ops: regions of feature maps, boxes, deformable convolutions."""

from __future__ import annotations

from neusight.ops.operands import (
    ceil_div,
    copy_kernel,
    fill_kernel,
    gpu_tensors,
    memory_kernel,
    new_tensor,
    num_bytes,
    output,
    pointwise_kernel,
    written_tensors,
)
from neusight.ops.products.gemm import matmul_kernels, matrix
from neusight.ops.registry import map_op, register_op
from neusight.predictors.kernel import Kernel, KernelClass
from neusight.recording.recording import Argument, MathMode, OpSignature, TensorSpec

#: Operations for one bilinear sample: four weights, four products, three sums.
_FLOPS_A_SAMPLE = 11

#: Samples a bin in each direction where the op takes as many as the region is large
#: (sampling_ratio -1 or 0), which only their values say: detectron's regions of 2 bins.
_ADAPTIVE_SAMPLES = 2

#: Operations that compare two boxes: corners, three areas, a division (nms_kernel.cu).
_FLOPS_A_PAIR = 16

#: Boxes that a word of the mask of suppressed ones holds.
_BOXES_A_WORD = 64

#: Images that one launch of a deformable convolution takes (deform_conv2d_kernel.cu).
_MOST_IMAGES = 32


@register_op("torchvision::nms")
def nms(call: OpSignature, math: MathMode, *, dets: TensorSpec, scores: TensorSpec) -> list[Kernel]:
    """Boxes by falling score, a mask of the pairs that overlap, and what is left of it, which one
    block gathers (ops/cuda/nms_kernel.cu, torchvision 0.29)."""
    count = dets.shape[0]
    if not count:
        return []
    order = new_tensor((count,), "int64", dets.device)
    words = ceil_div(count, _BOXES_A_WORD)
    mask = new_tensor((count, words), "int64", dets.device)
    sort = OpSignature("aten::sort", "stable", (("self", scores),), (scores, order))
    pairs = memory_kernel(
        KernelClass.CUSTOM,
        "nms",
        reads=(dets,),
        writes=(mask,),
        flops=_FLOPS_A_PAIR * count * count // 2,
    )
    kept = memory_kernel(
        KernelClass.CUSTOM, "gather_keep_from_mask", reads=(mask, order), writes=(order,)
    )
    chosen = copy_kernel(dets, dets, "index_select")
    return [*map_op(sort, math).kernels, *chosen, pairs, kept, *copy_kernel(order, order, "index")]


@register_op(
    "torchvision::roi_align",
    "torchvision::ps_roi_align",
    "torchvision::roi_pool",
    "torchvision::ps_roi_pool",
)
def pooled_regions(
    call: OpSignature, *, input: TensorSpec, rois: TensorSpec, sampling_ratio: int = 0
) -> list[Kernel]:
    """A thread an element of the result, which reads four neighbours of each sample; what it reads
    is no more than the feature maps, which caches hold."""
    result = output(call)
    if not result.numel:
        return []
    samples = _samples(sampling_ratio) * result.numel
    touched = min(input.num_bytes, 4 * samples * input.num_bytes // max(1, input.numel))
    kernel = memory_kernel(
        KernelClass.GATHER,
        call.op.partition("::")[2],
        reads=(input, rois),
        writes=written_tensors(call),
        bytes_read=touched + num_bytes((rois,)),
        flops=_FLOPS_A_SAMPLE * samples,
        layout="scalar",
    )
    return [kernel]


def _samples(ratio: int) -> int:
    """Of a bin."""
    return (ratio if ratio > 0 else _ADAPTIVE_SAMPLES) ** 2


@register_op(
    "torchvision::_roi_align_backward",
    "torchvision::_ps_roi_align_backward",
    "torchvision::_roi_pool_backward",
    "torchvision::_ps_roi_pool_backward",
)
def pooled_regions_backward(
    call: OpSignature,
    *,
    grad: TensorSpec,
    rois: TensorSpec,
    sampling_ratio: int = 0,
    **others: Argument,
) -> list[Kernel]:
    """Zeros, and a thread an element of the gradient, which adds to four neighbours of each sample
    (atomicAdd)."""
    result, reads = output(call), (grad, rois, *gpu_tensors(others.values()))
    fill = fill_kernel(result)
    if not grad.numel or not result.numel:
        return fill
    samples = _samples(sampling_ratio) * grad.numel
    touched = min(result.num_bytes, 4 * samples * grad.num_bytes // grad.numel)
    scattered = memory_kernel(
        KernelClass.GATHER,
        call.op.partition("::")[2].removeprefix("_"),
        reads=reads,
        writes=(result,),
        bytes_read=num_bytes(reads) + touched,
        bytes_written=touched,
        flops=_FLOPS_A_SAMPLE * samples,
        layout="scalar",
        is_backward=True,
        scatters=True,
    )
    return [*fill, scattered]


@register_op("torchvision::deform_conv2d")
def deform_conv2d(
    call: OpSignature,
    math: MathMode,
    *,
    input: TensorSpec,
    weight: TensorSpec,
    offset: TensorSpec,
    mask: TensorSpec,
    bias: TensorSpec,
    groups: int = 1,
) -> list[Kernel]:
    """Columns of samples, then a product a group, for so many images at a time; then the bias."""
    result = output(call)
    if not result.numel or not weight.numel:
        return []
    steps = _steps(input.shape[0])
    rows, columns = sizes = _column_sizes(weight, result, groups, steps)
    held = new_tensor(sizes, input.dtype, input.device)
    left = matrix(weight.shape[0] // groups, rows // groups, weight)
    right = matrix(rows // groups, columns, held)
    product = matrix(left.shape[0], columns, result)
    products = matmul_kernels(left, right, product, math, accumulate=True) * groups
    step = [_im2col("deformable_im2col", (input, offset, mask), held, steps), *products]
    turned = copy_kernel(result, result) if steps < input.shape[0] else []
    return step * steps + turned + pointwise_kernel("add", (result, bias), (result,))


@register_op("torchvision::_deform_conv2d_backward")
def deform_conv2d_backward(
    call: OpSignature,
    math: MathMode,
    *,
    grad: TensorSpec,
    input: TensorSpec,
    weight: TensorSpec,
    offset: TensorSpec,
    mask: TensorSpec,
    bias: TensorSpec,
    groups: int = 1,
) -> list[Kernel]:
    """For so many images at a time: gradients of the columns by a product a group, of offsets,
    masks and the input from them, columns again and the weight's gradient by a product a group."""
    if not grad.numel or not weight.numel:
        return []
    kernels: list[Kernel] = []
    steps = _steps(input.shape[0])
    rows, columns = _column_sizes(weight, grad, groups, steps)
    held = new_tensor((rows, columns), input.dtype, input.device)
    out, inner = weight.shape[0] // groups, rows // groups
    given = matrix(out, columns, grad)
    part = matrix(inner, columns, held)
    for _ in range(steps):
        turned = matrix(inner, out, weight, transposed=True)
        kernels += matmul_kernels(turned, given, part, math) * groups
        kernels.append(
            _im2col("deformable_col2im_coord", (held, input, offset, mask), offset, steps)
        )
        kernels.append(_im2col("deformable_col2im", (held, offset, mask), input, steps))
        kernels.append(_im2col("deformable_im2col", (input, offset, mask), held, steps))
        right = matrix(columns, inner, held, transposed=True)
        kernels += matmul_kernels(
            given, right, matrix(out, inner, weight), math, accumulate=True
        ) * (groups)
    sums = memory_kernel(KernelClass.REDUCTION, "sum", reads=(grad,), writes=(bias,))
    return [*kernels, sums]


def _steps(images: int) -> int:
    """Launches for so many images; each takes a number that divides them."""
    taken = next(size for size in range(min(images, _MOST_IMAGES), 0, -1) if images % size == 0)
    return images // taken


def _column_sizes(
    weight: TensorSpec, result: TensorSpec, groups: int, steps: int
) -> tuple[int, int]:
    """Rows and columns of the samples of one launch."""
    taps = weight.shape[-1] * weight.shape[-2]
    return weight.shape[1] * groups * taps, result.numel // weight.shape[0] // steps


def _im2col(name: str, reads: tuple[TensorSpec, ...], written: TensorSpec, steps: int) -> Kernel:
    held = max((*reads, written), key=lambda spec: spec.numel)
    return memory_kernel(
        KernelClass.GATHER,
        name,
        reads=reads,
        writes=(written,),
        bytes_read=num_bytes(reads) // steps,
        bytes_written=written.num_bytes // steps,
        flops=_FLOPS_A_SAMPLE * held.numel // steps,
        layout="scalar",
    )
