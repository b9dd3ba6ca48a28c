"""Sorts, top-k and what is built on them, worked by hand."""

from __future__ import annotations

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
