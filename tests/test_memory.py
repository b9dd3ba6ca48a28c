"""The caching allocator, worked by hand and by property."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neusight.memory import Allocator, memory_of
from neusight.recording import Alloc, Entry, Free, Recording, Step, StepKind, StorageRef

MIB = 2**20


def recording(*steps: tuple[Entry, ...], count: int = 1, kind: StepKind = "train") -> Recording:
    return Recording(
        steps=tuple(Step(kind, entries, count) for entries in steps), gpu="H100", torch_version="2"
    )


def test_small_request_takes_a_block_of_a_two_mebibyte_segment() -> None:
    allocator = Allocator()

    assert allocator.allocate("a", 1)

    assert (allocator.allocated, allocator.reserved) == (512, 2 * MIB)


def test_request_of_one_to_ten_mebibyte_takes_a_block_of_a_twenty_mebibyte_segment() -> None:
    allocator = Allocator()

    allocator.allocate("a", MIB + 1)
    allocator.allocate("b", 9 * MIB)

    assert (allocator.allocated, allocator.reserved) == (10 * MIB + 512, 20 * MIB)


def test_large_request_gets_a_segment_of_its_own_rounded_to_two_mebibyte() -> None:
    allocator = Allocator()

    allocator.allocate("a", 41 * MIB // 2 - 300)

    assert (allocator.allocated, allocator.reserved) == (41 * MIB // 2, 22 * MIB)


def test_a_rest_of_a_large_block_up_to_one_mebibyte_is_not_split_off() -> None:
    allocator = Allocator()
    allocator.allocate("a", 12 * MIB)
    allocator.free("a")

    allocator.allocate("b", 11 * MIB)

    assert (allocator.allocated, allocator.reserved) == (12 * MIB, 12 * MIB)


def test_best_fit_takes_the_smallest_free_block_that_is_large_enough() -> None:
    allocator = Allocator()
    allocator.allocate("large", 40 * MIB)
    allocator.allocate("fitting", 30 * MIB)
    where = allocator.address_of("fitting")
    allocator.free("large")
    allocator.free("fitting")

    allocator.allocate("again", 30 * MIB)

    assert allocator.address_of("again") == where


def test_neighbours_coalesce_when_freed() -> None:
    allocator = Allocator()
    for name in "abc":
        allocator.allocate(name, 6 * MIB)
    for name in "acb":
        allocator.free(name)

    allocator.allocate("whole", 9 * MIB)
    allocator.allocate("rest", 9 * MIB)

    assert allocator.reserved == 20 * MIB


def test_empty_storage_takes_nothing() -> None:
    allocator = Allocator()

    allocator.allocate("a", 0)

    assert (allocator.allocated, allocator.reserved, allocator.free("a")) == (0, 0, True)


def test_unknown_storage_is_not_freed() -> None:
    assert Allocator().free("never") is False


def test_a_storage_cannot_be_allocated_twice() -> None:
    allocator = Allocator()
    allocator.allocate("a", 1)

    with pytest.raises(ValueError, match="'a' is allocated already"):
        allocator.allocate("a", 1)


def test_cached_segments_are_given_back_before_memory_runs_out() -> None:
    allocator = Allocator(capacity_bytes=64 * MIB)
    allocator.allocate("a", 40 * MIB)
    allocator.free("a")

    predicted = allocator.would_fit(50 * MIB)
    fits = allocator.allocate("b", 50 * MIB)

    assert predicted
    assert fits
    assert (allocator.reserved, allocator.num_retries) == (50 * MIB, 1)


def test_empty_cache_keeps_segments_with_a_live_block() -> None:
    allocator = Allocator()
    allocator.allocate("a", 30 * MIB)
    allocator.allocate("b", 100)
    allocator.free("a")

    allocator.empty_cache()

    assert allocator.reserved == 2 * MIB


OPERATIONS = st.lists(
    st.one_of(st.integers(1, 64 * MIB), st.integers(1, 4096), st.integers(-40, -1)), max_size=80
)


@settings(derandomize=True, max_examples=150, deadline=None)
@given(OPERATIONS, st.sampled_from([None, 100 * MIB]))
def test_blocks_never_overlap_and_the_sums_hold(
    operations: list[int], capacity: int | None
) -> None:
    allocator = Allocator(capacity)
    live: list[int] = []
    for number, operation in enumerate(operations):
        if operation > 0:
            expected = allocator.would_fit(operation)
            assert allocator.allocate(number, operation) is expected
            live.append(number)
        elif live:
            allocator.free(live.pop(operation % len(live)))
        blocks = allocator.blocks()
        assert sum(size for _, size in blocks) == allocator.allocated
        assert all(a + n <= b for (a, n), (b, _) in pairwise(blocks))
        assert 0 <= allocator.allocated <= allocator.reserved
        assert allocator.allocated <= allocator.peak_allocated
        assert allocator.reserved <= allocator.peak_reserved

    for number in live:
        allocator.free(number)
    allocator.empty_cache()

    assert (allocator.allocated, allocator.reserved, allocator.blocks()) == (0, 0, [])


def test_peak_and_who_is_alive_at_it() -> None:
    weight = Alloc(0, 4 * MIB, "net", "aten::empty", "forward", "parameter")
    first = Alloc(1, 8 * MIB, "net.a", "aten::relu", "forward")
    second = Alloc(2, 2 * MIB, "net.b", "aten::relu", "forward")
    entries: tuple[Entry, ...] = (weight, first, Free(StorageRef(0, 1)), second)

    memory = memory_of(recording(entries))

    assert (memory.peak_allocated, memory.peak_reserved) == (12 * MIB, 20 * MIB)
    assert memory.peak_event is not None
    assert memory.peak_event.source is first
    assert [(row.module, row.kind, row.num_bytes) for row in memory.alive] == [
        ("net.a", "activation", 8 * MIB),
        ("net", "parameter", 4 * MIB),
    ]
    assert [event.mark for event in memory.events] == [0, 1, 2, 3]
    assert memory.fits


def test_storages_freed_one_step_later_do_not_pile_up() -> None:
    """A loop that holds the loss of the step before."""
    entries: tuple[Entry, ...] = (Alloc(0, 4 * MIB), Free(StorageRef(1, 0)))

    memory = memory_of(recording(entries, count=1000))

    assert memory.peak_allocated == 8 * MIB
    assert memory.steps[-1].end_allocated == 4 * MIB


def test_running_out_names_the_op_and_the_module() -> None:
    entries: tuple[Entry, ...] = (
        Alloc(0, 30 * MIB, "net.a", "aten::mm"),
        Alloc(1, 30 * MIB, "net.b", "aten::relu", "backward"),
    )

    memory = memory_of(recording(entries), capacity_bytes=64 * MIB, context_bytes=10 * MIB)

    failure = memory.out_of_memory
    assert failure is not None
    assert not memory.fits
    assert (failure.op, failure.module, failure.phase) == ("aten::relu", "net.b", "backward")
    assert (failure.num_bytes, failure.allocated, failure.reserved) == (
        30 * MIB,
        30 * MIB,
        30 * MIB,
    )
    assert memory_of(recording(entries), capacity_bytes=70 * MIB, context_bytes=10 * MIB).fits
