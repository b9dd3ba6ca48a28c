"""The batch of a step: what loaders yielded for it, else the inputs of its outermost calls."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

from neusight.recording.recording import Batch, Mark, stepped_optimizer
from neusight.recording.tape import TapedInput, TapedOp, TapeEntry


class _CountedInput(NamedTuple):
    """One input, and how many times optimizers had stepped before it; inside a step each input
    counts as one more time, since closures are called again and again."""

    taped: TapedInput
    update: int


def batch_of_step(taped: Sequence[TapeEntry], *, trains: bool, rolls_out: bool = False) -> Batch:
    """What enters one step.

    In training, the calls that a backward pass comes to: the largest input of each pass, and all
    passes of one module together (gradient accumulation); of several modules the one with most
    samples, since siblings see the same ones. In inference, the largest call; where tokens are
    decoded, one token for each call and sequence. Where an iteration `rolls_out`: what the calls
    without gradients before its first update were given, which the updates use again and again.
    What is computed from the output of another call of the step does not enter it, nor what a
    generator is given for samples that are judged beside the data. Without calls, the first product
    of each pass counts. What loaders yield goes before, but for batches that only calls without a
    backward pass follow.

    >>> batch_of_step([], trains=True)
    Batch(samples=None, tokens=None, known_by='', source='')
    """
    found = _inputs_in(taped)
    if not found:
        return Batch()
    learns = trains and any(type(entry) is TapedOp and entry.node for entry in taped)
    inputs = [item for item in found if item.taped.source == "input"]
    calls = [item for item in inputs if not item.taped.is_product] or inputs
    seen = _rolled_out(calls) if rolls_out else Batch()
    if seen.samples is not None:
        return seen
    if learns:
        calls = [item for item in calls if item.taped.backward is not None]
    called = Batch() if _is_of_graphs(calls, taped) else _of_calls(calls, learns=learns)
    return _of_loaders([item.taped for item in found], called, learns=learns) or called


def _is_of_graphs(calls: Sequence[_CountedInput], taped: Iterable[TapeEntry]) -> bool:
    """Whether rows of features may be nodes of a graph: something beside them says which are
    joined, or the program multiplies them by a sparse matrix."""
    found = {item.taped.what for item in calls}
    return "graph" in found or (
        found == {"input"}
        and any(
            type(entry) is TapedOp
            and entry.phase == "forward"
            and entry.signature.overload == "sparse"
            for entry in taped
        )
    )


def _inputs_in(taped: Iterable[TapeEntry]) -> list[_CountedInput]:
    found: list[_CountedInput] = []
    update = depth = 0
    for entry in taped:
        if type(entry) is TapedInput:
            update += depth > 0
            found.append(_CountedInput(entry, update))
        elif type(entry) is Mark and stepped_optimizer(entry.name):
            depth += 1 if entry.kind == "annotation_begin" else -1
            update += 1
    return found


# -- loaders --------------------------------------------------------------------------------------


def _of_loaders(found: Sequence[TapedInput], called: Batch, *, learns: bool) -> Batch:
    by_loader: dict[object, list[TapedInput]] = defaultdict(list)
    for at, item in enumerate(found):
        is_known = item.source == "loader" and item.samples is not None
        if is_known and (not learns or _is_for_training(found[at + 1 :])):
            by_loader[item.owner].append(item)
    batch = _largest([_together(yields, "from") for yields in by_loader.values()])
    if batch.samples is not None and batch.samples == called.samples:
        return replace(batch, tokens=called.tokens)  # a model may see less of each sequence
    return batch


def _is_for_training(following: Iterable[TapedInput]) -> bool:
    """Whether a backward pass comes to one of the calls before another batch; also where there are
    none: batches may be loaded ahead."""
    uses: list[bool] = []
    for item in following:
        if item.source == "loader":
            break
        uses.append(item.backward is not None)
    return any(uses) or not uses


# -- calls ----------------------------------------------------------------------------------------


def _of_calls(calls: Sequence[_CountedInput], *, learns: bool) -> Batch:
    by_owner: dict[object, list[_CountedInput]] = defaultdict(list)
    for item in _without_computed(calls, learns=learns):
        by_owner[item.taped.owner].append(item)
    if learns:
        return _largest([_together(_passes(items), "into") for items in by_owner.values()])
    verified = [item.taped for item in calls if item.taped.drafted]
    if verified:
        batch = _together(verified[:1], "into")
        return replace(
            batch, samples=None, tokens=None, known_by=f"drafted tokens verified, {batch.known_by}"
        )
    decoding = [items for items in by_owner.values() if any(i.taped.is_decode for i in items)]
    prompts = [item for item in calls if item.taped.is_prompt]
    return _largest([_inferred([*prompts, *items]) for items in decoding or by_owner.values()])


def _without_computed(calls: Sequence[_CountedInput], *, learns: bool) -> list[_CountedInput]:
    """Without those whose input other calls of the step computed, or also where autograd does not
    say so: what was detached for one call may not have been for another. In training also without
    those whose output a module sees beside other samples in one pass, as a discriminator sees what
    a generator made beside the data."""
    here = {id(item.taped) for item in calls}
    computed = [item for item in calls if id(item.taped.origin) in here]
    tensors = {item.taped.tensor for item in computed} - {None}
    found = {id(item.taped) for item in computed}
    given = [
        item for item in calls if id(item.taped) not in found and item.taped.tensor not in tensors
    ]
    if not learns:
        return given
    uses = {(item.taped.owner, item.taped.backward) for item in given}
    generated = {
        id(item.taped.origin)
        for item in computed
        if (item.taped.owner, item.taped.backward) in uses and not _is_of_one_owner(item.taped)
    }
    return [item for item in given if id(item.taped) not in generated] or given


def _is_of_one_owner(item: TapedInput) -> bool:
    """Whether what computed an input is the module that is given it."""
    return item.origin is not None and item.origin.owner == item.owner


def _passes(items: Sequence[_CountedInput]) -> list[TapedInput]:
    """The largest call of each backward pass; what an update before had already is not new."""
    seen: dict[object, int] = {}
    largest: dict[int | None, TapedInput] = {}
    for taped, update in items:
        if taped.tensor is not None and seen.setdefault(taped.tensor, update) < update:
            continue
        known = largest.get(taped.backward)
        if known is None or _size(taped) > _size(known):
            largest[taped.backward] = taped
    return list(largest.values())


def _inferred(items: Sequence[_CountedInput]) -> Batch:
    calls = [item.taped for item in items]
    largest = max(calls, key=_size)
    if not any(call.is_decode for call in calls):
        return _together([largest], "into")
    batch = _together([next(call for call in calls if call.is_decode)], "into")
    tokens = sum(call.samples or 0 for call in calls)
    times = f"{len(calls)} times " if len(calls) > 1 else ""
    return replace(batch, tokens=tokens, known_by=f"a token decoded, {times}{batch.known_by}")


def _size(item: TapedInput) -> tuple[int, int]:
    return item.samples or 0, item.tokens or 0


def _rolled_out(calls: Sequence[_CountedInput]) -> Batch:
    """What the module that is called first was given without gradients before the first update;
    nothing where that are words: those of a sentence are no steps of an environment."""
    first = [item.taped for item in calls if item.update == 0 and item.taped.backward is None]
    own = [item for item in first if item.owner == first[0].owner]
    return (
        Batch()
        if any(item.tokens is not None for item in own) or not own
        else _together(own, "into")
    )


# -- words ----------------------------------------------------------------------------------------


def _together(items: Sequence[TapedInput], preposition: str) -> Batch:
    """All of these, which add up."""
    first = items[0]
    samples = [item.samples for item in items if item.samples is not None]
    tokens = [item.tokens for item in items if item.tokens is not None]
    shape = f"[{' x '.join(map(str, first.shape))}]" if first.shape else ""
    times = f"{len(items)} times" if len(items) > 1 else ""
    line = f"at {first.line}" if first.line else ""
    what = f"{first.samples} items" if first.what == "items" else first.what
    words = [times, what, shape, preposition, first.name, line]
    return Batch(
        samples=sum(samples) if len(samples) == len(items) else None,
        tokens=sum(tokens) if len(tokens) == len(items) else None,
        known_by=" ".join(filter(None, words)),
        source=first.source,
    )


def _largest(batches: Sequence[Batch]) -> Batch:
    """That with most samples, the first of equals. Tokens count where all of them are of tokens."""
    if not batches:
        return Batch()
    found = max(batches, key=lambda batch: (batch.samples or 0, batch.tokens or 0))
    if any(batch.samples is not None and batch.tokens is None for batch in batches):
        found = replace(found, tokens=None)
    return found if found else Batch()
