"""Convolutions and their gradients, with the layout changes and bias kernels around them."""

from __future__ import annotations

from neusight.ops.operands import (
    boolean,
    copy_kernel,
    flags,
    integer,
    integers,
    is_dense,
    is_dense_channels_last,
    memory_kernel,
    output,
    per_dim,
    pointwise_kernel,
    product,
    written_tensors,
)
from neusight.ops.registry import register_op
from neusight.predictors.kernel import (
    ConvolutionSize,
    Kernel,
    KernelClass,
    Layout,
    Pass,
    compute_of,
)
from neusight.recording.recording import MathMode, OpSignature, TensorSpec

__all__ = ["compute_for_convolution"]

_HALF = ("float16", "bfloat16")


def compute_for_convolution(dtype: str, math: MathMode) -> str:
    """The arithmetic of cuDNN: TF32 for float32 unless the program forbids it."""
    if dtype == "float32" and math.cudnn_tf32 and math.cudnn_enabled:
        return "tf32"
    return compute_of(dtype)


def _problem(
    call: OpSignature, image: TensorSpec, weight: TensorSpec, result: TensorSpec, transposed: bool
) -> ConvolutionSize:
    """The convolution as written by its user; a transposed one is the data gradient of another."""
    rank = len(weight.shape) - 2
    kernel = tuple(weight.shape[2:])
    groups = _groups(call, image, weight, transposed)
    stride = per_dim(integers(call, "stride"), rank)
    # Without a batch dimension torch adds one before the op; be lenient anyway.
    batch = image.shape[0] if len(image.shape) == rank + 2 else 1
    large, small = (result, image) if transposed else (image, result)
    return ConvolutionSize(
        batch=batch,
        in_channels=large.shape[-rank - 1],
        out_channels=small.shape[-rank - 1],
        groups=groups,
        input=tuple(large.shape[-rank:]),
        output=tuple(small.shape[-rank:]),
        kernel=kernel,
        stride=stride,
        direction="data_gradient" if transposed else "forward",
    )


def _groups(call: OpSignature, image: TensorSpec, weight: TensorSpec, transposed: bool) -> int:
    if "groups" in call.by_name:
        return max(1, integer(call, "groups", 1))
    if transposed:
        return 1
    rank = len(weight.shape) - 2
    return max(1, image.shape[-rank - 1] // max(1, weight.shape[1]))


def _is_channels_last(*specs: TensorSpec) -> bool:
    """cuDNN runs in NHWC as soon as one operand is stored so (cudnn_conv_suggest_memory_format)."""
    return any(spec.is_channels_last for spec in specs)


def _operand_copies(specs: tuple[TensorSpec, ...], channels_last: bool) -> list[Kernel]:
    """The copies that bring operands into the common memory format."""
    kernels: list[Kernel] = []
    for spec in specs:
        ready = is_dense_channels_last(spec) if channels_last else spec.is_contiguous
        if not ready:
            target = spec if is_dense(spec) else _dense(spec)
            kernels += [_relayout(target, "copy")]
    return kernels


def _dense(spec: TensorSpec) -> TensorSpec:
    strides: list[int] = []
    step = 1
    for size in reversed(spec.shape):
        strides.append(step)
        step *= max(1, size)
    return TensorSpec(spec.shape, tuple(reversed(strides)), spec.dtype, spec.device)


def _relayout(spec: TensorSpec, name: str) -> Kernel:
    return memory_kernel(
        KernelClass.COPY, name, reads=(spec,), writes=(spec,), flops=0, layout="strided"
    )


def _is_depthwise(size: ConvolutionSize) -> bool:
    return size.groups > 1 and size.groups == size.in_channels


def _needs_transforms(size: ConvolutionSize, dtype: str, channels_last: bool) -> bool:
    """Half-precision tensor-core kernels of cuDNN are NHWC: for NCHW tensors it converts both ways.

    Seen as nchwToNhwcKernel twice and nhwcToNchwKernel once around a bf16 convolution on an H100.
    Depthwise convolutions of NCHW tensors run in a kernel of their own.
    """
    return dtype in _HALF and not channels_last and not _is_depthwise(size)


def _convolution_kernels(
    size: ConvolutionSize,
    math: MathMode,
    *,
    operands: tuple[TensorSpec, TensorSpec],
    result: TensorSpec,
    bias: bool = False,
) -> list[Kernel]:
    """One pass of cuDNN: operands into one memory format, layout transforms, the convolution."""
    if product((size.batch, size.in_channels, size.out_channels, *size.output)) == 0:
        return []
    dtype = operands[0].dtype
    channels_last = _is_channels_last(*operands)
    transforms = _needs_transforms(size, dtype, channels_last)
    layout: Layout = "channels_last" if channels_last or transforms else "contiguous"
    kernels = _operand_copies(operands, channels_last)
    if transforms:
        kernels += [_relayout(_dense(spec), "nchw_to_nhwc") for spec in operands]
    kernels.append(
        Kernel.convolution(
            size,
            dtype=dtype,
            compute=compute_for_convolution(dtype, math),
            layout=layout,
            bias=bias,
        )
    )
    if transforms:
        kernels.append(_relayout(_dense(result), "nhwc_to_nchw"))
    return kernels


@register_op("aten::convolution", "aten::_convolution", "aten::convolution_overrideable")
def convolution(call: OpSignature, math: MathMode) -> list[Kernel]:
    """The convolution, then a broadcast add of the bias (at::native adds it after cuDNN)."""
    image, weight = call.tensor("input"), call.tensor("weight")
    transposed = boolean(call, "transposed")
    return _forward(call, image, weight, call.optional_tensor("bias"), transposed, math)


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
def backend_convolution(call: OpSignature, math: MathMode) -> list[Kernel]:
    """A convolution called by the name of its implementation."""
    image, weight = call.tensor("self"), call.tensor("weight")
    return _forward(call, image, weight, call.optional_tensor("bias"), False, math)


@register_op(
    "aten::cudnn_convolution_transpose",
    "aten::miopen_convolution_transpose",
    "aten::slow_conv_transpose2d",
    "aten::slow_conv_transpose3d",
)
def backend_convolution_transpose(call: OpSignature, math: MathMode) -> list[Kernel]:
    """A transposed convolution called by the name of its implementation."""
    image, weight = call.tensor("self"), call.tensor("weight")
    return _forward(call, image, weight, call.optional_tensor("bias"), True, math)


@register_op(
    "aten::cudnn_convolution_relu",
    "aten::cudnn_convolution_add_relu",
    "aten::miopen_convolution_relu",
    "aten::miopen_convolution_add_relu",
)
def fused_convolution(call: OpSignature, math: MathMode) -> list[Kernel]:
    """A convolution with bias and activation in its epilogue."""
    image, weight, result = call.tensor("self"), call.tensor("weight"), output(call)
    size = _problem(call, image, weight, result, False)
    bias = call.optional_tensor("bias") is not None
    return _convolution_kernels(size, math, operands=(image, weight), result=result, bias=bias)


def _forward(
    call: OpSignature,
    image: TensorSpec,
    weight: TensorSpec,
    bias: TensorSpec | None,
    transposed: bool,
    math: MathMode,
) -> list[Kernel]:
    result = output(call)
    size = _problem(call, image, weight, result, transposed)
    kernels = _convolution_kernels(size, math, operands=(image, weight), result=result)
    if bias is not None:
        kernels += pointwise_kernel("add", (result, bias), (result,))
    return kernels


@register_op(
    "aten::convolution_backward",
    "aten::convolution_backward_overrideable",
    "aten::_slow_conv2d_backward",
)
def convolution_backward(call: OpSignature, math: MathMode) -> list[Kernel]:
    """The gradients of the input, the weight and the bias that `output_mask` asks for."""
    grad, weight = call.tensor("grad_output"), call.tensor("weight")
    image = call.tensor("input" if "input" in call.by_name else "self")
    transposed = boolean(call, "transposed")
    forward = _problem(call, image, weight, grad, transposed)
    wants_image, wants_weight, wants_bias = flags(call, "output_mask", 3)
    kernels: list[Kernel] = []
    if wants_image:
        direction: Pass = "forward" if transposed else "data_gradient"
        size = forward._replace(direction=direction)
        kernels += _convolution_kernels(size, math, operands=(grad, weight), result=image)
    if wants_weight:
        size = forward._replace(direction="weight_gradient")
        kernels += _convolution_kernels(size, math, operands=(grad, image), result=weight)
    if wants_bias and grad.numel:
        channels = grad.shape[1]
        bias = TensorSpec((channels,), (1,), grad.dtype, grad.device)
        kernels.append(
            memory_kernel(
                KernelClass.REDUCTION, "sum", reads=(grad,), writes=(bias,), rows=channels
            )
        )
    return kernels


@register_op("aten::conv_tbc")
def conv_tbc(call: OpSignature, math: MathMode) -> list[Kernel]:
    """The bias spread over the output, then a product a tap (ATen/native/ConvolutionTBC.cpp)."""
    image, weight, result = call.tensor("self"), call.tensor("weight"), written_tensors(call)[0]
    taps, in_channels, out_channels = weight.shape
    rows = result.shape[0] * result.shape[1]
    if rows * in_channels * out_channels == 0:
        return []
    product_kernel = Kernel.gemm(
        rows, out_channels, in_channels, dtype=image.dtype, layout="nn", compute=None
    )
    return copy_kernel(call.tensor("bias"), result) + [product_kernel] * taps
