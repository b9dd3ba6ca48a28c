"""A folder of Chakra execution traces: a file for each rank, and the groups that communicate."""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

from neusight._version import __version__
from neusight.ops.communication.messages import BARRIER, Message
from neusight.output.chakra.grid import GridRank, Ranks, numbered_groups, ranks_of_grid
from neusight.output.chakra.tasks import Task, tasks_of
from neusight.output.chakra.wire import (
    Attribute,
    CommType,
    Node,
    NodeType,
    delimited,
    metadata_bytes,
    node_bytes,
)
from neusight.predictors.errors import TraceError
from neusight.predictors.files import write_atomically
from neusight.recording.recording import Recording
from neusight.timeline.spans import StepSpan, Timeline
from neusight.timeline.steady import steady_step_of, steady_steps_of

#: Files are called `<prefix>.<rank>.et`, as simulators look for them.
WORKLOAD = "forecast"
GROUPS_FILE = "comm_groups.json"

_COMM_TYPES = {
    "allreduce": CommType.ALL_REDUCE,
    "allreduce_coalesced": CommType.ALL_REDUCE,
    BARRIER: CommType.ALL_REDUCE,  # of one element, as NCCL does it
    "broadcast": CommType.BROADCAST,
    "reduce": CommType.REDUCE,
    "all_gather": CommType.ALL_GATHER,
    "_allgather_base": CommType.ALL_GATHER,
    "allgather_into_tensor_coalesced": CommType.ALL_GATHER,
    "reduce_scatter": CommType.REDUCE_SCATTER,
    "_reduce_scatter_base": CommType.REDUCE_SCATTER,
    "reduce_scatter_tensor_coalesced": CommType.REDUCE_SCATTER,
    "gather": CommType.GATHER,
    "scatter": CommType.SCATTER,
    "all_to_all": CommType.ALL_TO_ALL,
    "all_to_allv": CommType.ALL_TO_ALL,
}
_NS_PER_US = 1000


class ChakraFiles(NamedTuple):
    """What was written: the ranks that have files, and why others have none ("" if all have)."""

    paths: list[Path]
    missing: str


def write_chakra(
    folder: str | Path, ranks: Sequence[tuple[Recording, Timeline]], *, gpu: str
) -> ChakraFiles:
    """Writes the steady step of each rank as a Chakra execution trace into `folder`.

    A rank that was not run does what one that was run does, in groups and with peers shifted to
    where it stands: that needs ranks in a grid, as torch's DeviceMesh lays them out. Where that is
    not so, only ranks that were run have files, and `missing` says why. TraceError where nothing
    can be written.
    """
    target = Path(folder)
    steps = _steady_steps([timeline for _, timeline in ranks])
    tasks = {
        recording.rank: tasks_of(timeline, step)
        for (recording, timeline), step in zip(ranks, steps, strict=True)
    }
    world_size = ranks[0][0].world_size
    missing = ""
    try:
        places = ranks_of_grid(tasks, world_size)
        groups = numbered_groups(places, tasks)
    except ValueError as error:
        missing = f"only ranks that were run have Chakra traces: {error}"
        places = [GridRank(rank, rank, world_size) for rank in sorted(tasks)]
        groups = numbered_groups(places, tasks)
    try:
        target.mkdir(parents=True, exist_ok=True)
        paths = _write_ranks(target, places, tasks, groups, gpu)
        listed = {str(number): list(members) for members, number in groups.items() if number}
        write_atomically(target / GROUPS_FILE, (json.dumps(listed) + "\n").encode())
    except OSError as error:
        raise TraceError(
            f"Cannot write Chakra traces to {target}: {error.strerror or error}. "
            "Choose a folder that can be written to."
        ) from error
    return ChakraFiles(paths, missing)


def _steady_steps(timelines: Sequence[Timeline]) -> list[StepSpan]:
    """Of each the step that figures speak of: the first rank's, and those at its place."""
    first = steady_step_of(timelines[0])
    if first is None:
        raise TraceError("The program has no steps, so there is nothing to write for Chakra.")
    steady = [steady_steps_of(timeline) for timeline in timelines]
    if len({len(steps) for steps in steady}) == 1:
        place = steady[0].index(first)
        return [steps[place] for steps in steady]
    return [step for timeline in timelines if (step := steady_step_of(timeline)) is not None]


def _write_ranks(
    folder: Path,
    places: Sequence[GridRank],
    tasks: Mapping[int, Sequence[Task]],
    groups: Mapping[Ranks, int],
    gpu: str,
) -> list[Path]:
    """A file each; what is the same on several ranks is made once, and lies on the disk once."""
    about = Attribute("producer", "string", f"neusight {__version__}: a forecast for {gpu}")
    head = delimited(metadata_bytes([about]))
    parts = {rank: list(_parts(own)) for rank, own in tasks.items()}
    written: dict[bytes, Path] = {}
    paths: list[Path] = []
    for rank in places:
        nodes = (
            part if isinstance(part, bytes) else _exchange(part, rank, groups)
            for part in parts[rank.like]
        )
        data = head + b"".join(nodes)
        path = folder / f"{WORKLOAD}.{rank.number}.et"
        digest = sha256(data).digest()
        if digest not in written or not _linked(path, written[digest]):
            write_atomically(path, data)
        written.setdefault(digest, path)
        paths.append(path)
    return paths


def _linked(path: Path, other: Path) -> bool:
    """Makes a file another name of one; False where the file system has no such thing."""
    path.unlink(missing_ok=True)
    try:
        os.link(other, path)
    except OSError:
        return False
    return True


class _Exchange(NamedTuple):
    """A node that is another on each rank: what it exchanges depends on where the rank stands."""

    node: Node
    message: Message


def _parts(tasks: Sequence[Task]) -> Iterator[bytes | _Exchange]:
    """The nodes of a rank: one for each task, and for a batch one for each of its transfers."""
    numbers: list[tuple[int, ...]] = []  # the nodes of each task
    count = 0
    for task, duration_us in zip(tasks, _whole_us(tasks), strict=True):
        # Sends first: a simulator that does one after the other would wait for itself.
        messages = sorted(task.messages, key=lambda message: message.name != "send")
        numbers.append(tuple(range(count, count + max(1, len(messages)))))
        count += len(numbers[-1])
        node = Node(
            number=numbers[-1][0],
            name=task.name,
            node_type=NodeType.COMP,
            ctrl_deps=numbers[task.launch] if task.launch >= 0 else (),
            data_deps=tuple(number for place in task.after for number in numbers[place]),
            start_us=task.start_ns // _NS_PER_US,
            duration_us=duration_us,
            attributes=(_is_host(task), *_work(task)),
        )
        if not messages:
            yield delimited(node_bytes(node))
        for number, message in zip(numbers[-1], messages, strict=False):
            yield _Exchange(node._replace(number=number, attributes=(_is_host(task),)), message)


def _whole_us(tasks: Sequence[Task]) -> Iterator[int]:
    """The duration of each; what is cut off one task of a lane goes to the next one."""
    spent_ns: dict[int, int] = defaultdict(int)
    for task in tasks:
        before_us = spent_ns[task.lane] // _NS_PER_US
        spent_ns[task.lane] += task.duration_ns
        yield spent_ns[task.lane] // _NS_PER_US - before_us


def _is_host(task: Task) -> Attribute:
    return Attribute("is_cpu_op", "bool", int(task.kind == "host"))


def _work(task: Task) -> tuple[Attribute, ...]:
    """What a simulator needs that prices kernels by itself."""
    if task.kernel is None:
        return ()
    return (
        Attribute("num_ops", "uint64", task.kernel.flops),
        Attribute("tensor_size", "uint64", task.kernel.num_bytes),
    )


def _exchange(part: _Exchange, rank: GridRank, groups: Mapping[Ranks, int]) -> bytes:
    """A collective or a transfer as this rank takes part in it."""
    message = part.message
    size = Attribute("comm_size", "uint64", message.sent_bytes)
    if message.is_transfer:
        peer, is_send = rank.peer(message), message.name == "send"
        source, target = (rank.number, peer) if is_send else (peer, rank.number)
        name = f"{'send' if is_send else 'recv'} {source} to {target}"
        node_type = NodeType.COMM_SEND if is_send else NodeType.COMM_RECV
        own: tuple[Attribute, ...] = (
            Attribute("comm_src", "uint32", source),
            Attribute("comm_dst", "uint32", target),
            Attribute("comm_tag", "uint32", message.tag),
        )
    else:
        name, node_type = message.name, NodeType.COMM_COLL
        group = groups[rank.members(message.group.ranks)]
        own = (
            Attribute("comm_type", "int64", _COMM_TYPES[message.name]),
            Attribute("pg_name", "string", str(group)),
        )
    attributes = (*part.node.attributes, size, *own)
    node = part.node._replace(name=name, node_type=node_type, attributes=attributes)
    return delimited(node_bytes(node))
