"""Activation checkpointing: a recorded step as it would be with some modules checkpointed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from neusight.advice.rewriting import with_steps
from neusight.advice.tensors import parameter_shapes, tensors_of
from neusight.recording.recording import (
    Alloc,
    Entry,
    Free,
    Mark,
    OpCall,
    Recording,
    Step,
    StorageRef,
)


class Family(NamedTuple):
    """Modules that a model repeats: `GPT2.blocks.*`."""

    pattern: str
    paths: frozenset[str]


def families_of(recording: Recording) -> list[Family]:
    """Modules of one class that are numbered in one list, outermost first; none within another, and
    none that keeps nothing for its backward."""
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
    found: list[Family] = []
    for (head, _), paths in sorted(groups.items(), key=lambda item: item[0][0].count(".")):
        inside = any(_is_within(head, family.paths) for family in found)
        if len(paths) > 1 and not inside:
            found.append(Family(f"{head}.*", frozenset(paths)))
    return [
        family
        for family in found
        if any(_Checkpointed(step, family.paths).intervals for step in recording.steps)
    ]


def _is_within(path: str, above: Iterable[str]) -> bool:
    return any(path == other or path.startswith(f"{other}.") for other in above)


def with_checkpoints(recording: Recording, paths: frozenset[str]) -> Recording:
    """As if torch.utils.checkpoint ran the modules of these paths: what they keep for backward is
    freed where they end, but for their result, and made again before their backward.

    Within a module all is kept to its end, in forward a little longer than it would be: no use of
    a tensor but the last is known."""
    casts = _weight_casts(recording)
    return with_steps(recording, lambda step: _Checkpointed(step, paths, casts).step())


def _weight_casts(recording: Recording) -> frozenset[int]:
    """Identities of the allocations that are parameters in another dtype: autocast keeps them until
    it ends, which is taken to be before backward."""
    specs = tensors_of(recording)
    shapes = parameter_shapes(recording, specs)
    return frozenset(
        id(entry)
        for step in recording.steps
        for entry in step.entries
        if isinstance(entry, Alloc)
        and entry.op == "aten::_to_copy"
        and (spec := specs.get(id(entry))) is not None
        and spec.shape in shapes
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
        """The run of a module; None if it runs in backward: it is checkpointed already."""
        inside = self._entries[begin:end]
        calls = [entry for entry in inside if isinstance(entry, OpCall)]
        if not calls or any(call.phase != "forward" for call in calls):
            return None
        turn = next(
            at
            for at, entry in enumerate(self._entries[end:], end)
            if isinstance(entry, OpCall) and entry.phase == "backward"
        )
        alive = {
            entry.ordinal
            for entry in inside
            if isinstance(entry, Alloc)
            and entry.kind == "activation"
            and self._freed_at.get(entry.ordinal, end) >= end
        }
        result = _result_of(inside, alive)
        freed_later = {ordinal for ordinal, at in self._freed_at.items() if at > turn}
        kept = frozenset((alive & freed_later) - {result})
        if result is None or not kept:
            return None
        released = self._freed_at.get(result)
        early = released if released is not None and released < turn else None
        return _Interval(begin, end, turn, backward, kept, result, early)

    def step(self) -> Step:
        """Builds the step with checkpoints."""
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
