"""Checkpoints of sharded models: each rank plans, writes and reads its own part."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from neusight.fake_cuda.import_hooks import when_imported
from neusight.fake_cuda.patching import Patches
from neusight.recording.call_stack import call_site
from neusight.recording.tensor import ForecastTensor


def install_sharded_checkpoints(patches: Patches, warn: Callable[[str], None]) -> None:
    """torch.distributed.checkpoint, ShardedTensor and FSDP's states do without other ranks."""
    for name, patch in (
        ("torch.distributed.checkpoint.utils", _plan_alone),
        ("torch.distributed.checkpoint.default_planner", _accept_parts),
        ("torch.distributed.checkpoint._state_dict_stager", _stage_without_data),
        ("torch.distributed.checkpoint.state_dict", _know_what_is_broadcast),
        ("torch.distributed._shard.sharded_tensor.utils", _accept_shards),
        ("torch.distributed._shard.sharding_spec.api", _accept_shards),
    ):
        when_imported(patches, name, partial(patch, patches))
    fsdp = "torch.distributed.fsdp.fully_sharded_data_parallel"
    when_imported(patches, fsdp, partial(_keep_optimizer_states, patches, warn))


def _plan_alone(patches: Patches, module: Any) -> None:
    """A plan is made of this rank's part; no other rank coordinates, and nothing is scattered."""
    wrapper = module._DistWrapper
    make = wrapper.__init__

    def init(self: Any, group: Any, use_dist: bool, coordinator_rank: int) -> None:
        make(self, group, use_dist, coordinator_rank)
        if self.use_dist:
            self.use_dist, self.is_coordinator = False, True

    patches.set(wrapper, "__init__", init)


def _accept_parts(patches: Patches, module: Any) -> None:
    """One rank's parts do not fill the tensors of a checkpoint."""
    patches.set(module, "_validate_global_plan", lambda *args: [])


def _accept_shards(patches: Patches, module: Any) -> None:
    """What all ranks say of their shards is what this one says of its own."""
    for name in ("validate_non_overlapping_shards_metadata", "check_tensor"):
        if hasattr(module, name):
            patches.set(module, name, lambda *args, **kwargs: None)


def _stage_without_data(patches: Patches, module: Any) -> None:
    """An asynchronous save copies each tensor to the CPU, and writes that later."""
    stager = module.StateDictStager
    offload = stager._offload_tensor

    def offload_tensor(self: Any, x: Any, memo: Any, non_blocking: bool = False) -> Any:
        if not isinstance(x, ForecastTensor):
            return offload(self, x, memo, non_blocking)
        staged = x.detach().to("cpu", non_blocking=non_blocking)
        memo[id(x)] = staged
        return staged

    patches.set(stager, "_offload_tensor", offload_tensor)


class _Broadcast(NamedTuple):
    """A tensor that rank 0 broadcasts: torch.distributed._state_dict_utils._TensorInfo."""

    size: torch.Size
    dtype: torch.dtype


def _know_what_is_broadcast(patches: Patches, module: Any) -> None:
    """Rank 0 says which tensors it broadcasts: those that this rank has."""
    real = module._broadcast_state_dict
    utilities = real.__globals__

    def broadcast_state_dict(
        full_state_dict: dict[str, Any],
        local_state_dict: dict[str, Any],
        device: torch.device,
        pg: Any = None,
        strict: bool = False,
        cpu_offload: bool = False,
    ) -> None:
        if dist.get_rank() == 0:
            real(full_state_dict, local_state_dict, device, pg, strict, cpu_offload)
            return
        reported: list[Any] = [_described(local_state_dict)]
        dist.broadcast_object_list(reported, src=0, group=pg)
        for key, value in reported[0].items():
            if hasattr(value, "size"):
                utilities["_broadcast_tensors"]({key: value}, local_state_dict, [key], device, pg)
                if cpu_offload:
                    local_state_dict[key] = local_state_dict[key].cpu()
            elif key in local_state_dict:
                local_state_dict[key] = value

    patches.set(module, "_broadcast_state_dict", broadcast_state_dict)


def _described(state: dict[str, Any]) -> dict[str, Any]:
    return {
        key: _Broadcast(value.size(), value.dtype)
        if torch.is_tensor(value) and value.dim()
        else value
        for key, value in state.items()
    }


def _keep_optimizer_states(patches: Patches, warn: Callable[[str], None], module: Any) -> None:
    """FSDP1 asks all ranks which parameters they hold states of, and gathers these. Each rank has
    some only: the optimizer's own states stand for what would be gathered."""
    sharded = module.FullyShardedDataParallel

    def gathered(model: Any, optim: Any, *args: Any, **kwargs: Any) -> Any:
        warn(
            f"FullyShardedDataParallel gathers optimizer states of other ranks at {call_site()}; "
            "this is not in the forecast"
        )
        given = [value for value in (*args, *kwargs.values()) if isinstance(value, dict)]
        return given[0] if given else optim.state_dict()

    def to_load(model: Any, optim: Any, optim_state_dict: Any, *args: Any, **kwargs: Any) -> Any:
        return optim_state_dict

    for name in ("optim_state_dict", "full_optim_state_dict", "sharded_optim_state_dict"):
        patches.set(sharded, name, staticmethod(gathered))
    patches.set(sharded, "optim_state_dict_to_load", staticmethod(to_load))
