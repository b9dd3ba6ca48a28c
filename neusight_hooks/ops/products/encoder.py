"""The inference path of nn.MultiheadAttention and nn.TransformerEncoderLayer: one op each, which
launches projections, attention, norms and Linears (native/transformers/, torch 2.13)."""

from __future__ import annotations

from math import sqrt
from typing import NamedTuple

from neusight.ops.operands import (
    copy_kernel,
    itemsize,
    memory_kernel,
    new_tensor,
    output,
    pointwise_kernel,
    written_tensors,
)
from neusight.ops.products.gemm import linear_kernels, matmul_kernels, transposed
from neusight.ops.registry import register_op
from neusight.ops.rows.reduction import reduce_kernel
from neusight.predictors.kernel import Kernel, KernelClass
from neusight.recording.recording import Argument, MathMode, OpSignature, TensorSpec

#: Fused attention is taken where a head's width is a multiple of it (attention.cu).
_FUSED_MULTIPLE = 8
#: masked_softmax_cuda takes rows up to this in one kernel, longer ones after a fill (SoftMax.cu).
_MASKED_WIDTH = 1024


@register_op("aten::_transform_bias_rescale_qkv")
def transform_bias_rescale_qkv(
    call: OpSignature, *, qkv: TensorSpec, qkv_bias: TensorSpec
) -> list[Kernel]:
    """Splits a joint projection into q, k and v, adding the bias."""
    return [
        memory_kernel(
            KernelClass.ELEMENTWISE,
            "transform_bias_rescale_qkv",
            reads=(qkv, qkv_bias),
            writes=written_tensors(call),
        )
    ]


class SelfAttention(NamedTuple):
    """A self attention: source [batch, length, width], heads, weights [3 width, width] and
    [width, width], the mask where one is given, the lengths of a nested batch, whether the weights
    of attention are returned, and whether as their mean over the heads."""

    source: TensorSpec
    heads: int
    joint_weight: TensorSpec
    weight: TensorSpec
    mask: TensorSpec | None = None
    lengths: tuple[int, ...] = ()
    needs_weights: bool = False
    averages: bool = False

    @property
    def head_dim(self) -> int:
        return self.source.shape[-1] // max(1, self.heads)

    @property
    def padded(self) -> tuple[int, int]:
        """Sequences, and the length of the longest."""
        if self.lengths:
            return len(self.lengths), max(self.lengths)
        return self.source.shape[0], self.source.shape[1]

    @property
    def packed(self) -> tuple[int, int]:
        """Sequences, and the length of as many that are all alike and have as many scores."""
        if not self.lengths:
            return self.padded
        squares = sum(length * length for length in self.lengths)
        return len(self.lengths), round(sqrt(squares / len(self.lengths)))

    @property
    def is_fused(self) -> bool:
        """Whether attention is one kernel: no weights are asked for, no mask is given
        (attention.cu)."""
        is_plain = self.mask is None and not self.needs_weights
        return is_plain and self.head_dim % _FUSED_MULTIPLE == 0

    def tensor(self, *shape: int) -> TensorSpec:
        return new_tensor(shape, self.source.dtype, self.source.device)


def _project(
    source: TensorSpec, weight: TensorSpec, math: MathMode, *, bias: bool = True
) -> tuple[list[Kernel], TensorSpec]:
    """A Linear on [..., in]: its kernels and its output. An activation is in its epilogue too."""
    sizes = (*source.shape[:-1], weight.shape[0])
    result = new_tensor(sizes, source.dtype, source.device)
    return linear_kernels(source, weight, result, math, bias=bias), result


def _fused(given: SelfAttention, math: MathMode) -> list[Kernel]:
    """A Linear, flash attention or, in fp32, the memory-efficient one, a Linear."""
    kernels, _ = _project(given.source, given.joint_weight, math)
    batch, length = given.packed
    if batch * length * given.heads * given.head_dim:
        attention = Kernel.attention(
            batch,
            given.heads,
            given.heads,
            length,
            length,
            given.head_dim,
            causal=False,
            dtype=given.source.dtype,
            name="efficient_attention" if itemsize(given.source.dtype) > 2 else "flash_attention",
        )
        kernels.append(attention)
    return kernels + _project(given.source, given.weight, math)[0]


def _unfused(given: SelfAttention, math: MathMode) -> list[Kernel]:
    """A product, the bias and the split, scores, softmax, context, its copy, a Linear. Of a nested
    batch the split pads the rows."""
    kernels, joint = _project(given.source, given.joint_weight, math, bias=False)
    batch, length = given.padded
    rows = given.tensor(batch * given.heads, length, given.head_dim)
    scores = given.tensor(batch * given.heads, length, length)
    kernels += pointwise_kernel("transform_bias_rescale_qkv", (joint,), (joint,))
    kernels += matmul_kernels(rows, transposed(rows), scores, math)
    kernels += _softmax(given, scores)
    kernels += matmul_kernels(scores, rows, rows, math)
    by_head = given.tensor(batch, given.heads, length, given.head_dim)
    order = (0, 2, 1, 3)
    permuted = by_head._replace(
        shape=tuple(by_head.shape[i] for i in order), stride=tuple(by_head.stride[i] for i in order)
    )
    kernels += copy_kernel(permuted, given.tensor(*permuted.shape))
    return kernels + _project(given.source, given.weight, math)[0]


def _softmax(given: SelfAttention, scores: TensorSpec) -> list[Kernel]:
    """A softmax that knows the mask, or, of long rows, one after a fill of what is masked."""
    if not scores.numel:
        return []
    masks = (given.mask,) if given.mask is not None else ()
    is_long = scores.shape[-1] > _MASKED_WIDTH
    fill = pointwise_kernel("masked_fill", (scores, *masks), (scores,)) if masks and is_long else []
    softmax = memory_kernel(
        KernelClass.SOFTMAX,
        "masked_softmax" if masks and not is_long else "softmax",
        reads=(scores,) if is_long else (scores, *masks),
        writes=(scores,),
        rows=scores.numel // scores.shape[-1],
        width=scores.shape[-1],
        variant="softmax",
    )
    return [*fill, softmax]


def _average(given: SelfAttention) -> list[Kernel]:
    """The weights' mean over the heads: a sum and a division."""
    batch, length = given.padded
    scores = given.tensor(batch, given.heads, length, length)
    mean = given.tensor(batch, length, length)
    return [*reduce_kernel("sum", (scores,), (mean,)), *pointwise_kernel("div_", (mean,), (mean,))]


def _kernels(given: SelfAttention, math: MathMode) -> list[Kernel]:
    if given.is_fused:
        return _fused(given, math)
    return _unfused(given, math) + (_average(given) if given.averages else [])


def whole_lengths(value: Argument) -> tuple[int, ...]:
    """The lengths of a nested batch, none of another."""
    items = value if isinstance(value, tuple) else ()
    return tuple(item for item in items if isinstance(item, int))


@register_op("aten::_native_multi_head_attention")
def native_multi_head_attention(
    call: OpSignature,
    math: MathMode,
    *,
    query: TensorSpec,
    num_head: int,
    qkv_weight: TensorSpec,
    proj_weight: TensorSpec,
    mask: TensorSpec | None = None,
    need_weights: bool = True,
    average_attn_weights: bool = True,
    **others: Argument,
) -> list[Kernel]:
    """nn.MultiheadAttention's inference path, of a nested batch as in an encoder's layer.

    Weights that are asked for, or a mask, keep it from fused attention.
    """
    lengths = whole_lengths(others.get("lengths"))
    averages = need_weights and average_attn_weights
    given = SelfAttention(
        query, num_head, qkv_weight, proj_weight, mask, lengths, need_weights, averages
    )
    return _kernels(given, math)


@register_op("aten::_transformer_encoder_layer_fwd")
def transformer_encoder_layer(
    call: OpSignature,
    math: MathMode,
    *,
    src: TensorSpec,
    num_heads: int,
    qkv_weight: TensorSpec,
    proj_weight: TensorSpec,
    ffn_weight_1: TensorSpec,
    ffn_weight_2: TensorSpec,
    mask: TensorSpec | None = None,
    **others: Argument,
) -> list[Kernel]:
    """nn.TransformerEncoderLayer's inference path: attention, two norms, two Linears, of which the
    first has the activation in its epilogue. Of a nested batch, whose tokens lie one behind the
    other, attention is that of sequences of these `lengths` (transformer.cpp)."""
    lengths = whole_lengths(others.get("lengths"))
    given = SelfAttention(src, num_heads, qkv_weight, proj_weight, mask, lengths)
    norm = _layer_norm(src, output(call))
    add = pointwise_kernel("add", (src, src), (src,))
    up, hidden = _project(src, ffn_weight_1, math)
    down, _ = _project(hidden, ffn_weight_2, math)
    return [*_kernels(given, math), *add, norm, *up, *down, *add, norm]


def _layer_norm(source: TensorSpec, result: TensorSpec) -> Kernel:
    return memory_kernel(
        KernelClass.NORMALIZATION,
        "layer_norm",
        reads=(source,),
        writes=(result,),
        rows=source.numel // max(1, source.shape[-1]),
        width=source.shape[-1],
        variant="layer_norm",
    )
