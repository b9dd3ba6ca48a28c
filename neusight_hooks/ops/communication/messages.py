"""What a call of torch.distributed says to NCCL: its group, what goes in and out, and its peer."""

from __future__ import annotations

import math
from typing import NamedTuple

from neusight.predictors.clusters.placement import ranks_from
from neusight.predictors.kernel import DTYPE_BYTES
from neusight.recording.recording import Argument, OpSignature, TensorSpec, flattened

BARRIER = "barrier"
ANY_SOURCE = "recvAnySource"

#: Ops with what ProcessGroupNCCL calls them in a profile (RECORD_PARAM_COMMS), and the arguments
#: that go in and come out; "" for what an op returns.
_OPS = {
    "c10d::allreduce_": ("allreduce", "tensors", "tensors"),
    "c10d::allreduce_coalesced_": ("allreduce_coalesced", "tensors", "tensors"),
    "c10d::broadcast_": ("broadcast", "tensors", "tensors"),
    "c10d::reduce_": ("reduce", "tensors", "tensors"),
    "c10d::allgather_": ("all_gather", "input_tensors", "output_tensors"),
    "c10d::_allgather_base_": ("_allgather_base", "input_tensor", "output_tensor"),
    "c10d::allgather_coalesced_": ("all_gather", "input_list", "output_lists"),
    "c10d::allgather_into_tensor_coalesced_": (
        "allgather_into_tensor_coalesced", "inputs", "outputs",
    ),
    "c10d::reduce_scatter_": ("reduce_scatter", "input_tensors", "output_tensors"),
    "c10d::_reduce_scatter_base_": ("_reduce_scatter_base", "input_tensor", "output_tensor"),
    "c10d::reduce_scatter_tensor_coalesced_": (
        "reduce_scatter_tensor_coalesced", "inputs", "outputs",
    ),
    "c10d::gather_": ("gather", "input_tensors", "output_tensors"),
    "c10d::scatter_": ("scatter", "input_tensors", "output_tensors"),
    "c10d::alltoall_": ("all_to_all", "input_tensors", "output_tensors"),
    "c10d::alltoall_base_": ("all_to_all", "input", "output"),
    "c10d::send": ("send", "tensors", "tensors"),
    "c10d::recv_": ("recv", "tensors", "tensors"),
    "c10d::recv_any_source_": (ANY_SOURCE, "tensors", "tensors"),
    "c10d::barrier": (BARRIER, "tensor", "tensor"),
    "_c10d_functional::all_reduce": ("allreduce", "input", ""),
    "_c10d_functional::all_reduce_": ("allreduce", "input", ""),
    "_c10d_functional::all_reduce_coalesced": ("allreduce_coalesced", "inputs", ""),
    "_c10d_functional::all_reduce_coalesced_": ("allreduce_coalesced", "inputs", ""),
    "_c10d_functional::all_gather_into_tensor": ("_allgather_base", "input", ""),
    "_c10d_functional::all_gather_into_tensor_out": ("_allgather_base", "input", ""),
    "_c10d_functional::all_gather_into_tensor_coalesced": (
        "allgather_into_tensor_coalesced", "inputs", "",
    ),
    "_c10d_functional::reduce_scatter_tensor": ("_reduce_scatter_base", "input", ""),
    "_c10d_functional::reduce_scatter_tensor_out": ("_reduce_scatter_base", "input", ""),
    "_c10d_functional::reduce_scatter_tensor_coalesced": (
        "reduce_scatter_tensor_coalesced", "inputs", "",
    ),
    "_c10d_functional::all_to_all_single": ("all_to_all", "input", ""),
    "_c10d_functional::broadcast": ("broadcast", "input", ""),
    "_c10d_functional::broadcast_": ("broadcast", "input", ""),
}  # fmt: skip
_BATCH = "_c10d_functional::batch_p2p_ops"

_TRANSFERS = ("send", "recv", ANY_SOURCE)

#: What an all-to-all is called that says how much each rank gets.
_WITH_SPLITS = "all_to_allv"


class ProcessGroup(NamedTuple):
    """A group by torch's name, with the global ranks in it; of a transfer only the two."""

    name: str
    ranks: tuple[int, ...]


class Message(NamedTuple):
    """One call to NCCL, by its name in a profile: "allreduce", "_allgather_base", "send", ...

    `sent` and `received` count elements of `dtype`; splits say how an all-to-all deals them out,
    empty where evenly. `peer` is the global rank of a transfer's other end, -1 of what is no
    transfer, and where any rank may be it.
    """

    name: str
    group: ProcessGroup
    sent: int
    received: int
    dtype: str
    sent_splits: tuple[int, ...] = ()
    received_splits: tuple[int, ...] = ()
    peer: int = -1
    tag: int = 0

    @property
    def is_transfer(self) -> bool:
        """Whether it is between two ranks."""
        return self.name in _TRANSFERS

    @property
    def sent_bytes(self) -> int:
        """What this rank puts in."""
        return math.ceil(self.sent * DTYPE_BYTES.get(self.dtype, DTYPE_BYTES["float32"]))


def group_in(text: str) -> ProcessGroup:
    """The group that a recording's text stands for; ValueError where it does not hold its ranks.

    >>> group_in("size=4 nodes=4 name=3 ranks=1..25/8")
    ProcessGroup(name='3', ranks=(1, 9, 17, 25))
    """
    words = dict(word.partition("=")[::2] for word in text.split() if "=" in word)
    if "ranks" not in words:
        raise ValueError(f"the process group {text!r} does not state its ranks")
    return ProcessGroup(words.get("name", ""), ranks_from(words["ranks"]))


def messages_of(call: OpSignature) -> tuple[Message, ...]:
    """What a call says to NCCL: one message, or one for each transfer of a batch; none where it is
    no collective, or its group does not state its ranks."""
    text = call.by_name.get("process_group", call.by_name.get("group_name"))
    if not isinstance(text, str) or "ranks=" not in text:
        return ()
    group = group_in(text)
    if call.op == _BATCH:
        return _transfers(call, group)
    if call.op not in _OPS:
        return ()
    name, taken, given = _OPS[call.op]
    inputs = flattened(call.by_name.get(taken), TensorSpec)
    outputs = flattened(call.by_name.get(given) if given else call.outputs, TensorSpec)
    sent, received = _num_elements(inputs), _num_elements(outputs)
    if name == "gather":
        received = sent * len(group.ranks)  # as NCCL notes it on every rank, also beside the root
    elif name == "scatter":
        sent = received * len(group.ranks)
    sent_splits = _numbers(call.by_name.get("input_split_sizes"))
    received_splits = _numbers(call.by_name.get("output_split_sizes"))
    message = Message(
        name=_WITH_SPLITS if sent_splits else name,
        group=group,
        sent=sent,
        received=received,
        dtype=(inputs or outputs)[0].dtype if inputs or outputs else "float32",
        sent_splits=sent_splits,
        received_splits=received_splits,
    )
    return (_with_peer(message, call),)


def _with_peer(message: Message, call: OpSignature) -> Message:
    """A transfer with its other end; others as they are."""
    peer = call.by_name.get("dst" if message.name == "send" else "src")
    if not call.op.startswith("c10d::") or message.name not in ("send", "recv"):
        return message
    tag = call.by_name.get("tag")
    assert isinstance(peer, int)
    return message._replace(peer=peer, tag=tag if isinstance(tag, int) else 0)


def _transfers(call: OpSignature, group: ProcessGroup) -> tuple[Message, ...]:
    """Those of a batch, in the order of the call."""
    kinds = call.by_name["op_list"]
    assert isinstance(kinds, tuple)
    peers, tags = _numbers(call.by_name["peer_list"]), _numbers(call.by_name["tag_list"])
    tensors = flattened(call.by_name["tensors"], TensorSpec)
    return tuple(
        Message(
            name="send" if kind == "isend" else "recv",
            group=group,
            sent=spec.numel,
            received=spec.numel,
            dtype=spec.dtype,
            peer=peer,
            tag=tag,
        )
        for kind, peer, tag, spec in zip(kinds, peers, tags, tensors, strict=True)
    )


def _num_elements(tensors: list[TensorSpec]) -> int:
    return sum(spec.numel for spec in tensors)


def _numbers(value: Argument) -> tuple[int, ...]:
    if not isinstance(value, tuple):
        return ()
    return tuple(item for item in value if isinstance(item, int))
