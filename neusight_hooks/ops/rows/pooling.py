"""Pooling, resampling and grids: windows over images."""

from __future__ import annotations

from dataclasses import replace
from math import prod

from neusight.ops.operands import (
    ceil_div,
    fill_kernel,
    kernel_name,
    memory_kernel,
    output,
    pointwise_kernel,
    read_tensors,
    written_tensors,
)
from neusight.ops.registry import register_op
from neusight.predictors.kernel import Kernel, KernelClass, Layout, RowsSize, Variant
from neusight.recording.recording import Argument, OpSignature, TensorSpec

#: Pooling ops and the name of their kernel.
_POOLS = {
    "max_pool2d_with_indices": "max_pool",
    "max_pool3d_with_indices": "max_pool",
    "avg_pool1d": "avg_pool",
    "avg_pool2d": "avg_pool",
    "avg_pool3d": "avg_pool",
    "_adaptive_avg_pool2d": "adaptive_avg_pool",
    "_adaptive_avg_pool3d": "adaptive_avg_pool",
    "adaptive_avg_pool1d": "adaptive_avg_pool",
    "adaptive_avg_pool2d": "adaptive_avg_pool",
    "adaptive_avg_pool3d": "adaptive_avg_pool",
    "adaptive_max_pool2d": "adaptive_max_pool",
    "adaptive_max_pool3d": "adaptive_max_pool",
    "fractional_max_pool2d": "fractional_max_pool",
    "fractional_max_pool3d": "fractional_max_pool",
}

#: Gradients that write every input once, from the windows it lies in; others add up by atomics
#: and so start from zeros (alertNotDeterministic in ATen/native/cuda).
_GATHERING_BACKWARDS = frozenset(("avg_pool2d_backward", "_adaptive_avg_pool2d_backward"))

_BACKWARDS = {
    "max_pool2d_with_indices_backward": "max_pool_backward",
    "max_pool2d_backward": "max_pool_backward",
    "max_pool3d_with_indices_backward": "max_pool_backward",
    "avg_pool2d_backward": "avg_pool_backward",
    "avg_pool3d_backward": "avg_pool_backward",
    "_adaptive_avg_pool2d_backward": "adaptive_avg_pool_backward",
    "_adaptive_avg_pool3d_backward": "adaptive_avg_pool_backward",
    "adaptive_avg_pool3d_backward": "adaptive_avg_pool_backward",
    "adaptive_max_pool2d_backward": "adaptive_max_pool_backward",
    "adaptive_max_pool3d_backward": "adaptive_max_pool_backward",
    "fractional_max_pool2d_backward": "fractional_max_pool_backward",
    "fractional_max_pool3d_backward": "fractional_max_pool_backward",
}


def _layout(source: TensorSpec) -> Layout:
    return "channels_last" if source.is_channels_last else "contiguous"


def _window(kernel_size: tuple[int, ...], op: str) -> int:
    """The elements of a window, whose size may be given by one number."""
    rank = 3 if "3d" in op else 1 if "1d" in op else 2
    if not kernel_size:
        return 1
    return prod(kernel_size) if len(kernel_size) == rank else kernel_size[0] ** rank


@register_op(*(f"aten::{name}" for name in _POOLS))
def pool(
    call: OpSignature, *, self: TensorSpec, kernel_size: tuple[int, ...] = (), **others: Argument
) -> list[Kernel]:
    """One kernel; each output reads its window."""
    result = output(call)
    if not result.numel:
        return []
    window = max(1, self.numel // result.numel)
    if kernel_size:
        window = _window(kernel_size, call.op)
    return [
        memory_kernel(
            KernelClass.REDUCTION,
            _POOLS[call.op.removeprefix("aten::")],
            reads=(self,),
            writes=written_tensors(call),
            rows=result.numel,
            width=window,
            layout=_layout(self),
            variant="pool",
        )
    ]


@register_op(*(f"aten::{name}" for name in _BACKWARDS))
def pool_backward(
    call: OpSignature,
    *,
    grad_output: TensorSpec,
    indices: TensorSpec | None = None,
    kernel_size: tuple[int, ...] = (),
    **others: Argument,
) -> list[Kernel]:
    """One kernel, after zeros where gradients are added up; an input is in as many windows."""
    name = call.op.removeprefix("aten::")
    result = output(call)
    if not result.numel:
        return []
    averages = "avg" in name
    reads = (grad_output, None if averages else indices)
    zeros = [] if name in _GATHERING_BACKWARDS else fill_kernel(result)
    taps = grad_output.numel * _window(kernel_size, name)
    kernel = memory_kernel(
        KernelClass.REDUCTION,
        _BACKWARDS[name],
        reads=reads,
        writes=(result,),
        rows=result.numel,
        width=ceil_div(taps, result.numel),
        layout=_layout(result),
        variant=_variant_of(name),
    )
    return [*zeros, kernel]


def _variant_of(backward: str) -> Variant:
    if backward == "avg_pool2d_backward":
        return "average_pool_gradient"
    return "pool" if "avg" in backward else "max_pool_gradient"


@register_op("aten::max_unpool2d", "aten::max_unpool3d")
def max_unpool(call: OpSignature) -> list[Kernel]:
    """Zeros, then each value to its place."""
    result = output(call)
    return fill_kernel(result) + pointwise_kernel("max_unpool", read_tensors(call), (result,))


_NEAREST = [f"{kind}{rank}d" for kind in ("nearest", "_nearest_exact") for rank in (1, 2, 3)]
_SMOOTH = ["linear1d", "bilinear2d", "bicubic2d", "trilinear3d"]
_ANTIALIASED = ["bilinear2d_aa", "bicubic2d_aa", "lanczos2d_aa"]


def _op(kind: str) -> str:
    if kind.startswith("_nearest_exact"):
        return f"aten::_upsample{kind}"
    return f"aten::_upsample_{kind}" if kind.endswith("_aa") else f"aten::upsample_{kind}"


@register_op(*(_op(kind) for kind in (*_NEAREST, *_SMOOTH, *_ANTIALIASED)))
def upsample(call: OpSignature) -> list[Kernel]:
    """One kernel: an output a thread, but bilinear and in NCHW a pixel, which goes through all
    images and channels (UpSampleBilinear2d.cu, upsample_bilinear2d_out_frame)."""
    kernels = _image_kernel("upsample", read_tensors(call), written_tensors(call))
    if call.op == "aten::upsample_bilinear2d" and kernels:
        result = written_tensors(call)[0]
        size = kernels[0].size
        if kernels[0].layout != "channels_last":
            planes = max(1, result.shape[0] * result.shape[1])
            size = RowsSize(planes, result.numel // planes)
        return [replace(kernels[0], size=size, variant="bilinear")]
    is_nearest = "nearest" in call.op
    return [replace(kernel, variant="nearest" if is_nearest else "") for kernel in kernels]


def _image_kernel(
    name: str, reads: tuple[TensorSpec, ...], writes: tuple[TensorSpec, ...]
) -> list[Kernel]:
    elements = max((spec.numel for spec in reads[:1] + writes), default=0)
    if not elements or not writes:
        return []
    return [
        memory_kernel(
            KernelClass.ELEMENTWISE,
            name,
            reads=reads,
            writes=writes,
            width=elements,
            layout=_layout(reads[0]),
        )
    ]


@register_op(*(f"{_op(kind)}_backward" for kind in _NEAREST))
def upsample_nearest_backward(call: OpSignature, *, grad_output: TensorSpec) -> list[Kernel]:
    """One kernel that sums the outputs of each input."""
    return _image_kernel("upsample_backward", (grad_output,), written_tensors(call))


@register_op(*(f"{_op(kind)}_backward" for kind in (*_SMOOTH, *_ANTIALIASED)))
def upsample_smooth_backward(call: OpSignature, *, grad_output: TensorSpec) -> list[Kernel]:
    """Zeros, then a kernel with atomics."""
    writes = written_tensors(call)
    return pointwise_kernel("fill", (), writes) + _image_kernel(
        "upsample_backward", (grad_output,), writes
    )


_SAMPLERS = ("grid_sampler_2d", "grid_sampler_3d", "cudnn_grid_sampler")


@register_op(*(f"aten::{name}" for name in _SAMPLERS))
def grid_sampler(call: OpSignature) -> list[Kernel]:
    """One kernel that reads a neighbourhood a grid point."""
    return _image_kernel("grid_sample", read_tensors(call), written_tensors(call))


@register_op(*(f"aten::{name}_backward" for name in _SAMPLERS))
def grid_sampler_backward(call: OpSignature) -> list[Kernel]:
    """Zeros for the image's gradient, then one kernel with atomics."""
    writes = written_tensors(call)
    return pointwise_kernel("fill", (), writes[:1]) + _image_kernel(
        "grid_sample_backward", read_tensors(call), writes
    )


@register_op(
    "aten::affine_grid_generator",
    "aten::cudnn_affine_grid_generator",
    "aten::cudnn_affine_grid_generator_backward",
)
def affine_grid(call: OpSignature) -> list[Kernel]:
    """The base grid and its product with the matrices, taken as one pass."""
    return pointwise_kernel(kernel_name(call), read_tensors(call), written_tensors(call))
