"""The sparsity pattern of tensors: exact where the indices are known, else bounded, with a note."""

from __future__ import annotations

from typing import Any

import torch

from neusight.recording.handlers.sparse.tensor import SparseTensor, coordinates, launch, recorder_of
from neusight.recording.recorder import Recorder
from neusight.recording.tensor import ForecastTensor


def bounded(recorder: Recorder, words: str) -> None:
    """Notes that a number of non-zeros is not known."""
    recorder.warn_once(f"the number of non-zeros is not known, {words}")


def known_index(recorder: Recorder, index: Any) -> torch.Tensor | None:
    """The values of indices, where they are known; invented ones have no pattern."""
    if isinstance(index, ForecastTensor):
        is_known = index in recorder.known and not recorder.known.is_invented(index)
        return recorder.known.of(index) if is_known else None
    return index if isinstance(index, torch.Tensor) else None


def new_index(recorder: Recorder, value: torch.Tensor, like: Any) -> ForecastTensor:
    """Indices on the GPU whose values are these."""
    index = recorder.new_tensor(tuple(value.shape), value.dtype, like)
    if recorder.known.may_hold(index):
        recorder.known.set_from(like, index, value)
    return index


def flat_index(index: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    """One number for each column of coordinates."""
    flat = torch.zeros(index.shape[1], dtype=torch.int64)
    for coordinate, size in zip(index, shape, strict=False):
        flat = flat * size + coordinate
    return flat


def coalesced(tensor: SparseTensor) -> SparseTensor:
    """The tensor with every coordinate once, in order (_coalesce_sparse_cuda in
    SparseCUDATensor.cu); the host waits for their number."""
    if tensor.sure_coalesced:
        return tensor
    recorder = recorder_of(tensor)
    indices, values = tensor.parts.plain, tensor.parts.values
    with recorder.mode.inside():
        index = known_index(recorder, indices)
        if tensor.num_nonzeros < 2:
            merged = indices
        elif index is None:
            merged = recorder.new_tensor(tuple(indices.shape), torch.int64, indices)
            bounded(recorder, "so coalescing is taken to merge none")
        else:
            merged = new_index(recorder, _merged(index, tuple(tensor.shape)), indices)
    if merged is indices:  # torch copies what has less than two
        return coordinates(indices.clone(), values.clone(), tensor.shape, is_coalesced=True)
    summed = recorder.new_tensor((merged.shape[1], *values.shape[1:]), values.dtype, values)
    given = {"indices": indices, "values": values}
    launch(recorder, "aten::_coalesce", given, (merged, summed))
    recorder.wait("coalesce")
    return coordinates(merged, summed, tensor.shape, is_coalesced=True)


def _merged(index: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    """Each column of coordinates once, in row-major order."""
    flat = torch.unique(flat_index(index, shape))
    columns: list[torch.Tensor] = []
    for size in reversed(shape[: index.shape[0]]):
        columns.insert(0, flat % max(1, size))
        flat = flat // max(1, size)
    return torch.stack(columns) if columns else index[:, :1]


def row_pointers(recorder: Recorder, rows: Any, num_rows: int, *, is_short: bool = False) -> Any:
    """Where the non-zeros of each row begin, of the sorted row of each (coo to csr)."""
    dtype = torch.int32 if is_short else torch.int64
    pointers = recorder.new_tensor((num_rows + 1,), dtype, rows)
    launch(recorder, "aten::_convert_indices_from_coo_to_csr", {"rows": rows}, (pointers,))
    with recorder.mode.inside():
        known = known_index(recorder, rows)
        if known is not None and recorder.known.may_hold(pointers):
            counts = torch.bincount(known.reshape(-1), minlength=num_rows)[:num_rows]
            ends = torch.nn.functional.pad(counts.cumsum(0), (1, 0))
            recorder.known.set(pointers, ends.to(dtype))
    return pointers
