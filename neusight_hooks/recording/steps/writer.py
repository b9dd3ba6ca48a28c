"""From entries of the tape to those of a step: relative to it, so that equal steps are equal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple, cast

from neusight.recording.recording import (
    Alloc,
    Entry,
    EventRecord,
    EventWait,
    Free,
    ModelInput,
    OpCall,
    Operator,
    StorageKind,
    StorageRef,
    Synchronize,
)
from neusight.recording.steps.operators import Run, StepOperators
from neusight.recording.storages import StorageWatch
from neusight.recording.tape import (
    AROUND_ENTRIES,
    RepeatedCall,
    SingleEntry,
    TapedAlloc,
    TapedCall,
    TapedFree,
    TapedFunctions,
    TapedInput,
    TapedOp,
    TapeEntry,
)

#: Where a storage was made: the number of the step, and its ordinal in it.
Home = tuple[int, int]


class StepWriter:
    """Writes steps in the order in which they ended.

    Storages, events and autograd's numbers count from the start of the step; equal calls of ops
    become one object. The last event before the first step is `last_event`. `is_second` says that
    another one writes the same entries, too: then that one keeps what storages are for.
    """

    def __init__(
        self, storages: StorageWatch, *, last_event: int = 0, is_second: bool = False
    ) -> None:
        #: The number of the step that is written next.
        self.index = 0
        #: What storages of steps before turned out to be for.
        self.late_kinds: dict[Home, StorageKind] = {}
        #: The operators around the entries that were written last.
        self.operators: Sequence[Operator] = ()
        #: Whether Python functions are among them, if they were recorded.
        self.shows_functions = True
        self._storages = storages
        self._homes: dict[int, Home] = {}
        self._calls: dict[object, OpCall] = {}
        #: Calls that repeat, as they are written behind so many allocations.
        self._repeated: dict[tuple[RepeatedCall, int], list[Entry]] = {}
        self._last: list[TapeEntry] = []
        self._last_freed: dict[int, Home] = {}
        self._last_event = last_event
        self._is_second = is_second
        if not is_second:
            storages.on_kind.subscribe(self._kind_known)

    def write(self, taped: list[TapeEntry]) -> tuple[Entry, ...]:
        """The entries of one step."""
        base = _first_sequence(taped)
        first_event = self._last_event
        self._last, self._last_freed = taped, {}
        entries: list[Entry] = []
        plain: list[SingleEntry] = []
        runs: list[Run] = []
        ordinal = 0
        for entry in taped:
            if not isinstance(entry, TapedCall):
                plain.append(entry)
                continue
            found, ordinal = self._written(plain, base, first_event, ordinal, runs, len(entries))
            called, ordinal = self._repeat(entry, ordinal)
            entries += found + called
            plain = []
        found, _ = self._written(plain, base, first_event, ordinal, runs, len(entries))
        entries += found
        self.index += 1
        written = tuple(entries)
        self.operators = StepOperators(runs, written) if runs else ()
        return written

    def _repeat(self, call: TapedCall, ordinal: int) -> tuple[list[Entry], int]:
        """The entries of a call that repeats another one, behind `ordinal` allocations."""
        key = (call.repeated, ordinal)
        known = self._repeated.get(key)
        if known is None:
            entries = call.expanded()
            known, _ = self._written(entries, _first_sequence(entries), 0, ordinal, [], 0)
            self._repeated[key] = known
        for place, number in zip(call.repeated.ordinals, call.numbers, strict=True):
            self._homes[number] = (self.index, ordinal + place)
        return known, ordinal + call.repeated.num_allocs

    def _written(
        self,
        taped: Sequence[SingleEntry],
        base: _Base | None,
        first_event: int,
        ordinal: int,
        runs: list[Run],
        start: int,
    ) -> tuple[list[Entry], int]:
        """Entries, and how many allocations of the step there are behind them. To `runs` is added
        where operators were called, by positions that count on from `start`."""
        entries: list[Entry] = []
        freed: list[Free] = []
        for entry in taped:
            kind = type(entry)
            if freed and kind is not TapedFree:
                # Storages freed together go in the order of addresses where a table of C++ drops
                # them (autocast's copies of weights), another one in each run; the order of such
                # frees has no effect.
                freed.sort(key=_storage_of)
                entries += freed
                freed = []
            if isinstance(entry, TapedOp):
                entries.append(self.call_of(entry, base))
            elif isinstance(entry, TapedAlloc):
                entries.append(self._alloc_of(entry, ordinal))
                ordinal += 1
            elif isinstance(entry, TapedFree):
                freed += self._free_of(entry.number)
            elif isinstance(entry, AROUND_ENTRIES):
                if self.shows_functions or not isinstance(entry, TapedFunctions):
                    runs.append((start + len(entries), entry))
            elif not isinstance(entry, TapedInput):
                entries.append(self._with_relative_event(entry, first_event))
            elif entry.is_inference:
                length = entry.shape[not entry.is_transposed] if entry.tokens is not None else 0
                goes_on = entry.is_decode and not entry.follows_encoder
                more = entry.drafted, entry.draft_calls, entry.has_cache
                entries.append(ModelInput(entry.samples or 0, length, goes_on, *more))
        freed.sort(key=_storage_of)
        return [*entries, *freed], ordinal

    def take_back(self) -> list[TapeEntry]:
        """The last step is none: its entries as they were taped."""
        self.index -= 1
        own = [number for number, home in self._homes.items() if home[0] == self.index]
        for number in own:
            del self._homes[number]
        self._homes.update(self._last_freed)
        self._last_event -= sum(type(entry) is EventRecord for entry in self._last)
        return self._last

    def call_of(self, op: TapedOp, base: _Base | None = None) -> OpCall:
        """The call of an op, one object for all equal ones; `base` is the step's first number."""
        number = op.sequence_nr
        relative = None
        if number is not None and base is not None and base.thread == op.thread:
            relative = number - base.number
        signature, math, module, phase = op.signature, op.math, op.module, op.phase
        stream, node, stack = op.stream, op.node, op.stack
        thread = op.thread
        key = (id(signature), id(math), module, phase, stream, relative, node, id(stack), thread)
        call = self._calls.get(key)
        if call is None:
            call = OpCall(signature, math, module, phase, stream, relative, node, stack, thread)
            self._calls[key] = call
        return call

    def _alloc_of(self, entry: TapedAlloc, ordinal: int) -> Alloc:
        self._homes[entry.number] = (self.index, ordinal)
        kind = self._kind_of(entry)
        return Alloc(
            ordinal, entry.num_bytes, entry.module, entry.op, entry.phase, kind, entry.stack,
            entry.pool,
        )  # fmt: skip

    def _kind_of(self, entry: TapedAlloc) -> StorageKind:
        kind = self._storages.kind_of(entry.number)
        if kind is not None:
            return cast("StorageKind", kind)
        if entry.phase == "optimizer" and self._storages.is_alive(entry.number):
            return "optimizer_state"
        return "activation"

    def _kind_known(self, number: int, kind: str) -> None:
        """A storage turned out to be for this, perhaps after its step was written."""
        home = self._homes.get(number)
        if home is not None:
            self.late_kinds[home] = cast("StorageKind", kind)

    def _free_of(self, number: int) -> list[Free]:
        """None for a storage that was refused, or made before a step that was taken back."""
        home = self._homes.pop(number, None)
        if not self._is_second:
            self._storages.forget_kind(number)
        if home is None:
            return []
        if home[0] != self.index:
            self._last_freed[number] = home
        return [Free(StorageRef(self.index - home[0], home[1]))]

    def _with_relative_event(self, entry: Entry, first_event: int) -> Entry:
        """With the number of its event in this step; one of an earlier step gets one below 1."""
        if isinstance(entry, EventRecord):
            self._last_event = max(self._last_event, entry.event)
        if isinstance(entry, (EventRecord, EventWait, Synchronize)) and entry.event is not None:
            return replace(entry, event=entry.event - first_event)
        return entry


def _storage_of(free: Free) -> StorageRef:
    return free.storage


class _Base(NamedTuple):
    """The number of autograd's from which those of a step count. Each thread has its own numbers;
    those of one are kept."""

    thread: int
    number: int


def _first_sequence(taped: Sequence[TapeEntry]) -> _Base | None:
    """The lowest autograd number of the step's forward; of its backward, if it has no forward. It
    is the main thread's, if that has any."""
    numbers = [
        (entry.thread, bool(entry.node), entry.sequence_nr)
        for entry in taped
        if isinstance(entry, TapedOp) and entry.sequence_nr is not None
    ]
    if not numbers:
        return None
    thread, _, number = min(numbers)
    return _Base(thread, number)
