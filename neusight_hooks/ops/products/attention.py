"""Fused attention: flash, memory-efficient and cuDNN kernels, forward and backward."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import NamedTuple

from neusight.ops.operands import (
    ceil_div,
    flags,
    memory_kernel,
    new_tensor,
    pointwise_kernel,
)
from neusight.ops.registry import register_op
from neusight.predictors.kernel import DTYPE_BYTES, Kernel, KernelClass, Variant
from neusight.recording.recording import Argument, MathMode, OpSignature, TensorSpec


class _Problem(NamedTuple):
    batch: int
    heads: int
    kv_heads: int
    seq_q: int
    seq_kv: int
    head_dim: int
    head_dim_v: int
    dtype: str
    device: str

    @property
    def is_empty(self) -> bool:
        return 0 in self[:7]

    @property
    def rows(self) -> int:
        return self.batch * self.heads * self.seq_q


def _heads_first(query: TensorSpec, key: TensorSpec, value: TensorSpec) -> _Problem:
    """Of the _scaled_dot_product ops: [batch, heads, sequence, head_dim]."""
    batch, heads, seq_q, head_dim = query.shape
    return _Problem(
        batch,
        heads,
        key.shape[1],
        seq_q,
        key.shape[2],
        head_dim,
        value.shape[3],
        query.dtype,
        query.device,
    )


def _sequence_first(
    query: TensorSpec, key: TensorSpec, value: TensorSpec, bounds: TensorSpec | None
) -> _Problem:
    """Of the _flash_attention ops: [batch, sequence, heads, head_dim], or packed sequences, whose
    `bounds` are the cumulative lengths.

    Packed sequences are taken as equally long.
    """
    heads, head_dim = query.shape[-2:]
    is_batched = len(query.shape) == 4
    batch = query.shape[0] if is_batched else 1
    seq_q, seq_kv = (spec.shape[1 if is_batched else 0] for spec in (query, key))
    if batch == 1 and bounds is not None:
        batch = max(1, bounds.shape[0] - 1)
        seq_q, seq_kv = ceil_div(seq_q, batch), ceil_div(seq_kv, batch)
    sizes = (batch, heads, key.shape[-2], seq_q, seq_kv, head_dim, value.shape[-1])
    return _Problem(*sizes, query.dtype, query.device)


def _attention(
    problem: _Problem, name: Variant, *, causal: bool, backward: bool = False, bias_bytes: int = 0
) -> Kernel:
    return Kernel.attention(
        problem.batch,
        problem.heads,
        problem.kv_heads,
        problem.seq_q,
        problem.seq_kv,
        problem.head_dim,
        head_dim_v=problem.head_dim_v,
        causal=causal,
        dtype=problem.dtype,
        backward=backward,
        name=name,
        bias_bytes=bias_bytes,
    )


def _forward(
    problem: _Problem, name: Variant, *, causal: bool, bias: TensorSpec | None = None
) -> list[Kernel]:
    if problem.is_empty:
        return []
    bias_bytes = bias.num_bytes if bias is not None else 0
    return [_attention(problem, name, causal=causal, bias_bytes=bias_bytes)]


def _backward(
    problem: _Problem,
    name: Variant,
    *,
    causal: bool,
    bias: TensorSpec | None = None,
    accumulates_query: bool = True,
    sums_groups: bool = False,
) -> list[Kernel]:
    """rowsum(dO · O), the main kernel, the query gradient out of its fp32 sums, GQA's head sums.

    Flash and cuDNN launch dot_do_o, the main kernel and convert_dq; `accumulates_query` says that
    the query gradient is summed in fp32; `sums_groups` that dK and dV come one a query head and
    are added up by two reductions (ATen/native/transformers/cuda/flash_attn/flash_api.cpp).
    """
    if problem.is_empty:
        return []
    bias_bytes = bias.num_bytes if bias is not None else 0
    main = _attention(problem, name, causal=causal, backward=True, bias_bytes=bias_bytes)
    kernels = [_delta(problem), main]
    if accumulates_query:
        query = new_tensor((problem.rows, problem.head_dim), problem.dtype, problem.device)
        sums = query._replace(dtype="float32")
        kernels += pointwise_kernel("attention_convert_dq", (sums,), (query,))
    if sums_groups and problem.kv_heads and problem.heads != problem.kv_heads:
        kernels += [_head_sums(problem, problem.head_dim), _head_sums(problem, problem.head_dim_v)]
    return kernels


def _delta(problem: _Problem) -> Kernel:
    """rowsum(dO · O), a number a query and head."""
    rows, width = problem.rows, problem.head_dim_v
    grad_out = new_tensor((rows, width), problem.dtype, problem.device)
    return memory_kernel(
        KernelClass.REDUCTION,
        "attention_delta",
        reads=(grad_out, grad_out),
        writes=(new_tensor((rows,), "float32", problem.device),),
        rows=rows,
        width=width,
        flops=2 * rows * width,
    )


def _head_sums(problem: _Problem, width: int) -> Kernel:
    """The gradient of a key or value head, summed over the query heads that share it."""
    batch, length, heads = problem.batch, problem.seq_kv, problem.kv_heads
    expanded = new_tensor((batch, length, problem.heads, width), problem.dtype, problem.device)
    summed = new_tensor((batch, length, heads, width), problem.dtype, problem.device)
    return memory_kernel(
        KernelClass.REDUCTION,
        "sum",
        reads=(expanded,),
        writes=(summed,),
        rows=summed.numel,
        width=problem.heads // heads,
    )


@register_op(
    "aten::_scaled_dot_product_flash_attention",
    "aten::_scaled_dot_product_flash_attention_backward",
)
def sdpa_flash(
    call: OpSignature,
    *,
    query: TensorSpec,
    key: TensorSpec,
    value: TensorSpec,
    is_causal: bool = False,
    **others: Argument,
) -> list[Kernel]:
    """FlashAttention-2."""
    problem = _heads_first(query, key, value)
    if _is_backward(call):
        return _backward(problem, "flash_attention", causal=is_causal, sums_groups=True)
    found = _forward(problem, "flash_attention", causal=is_causal)
    return [replace(kernel, layout="contiguous") for kernel in found]


def _is_backward(call: OpSignature) -> bool:
    return call.op.endswith("backward")


@register_op(
    "aten::_flash_attention_forward",
    "aten::_flash_attention_forward_no_dropout_inplace",
    "aten::_flash_attention_backward",
    "flash_attn_3::forward",
    "flash_attn_3::backward",
    "flash_attn::triton_forward",
    "flash_attn::triton_backward",
)
def flash(
    call: OpSignature,
    *,
    query: TensorSpec,
    key: TensorSpec,
    value: TensorSpec,
    cum_seq_q: TensorSpec | None = None,
    is_causal: bool = False,
    window_size_left: int | None = None,
    window_size_right: int | None = None,
    **others: Argument,
) -> list[Kernel]:
    """FlashAttention-2 (-3, or the first in Triton) on [batch, sequence, heads, head_dim]."""
    whole = _sequence_first(query, key, value, cum_seq_q)
    window = (window_size_left, window_size_right)
    problem, causal = _in_window(whole, window, causal=is_causal)
    if _is_backward(call):
        return _backward(problem, _flash(call), causal=causal, sums_groups=True)
    return _forward(problem, _flash(call), causal=causal)


def _flash(call: OpSignature) -> Variant:
    if call.op.startswith("flash_attn::triton_"):
        return "flash_attention_triton"
    return "flash_attention_3" if call.op.startswith("flash_attn_3::") else "flash_attention"


def _in_window(
    problem: _Problem, window: tuple[int | None, int | None], *, causal: bool
) -> tuple[_Problem, bool]:
    """What attention within a window comes to: for every query the keys that one sees in the mean,
    where they are fewer than without the window. `window` is the number of keys left and right of a
    query's own, the last query's being the last key; None or less than 0 for all of them. (The
    first rows see fewer, their tiles some more.)"""
    queries, keys = problem.seq_q, problem.seq_kv
    left, right = (None if side is None or side < 0 else side for side in window)
    later_queries = (queries - 1) / 2  # in the mean
    seen = keys - queries + later_queries if left is None else left
    if not causal:
        seen += later_queries if right is None else right
    if seen + 1 >= (keys - queries / 2 if causal else keys):
        return problem, causal
    return problem._replace(seq_kv=math.ceil(max(seen, 0)) + 1), False


@register_op("flash_attn::with_kvcache", "flash_attn_3::with_kvcache")
def flash_with_cache(
    call: OpSignature,
    *,
    query: TensorSpec,
    key_cache: TensorSpec,
    value_cache: TensorSpec,
    length: int,
    is_causal: bool,
    window_size_left: int,
    window_size_right: int,
    **others: Argument,
) -> list[Kernel]:
    """A step of decoding: `length` keys of the caches, the new ones among them."""
    whole = _sequence_first(query, key_cache, value_cache, None)._replace(seq_kv=length)
    window = (window_size_left, window_size_right)
    problem, causal = _in_window(whole, window, causal=is_causal)
    return _forward(problem, _flash(call), causal=causal)


@register_op("aten::_scaled_dot_product_efficient_attention")
def sdpa_efficient(
    call: OpSignature,
    *,
    query: TensorSpec,
    key: TensorSpec,
    value: TensorSpec,
    attn_bias: TensorSpec | None = None,
    is_causal: bool = False,
) -> list[Kernel]:
    """The memory-efficient (CUTLASS) kernel, which also reads the bias."""
    problem = _heads_first(query, key, value)
    return _forward(problem, "efficient_attention", causal=is_causal, bias=attn_bias)


@register_op("aten::_scaled_dot_product_efficient_attention_backward")
def sdpa_efficient_backward(
    call: OpSignature,
    *,
    query: TensorSpec,
    key: TensorSpec,
    value: TensorSpec,
    attn_bias: TensorSpec | None = None,
    grad_input_mask: tuple[bool, ...] = (),
    is_causal: bool = False,
    **others: Argument,
) -> list[Kernel]:
    """The memory-efficient kernel's backward; a wanted bias gradient is written at bias size."""
    kernels = _backward(
        _heads_first(query, key, value),
        "efficient_attention",
        causal=is_causal,
        bias=attn_bias,
        accumulates_query=False,
    )
    if attn_bias is None or not flags(grad_input_mask, 4)[3]:
        return kernels
    return kernels + _bias_gradient(query, key, attn_bias)


def _bias_gradient(query: TensorSpec, key: TensorSpec, bias: TensorSpec) -> list[Kernel]:
    """The gradient of the whole score matrix, summed to the shape of a broadcast bias."""
    scores = new_tensor(
        (query.shape[0], query.shape[1], query.shape[2], key.shape[2]), bias.dtype, "cuda"
    )
    if not scores.numel:
        return []
    if scores.num_bytes <= bias.num_bytes:
        return pointwise_kernel("attention_bias_backward", (), (scores,))
    return [
        memory_kernel(
            KernelClass.REDUCTION,
            "sum",
            reads=(scores,),
            writes=(bias,),
            rows=max(1, bias.num_bytes // max(1, scores.num_bytes // scores.numel)),
        )
    ]


#: custom_mask_type of _efficient_attention: 0 none, 1 causal from the top left, 2 from the bottom.
@register_op("aten::_efficient_attention_forward", "aten::_efficient_attention_backward")
def efficient(
    call: OpSignature,
    *,
    query: TensorSpec,
    key: TensorSpec,
    value: TensorSpec,
    bias: TensorSpec | None = None,
    cu_seqlens_q: TensorSpec | None = None,
    custom_mask_type: int = 0,
    **others: Argument,
) -> list[Kernel]:
    """The memory-efficient kernel on [batch, sequence, heads, head_dim]."""
    problem, causal = _sequence_first(query, key, value, cu_seqlens_q), custom_mask_type > 0
    name: Variant = "efficient_attention"
    if _is_backward(call):
        return _backward(problem, name, causal=causal, bias=bias, accumulates_query=False)
    return _forward(problem, name, causal=causal, bias=bias)


@register_op(
    "aten::_scaled_dot_product_cudnn_attention",
    "aten::_scaled_dot_product_cudnn_attention_backward",
    "aten::_cudnn_attention_forward",
    "aten::_cudnn_attention_backward",
    "aten::_scaled_dot_product_fused_attention_overrideable",
    "aten::_scaled_dot_product_fused_attention_overrideable_backward",
)
def sdpa_cudnn(
    call: OpSignature,
    math: MathMode,
    *,
    query: TensorSpec,
    key: TensorSpec,
    value: TensorSpec,
    attn_bias: TensorSpec | None = None,
    cum_seq_q: TensorSpec | None = None,
    is_causal: bool = False,
    **others: Argument,
) -> list[Kernel]:
    """cuDNN's fused attention; its backward has kernels around the main one, as others have."""
    if len(query.shape) == 4:
        problem = _heads_first(query, key, value)
    else:
        problem = _sequence_first(query, key, value, cum_seq_q)
    attend = _backward if _is_backward(call) else _forward
    return attend(problem, _chosen_before(math, attn_bias), causal=is_causal, bias=attn_bias)


#: The first version of torch whose wheels bring a cuDNN (9.15.1) that it prefers on Hopper and
#: Blackwell (check_prefer_cudnn_attention, ATen/native/transformers/cuda/sdp_utils.cpp). 2.5.0,
#: which did so too, was taken back after its bugs (PyTorch 138522).
_CUDNN_FIRST_SINCE = (2, 11)


def _chosen_before(math: MathMode, bias: TensorSpec | None) -> Variant:
    """What the version of torch that is priced runs where today's runs cuDNN: FlashAttention-2, or
    for a mask the memory-efficient kernel."""
    if math.torch >= _CUDNN_FIRST_SINCE:
        return "cudnn_attention"
    return "flash_attention" if bias is None else "efficient_attention"


def flex_attention(call: OpSignature, attention: tuple[int, ...], *, dtype: str) -> list[Kernel]:
    """The kernel that Inductor writes for torch's flex attention: of the blocks of scores only
    those that its mask keeps (torch/_inductor/kernel/flex).

    `attention`: batch, query heads, key heads, queries, keys, both head dimensions, blocks kept,
    all blocks, whether it is the backward. The kept ones count as spread evenly over the queries.
    """
    batch, heads, kv_heads, seq_q, seq_kv, head_dim, head_dim_v, visible, blocks, backward = (
        attention
    )
    if not min(attention[:7]):
        return []
    seen = max(1, min(seq_kv, round(seq_kv * visible / max(1, blocks))))
    kernel = Kernel.attention(
        batch,
        heads,
        kv_heads,
        seq_q,
        seen,
        head_dim,
        head_dim_v=head_dim_v,
        causal=False,
        dtype=dtype,
        backward=bool(backward),
        name="flex_attention",
    )
    item = DTYPE_BYTES[dtype]
    hidden = int(batch * kv_heads * (seq_kv - seen) * (head_dim + head_dim_v) * item)
    return [
        replace(
            kernel,
            name=call.op.partition("::")[2],
            bytes_read=kernel.bytes_read + hidden,
            bytes_written=kernel.bytes_written + hidden * bool(backward),
        )
    ]
