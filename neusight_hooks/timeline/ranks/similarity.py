"""Which ranks do the same: recordings whose steps hold the same work, with whichever partners."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from math import isclose

from neusight.recording.recording import (
    OpCall,
    OpSignature,
    Recording,
    Step,
    TensorSpec,
)
from neusight.timeline.ranks.cutting import cut_alike
from neusight.timeline.ranks.groups import parts_of

#: Ops whose output is as long as their input's values say.
_COUNTING_OPS = frozenset(
    f"aten::{name}"
    for name in (
        "nonzero",
        "masked_select",
        "_unique",
        "_unique2",
        "unique_dim",
        "unique_consecutive",
    )
)

#: The share by which a count of values may differ between ranks that do the same. Of 4,096 random
#: tokens three quarters lie in another rank's part of a vocabulary, with a standard deviation of
#: 28: among 16 ranks the largest and the smallest count differ by 3 %.
_COUNT_TOLERANCE = 0.05

#: Peers that a note names.
_MOST_SHOWN = 5

#: The part of a group's text that says nothing of which ranks it holds.
_GROUP = re.compile(r"(size=.*) name=\S* ranks=\S*")


@dataclass(frozen=True)
class RankWork:
    """What a rank's steps do: `ops`, with the number of times that each step came, without the
    sizes that are counts of values ("as many as the mask has ones"), which are `counts`."""

    ops: tuple[tuple[int, tuple[object, ...]], ...]
    counts: tuple[int, ...]

    def is_like(self, other: RankWork) -> bool:
        """Whether the other does the same: equal ops, and counts that differ by chance at most."""
        return (
            self.ops == other.ops
            and len(self.counts) == len(other.counts)
            and all(
                isclose(one, another, rel_tol=_COUNT_TOLERANCE)
                for one, another in zip(self.counts, other.counts, strict=True)
            )
        )


def work_of(recording: Recording) -> RankWork:
    """The ops of its steps with what they read and write; where in a tensor a rank reads, and with
    whom it exchanges what, is left out. What comes before the steps counts only where there are
    none."""
    steps = [step for step in recording.steps if step.kind != "setup"] or recording.steps
    known: dict[int, object] = {}
    counts: list[int] = []
    ops = tuple((step.count, tuple(_ops(step, known, counts))) for step in steps)
    return RankWork(ops, tuple(counts))


def _ops(step: Step, known: dict[int, object], counts: list[int]) -> Iterator[object]:
    signatures = [entry.signature for entry in step.entries if isinstance(entry, OpCall)]
    counted = {
        tensor.shape[0]
        for signature in signatures
        if signature.op in _COUNTING_OPS
        for tensor in signature.output_tensors
        if tensor.shape
    }
    for signature in signatures:
        found = [
            size
            for tensor in (*signature.input_tensors, *signature.output_tensors)
            for size in tensor.shape
            if size in counted
        ]
        if found:
            counts += found
            yield _work(signature, counted)
        elif id(signature) in known:
            yield known[id(signature)]
        else:
            yield known.setdefault(id(signature), _work(signature, counted))


def _work(signature: OpSignature, counted: Set[int]) -> object:
    tensors = (signature.input_tensors, signature.output_tensors)
    without_counts = (tuple(_without(tensor, counted) for tensor in each) for each in tensors)
    return (signature.op, signature.overload, *without_counts, tuple(_groups(signature)))


def _without(tensor: TensorSpec, counted: Set[int]) -> object:
    """The tensor without the sizes that are counts, and then without strides, which follow."""
    if counted and not counted.isdisjoint(tensor.shape):
        return (tuple(None if size in counted else size for size in tensor.shape), *tensor[2:])
    return tensor


def _groups(signature: OpSignature) -> Iterator[str]:
    for _, value in signature.arguments:
        found = _GROUP.fullmatch(value) if isinstance(value, str) else None
        if found is not None:
            yield found[1]
        if isinstance(value, tuple):  # of a batch of transfers which are sent, which received
            yield from (item for item in value if isinstance(item, str))


def distinct(recordings: Sequence[Recording]) -> list[Recording]:
    """Those that stand for all of them, in their order: the first, and each later one that does
    what none before it does, with the ranks that they send to and receive from. All of them where
    the ranks of a group do not make the same calls: an error of theirs is to name each."""
    if not calls_agree(recordings):
        return list(recordings)
    peers = {recording.rank: peers_of(recording) for recording in recordings}
    works = {recording.rank: work_of(recording) for recording in recordings}
    kept: set[int] = set()
    for rank, work in works.items():
        if not any(work.is_like(works[other]) for other in kept):
            kept |= connected(rank, peers)
    return [recording for recording in recordings if recording.rank in kept]


def is_like(recording: Recording, other: Recording, *, are_cut: bool) -> bool:
    """Whether two ranks do the same; where both `are_cut`, as far as both came."""
    ranks = (recording.rank, other.rank)
    one, another = cut_alike((recording, other), stopped=ranks if are_cut else ())
    return work_of(one).is_like(work_of(another))


def collectives_of(recording: Recording) -> Recording:
    """The recording without all that no other rank takes part in."""
    steps = tuple(
        replace(
            step,
            entries=tuple(
                entry
                for entry in step.entries
                if isinstance(entry, OpCall) and parts_of(entry, recording.rank)
            ),
            operators=(),
        )
        for step in recording.steps
    )
    return replace(recording, steps=steps)


def connected(rank: int, peers: Mapping[int, Sequence[int]]) -> frozenset[int]:
    """The rank and those that it sends to or receives from, directly or through others, by the
    peers of each; one that has no entry is left out."""
    found: set[int] = set()
    waiting = [rank]
    while waiting:
        one = waiting.pop()
        if one in peers and one not in found:
            found.add(one)
            waiting += peers[one]
    return frozenset(found)


#: The calls of a rank under one key, step by step: what it must agree on with the other ranks of
#: the key, and in how many steps in a row it makes the same.
_Calls = list[tuple[tuple[tuple[str, ...], ...], int]]


def calls_agree(recordings: Sequence[Recording]) -> bool:
    """Whether all ranks that are to meet in a call make the same calls in the same order."""
    ranks = {recording.rank for recording in recordings}
    members: dict[tuple[str, ...], set[int]] = {}
    found: dict[tuple[str, ...], dict[int, _Calls]] = defaultdict(dict)
    for recording in recordings:
        for step in recording.steps:
            for key, (whats, group) in _calls_of(step, recording.rank).items():
                members[key] = ranks.intersection(group)
                calls = found[key].setdefault(recording.rank, [])
                if calls and calls[-1][0] == whats:
                    calls[-1] = (whats, calls[-1][1] + step.count)
                else:
                    calls.append((whats, step.count))
    return all(
        calls.keys() == members[key] and len({tuple(each) for each in calls.values()}) == 1
        for key, calls in found.items()
    )


def _calls_of(
    step: Step, rank: int
) -> dict[tuple[str, ...], tuple[tuple[tuple[str, ...], ...], tuple[int, ...]]]:
    """By key what the rank does in the step, and the ranks that meet there."""
    whats: dict[tuple[str, ...], list[tuple[str, ...]]] = defaultdict(list)
    groups: dict[tuple[str, ...], tuple[int, ...]] = {}
    for entry in step.entries:
        if isinstance(entry, OpCall):
            for part in parts_of(entry, rank):
                whats[part.key].append(part.what)
                groups[part.key] = part.ranks
    return {key: (tuple(each), groups[key]) for key, each in whats.items()}


def peers_of(recording: Recording) -> Sequence[int]:
    """The ranks that it sends to or receives from."""
    own = recording.rank
    found = {
        rank
        for step in recording.steps
        for entry in step.entries
        if isinstance(entry, OpCall)
        for part in parts_of(entry, own)
        if " to " in part.key[-1]
        for rank in part.ranks
    }
    return sorted(found - {own})


def peers_note(recording: Recording) -> str:
    """Which other ranks do something else, of one that was run alone; "" where none is known to."""
    peers = peers_of(recording) if recording.world_size > 1 else ()
    if not peers:
        return ""
    reported = ", ".join(map(str, peers[:_MOST_SHOWN])) + (
        ", …" if len(peers) > _MOST_SHOWN else ""
    )
    plural = "s" if len(peers) > 1 else ""
    return (
        f"rank {recording.rank} sends to or receives from rank{plural} {reported}, whose steps "
        "differ: it is placed in time without them; --rank all-distinct runs them side by side"
    )
