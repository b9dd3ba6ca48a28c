"""Amounts read as people write them, each unit from one of it on."""

from __future__ import annotations

import pytest

from neusight.predictors.formatting import aligned, amount_text, bytes_text, percent_text, time_text

MIB, GIB = 2**20, 2**30


@pytest.mark.parametrize(
    ("microseconds", "text"),
    [
        (0.0, "0.0 µs"),
        (12.34, "12.3 µs"),
        (999.0, "999.0 µs"),
        (1_000.0, "1.00 ms"),
        (12_345.0, "12.35 ms"),
        (999_000.0, "999.00 ms"),
        (1_000_000.0, "1.00 s"),
        (90_000_000.0, "90.00 s"),
    ],
)
def test_a_time_is_in_the_largest_unit_of_which_there_is_one(
    microseconds: float, text: str
) -> None:
    assert time_text(microseconds) == text


def test_a_time_may_have_more_decimals_but_microseconds_keep_one() -> None:
    assert time_text(1_234.5678, decimals=3) == "1.235 ms"
    assert time_text(1_234_567.0, decimals=3) == "1.235 s"
    assert time_text(12.3456, decimals=3) == "12.3 µs"


def test_a_difference_of_times_has_its_sign() -> None:
    assert time_text(1_500.0, signed=True) == "+1.50 ms"
    assert time_text(-1_500.0, signed=True) == time_text(-1_500.0) == "-1.50 ms"
    assert time_text(-12.0) == "-12.0 µs"


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0.0 MiB"), (MIB, "1.0 MiB"), (GIB - 1, "1024.0 MiB"), (GIB, "1.00 GiB"),
     (80 * GIB, "80.00 GiB")],
)  # fmt: skip
def test_memory_is_in_gib_from_one_on_else_in_mib(count: int, text: str) -> None:
    assert bytes_text(count) == text


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (1_234.5, "us", "1.234 ms"),
        (12.345, "us", "12.35 µs"),
        (2_500_000, "us", "2.5 s"),
        (1023, "bytes", "1023 B"),
        (1024, "bytes", "1.00 KiB"),
        (1.5 * MIB, "bytes", "1.50 MiB"),
        (2 * GIB, "bytes", "2.00 GiB"),
        (999, "flops", "999 FLOP"),
        (1.5e6, "flops", "1.5 MFLOP"),
        (2.5e9, "flops", "2.5 GFLOP"),
        (3e12, "flops", "3 TFLOP"),
        (12_345, "", "12,345"),
    ],
)
def test_an_amount_keeps_what_distinguishes_it_from_another(
    value: float, unit: str, text: str
) -> None:
    assert amount_text(value, unit) == text
    assert amount_text(-value, unit) == f"-{text}"
    assert amount_text(value, unit, signed=True) == f"+{text}"


def test_an_error_has_its_sign_or_says_that_there_is_none() -> None:
    assert percent_text(0.1234) == "+12.3%"
    assert percent_text(-0.5) == "-50.0%"
    assert percent_text(None) == ""
    assert percent_text(None, missing="-") == "-"


def test_columns_are_as_wide_as_their_widest_cell_and_lines_end_with_a_word() -> None:
    rows = [("op", "us", "why"), ("mm", "1.5", "compute"), ("relu", "10.25", "")]

    assert aligned(rows, left=(0, 2)) == [
        "op       us  why",
        "mm      1.5  compute",
        "relu  10.25",
    ]
