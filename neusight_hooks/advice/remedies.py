"""Changes to a recording that may save memory, each tried on the recording itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from neusight.advice.checkpoints import families_of, with_checkpoints
from neusight.advice.optimizers import (
    IN_8BIT,
    has_foreach,
    optimizer_of,
    with_8bit_states,
    with_foreach_off,
    with_fused_optimizer,
)
from neusight.advice.rewriting import with_entries
from neusight.advice.tensors import parameter_shapes, tensors_of
from neusight.memory.allocator_settings import AllocatorSettings
from neusight.memory.placement import allocator_settings
from neusight.ops.optimizer import FUSED_OPTIMIZERS
from neusight.recording.recording import Alloc, Batch, Entry, Recording

RecordingChange = Callable[[Recording], Recording]


class Saving(NamedTuple):
    """A change that may save memory: `is_priced` where it also changes how long a step takes,
    `needs` what else has to be true, `settings` of the allocator where it changes them."""

    what: str
    change: RecordingChange
    is_priced: bool = False
    needs: str = ""
    settings: AllocatorSettings | None = None


def savings_of(recording: Recording) -> Iterator[Saving]:
    """Every change that the program has space for."""
    for family in families_of(recording):
        what = f"checkpoint {family.pattern} ({len(family.paths)} modules)"
        yield Saving(what, partial(with_checkpoints, paths=family.paths), is_priced=True)
    optimizer = optimizer_of(recording)
    if optimizer in IN_8BIT:
        yield Saving(
            f"{optimizer} with 8-bit states (bitsandbytes)",
            with_8bit_states,
            needs="its kernels are not in the forecast",
        )
    if has_foreach(recording):
        if optimizer in FUSED_OPTIMIZERS:
            yield Saving(f"{optimizer}(fused=True)", with_fused_optimizer)
        else:
            yield Saving(f"{optimizer or 'the optimizer'}(foreach=False)", with_foreach_off)
    settings = allocator_settings(recording)
    if not settings.expandable_segments:
        yield Saving(
            "PYTORCH_ALLOC_CONF=expandable_segments:True",
            lambda unchanged: unchanged,
            settings=replace(settings, expandable_segments=True),
        )


def together(savings: Sequence[Saving]) -> Saving:
    """All of these changes, one after the other."""

    def change(recording: Recording) -> Recording:
        for saving in savings:
            recording = saving.change(recording)
        return recording

    settings = [saving.settings for saving in savings if saving.settings is not None]
    return Saving("all of these together", change, settings=settings[0] if settings else None)


def recorded_batch(recording: Recording) -> Batch:
    """What the first step consumes that trains (else infers) and whose batch is known."""
    for kind in ("train", "eval"):
        for step in recording.steps:
            if step.kind == kind and step.batch:
                return step.batch
    return Batch()


def with_batch(recording: Recording, *, recorded: int, batch: int) -> Recording:
    """As if `batch` samples were in a step instead of `recorded`: what an op returns grows with it
    where its first dimension is a multiple of the batch or any is the batch, unless it has a
    parameter's shape."""
    specs = tensors_of(recording)
    shapes = parameter_shapes(recording, specs)

    def changed(entry: Entry) -> Entry:
        if not isinstance(entry, Alloc) or entry.kind != "activation":
            return entry
        spec = specs.get(id(entry))
        if spec is None or not spec.shape or entry.phase == "optimizer" or spec.shape in shapes:
            return entry
        first = spec.shape[0]
        if first == 0 or (first % recorded and recorded not in spec.shape):
            return entry
        return replace(entry, num_bytes=entry.num_bytes // recorded * batch)

    return with_entries(recording, changed)
