"""Calls that NCCL refuses, in the words of torch (ProcessGroupNCCL.cpp, 2.13)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist

#: Ops whose first argument of a name is as large as the other times the ranks.
_LARGER_THAN = {
    "_allgather_base_": ("output_tensor", "input_tensor"),
    "_reduce_scatter_base_": ("input_tensor", "output_tensor"),
}


def refuse_wrong_sizes(name: str, values: Mapping[str, Any], group: Any) -> None:
    """ValueError or RuntimeError where tensors do not fit the ranks of the group."""
    size = dist.get_world_size(group)
    if name in _LARGER_THAN:
        large, small = (values[one] for one in _LARGER_THAN[name])
        if large.dtype != small.dtype:
            raise ValueError(
                f"output tensor must have the same type as input tensor; they are "
                f"{values['output_tensor'].dtype} and {values['input_tensor'].dtype}"
            )
        if large.numel() != small.numel() * size:
            words = ("output", "input") if name.startswith("_all") else ("input", "output")
            raise ValueError(
                f"{words[0]} tensor size must be equal to world_size times {words[1]} tensor size: "
                f"{large.numel()} elements are not {size} times {small.numel()}"
            )
    elif name == "alltoall_base_":
        for what in ("input", "output"):
            _refuse_wrong_splits(what, values[what], values[f"{what}_split_sizes"], size)
    elif name in ("allgather_", "reduce_scatter_", "gather_", "scatter_"):
        lists = values["output_tensors" if "gather" in name else "input_tensors"]
        if lists and len(lists[0]) != size:
            raise ValueError(
                f"{name.rstrip('_')}: a list of {len(lists[0])} tensors for a group of {size} ranks"
            )


def _refuse_wrong_splits(what: str, tensor: Any, splits: Sequence[int], size: int) -> None:
    rows = tensor.shape[0] if tensor.dim() else 0
    if not splits and rows % size:
        raise RuntimeError(
            f"Tensor's dim 0 does not divide equally across group size: the {what} has {rows} rows "
            f"for {size} ranks"
        )
    if splits and len(splits) != size:
        raise RuntimeError(
            f"Number of tensor splits not equal to group size: {len(splits)} {what} splits, "
            f"{size} ranks"
        )
    if splits and sum(splits) != rows:
        raise RuntimeError(
            f"Split sizes doesn't match total dim 0 size: {what} splits add up to {sum(splits)}, "
            f"the tensor has {rows} rows"
        )


def refuse_other_device(bound: torch.device | None, tensors: Sequence[torch.Tensor]) -> None:
    """DistBackendError where a tensor lies on another GPU than init_process_group was given."""
    if bound is None or bound.index is None:
        return
    for tensor in tensors:
        if tensor.device.type == bound.type and tensor.device.index not in (None, bound.index):
            raise dist.DistBackendError(
                "Attempt to perform collective on tensor not on device passed to "
                f"init_process_group: it is on {tensor.device}, and device_id is {bound}"
            )


def peer_of(group: Any, place: int | None) -> int:
    """The global number of the rank at this place of a group; None: of the first other one.
    ValueError where there is none."""
    ranks = dist.get_process_group_ranks(group)
    own = dist.get_rank()
    if place is None:
        return next((rank for rank in ranks if rank != own), own)
    if not 0 <= place < len(ranks):
        raise ValueError(f"there is no rank {place} in a group of {len(ranks)}")
    return int(ranks[place])
