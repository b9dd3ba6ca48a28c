"""Indices beyond what they index, where their values are known: a GPU stops the program there."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import torch

from neusight.recording.tensor import ForecastTensor
from neusight.recording.values.known import KnownValues

aten = torch.ops.aten


class _Index(NamedTuple):
    """Indices of a dimension of that size. Negative ones count from its end or are wrong; `ignored`
    is right in any case."""

    indices: Any
    dimension: int
    size: int
    may_be_negative: bool = False
    ignored: int | None = None


_Indices = Callable[[Sequence[Any]], Iterator[_Index]]


def _along(args: Sequence[Any]) -> Iterator[_Index]:
    table, dimension, indices = args[:3]
    sizes = tuple(table.shape) or (1,)
    yield _Index(indices, dimension % len(sizes), sizes[dimension])


def _rows(args: Sequence[Any]) -> Iterator[_Index]:
    yield _Index(args[1], 0, args[0].shape[0])


def _classes(args: Sequence[Any]) -> Iterator[_Index]:
    dimension = min(1, args[0].dim() - 1)
    yield _Index(args[1], dimension, args[0].shape[dimension], ignored=args[4])


def _advanced(args: Sequence[Any]) -> Iterator[_Index]:
    for dimension, indices in enumerate(args[1]):
        if indices is not None and indices.dtype not in (torch.bool, torch.uint8):
            yield _Index(indices, dimension, args[0].shape[dimension], may_be_negative=True)


#: Ops whose second argument is a dimension and the third one its indices.
_ALONG: tuple[Any, ...] = (
    aten.gather, aten.index_select, aten.scatter, aten.scatter_, aten.scatter_add,
    aten.scatter_add_, aten.scatter_reduce, aten.scatter_reduce_, aten.index_add, aten.index_add_,
    aten.index_copy, aten.index_copy_, aten.index_fill, aten.index_fill_, aten.index_reduce,
    aten.index_reduce_,
)  # fmt: skip

#: Ops that take indices, by overload (aten/src/ATen/native/cuda: Indexing, ScatterGatherKernel,
#: Embedding, EmbeddingBag, Loss and NLLLoss2d assert them).
INDEXING: dict[Any, _Indices] = {
    **{
        getattr(op, overload): _along
        for op in _ALONG
        for overload in op.overloads()
        if "dimname" not in overload  # composites of the others
    },
    aten.embedding.default: _rows,
    aten._embedding_bag.default: _rows,
    aten._embedding_bag_forward_only.default: _rows,
    aten.nll_loss_forward.default: _classes,
    aten.nll_loss2d_forward.default: _classes,
    aten.index.Tensor: _advanced,
    aten.index_put.default: _advanced,
    aten.index_put_.default: _advanced,
    aten._index_put_impl_.default: _advanced,
}


def out_of_bounds(
    func: Any,
    args: Sequence[Any],
    known: KnownValues,
    inside: Callable[[], AbstractContextManager[None]],
) -> str:
    """Which index of an op in `INDEXING` is beyond what it indexes; empty where none is, or none is
    known. Within `inside` no dispatch mode is active."""
    for index in INDEXING[func](args):
        if known.is_sure(index.indices) and index.indices.numel():
            with inside():
                wrong = _wrong_value(index, known)
            if wrong is not None:
                return (
                    f"index {wrong} is out of bounds for dimension {index.dimension} with size "
                    f"{index.size}"
                )
    return ""


def _wrong_value(index: _Index, known: KnownValues) -> int | None:
    indices = index.indices
    values = known.of(indices) if isinstance(indices, ForecastTensor) else indices
    first = -index.size if index.may_be_negative else 0
    least, most = torch.aminmax(values)
    if first <= int(least) and int(most) < index.size:
        return None
    wrong = values[(values < first) | (values >= index.size)]
    if index.ignored is not None:
        wrong = wrong[wrong != index.ignored]
    return int(wrong[0]) if wrong.numel() else None
