"""Kernels of packages that pass over their tensors once: what they read, what they write."""

from __future__ import annotations

from typing import NamedTuple

from neusight.ops.operands import gpu_tensors, memory_kernel, written_tensors
from neusight.ops.registry import register_op
from neusight.predictors.kernel import Kernel, KernelClass, Variant
from neusight.recording.recording import Argument, OpSignature, TensorSpec


class _Pass(NamedTuple):
    """A kernel that reads all tensors that it is given and writes all that it returns (or its first
    one, where it returns none), row by row of the first."""

    kernel_class: KernelClass
    variant: Variant = ""
    is_backward: bool = False


_NORM = KernelClass.NORMALIZATION
_LOSS = KernelClass.SOFTMAX
_POINTWISE = KernelClass.ELEMENTWISE

#: One line for each: what its name says, and as which class its package's sources show it.
_PASSES: dict[str, _Pass] = {
    "flash_attn::cross_entropy": _Pass(_LOSS, "log_softmax"),
    "flash_attn::cross_entropy_backward": _Pass(_LOSS, "log_softmax", is_backward=True),
    "flash_attn::cross_entropy_backward_inplace": _Pass(_LOSS, "log_softmax", is_backward=True),
    "causal_conv1d::conv_backward": _Pass(_POINTWISE),
    "bitsandbytes::dequantize_4bit": _Pass(_POINTWISE),
    "bitsandbytes::dequantize_blockwise": _Pass(_POINTWISE),
    "bitsandbytes::int8_double_quant": _Pass(_POINTWISE),
    "bitsandbytes::int8_mm_dequant": _Pass(_POINTWISE),
    "bitsandbytes::int8_vectorwise_dequant": _Pass(_POINTWISE),
    "bitsandbytes::int8_vectorwise_quant": _Pass(_POINTWISE),
    "bitsandbytes::quantize_4bit": _Pass(_POINTWISE),
    "bitsandbytes::quantize_blockwise": _Pass(_POINTWISE),
    "causal_conv1d::conv": _Pass(_POINTWISE),
    "causal_conv1d::conv_update": _Pass(_POINTWISE),
    "flash_attn::swiglu": _Pass(_POINTWISE),
    "flash_attn::swiglu_backward": _Pass(_POINTWISE),
    "mamba_ssm::selective_state_update": _Pass(_POINTWISE),
    "transformer_engine::cast_transpose": _Pass(_POINTWISE),
    "xformers::swiglu": _Pass(_POINTWISE),
    "xformers::swiglu_backward": _Pass(_POINTWISE),
}


@register_op(*_PASSES)
def one_pass(call: OpSignature) -> list[Kernel]:
    """One kernel that moves each of its tensors once."""
    found = _PASSES[call.op]
    return _kernel(call, found, gpu_tensors(call.input_tensors), _written(call))


def _written(call: OpSignature) -> tuple[TensorSpec, ...]:
    return written_tensors(call) or gpu_tensors(call.input_tensors)[:1]


def _kernel(
    call: OpSignature,
    found: _Pass,
    reads: tuple[TensorSpec | None, ...],
    writes: tuple[TensorSpec, ...],
) -> list[Kernel]:
    largest = max(gpu_tensors(reads), key=lambda spec: spec.numel, default=None)
    if largest is None or not largest.numel:
        return []
    by_row = found.kernel_class is not _POINTWISE
    width = largest.shape[-1] if by_row else largest.numel
    return [
        memory_kernel(
            found.kernel_class,
            call.op.partition("::")[2].removesuffix("_inplace"),
            reads=reads,
            writes=writes,
            rows=largest.numel // width,
            width=width,
            variant=found.variant,
            is_backward=found.is_backward,
            layout="contiguous",
        )
    ]


@register_op("flash_attn::norm", "flash_attn::norm_backward")
def norm(call: OpSignature, *, is_rms: bool = True, **others: Argument) -> list[Kernel]:
    """A norm with what is added before, forward and backward in one kernel each (Triton)."""
    is_backward = call.op.endswith("_backward")
    mean = others.get("mean")
    if is_backward and isinstance(mean, TensorSpec):
        is_rms = mean.numel == 0
    found = _Pass(_NORM, "rms_norm" if is_rms else "layer_norm", is_backward)
    return _kernel(call, found, gpu_tensors(call.input_tensors), _written(call))


@register_op("flash_attn::rotary", "flash_attn::rotary_inplace")
def rotary(call: OpSignature, *, x: TensorSpec, cos: TensorSpec, sin: TensorSpec) -> list[Kernel]:
    """One kernel that rotates the first part of each head; in place it touches no other."""
    touched = x
    if call.op.endswith("_inplace"):
        touched = x._replace(shape=(*x.shape[:-1], 2 * cos.shape[-1]))
    return _kernel(call, _Pass(_POINTWISE), (touched, cos, sin), (touched,))
