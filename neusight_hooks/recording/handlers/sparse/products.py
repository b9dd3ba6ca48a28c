"""Products with sparse matrices, as cuSPARSE computes them."""

from __future__ import annotations

from typing import Any

import torch

from neusight.recording.handlers.sparse.construction import converted
from neusight.recording.handlers.sparse.pattern import (
    bounded,
    coalesced,
    known_index,
    new_index,
    row_pointers,
)
from neusight.recording.handlers.sparse.tensor import (
    SparseTensor,
    compressed,
    is_sparse,
    launch,
    on_sparse,
    recorder_of,
    with_values,
)
from neusight.recording.recorder import Recorder

aten = torch.ops.aten


def _check_shapes(first: Any, second: Any) -> None:
    if first.shape[-1] != second.shape[-2 if second.dim() > 1 else -1]:
        raise RuntimeError(
            "mat1 and mat2 shapes cannot be multiplied "
            f"({first.shape[0]}x{first.shape[1]} and {'x'.join(map(str, second.shape))})"
        )


@on_sparse(aten._sparse_mm.default, aten.mm.default)
def _mm(func: Any, self: Any, mat2: Any) -> Any:
    _check_shapes(self, mat2)
    if is_sparse(self) and is_sparse(mat2):
        return _sparse_by_sparse(self, mat2)
    if not is_sparse(self):
        if mat2.layout is torch.sparse_coo:
            raise RuntimeError(
                "addmm: mat2 of layout Sparse with a strided mat1 is not supported on CUDA; "
                "multiply the transposed matrices the other way round"
            )
        return _spmm(mat2.t(), self.t(), op="aten::mm").t()
    return _spmm(self, mat2, op="aten::mm")


@on_sparse(aten.addmm.default, aten._sparse_addmm.default)
def _addmm(func: Any, self: Any, mat1: Any, mat2: Any, *, beta: Any = 1, alpha: Any = 1) -> Any:
    _check_shapes(mat1, mat2)
    if is_sparse(mat1) and is_sparse(mat2):
        product = _sparse_by_sparse(mat1, mat2)
        return product if beta == 0 else self * beta + product * alpha
    if not is_sparse(mat1):
        return _mm(func, mat1, mat2) * alpha + self * beta
    return _spmm(mat1, mat2, added=None if beta == 0 else self, op="aten::addmm")


@on_sparse(aten.addmm_.default)
def _addmm_in_place(func: Any, self: Any, mat1: Any, mat2: Any, **kwargs: Any) -> Any:
    return self.copy_(_addmm(func, self, mat1, mat2, **kwargs))


@on_sparse(aten.mv.default)
def _mv(func: Any, self: SparseTensor, vec: Any) -> Any:
    _check_shapes(self, vec)
    return _spmm(self, vec.unsqueeze(1), op="aten::mv").squeeze(1)


@on_sparse(aten.addmv.default)
def _addmv(
    func: Any, self: Any, mat: SparseTensor, vec: Any, *, beta: Any = 1, alpha: Any = 1
) -> Any:
    added = self.expand(mat.shape[0]).unsqueeze(1) if beta != 0 else None
    return _spmm(mat, vec.unsqueeze(1), added=added, op="aten::mv").squeeze(1)


@on_sparse(aten.matmul.default)
def _matmul(func: Any, self: Any, other: Any) -> Any:
    if other.dim() == 1:
        return _mv(func, self, other)
    if self.dim() == 1:
        return _mv(func, other.t(), self)
    return _mm(func, self, other) if self.dim() == other.dim() == 2 else _bmm(func, self, other)


@on_sparse(aten.bmm.default)
def _bmm(func: Any, self: Any, mat2: Any) -> Any:
    """A batch of COO matrices by dense ones: a product each (bmm_out_sparse_cuda)."""
    if not is_sparse(self) or is_sparse(mat2):
        raise RuntimeError("bmm_sparse: Tensor 'mat2' must be dense and 'self' sparse")
    recorder = recorder_of(self)
    whole = coalesced(self)
    batch, rows, columns = self.shape[0], self.shape[1], mat2.shape[2]
    out = recorder.new_tensor((batch, rows, columns), self.dtype, mat2)
    given = {"plain": whole.parts.plain, "values": whole.parts.values, "dense": mat2, "rows": rows}
    launch(recorder, "aten::bmm", given, (out,))
    recorder.wait("bmm")
    return out


def _spmm(sparse: SparseTensor, dense: Any, *, op: str, added: Any = None) -> Any:
    """A matrix of rows with few elements by a dense one."""
    recorder = recorder_of(sparse)
    if sparse.dtype != dense.dtype:
        raise RuntimeError(
            f"addmm: Expected mat1 and mat2 to have the same dtype, but got {sparse.dtype} and "
            f"{dense.dtype}"
        )
    matrix = sparse
    if sparse.layout is torch.sparse_coo:
        matrix = coalesced(sparse)
        index = matrix.parts.plain
        pointers = row_pointers(recorder, index[0], sparse.shape[0], is_short=True)
        plain = index[1].to(torch.int32)
    else:
        plain, pointers = sparse.parts.plain, sparse.parts.pointers
    out = recorder.new_tensor((sparse.shape[0], dense.shape[1]), dense.dtype, dense)
    given = {
        "pointers": pointers, "plain": plain, "values": matrix.parts.values, "dense": dense,
        "added": added, "by_column": sparse.layout in (torch.sparse_csc, torch.sparse_bsc),
    }  # fmt: skip
    launch(recorder, op, given, (out,))
    return out


@on_sparse(aten._sparse_sparse_matmul.default)
def _sparse_by_sparse(*given: Any) -> SparseTensor:
    """cuSPARSE's SpGEMM: it estimates, counts (the host waits), and computes."""
    first, second = (tensor for tensor in given if isinstance(tensor, SparseTensor))
    recorder = recorder_of(first)
    layout = first.layout
    rows, columns = first.shape[0], second.shape[1]
    csr = [converted(tensor, torch.sparse_csr) for tensor in (first, second)]
    with recorder.mode.inside():
        pattern = _product_pattern(recorder, *csr)
        if pattern is None:
            number, num_products = _expected(csr[0], csr[1])
            bounded(recorder, "so that of a product of sparse matrices is that of random ones")
            plain = recorder.new_tensor((number,), torch.int64, csr[0].parts.plain)
            pointers = recorder.new_tensor((rows + 1,), torch.int64, plain)
        else:
            pointers, plain = (new_index(recorder, p, csr[0].parts.plain) for p in pattern[:2])
            num_products = pattern[2]
    values = recorder.new_tensor((plain.shape[0],), first.dtype, first.parts.values)
    arguments = {
        "plain": csr[0].parts.plain, "values": csr[0].parts.values,
        "other_plain": csr[1].parts.plain, "other_values": csr[1].parts.values,
        "num_products": num_products,
    }  # fmt: skip
    launch(recorder, "aten::_sparse_sparse_matmul", arguments, (pointers, plain, values))
    recorder.wait("_sparse_sparse_matmul")
    out = compressed(torch.sparse_csr, pointers, plain, values, (rows, columns))
    return converted(out, layout) if layout is torch.sparse_coo else out


def _product_pattern(
    recorder: Recorder, first: SparseTensor, second: SparseTensor
) -> tuple[torch.Tensor, torch.Tensor, int] | None:
    """Pointers and indices of the product, and how many products of two numbers it takes."""
    known = [
        known_index(recorder, part)
        for tensor in (first, second)
        for part in (tensor.parts.pointers, tensor.parts.plain)
    ]
    if any(part is None for part in known):
        return None
    pointers, plain, other_pointers, other_plain = (
        part.long() for part in known if part is not None
    )
    num_products = int(other_pointers.diff()[plain].sum())
    if num_products > _MOST_PRODUCTS:
        return None
    ones = [torch.ones(index.shape[0]) for index in (plain, other_plain)]
    matrices = (
        torch.sparse_csr_tensor(p, i, o, tuple(t.shape), check_invariants=False)
        for p, i, o, t in zip(
            (pointers, other_pointers), (plain, other_plain), ones, (first, second), strict=True
        )
    )
    left, right = matrices
    product = (left.to_sparse() @ right.to_sparse()).coalesce().to_sparse_csr()
    return product.crow_indices(), product.col_indices(), num_products


#: Products of two numbers up to which the pattern of a product is computed (a second of CPU).
_MOST_PRODUCTS = 2**24


def _expected(first: SparseTensor, second: SparseTensor) -> tuple[int, int]:
    """Non-zeros of the product of two matrices whose elements lie anywhere, and how many products
    of two numbers it takes."""
    rows, inner, columns = first.shape[0], first.shape[1], second.shape[1]
    num_products = first.num_nonzeros * second.num_nonzeros // max(1, inner)
    places = max(1, rows * columns)
    empty = (1.0 - 1.0 / places) ** num_products if places > 1 else 0.0
    return max(1, min(num_products, int(places * (1.0 - empty)))), num_products


@on_sparse(aten.sparse_sampled_addmm.default)
def _sampled_addmm(
    func: Any, self: SparseTensor, mat1: Any, mat2: Any, *, beta: Any = 1, alpha: Any = 1
) -> SparseTensor:
    """Only those elements of a dense product that the pattern has (cuSPARSE's SDDMM)."""
    recorder = recorder_of(self)
    if self.layout is not torch.sparse_csr:
        raise RuntimeError(
            f"sampled_addmm: Expected self to have sparse csr layout, but got {self.layout}"
        )
    values = recorder.new_tensor(tuple(self.parts.values.shape), self.dtype, mat1)
    given = {
        "plain": self.parts.plain, "pointers": self.parts.pointers, "mat1": mat1, "mat2": mat2,
        "added": self.parts.values,
    }  # fmt: skip
    launch(recorder, "aten::sparse_sampled_addmm", given, (values,))
    return with_values(self, values)


@on_sparse(aten._sparse_mm_reduce_impl.default)
def _reduced(func: Any, self: SparseTensor, other: Any, reduce: str) -> Any:
    raise NotImplementedError(
        "Could not run 'aten::_sparse_mm_reduce_impl' with arguments from the 'SparseCsrCUDA' "
        "backend. torch.sparse.mm with a `reduce` has a kernel for the CPU only (torch 2.13); "
        "index_select and scatter_reduce (or index_add) of the rows do the same on a GPU."
    )
