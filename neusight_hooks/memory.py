"""Storages placed in memory as CUDA's caching allocator would: segments, peaks, who is alive."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Hashable
from dataclasses import dataclass
from typing import NamedTuple

from neusight.recording import Alloc, Free, Phase, Recording, replays

__all__ = [
    "AliveRow",
    "Allocator",
    "MemoryEvent",
    "MemoryTimeline",
    "OutOfMemory",
    "StepMemory",
    "memory_of",
]

# The constants of PyTorch's c10/cuda/CUDACachingAllocator.cpp (2.13), default settings.
#: Requests are rounded up to this.
MIN_BLOCK_BYTES = 512
#: Requests up to this come from the small pool.
SMALL_BYTES = 2**20
#: A segment of the small pool.
SMALL_SEGMENT_BYTES = 2 * 2**20
#: A segment of the large pool, for requests below `LARGE_REQUEST_BYTES`.
LARGE_SEGMENT_BYTES = 20 * 2**20
#: From here on a request gets a segment of its own size, rounded to `SEGMENT_ROUND_BYTES`.
LARGE_REQUEST_BYTES = 10 * 2**20
SEGMENT_ROUND_BYTES = 2 * 2**20
#: Where addresses start; CUDA maps memory thereabouts. No two segments share an address.
FIRST_ADDRESS = 0x7F0000000000


class _Block:
    """A piece of a segment; its neighbours in the segment are `before` and `after`."""

    __slots__ = ("address", "after", "before", "is_free", "is_small", "num_bytes")

    def __init__(self, address: int, num_bytes: int, is_small: bool) -> None:
        self.address = address
        self.num_bytes = num_bytes
        self.is_small = is_small
        self.is_free = True
        self.before: _Block | None = None
        self.after: _Block | None = None


class Allocator:
    """PyTorch's caching allocator as arithmetic: best fit, splitting, coalescing, cached segments.

    `capacity_bytes` is what the GPU has beyond the CUDA context; None is no limit. All sizes are
    bytes. Streams are not told apart: memory freed on one is free for all.

    >>> allocator = Allocator()
    >>> allocator.allocate("weight", 1000)
    True
    >>> allocator.allocated, allocator.reserved
    (1024, 2097152)
    """

    def __init__(self, capacity_bytes: int | None = None) -> None:
        self.capacity_bytes = capacity_bytes
        self.allocated = 0
        self.reserved = 0
        self.peak_allocated = 0
        self.peak_reserved = 0
        self.num_retries = 0
        self._blocks: dict[Hashable, _Block | None] = {}
        self._free: dict[bool, list[tuple[int, int, _Block]]] = {True: [], False: []}
        self._next_address = FIRST_ADDRESS

    def allocate(self, storage: Hashable, num_bytes: int) -> bool:
        """Places a storage; False if that exceeds the capacity (it is placed all the same).

        As the real allocator does, it first gives cached segments back.
        """
        if storage in self._blocks:
            raise ValueError(f"Storage {storage!r} is allocated already; free it first.")
        if num_bytes <= 0:
            self._blocks[storage] = None
            return True
        rounded = _round_up(num_bytes, MIN_BLOCK_BYTES)
        is_small = rounded <= SMALL_BYTES
        fits = True
        block = self._best_fit(rounded, is_small)
        if block is None:
            block, fits = self._new_segment(rounded, is_small)
        self._split(block, rounded)
        block.is_free = False
        self._blocks[storage] = block
        self.allocated += block.num_bytes
        if self.allocated > self.peak_allocated:
            self.peak_allocated = self.allocated
        return fits

    def would_fit(self, num_bytes: int) -> bool:
        """Whether `allocate` would say so; changes nothing.

        >>> Allocator(capacity_bytes=2**20).would_fit(100)
        False
        """
        if num_bytes <= 0 or self.capacity_bytes is None:
            return True
        rounded = _round_up(num_bytes, MIN_BLOCK_BYTES)
        is_small = rounded <= SMALL_BYTES
        pool = self._free[is_small]
        if bisect_left(pool, (rounded,)) < len(pool):
            return True
        cached = sum(block.num_bytes for block in self._cached_segments())
        return self.reserved - cached + _segment_bytes(rounded) <= self.capacity_bytes

    def free(self, storage: Hashable) -> bool:
        """Takes a storage back into the cache; False if it was not allocated."""
        if storage not in self._blocks:
            return False
        block = self._blocks.pop(storage)
        if block is None:
            return True
        self.allocated -= block.num_bytes
        block.is_free = True
        after, before = block.after, block.before
        if after is not None and after.is_free:
            self._forget(after)
            self._merge(block, after)
        if before is not None and before.is_free:
            self._forget(before)
            self._merge(before, block)
            block = before
        insort(self._free[block.is_small], (block.num_bytes, block.address, block))
        return True

    def empty_cache(self) -> None:
        """Gives every segment without a live block back to the GPU."""
        for block in self._cached_segments():
            self._forget(block)
            self.reserved -= block.num_bytes

    def reset_peak(self) -> None:
        """Peaks start anew from what is held now."""
        self.peak_allocated = self.allocated
        self.peak_reserved = self.reserved

    def address_of(self, storage: Hashable) -> int:
        """Where a live storage lies; 0 if it is empty or not live."""
        block = self._blocks.get(storage)
        return 0 if block is None else block.address

    def bytes_of(self, storage: Hashable) -> int:
        """How large the block of a live storage is; 0 if it is empty or not live."""
        block = self._blocks.get(storage)
        return 0 if block is None else block.num_bytes

    def blocks(self) -> list[tuple[int, int]]:
        """(address, bytes) of every live block, in order of address."""
        live = (block for block in self._blocks.values() if block is not None)
        return sorted((block.address, block.num_bytes) for block in live)

    def _best_fit(self, rounded: int, is_small: bool) -> _Block | None:
        pool = self._free[is_small]
        index = bisect_left(pool, (rounded,))
        return pool.pop(index)[2] if index < len(pool) else None

    def _new_segment(self, rounded: int, is_small: bool) -> tuple[_Block, bool]:
        num_bytes = _segment_bytes(rounded)
        fits = True
        if self.capacity_bytes is not None and self.reserved + num_bytes > self.capacity_bytes:
            self.num_retries += 1
            self.empty_cache()
            fits = self.reserved + num_bytes <= self.capacity_bytes
        block = _Block(self._next_address, num_bytes, is_small)
        self._next_address += _round_up(num_bytes, SEGMENT_ROUND_BYTES)
        self.reserved += num_bytes
        if self.reserved > self.peak_reserved:
            self.peak_reserved = self.reserved
        return block, fits

    def _split(self, block: _Block, rounded: int) -> None:
        """Cuts off what the request does not need, where the rest is worth keeping."""
        rest = block.num_bytes - rounded
        if rest < MIN_BLOCK_BYTES if block.is_small else rest <= SMALL_BYTES:
            return
        tail = _Block(block.address + rounded, rest, block.is_small)
        tail.before, tail.after = block, block.after
        if block.after is not None:
            block.after.before = tail
        block.after = tail
        block.num_bytes = rounded
        insort(self._free[block.is_small], (rest, tail.address, tail))

    def _merge(self, block: _Block, after: _Block) -> None:
        block.num_bytes += after.num_bytes
        block.after = after.after
        if after.after is not None:
            after.after.before = block

    def _forget(self, block: _Block) -> None:
        pool = self._free[block.is_small]
        del pool[bisect_left(pool, (block.num_bytes, block.address))]

    def _cached_segments(self) -> list[_Block]:
        return [
            block
            for pool in self._free.values()
            for _, _, block in pool
            if block.before is None and block.after is None
        ]


def _round_up(num_bytes: int, unit: int) -> int:
    return -(-num_bytes // unit) * unit


def _segment_bytes(rounded: int) -> int:
    if rounded <= SMALL_BYTES:
        return SMALL_SEGMENT_BYTES
    if rounded < LARGE_REQUEST_BYTES:
        return LARGE_SEGMENT_BYTES
    return _round_up(rounded, SEGMENT_ROUND_BYTES)


class MemoryEvent(NamedTuple):
    """An allocation (`num_bytes` > 0) or a free (< 0), and what is held after it.

    `mark` is its position among all `Alloc` and `Free` entries in order of replay, as in
    `Timeline.memory_ns`; `step` the program's number of the step.
    """

    mark: int
    step: int
    num_bytes: int
    address: int
    allocated: int
    reserved: int
    source: Alloc


class AliveRow(NamedTuple):
    """What was alive at the peak, summed over equal module, phase and kind."""

    module: str
    phase: Phase
    kind: str
    num_bytes: int
    num_storages: int


@dataclass(frozen=True, slots=True)
class OutOfMemory:
    """The first allocation that the GPU could not have served, and what was held before it.

    The cached segments were given back first, as the real allocator does.
    """

    step: int
    op: str
    module: str
    phase: Phase
    num_bytes: int
    allocated: int
    reserved: int
    capacity_bytes: int
    context_bytes: int


@dataclass(frozen=True, slots=True)
class StepMemory:
    """The memory of one replayed step: its own peaks, and what is left allocated at its end."""

    step: int
    peak_allocated: int
    peak_reserved: int
    end_allocated: int


@dataclass(frozen=True)
class MemoryTimeline:
    """Memory over the whole block, as `torch.cuda.memory_stats` would tell it. All bytes.

    `peak_event` is the allocation that reached the peak (None where nothing was allocated);
    `alive` what was alive then, largest first, without rounding to blocks.
    """

    events: tuple[MemoryEvent, ...]
    steps: tuple[StepMemory, ...]
    peak_allocated: int
    peak_reserved: int
    peak_event: MemoryEvent | None
    alive: tuple[AliveRow, ...]
    capacity_bytes: int | None
    context_bytes: int
    out_of_memory: OutOfMemory | None = None

    @property
    def fits(self) -> bool:
        """Whether every allocation was served within the capacity, the CUDA context included."""
        return self.out_of_memory is None


def memory_of(
    recording: Recording, *, capacity_bytes: int | None = None, context_bytes: int = 0
) -> MemoryTimeline:
    """The recording's storages placed in a GPU of `capacity_bytes`, its context taken off.

    >>> from neusight.recording import Step
    >>> step = Step("train", (Alloc(0, 1000), Alloc(1, 3 * 2**20)))
    >>> memory_of(Recording((step,), gpu="H100", torch_version="2.13")).peak_reserved == 22 * 2**20
    True
    """
    available = None if capacity_bytes is None else max(0, capacity_bytes - context_bytes)
    allocator = Allocator(available)
    live: dict[tuple[int, int], Alloc] = {}
    events: list[MemoryEvent] = []
    steps: list[StepMemory] = []
    out_of_memory: OutOfMemory | None = None
    peak_index, peak_allocated, peak_reserved, mark = -1, 0, 0, -1
    for replay in replays(recording):
        allocator.reset_peak()
        for entry in replay.step.entries:
            if isinstance(entry, Alloc):
                mark += 1
                storage = replay.alloc_id(entry)
                fits = allocator.allocate(storage, entry.num_bytes)
                live[storage] = entry
                if not fits and out_of_memory is None:
                    out_of_memory = _out_of_memory(entry, replay.index, allocator, context_bytes)
                if allocator.allocated > peak_allocated:
                    peak_allocated, peak_index = allocator.allocated, len(events)
                change, source = allocator.bytes_of(storage), entry
                address = allocator.address_of(storage)
            elif isinstance(entry, Free):
                mark += 1
                known = replay.storage_id(entry.storage)
                if known is None or known not in live:
                    continue  # allocated in a step that is folded away
                change, source = -allocator.bytes_of(known), live.pop(known)
                address = allocator.address_of(known)
                allocator.free(known)
            else:
                continue
            if change:
                events.append(
                    MemoryEvent(
                        mark, replay.index, change, address, allocator.allocated,
                        allocator.reserved, source,
                    )
                )  # fmt: skip
        peak_reserved = max(peak_reserved, allocator.peak_reserved)
        steps.append(
            StepMemory(
                step=replay.index,
                peak_allocated=allocator.peak_allocated,
                peak_reserved=allocator.peak_reserved,
                end_allocated=allocator.allocated,
            )
        )
    return MemoryTimeline(
        events=tuple(events),
        steps=tuple(steps),
        peak_allocated=peak_allocated,
        peak_reserved=peak_reserved,
        peak_event=events[peak_index] if peak_index >= 0 else None,
        alive=_alive_after(events[: peak_index + 1]),
        capacity_bytes=capacity_bytes,
        context_bytes=context_bytes,
        out_of_memory=out_of_memory,
    )


def _out_of_memory(
    alloc: Alloc, step: int, allocator: Allocator, context_bytes: int
) -> OutOfMemory:
    rounded = _round_up(alloc.num_bytes, MIN_BLOCK_BYTES)
    return OutOfMemory(
        step=step,
        op=alloc.op,
        module=alloc.module,
        phase=alloc.phase,
        num_bytes=alloc.num_bytes,
        allocated=allocator.allocated - rounded,
        reserved=allocator.reserved - _segment_bytes(rounded),
        capacity_bytes=(allocator.capacity_bytes or 0) + context_bytes,
        context_bytes=context_bytes,
    )


def _alive_after(events: list[MemoryEvent]) -> tuple[AliveRow, ...]:
    live: dict[int, Alloc] = {}
    for event in events:
        if event.num_bytes > 0:
            live[event.address] = event.source
        else:
            del live[event.address]
    sums: dict[tuple[str, Phase, str], list[int]] = defaultdict(lambda: [0, 0])
    for alloc in live.values():
        row = sums[(alloc.module, alloc.phase, alloc.kind)]
        row[0] += alloc.num_bytes
        row[1] += 1
    rows = [AliveRow(*key, num_bytes=total, num_storages=n) for key, (total, n) in sums.items()]
    return tuple(sorted(rows, key=lambda row: (-row.num_bytes, row[:3])))
