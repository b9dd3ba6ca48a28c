"""What would make a program fit: each change made to its recording, which is then placed again."""

from __future__ import annotations

import sys
from bisect import bisect_left
from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from typing import NamedTuple

from neusight.advice.remedies import Saving, recorded_batch, savings_of, together, with_batch
from neusight.advice.rewriting import with_steps
from neusight.advice.tensors import tensors_of
from neusight.memory.allocator import Allocator
from neusight.memory.allocator_settings import AllocatorSettings
from neusight.memory.placement import (
    MemoryTimeline,
    Placement,
    Source,
    allocator_settings,
    memory_on,
    place_all,
    workspaces_on,
)
from neusight.predictors.gpu import GPU
from neusight.recording.recording import Alloc, Recording, TensorSpec

#: Share of the memory that a change must save to be worth showing.
SMALLEST_SAVING = 0.02

#: Share of the memory to which the smallest that suffices is found.
PRECISION = 0.005

#: More than any GPU has, so that nothing is refused.
UNLIMITED = sys.maxsize

#: No batch is tried that is larger than the recorded one times this.
_LARGEST_FACTOR = 1024


@dataclass(frozen=True)
class Remedy:
    """A change to the program and the memory that it would then need.

    `total_bytes` is the smallest memory that it fits into, the CUDA context included; `added_us`
    the time that it adds to a step, None where it is not known; `needs` what else has to be true.
    """

    what: str
    total_bytes: int
    saved_bytes: int
    fits: bool
    added_us: float | None = None
    needs: str = ""


class LargestBatch(NamedTuple):
    """The largest batch that fits (0: none), where the program ran with `recorded`."""

    batch: int
    recorded: int


@dataclass(frozen=True)
class MemoryAdvice:
    """Whether a program fits into `limit_bytes`, where its memory goes and what would change that.

    `needed_bytes` is the smallest memory that it fits into, the CUDA context included; with less
    than `memory.total_bytes` the allocator gives cached memory back and asks again, which takes
    time. `tensors` are those alive at its peak, largest first, with their shapes where known.
    Remedies that fit come first, those that save most before others.
    """

    memory: MemoryTimeline
    fits: bool
    limit_bytes: int
    needed_bytes: int
    tensors: tuple[tuple[Alloc, TensorSpec | None], ...]
    remedies: tuple[Remedy, ...]
    batch: LargestBatch | None


#: What a step of the changed program would take, in microseconds.
LatencyOf = Callable[[Recording], float]


def memory_advice(
    recording: Recording,
    gpu: GPU,
    *,
    limit_bytes: int | None = None,
    latency_of: LatencyOf | None = None,
) -> MemoryAdvice:
    """Judges a recording by `limit_bytes` (all that the GPU has), the CUDA context included, and
    tries out what would save memory; with `latency_of`, also what that costs in time."""
    limit = gpu.memory_bytes if limit_bytes is None else min(limit_bytes, gpu.memory_bytes)
    memory = memory_on(recording, gpu, capacity_bytes=UNLIMITED)
    trials = _Trials(recording, gpu, limit)
    specs = tensors_of(recording)
    needed = trials.needed_bytes(recording)
    return MemoryAdvice(
        memory=memory,
        fits=trials.fits(recording),
        limit_bytes=limit,
        needed_bytes=needed,
        tensors=tuple((alloc, specs.get(id(alloc))) for alloc in memory.alive_at_peak),
        remedies=_remedies(recording, trials, needed, latency_of),
        batch=_largest_batch(recording, trials),
    )


class _DoesNotFitError(Exception):
    """Ends a trial at the first allocation that is refused."""


class _Trial(Placement):
    """Places storages until one is refused."""

    def place(self, storage: Hashable, alloc: Source, stream: int) -> bool:
        """Allocates, or ends the trial."""
        if not super().place(storage, alloc, stream):
            raise _DoesNotFitError
        return True


class _Trials:
    """Tries changed recordings in the memory of one GPU, as far as memory still changes."""

    def __init__(self, recording: Recording, gpu: GPU, limit_bytes: int) -> None:
        self._gpu = gpu
        self._limit = limit_bytes
        self._settings = allocator_settings(recording)
        self._workspaces = workspaces_on(recording, gpu)

    def fits(
        self,
        recording: Recording,
        *,
        settings: AllocatorSettings | None = None,
        limit_bytes: int | None = None,
    ) -> bool:
        """Whether every allocation is served, if need be after cached memory went back."""
        limit = self._limit if limit_bytes is None else limit_bytes
        allocator = Allocator(max(0, limit - self._gpu.context_bytes), settings or self._settings)
        try:
            place_all(shortened(recording), _Trial(allocator, self._workspaces))
        except _DoesNotFitError:
            return False
        return True

    def needed_bytes(self, recording: Recording, settings: AllocatorSettings | None = None) -> int:
        """The smallest memory that it fits into, to half a percent."""
        allocator = Allocator(None, settings or self._settings)
        steps = place_all(shortened(recording), Placement(allocator, self._workspaces))
        context = self._gpu.context_bytes
        low = max((step.peak_allocated for step in steps), default=0) + context
        high = max((step.peak_reserved for step in steps), default=0) + context
        if self.fits(recording, settings=settings, limit_bytes=low):
            return low
        while high - low > PRECISION * high:
            middle = (low + high) // 2
            if self.fits(recording, settings=settings, limit_bytes=middle):
                high = middle
            else:
                low = middle
        return high


def shortened(recording: Recording) -> Recording:
    """Folded steps twice at most: memory does not change after that."""
    return with_steps(recording, lambda step: replace(step, count=min(step.count, 2)))


def _remedies(
    recording: Recording, trials: _Trials, needed_bytes: int, latency_of: LatencyOf | None
) -> tuple[Remedy, ...]:
    def tried(saving: Saving) -> Remedy:
        changed = saving.change(recording)
        total = trials.needed_bytes(changed, saving.settings)
        return Remedy(
            what=saving.what,
            total_bytes=total,
            saved_bytes=needed_bytes - total,
            fits=trials.fits(changed, settings=saving.settings),
            needs=saving.needs,
        )

    def priced(saving: Saving, remedy: Remedy) -> Remedy:
        if latency_of is None or not saving.is_priced:
            return remedy
        added = latency_of(saving.change(recording)) - latency_of(recording)
        return replace(remedy, added_us=added)

    found = [(saving, tried(saving)) for saving in savings_of(recording)]
    worth = [
        (saving, priced(saving, remedy))
        for saving, remedy in found
        if remedy.saved_bytes >= SMALLEST_SAVING * needed_bytes
    ]
    remedies = [remedy for _, remedy in worth]
    if len(worth) > 1 and not any(remedy.fits for remedy in remedies):
        remedies.append(tried(together([saving for saving, _ in worth])))
    return tuple(sorted(remedies, key=lambda remedy: (not remedy.fits, -remedy.saved_bytes)))


def _largest_batch(recording: Recording, trials: _Trials) -> LargestBatch | None:
    """By trying, between one sample and `_LARGEST_FACTOR` times those recorded."""
    recorded = recorded_batch(recording).samples
    if not recorded:
        return None

    def of(batch: int) -> Recording:
        return with_batch(recording, recorded=recorded, batch=batch)

    sizes = range(1, _LARGEST_FACTOR * recorded + 1)
    if of(sizes[-1]) == recording:
        return None  # nothing grows with it: the batch was read off the wrong tensor
    fitting = bisect_left(sizes, True, key=lambda batch: not trials.fits(of(batch)))
    return LargestBatch(fitting, recorded)
