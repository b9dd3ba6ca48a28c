"""Ops without fake kernels in torch, whose inputs determine the shapes of what they return."""

from __future__ import annotations

from typing import Any

import torch

from neusight.recording.handlers.registry import Args, Kwargs, allocates, handles
from neusight.recording.recorder import Recorder, RecordingMode
from neusight.recording.tensor import ForecastTensor

aten = torch.ops.aten


@allocates(aten.geqrf.default)
def _geqrf(recorder: Recorder, args: Args, kwargs: Kwargs) -> Any:
    """A matrix of the same shape, and a factor for each of its reflectors."""
    matrix = args[0]
    *batch, rows, columns = matrix.shape
    factors = recorder.new_tensor((*batch, min(rows, columns)), matrix.dtype, matrix)
    return (_by_columns(recorder, tuple(matrix.shape), rows, matrix), factors)


@allocates(aten.ormqr.default)
def _ormqr(recorder: Recorder, args: Args, kwargs: Kwargs) -> Any:
    """A product, as the matrix that is multiplied."""
    return _by_columns(recorder, tuple(args[2].shape), args[2].shape[-2], args[2])


@allocates(aten.linalg_lstsq.default)
def _lstsq(recorder: Recorder, args: Args, kwargs: Kwargs) -> Any:
    """As CUDA's only driver, gels, which says neither rank nor singular values; the residuals of a
    system with more rows than unknowns, taken to be of full rank."""
    left, right = args[0], args[1]
    rows, unknowns = left.shape[-2:]
    is_vector = right.dim() == left.dim() - 1
    columns = 1 if is_vector else right.shape[-1]
    broadcast: Any = torch.broadcast_shapes  # torch leaves it without annotations
    batch = broadcast(left.shape[:-2], right.shape[: -1 if is_vector else -2])
    # The right side is overwritten: its first rows are what was looked for.
    solution = _by_columns(recorder, (*batch, unknowns, columns), max(rows, unknowns), left)
    residuals = (*batch, columns) if rows > unknowns else (0,)
    return (
        recorder.fake_kernels.run(aten.squeeze.dim, (solution, -1), {}) if is_vector else solution,
        recorder.new_tensor(residuals, left.dtype, left),
        recorder.new_tensor((0,), torch.int64, left),
        recorder.new_tensor((0,), left.dtype, left),
    )


@allocates(
    aten.fake_quantize_per_tensor_affine_cachemask.default,
    aten._fake_quantize_per_tensor_affine_cachemask_tensor_qparams.default,
    aten.fake_quantize_per_channel_affine_cachemask.default,
    aten._fused_moving_avg_obs_fq_helper.default,
)
def _fake_quantized(recorder: Recorder, args: Args, kwargs: Kwargs) -> Any:
    """What was quantized and back, and where it was within bounds."""
    return tuple(_like(recorder, args[0], dtype) for dtype in (args[0].dtype, torch.bool))


@allocates(
    aten._fake_quantize_learnable_per_tensor_affine.default,
    aten._fake_quantize_learnable_per_channel_affine.default,
)
def _learnable(recorder: Recorder, args: Args, kwargs: Kwargs) -> Any:
    """A tensor like the first argument."""
    return _like(recorder, args[0], args[0].dtype)


@allocates(aten._batch_norm_with_update.default)
def _batch_norm(recorder: Recorder, args: Args, kwargs: Kwargs) -> Any:
    """The output, a mean and a deviation for each channel, and what cuDNN would keep (nothing)."""
    data = args[0]
    statistics = torch.float32 if data.dtype in (torch.float16, torch.bfloat16) else data.dtype
    return (
        _like(recorder, data, data.dtype),
        *(recorder.new_tensor((data.shape[1],), statistics, data) for _ in range(2)),
        recorder.new_tensor((0,), torch.uint8, data),
    )


@handles(aten._grouped_mm.default)
def _grouped_mm(recorder: Recorder, func: Any, args: Args, kwargs: Kwargs) -> Any:
    """torch's fake kernel takes bfloat16 alone; for others a GPU reads where the groups end, and
    multiplies one after the other (ATen/native/cuda/GroupedBlas.cpp, 2.13)."""
    left, right = args[0], args[1]
    if left.dtype not in (torch.float16, torch.float32) or right.dtype != left.dtype:
        return recorder.run_known(func, args, kwargs)
    ends = args[2] if len(args) > 2 else kwargs.get("offs")
    for matrix in (left, right):
        _check_rows_are_aligned(matrix)
    shape = _grouped_shape(left, right, ends)
    out = recorder.fake_kernels.run(
        aten.empty_strided.default,
        (shape, padded_strides(shape, left.dtype)),
        {"dtype": left.dtype, "device": left.device},
    )
    recorder.record_handled(func, args, kwargs, out)
    recorder.wait("_grouped_mm")
    return out


@handles(aten._embedding_bag_backward.default)
def _embedding_bag_backward(recorder: Recorder, func: Any, args: Args, kwargs: Kwargs) -> Any:
    """A dense gradient is one op; a sparse one is the gradient's rows (EmbeddingBag.cpp)."""
    if not args[9]:
        return recorder.run_known(func, args, kwargs)
    grad, indices, offsets, offset2bag, bag_size = args[:5]
    with RecordingMode(recorder):
        return aten._embedding_bag_sparse_backward.default(
            grad, indices, offsets, offset2bag, bag_size, *args[6:9], *args[10:], **kwargs
        )  # fmt: skip


@allocates(aten._thnn_fused_gru_cell.default)
def _gru_cell(recorder: Recorder, args: Args, kwargs: Kwargs) -> Any:
    """The new state, and five values of each unit for the backward (ATen/native/cuda/RNN.cu)."""
    state = args[2]
    batch, units = state.shape
    kept = recorder.new_tensor((batch, _GRU_KEEPS * units), state.dtype, state)
    return (recorder.new_tensor(state.shape, state.dtype, state), kept)


@allocates(aten._thnn_fused_gru_cell_backward.default)
def _gru_cell_backward(recorder: Recorder, args: Args, kwargs: Kwargs) -> Any:
    """Gradients of both kinds of gates, of the state and, where there are, of both biases."""
    gradient, kept, has_bias = args
    batch, gates = kept.shape[0], 3 * kept.shape[1] // _GRU_KEEPS
    shapes = [(batch, gates)] * 2 + [tuple(gradient.shape)] + [(gates,)] * (2 if has_bias else 0)
    found = [recorder.new_tensor(shape, gradient.dtype, gradient) for shape in shapes]
    return (*found, *[None] * (5 - len(found)))


#: Values of a unit that a GRU cell keeps: its three gates, the state and the hidden part of a gate.
_GRU_KEEPS = 5


@allocates(aten.multilabel_margin_loss_forward.default)
def _multilabel_margin_loss(recorder: Recorder, args: Args, kwargs: Kwargs) -> Any:
    """A loss for each sample, or one; torch's decomposition gives a lone sample an axis."""
    data, target, reduction = args
    shape = () if reduction or data.dim() < 2 else (data.shape[0],)
    loss = recorder.new_tensor(shape, data.dtype, data)
    return (loss, recorder.new_tensor(target.shape, data.dtype, data))


def _by_columns(
    recorder: Recorder, shape: tuple[int, ...], rows: int, like: ForecastTensor
) -> ForecastTensor:
    """Matrices as LAPACK has them: columns of so many rows one after the other."""
    strides = [1, rows]
    step = rows * shape[-1]
    for size in reversed(shape[:-2]):
        strides.insert(0, max(1, step))
        step *= size
    return recorder.mode.new_tensor(shape, tuple(strides), like.dtype, like._fake_device)


#: What the rows of grouped products are aligned to, bytes (GroupedMMUtils.h, 2.13).
_ROW_BYTES = 16


def _check_rows_are_aligned(matrix: ForecastTensor) -> None:
    """In CUDA's words."""
    row = max(matrix.stride()[-2:])
    if row * matrix.element_size() % _ROW_BYTES:
        raise RuntimeError(f"strides should be multiple of {_ROW_BYTES} bytes")


def _grouped_shape(
    left: ForecastTensor, right: ForecastTensor, ends: ForecastTensor | None
) -> tuple[int, ...]:
    """Rows of a group each, columns of a group each, or products summed over a group each."""
    is_flat = (left.dim() == 2, right.dim() == 2)
    if any(is_flat) and ends is None:
        raise RuntimeError("Have to provide offsets if there is a 2d matrix")
    if not all(is_flat) and left.shape[-1] != right.shape[-2]:
        raise RuntimeError("contraction dimension of mat_a and mat_b must match")
    groups = [t.shape[0] for t, flat in zip((left, right), is_flat, strict=True) if not flat]
    groups += [] if ends is None else [ends.shape[0]]
    if len(set(groups)) != 1:
        raise RuntimeError("matrix batch sizes have to match")
    product = (left.shape[-2], right.shape[-1])
    return product if is_flat[0] != is_flat[1] else (groups[0], *product)


def padded_strides(shape: tuple[int, ...], dtype: torch.dtype) -> tuple[int, ...]:
    """Those of a grouped product of this shape."""
    each = _ROW_BYTES // dtype.itemsize
    row = -(-shape[-1] // each) * each
    return (shape[-2] * row, row, 1)[-len(shape) :]


def _like(recorder: Recorder, tensor: ForecastTensor, dtype: torch.dtype) -> ForecastTensor:
    out = recorder.fake_kernels.run(aten.empty_like.default, (tensor,), {"dtype": dtype})
    assert isinstance(out, ForecastTensor)
    return out
