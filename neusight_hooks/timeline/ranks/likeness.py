"""Which ranks do the same: recordings whose steps hold the same work, whoever it is shared with."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from neusight.recording.recording import Argument, OpCall, OpSignature, Recording, Step
from neusight.timeline.ranks.groups import parts_of

__all__ = ["Work", "peers_note", "peers_of", "work_of"]

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
