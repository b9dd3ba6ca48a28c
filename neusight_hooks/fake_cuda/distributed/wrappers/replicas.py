"""What DistributedDataParallel and ZeRO's optimizer ask of other ranks outside of a collective."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.parallel.distributed as parallel

from neusight.fake_cuda.import_hooks import when_imported
from neusight.fake_cuda.patching import Patches


class _Logger:
    """DistributedDataParallel's log, which times with events of CUDA."""

    def __init__(self, reducer: object) -> None:
        pass

    def _get_ddp_logging_data(self) -> Any:
        """What it has logged, which Lightning reads."""
        return SimpleNamespace(strs_map={}, ints_map={})

    def __getattr__(self, name: str) -> Any:
        return lambda *args, **kwargs: None


def install_replicas(patches: Patches) -> None:
    """Replicas do without the shapes, the timers and the optimizer states of other ranks."""

    for module in (parallel, dist):  # the shapes of the others' parameters are this rank's
        patches.set(module, "_verify_param_shape_across_processes", lambda *args, **kwargs: None)
    patches.set(dist, "Logger", _Logger)
    reducer: Any = vars(dist)["Reducer"]
    patches.set(reducer, "set_logger", lambda self, logger: None)
    when_imported(
        patches,
        "torch.distributed.optim.zero_redundancy_optimizer",
        lambda module: patches.set(
            module.ZeroRedundancyOptimizer, "consolidate_state_dict", _consolidate
        ),
    )


def _consolidate(optimizer: Any, to: int = 0) -> None:
    """ZeroRedundancyOptimizer.consolidate_state_dict: states of other ranks are as this rank's, of
    their parameters' sizes. The broadcasts that bring them are not recorded."""
    own = optimizer.optim.state_dict()
    optimizer._all_state_dicts = (
        [_state_of(groups, own) for groups in optimizer._partition_parameters()]
        if optimizer.rank == to
        else []
    )


def _state_of(groups: list[dict[str, Any]], own: dict[str, Any]) -> dict[str, Any]:
    """What another rank's optimizer says of its parameters, states on the CPU."""
    pattern: dict[str, Any] = next(iter(own["state"].values()), {})
    state: dict[int, dict[str, Any]] = {}
    numbered = []
    for group, like in zip(groups, own["param_groups"], strict=True):
        first = len(state)
        for parameter in group["params"]:
            state[len(state)] = {name: _like(value, parameter) for name, value in pattern.items()}
        numbered.append({**like, "params": list(range(first, len(state)))})
    return {"state": state if pattern else {}, "param_groups": numbered}


def _like(value: Any, parameter: torch.Tensor) -> Any:
    if not isinstance(value, torch.Tensor) or not value.dim():
        return value
    return torch.empty(parameter.shape, dtype=value.dtype)
