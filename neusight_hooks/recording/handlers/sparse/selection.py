"""Sparse tensors are turned, cut, joined and selected from: mostly by their indices."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch

from neusight.recording.handlers.sparse.construction import converted
from neusight.recording.handlers.sparse.pattern import bounded, known_index, new_index
from neusight.recording.handlers.sparse.tensor import (
    BLOCKED,
    SparseTensor,
    compressed,
    coordinates,
    on_sparse,
    recorder_of,
    with_values,
)

aten = torch.ops.aten

_OTHER_WAY = {
    torch.sparse_csr: torch.sparse_csc,
    torch.sparse_csc: torch.sparse_csr,
    torch.sparse_bsr: torch.sparse_bsc,
    torch.sparse_bsc: torch.sparse_bsr,
}


@on_sparse(aten.t.default)
def _t(func: Any, self: SparseTensor) -> SparseTensor:
    return _transpose(func, self, 0, 1) if self.dim() > 1 else with_values(self, self.parts.values)


@on_sparse(aten.transpose.int)
def _transpose(func: Any, self: SparseTensor, dim0: int, dim1: int) -> SparseTensor:
    order = list(range(self.dim()))
    first, second = dim0 % self.dim(), dim1 % self.dim()
    order[first], order[second] = order[second], order[first]
    return _permute(func, self, order)


@on_sparse(aten.permute.default)
def _permute(func: Any, self: SparseTensor, dims: Sequence[int]) -> SparseTensor:
    order = [dim % self.dim() for dim in dims]
    sizes = [self.shape[dim] for dim in order]
    plain, pointers = self.parts.plain, self.parts.pointers
    values: Any = self.parts.values
    if order == sorted(order):
        copied: SparseTensor = self.clone()  # type: ignore[assignment]  # of its own type
        return copied
    if pointers is not None:
        values = values.transpose(-2, -1) if self.layout in BLOCKED else values
        return compressed(_OTHER_WAY[self.layout], pointers, plain, values, sizes)
    num_sparse = plain.shape[0]
    if any(dim >= num_sparse for dim in order[:num_sparse]):
        raise RuntimeError(
            "transpose: transposing across sparse and dense dimensions is not supported"
        )
    rows = plain.index_select(0, torch.tensor(order[:num_sparse], device=self.device))
    inner = [0, *(dim - num_sparse + 1 for dim in order[num_sparse:])]
    return coordinates(rows, values.permute(inner).clone(), sizes)


@on_sparse(aten.unsqueeze.default)
def _unsqueeze(func: Any, self: SparseTensor, dim: int) -> SparseTensor:
    dim = dim % (self.dim() + 1)
    plain, values = self.parts.plain, self.parts.values
    sizes = [*self.shape[:dim], 1, *self.shape[dim:]]
    if dim > plain.shape[0]:
        inner = values.unsqueeze(dim - plain.shape[0] + 1)
        return coordinates(plain, inner, sizes)
    zeros = torch.zeros((1, plain.shape[1]), dtype=plain.dtype, device=self.device)
    return coordinates(torch.cat([plain[:dim], zeros, plain[dim:]]), values, sizes)


@on_sparse(aten.cat.default)
def _cat(func: Any, tensors: Sequence[SparseTensor], dim: int = 0) -> SparseTensor:
    """Indices one behind the other, each moved by the sizes before it (cat_sparse)."""
    first = tensors[0]
    dim = dim % first.dim()
    sizes = list(first.shape)
    sizes[dim] = sum(tensor.shape[dim] for tensor in tensors)
    if dim >= first.parts.plain.shape[0]:
        raise NotImplementedError(
            "torch.cat of sparse tensors along a dense dimension is not forecast; join their "
            "values() instead."
        )
    indices, before = [], 0
    for tensor in tensors:
        indices.append(_moved(tensor.parts.plain, dim, before) if before else tensor.parts.plain)
        before += tensor.shape[dim]
    values = torch.cat([tensor.parts.values for tensor in tensors])
    return coordinates(torch.cat(indices, 1), values, sizes)


def _moved(index: Any, dim: int, offset: int) -> Any:
    moved = index.clone()
    moved[dim].add_(offset)
    return moved


@on_sparse(aten.stack.default)
def _stack(func: Any, tensors: Sequence[SparseTensor], dim: int = 0) -> SparseTensor:
    parts: list[Any] = [tensor.unsqueeze(dim) for tensor in tensors]
    return _cat(func, parts, dim)


@on_sparse(aten.select.int)
def _select(func: Any, self: SparseTensor, dim: int, index: int) -> Any:
    """Of a COO tensor the elements with this coordinate: the host waits for their number."""
    coo = converted(self, torch.sparse_coo)
    dim = dim % coo.dim()
    number = coo.parts.plain.shape[0]
    sizes = [size for at, size in enumerate(coo.shape) if at != dim]
    if dim >= number:
        inner = coo.parts.values.select(dim - number + 1, index)
        return coordinates(coo.parts.plain, inner, sizes)
    plain, values = _kept(coo, dim, [index % coo.shape[dim]])
    left = [at for at in range(number) if at != dim]
    if not left:
        return values.sum(0)
    rows = plain.index_select(0, torch.tensor(left, device=coo.device))
    return coordinates(rows, values, sizes)


@on_sparse(aten.index_select.default)
def _index_select(func: Any, self: SparseTensor, dim: int, index: Any) -> SparseTensor:
    coo = converted(self, torch.sparse_coo)
    dim = dim % coo.dim()
    sizes = list(coo.shape)
    sizes[dim] = index.shape[0]
    number = coo.parts.plain.shape[0]
    if dim >= number:
        inner = coo.parts.values.index_select(dim - number + 1, index)
        return coordinates(coo.parts.plain, inner, sizes)
    recorder = recorder_of(coo)
    with recorder.mode.inside():
        wanted = known_index(recorder, index)
    chosen = None if wanted is None else wanted.tolist()
    plain, values = _kept(coo, dim, chosen, share=index.shape[0] / max(1, coo.shape[dim]))
    return coordinates(plain, values, sizes)


@on_sparse(aten.narrow_copy.default)
def _narrow(func: Any, self: SparseTensor, dim: int, start: int, length: int) -> SparseTensor:
    index = torch.arange(start, start + length, device=self.device)
    return _index_select(func, self, dim, index)


def _kept(
    coo: SparseTensor, dim: int, wanted: Sequence[int] | None, share: float = 0.0
) -> tuple[Any, Any]:
    """The columns of coordinates that have one of these there (each as often as it is wanted), and
    their values."""
    recorder = recorder_of(coo)
    plain = coo.parts.plain
    with recorder.mode.inside():
        index = known_index(recorder, plain)
        if index is None or wanted is None:
            share = share if wanted is None else len(wanted) / max(1, coo.shape[dim])
            bounded(recorder, "so rows of a sparse tensor are taken to be equally full")
            size = max(1, min(coo.num_nonzeros, int(coo.num_nonzeros * share)))
            places = recorder.new_tensor((size,), torch.int64, plain)
            columns = None
        else:
            found = [(index[dim] == value).nonzero().flatten() for value in wanted]
            at = torch.cat(found) if found else index[0, :0]
            places = new_index(recorder, at, plain)
            columns = index[:, at].clone()
            for place, part in enumerate(_pieces(found)):
                columns[dim, part] = place
    (plain[dim] == 0).nonzero()  # what a GPU launches to find them, and its wait
    kept: Any = plain.index_select(1, places)
    if columns is not None:
        with recorder.mode.inside():
            recorder.known.set(kept, columns)
    return kept, coo.parts.values.index_select(0, places)


def _pieces(found: Sequence[torch.Tensor]) -> list[slice]:
    ends = [0]
    for piece in found:
        ends.append(ends[-1] + piece.numel())
    return [slice(*pair) for pair in pairwise(ends)]
