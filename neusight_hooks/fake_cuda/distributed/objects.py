"""Python objects that ranks send each other: those of ranks that run travel, for others this rank's
own stand."""

from __future__ import annotations

import inspect
import pickle
from collections.abc import Callable
from functools import wraps
from typing import Any

import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d

from neusight.fake_cuda.distributed.communication import Communication
from neusight.fake_cuda.distributed.peers.link import Link
from neusight.fake_cuda.distributed.peers.message_server import Inbox
from neusight.fake_cuda.distributed.rank import ranks_text
from neusight.fake_cuda.patching import Patches


class Objects:
    """What this rank's objects travel by."""

    def __init__(self, communication: Communication, link: Link) -> None:
        self._communication = communication
        self._link = link

    @property
    def is_alone(self) -> bool:
        """Whether no other rank reads what this one sends."""
        return self._link.is_alone

    def send(
        self, value: Any, group: Any, target: int, *, what: str = "objects sent", tag: int = 0
    ) -> None:
        box = self._box(what, group, dist.get_rank(), target, tag)
        self._link.post({box: pickle.dumps(value)})

    def receive(
        self, group: Any, source: int | None, *, what: str = "objects sent", tag: int = 0
    ) -> tuple[int, Any]:
        """From one rank, or from the first that sends; with the number of that rank."""
        own = dist.get_rank()
        sources = [one for one in _ranks(group) if one != own] if source is None else [source]
        boxes = [self._box(what, group, one, own, tag) for one in sources]
        [(sender, data)] = self._link.take(boxes, is_any=source is None).items()
        return sender, pickle.loads(data)

    def send_to_all(self, what: str, value: Any, group: Any) -> None:
        box = self._box(what, group, dist.get_rank())
        self._link.post({box: pickle.dumps(value)})

    def receive_object(self, what: str, own_value: Any, group: Any, source: int) -> Any:
        """What one rank sends all others of the group; where that one is not run this rank's own,
        if it has one."""
        box = self._box(what, group, source)
        found = self._link.take([box], may_be_missing=own_value is not None)
        return pickle.loads(found[source]) if found else own_value

    def deal(self, what: str, values: list[Any], group: Any) -> None:
        own = dist.get_rank()
        boxes = {
            self._box(what, group, own, rank): pickle.dumps(value)
            for rank, value in zip(_ranks(group), values, strict=True)
            if rank != own
        }
        self._link.post(boxes)

    def dealt(self, what: str, group: Any, source: int) -> Any:
        """What one rank has for this one."""
        [data] = self._link.take([self._box(what, group, source, dist.get_rank())]).values()
        return pickle.loads(data)

    def gather(self, what: str, own_value: Any, group: Any) -> list[Any]:
        """What each rank of the group sends; of those that are not run, this rank's own."""
        own = dist.get_rank()
        ranks = _ranks(group)
        boxes = [self._box(what, group, rank) for rank in ranks if rank != own]
        found = self._link.take(boxes, may_be_missing=True) if boxes else {}
        absent = [rank for rank in ranks if rank != own and rank not in found]
        if found and absent:
            self._communication.recorder.warn_once(
                f"of {what} by ranks {ranks_text(absent)}, which are not run, those of rank {own} "
                "stand for theirs"
            )
        return [pickle.loads(found[rank]) if rank in found else own_value for rank in ranks]

    def require_all(self, group: Any) -> None:
        """Goes on once all others of the group that run have come."""
        own = dist.get_rank()
        boxes = [self._box("a barrier", group, rank) for rank in _ranks(group) if rank != own]
        self._link.post({self._box("a barrier", group, own): b""})
        if boxes:
            self._link.take(boxes, may_be_missing=True)

    def _box(self, what: str, group: Any, source: int, *others: Any) -> Inbox:
        return Inbox(what, self._communication.groups.text_of(_or_world(group)), source, *others)


class _Functions:
    """What torch.distributed's functions on objects do, by their names and arguments."""

    def __init__(self, objects: Objects) -> None:
        self._objects = objects

    def all_gather_object(self, object_list: list[Any], obj: Any, group: Any) -> None:
        self._objects.send_to_all("objects gathered", obj, group)
        object_list[:] = self._objects.gather("objects gathered", obj, group)

    def gather_object(
        self, obj: Any, object_gather_list: Any, dst: Any, group: Any, group_dst: Any
    ) -> None:
        target = _global_rank(dst, group_dst, group)
        what = f"objects gathered on rank {target}"
        if target != dist.get_rank():
            self._objects.send_to_all(what, obj, group)
        elif object_gather_list is not None:
            object_gather_list[:] = self._objects.gather(what, obj, group)

    def broadcast_object_list(
        self, object_list: list[Any], src: Any, group: Any, group_src: Any, **others: Any
    ) -> None:
        what, source = "objects broadcast", _global_rank(src, group_src, group)
        if source == dist.get_rank():
            self._objects.send_to_all(what, list(object_list), group)
        else:
            own = None if any(one is None for one in object_list) else object_list
            object_list[:] = self._objects.receive_object(what, own, group, source)

    def scatter_object_list(
        self,
        scatter_object_output_list: list[Any],
        scatter_object_input_list: list[Any] | None,
        src: Any,
        group: Any,
        group_src: Any,
    ) -> None:
        what, source = "an object scattered", _global_rank(src, group_src, group)
        if source != dist.get_rank():
            scatter_object_output_list[0] = self._objects.dealt(what, group, source)
        elif scatter_object_input_list is not None:
            self._objects.deal(what, scatter_object_input_list, group)
            scatter_object_output_list[0] = scatter_object_input_list[dist.get_rank(group)]

    def send_object_list(
        self, object_list: list[Any], dst: Any, group: Any, group_dst: Any, **others: Any
    ) -> None:
        self._objects.send(list(object_list), group, _global_rank(dst, group_dst, group))

    def recv_object_list(
        self, object_list: list[Any], src: Any, group: Any, group_src: Any, **others: Any
    ) -> int:
        is_any = src is None and group_src is None
        sender, values = self._objects.receive(
            group, None if is_any else _global_rank(src, group_src, group)
        )
        object_list[:] = values
        return sender

    def monitored_barrier(self, group: Any, **others: Any) -> None:
        self._objects.require_all(group)


def install_objects(patches: Patches, objects: Objects) -> None:
    """Objects travel between the ranks that run. For others this rank's own stand; where it has
    none, there is no answer: UnansweredRankError."""
    functions = _Functions(objects)
    for name in (name for name in vars(_Functions) if not name.startswith("_")):
        function = _of_members(getattr(c10d, name), getattr(functions, name))
        for module in (c10d, dist):
            patches.set(module, name, function)

    def monitored_barrier(group: Any, *args: Any, **kwargs: Any) -> None:
        objects.require_all(group)

    # The method of a group of gloo, which Lightning calls.
    patches.set(dist.ProcessGroup, "monitored_barrier", monitored_barrier)


def _of_members(original: Any, answer: Callable[..., Any]) -> Callable[..., Any]:
    """`answer` with all arguments of torch's function; who is no member of the group has nothing to
    do, as torch has it."""

    @wraps(original)
    def of_members(*args: Any, **kwargs: Any) -> Any:
        given = signature.bind(*args, **kwargs)
        given.apply_defaults()
        named = given.arguments
        return None if c10d._rank_not_in_group(named["group"]) else answer(**named)

    signature = inspect.signature(original)
    return of_members


def _or_world(group: Any) -> Any:
    return c10d._get_default_group() if group is None else group


def _ranks(group: Any) -> list[int]:
    return list(dist.get_process_group_ranks(_or_world(group)))


def _global_rank(rank: int | None, in_group: int | None, group: Any) -> int:
    if rank is not None:
        return rank
    if in_group is None:
        return 0
    return int(dist.get_global_rank(_or_world(group), in_group))
