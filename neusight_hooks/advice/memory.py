"""What would make a program fit: each change made to its recording, which is then placed anew."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

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
from neusight.ops.optimizer import FUSED_OPTIMIZERS
from neusight.output.batch import Batch, batch_of
from neusight.predictors.gpu import GPU
from neusight.predictors.kernel import DTYPE_BYTES
from neusight.recording.recording import (
    Alloc,
    Entry,
    Free,
    Mark,
    OpCall,
    Recording,
    Step,
    StorageRef,
    TensorSpec,
    stepped_optimizer,
)

__all__ = [
    "LargestBatch",
    "MemoryAdvice",
    "Remedy",
    "memory_advice",
    "recorded_batch",
    "shortened",
    "tensors_of",
    "with_8bit_states",
    "with_batch",
    "with_checkpoints",
    "with_foreach_off",
    "with_fused_optimizer",
]

#: bitsandbytes' 8-bit optimizers: one FP32 scale for so many elements, and no change to smaller
#: tensors (bitsandbytes 0.46, optim/optimizer.py: blocksize 256, min_8bit_size 4096).
_SCALED_ELEMENTS, _SMALLEST_8BIT = 256, 4096
_SCALE_BYTES = 4

#: Optimizers that bitsandbytes has in 8 bits.
_IN_8BIT = ("Adam", "AdamW", "Lion", "SGD", "RMSprop", "Adagrad", "LAMB", "LARS")

#: Share of the memory that a change must save to be worth telling.
SMALLEST_SAVING = 0.02

#: Share of the memory to which the smallest that suffices is told.
PRECISION = 0.005

#: More than any GPU has, so that nothing is refused.
UNLIMITED = 2**60

#: Batches tried above the one that was recorded.
_LARGEST_FACTOR = 1024


@dataclass(frozen=True)
class Remedy:
    """A change to the program and the memory that it would then need.

    `total_bytes` is the smallest memory that it fits into, the CUDA context included; `added_us`
    the time that it adds to a step, None where nobody knows; `needs` what else has to be true.
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


# -- does it fit? -------------------------------------------------------------------------------


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
    return replace(
        recording,
        steps=tuple(replace(step, count=min(step.count, 2)) for step in recording.steps),
    )


# -- which tensor an allocation is --------------------------------------------------------------


def tensors_of(recording: Recording) -> dict[int, TensorSpec]:
    """Shape and dtype of what was allocated, by the identity of the `Alloc`; those that an op
    returned."""
    found: dict[int, TensorSpec] = {}
    for step in recording.steps:
        returned: list[TensorSpec] = []
        op = ""
        for entry in step.entries:
            if isinstance(entry, OpCall):
                op, returned = entry.signature.op, list(entry.signature.output_tensors)
            elif isinstance(entry, Alloc) and entry.op == op:
                for position, spec in enumerate(returned):
                    if _storage_bytes(spec) == entry.num_bytes:
                        found[id(entry)] = returned.pop(position)
                        break
    return found


def _storage_bytes(spec: TensorSpec) -> int:
    last = sum((n - 1) * s for n, s in zip(spec.shape, spec.stride, strict=True))
    return 0 if 0 in spec.shape else int((last + 1) * DTYPE_BYTES.get(spec.dtype, 4))


# -- the remedies -------------------------------------------------------------------------------


Change = Callable[[Recording], Recording]


class _Idea(NamedTuple):
    what: str
    change: Change
    is_priced: bool = False
    needs: str = ""
    settings: AllocatorSettings | None = None


def _remedies(
    recording: Recording, trials: _Trials, needed_bytes: int, latency_of: LatencyOf | None
) -> tuple[Remedy, ...]:
    def tried(idea: _Idea) -> Remedy:
        changed = idea.change(recording)
        total = trials.needed_bytes(changed, idea.settings)
        return Remedy(
            what=idea.what,
            total_bytes=total,
            saved_bytes=needed_bytes - total,
            fits=trials.fits(changed, settings=idea.settings),
            needs=idea.needs,
        )

    def priced(idea: _Idea, remedy: Remedy) -> Remedy:
        if latency_of is None or not idea.is_priced:
            return remedy
        added = latency_of(idea.change(recording)) - latency_of(recording)
        return replace(remedy, added_us=added)

    found = [(idea, tried(idea)) for idea in _ideas(recording)]
    worth = [
        (idea, priced(idea, remedy))
        for idea, remedy in found
        if remedy.saved_bytes >= SMALLEST_SAVING * needed_bytes
    ]
    remedies = [remedy for _, remedy in worth]
    if len(worth) > 1 and not any(remedy.fits for remedy in remedies):
        remedies.append(tried(_together([idea for idea, _ in worth])))
    return tuple(sorted(remedies, key=lambda remedy: (not remedy.fits, -remedy.saved_bytes)))


def _together(ideas: Sequence[_Idea]) -> _Idea:
    def change(recording: Recording) -> Recording:
        for idea in ideas:
            recording = idea.change(recording)
        return recording

    settings = [idea.settings for idea in ideas if idea.settings is not None]
    return _Idea("all of these together", change, settings=settings[0] if settings else None)


def _ideas(recording: Recording) -> Iterator[_Idea]:
    for family in _families(recording):
        if any(_Checkpointed(step, family.paths).intervals for step in recording.steps):
            what = f"checkpoint {family.pattern} ({len(family.paths)} modules)"
            yield _Idea(what, _checkpointing(family.paths), is_priced=True)
    optimizer = _optimizer_of(recording)
    if optimizer in _IN_8BIT:
        yield _Idea(
            f"{optimizer} with 8-bit states (bitsandbytes)",
            with_8bit_states,
            needs="its kernels are not in the forecast",
        )
    if _has_foreach(recording):
        if optimizer in FUSED_OPTIMIZERS:
            yield _Idea(f"{optimizer}(fused=True)", with_fused_optimizer)
        else:
            yield _Idea(f"{optimizer or 'the optimizer'}(foreach=False)", with_foreach_off)
    settings = allocator_settings(recording)
    if not settings.expandable_segments:
        yield _Idea(
            "PYTORCH_ALLOC_CONF=expandable_segments:True",
            lambda unchanged: unchanged,
            settings=replace(settings, expandable_segments=True),
        )


def _checkpointing(paths: frozenset[str]) -> Change:
    return lambda recording: with_checkpoints(recording, paths)


# -- activation checkpointing -------------------------------------------------------------------


class _Family(NamedTuple):
    """Modules that a model repeats: `GPT2.blocks.*`."""

    pattern: str
    paths: frozenset[str]


def _families(recording: Recording) -> list[_Family]:
    """Modules of one class that are numbered in one list, outermost first; none within another."""
    classes: dict[str, str] = {}
    for step in recording.steps:
        for entry in step.entries:
            if isinstance(entry, Mark) and entry.kind == "module_begin":
                classes.setdefault(entry.name, entry.detail)
    groups: dict[tuple[str, str], set[str]] = {}
    for path, kind in classes.items():
        head, _, last = path.rpartition(".")
        if last.isdigit():
            groups.setdefault((head, kind), set()).add(path)
    found: list[_Family] = []
    for (head, _), paths in sorted(groups.items(), key=lambda item: item[0][0].count(".")):
        inside = any(_is_within(head, family.paths) for family in found)
        if len(paths) > 1 and not inside:
            found.append(_Family(f"{head}.*", frozenset(paths)))
    return found


def _is_within(path: str, above: Iterable[str]) -> bool:
    return any(path == other or path.startswith(f"{other}.") for other in above)


def with_checkpoints(recording: Recording, paths: frozenset[str]) -> Recording:
    """As if torch.utils.checkpoint ran the modules of these paths: what they keep for backward is
    freed where they end, but for their result, and made again before their backward.

    Within a module all is kept to its end, in forward a little longer than it would be: no use of
    a tensor but the last is known."""
    casts = _weight_casts(recording)
    return _with_steps(recording, lambda step: _Checkpointed(step, paths, casts).step())


def _weight_casts(recording: Recording) -> frozenset[int]:
    """Identities of the allocations that are parameters in another dtype: autocast keeps them until
    it ends, which is taken to be before backward."""
    specs = tensors_of(recording)
    shapes = _parameter_shapes(recording, specs)
    return frozenset(
        id(entry)
        for step in recording.steps
        for entry in step.entries
        if isinstance(entry, Alloc)
        and entry.op == "aten::_to_copy"
        and (spec := specs.get(id(entry))) is not None
        and spec.shape in shapes
    )


def _parameter_shapes(
    recording: Recording, specs: Mapping[int, TensorSpec]
) -> frozenset[tuple[int, ...]]:
    """The shapes of parameters, gradients and buffers, and those transposed."""
    return frozenset(
        shape
        for step in recording.steps
        for entry in step.entries
        if isinstance(entry, Alloc)
        and entry.kind in ("parameter", "gradient", "buffer")
        and (spec := specs.get(id(entry))) is not None
        for shape in (spec.shape, spec.shape[::-1])
    )


class _Interval(NamedTuple):
    """One run of a module in a forward pass, as positions in the step's entries: `begin` and `end`
    of the module, `turn` the first op of backward, `backward` the first of its own there. `kept`
    are ordinals of what it keeps for backward, `result` that of what it returns, `released` where
    that is freed if before the turn."""

    begin: int
    end: int
    turn: int
    backward: int
    kept: frozenset[int]
    result: int
    released: int | None


class _Checkpointed:
    """A step as it would be with some of its modules checkpointed."""

    def __init__(
        self, step: Step, paths: frozenset[str], weight_casts: frozenset[int] = frozenset()
    ) -> None:
        self._step = step
        self._weight_casts = weight_casts
        self._entries = step.entries
        self._freed_at = {
            entry.storage.ordinal: position
            for position, entry in enumerate(self._entries)
            if isinstance(entry, Free) and entry.storage.age == 0
        }
        self.intervals = list(self._found(paths)) if step.kind == "train" else []

    def _found(self, paths: frozenset[str]) -> Iterator[_Interval]:
        backward_of = self._first_backward_after(paths)
        open_at: list[tuple[str, int]] = []
        for position, entry in enumerate(self._entries):
            if not isinstance(entry, Mark) or entry.name not in paths:
                continue
            if entry.kind == "module_begin":
                open_at.append((entry.name, position))
            elif entry.kind == "module_end" and open_at and open_at[-1][0] == entry.name:
                _, begin = open_at.pop()
                backward = backward_of(entry.name, position)
                if not open_at and backward is not None:
                    interval = self._interval(begin, position, backward)
                    if interval is not None:
                        yield interval

    def _first_backward_after(self, paths: frozenset[str]) -> Callable[[str, int], int | None]:
        ops: dict[str, list[int]] = {path: [] for path in paths}
        owner: dict[str, str | None] = {}
        for position, entry in enumerate(self._entries):
            if not isinstance(entry, OpCall) or entry.phase != "backward":
                continue
            if entry.module not in owner:
                owner[entry.module] = next(
                    (path for path in paths if _is_within(entry.module, (path,))), None
                )
            path = owner[entry.module]
            if path is not None:
                ops[path].append(position)
        return lambda path, after: next((at for at in ops[path] if at > after), None)

    def _interval(self, begin: int, end: int, backward: int) -> _Interval | None:
        """None for a module that runs in backward itself: it is checkpointed already."""
        inside = self._entries[begin:end]
        calls = [entry for entry in inside if isinstance(entry, OpCall)]
        if not calls or any(call.phase != "forward" for call in calls):
            return None
        turn = next(
            at
            for at in range(end, backward + 1)
            if isinstance(entry := self._entries[at], OpCall) and entry.phase == "backward"
        )
        alive = [
            entry
            for entry in inside
            if isinstance(entry, Alloc)
            and entry.kind == "activation"
            and not begin < self._freed_at.get(entry.ordinal, end) < end
        ]
        result = _result_of(inside, {entry.ordinal for entry in alive})
        kept = frozenset(
            entry.ordinal
            for entry in alive
            if entry.ordinal != result and self._freed_at.get(entry.ordinal, -1) > turn
        )
        if result is None or not kept:
            return None
        released = self._freed_at.get(result)
        early = released if released is not None and released < turn else None
        return _Interval(begin, end, turn, backward, kept, result, early)

    def step(self) -> Step:
        """The step with checkpoints."""
        if not self.intervals:
            return self._step
        insert: dict[int, list[Entry]] = {}
        renamed: dict[int, int] = {}
        dropped: set[int] = set()
        fresh = 1 + max(entry.ordinal for entry in self._entries if isinstance(entry, Alloc))
        for position, interval in enumerate(self.intervals):
            casts = self._casts_in(interval)
            for at, ordinals in ((interval.end, interval.kept - casts), (interval.turn, casts)):
                gone = [Free(StorageRef(0, ordinal)) for ordinal in sorted(ordinals)]
                insert.setdefault(at, []).extend(gone)
            again, numbers, fresh = self._again(interval, fresh)
            renamed |= numbers
            before = self.intervals[position - 1] if position else None
            if before is not None and before.released is not None:
                # What goes into a checkpointed module is kept until it has run again.
                dropped.add(before.released)
                again.append(Free(StorageRef(0, before.result)))
            insert.setdefault(interval.backward, []).extend(again)
        entries: list[Entry] = []
        for at, entry in enumerate(self._entries):
            entries += insert.get(at, ())
            if at in dropped:
                continue
            if isinstance(entry, Free) and entry.storage.age == 0:
                number = renamed.get(entry.storage.ordinal)
                if number is not None:
                    entry = Free(StorageRef(0, number))
            entries.append(entry)
        return replace(self._step, entries=tuple(entries))

    def _casts_in(self, interval: _Interval) -> frozenset[int]:
        return frozenset(
            entry.ordinal
            for entry in self._entries[interval.begin : interval.end]
            if isinstance(entry, Alloc)
            and id(entry) in self._weight_casts
            and entry.ordinal in interval.kept
        )

    def _again(self, interval: _Interval, fresh: int) -> tuple[list[Entry], dict[int, int], int]:
        """The module's forward in backward: its entries, and the new ordinals of what it keeps."""
        numbers: dict[int, int] = {}
        again: list[Entry] = []
        alive: set[int] = set()
        for entry in self._entries[interval.begin : interval.end]:
            if isinstance(entry, OpCall):
                again.append(replace(entry, phase="backward"))
            elif isinstance(entry, Alloc):
                numbers[entry.ordinal] = fresh
                again.append(replace(entry, ordinal=fresh))
                alive.add(entry.ordinal)
                fresh += 1
            elif isinstance(entry, Free) and entry.storage.ordinal in alive:
                alive.discard(entry.storage.ordinal)
                again.append(Free(StorageRef(0, numbers[entry.storage.ordinal])))
        again += [
            Free(StorageRef(0, numbers[ordinal])) for ordinal in sorted(alive - interval.kept)
        ]
        return again, {ordinal: numbers[ordinal] for ordinal in interval.kept}, fresh


def _result_of(entries: Sequence[Entry], alive: set[int]) -> int | None:
    """What a module returns: of the last op whose storages outlive it, the largest."""
    last: list[Alloc] = []
    op_since = True
    for entry in entries:
        if isinstance(entry, OpCall):
            op_since = True
        elif isinstance(entry, Alloc) and entry.ordinal in alive:
            if op_since:
                last, op_since = [], False
            last.append(entry)
    return max(last, key=lambda alloc: alloc.num_bytes).ordinal if last else None


# -- optimizers ---------------------------------------------------------------------------------


def _optimizer_of(recording: Recording) -> str:
    """The class of the optimizer; "" where there is none or more than one kind."""
    names = {
        name
        for step in recording.steps
        for entry in step.entries
        if isinstance(entry, Mark) and (name := stepped_optimizer(entry.name))
    }
    return names.pop() if len(names) == 1 else ""


def _has_foreach(recording: Recording) -> bool:
    return any(_is_foreach(entry) for step in recording.steps for entry in step.entries)


def _is_foreach(entry: Entry) -> bool:
    return (
        isinstance(entry, Alloc)
        and entry.phase == "optimizer"
        and entry.kind == "activation"
        and entry.op.startswith("aten::_foreach_")
    )


def _foreach_ordinals(step: Step) -> set[int]:
    return {
        entry.ordinal for entry in step.entries if isinstance(entry, Alloc) and _is_foreach(entry)
    }


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

    return _with_entries(recording, changed)


def with_fused_optimizer(recording: Recording) -> Recording:
    """As if the optimizer's step were one kernel, that keeps nothing in between."""
    return _with_steps(recording, _without_foreach)


def _without_foreach(step: Step) -> Step:
    gone = _foreach_ordinals(step)
    return replace(
        step,
        entries=tuple(
            entry
            for entry in step.entries
            if not (isinstance(entry, Alloc) and entry.ordinal in gone)
            and not (
                isinstance(entry, Free) and entry.storage.age == 0 and entry.storage.ordinal in gone
            )
        ),
    )


def with_foreach_off(recording: Recording) -> Recording:
    """As if the optimizer went from parameter to parameter: of what it keeps in between for all of
    them there is one at a time."""

    def one_by_one(step: Step) -> Step:
        own = _foreach_ordinals(step)
        entries: list[Entry] = []
        for entry in step.entries:
            if isinstance(entry, Free) and entry.storage.age == 0 and entry.storage.ordinal in own:
                continue
            entries.append(entry)
            if isinstance(entry, Alloc) and entry.ordinal in own:
                entries.append(Free(StorageRef(0, entry.ordinal)))
        return replace(step, entries=tuple(entries))

    return _with_steps(recording, one_by_one)


# -- the batch ----------------------------------------------------------------------------------


def recorded_batch(recording: Recording) -> Batch:
    """What the first step that trains (else the first that infers) takes in."""
    for kind in ("train", "eval"):
        for step in recording.steps:
            if step.kind == kind:
                return batch_of(step.entries)
    return Batch()


def with_batch(recording: Recording, *, recorded: int, batch: int) -> Recording:
    """As if `batch` samples were in a step instead of `recorded`: what an op returns grows with it
    where its first dimension is a multiple of the batch or any is the batch, unless it has a
    parameter's shape."""
    specs = tensors_of(recording)
    shapes = _parameter_shapes(recording, specs)

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

    return _with_entries(recording, changed)


def _largest_batch(recording: Recording, trials: _Trials) -> LargestBatch | None:
    """By trying: up from the recorded one until it does not fit, then between the last two."""
    recorded = recorded_batch(recording).samples
    if not recorded:
        return None

    def of(batch: int) -> Recording:
        return with_batch(recording, recorded=recorded, batch=batch)

    if of(2 * recorded) == recording:
        return None  # nothing grows with it: the batch was read off the wrong tensor
    low, high = 0, recorded
    while high <= _LARGEST_FACTOR * recorded and trials.fits(of(high)):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        if trials.fits(of(middle)):
            low = middle
        else:
            high = middle
    return LargestBatch(low, recorded)


# -- changed recordings -------------------------------------------------------------------------


def _with_steps(recording: Recording, change: Callable[[Step], Step]) -> Recording:
    return replace(recording, steps=tuple(change(step) for step in recording.steps))


def _with_entries(recording: Recording, change: Callable[[Entry], Entry]) -> Recording:
    return _with_steps(
        recording, lambda step: replace(step, entries=tuple(map(change, step.entries)))
    )
