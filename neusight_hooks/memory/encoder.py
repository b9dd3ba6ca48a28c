"""What the inference path of attention modules and encoder layers holds for itself."""

from __future__ import annotations

from neusight.ops.products.encoder import SelfAttention, whole_lengths
from neusight.predictors.kernel import DTYPE_BYTES
from neusight.recording.recording import OpSignature, TensorSpec


def encoder_temporaries(signature: OpSignature) -> tuple[int, ...]:
    """Bytes that these ops hold at their peak beside what they return.

    Attention holds the joint projection with the context, or, where scores are written out, the
    split projection with two buffers of scores; a layer also the first Linear's output beside two
    tensors of its own size (native/transformers/cuda/attention.cu and transformer.cpp, torch 2.13).
    """
    given = _attention_of(signature)
    weight = signature.by_name.get("ffn_weight_1")
    peak = _attention_peak(given)
    if isinstance(weight, TensorSpec):
        rows = given.source.numel // max(1, given.source.shape[-1])
        peak = max(peak, 2 * _bytes(given.source) + _bytes(given.source, rows * weight.shape[0]))
    returned = sum(_bytes(out) for out in signature.outputs if isinstance(out, TensorSpec))
    return (peak - returned,) if peak > returned else ()


def _attention_of(call: OpSignature) -> SelfAttention:
    """The attention of either op; the tensor and the heads have names of their own in each."""
    is_module = call.op == "aten::_native_multi_head_attention"
    heads = call.by_name["num_head" if is_module else "num_heads"]
    needs_weights = is_module and bool(call.by_name.get("need_weights", True))
    return SelfAttention(
        call.tensor("query" if is_module else "src"),
        heads if isinstance(heads, int) else 1,
        call.tensor("qkv_weight"),
        call.tensor("proj_weight"),
        call.optional_tensor("mask"),
        whole_lengths(call.by_name.get("lengths")),
        needs_weights,
        needs_weights and bool(call.by_name.get("average_attn_weights", True)),
    )


def _attention_peak(given: SelfAttention) -> int:
    """Of the attention with its output."""
    source = _bytes(given.source)
    if given.is_fused:
        return 5 * source
    batch, length = given.padded
    scores = _bytes(given.source, batch * given.heads * length * length)
    average = scores // max(1, given.heads) if given.averages else 0
    return max(6 * source, 3 * source + 2 * scores, 5 * source + scores + average)


def _bytes(like: TensorSpec, numel: int | None = None) -> int:
    return int((like.numel if numel is None else numel) * DTYPE_BYTES[like.dtype])
