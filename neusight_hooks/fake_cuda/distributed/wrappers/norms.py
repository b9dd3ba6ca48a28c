"""SyncBatchNorm's ops, which only a GPU has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from neusight.recording.recorder import Handler, Recorder

aten = torch.ops.aten


def synchronized_norm_handlers() -> dict[Any, Handler]:
    """SyncBatchNorm's ops, for which torch has no fake kernels."""
    return {
        aten.batch_norm_stats.default: _statistics,
        aten.batch_norm_gather_stats_with_counts.default: _gathered_statistics,
        aten.batch_norm_elemt.default: _like_the_input,
        aten.batch_norm_backward_reduce.default: _reduced_gradients,
        aten.batch_norm_backward_elemt.default: _like_the_input,
    }


def _statistics(
    recorder: Recorder, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Any:
    data = args[0]
    return _recorded(recorder, func, args, kwargs, [(data, (data.shape[1],))] * 2)


def _gathered_statistics(
    recorder: Recorder, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Any:
    means = args[1]
    return _recorded(recorder, func, args, kwargs, [(means, (means.shape[-1],))] * 2)


def _reduced_gradients(
    recorder: Recorder, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Any:
    mean = args[2]
    return _recorded(recorder, func, args, kwargs, [(mean, tuple(mean.shape))] * 4)


def _recorded(
    recorder: Recorder,
    func: Any,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    outputs: Sequence[tuple[Any, tuple[int, ...]]],
) -> Any:
    """FP32 outputs of these shapes."""
    out = tuple(recorder.new_tensor(shape, torch.float32, like) for like, shape in outputs)
    recorder.record_handled(func, args, kwargs, out)
    return out


def _like_the_input(
    recorder: Recorder, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Any:
    data = args[0]
    out = recorder.new_tensor(tuple(data.shape), data.dtype, data)
    recorder.record_handled(func, args, kwargs, out)
    return out
