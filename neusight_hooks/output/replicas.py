"""How many ranks consume samples of their own, read off what a rank's forward sends."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import prod

from neusight.predictors.formatting import counted
from neusight.recording.recording import RANK_OPTION, Entry, Mark, OpCall, Recording
from neusight.timeline.ranks.similarity import connected, peers_of

#: What a recording keeps of its rank: "rank 0 of 16, 8 a node".
_WORLD_SIZE = re.compile(r"^rank \d+ of (\d+)\b")
#: What it keeps of a process group: "size=4 nodes=1 name=21 ranks=0..3".
_GROUP = re.compile(r"\bsize=(\d+) .*\branks=\S+")
#: Sums over ranks that each hold a part of a layer: in a forward they join activations.
_SUMS = ("allreduce", "all_reduce", "reduce_scatter")
_TRANSFERS = ("send", "recv", "p2p")
#: Dimensions from which on a tensor is activations: metrics and flat parameters have fewer.
_ACTIVATION_DIMENSIONS = 2


@dataclass(frozen=True)
class Replicas:
    """`count` replicas among `world_size` ranks: the ranks of a replica consume the same samples.
    None: this rank alone does not state, for it is a stage of a pipeline. `split` ranks share each
    of its layers."""

    world_size: int = 1
    count: int | None = 1
    split: int = 1

    @property
    def words(self) -> str:
        """The ranks, as a factor.

        >>> Replicas(16, 16).words, Replicas(16, 4).words
        ('16 ranks', '4 replicas of 4 ranks')
        """
        if self.count is None or self.count == self.world_size:
            return f"{self.world_size} ranks"
        return f"{counted(self.count, 'replica')} of {self.world_size // self.count} ranks"


def replicas_of(recording: Recording, entries: Iterable[Entry]) -> Replicas:
    """The replicas among the ranks, by the entries of one rank's step.

    Ranks that sum activations in a forward (all-reduce, reduce-scatter) share a layer, and so
    their samples; all others have samples of their own. What a program sums outside of its modules
    is gradients or parameters: activations only where it has no modules, up to its first backward.
    Ranks that share a sequence (context parallel) count as replicas, each with its tokens.
    """
    found = _WORLD_SIZE.match(recording.options.get(RANK_OPTION, ""))
    world_size = int(found.group(1)) if found else 1
    if world_size == 1:
        return Replicas()
    shared: dict[str, int] = {}
    is_stage = False
    for call in _activations(entries):
        op = call.signature.op.partition("::")[2]
        is_stage = is_stage or any(word in op for word in _TRANSFERS)
        group = _group(call) if any(word in op for word in _SUMS) else None
        if group is not None:
            shared[group[0]] = int(group[1])
    split = prod(shared.values())
    return Replicas(world_size, None if is_stage else max(1, world_size // split), split)


def replicas_together(recordings: Sequence[Recording], alone: Sequence[Replicas]) -> Replicas:
    """The replicas among the ranks where several were run side by side, by what each states alone:
    those that send each other something are the stages of one pipeline."""
    first, split = alone[0], max(item.split for item in alone)
    if all(item.count is not None for item in alone):
        return first
    peers = {recording.rank: peers_of(recording) for recording in recordings}
    stages = connected(recordings[0].rank, peers)
    return Replicas(first.world_size, max(1, first.world_size // (len(stages) * split)), split)


def _activations(entries: Iterable[Entry]) -> Iterator[OpCall]:
    """What a forward sends of activations."""
    entries = list(entries)
    has_modules = any(isinstance(e, Mark) and e.kind == "module_begin" for e in entries)
    is_before_backward = True
    for entry in entries:
        if not isinstance(entry, OpCall):
            continue
        is_before_backward = is_before_backward and entry.phase == "forward"
        if entry.phase != "forward" or "c10d" not in entry.signature.op:
            continue
        is_sum = any(word in entry.signature.op for word in _SUMS)
        if is_sum and not entry.module and (has_modules or not is_before_backward):
            continue
        shapes = (spec.shape for spec in entry.signature.input_tensors)
        if any(len(shape) >= _ACTIVATION_DIMENSIONS for shape in shapes):
            yield entry


def _group(call: OpCall) -> re.Match[str] | None:
    """The text of its process group."""
    texts = (value for value in call.signature.by_name.values() if isinstance(value, str))
    return next(filter(None, map(_GROUP.search, texts)), None)
