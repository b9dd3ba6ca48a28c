"""Which ranks do the same: recordings whose steps hold the same work, whoever it is shared with."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

from neusight.recording.recording import Argument, OpCall, OpSignature, Recording, Step
from neusight.timeline.ranks.groups import parts_of

__all__ = ["Work", "connected", "distinct", "peers_note", "peers_of", "work_of"]

#: What a rank's steps do: equal where two ranks do the same.
Work = tuple[tuple[int, tuple[object, ...]], ...]

#: Peers that a note names.
_MOST_TOLD = 5

#: The part of a group's text that says nothing of which ranks it holds.
_GROUP = re.compile(r"(size=.*) name=\S* ranks=\S*")


def work_of(recording: Recording) -> Work:
    """The ops of its steps with what they read and write; where in a tensor a rank reads, and with
    whom it exchanges what, is left out. What comes before the steps counts only where there are
    none."""
    steps = [step for step in recording.steps if step.kind != "setup"] or recording.steps
    known: dict[int, object] = {}
    return tuple((step.count, tuple(_ops(step, known))) for step in steps)


def _ops(step: Step, known: dict[int, object]) -> Iterator[object]:
    for entry in step.entries:
        if isinstance(entry, OpCall):
            signature = entry.signature
            if id(signature) not in known:
                known[id(signature)] = _work(signature)
            yield known[id(signature)]


def _work(signature: OpSignature) -> object:
    tensors = (signature.input_tensors, signature.output_tensors)
    return (signature.op, signature.overload, *tensors, tuple(_groups(signature)))


def _groups(signature: OpSignature) -> Iterator[str]:
    for _, value in signature.arguments:
        found = _GROUP.fullmatch(value) if isinstance(value, str) else None
        if found is not None:
            yield found[1]
        yield from _kinds(value)


def _kinds(value: Argument) -> Iterator[str]:
    """Of a batch of transfers which are sent and which received."""
    if isinstance(value, tuple):
        yield from (item for item in value if isinstance(item, str))


def distinct(recordings: Sequence[Recording]) -> list[Recording]:
    """Those that stand for all of them, in their order: the first, and each later one that does
    what none before it does, with the ranks that they send to and receive from. All of them where
    the ranks of a group do not make the same calls: an error of theirs is to name each."""
    if not _calls_agree(recordings):
        return list(recordings)
    peers = {recording.rank: peers_of(recording) for recording in recordings}
    works = {recording.rank: work_of(recording) for recording in recordings}
    kept: set[int] = set()
    known: set[Work] = set()
    for rank, work in works.items():
        if work not in known:
            together = connected(rank, peers)
            kept |= together
            known |= {works[other] for other in together}
    return [recording for recording in recordings if recording.rank in kept]


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


def _calls_agree(recordings: Sequence[Recording]) -> bool:
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
    told = ", ".join(map(str, peers[:_MOST_TOLD])) + (", …" if len(peers) > _MOST_TOLD else "")
    plural = "s" if len(peers) > 1 else ""
    return (
        f"rank {recording.rank} sends to or receives from rank{plural} {told}, whose steps differ: "
        "it is placed in time without them; --rank all-distinct runs them side by side"
    )
