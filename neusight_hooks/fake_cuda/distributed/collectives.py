"""The collectives of c10d and of functional programs, where they meet forecast tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
import torch.distributed.distributed_c10d as c10d

from neusight.fake_cuda.distributed.communication import Communication, Transfer, tensors_in
from neusight.fake_cuda.distributed.invalid_calls import peer_of, refuse_wrong_sizes
from neusight.fake_cuda.distributed.known_values import follow_known_values, reduction_name
from neusight.recording.tensor import ForecastTensor

if TYPE_CHECKING:
    from neusight.recording.recorder import Handler, Recorder

#: Ops of c10d with the argument that they write.
_C10D = {
    "allreduce_": "tensors",
    "allreduce_coalesced_": "tensors",
    "broadcast_": "tensors",
    "reduce_": "tensors",
    "allgather_": "output_tensors",
    "_allgather_base_": "output_tensor",
    "allgather_coalesced_": "output_lists",
    "allgather_into_tensor_coalesced_": "outputs",
    "reduce_scatter_": "output_tensors",
    "_reduce_scatter_base_": "output_tensor",
    "reduce_scatter_tensor_coalesced_": "outputs",
    "gather_": "output_tensors",
    "scatter_": "output_tensors",
    "alltoall_": "output_tensors",
    "alltoall_base_": "output",
}

#: Those between two ranks, with what they are called in a batch and the argument of the other one.
_TRANSFERS = {
    "send": ("isend", "dst"),
    "recv_": ("irecv", "src"),
    "recv_any_source_": ("irecv", ""),
}

#: Functional ops by their names in torch; "_" at the end: in place.
_FUNCTIONAL = (
    "all_reduce",
    "all_reduce_",
    "all_reduce_coalesced",
    "all_reduce_coalesced_",
    "all_gather_into_tensor",
    "all_gather_into_tensor_out",
    "all_gather_into_tensor_coalesced",
    "reduce_scatter_tensor",
    "reduce_scatter_tensor_out",
    "reduce_scatter_tensor_coalesced",
    "all_to_all_single",
    "broadcast",
    "broadcast_",
)


_group_called: Any = vars(c10d)["_resolve_process_group"]


def collective_handlers(communication: Communication) -> dict[Any, Handler]:
    """What runs each collective in place of torch's fake kernels."""
    handlers: dict[Any, Handler] = {}
    for name, written in _C10D.items():
        op = getattr(torch.ops.c10d, name).default
        handlers[op] = partial(_run_c10d, communication, _Parameters.of(op), written)
    for name, (kind, peer) in _TRANSFERS.items():
        op = getattr(torch.ops.c10d, name).default
        handlers[op] = partial(_run_transfer, communication, _Parameters.of(op), kind, peer)
    for name in _FUNCTIONAL:
        op = getattr(torch.ops._c10d_functional, name).default
        handlers[op] = partial(_run_functional, communication, _Parameters.of(op))
    handlers[torch.ops.c10d.barrier.default] = partial(
        _run_barrier, communication, _Parameters.of(torch.ops.c10d.barrier.default)
    )
    handlers[torch.ops._c10d_functional.wait_tensor.default] = partial(_wait, communication)
    handlers[torch.ops._c10d_functional._wrap_tensor_autograd.default] = _wrap
    return handlers


class _Parameters(NamedTuple):
    """The names of an op's arguments, in order, and their defaults."""

    names: tuple[str, ...]
    defaults: Mapping[str, Any]

    @classmethod
    def of(cls, op: Any) -> _Parameters:
        arguments = op._schema.arguments
        return cls(
            tuple(argument.name for argument in arguments),
            {one.name: one.default_value for one in arguments if one.has_default_value()},
        )

    def values(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Every argument of a call by its name."""
        given = dict(zip(self.names, args, strict=False)) | dict(kwargs)
        return {name: given.get(name, self.defaults.get(name)) for name in self.names}


def _run_c10d(
    communication: Communication,
    parameters: _Parameters,
    written: str,
    recorder: Recorder,
    func: Any,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
) -> Any:
    values = parameters.values(args, kwargs)
    group = dist.ProcessGroup.unbox(values["process_group"])
    refuse_wrong_sizes(func._schema.name.partition("::")[2], values, group)
    communication.touched(func, args, kwargs)
    values["process_group"] = communication.groups.text_of(group)
    outputs = values[written]
    recorded = {name: _plain(value) for name, value in values.items()}
    work = communication.run(
        partial(recorder.record_handled, func, tuple(recorded.values()), {}, None),
        group,
        op=func._schema.name,
        written=tensors_in((outputs,)),
        held=tensors_in(tuple(values.values())),
        is_asynchronous=bool(values["async_op"]),
    ).boxed()
    follow_known_values(recorder, group, func._schema.name.partition("::")[2], values, outputs)
    _warn_of_invented_splits(recorder, values)
    return work if len(func._schema.returns) == 1 else (outputs, work)


def _plain(value: Any) -> Any:
    """An operation as functional collectives name it, anything else as it is."""
    if isinstance(value, torch.ScriptObject) and "ReduceOp" in str(value):
        return reduction_name(value)
    return value


def _run_transfer(
    communication: Communication,
    parameters: _Parameters,
    kind: str,
    peer_name: str,
    recorder: Recorder,
    func: Any,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
) -> Any:
    values = parameters.values(args, kwargs)
    group = dist.ProcessGroup.unbox(values["process_group"])
    communication.touched(func, args, kwargs)
    own = dist.get_rank()
    peer = peer_of(group, values[peer_name] if peer_name else None)
    between = (min(own, peer), max(own, peer))
    values["process_group"] = communication.groups.text_of(group, between)
    if peer_name:
        values[peer_name] = peer
    (tensor,) = values["tensors"]
    return communication.run(
        partial(recorder.record_handled, func, tuple(values.values()), {}, None),
        group,
        op=func._schema.name,
        written=() if kind == "isend" else (tensor,),
        held=(tensor,),
        transfer=Transfer(kind, peer, values["tag"], tensor),
    ).boxed()


def _run_functional(
    communication: Communication,
    parameters: _Parameters,
    recorder: Recorder,
    func: Any,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
) -> Any:
    values = parameters.values(args, kwargs)
    name = values["group_name"]
    group = name if isinstance(name, dist.ProcessGroup) else _group_called(name)
    communication.touched(func, args, kwargs)
    if func._schema.name.endswith("_"):
        out = args[0]
    elif "out" in values:
        out = values["out"]
    else:
        out = recorder.fake_kernels.run(func, args, kwargs)
    values["group_name"] = communication.groups.text_of(group)
    by_name = {name: values[name] for name in parameters.names if name == "out"}
    positional = tuple(value for name, value in values.items() if name != "out")
    communication.run(
        partial(recorder.record_handled, func, positional, by_name, out),
        group,
        op=func._schema.name,
        written=tensors_in((out,)),
        held=(),
    )
    follow_known_values(recorder, group, func._schema.name.partition("::")[2], values, out)
    _warn_of_invented_splits(recorder, values)
    return out


def _warn_of_invented_splits(recorder: Recorder, values: Mapping[str, Any]) -> None:
    """Experts get equal shares where a router's choices are not known."""
    splits = values.get("input_split_sizes")
    if splits and recorder.invention.sites:
        recorder.warn_once(
            "an all_to_all is split by counts that only a GPU can compute: each expert is taken to "
            "get its equal share of the tokens"
        )


def _run_barrier(
    communication: Communication,
    parameters: _Parameters,
    recorder: Recorder,
    func: Any,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
) -> Any:
    """An all-reduce of one element, for which the host waits."""
    values = parameters.values(args, kwargs)
    group = dist.ProcessGroup.unbox(values["process_group"])
    values["process_group"] = communication.groups.text_of(group)
    work = communication.run(
        partial(recorder.record_handled, func, tuple(values.values()), {}, None),
        group,
        op=func._schema.name,
        written=(),
        held=(),
        is_asynchronous=bool(values["async_op"]),
    )
    if not values["async_op"]:
        recorder.wait("barrier")
    return work.boxed()


def _wait(
    communication: Communication,
    recorder: Recorder,
    func: Any,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
) -> Any:
    tensor: ForecastTensor = args[0]
    communication.wait_for_tensor(tensor)
    return tensor


def _wrap(recorder: Recorder, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """What waits by itself where it is first used; nothing is launched."""
    return functional.AsyncCollectiveTensor(args[0])
