"""The caching allocator, worked by hand and by property."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neusight.memory.allocator import FIRST_PRIVATE, Allocator, SegmentChange
from neusight.memory.allocator_settings import AllocatorSettings, settings_of

MIB = 2**20
EXPANDABLE = AllocatorSettings(expandable_segments=True)


def live_blocks(allocator: Allocator) -> list[tuple[int, int]]:
    """Address and bytes of each, in order."""
    return [
        (block.address, block.num_bytes)
        for segment in allocator.segments()
        for block in segment.blocks
        if not block.is_free
    ]


@pytest.mark.parametrize(
    ("requested", "allocated", "reserved"),
    [
        ((0,), 0, 0),
        ((1,), 512, 2 * MIB),
        ((MIB + 1, 9 * MIB), 10 * MIB + 512, 20 * MIB),  # blocks of one segment up to 10 MiB
        ((41 * MIB // 2 - 300,), 41 * MIB // 2, 22 * MIB),  # a segment of its own
    ],
)
def test_a_request_takes_a_block_of_a_segment_of_its_size(
    requested: tuple[int, ...], allocated: int, reserved: int
) -> None:
    allocator = Allocator()

    assert all(allocator.allocate(str(size), size) for size in requested)

    assert (allocator.allocated, allocator.reserved) == (allocated, reserved)
    assert allocator.free(str(requested[0]))


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


def test_nothing_is_held_at_first() -> None:
    new = Allocator()

    assert (new.allocated, new.reserved, new.peak_allocated, new.peak_reserved) == (0, 0, 0, 0)
    assert (new.reserved_for_graphs, new.num_retries, new.segments()) == (0, 0, [])


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
    st.tuples(
        st.one_of(st.integers(1, 64 * MIB), st.integers(1, 4096), st.integers(-40, -1), st.just(0)),
        st.sampled_from([0, 0, 7]),
    ),
    max_size=80,
)
SETTINGS = st.sampled_from(
    [
        AllocatorSettings(),
        EXPANDABLE,
        AllocatorSettings(max_split_bytes=8 * MIB),
        AllocatorSettings(large_segment_bytes=40 * MIB),
        AllocatorSettings(roundup_power2_divisions=(4,) * 16),
    ]
)


@settings(max_examples=250)
@given(OPERATIONS, st.sampled_from([None, 100 * MIB]), SETTINGS)
def test_blocks_never_overlap_and_the_sums_hold(
    operations: list[tuple[int, int]], capacity: int | None, chosen: AllocatorSettings
) -> None:
    """Requests of positive size, frees (negative) and emptied caches (0) on two streams."""
    allocator = Allocator(capacity, chosen)
    from_cuda: list[SegmentChange] = []
    allocator.on_segment = from_cuda.append
    live: dict[int, int] = {}
    for number, (operation, stream) in enumerate(operations):
        if operation > 0:
            expected = allocator.would_fit(operation, stream)
            assert allocator.allocate(number, operation, stream) is expected
            live[number] = operation
        elif operation == 0:
            allocator.empty_cache()
        elif live:
            released = list(live)[operation % len(live)]
            allocator.free(released)
            del live[released]
        blocks = live_blocks(allocator)
        assert sum(size for _, size in blocks) == allocator.allocated
        assert all(a + n <= b for (a, n), (b, _) in pairwise(blocks))
        assert 0 <= allocator.allocated <= allocator.reserved
        assert allocator.allocated <= allocator.peak_allocated
        assert allocator.reserved <= allocator.peak_reserved
        assert sum(live.values()) <= allocator.allocated
    segments = allocator.segments()
    given = sum(
        change.num_bytes * (1 if change.action in ("segment_alloc", "segment_map") else -1)
        for change in from_cuda
    )
    assert sum(segment.num_bytes for segment in segments) == allocator.reserved == given
    for segment in segments:
        pieces = segment.blocks
        assert {block.stream for block in pieces} == {segment.stream}
        assert all(a.address + a.num_bytes == b.address for a, b in pairwise(pieces))
        assert not any(a.is_free and b.is_free for a, b in pairwise(pieces))
    assert set(allocator.storages().values()) == set(live)

    for number in live:
        allocator.free(number)
    allocator.empty_cache()

    assert (allocator.allocated, allocator.reserved, live_blocks(allocator)) == (0, 0, [])
    assert allocator.segments() == []


def test_what_one_stream_frees_is_not_free_for_another() -> None:
    allocator = Allocator()
    allocator.allocate("a", 30 * MIB, stream=0)
    allocator.free("a")

    allocator.allocate("b", 30 * MIB, stream=7)
    allocator.allocate("c", 30 * MIB, stream=0)

    assert allocator.reserved == 60 * MIB


def test_an_expandable_segment_grows_where_others_leave_gaps() -> None:
    """30 MiB are freed, then 32 are wanted: a new segment, or two more MiB of the old one."""
    reserved = []
    for chosen in (AllocatorSettings(), EXPANDABLE):
        allocator = Allocator(settings=chosen)
        allocator.allocate("a", 30 * MIB)
        allocator.free("a")
        allocator.allocate("b", 41 * MIB)
        reserved.append(allocator.reserved)

    assert reserved == [72 * MIB, 60 * MIB]


def test_pages_of_an_expandable_segment_go_back_from_its_middle() -> None:
    allocator = Allocator(settings=EXPANDABLE)
    for name in "abc":
        allocator.allocate(name, 30 * MIB)
    allocator.free("b")

    allocator.empty_cache()

    assert (allocator.allocated, allocator.reserved) == (60 * MIB, 80 * MIB)
    assert len(allocator.segments()) == 2


def test_memory_lies_in_the_upper_half_of_a_programs_address_space() -> None:
    """Of the 47 bits that addresses of a program have on x86-64."""
    allocator = Allocator()
    for name in range(3):
        allocator.allocate(name, 30 * MIB)

    assert all(2**46 <= address < 2**47 for address, _ in live_blocks(allocator))


def test_each_pool_has_an_expandable_segment_far_from_the_others() -> None:
    allocator = Allocator(settings=EXPANDABLE)
    sizes = {"large": 30 * MIB, "small": 512, "behind": 40 * MIB}

    for name, num_bytes in sizes.items():
        allocator.allocate(name, num_bytes)
    allocator.allocate("other stream", 512, 1)

    first = 0x7F0000000000
    places = {name: allocator.address_of(name) - first for name in (*sizes, "other stream")}
    assert places == {
        "large": 0,
        "small": 2**42,
        "behind": 30 * MIB,
        "other stream": 2 * 2**42,
    }


def test_a_segment_grows_behind_what_is_held_once_its_end_went_back() -> None:
    allocator = Allocator(settings=EXPANDABLE)
    for name in "ab":
        allocator.allocate(name, 20 * MIB)
    allocator.free("b")
    allocator.empty_cache()

    allocator.allocate("c", 20 * MIB)

    assert allocator.reserved == 40 * MIB
    assert allocator.address_of("c") == allocator.address_of("a") + 20 * MIB


@pytest.mark.parametrize(("capacity", "fits"), [(61 * MIB, True), (59 * MIB, False)])
def test_the_free_end_of_a_segment_is_either_used_or_given_back(capacity: int, fits: bool) -> None:
    """20 MiB are held, as many free behind them, and 2 in a segment of their own: 30 take 40."""
    allocator = Allocator(capacity, EXPANDABLE)
    for name, num_bytes in (("held", 20 * MIB), ("free", 20 * MIB), ("small", MIB)):
        allocator.allocate(name, num_bytes)
    allocator.free("free")
    allocator.free("small")

    assert allocator.would_fit(30 * MIB) is fits
    assert allocator.allocate("wanted", 30 * MIB) is fits


def test_a_cached_block_is_no_larger_than_may_be_left_over() -> None:
    settings = AllocatorSettings(max_split_bytes=50 * MIB, max_non_split_rounding_bytes=20 * MIB)
    allocator = Allocator(settings=settings)
    allocator.allocate("large", 100 * MIB)
    allocator.free("large")

    allocator.allocate("far", 60 * MIB)
    assert allocator.reserved == 160 * MIB
    allocator.allocate("near", 82 * MIB)
    assert allocator.reserved == 160 * MIB


def test_a_block_above_the_split_limit_is_kept_for_large_requests() -> None:
    allocator = Allocator(settings=AllocatorSettings(max_split_bytes=20 * MIB))
    allocator.allocate("large", 64 * MIB)
    allocator.free("large")

    allocator.allocate("small", 12 * MIB)
    allocator.allocate("again", 50 * MIB)

    assert allocator.reserved == 76 * MIB
    assert dict(live_blocks(allocator))[allocator.address_of("again")] == 64 * MIB


def test_power_of_two_divisions_round_up() -> None:
    """The example of torch's notes: 1200 between 1024 and 2048 with 4 divisions is 1280."""
    allocator = Allocator(settings=settings_of("roundup_power2_divisions:4")[0])

    assert [allocator.rounded(size) for size in (512, 1200, 5000, 2**20 + 1, 2**21)] == [
        512, 1536, 5120, 2**20 + 2**18, 2**21,
    ]  # fmt: skip


def test_divisions_of_all_sizes_leave_those_up_to_a_mebibyte() -> None:
    assert settings_of("roundup_power2_divisions:[>:4]")[0].roundup_power2_divisions == (
        0, *[4] * 15
    )  # fmt: skip


def test_divisions_may_differ_by_size() -> None:
    chosen = settings_of("roundup_power2_divisions:[64:8,256:4,1024:2,>:1]")[0]

    assert chosen.roundup_power2_divisions == (8,) * 7 + (0, 4, 0, 2, 1, 1, 1, 1, 1)


def test_sizes_are_in_mebibytes() -> None:
    chosen, ignored = settings_of(
        "max_split_size_mb:64,max_non_split_rounding_mb:30,large_segment_size_mb:40"
    )

    assert ignored == ()
    assert chosen == AllocatorSettings(
        max_split_bytes=64 * MIB,
        max_non_split_rounding_bytes=30 * MIB,
        large_segment_bytes=40 * MIB,
    )


def test_settings_that_nobody_reads_are_named() -> None:
    text = "expandable_segments:yes, max_split_size_mb:128,wrong:1,pinned_num_register_threads:4"

    chosen, ignored = settings_of(text)

    assert chosen == AllocatorSettings(max_split_bytes=128 * MIB)
    assert ignored == ("expandable_segments:yes cannot be read", "wrong is not known")


def test_garbage_collection_without_a_fraction_does_nothing_as_in_torch() -> None:
    chosen, ignored = settings_of("garbage_collection_threshold:0.8")

    assert chosen.garbage_collection_threshold == 0.8
    assert "only after a memory fraction was set" in ignored[0]


def test_private_pools_of_cuda_graphs_are_kept_though_nothing_lies_in_them() -> None:
    allocator = Allocator()
    allocator.allocate("own", MIB)
    allocator.allocate("in a graph", 30 * MIB, FIRST_PRIVATE + 1)

    allocator.free("own")
    allocator.free("in a graph")
    allocator.empty_cache()

    assert (allocator.allocated, allocator.reserved) == (0, 30 * MIB)
    assert allocator.reserved_for_graphs == 30 * MIB


def test_what_is_free_in_a_private_pool_serves_that_pool_alone() -> None:
    allocator = Allocator()
    allocator.allocate("in a graph", 30 * MIB, FIRST_PRIVATE + 1)
    allocator.free("in a graph")

    allocator.allocate("other", 30 * MIB)
    allocator.allocate("again", 30 * MIB, FIRST_PRIVATE + 1)

    assert allocator.reserved == 60 * MIB


@pytest.mark.parametrize(
    ("text", "num_bytes", "rounded"),
    [
        ("roundup_power2_divisions:4", 2048, 2048),  # up to 512 bytes a part: whole 512
        ("roundup_power2_divisions:4", 2049, 2560),
        ("roundup_power2_divisions:4", 4096, 4096),  # a power of two stays
        ("roundup_power2_divisions:4", 5000, 5120),  # 4096 and a part of 1024
        ("roundup_power2_divisions:4", 9 * 2**20, 10 * 2**20),
        ("roundup_power2_divisions:8", 9 * 2**20 + 1, 10 * 2**20),
        ("roundup_power2_divisions:[1:1,2:2,>:4]", 1_100_000, 1_100_288),  # not below 2 MiB
        ("roundup_power2_divisions:[1:1,2:2,>:4]", 5 * 2**19, 3 * 2**20),  # in halves below 4
        ("roundup_power2_divisions:[1:1,2:2,>:4]", 9 * 2**19, 5 * 2**20),  # in quarters beyond
    ],
)
def test_requests_are_rounded_to_parts_between_powers_of_two(
    text: str, num_bytes: int, rounded: int
) -> None:
    settings, _ = settings_of(text)

    assert Allocator(settings=settings).rounded(num_bytes) == rounded
