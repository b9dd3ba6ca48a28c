"""Sparse tensors are made, taken apart, moved and converted from one layout to another."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from neusight.predictors.errors import UnmappedOpError
from neusight.recording.call_stack import call_site
from neusight.recording.handlers.registry import Args, Kwargs, handles, overloads
from neusight.recording.handlers.sparse.pattern import (
    bounded,
    coalesced,
    known_index,
    new_index,
    row_pointers,
)
from neusight.recording.handlers.sparse.tensor import (
    BLOCKED,
    BY_ROW,
    COMPRESSED,
    SparseTensor,
    compressed,
    coordinates,
    launch,
    on_sparse,
    recorder_of,
    with_values,
)
from neusight.recording.recorder import Recorder, RecordingMode
from neusight.recording.tensor import ForecastTensor
from neusight.recording.values.invention import MASK_DENSITY

aten = torch.ops.aten


def _on_gpu(tensor: Any, device: Any) -> Any:
    return tensor.to(device) if not isinstance(tensor, ForecastTensor) else tensor


# -- construction ---------------------------------------------------------------------------------


@handles(aten._sparse_coo_tensor_with_dims_and_tensors.default)
def _from_coordinates(recorder: Recorder, func: Any, args: Args, kwargs: Kwargs) -> Any:
    size, indices, values = args[2:5]
    device = kwargs.get("device") or values.device
    dtype = kwargs.get("dtype") or values.dtype
    is_coalesced = bool(kwargs.get("is_coalesced", False))
    with RecordingMode(recorder):
        plain, kept = _on_gpu(indices, device), _on_gpu(values, device).to(dtype)
    return coordinates(plain, kept, size, is_coalesced=is_coalesced)


@handles(aten._sparse_coo_tensor_with_dims.default)
def _empty_of_dims(recorder: Recorder, func: Any, args: Args, kwargs: Kwargs) -> Any:
    return _empty(recorder, args[0], args[2], kwargs)


@handles(aten.sparse_coo_tensor.size)
def _empty_of_size(recorder: Recorder, func: Any, args: Args, kwargs: Kwargs) -> Any:
    return _empty(recorder, len(args[0]), args[0], kwargs)


def _empty(
    recorder: Recorder, num_sparse: int, size: Sequence[int], kwargs: Kwargs
) -> SparseTensor:
    device, dtype = kwargs.get("device"), kwargs.get("dtype") or torch.get_default_dtype()
    with RecordingMode(recorder):
        indices = torch.empty((num_sparse, 0), dtype=torch.int64, device=device)
        values = torch.empty((0, *size[num_sparse:]), dtype=dtype, device=device)
    return coordinates(indices, values, size, is_coalesced=True)


@handles(
    *overloads("sparse_compressed_tensor", "_sparse_compressed_tensor_unsafe"),
    *overloads("_sparse_csr_tensor_unsafe", "_sparse_csc_tensor_unsafe"),
    *overloads("_sparse_bsr_tensor_unsafe", "_sparse_bsc_tensor_unsafe"),
)
def _from_pointers(recorder: Recorder, func: Any, args: Args, kwargs: Kwargs) -> Any:
    pointers, plain, values = args[:3]
    name = func._schema.name
    layout = kwargs.get("layout") or next(
        layout for layout in COMPRESSED if str(layout)[7:] in name
    )
    device = kwargs.get("device") or values.device
    size = kwargs.get("size", args[3] if len(args) > 3 else None)
    with RecordingMode(recorder):
        if size is None:
            size = _size_of(layout, pointers, plain, values)
        pointers, plain, values = (_on_gpu(part, device) for part in (pointers, plain, values))
        values = values.to(kwargs.get("dtype") or values.dtype)
    return compressed(layout, pointers, plain, values, size)


def _size_of(layout: torch.layout, pointers: Any, plain: Any, values: Any) -> tuple[int, ...]:
    """As torch estimates it: the last index stands in the last row or column. It is read."""
    other = int(plain.max().item()) + 1 if plain.numel() else 0
    block = tuple(values.shape[1:3]) if layout in BLOCKED else (1, 1)
    sizes = (pointers.shape[-1] - 1, other) if layout in BY_ROW else (other, pointers.shape[-1] - 1)
    return sizes[0] * block[0], sizes[1] * block[1]


# -- parts ----------------------------------------------------------------------------------------


@on_sparse(aten._indices.default)
def _indices(func: Any, self: SparseTensor) -> Any:
    return self.parts.plain


@on_sparse(aten._values.default)
def _values(func: Any, self: SparseTensor) -> Any:
    return self.parts.values


@on_sparse(aten.indices.default)
def _checked_indices(func: Any, self: SparseTensor) -> Any:
    return _checked(self, "indices").parts.plain.detach()


@on_sparse(aten.values.default)
def _checked_values(func: Any, self: SparseTensor) -> Any:
    return _checked(self, "values").parts.values.detach()


def _checked(tensor: SparseTensor, wanted: str) -> SparseTensor:
    if not tensor.sure_coalesced:
        raise RuntimeError(
            f"Cannot get {wanted} on an uncoalesced tensor, please call .coalesce() first"
        )
    return tensor


#: Layouts as C++ names them; that of coordinates is "Sparse".
_NAMES = {layout: str(layout)[6:].title().replace("_", "") for layout in COMPRESSED}


def _of_layouts(name: str, allowed: Sequence[torch.layout]) -> None:
    function = getattr(aten, name).default

    @on_sparse(function)
    def part(func: Any, self: SparseTensor) -> Any:
        if self.layout not in allowed:
            raise RuntimeError(
                f"{name} expected sparse {'row' if 'crow' in name or 'col_' in name else 'column'} "
                f"compressed tensor layout but got {_NAMES.get(self.layout, 'Sparse')}"
            )
        is_pointer = name in ("crow_indices", "ccol_indices")
        return (self.parts.pointers if is_pointer else self.parts.plain).detach()  # type: ignore[union-attr]


for _name in ("crow_indices", "col_indices"):
    _of_layouts(_name, (torch.sparse_csr, torch.sparse_bsr))
for _name in ("ccol_indices", "row_indices"):
    _of_layouts(_name, (torch.sparse_csc, torch.sparse_bsc))


@on_sparse(aten._nnz.default)
def _nnz(func: Any, self: SparseTensor) -> int:
    return self.num_nonzeros


@on_sparse(aten.is_coalesced.default)
def _is_coalesced(func: Any, self: SparseTensor) -> bool:
    return self.sure_coalesced


@on_sparse(aten._coalesced_.default)
def _set_coalesced(func: Any, self: SparseTensor, coalesced: bool) -> Any:
    self.sure_coalesced = coalesced
    return self


@on_sparse(aten.sparse_dim.default, aten._dimI.default)
def _sparse_dim(func: Any, self: SparseTensor) -> int:
    return int(self.parts.plain.shape[0]) if self.parts.pointers is None else 2


@on_sparse(aten.dense_dim.default, aten._dimV.default)
def _dense_dim(func: Any, self: SparseTensor) -> int:
    if self.parts.pointers is None:
        return self.parts.values.dim() - 1
    batch = self.parts.pointers.dim() - 1
    return self.parts.values.dim() - batch - (3 if self.layout in BLOCKED else 1)


@on_sparse(aten.coalesce.default, aten._coalesce.default)
def _coalesce(func: Any, self: SparseTensor) -> SparseTensor:
    return coalesced(self)


@on_sparse(aten.detach.default, aten.alias.default)
def _detach(func: Any, self: SparseTensor) -> SparseTensor:
    return with_values(self, self.parts.values.detach())


@on_sparse(aten.clone.default)
def _clone(func: Any, self: SparseTensor, *, memory_format: Any = None) -> SparseTensor:
    plain, values, pointers = self.parts
    if pointers is None and _is_new_gradient():
        return coordinates(plain, values, self.shape)
    if pointers is None:
        return coordinates(
            plain.clone(), values.clone(), self.shape, is_coalesced=self.sure_coalesced
        )
    return compressed(self.layout, pointers.clone(), plain.clone(), values.clone(), self.shape)


def _is_new_gradient() -> bool:
    """Whether autograd keeps a gradient: on a GPU it takes the parts over where nothing else
    refers to them (accumulate_grad.h), which here Python always does."""
    node: Any = torch._C._current_autograd_node()
    return node is not None and type(node).__name__ == "AccumulateGrad"


@on_sparse(aten._has_same_storage_numel.default)
def _same_storage(func: Any, self: Any, other: Any) -> bool:
    return True


# -- moves ----------------------------------------------------------------------------------------


def copied_to_gpu(source: Any, kwargs: Kwargs) -> SparseTensor:
    """A sparse tensor of the CPU on the GPU, part by part."""
    device, dtype = kwargs["device"], kwargs.get("dtype")
    non_blocking = bool(kwargs.get("non_blocking", False))
    is_coo = source.layout is torch.sparse_coo
    parts = (source._indices(), source._values()) if is_coo else _compressed_parts(source)
    *indices, values = (part.detach().to(device, non_blocking=non_blocking) for part in parts)
    values = values if dtype is None else values.to(dtype)
    if is_coo:
        return coordinates(indices[0], values, source.shape, is_coalesced=source.is_coalesced())
    return compressed(source.layout, indices[0], indices[1], values, source.shape)


def _compressed_parts(source: torch.Tensor) -> tuple[torch.Tensor, ...]:
    if source.layout in BY_ROW:
        return source.crow_indices(), source.col_indices(), source.values()
    return source.ccol_indices(), source.row_indices(), source.values()


@on_sparse(aten._to_copy.default)
def _to_copy(func: Any, self: SparseTensor, **kwargs: Any) -> Any:
    device, dtype = kwargs.get("device"), kwargs.get("dtype")
    blocking = bool(kwargs.get("non_blocking", False))
    if device is not None and torch.device(device).type == "cpu":
        return _to_cpu(self, dtype, blocking)
    values = self.parts.values
    return with_values(_clone(func, self), values.to(dtype) if dtype else values.clone())


def _to_cpu(tensor: SparseTensor, dtype: Any, blocking: bool) -> torch.Tensor:
    plain = tensor.parts.plain.to("cpu", non_blocking=blocking)
    values = tensor.parts.values.to("cpu", dtype=dtype, non_blocking=blocking)
    if tensor.parts.pointers is None:
        return torch.sparse_coo_tensor(
            plain, values, tuple(tensor.shape), is_coalesced=tensor.sure_coalesced,
            check_invariants=False,
        )  # fmt: skip
    pointers = tensor.parts.pointers.to("cpu", non_blocking=blocking)
    return torch.sparse_compressed_tensor(
        pointers, plain, values, tuple(tensor.shape), layout=tensor.layout, check_invariants=False
    )


# -- from and to dense ----------------------------------------------------------------------------


@on_sparse(aten._to_dense.default, aten.to_dense.default)
def _to_dense(
    func: Any, self: SparseTensor, dtype: Any = None, masked_grad: Any = None
) -> ForecastTensor:
    recorder = recorder_of(self)
    values = self.parts.values
    out = torch.zeros(tuple(self.shape), dtype=dtype or values.dtype, device=self.device)
    given = {"plain": self.parts.plain, "pointers": self.parts.pointers, "values": values}
    launch(recorder, "aten::_to_dense", given, (out,))
    recorder.known.forget(out.untyped_storage()._cdata)
    assert isinstance(out, ForecastTensor)
    return out


@handles(*overloads("_to_sparse", "_to_sparse_csr", "_to_sparse_csc"))
def _from_dense(recorder: Recorder, func: Any, args: Args, kwargs: Kwargs) -> Any:
    """Of a dense tensor: `nonzero`, for whose number the host waits, and a gather."""
    dense = args[0]
    if func is aten._to_sparse.sparse_dim:
        return _dense_to_coo(recorder, dense, args[1])
    layout = _wanted_layout(func, kwargs)
    if layout in BLOCKED:
        return _dense_to_blocks(recorder, dense, layout, kwargs["blocksize"])
    coo = _dense_to_coo(recorder, dense, min(2, dense.dim()) if layout else dense.dim())
    return coo if layout in (None, torch.sparse_coo) else _compress(coo, layout)


@handles(*overloads("_to_sparse_bsr", "_to_sparse_bsc"))
def _from_dense_to_blocks(recorder: Recorder, func: Any, args: Args, kwargs: Kwargs) -> Any:
    layout = torch.sparse_bsr if "bsr" in func._schema.name else torch.sparse_bsc
    return _dense_to_blocks(recorder, args[0], layout, args[1])


def _wanted_layout(func: Any, kwargs: Kwargs) -> torch.layout | None:
    name = func._schema.name
    if name.endswith("_csr"):
        return torch.sparse_csr
    if name.endswith("_csc"):
        return torch.sparse_csc
    layout: torch.layout | None = kwargs.get("layout")
    return layout


def _dense_to_coo(recorder: Recorder, dense: Any, num_sparse: int) -> SparseTensor:
    shape = tuple(dense.shape)
    with recorder.mode.inside():
        mask = _pattern(recorder, dense, num_sparse)
        if mask is None:
            total = math.prod(shape[:num_sparse])
            number = max(1, int(total * MASK_DENSITY)) if total else 0
            bounded(recorder, f"so {MASK_DENSITY:.0%} of a dense tensor are taken to be ones")
            indices = recorder.new_tensor((num_sparse, number), torch.int64, dense)
        else:
            indices = new_index(recorder, mask.nonzero().t().contiguous(), dense)
    values = recorder.new_tensor((indices.shape[1], *shape[num_sparse:]), dense.dtype, dense)
    launch(recorder, "aten::_to_sparse", {"self": dense}, (indices, values))
    recorder.wait("nonzero")
    return coordinates(indices, values, shape, is_coalesced=True)


def _pattern(recorder: Recorder, dense: Any, num_sparse: int) -> torch.Tensor | None:
    """Where the tensor is not zero, if its values are known."""
    value = known_index(recorder, dense)
    if value is None:
        return None
    mask = value != 0
    return mask.flatten(num_sparse).any(-1) if mask.dim() > num_sparse else mask


def _dense_to_blocks(
    recorder: Recorder, dense: Any, layout: torch.layout, blocksize: Sequence[int]
) -> SparseTensor:
    rows, columns = (size // block for size, block in zip(dense.shape[-2:], blocksize, strict=True))
    with recorder.mode.inside():
        value = known_index(recorder, dense)
        if value is None:
            number = max(1, int(rows * columns * MASK_DENSITY))
            bounded(
                recorder, f"so {MASK_DENSITY:.0%} of a dense tensor's blocks are taken to be full"
            )
            plain = recorder.new_tensor((number,), torch.int64, dense)
            pointers = recorder.new_tensor(
                ((rows if layout in BY_ROW else columns) + 1,), torch.int64, dense
            )
        else:
            tiles = value.reshape(rows, blocksize[0], columns, blocksize[1]) != 0
            filled = tiles.any(3).any(1)
            filled = filled if layout in BY_ROW else filled.t()
            ends = torch.nn.functional.pad(filled.sum(1).cumsum(0), (1, 0))
            plain = new_index(recorder, filled.nonzero()[:, 1].contiguous(), dense)
            pointers = new_index(recorder, ends, dense)
    values = recorder.new_tensor((plain.shape[0], *blocksize), dense.dtype, dense)
    launch(recorder, "aten::_to_sparse", {"self": dense}, (pointers, plain, values))
    recorder.wait("nonzero")
    return compressed(layout, pointers, plain, values, dense.shape)


# -- from one sparse layout to another ------------------------------------------------------------


@on_sparse(
    *overloads("_to_sparse", "_to_sparse_csr", "_to_sparse_csc"),
    *overloads("to_sparse", "to_sparse_csr", "to_sparse_csc"),
)
def _convert(func: Any, self: SparseTensor, *args: Any, **kwargs: Any) -> SparseTensor:
    return converted(self, _wanted_layout(func, kwargs) or torch.sparse_coo)


def converted(tensor: SparseTensor, layout: torch.layout) -> SparseTensor:
    """The tensor in this layout."""
    if layout is tensor.layout:
        return tensor
    if layout is torch.sparse_coo:
        return _expand(tensor)
    return _compress(tensor if tensor.layout is torch.sparse_coo else _expand(tensor), layout)


def _compress(coo: SparseTensor, layout: torch.layout) -> SparseTensor:
    """COO to CSR (or CSC, which sorts by columns first)."""
    recorder = recorder_of(coo)
    if layout not in (torch.sparse_csr, torch.sparse_csc) or coo.parts.plain.shape[0] != 2:
        raise UnmappedOpError(
            f"A conversion at {call_site()} from torch.sparse_coo to {layout} is not forecast. "
            "Convert the dense tensor, or go over torch.sparse_csr."
        )
    sorted_coo = coalesced(coo if layout is torch.sparse_csr else _transposed(coo))
    indices = sorted_coo.parts.plain
    pointers = row_pointers(recorder, indices[0], sorted_coo.shape[0])
    plain = indices[1].clone()
    return compressed(layout, pointers, plain, sorted_coo.parts.values.clone(), coo.shape)


def _transposed(coo: SparseTensor) -> SparseTensor:
    indices = coo.parts.plain.flip(0)
    sizes = (coo.shape[1], coo.shape[0], *coo.shape[2:])
    return coordinates(indices, coo.parts.values, sizes)


def _expand(tensor: SparseTensor) -> SparseTensor:
    """A compressed layout to COO: the row of each non-zero is written out, and every element of a
    block is one (`sparse_compressed_to_sparse` of TensorConversions.cpp)."""
    recorder = recorder_of(tensor)
    plain, values, pointers = tensor.parts
    indices = recorder.new_tensor((2, plain.shape[0]), torch.int64, plain)
    given = {"pointers": pointers, "plain": plain}
    launch(recorder, "aten::_convert_indices_from_csr_to_coo", given, (indices,))
    with recorder.mode.inside():
        ends, others = known_index(recorder, pointers), known_index(recorder, plain)
        if ends is not None and others is not None and recorder.known.may_hold(indices):
            rows = torch.repeat_interleave(torch.arange(len(ends) - 1), ends.diff().long())
            pair = (rows, others.long()) if tensor.layout in BY_ROW else (others.long(), rows)
            recorder.known.set(indices, torch.stack(pair))
    if tensor.layout not in BLOCKED:
        is_sorted = tensor.layout in BY_ROW
        return coordinates(indices, values.clone(), tensor.shape, is_coalesced=is_sorted)
    elements = _elements_of_blocks(indices, values.shape[1:3])
    is_sorted = tensor.layout in BY_ROW and values.shape[1] == 1
    return coordinates(elements, values.flatten(0, 2), tensor.shape, is_coalesced=is_sorted)


def _elements_of_blocks(blocks: torch.Tensor, blocksize: Sequence[int]) -> torch.Tensor:
    """Coordinates of the elements of blocks, [2, blocks * elements of one], from the blocks' own,
    [2, blocks]."""
    rows, columns = (torch.arange(size, device=blocks.device) for size in blocksize)
    shape = (len(rows), len(columns))
    inside = torch.stack((rows[:, None].expand(shape), columns.expand(shape))).flatten(1)
    first = blocks * torch.tensor(blocksize, device=blocks.device)[:, None]
    return (first[..., None] + inside[:, None]).flatten(1)
