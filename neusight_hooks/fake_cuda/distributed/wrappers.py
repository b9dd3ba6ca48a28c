"""What data-parallel wrappers ask of other ranks, or of CUDA itself, outside of any collective."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
import torch.nn.parallel.distributed as parallel

from neusight.fake_cuda.import_hooks import when_imported
from neusight.fake_cuda.patching import Patches

if TYPE_CHECKING:
    from neusight.recording.recorder import Handler, Recorder

__all__ = ["install_wrappers", "synchronized_norm_handlers"]

aten = torch.ops.aten


class _Logger:
    """DistributedDataParallel's log, which times with events of CUDA."""

    def __init__(self, reducer: object) -> None:
        pass

    def __getattr__(self, name: str) -> Any:
        return lambda *args, **kwargs: None


def install_wrappers(patches: Patches) -> None:
    """DistributedDataParallel and distributed checkpoints do without other ranks."""

    def verified(*args: object, **kwargs: object) -> None:
        """The shapes of the others' parameters, which are those of this rank."""

    for module in (parallel, dist):
        patches.set(module, "_verify_param_shape_across_processes", verified)
    patches.set(dist, "Logger", _Logger)
    reducer: Any = vars(dist)["Reducer"]
    patches.set(reducer, "set_logger", lambda self, logger: None)
    when_imported(
        patches,
        "torch.distributed.checkpoint.default_planner",
        # One rank's parts do not fill the tensors of a checkpoint.
        lambda planner: patches.set(planner, "_validate_global_plan", lambda *args: []),
    )


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
