"""Variants of an optimizer's step: by fused kernels, parameter by parameter, in 8 bits."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import TypeGuard

from neusight.advice.rewriting import with_entries, with_steps
from neusight.advice.tensors import tensors_of
from neusight.ops.optimizer import FUSED_OPTIMIZERS
from neusight.recording.recording import (
    Alloc,
    Entry,
    Free,
    Mark,
    OpCall,
    Recording,
    Step,
    StorageRef,
    stepped_optimizer,
)

#: bitsandbytes' 8-bit optimizers: one FP32 scale for so many elements, and no change to smaller
#: tensors (bitsandbytes 0.46, optim/optimizer.py: blocksize 256, min_8bit_size 4096).
_SCALED_ELEMENTS, _SMALLEST_8BIT = 256, 4096
_SCALE_BYTES = 4

#: Optimizers that bitsandbytes has in 8 bits.
IN_8BIT = ("Adam", "AdamW", "Lion", "SGD", "RMSprop", "Adagrad", "LAMB", "LARS")


def is_of_optimizer(entry: Entry) -> TypeGuard[Mark]:
    """Whether an optimizer's step begins or ends there."""
    return isinstance(entry, Mark) and bool(stepped_optimizer(entry.name))


def with_optimizer_steps(entries: Iterable[Entry]) -> Iterator[tuple[Entry, bool]]:
    """Each entry, and whether it is part of an optimizer's step; what a closure does in there
    (Lightning's forward and backward) is not."""
    depth, closure = 0, False
    for entry in entries:
        if is_of_optimizer(entry):
            depth += 1 if entry.kind == "annotation_begin" else -1
            closure = False
        elif isinstance(entry, OpCall):
            closure = entry.phase != "optimizer"
        yield entry, depth > 0 and not closure


def optimizer_of(recording: Recording) -> str:
    """The class of the optimizer; "" where there is none, or several."""
    names = {
        stepped_optimizer(entry.name)
        for step in recording.steps
        for entry in step.entries
        if is_of_optimizer(entry)
    }
    return names.pop() if len(names) == 1 else ""


# -- time ------------------------------------------------------------------------------------------


Entries = tuple[Entry, ...]


def with_fused_kernels(entries: Entries) -> tuple[Entries, str]:
    """The steps of Adam and AdamW by their fused kernels, which read and write each tensor once;
    and the name of the optimizer ("" where there is none to change)."""
    found: list[Entry] = []
    name = changed = ""
    held: list[Entry] = []
    updates: list[OpCall] = []
    for entry, in_optimizer in with_optimizer_steps(entries):
        if is_of_optimizer(entry):
            if entry.kind == "annotation_begin":
                name = stepped_optimizer(entry.name)
                held, updates = [], []
            else:
                fused = [
                    replace(call, signature=FUSED_OPTIMIZERS[name].step(
                        call.signature.by_name.get("self")
                    ))
                    for call in updates
                ]  # fmt: skip
                changed = name if fused else changed
                found.extend(fused if fused else held)
                name = ""
            found.append(entry)
        elif in_optimizer and (fusible := FUSED_OPTIMIZERS.get(name)) and fusible.replaces:
            held.append(entry)
            if isinstance(entry, OpCall) and entry.signature.op == fusible.replaces:
                updates.append(entry)
        else:
            found.append(entry)
    return tuple(found), changed


# -- memory ----------------------------------------------------------------------------------------


def with_8bit_states(recording: Recording) -> Recording:
    """As if the optimizer kept its states in 8 bits, with a scale for each 256 elements."""
    specs = tensors_of(recording)

    def changed(entry: Entry) -> Entry:
        if not isinstance(entry, Alloc) or entry.kind != "optimizer_state":
            return entry
        spec = specs.get(id(entry))
        numel = spec.numel if spec is not None else entry.num_bytes // _SCALE_BYTES
        if numel < _SMALLEST_8BIT:
            return entry
        scales = -(-numel // _SCALED_ELEMENTS) * _SCALE_BYTES
        return replace(entry, num_bytes=min(entry.num_bytes, numel + scales))

    return with_entries(recording, changed)


def has_foreach(recording: Recording) -> bool:
    """Whether an optimizer allocates temporary tensors for all parameters at once."""
    return any(map(_foreach_ordinals, recording.steps))


def _foreach_ordinals(step: Step) -> set[int]:
    return {
        entry.ordinal
        for entry in step.entries
        if isinstance(entry, Alloc)
        and entry.phase == "optimizer"
        and entry.kind == "activation"
        and entry.op.startswith("aten::_foreach_")
    }


def with_fused_optimizer(recording: Recording) -> Recording:
    """As if the optimizer's step were one kernel without temporary tensors."""
    return with_steps(recording, lambda step: _without_foreach(step, one_by_one=False))


def with_foreach_off(recording: Recording) -> Recording:
    """As if the optimizer went from parameter to parameter: of what it keeps in between for all of
    them there is one at a time."""
    return with_steps(recording, lambda step: _without_foreach(step, one_by_one=True))


def _without_foreach(step: Step, *, one_by_one: bool) -> Step:
    own = _foreach_ordinals(step)
    entries: list[Entry] = []
    for entry in step.entries:
        if isinstance(entry, Alloc) and entry.ordinal in own:
            entries += (entry, Free(StorageRef(0, entry.ordinal))) if one_by_one else ()
        elif not (
            isinstance(entry, Free) and entry.storage.age == 0 and entry.storage.ordinal in own
        ):
            entries.append(entry)
    return replace(step, entries=tuple(entries))
