"""Which ranks meet in a call, by its op: a collective's group, the two ends of a transfer."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from neusight.predictors.clusters.placement import ranks_from
from neusight.recording.recording import OpCall, OpSignature, TensorSpec, flattened

#: Arguments that hold the text of a group.
_GROUP_ARGUMENTS = ("process_group", "group_name", "group")
_GROUP = re.compile(r"name=(\S*) ranks=(\S+)")

#: Ops of one transfer, with the argument that names the other end; a batch has lists of them.
_SENDS = {"send": "dst", "isend": "dst"}
_RECEIVES = {"recv_": "src", "irecv": "src", "recv_any_source_": ""}
_BATCH = "batch_p2p_ops"

#: What programs call the ops of c10d whose names say it otherwise.
_CALLED = {
    "allreduce_": "all_reduce",
    "allreduce_coalesced_": "all_reduce_coalesced",
    "allgather_": "all_gather",
    "_allgather_base_": "all_gather_into_tensor",
    "_reduce_scatter_base_": "reduce_scatter_tensor",
    "alltoall_": "all_to_all",
    "alltoall_base_": "all_to_all_single",
}

#: Collectives in which ranks rightly move unequal bytes: splits of their own, or a root that alone
#: holds all.
_UNEQUAL = ("all_to_all", "all_to_all_single", "gather", "scatter", "all_gather", "reduce_scatter")


class Part(NamedTuple):
    """What one call shares with other ranks. `key` is equal on all `ranks` that meet; `what` is
    what they must agree on, and `words` what this rank does."""

    key: tuple[str, ...]
    ranks: tuple[int, ...]
    what: tuple[str, ...]
    words: str

    @property
    def group(self) -> str:
        """The name of its process group."""
        return self.key[0]


def parts_of(call: OpCall, rank: int) -> tuple[Part, ...]:
    """The ranks that a rank meets in a call: none, a group, or each end of its transfers."""
    signature = call.signature
    texts = (signature.by_name.get(name) for name in _GROUP_ARGUMENTS)
    found = _GROUP.search(next((text for text in texts if isinstance(text, str)), ""))
    if found is None:
        return ()
    name, ranks = found.groups()
    op = signature.op.rpartition("::")[2]
    if op == _BATCH:
        return tuple(_transfers(signature, name, rank))
    if op in _SENDS or op in _RECEIVES:
        others = [other for other in ranks_from(ranks) if other != rank]
        peer = signature.by_name.get(_SENDS.get(op) or _RECEIVES.get(op) or "")
        other = peer if isinstance(peer, int) else others[0] if others else rank
        return (_transfer(name, rank, other, signature.input_tensors, is_send=op in _SENDS),)
    kind = _CALLED.get(op) or op.strip("_")
    if kind == "barrier":
        return (Part((name, ranks), ranks_from(ranks), (kind,), kind),)
    size, dtype = _moved(_inputs(signature))
    agreed = (kind, dtype) if kind in _UNEQUAL else (kind, dtype, size)
    return (Part((name, ranks), ranks_from(ranks), agreed, f"{kind} of {size} {dtype}"),)


def _transfers(signature: OpSignature, name: str, rank: int) -> Iterator[Part]:
    values = signature.by_name
    lists = (values.get("op_list"), values.get("peer_list"), values.get("tensors"))
    kinds, peers, tensors = (value if isinstance(value, tuple) else () for value in lists)
    for kind, peer, tensor in zip(kinds, peers, tensors, strict=True):
        assert isinstance(peer, int)
        specs = (tensor,) if isinstance(tensor, TensorSpec) else ()
        yield _transfer(name, rank, peer, specs, is_send=kind in _SENDS)


def _transfer(
    name: str, rank: int, peer: int, specs: tuple[TensorSpec, ...], *, is_send: bool
) -> Part:
    source, target = (rank, peer) if is_send else (peer, rank)
    moved = _moved(specs)
    words = f"send to rank {peer}" if is_send else f"receive from rank {peer}"
    key = (name, f"{source} to {target}")
    return Part(key, (source, target), moved, f"{words} of {' '.join(moved)}")


def _inputs(signature: OpSignature) -> tuple[TensorSpec, ...]:
    """What the rank puts in; where nothing is named so, all that the op touches."""
    for name, value in signature.arguments:
        if name.startswith("input"):
            found = tuple(flattened(value, TensorSpec))
            if found:
                return found
    return signature.input_tensors


def _moved(specs: tuple[TensorSpec, ...]) -> tuple[str, str]:
    """How many elements, and of what."""
    if not specs:
        return "0", "elements"
    return f"{sum(spec.numel for spec in specs):,}", specs[0].dtype
