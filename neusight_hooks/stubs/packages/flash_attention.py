"""FlashAttention-2 (`flash_attn`): attention by torch's own copy of its kernels, which are the
same, and its rotary embedding, norms and loss."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from neusight.stubs.shared.flash_rows import (
    DropoutAddNorm,
    RmsNorm,
    apply_rotary,
    cross_entropy_loss,
    dropout_add_layer_norm,
    dropout_add_rms_norm,
    layer_norm_fn,
    rms_norm,
    rms_norm_fn,
    swiglu,
)
from neusight.stubs.stub_ops import counted, differentiable, make_op, names, stub

#: What the functions of attention take behind their tensors.
_SETTINGS = (
    "dropout_p=0.0, softmax_scale=None, causal=False, window_size=(-1, -1), softcap=0.0, "
    "alibi_slopes=None, deterministic=False, return_attn_probs=False"
)
_LENGTHS = "cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k"

#: Types, the oldest architecture and the largest head that the kernels take (its README).
_DTYPES = (torch.float16, torch.bfloat16)
_OLDEST_MAJOR = 8
_LARGEST_HEAD = 256


def refuse_what_cuda_refuses(query: Tensor, *, dtypes: tuple[torch.dtype, ...] = _DTYPES) -> None:
    """RuntimeError, in the package's words, where its kernels do not run."""
    if not query.is_cuda:
        raise RuntimeError("Input tensor must be on CUDA")
    if torch.cuda.get_device_capability()[0] < _OLDEST_MAJOR:
        raise RuntimeError("FlashAttention only supports Ampere GPUs or newer.")
    if query.dtype not in dtypes:
        raise RuntimeError("FlashAttention only support fp16 and bf16 data type")
    if query.shape[-1] > _LARGEST_HEAD:
        raise RuntimeError(
            f"FlashAttention forward only supports head dimension at most {_LARGEST_HEAD}"
        )


def cache_op(namespace: str) -> Any:
    """The op of attention over a cache, which writes its outputs and the caches."""
    return make_op(
        f"{namespace}::with_kvcache(Tensor query, Tensor(a!) key_cache, Tensor(b!) value_cache, "
        "Tensor? key, Tensor? value, Tensor(c!) out, Tensor(d!) statistics, int length, "
        "bool is_causal, int window_size_left, int window_size_right) -> ()",
        lambda *arguments: None,
    )


def cached_length(
    cache: Tensor, pages: Tensor | None, new_keys: Tensor | None, lengths: int | Tensor | None
) -> int:
    """Keys in a cache once the new ones are there; where its lengths are a tensor it is full."""
    if isinstance(lengths, int):
        return lengths + (0 if new_keys is None else new_keys.shape[1])
    return cache.shape[1] * (1 if pages is None else pages.shape[1])


_with_cache = cache_op("flash_attn")


def _outputs(query: Tensor, *others: Any) -> tuple[Tensor, Tensor]:
    """The result, and a statistic of each row and head."""
    rows = (query.shape[0], query.shape[2], query.shape[1])
    return torch.empty_like(query), query.new_empty(rows, dtype=torch.float32)


def _attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    bounds: tuple[Tensor, Tensor] | tuple[None, None] = (None, None),
    longest: tuple[int, int] | None = None,
    **settings: Any,
) -> Any:
    """One call of the kernel on [batch, sequence, heads, width] or packed sequences."""
    refuse_what_cuda_refuses(query)
    left, right = settings["window_size"]
    max_q, max_k = longest or (query.shape[1], key.shape[1])
    out, statistics, *_ = torch.ops.aten._flash_attention_forward(
        *(query, key, value, *bounds, int(max_q), int(max_k)),
        *(settings["dropout_p"], settings["causal"], False),
        scale=settings["softmax_scale"],
        window_size_left=left,
        window_size_right=right,
        alibi_slopes=settings["alibi_slopes"],
    )
    return (out, statistics, None) if settings["return_attn_probs"] else out


@stub("flash_attn", f"q, k, v, {_SETTINGS}")
def flash_attn_func(q: Tensor, k: Tensor, v: Tensor, **settings: Any) -> Any:
    """Attention of [batch, sequence, heads, width]; k and v may have fewer heads."""
    return _attend(q, k, v, **settings)


@stub("flash_attn", f"q, k, v, {_LENGTHS}, {_SETTINGS}, block_table=None")
def flash_attn_varlen_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    **settings: Any,
) -> Any:
    """Attention of packed sequences, [tokens, heads, width], with their cumulative lengths."""
    bounds, longest = (cu_seqlens_q, cu_seqlens_k), (max_seqlen_q, max_seqlen_k)
    return _attend(q, k, v, bounds=bounds, longest=longest, **settings)


@stub("flash_attn", f"qkv, {_SETTINGS}")
def flash_attn_qkvpacked_func(qkv: Tensor, **settings: Any) -> Any:
    """Attention of [batch, sequence, 3, heads, width]."""
    return _attend(*qkv.unbind(2), **settings)


@stub("flash_attn", f"q, kv, {_SETTINGS}")
def flash_attn_kvpacked_func(q: Tensor, kv: Tensor, **settings: Any) -> Any:
    """Attention of queries and [batch, sequence, 2, heads, width]."""
    return _attend(q, *kv.unbind(2), **settings)


@stub("flash_attn", f"qkv, cu_seqlens, max_seqlen, {_SETTINGS}")
def flash_attn_varlen_qkvpacked_func(
    qkv: Tensor, cu_seqlens: Tensor, max_seqlen: int, **settings: Any
) -> Any:
    """Attention of packed sequences, [tokens, 3, heads, width]."""
    lengths = (cu_seqlens, cu_seqlens, max_seqlen, max_seqlen)
    return flash_attn_varlen_func(*qkv.unbind(1), *lengths, **settings)


@stub("flash_attn", f"q, kv, {_LENGTHS}, {_SETTINGS}")
def flash_attn_varlen_kvpacked_func(q: Tensor, kv: Tensor, **settings: Any) -> Any:
    """Attention of packed queries and [tokens, 2, heads, width]."""
    return flash_attn_varlen_func(q, *kv.unbind(1), **settings)


@stub(
    "flash_attn",
    "q, k_cache, v_cache, k=None, v=None, rotary_cos=None, rotary_sin=None, cache_seqlens=None, "
    "cache_batch_idx=None, cache_leftpad=None, block_table=None, softmax_scale=None, causal=False, "
    "window_size=(-1, -1), softcap=0.0, rotary_interleaved=True, alibi_slopes=None, num_splits=0, "
    "return_softmax_lse=False",
)
def flash_attn_with_kvcache(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    k: Tensor | None,
    v: Tensor | None,
    cache_seqlens: int | Tensor | None,
    block_table: Tensor | None,
    causal: bool,
    window_size: tuple[int, int],
    return_softmax_lse: bool,
) -> Any:
    """One step of decoding: new keys and values go into the caches, all in one kernel. A cache
    whose lengths are a tensor counts as full, since the values of the tensor are unknown."""
    refuse_what_cuda_refuses(q)
    length = cached_length(k_cache, block_table, k, cache_seqlens)
    out, statistics = _outputs(q)
    _with_cache(q, k_cache, v_cache, k, v, out, statistics, length, causal, *window_size)
    return (out, statistics) if return_softmax_lse else out


class FlashSelfAttention(nn.Module):
    """Attention of a joint projection, packed or not."""

    @stub(
        "flash_attn",
        "self, causal=False, softmax_scale=None, attention_dropout=0.0, window_size=(-1, -1), "
        "alibi_slopes=None, deterministic=False",
    )
    def __init__(self, attention_dropout: float, alibi_slopes: Any, **settings: Any) -> None:
        super().__init__()
        self.causal, self.softmax_scale = settings["causal"], settings["softmax_scale"]
        self.drop = nn.Dropout(attention_dropout)
        self.window_size = settings["window_size"]
        self.deterministic = settings["deterministic"]
        self.register_buffer("alibi_slopes", alibi_slopes, persistent=False)

    def forward(
        self,
        qkv: Tensor,
        causal: bool | None = None,
        cu_seqlens: Tensor | None = None,
        max_seqlen: int | None = None,
    ) -> Any:
        """[batch, sequence, 3, heads, width], or packed with `cu_seqlens`."""
        settings = self._settings(causal)
        if cu_seqlens is None:
            return flash_attn_qkvpacked_func(qkv, **settings)
        return flash_attn_varlen_qkvpacked_func(qkv, cu_seqlens, max_seqlen or 0, **settings)

    def _settings(self, causal: bool | None) -> dict[str, Any]:
        return {
            "dropout_p": self.drop.p if self.training else 0.0,
            "softmax_scale": self.softmax_scale,
            "causal": self.causal if causal is None else causal,
            "window_size": self.window_size,
            "alibi_slopes": self.alibi_slopes,
        }


class FlashCrossAttention(FlashSelfAttention):
    """Attention of queries over a joint projection of keys and values."""

    def forward(  # type: ignore[override]  # as the package's, whose two have no common parent
        self,
        q: Tensor,
        kv: Tensor,
        causal: bool | None = None,
        cu_seqlens: Tensor | None = None,
        max_seqlen: int | None = None,
        cu_seqlens_k: Tensor | None = None,
        max_seqlen_k: int | None = None,
    ) -> Any:
        """[batch, sequence, heads, width] and [batch, sequence, 2, heads, width]."""
        settings = self._settings(causal)
        if cu_seqlens is None or cu_seqlens_k is None:
            return flash_attn_kvpacked_func(q, kv, **settings)
        return flash_attn_varlen_kvpacked_func(
            q, kv, cu_seqlens, cu_seqlens_k, max_seqlen or 0, max_seqlen_k or 0, **settings
        )


# -- padding --------------------------------------------------------------------------------------


@counted("flash_attn")
def index_first_axis(input: Tensor, indices: Tensor) -> Tensor:
    flat = input.reshape(input.shape[0], -1)
    columns = indices.unsqueeze(1).expand(-1, flat.shape[1])
    return torch.gather(flat, 0, columns).reshape(-1, *input.shape[1:])


@counted("flash_attn")
def index_put_first_axis(values: Tensor, indices: Tensor, first_axis_dim: int) -> Tensor:
    """The rows put back at these indices, zeros between."""
    out = values.new_zeros((first_axis_dim, *values.shape[1:]))
    out[indices] = values
    return out


@counted("flash_attn")
def unpad_input(
    hidden_states: Tensor, attention_mask: Tensor, unused_mask: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor, int, Tensor]:
    """The tokens that the mask keeps, their indices, the cumulative lengths, the longest and the
    lengths that count."""
    kept = attention_mask if unused_mask is None else attention_mask + unused_mask
    lengths = kept.sum(dim=-1, dtype=torch.int32)
    used = attention_mask.sum(dim=-1, dtype=torch.int32)
    indices = torch.nonzero(kept.flatten(), as_tuple=False).flatten()
    longest = int(lengths.max().item())
    bounds = F.pad(torch.cumsum(lengths, dim=0, dtype=torch.int32), (1, 0))
    rows = hidden_states.reshape(-1, *hidden_states.shape[2:])
    return index_first_axis(rows, indices), indices, bounds, longest, used


@counted("flash_attn")
def pad_input(hidden_states: Tensor, indices: Tensor, batch: int, seqlen: int) -> Tensor:
    """The tokens where they were before `unpad_input`."""
    out = index_put_first_axis(hidden_states, indices, batch * seqlen)
    return out.view(batch, seqlen, *out.shape[1:])


# -- rotary embedding ------------------------------------------------------------------------------


@stub(
    "flash_attn",
    "x, cos, sin, interleaved=False, inplace=False, seqlen_offsets=0, cu_seqlens=None, "
    "max_seqlen=None",
)
def apply_rotary_emb(x: Tensor, cos: Tensor, sin: Tensor, inplace: bool) -> Any:
    """Rotates the first part of each head, as wide as twice `cos`, in one kernel."""
    return apply_rotary(x, cos, sin, inplace=inplace)


@stub(
    "flash_attn",
    "qkv, cos, sin, cos_k=None, sin_k=None, interleaved=False, seqlen_offsets=0, num_heads_q=None",
)
def apply_rotary_emb_qkv_(
    qkv: Tensor, cos: Tensor, sin: Tensor, cos_k: Any, sin_k: Any, num_heads_q: int | None
) -> Tensor:
    """Rotates queries and keys of a joint projection in place: one kernel where they lie together
    and share their angles."""
    if qkv.dim() == 5:
        halves = qkv[:, :, :2].flatten(2, 3)
        queries, keys = qkv[:, :, 0], qkv[:, :, 1]
    else:
        num_q = num_heads_q or qkv.shape[2] // 3
        num_k = (qkv.shape[2] - num_q) // 2
        halves = qkv[:, :, : num_q + num_k]
        queries, keys = qkv[:, :, :num_q], qkv[:, :, num_q : num_q + num_k]
    if cos_k is None and sin_k is None and qkv.is_contiguous():
        apply_rotary(halves, cos, sin, inplace=True)
    else:
        apply_rotary(queries, cos, sin, inplace=True)
        apply_rotary(keys, cos if cos_k is None else cos_k, sin, inplace=True)
    return qkv


@stub("flash_attn", "kv, cos, sin, interleaved=False, seqlen_offsets=0")
def apply_rotary_emb_kv_(kv: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotates the keys of [batch, sequence, 2, heads, width] in place."""
    apply_rotary(kv[:, :, 0], cos, sin, inplace=True)
    return kv


class RotaryEmbedding(nn.Module):
    """Cached angles, for the largest number of positions so far."""

    @stub("flash_attn", "self, dim, base=10000.0, interleaved=False, scale_base=None, device=None")
    def __init__(
        self, dim: int, base: float, interleaved: bool, scale_base: float | None, device: Any
    ) -> None:
        super().__init__()
        self.dim, self.base, self.interleaved, self.scale_base = dim, base, interleaved, scale_base
        steps = torch.arange(0, dim, 2, device=device, dtype=torch.float32) / dim
        self.register_buffer("inv_freq", 1.0 / (base**steps), persistent=False)
        self._angles: tuple[Tensor, Tensor] | None = None

    def forward(
        self,
        qkv: Tensor,
        kv: Tensor | None = None,
        seqlen_offset: int | Tensor = 0,
        max_seqlen: int | None = None,
        num_heads_q: int | None = None,
    ) -> Any:
        """Rotates a joint projection, or queries and keys beside each other, in place."""
        offset = seqlen_offset if isinstance(seqlen_offset, int) else 0
        cos, sin = self._known_angles(max_seqlen or qkv.shape[1] + offset, qkv)
        if kv is None:
            return apply_rotary_emb_qkv_(qkv, cos, sin, num_heads_q=num_heads_q)
        apply_rotary(qkv, cos, sin, inplace=True)
        return qkv, apply_rotary_emb_kv_(kv, cos, sin)

    def _known_angles(self, length: int, like: Tensor) -> tuple[Tensor, Tensor]:
        known = self._angles
        if known is None or known[0].shape[0] < length or known[0].dtype != like.dtype:
            positions = torch.arange(length, device=like.device, dtype=torch.float32)
            turns = torch.outer(positions, cast("Tensor", self.inv_freq))
            known = self._angles = (turns.cos().to(like.dtype), turns.sin().to(like.dtype))
        return known


# -- the first FlashAttention in Triton -----------------------------------------------------------


_triton_forward = make_op(
    "flash_attn::triton_forward(Tensor query, Tensor key, Tensor value, Tensor? bias, "
    "bool is_causal) -> (Tensor, Tensor)",
    _outputs,
)
_triton_gradients = make_op(
    "flash_attn::triton_backward(Tensor grad_out, Tensor query, Tensor key, Tensor value, "
    "Tensor out, Tensor logsumexp, Tensor? bias, bool is_causal) -> (Tensor, Tensor, Tensor)",
    lambda grad_out, query, key, value, *others: tuple(map(torch.empty_like, (query, key, value))),
)


def _triton_backward(
    saved: Sequence[Tensor], given: Sequence[Any], grad: Tensor, of_lse: Any
) -> Any:
    return *_triton_gradients(grad, *saved, given[4]), None, None


differentiable(
    _triton_forward,
    _triton_backward,
    saves=lambda inputs, output: (*inputs[:3], *output, inputs[3]),
)


_TRITON = "bias=None, causal=False, softmax_scale=None"


@stub("flash_attn", f"q, k, v, {_TRITON}", "flash_attn_triton.flash_attn_func")
def _triton_attend(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, causal: bool) -> Any:
    """Attention of [batch, sequence, heads, width] by the kernels in Triton."""
    refuse_what_cuda_refuses(q)
    return _triton_forward(q, k, v, bias, causal)[0]


@stub("flash_attn", f"qkv, {_TRITON}", "flash_attn_triton.flash_attn_qkvpacked_func")
def _triton_attend_qkv(qkv: Tensor, bias: Tensor | None, causal: bool) -> Any:
    """Attention of [batch, sequence, 3, heads, width] in Triton."""
    return _triton_attend(*qkv.unbind(2), bias, causal)


@stub("flash_attn", f"q, kv, {_TRITON}", "flash_attn_triton.flash_attn_kvpacked_func")
def _triton_attend_kv(q: Tensor, kv: Tensor, bias: Tensor | None, causal: bool) -> Any:
    """Attention of queries and [batch, sequence, 2, heads, width] in Triton."""
    return _triton_attend(q, *kv.unbind(2), bias, causal)


# -- the loss -------------------------------------------------------------------------------------


class CrossEntropyLoss(nn.Module):
    """The loss of classes in one kernel forward and one backward."""

    @stub(
        "flash_attn",
        "self, ignore_index=-100, reduction='mean', label_smoothing=0.0, logit_scale=1.0, "
        "lse_square_scale=0.0, inplace_backward=False, process_group=None, return_z_loss=False",
    )
    def __init__(
        self, ignore_index: int, reduction: str, inplace_backward: bool, return_z_loss: bool
    ) -> None:
        super().__init__()
        self.ignore_index, self.reduction = ignore_index, reduction
        self.inplace_backward, self.return_z_loss = inplace_backward, return_z_loss

    def forward(self, input: Tensor, target: Tensor, precomputed_lse: Any = None) -> Any:
        """[rows, classes] and the class of each row."""
        losses, z_losses = cross_entropy_loss(input, target, inplace_backward=self.inplace_backward)
        if self.reduction == "mean":
            losses = losses.sum() / (target != self.ignore_index).sum()
        elif self.reduction == "sum":
            losses = losses.sum()
        return (losses, z_losses) if self.return_z_loss else losses


_ATTENTION = names(
    flash_attn_func,
    flash_attn_kvpacked_func,
    flash_attn_qkvpacked_func,
    flash_attn_varlen_func,
    flash_attn_varlen_kvpacked_func,
    flash_attn_varlen_qkvpacked_func,
    flash_attn_with_kvcache,
)
_PADDING = names(index_first_axis, index_put_first_axis, pad_input, unpad_input)
_ROTARY = names(
    apply_rotary_emb,
    apply_rotary_emb_kv_,
    apply_rotary_emb_qkv_,
    RotaryEmbedding,
    apply_rotary_emb_func=apply_rotary_emb,
)
_TRITON_NORMS = names(layer_norm_fn, rms_norm_fn, RMSNorm=RmsNorm)

#: The modules of the package that have stubs, and what each holds.
MODULES: dict[str, dict[str, Any]] = {
    "flash_attn": _ATTENTION,
    "flash_attn.flash_attn_interface": _ATTENTION,
    "flash_attn.bert_padding": _PADDING,
    "flash_attn.flash_attn_triton": names(
        flash_attn_func=_triton_attend,
        flash_attn_kvpacked_func=_triton_attend_kv,
        flash_attn_qkvpacked_func=_triton_attend_qkv,
    ),
    "flash_attn.layers": {},
    "flash_attn.layers.rotary": _ROTARY,
    "flash_attn.losses": {},
    "flash_attn.losses.cross_entropy": names(CrossEntropyLoss),
    "flash_attn.modules": {},
    "flash_attn.modules.mha": names(FlashCrossAttention, FlashSelfAttention),
    "flash_attn.ops": {},
    "flash_attn.ops.activations": names(swiglu),
    "flash_attn.ops.layer_norm": names(dropout_add_layer_norm, DropoutAddLayerNorm=DropoutAddNorm),
    "flash_attn.ops.rms_norm": names(rms_norm, dropout_add_rms_norm, RMSNorm=RmsNorm),
    "flash_attn.ops.triton": {},
    "flash_attn.ops.triton.cross_entropy": names(cross_entropy_loss),
    "flash_attn.ops.triton.layer_norm": _TRITON_NORMS,
    "flash_attn.ops.triton.rotary": names(apply_rotary),
}
