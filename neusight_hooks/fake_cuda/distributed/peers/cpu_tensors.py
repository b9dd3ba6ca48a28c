"""Collectives and transfers of tensors on the CPU: these hold data, which travels."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from typing import Any

import torch
import torch.distributed as dist

from neusight.fake_cuda.distributed.groups import group_named
from neusight.fake_cuda.distributed.known_values import reduction_name
from neusight.fake_cuda.distributed.objects import Objects
from neusight.recording.recorder import CpuHandler

Tensors = list[torch.Tensor]

#: What each member of a group gets: from what all of them put in, by its place in the group.
_Result = Callable[[list[Tensors], int, Mapping[str, Any]], Tensors]

#: How a reduction joins two tensors, by its name; "avg" is a sum, divided at the end.
_JOINS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "sum": torch.add,
    "avg": torch.add,
    "product": torch.mul,
    "min": torch.minimum,
    "max": torch.maximum,
    "band": torch.bitwise_and,
    "bor": torch.bitwise_or,
    "bxor": torch.bitwise_xor,
}

#: Works that C++ may still hold although Python has dropped them.
_KEPT_WORKS = 8


class CpuBatches:
    """Receives that were asked for between the begin and the end of a group of calls."""

    def __init__(self) -> None:
        self._begun: list[_Receiving] = []
        self._kept: deque[dist.Work] = deque(maxlen=_KEPT_WORKS)

    def keep(self, work: dist.Work) -> None:
        """Keeps a work that only C++ holds; a receive is part of the batch that is open."""
        self._kept.append(work)
        if isinstance(work, _Receiving):
            self._begun.append(work)

    def begin(self) -> None:
        self._begun.clear()

    def end(self, work: dist.Work) -> dist.Work:
        """What the group returns: who waits for it waits for `work` and for every receive."""
        begun, self._begun = self._begun, []
        if not begun:
            return work
        whole = _Together([*begun, work])
        self._kept.append(whole)
        return whole


def cpu_handlers(
    objects: Objects, batches: CpuBatches, require_cpu: Callable[[Any], None]
) -> dict[Any, CpuHandler]:
    """What runs each of these ops on tensors that hold data; `require_cpu` raises where a group has
    no backend for them."""
    handlers: dict[Any, CpuHandler] = {}
    for namespace, name, inputs, outputs, result in _OPS:
        op = getattr(getattr(torch.ops, namespace), name).default
        handlers[op] = partial(_run, objects, inputs, outputs, result)
    c10d_ops = torch.ops.c10d
    handlers[c10d_ops.send.default] = partial(_send, objects)
    handlers[c10d_ops.recv_.default] = partial(_receive, objects, batches)
    handlers[c10d_ops.recv_any_source_.default] = partial(_receive, objects, batches)
    return {op: partial(_checked, handler, require_cpu) for op, handler in handlers.items()}


def _checked(
    handler: CpuHandler,
    require_cpu: Callable[[Any], None],
    func: Any,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
) -> Any:
    require_cpu(_group_of(_by_name(func, args, kwargs)))
    return handler(func, args, kwargs)


def _by_name(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    names = [argument.name for argument in func._schema.arguments]
    return dict(zip(names, args, strict=False)) | dict(kwargs)


def _run(
    objects: Objects,
    inputs: str,
    outputs: str,
    result: _Result,
    func: Any,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
) -> Any:
    """Runs it on the group that is there, whose outputs are right in shape, and fills them in."""
    values = _by_name(func, args, kwargs)
    group = _group_of(values)
    ranks = dist.get_process_group_ranks(group)
    own = ranks.index(dist.get_rank())
    given = _flat(values[inputs])
    made = func(*args, **kwargs)
    found = _exchanged(objects, func._schema.name, _Input.of(given, values), group, values)
    if found is None:
        return made
    values["splits"], values["size"] = [one.splits for one in found], len(ranks)
    tensors = [one.tensors for one in found]
    written = _flat(values[outputs] if outputs else made)
    with torch.no_grad():
        for into, value in zip(written, result(list(tensors), own, values), strict=False):
            into.copy_(value.reshape(into.shape))
    return made


@dataclass
class _Input:
    """What a member puts in, and how it splits that; the tensors travel as bytes."""

    tensors: Tensors
    splits: tuple[int, ...]

    @classmethod
    def of(cls, tensors: Tensors, values: Mapping[str, Any]) -> _Input:
        return cls(tensors, tuple(values.get("input_split_sizes") or ()))

    def __getstate__(self) -> Any:
        return [_packed(one) for one in self.tensors], self.splits

    def __setstate__(self, state: Any) -> None:
        packed, self.splits = state
        self.tensors = [_unpacked(one) for one in packed]


def _exchanged(
    objects: Objects, op: str, own: _Input, group: Any, values: Mapping[str, Any]
) -> list[_Input] | None:
    """What each member put in, in the group's order; None where this one gets nothing. From a root
    only its own comes, for all."""
    what = f"tensors of {op.partition('::')[2].strip('_')}"
    in_group = values.get("root_rank", values.get("src"))
    root = None if in_group is None else dist.get_global_rank(group, in_group)
    is_from_root = "scatter" in what or "broadcast" in what
    is_root = root == dist.get_rank()
    if root is not None and is_from_root and not is_root:
        return [objects.receive_object(what, own, group, root)] * dist.get_world_size(group)
    if not objects.is_alone:
        objects.send_to_all(what, own, group)
    if is_root and is_from_root:
        return [own] * dist.get_world_size(group)
    return objects.gather(what, own, group) if is_root or root is None else None


def _group_of(values: Mapping[str, Any]) -> Any:
    if "process_group" in values:
        return dist.ProcessGroup.unbox(values["process_group"])
    return group_named(values["group_name"])


def _flat(values: Any) -> Tensors:
    if isinstance(values, torch.Tensor):
        return [values]
    return [tensor for value in values for tensor in _flat(value)]


# -- what each member gets -------------------------------------------------------------------------


def _reduced(all_inputs: list[Tensors], own: int, values: Mapping[str, Any]) -> Tensors:
    return [_joined(each, values) for each in zip(*all_inputs, strict=True)]


def _joined(tensors: Sequence[torch.Tensor], values: Mapping[str, Any]) -> torch.Tensor:
    name = reduction_name(values["reduce_op"])
    if name not in _JOINS:
        raise NotImplementedError(f"a reduction by {name} is not run on the CPU")
    total = reduce(_JOINS[name], tensors)
    return total / len(tensors) if name == "avg" else total


def _gathered(all_inputs: list[Tensors], own: int, values: Mapping[str, Any]) -> Tensors:
    """Those of all members, one after the other; gathered into one tensor they are joined."""
    return [one for inputs in all_inputs for one in inputs]


def _joined_gathered(all_inputs: list[Tensors], own: int, values: Mapping[str, Any]) -> Tensors:
    return [torch.cat(each) for each in zip(*map(_at_least_1d, all_inputs), strict=True)]


def _at_least_1d(tensors: Tensors) -> Tensors:
    return [tensor if tensor.dim() else tensor.flatten() for tensor in tensors]


def _own_of_each(all_inputs: list[Tensors], own: int, values: Mapping[str, Any]) -> Tensors:
    return [inputs[own] for inputs in all_inputs]


def _own_reduced(all_inputs: list[Tensors], own: int, values: Mapping[str, Any]) -> Tensors:
    return [_joined([inputs[own] for inputs in all_inputs], values)]


def _own_part_reduced(all_inputs: list[Tensors], own: int, values: Mapping[str, Any]) -> Tensors:
    return [one.chunk(values["size"])[own] for one in _reduced(all_inputs, own, values)]


def _of_root(all_inputs: list[Tensors], own: int, values: Mapping[str, Any]) -> Tensors:
    return all_inputs[0]


def _own_of_root(all_inputs: list[Tensors], own: int, values: Mapping[str, Any]) -> Tensors:
    return [all_inputs[0][own]]


def _own_parts(all_inputs: list[Tensors], own: int, values: Mapping[str, Any]) -> Tensors:
    """Of each member's tensor the part that is for this one, by that member's splits."""
    parts = []
    for [tensor], splits in zip(all_inputs, values["splits"], strict=True):
        sizes = splits or (len(tensor) // values["size"],) * values["size"]
        parts.append(tensor.narrow(0, sum(sizes[:own]), sizes[own]))
    return [torch.cat(parts)]


#: Ops with the arguments that hold what goes in and comes out ("": what they return).
_OPS: tuple[tuple[str, str, str, str, _Result], ...] = (
    ("c10d", "allreduce_", "tensors", "tensors", _reduced),
    ("c10d", "allreduce_coalesced_", "tensors", "tensors", _reduced),
    ("c10d", "reduce_", "tensors", "tensors", _reduced),
    ("c10d", "broadcast_", "tensors", "tensors", _of_root),
    ("c10d", "allgather_", "input_tensors", "output_tensors", _gathered),
    ("c10d", "gather_", "input_tensors", "output_tensors", _gathered),
    ("c10d", "_allgather_base_", "input_tensor", "output_tensor", _joined_gathered),
    ("c10d", "allgather_into_tensor_coalesced_", "inputs", "outputs", _joined_gathered),
    ("c10d", "reduce_scatter_", "input_tensors", "output_tensors", _own_reduced),
    ("c10d", "_reduce_scatter_base_", "input_tensor", "output_tensor", _own_part_reduced),
    ("c10d", "reduce_scatter_tensor_coalesced_", "inputs", "outputs", _own_part_reduced),
    ("c10d", "scatter_", "input_tensors", "output_tensors", _own_of_root),
    ("c10d", "alltoall_", "input_tensors", "output_tensors", _own_of_each),
    ("c10d", "alltoall_base_", "input", "output", _own_parts),
    ("_c10d_functional", "all_reduce", "input", "", _reduced),
    ("_c10d_functional", "all_reduce_", "input", "", _reduced),
    ("_c10d_functional", "all_gather_into_tensor", "input", "", _joined_gathered),
    ("_c10d_functional", "reduce_scatter_tensor", "input", "", _own_part_reduced),
    ("_c10d_functional", "all_to_all_single", "input", "", _own_parts),
    ("_c10d_functional", "broadcast", "input", "", _of_root),
    ("_c10d_functional", "broadcast_", "input", "", _of_root),
)


# -- from one rank to another ----------------------------------------------------------------------


def _send(objects: Objects, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    [tensor], boxed, target, tag = args
    group = dist.ProcessGroup.unbox(boxed)
    peer = dist.get_process_group_ranks(group)[target]
    objects.send(_packed(tensor), group, peer, what="a tensor sent", tag=tag)
    return func(*args, **kwargs)


def _receive(
    objects: Objects,
    batches: CpuBatches,
    func: Any,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
) -> Any:
    [tensor], boxed, *rest = args
    group = dist.ProcessGroup.unbox(boxed)
    source = dist.get_process_group_ranks(group)[rest[0]] if len(rest) > 1 else None
    work = _Receiving(objects, tensor, group, source, rest[-1])
    batches.keep(work)
    return work.boxed()


class _Receiving(dist.Work):
    """A tensor on its way; who waits for it receives it."""

    def __init__(
        self, objects: Objects, tensor: torch.Tensor, group: Any, source: int | None, tag: int
    ) -> None:
        super().__init__()
        self._objects = objects
        self._tensor: torch.Tensor | None = tensor
        self._group = group
        self._source = source
        self._tag = tag

    def wait(self, timeout: object = None) -> bool:
        tensor, self._tensor = self._tensor, None
        if tensor is not None:
            self._source, data = self._objects.receive(
                self._group, self._source, what="a tensor sent", tag=self._tag
            )
            with torch.no_grad():
                tensor.copy_(_unpacked(data).reshape(tensor.shape))
        return True

    is_completed = wait  # a loop that polls it must end

    def _source_rank(self) -> int:
        assert self._source is not None
        return int(dist.get_group_rank(self._group, self._source))


class _Together(dist.Work):
    """Several works in one."""

    def __init__(self, works: list[dist.Work]) -> None:
        super().__init__()
        self._works = works

    def wait(self, timeout: object = None) -> bool:
        for work in self._works:
            work.wait()
        return True

    is_completed = wait


# -- tensors as bytes ------------------------------------------------------------------------------


def _packed(tensor: torch.Tensor) -> Any:
    flat = tensor.detach().contiguous().reshape(-1)
    return tensor.dtype, tuple(tensor.shape), flat.view(torch.uint8).numpy().tobytes()


def _unpacked(packed: Any) -> torch.Tensor:
    dtype, shape, data = packed
    if not data:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(bytearray(data), dtype=dtype).reshape(shape)
