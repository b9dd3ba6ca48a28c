"""Process groups as a recording knows them: a text each, the stream of its communicator, and the
backends that the program asked for."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d

from neusight.fake_cuda.distributed.rank import Rank, ranks_text
from neusight.predictors.gpu import GPU
from neusight.predictors.physics.communication.collective import reads_peers
from neusight.recording.recording import FIRST_COMMUNICATION_STREAM

#: The backend that runs all groups; torch's tests use it for the same purpose.
FAKE_BACKEND = "fake"

#: What stands for no choice: torch takes NCCL for the GPU and Gloo for the CPU, and a group within
#: others theirs.
_UNSTATED = frozenset({"", "none", "undefined", FAKE_BACKEND})
_BY_DEFAULT = {"cuda": "nccl", "cpu": "gloo"}

_resolve: Any = vars(c10d)["_resolve_process_group"]

#: Ranks among which torch's own all-reduce runs (c10d/symm_mem/intra_node_comm.hpp).
_MOST_INTRA_NODE = 8
#: What torch asks before it: whether NVLink joins all pairs of GPUs of the host.
_INTRA_NODE_QUERY = "intra_node_comm"


def _is_intra_node() -> bool:
    """Whether the program turns on torch's own all-reduce inside a node, as torch reads it."""
    return os.environ.get("ENABLE_INTRA_NODE_COMM", "").lower() in ("1", "y", "yes", "t", "true")


def intra_node_query_result(device_query: str, gpu: GPU) -> str | None:
    """Whether torch's own all-reduce runs on `gpu`; None if the question is another one."""
    return repr(reads_peers(gpu)) if device_query == _INTRA_NODE_QUERY else None


def group_named(name: Any) -> Any:
    """The group that a functional collective is given, or names."""
    return name if isinstance(name, dist.ProcessGroup) else _resolve(name)


class Groups:
    """The process groups of the program, from the rank that runs on such a GPU."""

    def __init__(self, rank: Rank, gpu: GPU, on_query: Callable[[str, object], None]) -> None:
        self._rank, self._gpu, self._on_query = rank, gpu, on_query
        self._texts: dict[tuple[str, tuple[int, ...] | None], str] = {}
        self._streams: dict[tuple[str, int | None], int] = {}

    def text_of(self, group: Any, between: tuple[int, ...] | None = None) -> str:
        """What a recording keeps of a group, or of two of its ranks: "size=8 nodes=1 per_node=8
        name=0 ranks=0..7"."""
        key = (group.group_name, between)
        text = self._texts.get(key)
        if text is None:
            ranks = between or tuple(dist.get_process_group_ranks(group))
            per_node = self._rank.gpus_per_node
            nodes = len({rank // per_node for rank in ranks})
            text = (
                f"size={len(ranks)} nodes={nodes} per_node={per_node} name={key[0]} "
                f"ranks={ranks_text(ranks)}"
            )
            if nodes == 1 and 2 <= len(ranks) <= _MOST_INTRA_NODE and _is_intra_node():
                is_joined = reads_peers(self._gpu)
                self._on_query(_INTRA_NODE_QUERY, is_joined)
                text += " intra_node=1" if is_joined else ""
            self._texts[key] = text
        return text

    def stream_of(self, group: Any, peer: int | None = None) -> int:
        """The stream of a group's communicator; sends and receives that are not batched have one
        with each peer."""
        key = (group.group_name, peer)
        return self._streams.setdefault(key, FIRST_COMMUNICATION_STREAM + len(self._streams))


class Backends:
    """Of each group, by its name, the backend of each type of device."""

    def __init__(self) -> None:
        self._by_device: dict[str, dict[str, str]] = {}
        self._first: dict[str, str] = _BY_DEFAULT

    def note(self, group: Any, wanted: object) -> None:
        """The group is to have that backend, or one a device ("cpu:gloo,cuda:nccl"); the first
        group's where it is not stated."""
        text = str(wanted or "").lower()
        if ":" in text:
            found = dict(part.split(":", 1) for part in text.split(",") if ":" in part)
        elif text in _UNSTATED:
            found = self._first
        else:
            found = {"cuda": text} if text == "nccl" else {"cuda": text, "cpu": text}
        if not dist.is_initialized():
            self._first = found
        self._by_device[group.group_name] = found

    def name_of(self, group: Any) -> str:
        """What get_backend answers."""
        found = self._by_device.get(group.group_name, _BY_DEFAULT)
        return found.get("cuda", "nccl")

    def require_cpu(self, group: Any) -> None:
        """RuntimeError, in torch's words, where no backend of the group takes tensors of the CPU
        (ProcessGroup::getBackend)."""
        if "cpu" not in self._by_device.get(group.group_name, _BY_DEFAULT):
            raise RuntimeError(
                "No backend type associated with device type cpu: NCCL moves tensors of GPUs only; "
                'move it there, or say init_process_group("cpu:gloo,cuda:nccl")'
            )
