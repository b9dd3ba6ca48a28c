"""Fields of a trace's events, whatever stands in them."""

from __future__ import annotations

import math

import pytest

from neusight.integrations.profiles.reading.fields import (
    integer_of,
    is_timed,
    number_of,
    shapes_of,
    types_of,
)


@pytest.mark.parametrize(
    ("value", "found"),
    [
        (7, 7), (7.9, 7), (-3, -3), (True, None), (None, None), ([1], None), ({}, None),
        ("7", 7), ("stream 7", 7), ("", None), ("  ", None), ("7 streams", None), ("-7", None),
        ("²", None), ("9" * 63, int("9" * 63)), ("9" * 64, None),
        (2**63 - 1, 2**63 - 1), (2**63, None), (-(2**63), None), (1e300, None),
        (math.nan, None), (math.inf, None),
    ],
)  # fmt: skip
def test_a_whole_number_is_taken_out_of_numbers_and_texts(value: object, found: int | None) -> None:
    assert integer_of(value) == found


@pytest.mark.parametrize(
    ("value", "found"), [(3, 3.0), (2.5, 2.5), (True, 1.0), ("3", None), (None, None)]
)
def test_a_number_is_a_float_and_all_else_is_nan(value: object, found: float | None) -> None:
    number = number_of(value)

    assert math.isnan(number) if found is None else number == found
    assert math.isnan(number_of(10**400))


@pytest.mark.parametrize(
    ("event", "expected"),
    [
        ({"ts": 1, "dur": 2.5}, True), ({"ts": -9e17, "dur": 0}, True), ({"ts": 1}, False),
        ({"ts": "1", "dur": 1}, False), ({"ts": 1e18, "dur": 1}, False),
        ({"ts": 1, "dur": math.inf}, False),
    ],
)  # fmt: skip
def test_an_event_has_a_time_and_a_duration(event: dict[str, object], expected: bool) -> None:
    assert is_timed(event) is expected


@pytest.mark.parametrize(
    ("dims", "found"),
    [
        ([[2, 3], [], 5, "x"], [(2, 3), (), (), ()]),
        ([[[2, 3], [4]], [5]], [(2, 3), (4,), (5,)]),
        ([[[[2]]]], [(2,)]),
        ([[[[[2]]]]], [(2,)]),
        ([[[[[[2]]]]]], []),
        ([[-1], [2.0], [2**63], [2**63 - 1]], [(), (), (), (2**63 - 1,)]),
        ("2", []),
        (None, []),
    ],
)
def test_shapes_are_those_of_tensors_and_of_those_in_lists(
    dims: object, found: list[tuple[int, ...]]
) -> None:
    assert list(shapes_of(dims)) == found


def test_types_are_texts() -> None:
    assert types_of(["float", 3, None]) == ("float", "3", "None")
    assert types_of("float") == ()
