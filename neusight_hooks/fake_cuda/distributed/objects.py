"""Python objects that ranks send each other: what a rank that is not run would send is its own."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d

from neusight.fake_cuda.patching import Patches
from neusight.predictors.errors import UnansweredRankError
from neusight.recording.call_stack import call_site

__all__ = ["install_objects"]


def install_objects(patches: Patches) -> None:
    """Objects of other ranks are taken as equal to this rank's own; where it has none, nobody can
    answer: UnansweredRankError."""

    def all_gather_object(object_list: list[Any], obj: Any, group: Any = None) -> None:
        object_list[:] = [obj] * len(dist.get_process_group_ranks(_or_world(group)))

    def gather_object(
        obj: Any,
        object_gather_list: list[Any] | None = None,
        dst: int | None = None,
        group: Any = None,
        group_dst: int | None = None,
    ) -> None:
        if object_gather_list is not None:
            object_gather_list[:] = [obj] * len(object_gather_list)

    def broadcast_object_list(
        object_list: list[Any],
        src: int | None = None,
        group: Any = None,
        device: Any = None,
        group_src: int | None = None,
    ) -> None:
        source = _global_rank(src, group_src, group)
        if source != dist.get_rank() and any(one is None for one in object_list):
            raise _unanswered("objects broadcast", source)

    def scatter_object_list(
        scatter_object_output_list: list[Any],
        scatter_object_input_list: list[Any] | None = None,
        src: int | None = None,
        group: Any = None,
        group_src: int | None = None,
    ) -> None:
        source = _global_rank(src, group_src, group)
        if source != dist.get_rank() or scatter_object_input_list is None:
            raise _unanswered("an object scattered", source)
        scatter_object_output_list[0] = scatter_object_input_list[dist.get_rank(group)]

    def send_object_list(object_list: list[Any], *args: Any, **kwargs: Any) -> None:
        return None

    def recv_object_list(
        object_list: list[Any],
        src: int | None = None,
        group: Any = None,
        device: Any = None,
        group_src: int | None = None,
        use_batch: bool = False,
    ) -> int:
        raise _unanswered("objects sent", _global_rank(src, group_src, group))

    def monitored_barrier(*args: Any, **kwargs: Any) -> None:
        return None

    answers = (
        all_gather_object,
        gather_object,
        broadcast_object_list,
        scatter_object_list,
        send_object_list,
        recv_object_list,
        monitored_barrier,
    )
    for answer in answers:
        for module in (c10d, dist):
            patches.set(module, answer.__name__, answer)


def _or_world(group: Any) -> Any:
    return c10d._get_default_group() if group is None else group


def _global_rank(rank: int | None, in_group: int | None, group: Any) -> int:
    if rank is not None:
        return rank
    if in_group is None:
        return 0
    return dist.get_global_rank(_or_world(group), in_group)


def _unanswered(what: str, source: int) -> UnansweredRankError:
    return UnansweredRankError(
        f"rank {dist.get_rank()} at {call_site()} waits for {what} by rank {source}, which is not "
        f"run; run that one (--rank {source})"
    )
