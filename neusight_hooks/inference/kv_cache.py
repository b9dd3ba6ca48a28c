"""What a model that generates keeps of each token."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from statistics import median
from typing import NamedTuple

from neusight.recording.recording import (
    Alloc,
    Free,
    ModelInput,
    OpCall,
    OpSignature,
    Recording,
    TensorSpec,
    replays,
)

#: Ops that write a token's keys or values into a cache that was allocated before, and the name of
#: what they write.
_WRITES = {
    "aten::index_copy_": "source",
    "aten::index_put_": "values",
    "aten::_index_put_impl_": "values",
}


#: Ops that give the part of a cache that is then copied to, as `cache[:, at] = keys` does.
_PARTS = ("aten::slice", "aten::select", "aten::narrow")

#: What is in the names of compiled kernels that write into a cache.
_COMPILED_WRITES = ("index_put", "index_copy")

#: Dimensions of keys at least: tokens and sizes of heads.
_LEAST_DIMENSIONS = 2

#: Bytes that ids, masks and positions of one token take at most, which a program keeps itself.
_MOST_OF_IDS = 64


class _CachedCall(NamedTuple):
    """One call of a model: what modules, and what all of the program, held before it, and what is
    written into caches in it."""

    entry: ModelInput
    held_bytes: int
    all_bytes: int
    written_bytes: int


def kv_bytes_per_token(recording: Recording) -> float | None:
    """Bytes that a cache holds of each token of a sequence: by how much what modules keep grows
    from one decoded token to the next (less where less is kept of a prompt's tokens), else what is
    written into memory that is there already, else by how much all grows (beams are put in order
    outside of modules). None where nothing is decoded; 0 where nothing is kept of a token.

    Where tokens are drafted, a round is taken to yield one, which both models keep.

    Source: the recorded allocations; of a cache of keys and values 2 x layers x heads x head size x
    bytes an element.
    """
    calls = list(_calls(recording))
    if any(call.entry.drafted for call in calls):
        return _of_rounds(calls)
    tokens = [
        (call, after)
        for call, after in pairwise(calls)
        if _is_token(call.entry) and _is_token(after.entry)
    ]
    if not tokens:
        return None
    grown = median(
        (after.held_bytes - call.held_bytes) / call.entry.samples for call, after in tokens
    )
    if grown > 0:
        prompt = _of_prompt(calls)
        return min(grown, prompt) if prompt > 0 else grown
    written = [
        call.written_bytes / (call.entry.samples * call.entry.length)
        for call, after in pairwise(calls)
        if _is_token(after.entry) and call.entry.samples and call.entry.length
    ]
    if any(written):
        return max(written)
    grown = median(
        (after.all_bytes - call.all_bytes) / call.entry.samples for call, after in tokens
    )
    return grown if grown > _MOST_OF_IDS else 0.0


def state_bytes_per_sequence(recording: Recording) -> float:
    """Bytes that modules keep of each sequence between two decoded tokens; a cache of keys and
    values, which grows, is part of it."""
    held = [
        call.held_bytes / call.entry.samples for call in _calls(recording) if _is_token(call.entry)
    ]
    return median(held) if held else 0.0


def _of_prompt(calls: Sequence[_CachedCall]) -> float:
    """Bytes that are kept of each token of a prompt. Of the last tokens a quantized cache holds
    more, until there are enough of them to be packed."""
    first, length = 0, 0
    for at, call in enumerate(calls):
        entry = call.entry
        if length and _is_token(entry):
            return (call.held_bytes - calls[first].held_bytes) / (entry.samples * length)
        if entry.is_decode:
            length = 0
        elif length and entry.has_cache:  # the next part of the same prompt
            length += entry.length
        else:
            first, length = at, entry.length
    return 0.0


def _of_rounds(calls: Sequence[_CachedCall]) -> float | None:
    """As `kv_bytes_per_token`, from one call that verifies most drafted tokens to the next; what is
    written is of the model that verifies, and of the one that drafts."""
    most = max(call.entry.drafted for call in calls)
    rounds = [call for call in calls if call.entry.drafted == most and call.entry.samples]
    grown = [
        (after.held_bytes - call.held_bytes) / call.entry.samples
        for call, after in pairwise(rounds)
    ]
    if grown and median(grown) > 0:
        return median(grown)
    of_draft = [call for call in calls if _is_token(call.entry)]
    written = [
        max((one.written_bytes / (one.entry.samples * one.entry.length) for one in ones), default=0)
        for ones in (rounds, of_draft)
    ]
    return sum(written) if any(written) else None


def _is_token(entry: ModelInput) -> bool:
    return entry.is_decode and entry.length == 1 and entry.samples > 0


def _calls(recording: Recording) -> Iterator[_CachedCall]:
    held: dict[tuple[int, int], tuple[int, bool]] = {}
    of_modules = of_all = written = prompt = 0
    call: _CachedCall | None = None
    before: OpSignature | None = None
    for replay in replays(recording):
        for entry in replay.step.entries:
            if isinstance(entry, Alloc):
                is_kept = bool(entry.module) and entry.kind == "activation"
                held[replay.alloc_id(entry)] = entry.num_bytes, is_kept
                of_all += entry.num_bytes
                of_modules += entry.num_bytes * is_kept
            elif isinstance(entry, Free):
                storage = replay.storage_id(entry.storage)
                num_bytes, is_kept = held.pop(storage, (0, False)) if storage else (0, False)
                of_all -= num_bytes
                of_modules -= num_bytes * is_kept
            elif isinstance(entry, OpCall):
                written += _written(entry, before, prompt)
                before = entry.signature
            elif isinstance(entry, ModelInput):
                if call is not None:
                    yield call._replace(written_bytes=written)
                call, written = _CachedCall(entry, of_modules, of_all, 0), 0
                prompt = prompt if entry.is_decode else entry.length
    if call is not None:
        yield call._replace(written_bytes=written)


def _written(call: OpCall, before: OpSignature | None, prompt: int) -> int:
    """Bytes that a module writes into a part of a larger tensor of the same dtype; where it copies
    to what the op before it cut out, into one with space for the tokens of the prompt as well."""
    signature = call.signature
    if not call.module:
        return 0
    if signature.op.startswith("inductor::"):
        return _written_by_compiled(signature, prompt)
    if signature.op == "aten::copy_" and before is not None and before.op in _PARTS:
        part, whole = signature.optional_tensor("self"), before.optional_tensor("self")
        if part is None or whole is None or before.outputs != (part,):
            return 0
        return part.num_bytes if prompt * part.numel < whole.numel else 0
    name = _WRITES.get(signature.op)
    written = signature.optional_tensor(name) if name else None
    whole = signature.optional_tensor("self")
    if written is None or whole is None or len(written.shape) < _LEAST_DIMENSIONS:
        return 0
    return written.num_bytes if written.numel < whole.numel else 0


def _written_by_compiled(signature: OpSignature, prompt: int) -> int:
    """Bytes that a compiled kernel writes into a tensor with space for the prompt's tokens too."""
    written = signature.by_name.get("bytes_written")
    is_write = any(name in signature.op for name in _COMPILED_WRITES)
    if not is_write or not isinstance(written, int):
        return 0
    is_part = any(
        isinstance(value, TensorSpec)
        and "out_ptr" in name
        and len(value.shape) >= _LEAST_DIMENSIONS
        and value.num_bytes > prompt * written
        for name, value in signature.arguments
    )
    return written if is_part else 0
