"""Sorts, top-k and what is built on them, worked by hand."""

from __future__ import annotations

import pytest

from neusight.ops.rows.sort import deterministic_order, radix_sort
from op_calls import call, kernels, names, spec


def sort(*shape: int) -> list[str]:
    values = spec(*shape)
    return names(
        call("sort", values, spec(*shape, dtype="int64"), self=values, dim=-1, descending=False)
    )


def test_short_rows_are_sorted_in_a_block_each() -> None:
    """3 rows of 100 floats with their positions: 12 bytes an element, in and out."""
    x = spec(3, 100)

    copy, arange, rows = kernels(call("sort", x, spec(3, 100, dtype="int64"), self=x, dim=-1))

    assert (copy.bytes_read, copy.bytes_written) == (1200, 1200)
    assert (arange.bytes_read, arange.bytes_written) == (0, 2400)
    assert (rows.name, rows.size) == ("sort_rows", (3, 100))
    assert (rows.bytes_read, rows.bytes_written) == (3600, 3600)


def test_one_long_row_is_a_radix_sort_of_a_pass_for_each_8_bits() -> None:
    assert sort(1, 100_000) == [
        "arange",
        "radix_sort_histogram",
        "radix_sort_scan",
        *["radix_sort_pass"] * 4,
    ]


def test_few_long_rows_are_a_segmented_sort_and_many_a_sort_by_segment_and_key() -> None:
    assert sort(127, 5000) == ["arange", *["segmented_sort"] * 4]
    by_key = ["radix_sort_histogram", "radix_sort_scan", *["radix_sort_pass"] * 4]
    by_segment = ["radix_sort_histogram", "radix_sort_scan", "radix_sort_pass"]
    assert sort(128, 5000) == ["arange", *by_key, *by_segment, "sort_gather"]


def test_a_radix_pass_moves_keys_and_positions() -> None:
    x = spec(100_000)

    launched = kernels(call("sort", x, spec(100_000, dtype="int64"), self=x, dim=0))

    assert (launched[1].bytes_read, launched[1].bytes_written) == (400_000, 4 * 256 * 8)
    assert (launched[-1].bytes_read, launched[-1].bytes_written) == (1_200_000, 1_200_000)


def topk(rows: int, width: int, k: int) -> list[str]:
    outputs = (spec(rows, k), spec(rows, k, dtype="int64"))
    return names(
        call("topk", *outputs, self=spec(rows, width), k=k, dim=-1, largest=True, sorted=True)
    )


def test_top_k_selects_in_a_block_a_row_then_sorts_what_it_kept() -> None:
    outputs = (spec(1000, 5), spec(1000, 5, dtype="int64"))

    select, order = kernels(
        call("topk", *outputs, self=spec(1000, 64), k=5, dim=-1, largest=True, sorted=True)
    )

    assert (select.name, select.size) == ("topk", (1000, 64))
    assert (select.bytes_read, select.bytes_written) == (1000 * 64 * 4, 1000 * 5 * 12)
    assert (order.size, order.bytes_read, order.bytes_written) == ((1000, 5), 60_000, 60_000)
    assert topk(1000, 64, 1) == ["topk"]


def test_top_k_of_long_rows_takes_several_blocks_a_row() -> None:
    assert topk(20, 19_999, 1) == ["topk"]
    assert topk(20, 20_000, 1) == [
        "fill",
        *["topk_digit", "topk_digit_counts"] * 4,
        "topk_scan",
        "topk",
    ]


def test_top_k_of_few_very_long_rows_is_a_sort() -> None:
    assert "segmented_sort" in topk(10, 100_000, 5)
    assert "segmented_sort" not in topk(11, 100_000, 5)


def test_one_draw_is_the_largest_of_exponential_races_after_checks_of_the_host() -> None:
    one, many = spec(4, 1, dtype="int64"), spec(4, 3, dtype="int64")
    draw = call("multinomial", one, self=spec(4, 10), num_samples=1, replacement=False)
    draws = call("multinomial", many, self=spec(4, 10), num_samples=3, replacement=True)

    launched = names(draw)
    assert launched.count("memcpy_d2h") == 2
    assert launched[-3:] == ["exponential", "div", "argmax"]
    assert names(draws) == ["sum", "div", "cumsum", "uniform", "multinomial"]


@pytest.mark.parametrize(
    ("num_keys", "key", "bits", "num_passes"),
    [
        (0, "float32", None, None),
        (1, "float32", None, 0),
        (4864, "float32", None, 0),  # 19 KiB in one block
        (4865, "float32", None, 4),
        (2432, "int64", None, 0),
        (2433, "int64", None, 8),
        (20_000, "uint8", None, 1),
        (20_000, "int64", 8, 1),
        (20_000, "int64", 9, 2),
        (20_000, "int64", 16, 2),
        (20_000, "int16", 100, 2),
    ],
)
def test_a_radix_sort_passes_once_for_each_8_bits(
    num_keys: int, key: str, bits: int | None, num_passes: int | None
) -> None:
    found = [kernel.name for kernel in radix_sort(num_keys, key=key, bits=bits)]

    passes = ["radix_sort_pass"] * (num_passes or 0)
    several = ["radix_sort_histogram", "radix_sort_scan", *passes]
    alone = [] if num_passes is None else ["radix_sort_single_tile"]
    assert found == (several if passes else alone)


@pytest.mark.parametrize(
    ("num_targets", "num_passes"), [(None, 8), (0, 1), (255, 1), (256, 2), (65_535, 2), (65_536, 3)]
)
def test_indices_are_ordered_by_the_bits_that_targets_need(
    num_targets: int | None, num_passes: int
) -> None:
    found = [kernel.name for kernel in deterministic_order(50_000, num_targets, "cuda")]

    assert found[0] == "arange"
    assert found.count("radix_sort_pass") == num_passes


@pytest.mark.parametrize(
    ("shape", "second", "count"),
    [
        ((1, 4096), "arange", 1),
        ((1, 4097), "radix_sort_single_tile", 1),
        ((3, 4097), "segmented_sort", 4),
        ((2, 999_999), "segmented_sort", 4),
        ((2, 1_000_000), "radix_sort_histogram", 2),
        ((0, 5), "", 0),
        ((5, 0), "", 0),
        ((), "arange", 1),
    ],
)
def test_how_rows_are_sorted_depends_on_their_number_and_length(
    shape: tuple[int, ...], second: str, count: int
) -> None:
    found = sort(*shape)

    assert found[1:2] == [second][: len(found)]
    assert found.count(second) == count


MULTI_BLOCK = (
    (20, 20_000), (21, 10_000), (40, 10_000), (41, 8000), (80, 8000), (81, 5000), (199, 5000),
    (200, 3000), (799, 3000), (800, 800), (4000, 800), (4001, 400), (50_000, 400),
)  # fmt: skip


@pytest.mark.parametrize(("slices", "least"), MULTI_BLOCK)
def test_top_k_takes_several_blocks_a_slice_from_a_length_on(slices: int, least: int) -> None:
    assert "topk_digit" in topk(slices, least, 2)
    assert "topk_digit" not in topk(slices, least - 1, 2)


def test_top_k_sorts_all_where_few_slices_are_long_but_for_booleans() -> None:
    assert "segmented_sort" not in topk(10, 99_999, 5)
    flags, positions = spec(2, 5, dtype="bool"), spec(2, 5, dtype="int64")
    arguments = {"k": 5, "dim": -1, "largest": True, "sorted": True}
    found = names(call("topk", flags, positions, self=spec(2, 100_000, dtype="bool"), **arguments))
    assert found == ["fill", "topk_digit", "topk_digit_counts", "topk_scan", "topk", "sort_rows"]
    assert topk(2, 100_000, 0) == topk(0, 100, 2) == []


def test_top_k_that_need_not_be_sorted_is_left_as_it_is_found() -> None:
    outputs = (spec(7, 5), spec(7, 5, dtype="int64"))

    assert names(call("topk", *outputs, self=spec(7, 64), k=5, dim=-1, sorted=False)) == ["topk"]


@pytest.mark.parametrize(("slices", "merges"), [(1, 1), (2, 1), (3, 2), (4, 2), (5, 3), (1025, 11)])
def test_slices_are_compared_in_merges_of_twice_as_many(slices: int, merges: int) -> None:
    rows = spec(slices, 8)
    signature = call(
        "unique_dim", rows, spec(slices, dtype="int64"), self=rows, dim=0, return_inverse=True
    )

    found = kernels(signature)

    assert [kernel.name for kernel in found] == [
        "arange", *["merge_sort_pass"] * merges, "run_borders", "cumsum", "scatter", "scan_init",
        "unique", "memcpy_d2h",
    ]  # fmt: skip
    assert (found[1].bytes_read, found[1].bytes_written) == (40 * slices, 8 * slices)
    assert found[-1].bytes_read == 8


@pytest.mark.parametrize(("shape", "sums"), [((10,), 1), ((4, 10), 2)])
def test_rows_of_probabilities_are_checked_one_by_one(shape: tuple[int, ...], sums: int) -> None:
    one = spec(*shape[:-1], 1, dtype="int64")

    found = names(call("multinomial", one, self=spec(*shape), num_samples=1, replacement=False))

    checks = ["max", "lt", "min", "ge", "bitwise_and", "memcpy_d2h", "sum", "eq"]
    draws = ["exponential", "div", "argmax"]
    assert found == [*checks, *["sum"] * (sums - 1), "memcpy_d2h", *draws]


@pytest.mark.parametrize(
    ("count", "num_passes"), [(0, None), (2432, 0), (5000, 6), (65_535, 7), (2**21, 8)]
)
def test_random_keys_have_three_times_the_bits_of_the_count(
    count: int, num_passes: int | None
) -> None:
    found = names(call("randperm", spec(count, dtype="int64"), n=count))

    if num_passes is None:
        assert found == []
    else:
        assert found.count("radix_sort_pass") == num_passes
        assert (found[:2], found[-1]) == (["random", "arange"], "randperm_duplicates")
