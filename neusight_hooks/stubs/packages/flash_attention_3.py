"""FlashAttention-3 (`flash_attn_interface`): attention by the kernels made for Hopper."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor

from neusight.stubs.packages.flash_attention import (
    cache_op,
    cached_length,
    refuse_what_cuda_refuses,
)
from neusight.stubs.stub_ops import differentiable, make_op, names, stub

_DTYPES = (torch.float16, torch.bfloat16, torch.float8_e4m3fn)


def _forward_outputs(query: Tensor, key: Tensor, value: Tensor, *others: Any) -> tuple[Tensor, ...]:
    """The result, in bfloat16 where the operands are fp8, and a statistic of each row and head."""
    dtype = torch.bfloat16 if query.dtype is torch.float8_e4m3fn else query.dtype
    rows = (
        (query.shape[0], query.shape[2], query.shape[1])
        if query.dim() == 4
        else (query.shape[1], query.shape[0])
    )
    return (
        query.new_empty((*query.shape[:-1], value.shape[-1]), dtype=dtype),
        query.new_empty(rows, dtype=torch.float32),
    )


_forward = make_op(
    "flash_attn_3::forward(Tensor query, Tensor key, Tensor value, Tensor? cum_seq_q, "
    "Tensor? cum_seq_k, bool is_causal, int window_size_left, int window_size_right) -> "
    "(Tensor, Tensor)",
    _forward_outputs,
)
_gradients = make_op(
    "flash_attn_3::backward(Tensor grad_out, Tensor query, Tensor key, Tensor value, Tensor out, "
    "Tensor logsumexp, Tensor? cum_seq_q, Tensor? cum_seq_k, bool is_causal, "
    "int window_size_left, int window_size_right) -> (Tensor, Tensor, Tensor)",
    lambda grad_out, query, key, value, *others: tuple(map(torch.empty_like, (query, key, value))),
)
_with_cache = cache_op("flash_attn_3")


def _backward(saved: Sequence[Tensor], given: Sequence[Any], grad: Tensor, of_lse: Any) -> Any:
    return *_gradients(grad, *saved, *given[5:]), *(None,) * len(given[3:])


differentiable(
    _forward,
    _backward,
    saves=lambda inputs, output: (*inputs[:3], *output, *inputs[3:5]),
)


def _attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    causal: bool,
    window_size: tuple[int, int],
    return_attn_probs: bool,
    bounds: tuple[Tensor | None, Tensor | None] = (None, None),
) -> Any:
    refuse_what_cuda_refuses(query, dtypes=_DTYPES)
    out, statistics = _forward(query, key, value, *bounds, causal, *window_size)
    return (out, statistics) if return_attn_probs else out


_PACKAGE = "flash_attn_interface"
#: What functions take behind their tensors.
_SETTINGS = (
    "softmax_scale=None, causal=False, qv=None, q_descale=None, k_descale=None, v_descale=None, "
    "window_size=(-1, -1), attention_chunk=0, softcap=0.0, num_splits=1, pack_gqa=None, "
    "deterministic=False, sm_margin=0, return_attn_probs=False"
)


@stub(_PACKAGE, f"q, k, v, {_SETTINGS}")
def flash_attn_func(
    q: Tensor, k: Tensor, v: Tensor, causal: bool, window_size: Any, return_attn_probs: bool
) -> Any:
    """Attention of [batch, sequence, heads, width]; k and v may have fewer heads."""
    return _attend(q, k, v, causal, window_size, return_attn_probs)


@stub(
    _PACKAGE,
    "q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, seqused_q=None, "
    f"seqused_k=None, {_SETTINGS}",
)
def flash_attn_varlen_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    causal: bool,
    window_size: tuple[int, int],
    return_attn_probs: bool,
) -> Any:
    """Attention of packed sequences, [tokens, heads, width], with their cumulative lengths."""
    bounds = (cu_seqlens_q, cu_seqlens_k)
    return _attend(q, k, v, causal, window_size, return_attn_probs, bounds)


@stub(
    _PACKAGE,
    "qkv, softmax_scale=None, causal=False, q_descale=None, k_descale=None, v_descale=None, "
    "window_size=(-1, -1), attention_chunk=0, softcap=0.0, deterministic=False, num_heads_q=None, "
    "sm_margin=0, return_attn_probs=False",
)
def flash_attn_qkvpacked_func(
    qkv: Tensor, causal: bool, window_size: Any, num_heads_q: int | None, return_attn_probs: bool
) -> Any:
    """Of [batch, sequence, 3, heads, width], or [batch, sequence, all heads, width]."""
    if qkv.dim() == 5:
        query, key, value = qkv.unbind(2)
    else:
        num_q = num_heads_q or qkv.shape[2] // 3
        num_k = (qkv.shape[2] - num_q) // 2
        query, key, value = cast("Any", qkv).split([num_q, num_k, num_k], dim=2)
    return _attend(query, key, value, causal, window_size, return_attn_probs)


@stub(
    _PACKAGE,
    "q, k_cache, v_cache, k=None, v=None, qv=None, rotary_cos=None, rotary_sin=None, "
    "cache_seqlens=None, cache_batch_idx=None, cache_leftpad=None, page_table=None, "
    "cu_seqlens_q=None, cu_seqlens_k_new=None, max_seqlen_q=None, rotary_seqlens=None, "
    "q_descale=None, k_descale=None, v_descale=None, softmax_scale=None, causal=False, "
    "window_size=(-1, -1), attention_chunk=0, softcap=0.0, rotary_interleaved=True, "
    "scheduler_metadata=None, num_splits=0, pack_gqa=None, sm_margin=0, return_softmax_lse=False",
)
def flash_attn_with_kvcache(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    k: Tensor | None,
    v: Tensor | None,
    cache_seqlens: int | Tensor | None,
    page_table: Tensor | None,
    cu_seqlens_q: Tensor | None,
    causal: bool,
    window_size: tuple[int, int],
    return_softmax_lse: bool,
) -> Any:
    """One step of decoding, as in FlashAttention-2; packed queries count as one sequence each."""
    refuse_what_cuda_refuses(q, dtypes=_DTYPES)
    query = q
    if query.dim() == 3:
        batch = 1 if cu_seqlens_q is None else max(1, cu_seqlens_q.shape[0] - 1)
        query = query.view(batch, -1, *q.shape[1:])
    length = cached_length(k_cache, page_table, k, cache_seqlens)
    out, statistics = _forward_outputs(query, k_cache, v_cache)
    _with_cache(query, k_cache, v_cache, k, v, out, statistics, length, causal, *window_size)
    out = out.view(*q.shape[:-1], out.shape[-1])
    return (out, statistics) if return_softmax_lse else out


MODULES: dict[str, dict[str, Any]] = {
    "flash_attn_interface": names(
        flash_attn_func,
        flash_attn_qkvpacked_func,
        flash_attn_varlen_func,
        flash_attn_with_kvcache,
    )
}
