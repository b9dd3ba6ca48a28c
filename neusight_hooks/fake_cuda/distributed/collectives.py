"""The collectives of c10d and of functional programs, where they meet forecast tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional

from neusight.fake_cuda.distributed.communication import Communication, Transfer, tensors_in
from neusight.fake_cuda.distributed.groups import group_named
from neusight.fake_cuda.distributed.invalid_calls import peer_of, refuse_wrong_sizes
from neusight.fake_cuda.distributed.known_values import follow_known_values, reduction_name
from neusight.recording.handlers.registry import Args, Kwargs
from neusight.recording.recorder import Handler, Recorder
from neusight.recording.tensor import ForecastTensor

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


def collective_handlers(communication: Communication) -> dict[Any, Handler]:
    """What runs each collective in place of torch's fake kernels."""
    handlers: dict[Any, Handler] = {}

    def handle(namespace: str, name: str, run: Callable[..., Any], *settings: str) -> None:
        op = getattr(getattr(torch.ops, namespace), name).default
        arguments = op._schema.arguments
        handlers[op] = lambda recorder, func, args, kwargs: run(
            communication, _Call(recorder, func, args, kwargs, arguments), *settings
        )

    for name, written in _C10D.items():
        handle("c10d", name, _run_c10d, written)
    for name, (kind, peer) in _TRANSFERS.items():
        handle("c10d", name, _run_transfer, kind, peer)
    for name in _FUNCTIONAL:
        handle("_c10d_functional", name, _run_functional)
    handle("c10d", "barrier", _run_barrier)
    handle("_c10d_functional", "wait_tensor", _wait)
    handle("_c10d_functional", "_wrap_tensor_autograd", _wrap)
    return handlers


class _Call:
    """A call of a collective; `values` are its arguments by name, defaults included."""

    def __init__(
        self, recorder: Recorder, func: Any, args: Args, kwargs: Kwargs, arguments: Sequence[Any]
    ) -> None:
        self.recorder, self.func, self.args, self.kwargs = recorder, func, args, kwargs
        self.op: str = func._schema.name
        given = dict(zip((one.name for one in arguments), args, strict=False)) | dict(kwargs)
        self.values = {one.name: given.get(one.name, one.default_value) for one in arguments}

    def unbox_group(self, communication: Communication, *between: int) -> Any:
        """The group, which is recorded as a text: of the two ranks of a transfer."""
        group = dist.ProcessGroup.unbox(self.values["process_group"])
        self.values["process_group"] = communication.groups.text_of(group, between or None)
        return group

    def record(self, *values: Any) -> Callable[[], Any]:
        """Puts the call with these arguments on the tape, when it is called."""
        return partial(self.recorder.record_handled, self.func, values, {}, None)

    def follow_values(self, group: Any, outputs: Any) -> None:
        """What is known of the values of its outputs; experts get equal shares where a router's
        choices are not known."""
        short = self.op.partition("::")[2]
        recorder = self.recorder
        follow_known_values(recorder.mode, recorder.known, group, short, self.values, outputs)
        if self.values.get("input_split_sizes") and self.recorder.invention.sites:
            self.recorder.warn_once(
                "an all_to_all is split by counts that only a GPU can compute: each expert is "
                "taken to get its equal share of the tokens"
            )


def _run_c10d(communication: Communication, call: _Call, written: str) -> Any:
    values = call.values
    group = dist.ProcessGroup.unbox(values["process_group"])
    refuse_wrong_sizes(call.op.partition("::")[2], values, group)
    communication.touched(call.func, call.args, call.kwargs)
    call.unbox_group(communication)
    outputs = values[written]
    work = communication.run(
        call.record(*map(_plain, values.values())),
        group,
        op=call.op,
        written=tensors_in(outputs),
        held=tensors_in(tuple(values.values())),
        is_asynchronous=bool(values["async_op"]),
    ).boxed()
    call.follow_values(group, outputs)
    return work if len(call.func._schema.returns) == 1 else (outputs, work)


def _plain(value: Any) -> Any:
    """An operation as functional collectives name it, anything else as it is."""
    if isinstance(value, torch.ScriptObject) and "ReduceOp" in str(value):
        return reduction_name(value)
    return value


def _run_transfer(communication: Communication, call: _Call, kind: str, peer_name: str) -> Any:
    values = call.values
    communication.touched(call.func, call.args, call.kwargs)
    group = dist.ProcessGroup.unbox(values["process_group"])
    own = dist.get_rank()
    peer = peer_of(group, values[peer_name] if peer_name else None)
    call.unbox_group(communication, min(own, peer), max(own, peer))
    if peer_name:
        values[peer_name] = peer
    (tensor,) = values["tensors"]
    return communication.run(
        call.record(*values.values()),
        group,
        op=call.op,
        written=() if kind == "isend" else (tensor,),
        held=(tensor,),
        transfer=Transfer(kind, peer, values["tag"], tensor),
    ).boxed()


def _run_functional(communication: Communication, call: _Call) -> Any:
    values = call.values
    group = group_named(values["group_name"])
    communication.touched(call.func, call.args, call.kwargs)
    if call.op.endswith("_"):
        out = call.args[0]
    elif "out" in values:
        out = values["out"]
    else:
        out = call.recorder.fake_kernels.run(call.func, call.args, call.kwargs)
    values["group_name"] = communication.groups.text_of(group)
    by_name = {name: value for name, value in values.items() if name == "out"}
    positional = [value for name, value in values.items() if name != "out"]
    record = partial(call.recorder.record_handled, call.func, tuple(positional), by_name, out)
    communication.run(record, group, op=call.op, written=tensors_in(out), held=())
    call.follow_values(group, out)
    return out


def _run_barrier(communication: Communication, call: _Call) -> Any:
    """An all-reduce of one element, for which the host waits."""
    group = call.unbox_group(communication)
    is_asynchronous = bool(call.values["async_op"])
    work = communication.run(
        call.record(*call.values.values()),
        group,
        op=call.op,
        written=(),
        held=(),
        is_asynchronous=is_asynchronous,
    )
    if not is_asynchronous:
        call.recorder.wait("barrier")
    return work.boxed()


def _wait(communication: Communication, call: _Call) -> Any:
    tensor: ForecastTensor = call.args[0]
    communication.wait_for_tensor(tensor)
    return tensor


def _wrap(communication: Communication, call: _Call) -> Any:
    """What waits by itself where it is first used; nothing is launched."""
    return functional.AsyncCollectiveTensor(call.args[0])
