"""Operands that an op copies first, because its kernel reads them as one flat row of elements."""

from __future__ import annotations

from dataclasses import replace

from neusight.ops.operands import contiguous, copy_kernel, num_bytes
from neusight.predictors.kernel import Kernel
from neusight.recording.recording import Argument, OpSignature, TensorSpec

#: Ops and the operands of which they call `.contiguous()` in their CUDA code, before any kernel
#: (aten/src/ATen/native/cuda: layer_norm_kernel.cu, SoftMax.cu, NLLLoss.cu, Embedding.cu). A
#: gradient is such an operand where it was expanded, as that of `y.sum()` is, or sliced.
_FLAT: dict[str, tuple[str, ...]] = {
    "aten::native_layer_norm": ("input", "weight", "bias"),
    "aten::native_layer_norm_backward": ("grad_out", "input", "weight"),
    "aten::_fused_rms_norm": ("input", "weight"),
    "aten::_fused_rms_norm_backward": ("grad_out", "input", "weight"),
    "aten::_softmax": ("self",),
    "aten::_log_softmax": ("self",),
    "aten::_softmax_backward_data": ("output",),  # times the gradient, wherever that lies
    "aten::_log_softmax_backward_data": ("grad_output", "output"),
    "aten::nll_loss_forward": ("self", "target"),
    "aten::nll_loss_backward": ("self", "target"),
    "aten::embedding_dense_backward": ("grad_output", "indices"),
}
#: The same, but images in NHWC order are read as they are (AveragePool2d.cu,
#: DilatedMaxPool2d.cu, UpSample*.cu).
_FLAT_IMAGES: dict[str, tuple[str, ...]] = {
    "aten::max_pool2d_with_indices": ("self",),
    "aten::max_pool2d_with_indices_backward": ("grad_output", "self"),
    "aten::avg_pool2d": ("self",),
    "aten::avg_pool2d_backward": ("grad_output", "self"),
    "aten::upsample_nearest2d_backward": ("grad_output",),
    "aten::upsample_bilinear2d_backward": ("grad_output",),
    "aten::upsample_bicubic2d_backward": ("grad_output",),
}


def copied_operands(signature: OpSignature) -> dict[str, TensorSpec]:
    """The operands that the op copies, by parameter name, as they are given.

    >>> expanded = TensorSpec((64, 32), (0, 0), "float32")
    >>> call = OpSignature("aten::_log_softmax", "default", (("self", expanded), ("dim", 1)), ())
    >>> copied_operands(call) == {"self": expanded}
    True
    """
    names = _FLAT.get(signature.op)
    takes_images = names is None
    if names is None:
        names = _FLAT_IMAGES.get(signature.op, ())
    return {
        name: spec
        for name, spec in ((name, signature.optional_tensor(name)) for name in names)
        if spec is not None
        and spec.device != "cpu"
        and not spec.is_contiguous
        and not (takes_images and spec.is_dense_channels_last)
    }


def with_copies(signature: OpSignature) -> tuple[OpSignature, tuple[Kernel, ...]]:
    """The call as its kernels see it, with the copies in place of these operands, and the kernels
    that copy them; an expanded operand is read once and written in full."""
    operands = copied_operands(signature)
    if not operands:
        return signature, ()
    copied: dict[str, Argument] = {name: contiguous(spec) for name, spec in operands.items()}
    arguments = tuple((name, copied.get(name, value)) for name, value in signature.arguments)
    kernels = tuple(
        replace(kernel, bytes_read=num_bytes((spec,)))
        for spec in operands.values()
        for kernel in copy_kernel(spec, contiguous(spec))
    )
    call = OpSignature(signature.op, signature.overload, arguments, signature.outputs)
    return call, kernels
