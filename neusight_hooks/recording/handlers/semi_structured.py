"""Matrices of which two of four elements in a row are kept (2:4): pruned, packed, masked."""

from __future__ import annotations

import importlib
from typing import Any

import torch

from neusight.recording.handlers.registry import Args, Kwargs, allocates
from neusight.recording.recorder import Recorder

aten = torch.ops.aten

#: What a warp packs, rows by columns, and a thread of it (SparseSemiStructuredPack.h, torch 2.13).
_WARP = (32, 64)
_THREAD = 8

#: Sixteenths of a dense matrix that are left: half of it, and which half that was (two bits for
#: each kept element of 16 or 32 bits, four for one of 8; cuSPARSELtOps.cpp, 2.13).
_SIXTEENTHS = {torch.int8: 10, torch.float8_e4m3fn: 10}
_MOST_SIXTEENTHS = 9

#: Dense elements that one element of CUTLASS's metadata reports, and its type, by bytes of those.
_METADATA = {1: (32, torch.int32), 2: (16, torch.int16), 4: (8, torch.int16)}


def _rounded(size: int, multiple: int) -> int:
    return -(-size // multiple) * multiple


@allocates(aten._cslt_compress.default)
def _compress(recorder: Recorder, args: Args, kwargs: Kwargs) -> Any:
    """cuSPARSELt's one buffer, of as many rows as the matrix."""
    _know_product(recorder)
    dense = args[0]
    sixteenths = _SIXTEENTHS.get(dense.dtype, _MOST_SIXTEENTHS)
    shape = (dense.shape[0], dense.shape[1] * sixteenths // 16)
    return recorder.new_tensor(shape, dense.dtype, dense)


def _know_product(recorder: Recorder) -> None:
    """torch declares cuSPARSELt's product when it is first called, with a fake kernel that forgets
    a default (torch/sparse/semi_structured.py, 2.13); a program packs before it multiplies."""
    module: Any = importlib.import_module("torch.sparse.semi_structured")
    declare = getattr(module, "_ensure_cusparselt_mm_registered", None)
    if declare is not None:
        declare()
        product = torch.ops.semi_structured.cusparselt_mm.default
        recorder.handlers[product] = _product


def _product(recorder: Recorder, func: Any, args: Args, kwargs: Kwargs) -> Any:
    """The product, turned where the dense side was."""
    dense, out_features, is_turned = args[0], args[3], args[6]
    width = dense.shape[0 if len(args) > 8 and args[8] else 1]
    shape = (width, out_features) if is_turned else (out_features, width)
    out = recorder.new_tensor(shape, dense.dtype, dense)
    recorder.record_handled(func, args, kwargs, out)
    return out


@allocates(aten._to_sparse_semi_structured.default)
def _pack(recorder: Recorder, args: Args, kwargs: Kwargs) -> Any:
    """CUTLASS's half matrix and its metadata."""
    dense = args[0]
    rows, columns = dense.shape
    reported, dtype = _METADATA[dense.element_size()]
    return (
        recorder.new_tensor((rows, columns // 2), dense.dtype, dense),
        recorder.new_tensor((rows, columns // reported), dtype, dense),
    )


@allocates(aten._sparse_semi_structured_tile.default)
def _tile(recorder: Recorder, args: Args, kwargs: Kwargs) -> Any:
    """A matrix pruned both ways: packed, packed transposed, and a mask for gradients
    (SparseSemiStructuredTile.cu, torch 2.13)."""
    dense = args[0]
    if dense.dtype not in (torch.float16, torch.bfloat16):
        raise RuntimeError(
            "_sparse_semi_structured_tile: expected a matrix of float16 or bfloat16, but got "
            f"{dense.dtype}"
        )
    if dense.shape[1] % _WARP[0]:
        raise RuntimeError("Number of cols should be multiple of 32")
    _know_product(recorder)
    use_cutlass = kwargs.get("use_cutlass", args[2] if len(args) > 2 else True)
    pack = _packed_for_cutlass if use_cutlass else _packed_for_cusparselt
    rows, columns = dense.shape
    mask = (
        _rounded(rows, _WARP[0]) // _THREAD,
        _rounded(columns, _WARP[1]) // _THREAD,
        _THREAD,
    )
    return (
        *pack(recorder, dense, rows, columns),
        *pack(recorder, dense, columns, rows),
        recorder.new_tensor(mask, torch.uint8, dense),
    )


def _packed_for_cutlass(recorder: Recorder, dense: Any, rows: int, columns: int) -> tuple[Any, Any]:
    height, width = _rounded(rows, _WARP[0]), _rounded(columns, _WARP[1])
    packed = recorder.new_tensor((height, width // 2), dense.dtype, dense)
    metadata = recorder.mode.new_tensor(
        (height, 2, width // 32), (2, 1, 2 * height), torch.int16, dense._fake_device
    )
    return packed, metadata


def _packed_for_cusparselt(
    recorder: Recorder, dense: Any, rows: int, columns: int
) -> tuple[Any, Any]:
    if rows % 128 or columns % 128:
        raise RuntimeError("Only supports rows/cols multiples of 128")
    values = rows * columns // 2
    whole = recorder.new_tensor((values + rows * columns // 16,), dense.dtype, dense)
    with recorder.mode.inside():
        metadata = whole[values:].view(rows // 128, columns // 32, 256)
    return whole, metadata


@allocates(aten._sparse_semi_structured_apply.default)
def _apply(recorder: Recorder, args: Args, kwargs: Kwargs) -> Any:
    """Another matrix packed by that mask, and packed transposed."""
    dense = args[0]
    rows, columns = (_rounded(s, m) for s, m in zip(dense.shape, _WARP, strict=True))
    return (
        recorder.new_tensor((rows, columns // 2), dense.dtype, dense),
        recorder.new_tensor((columns, rows // 2), dense.dtype, dense),
    )


@allocates(aten._sparse_semi_structured_apply_dense.default)
def _apply_dense(recorder: Recorder, args: Args, kwargs: Kwargs) -> Any:
    """Another matrix with zeros where the mask has them."""
    return recorder.new_tensor(tuple(args[0].shape), args[0].dtype, args[0])
