"""xFormers: memory-efficient attention and its biases, SwiGLU. Attention goes where its dispatcher
sends it without FlashAttention-3: FlashAttention-2 for 16 bits on Ampere and newer without a bias
tensor, else its own kernels, which torch has too."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, islice
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from neusight.stubs.shared.gating import silu_product
from neusight.stubs.stub_ops import counted, names

_FLASH_DTYPES = (torch.float16, torch.bfloat16)
_FLASH_OLDEST_MAJOR = 8
_FLASH_LARGEST_HEAD = 256

#: custom_mask_type of torch's memory-efficient kernels.
_NO_MASK, _FROM_TOP_LEFT, _FROM_BOTTOM_RIGHT = 0, 1, 2


class AttentionBias:
    """What is added to the scores without being written out."""


class LowerTriangularMask(AttentionBias):
    """Causal, counted from the top left."""

    def add_bias(self, bias: Tensor) -> LowerTriangularMaskWithTensorBias:
        return LowerTriangularMaskWithTensorBias(bias)


class LowerTriangularFromBottomRightMask(LowerTriangularMask):
    """Causal, counted from the bottom right."""


class LowerTriangularMaskWithTensorBias(LowerTriangularMask):
    """Causal, with a tensor added."""

    def __init__(self, bias: Tensor) -> None:
        self.bias = bias


class SeqLenInfo(NamedTuple):
    """Lengths of sequences that lie behind each other."""

    lengths: tuple[int, ...]

    @property
    def max_seqlen(self) -> int:
        return max(self.lengths)

    def bounds(self, device: torch.device) -> Tensor:
        """Where each begins and the last ends."""
        ends = list(accumulate(self.lengths, initial=0))
        return torch.tensor(ends, dtype=torch.int32, device=device)


@dataclass
class BlockDiagonalMask(AttentionBias):
    """Sequences of several lengths, none of which sees another."""

    q_seqinfo: SeqLenInfo
    k_seqinfo: SeqLenInfo
    batch_sizes: Sequence[int] | None = None

    @classmethod
    def from_seqlens(
        cls, q_seqlen: Iterable[int], kv_seqlen: Iterable[int] | None = None, **others: Any
    ) -> Any:
        queries = SeqLenInfo(tuple(q_seqlen))
        return cls(queries, queries if kv_seqlen is None else SeqLenInfo(tuple(kv_seqlen)))

    @classmethod
    def from_tensor_list(cls, tensors: Sequence[Tensor]) -> tuple[Any, Tensor]:
        """Of the lengths of these tensors, and all of them behind each other."""
        mask = cls.from_seqlens(t.shape[1] for t in tensors for _ in range(t.shape[0]))
        mask.batch_sizes = [tensor.shape[0] for tensor in tensors]
        flat = [tensor.reshape(1, -1, *tensor.shape[2:]) for tensor in tensors]
        return mask, torch.cat(flat, dim=1)

    def split(self, tensor: Tensor) -> list[Tensor]:
        sizes = self.batch_sizes or [1] * len(self.q_seqinfo.lengths)
        rest = iter(self.q_seqinfo.lengths)
        lengths = [sum(islice(rest, size)) for size in sizes]
        pieces: Any = torch.split(tensor, lengths, dim=1)
        return [
            piece.reshape(size, -1, *tensor.shape[2:])
            for size, piece in zip(sizes, pieces, strict=True)
        ]

    def make_causal(self) -> Any:
        return BlockDiagonalCausalMask(self.q_seqinfo, self.k_seqinfo, self.batch_sizes)


@dataclass
class BlockDiagonalCausalMask(BlockDiagonalMask):
    """The same, each sequence causal."""


class _Case(NamedTuple):
    """An attention as the kernels take it."""

    bias: Tensor | None = None
    mask: int = _NO_MASK
    lengths: tuple[SeqLenInfo, SeqLenInfo] | None = None


def _case_of(attn_bias: Any) -> _Case:
    if attn_bias is None or isinstance(attn_bias, Tensor):
        return _Case(attn_bias)
    if isinstance(attn_bias, BlockDiagonalMask):
        causal = isinstance(attn_bias, BlockDiagonalCausalMask)
        lengths = (attn_bias.q_seqinfo, attn_bias.k_seqinfo)
        return _Case(mask=_FROM_TOP_LEFT if causal else _NO_MASK, lengths=lengths)
    if isinstance(attn_bias, LowerTriangularFromBottomRightMask):
        return _Case(mask=_FROM_BOTTOM_RIGHT)
    if isinstance(attn_bias, LowerTriangularMask):
        return _Case(getattr(attn_bias, "bias", None), mask=_FROM_TOP_LEFT)
    raise NotImplementedError(f"attn_bias of type {type(attn_bias).__name__} has no stub")


@counted("xformers")
def memory_efficient_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_bias: Any = None,
    p: float = 0.0,
    scale: float | None = None,
    *,
    op: Any = None,
    output_dtype: torch.dtype | None = None,
) -> Tensor:
    """Attention of [batch, sequence, heads, width]; without heads, or with groups of them, too."""
    shape, case = query.shape, _case_of(attn_bias)
    if query.dim() == 3:
        query, key, value = (tensor.unsqueeze(2) for tensor in (query, key, value))
    if query.dim() == 5:
        query, key, value = (tensor.flatten(2, 3) for tensor in (query, key, value))
    takes_flash = (
        case.bias is None
        and query.dtype in _FLASH_DTYPES
        and torch.cuda.get_device_capability()[0] >= _FLASH_OLDEST_MAJOR
        and max(query.shape[-1], value.shape[-1]) <= _FLASH_LARGEST_HEAD
    )
    attend = _flash if takes_flash else _own
    return attend(query, key, value, case, p, scale).reshape(*shape[:-1], value.shape[-1])


def _bounds(case: _Case, query: Tensor, key: Tensor) -> tuple[Any, Any, int, int]:
    if case.lengths is None:
        return None, None, query.shape[1], key.shape[1]
    of_q, of_k = case.lengths
    device = query.device
    return of_q.bounds(device), of_k.bounds(device), of_q.max_seqlen, of_k.max_seqlen


def _flash(
    query: Tensor, key: Tensor, value: Tensor, case: _Case, p: float, scale: float | None
) -> Tensor:
    bounds = _bounds(case, query, key)
    if case.lengths is not None:
        query, key, value = (tensor.squeeze(0) for tensor in (query, key, value))
    attend: Any = torch.ops.aten._flash_attention_forward
    is_causal = case.mask != _NO_MASK
    result: Tensor = attend(query, key, value, *bounds, p, is_causal, False, scale=scale)[0]
    return result


def _own(
    query: Tensor, key: Tensor, value: Tensor, case: _Case, p: float, scale: float | None
) -> Tensor:
    bias = case.bias
    if bias is not None and bias.dim() == 3:  # one for each batch and head together
        bias = bias.view(query.shape[0], -1, *bias.shape[1:])
    tensors = (query, key, value, bias, *_bounds(case, query, key))
    attend: Any = torch.ops.aten._efficient_attention_forward
    result: Tensor = attend(*tensors, p, case.mask, torch.is_grad_enabled(), scale=scale)[0]
    return result


# -- SwiGLU ----------------------------------------------------------------------------------------

_silu_product = silu_product("xformers")


@counted("xformers")
def swiglu(
    x: Tensor,
    w1: Tensor,
    b1: Tensor | None,
    w2: Tensor,
    b2: Tensor | None,
    w3: Tensor,
    b3: Tensor | None,
    *,
    op: Any = None,
) -> Tensor:
    """Two products, silu of one times the other in one kernel, and the third."""
    return F.linear(_silu_product(F.linear(x, w1, b1), F.linear(x, w2, b2)), w3, b3)


class SwiGLU(nn.Module):
    """The same with its weights; the first two products are one."""

    @counted("xformers", "SwiGLU")
    def __init__(
        self,
        in_features: int,
        hidden_features: int,
        out_features: int | None = None,
        bias: bool = True,
        *,
        _pack_weights: bool = True,
    ) -> None:
        super().__init__()
        self.w12 = nn.Linear(in_features, 2 * hidden_features, bias=bias)
        self.w3 = nn.Linear(hidden_features, out_features or in_features, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        first, second = self.w12(x).chunk(2, dim=-1)
        out: Tensor = self.w3(_silu_product(first, second))
        return out


def unbind(x: Tensor, dim: int) -> tuple[Tensor, ...]:
    return x.unbind(dim)


_BIASES = names(
    AttentionBias,
    BlockDiagonalCausalMask,
    BlockDiagonalMask,
    LowerTriangularFromBottomRightMask,
    LowerTriangularMask,
    LowerTriangularMaskWithTensorBias,
)
_ATTENTION = names(memory_efficient_attention)

MODULES: dict[str, dict[str, Any]] = {
    "xformers": {},
    "xformers.ops": {
        **_ATTENTION,
        **_BIASES,
        **names(SwiGLU, swiglu, unbind, AttentionMask=AttentionBias),
    },
    "xformers.ops.fmha": {**_ATTENTION, **_BIASES},
    "xformers.ops.fmha.attn_bias": _BIASES,
}
