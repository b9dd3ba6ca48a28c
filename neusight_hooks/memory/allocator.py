"""PyTorch's caching allocator as arithmetic: blocks, segments, streams."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Hashable
from typing import Literal, NamedTuple

from neusight.memory.allocator_settings import MIB, NUM_ROUNDUP_INTERVALS, AllocatorSettings

# The constants of torch 2.13: c10/core/AllocatorConfig.h and c10/cuda/CUDACachingAllocator.cpp.
#: Requests are rounded up to this.
MIN_BLOCK_BYTES = 512
#: Requests up to this come from the small pool.
SMALL_BYTES = MIB
#: A segment of the small pool.
SMALL_SEGMENT_BYTES = 2 * MIB
#: From here on a request gets a segment of its own size, rounded to `SEGMENT_ROUND_BYTES`.
LARGE_REQUEST_BYTES = 10 * MIB
SEGMENT_ROUND_BYTES = 2 * MIB
#: Where addresses start; CUDA maps memory thereabouts. No two segments share an address.
FIRST_ADDRESS = 0x7F0000000000
#: Address space between the starts of two expandable segments: more than any GPU has memory.
EXPANDABLE_STRIDE = 2**42
#: Streams from here on stand for private pools of CUDA graphs: the graphs have the addresses, so
#: their segments stay. No program has as many streams of its own.
FIRST_PRIVATE = 2**20


class Block:
    """A piece of a segment; its neighbours in the segment are `before` and `after`."""

    __slots__ = ("address", "after", "before", "is_free", "num_bytes", "pool", "requested")

    def __init__(self, address: int, num_bytes: int, pool: int) -> None:
        self.address = address
        self.num_bytes = num_bytes
        self.requested = 0
        self.pool = pool
        self.is_free = True
        self.before: Block | None = None
        self.after: Block | None = None

    @property
    def stream(self) -> int:
        """The stream it is for."""
        return self.pool >> 1

    @property
    def private_pool(self) -> int:
        """The private pool of CUDA graphs that it is of; 0 for all others."""
        return max(0, self.stream - FIRST_PRIVATE)

    @property
    def is_small(self) -> bool:
        """Whether it is of the small pool."""
        return bool(self.pool & 1)


class Segment(NamedTuple):
    """Memory that came from CUDA in one piece, and its blocks in order of address."""

    address: int
    num_bytes: int
    stream: int
    is_small: bool
    blocks: tuple[Block, ...]


class SegmentChange(NamedTuple):
    """A segment was allocated from CUDA, or returned to it."""

    action: Literal["segment_alloc", "segment_free", "segment_map", "segment_unmap"]
    address: int
    num_bytes: int
    stream: int
    is_small: bool


# Over 300 lines: blocks, pools and segments change together in every call, as in the allocator that
# it follows, and each method answers to one of that allocator's.
class Allocator:
    """PyTorch's caching allocator as arithmetic: best fit, splitting, coalescing, cached segments.

    `capacity_bytes` is what the GPU has beyond the CUDA context; None is no limit. All sizes are
    bytes. What is freed on a stream is free for that stream alone. `on_segment` is called as memory
    comes from CUDA or goes back.

    >>> allocator = Allocator()
    >>> allocator.allocate("weight", 1000)
    True
    >>> allocator.allocated, allocator.reserved
    (1024, 2097152)
    """

    def __init__(
        self, capacity_bytes: int | None = None, settings: AllocatorSettings | None = None
    ) -> None:
        self.capacity_bytes = capacity_bytes
        self.settings = settings or AllocatorSettings()
        self.allocated = 0
        self.reserved = 0
        #: What of it are private pools of CUDA graphs.
        self.reserved_for_graphs = 0
        self.peak_allocated = 0
        self.peak_reserved = 0
        self.num_retries = 0
        self.on_segment: Callable[[SegmentChange], None] | None = None
        self._blocks: dict[Hashable, Block | None] = {}
        self._free: dict[int, list[tuple[int, int, Block]]] = {}
        self._next_address = FIRST_ADDRESS
        #: Of expandable segments: the last mapped block of each pool, and where the next one goes.
        self._tails: dict[int, Block] = {}
        self._num_expandable = 0

    def allocate(self, storage: Hashable, num_bytes: int, stream: int = 0) -> bool:
        """Places a storage; False if that exceeds the capacity (it is placed all the same).

        As the real allocator does, it first gives cached segments back.
        """
        if storage in self._blocks:
            raise ValueError(f"Storage {storage!r} is allocated already; free it first.")
        if num_bytes <= 0:
            self._blocks[storage] = None
            return True
        rounded = self.rounded(num_bytes)
        pool = stream << 1 | (rounded <= SMALL_BYTES)
        fits = True
        index = self._fitting(rounded, pool)
        if index is None:
            block, fits = self._new_block(rounded, pool)
        else:
            block = self._free[pool].pop(index)[2]
        if block.num_bytes != rounded:
            self._split(block, rounded)
        block.is_free = False
        block.requested = num_bytes
        self._blocks[storage] = block
        self.allocated += block.num_bytes
        if self.allocated > self.peak_allocated:
            self.peak_allocated = self.allocated
        return fits

    def rounded(self, num_bytes: int) -> int:
        """The bytes of the block that a request gets."""
        divisions = self.settings.roundup_power2_divisions
        if divisions:
            interval = min(max(num_bytes.bit_length() - 21, 0), NUM_ROUNDUP_INTERVALS - 1)
            count = divisions[interval]
            if count > 1 and num_bytes > MIN_BLOCK_BYTES * count:
                return _next_division(num_bytes, count)
        return -(-num_bytes // MIN_BLOCK_BYTES) * MIN_BLOCK_BYTES

    def would_fit(self, num_bytes: int, stream: int = 0) -> bool:
        """Whether `allocate` would say so; changes nothing.

        >>> Allocator(capacity_bytes=2**20).would_fit(100)
        False
        """
        if num_bytes <= 0 or self.capacity_bytes is None:
            return True
        rounded = self.rounded(num_bytes)
        pool = stream << 1 | (rounded <= SMALL_BYTES)
        if self._fitting(rounded, pool) is not None:
            return True
        tail = self._tails.get(pool)
        room = self._space(pool)
        if self.reserved + self._new_bytes(rounded, pool, room) <= self.capacity_bytes:
            return True
        releasable = sum(num_bytes for _, num_bytes in map(self._releasable, self._cached()))
        if tail is not None and tail.is_free:
            room -= self._releasable(tail)[1]
        needed = self._new_bytes(rounded, pool, room)
        return self.reserved - releasable + needed <= self.capacity_bytes

    def free(self, storage: Hashable) -> bool:
        """Takes a storage back into the cache; False if it was not allocated."""
        if storage not in self._blocks:
            return False
        block = self._blocks.pop(storage)
        if block is None:
            return True
        self.allocated -= block.num_bytes
        block.is_free = True
        block.requested = 0
        after, before = block.after, block.before
        if after is not None and after.is_free:
            self._forget(after)
            self._merge(block, after)
        if before is not None and before.is_free:
            self._forget(before)
            self._merge(before, block)
            block = before
        self._put(block)
        return True

    def empty_cache(self) -> None:
        """Gives every segment without a live block back to the GPU, but those of CUDA graphs."""
        for block in self._cached():
            self._release(block)

    def reset_peak(self) -> None:
        """Peaks start again from what is held now."""
        self.peak_allocated = self.allocated
        self.peak_reserved = self.reserved

    def block_of(self, storage: Hashable) -> Block | None:
        """The block of a live storage; None if it is empty or not live."""
        return self._blocks.get(storage)

    def address_of(self, storage: Hashable) -> int:
        """Where a live storage lies; 0 if it is empty or not live."""
        block = self._blocks.get(storage)
        return 0 if block is None else block.address

    def storages(self) -> dict[int, Hashable]:
        """The storage that lies at each address."""
        return {block.address: key for key, block in self._blocks.items() if block is not None}

    def segments(self) -> list[Segment]:
        """Every segment with its blocks, in order of address."""
        free = (block for pool in self._free.values() for _, _, block in pool)
        live = (block for block in self._blocks.values() if block is not None)
        segments: list[Segment] = []
        for head in (block for block in (*free, *live) if block.before is None):
            blocks, block = [head], head
            while block.after is not None:
                block = block.after
                blocks.append(block)
            num_bytes = sum(block.num_bytes for block in blocks)
            segments.append(
                Segment(head.address, num_bytes, head.stream, head.is_small, tuple(blocks))
            )
        return sorted(segments, key=lambda segment: segment.address)

    # -- blocks that are free

    def _fitting(self, rounded: int, pool: int) -> int | None:
        """Position of the smallest free block that the request may take."""
        free = self._free.get(pool)
        if not free:
            return None
        index = bisect_left(free, (rounded,))
        if index == len(free):
            return None
        limit = self.settings.max_split_bytes
        if limit is not None:
            found = free[index][0]
            if rounded < limit <= found:
                return None  # what is too large to be split is kept for large requests
            if rounded >= limit and found >= rounded + self.settings.max_non_split_rounding_bytes:
                return None
        return index

    def _put(self, block: Block) -> None:
        insort(self._free.setdefault(block.pool, []), (block.num_bytes, block.address, block))

    def _forget(self, block: Block) -> None:
        pool = self._free[block.pool]
        del pool[bisect_left(pool, (block.num_bytes, block.address))]

    def _split(self, block: Block, rounded: int) -> None:
        """Cuts off what the request does not need, where the rest is worth keeping."""
        settings, rest = self.settings, block.num_bytes - rounded
        if block.is_small or settings.expandable_segments:
            is_kept = rest >= MIN_BLOCK_BYTES
        else:
            limit = settings.max_split_bytes
            is_kept = rest > SMALL_BYTES and (limit is None or rounded < limit)
        if not is_kept:
            return
        tail = Block(block.address + rounded, rest, block.pool)
        tail.before, tail.after = block, block.after
        if block.after is not None:
            block.after.before = tail
        block.after = tail
        block.num_bytes = rounded
        if self._tails.get(block.pool) is block:
            self._tails[block.pool] = tail
        self._put(tail)

    def _merge(self, block: Block, after: Block) -> None:
        block.num_bytes += after.num_bytes
        block.after = after.after
        if after.after is not None:
            after.after.before = block
        if self._tails.get(after.pool) is after:
            self._tails[after.pool] = block

    # -- memory from CUDA, and back

    def _new_block(self, rounded: int, pool: int) -> tuple[Block, bool]:
        num_bytes = self._new_bytes(rounded, pool, self._space(pool))
        fits = True
        if self.capacity_bytes is not None and self.reserved + num_bytes > self.capacity_bytes:
            self.num_retries += 1
            self.empty_cache()
            num_bytes = self._new_bytes(rounded, pool, self._space(pool))
            fits = self.reserved + num_bytes <= self.capacity_bytes
        self.reserved += num_bytes
        if pool >> 1 > FIRST_PRIVATE:
            self.reserved_for_graphs += num_bytes
        if self.reserved > self.peak_reserved:
            self.peak_reserved = self.reserved
        if self.settings.expandable_segments:
            return self._expanded(num_bytes, pool), fits
        block = Block(self._next_address, num_bytes, pool)
        self._next_address += round_up(num_bytes, SEGMENT_ROUND_BYTES)
        self._record_change("segment_alloc", block.address, num_bytes, pool)
        return block, fits

    def _space(self, pool: int) -> int:
        """Bytes that are free at the end of the pool's expandable segment."""
        tail = self._tails.get(pool)
        return tail.num_bytes if tail is not None and tail.is_free else 0

    def _new_bytes(self, rounded: int, pool: int, room: int) -> int:
        if self.settings.expandable_segments:
            return round_up(rounded - room, self._page_bytes(pool))
        if pool & 1:
            return SMALL_SEGMENT_BYTES
        if rounded < LARGE_REQUEST_BYTES:
            return self.settings.large_segment_bytes
        return round_up(rounded, SEGMENT_ROUND_BYTES)

    def _page_bytes(self, pool: int) -> int:
        """What an expandable segment grows by."""
        return SMALL_SEGMENT_BYTES if pool & 1 else self.settings.large_segment_bytes

    def _expanded(self, num_bytes: int, pool: int) -> Block:
        """The pool's expandable segment grows at its end, into the free block there if any."""
        tail = self._tails.get(pool)
        if tail is None:
            address = FIRST_ADDRESS + self._num_expandable * EXPANDABLE_STRIDE
            self._num_expandable += 1
        else:
            address = tail.address + tail.num_bytes
        self._record_change("segment_map", address, num_bytes, pool)
        if tail is not None and tail.is_free:
            self._forget(tail)
            tail.num_bytes += num_bytes
            return tail
        block = Block(address, num_bytes, pool)
        if tail is not None:
            block.before, tail.after = tail, block
        self._tails[pool] = block
        return block

    def _cached(self) -> list[Block]:
        """Free blocks of which something can go back."""
        return [
            block
            for pool in self._free.values()
            for _, _, block in pool
            if not block.private_pool and self._releasable(block)[1]
        ]

    def _releasable(self, block: Block) -> tuple[int, int]:
        """What of a free block can go back: address and bytes. Of expandable segments whole pages,
        of others whole segments."""
        if not self.settings.expandable_segments:
            whole = block.before is None and block.after is None
            return block.address, block.num_bytes if whole else 0
        page = self._page_bytes(block.pool)
        base = block.address - (block.address - FIRST_ADDRESS) % EXPANDABLE_STRIDE
        start = base + round_up(block.address - base, page)
        end = base + (block.address + block.num_bytes - base) // page * page
        return start, max(0, end - start)

    def _release(self, block: Block) -> None:
        start, num_bytes = self._releasable(block)
        self._forget(block)
        self.reserved -= num_bytes
        expands = self.settings.expandable_segments
        self._record_change(
            "segment_unmap" if expands else "segment_free", start, num_bytes, block.pool
        )
        if expands:
            self._unmap(block, start, num_bytes)

    def _unmap(self, block: Block, start: int, num_bytes: int) -> None:
        """Leaves of a free block what lies before and after the pages that went back. Pages are not
        mapped again where they were: the segment grows at its end, which costs as much."""
        left, right = start - block.address, block.address + block.num_bytes - start - num_bytes
        before, after = block.before, block.after
        pieces = [
            Block(address, size, block.pool)
            for address, size in ((block.address, left), (start + num_bytes, right))
            if size
        ]
        if self._tails.get(block.pool) is block:
            last = pieces[-1] if pieces else before
            if last is None:
                del self._tails[block.pool]
            else:
                self._tails[block.pool] = last
        for piece in pieces:
            self._put(piece)
        if before is not None:
            before.after = pieces[0] if left else None
        if after is not None:
            after.before = pieces[-1] if right else None
        if left:
            pieces[0].before = before
        if right:
            pieces[-1].after = after

    def _record_change(
        self,
        action: Literal["segment_alloc", "segment_free", "segment_map", "segment_unmap"],
        address: int,
        num_bytes: int,
        pool: int,
    ) -> None:
        if self.on_segment is not None:
            self.on_segment(SegmentChange(action, address, num_bytes, pool >> 1, bool(pool & 1)))


def _next_division(num_bytes: int, divisions: int) -> int:
    """Up to the next of `divisions` equal parts between two powers of two."""
    power = 1 << (num_bytes.bit_length() - 1)
    if num_bytes == power:
        return num_bytes
    return round_up(num_bytes, power // (1 << (divisions.bit_length() - 1)))


def round_up(num_bytes: int, unit: int) -> int:
    """The next multiple of `unit`.

    >>> round_up(513, 512)
    1024
    """
    return -(-num_bytes // unit) * unit
