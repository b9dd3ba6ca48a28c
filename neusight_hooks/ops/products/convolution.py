"""Convolutions and their gradients, with the layout changes and bias kernels around them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

from neusight.ops.operands import (
    ceil_div,
    contiguous,
    copy_kernel,
    flags,
    is_dense,
    memory_kernel,
    output,
    per_dim,
    pointwise_kernel,
    sum_kernel,
    vector,
)
from neusight.ops.registry import register_op
from neusight.predictors.kernel import (
    ConvolutionSize,
    Kernel,
    KernelClass,
    Layout,
    Variant,
    compute_of,
)
from neusight.recording.recording import MathMode, OpSignature, TensorSpec

_NOT_DILATED = (1,)

#: First release of torch with a cuDNN of 9.8 or newer, whose kernels of groups and of three
#: dimensions are others.
_NEW_CUDNN = (2, 8)


def compute_for_convolution(dtype: str, math: MathMode) -> str:
    """The arithmetic of cuDNN: TF32 for float32 unless the program forbids it."""
    if dtype == "float32" and math.cudnn_tf32 and math.cudnn_enabled:
        return "tf32"
    return compute_of(dtype)


def _problem(
    image: TensorSpec,
    weight: TensorSpec,
    result: TensorSpec,
    *,
    stride: Sequence[int],
    groups: int | None = None,
    transposed: bool = False,
) -> ConvolutionSize:
    """The problem as stated; a transposed convolution is the data gradient of another."""
    rank = len(weight.shape) - 2
    # Without a batch dimension torch adds one before the op; accept both anyway.
    batch = image.shape[0] if len(image.shape) == rank + 2 else 1
    large, small = (result, image) if transposed else (image, result)
    return ConvolutionSize(
        batch=batch,
        in_channels=large.shape[-rank - 1],
        out_channels=small.shape[-rank - 1],
        groups=_groups(image, weight, transposed) if groups is None else max(1, groups),
        input=tuple(large.shape[-rank:]),
        output=tuple(small.shape[-rank:]),
        kernel=tuple(weight.shape[2:]),
        stride=per_dim(stride, rank),
        direction="data_gradient" if transposed else "forward",
    )


def _groups(image: TensorSpec, weight: TensorSpec, transposed: bool) -> int:
    """Inferred from the channels that a filter reads, if the op has no such argument."""
    if transposed:
        return 1
    rank = len(weight.shape) - 2
    return max(1, image.shape[-rank - 1] // max(1, weight.shape[1]))


def _operand_copies(specs: tuple[TensorSpec, ...], channels_last: bool) -> list[Kernel]:
    """The copies that bring operands into the common memory format."""
    kernels: list[Kernel] = []
    for spec in specs:
        ready = spec.is_dense_channels_last if channels_last else spec.is_contiguous
        if not ready:
            copied = (spec if is_dense(spec) else contiguous(spec),)
            kernels.append(
                memory_kernel(
                    KernelClass.COPY, "copy", reads=copied, writes=copied, flops=0, layout="strided"
                )
            )
    return kernels


def _copied_for_miopen(
    size: ConvolutionSize, operands: tuple[TensorSpec, TensorSpec], result: TensorSpec
) -> tuple[TensorSpec, ...]:
    """The operands that torch makes contiguous for MIOpen, which gets NCHW unless
    PYTORCH_MIOPEN_SUGGEST_NHWC is set (miopen_conv_suggest_memory_format). What a solver
    transposes inside is part of its time. A result in NHWC was recorded for cuDNN: here all images
    would be NCHW from the first convolution on."""
    is_weight = size.direction == "weight_gradient"
    if result.is_channels_last or (is_weight and all(spec.is_channels_last for spec in operands)):
        return tuple(spec for spec in operands if not spec.is_channels_last)
    return operands


#: Edge of the tile that one CTA of such a transform turns (grids of nchwToNhwcKernel in
#: data/profiled_kernels).
_TILE_EDGE = 32


def _transform(spec: TensorSpec, name: str) -> Kernel:
    """A transform between NCHW and NHWC: a row for each tile of pixels by channels, full or not."""
    images, channels = spec.shape[:2]
    pixels = prod(spec.shape[2:])
    tiles = images * ceil_div(channels, _TILE_EDGE) * ceil_div(pixels, _TILE_EDGE)
    return memory_kernel(
        KernelClass.COPY,
        name,
        reads=(spec,),
        writes=(spec,),
        rows=tiles,
        width=_TILE_EDGE * _TILE_EDGE,
        flops=0,
    )


#: Depthwise convolutions of NCHW images in float16 that go to cuDNN all the same: these filters
#: over so many channels, with a stride of 2 where there is one image or many channels, no dilation
#: (use_cudnn_depthwise, Convolution.cpp, whose table has 256 channels of large images, too).
_CUDNN_DEPTHWISE_FILTERS = ((3, 3), (5, 5))
_CUDNN_DEPTHWISE_CHANNELS = 32
_CUDNN_STRIDED_CHANNELS = 512


def is_depthwise_of_torch(signature: OpSignature) -> bool:
    """Whether torch's own kernels run a convolution with a filter for each channel
    (_conv_depthwise2d): cuDNN runs those of NHWC images and some in float16, and what is transposed
    or has not two dimensions."""
    image, weight = signature.tensor("input"), signature.tensor("weight")
    known = signature.by_name
    if len(image.shape) != 4 or known.get("transposed") is True or image.is_channels_last:
        return False
    batch, channels = image.shape[:2]
    serves_stride = batch == 1 or channels >= _CUDNN_STRIDED_CHANNELS
    is_cudnns = (
        image.dtype == "float16"
        and channels >= _CUDNN_DEPTHWISE_CHANNELS
        and weight.shape[2:] in _CUDNN_DEPTHWISE_FILTERS
        and (known.get("stride") == (1, 1) or (known.get("stride") == (2, 2) and serves_stride))
        and known.get("dilation") in (None, (1, 1))
    )
    return known.get("groups") == channels > 1 == weight.shape[1] and not is_cudnns


def _needs_transforms(size: ConvolutionSize, channels_last: bool) -> bool:
    """Half-precision tensor-core kernels of cuDNN are NHWC: for NCHW tensors it converts both ways.

    Seen as nchwToNhwcKernel twice and nhwcToNchwKernel once around a bf16 convolution on an H100.
    Depthwise convolutions of NCHW tensors run in a kernel of their own; those of one tap at every
    pixel are matrix products as they are (Cijk kernels of miopen_convolution on MI300X).
    """
    is_product = size.groups == 1 and prod(size.kernel) == prod(size.stride) == 1
    return not channels_last and not size.is_depthwise and not is_product


def _variant(size: ConvolutionSize, math: MathMode, dilation: Sequence[int]) -> Variant:
    if max(dilation) > 1:
        return "dilated"
    has_groups = 1 < size.groups < size.in_channels
    differs = has_groups or len(size.kernel) == 3 or size.is_of_patches
    if differs and math.torch < _NEW_CUDNN and not math.miopen:
        return "cudnn_9_1"
    return "fastest" if math.cudnn_benchmark else ""


def _convolution_kernels(
    size: ConvolutionSize,
    math: MathMode,
    *,
    operands: tuple[TensorSpec, TensorSpec],
    result: TensorSpec,
    dilation: Sequence[int] = _NOT_DILATED,
    bias: bool = False,
) -> list[Kernel]:
    """One pass of cuDNN: operands into one memory format, layout transforms, the convolution."""
    if prod((size.batch, size.in_channels, size.out_channels, *size.output)) == 0:
        return []
    dtype = operands[0].dtype
    # cuDNN runs in NHWC as soon as one operand is stored so (cudnn_conv_suggest_memory_format).
    channels_last = not math.miopen and any(spec.is_channels_last for spec in operands)
    transforms = (
        not math.miopen and dtype in math.half_dtypes and _needs_transforms(size, channels_last)
    )
    layout: Layout = "channels_last" if channels_last or transforms else "contiguous"
    compute = compute_for_convolution(dtype, math)
    copied = _copied_for_miopen(size, operands, result) if math.miopen else operands
    kernels = _operand_copies(copied, channels_last)
    if transforms:
        kernels += [_transform(contiguous(spec), "nchw_to_nhwc") for spec in operands]
    kernels += [
        Kernel.convolution(
            size,
            dtype=dtype,
            compute=compute,
            layout=layout,
            bias=bias,
            variant=_variant(size, math, dilation),
        )
    ]
    if transforms:
        kernels += [_transform(contiguous(result), "nhwc_to_nchw")]
    return kernels


@register_op("aten::convolution", "aten::_convolution", "aten::convolution_overrideable")
def convolution_forward(
    call: OpSignature,
    math: MathMode,
    *,
    input: TensorSpec,
    weight: TensorSpec,
    bias: TensorSpec | None,
    stride: tuple[int, ...],
    dilation: tuple[int, ...] = _NOT_DILATED,
    transposed: bool,
    groups: int,
) -> list[Kernel]:
    """The convolution, then a broadcast add of the bias (at::native adds it after cuDNN; its own
    kernel of depthwise convolutions begins with it)."""
    result = output(call)
    size = _problem(input, weight, result, stride=stride, groups=groups, transposed=transposed)
    return _forward(
        size, math, operands=(input, weight), result=result, bias=bias, dilation=dilation,
        adds_bias=math.miopen or not is_depthwise_of_torch(call),
    )  # fmt: skip


@register_op(
    "aten::cudnn_convolution",
    "aten::miopen_convolution",
    "aten::miopen_depthwise_convolution",
    "aten::_conv_depthwise2d",
    "aten::conv_depthwise3d",
    "aten::_slow_conv2d_forward",
    "aten::slow_conv3d_forward",
    "aten::slow_conv_dilated2d",
    "aten::slow_conv_dilated3d",
)
def backend_convolution(
    call: OpSignature,
    math: MathMode,
    *,
    self: TensorSpec,
    weight: TensorSpec,
    bias: TensorSpec | None = None,
    stride: tuple[int, ...],
    groups: int | None = None,
) -> list[Kernel]:
    """A convolution called by the name of its implementation."""
    result = output(call)
    size = _problem(self, weight, result, stride=stride, groups=groups)
    adds_bias = call.op != "aten::_conv_depthwise2d"
    return _forward(
        size, math, operands=(self, weight), result=result, bias=bias, adds_bias=adds_bias
    )


@register_op(
    "aten::cudnn_convolution_transpose",
    "aten::miopen_convolution_transpose",
    "aten::slow_conv_transpose2d",
    "aten::slow_conv_transpose3d",
)
def backend_convolution_transpose(
    call: OpSignature,
    math: MathMode,
    *,
    self: TensorSpec,
    weight: TensorSpec,
    bias: TensorSpec | None = None,
    stride: tuple[int, ...],
    dilation: tuple[int, ...] = _NOT_DILATED,
    groups: int | None = None,
) -> list[Kernel]:
    """A transposed convolution called by the name of its implementation."""
    result = output(call)
    size = _problem(self, weight, result, stride=stride, groups=groups, transposed=True)
    return _forward(
        size, math, operands=(self, weight), result=result, bias=bias, dilation=dilation
    )


@register_op(
    "aten::cudnn_convolution_relu",
    "aten::miopen_convolution_relu",
    "aten::cudnn_convolution_add_relu",
    "aten::miopen_convolution_add_relu",
)
def fused_convolution(
    call: OpSignature,
    math: MathMode,
    *,
    self: TensorSpec,
    weight: TensorSpec,
    z: TensorSpec | None = None,
    bias: TensorSpec | None,
    stride: tuple[int, ...],
    groups: int,
) -> list[Kernel]:
    """A convolution with bias and activation in its epilogue, where `z` may be added before it."""
    result = output(call)
    size = _problem(self, weight, result, stride=stride, groups=groups)
    return _forward(size, math, operands=(self, weight), result=result, bias=bias, adds_bias=False)


def _forward(
    size: ConvolutionSize,
    math: MathMode,
    *,
    operands: tuple[TensorSpec, TensorSpec],
    result: TensorSpec,
    bias: TensorSpec | None,
    dilation: Sequence[int] = _NOT_DILATED,
    adds_bias: bool = True,
) -> list[Kernel]:
    """The convolution, then the bias by a kernel of its own where it `adds_bias`."""
    kernels = _convolution_kernels(
        size, math, operands=operands, result=result, dilation=dilation,
        bias=bias is not None and not adds_bias,
    )  # fmt: skip
    if bias is not None and adds_bias:
        kernels += pointwise_kernel("add", (result, bias), (result,))
    return kernels


@register_op("aten::convolution_backward", "aten::convolution_backward_overrideable")
def convolution_backward(
    call: OpSignature,
    math: MathMode,
    *,
    grad_output: TensorSpec,
    input: TensorSpec,
    weight: TensorSpec,
    stride: tuple[int, ...],
    dilation: tuple[int, ...] = _NOT_DILATED,
    transposed: bool,
    groups: int,
    output_mask: tuple[bool, ...],
) -> list[Kernel]:
    """The gradients of the input, the weight and the bias that `output_mask` asks for."""
    size = _problem(input, weight, grad_output, stride=stride, groups=groups, transposed=transposed)
    return _gradients(size, math, grad_output, input, weight, wants=output_mask, dilation=dilation)


@register_op("aten::_slow_conv2d_backward")
def slow_convolution_backward(
    call: OpSignature,
    math: MathMode,
    *,
    grad_output: TensorSpec,
    self: TensorSpec,
    weight: TensorSpec,
    stride: tuple[int, ...],
    output_mask: tuple[bool, ...] = (),
) -> list[Kernel]:
    """The gradients of the convolution without cuDNN."""
    size = _problem(self, weight, grad_output, stride=stride)
    return _gradients(size, math, grad_output, self, weight, wants=output_mask)


def _gradients(
    forward: ConvolutionSize,
    math: MathMode,
    grad: TensorSpec,
    image: TensorSpec,
    weight: TensorSpec,
    *,
    wants: tuple[bool, ...],
    dilation: Sequence[int] = _NOT_DILATED,
) -> list[Kernel]:
    wants_image, wants_weight, wants_bias = flags(wants, 3)
    kernels: list[Kernel] = []
    if wants_image:
        is_transposed = forward.direction == "data_gradient"
        size = forward._replace(direction="forward" if is_transposed else "data_gradient")
        kernels += _convolution_kernels(
            size, math, operands=(grad, weight), result=image, dilation=dilation
        )
    if wants_weight:
        size = forward._replace(direction="weight_gradient")
        kernels += _convolution_kernels(size, math, operands=(grad, image), result=weight)
    if wants_bias and grad.numel:
        kernels.append(_bias_gradient(grad))
    return kernels


def _bias_gradient(grad: TensorSpec) -> Kernel:
    """A sum per channel, over rows where channels are contiguous."""
    kernel = sum_kernel(grad, vector(grad.shape[1], grad.dtype, grad.device))
    return replace(kernel, along_columns=grad.is_channels_last)


@register_op("aten::conv_tbc")
def conv_tbc(
    call: OpSignature, *, self: TensorSpec, weight: TensorSpec, bias: TensorSpec
) -> list[Kernel]:
    """The bias spread over the output, then a product a tap (ATen/native/ConvolutionTBC.cpp)."""
    result = output(call)
    taps, in_channels, out_channels = weight.shape
    rows = result.shape[0] * result.shape[1]
    if rows * in_channels * out_channels == 0:
        return []
    tap = Kernel.gemm(rows, out_channels, in_channels, dtype=self.dtype, layout="nn", compute=None)
    return copy_kernel(bias, result) + [tap] * taps
