"""Charts: where lines, numbers and names stand."""

from __future__ import annotations

import re

import pytest

from neusight.integrations.report.curves import ChartCurve, chart, number_text

#: What is drawn, one a row, with what says where.
_DRAWN = re.compile(
    r"<(line|text|polyline|circle|title|svg|span)([^>]*)>(?:([^<]*)</(?:text|title)>)?"
)


def drawn(*curves: ChartCurve, limit: tuple[float, str] | None = None, is_log: bool = False) -> str:
    """Each element, its attributes' values and its text."""
    found = chart("Latency & batch", curves, x="batch", y="ms", limit=limit, is_log=is_log)
    return "\n".join(
        " ".join([tag, *re.findall(r'="([^"]*)"', values), text]).strip()
        for tag, values, text in _DRAWN.findall(found)
    )


LINE = ChartCurve("H100", ((8.0, 10.0), (16.0, 25.0), (64.0, 74.0)), is_marked=True)
DASHED = ChartCurve("A<100", ((0.5, 3.0), (40.0, 150.0)), is_dashed=True, colour=5)

LINEAR_CHART = """\
svg 0 0 540 300 img Latency &amp; batch
line grid 62 528 256.0 256.0
text 56 260.0 end 0
line grid 62 528 210.4 210.4
text 56 214.4 end 40
line grid 62 528 164.8 164.8
text 56 168.8 end 80
line grid 62 528 119.2 119.2
text 56 123.2 end 120
line grid 62 528 73.6 73.6
text 56 77.6 end 160
line grid 62 528 28.0 28.0
text 56 32.0 end 200
text 62.0 272 middle 0
text 207.6 272 middle 20
text 353.2 272 middle 40
text 498.9 272 middle 60
text 295 292 middle batch
text 4 14 ms
line limit 62 528 119.2 119.2
text 528 115.2 end limit
polyline line c0 120.2,244.6 178.5,227.5 528.0,171.6
circle dot c0 120.2 244.6 4
title H100: 10 at 8
circle dot c0 178.5 227.5 4
title H100: 25 at 16
circle dot c0 528.0 171.6 4
title H100: 74 at 64
polyline line c5 65.6,252.6 353.2,85.0 5 4
span key
svg swatch 0 0 18 8
line line c0 0 18 4 4
span key
svg swatch 0 0 18 8
line line c5 0 18 4 4 5 4"""
LOGARITHMIC_CHART = """\
svg 0 0 540 300 img Latency &amp; batch
line grid 62 528 256.0 256.0
text 56 260.0 end 0.1
line grid 62 528 180.0 180.0
text 56 184.0 end 1
line grid 62 528 104.0 104.0
text 56 108.0 end 10
line grid 62 528 28.0 28.0
text 56 32.0 end 100
text 62.0 272 middle 0
text 207.6 272 middle 20
text 353.2 272 middle 40
text 498.9 272 middle 60
text 295 292 middle batch
text 4 14 ms
line limit 62 528 202.9 202.9
text 528 198.9 end goal
polyline line c0 120.2,104.0 178.5,73.8 528.0,37.9
circle dot c0 120.2 104.0 4
title H100: 10 at 8
circle dot c0 178.5 73.8 4
title H100: 25 at 16
circle dot c0 528.0 37.9 4
title H100: 74 at 64"""


def test_lines_numbers_names_and_a_limit_stand_where_their_values_are() -> None:
    assert drawn(LINE, DASHED, limit=(120.0, "limit")) == LINEAR_CHART
    assert drawn(LINE, limit=(0.5, "goal"), is_log=True) == LOGARITHMIC_CHART


@pytest.mark.parametrize(
    ("points", "is_log", "numbers"),
    [
        ([(3.0, 0.0)], False, "0 0.2 0.4 0.6 0.8 1 3 3.2 3.4 3.6 3.8 4"),
        ([(4.0, 21.0), (8.0, 2.0)], False, "0 5 10 15 20 25 4 5 6 7 8"),
        ([(4.0, 100.0), (8.0, 2.0)], False, "0 20 40 60 80 100 4 5 6 7 8"),
        ([(99.5, 600.0), (150.0, 2.0)], False, "0 200 400 600 800 1,000 100 120 140"),
        ([(0.0, 0.0), (0.3, 100.0)], True, "100 1,000 0 0.1 0.2 0.3"),
        ([(0.0, 0.0), (0.3, 0.0)], True, "1 10 0 0.1 0.2 0.3"),
    ],
)
def test_axes_have_round_numbers_around_all_values(
    points: list[tuple[float, float]], is_log: bool, numbers: str
) -> None:
    found = drawn(ChartCurve("one", tuple(points)), is_log=is_log)

    assert " ".join(re.findall(r"(?:end|middle) (\S*\d)$", found, re.M)) == numbers


def test_a_value_below_a_logarithmic_axis_is_drawn_on_it() -> None:
    found = drawn(ChartCurve("one", ((1.0, 0.0), (2.0, 10.0), (3.0, 1.0))), is_log=True)

    assert "217.3,256.0 372.7,28.0 528.0,256.0" in found


def test_a_value_a_hair_above_the_highest_number_is_drawn_on_its_line() -> None:
    assert "62.0,28.0 528.0,142.0" in drawn(ChartCurve("one", ((1.0, 100.05), (2.0, 50.0))))


def test_many_points_are_thinned_and_colours_repeat() -> None:
    many = [ChartCurve(str(n), tuple((at, 1.0) for at in range(1300))) for n in range(9)]

    lines = re.findall(r"polyline line (c\d) (.*)", drawn(*many))

    assert [colour for colour, _ in lines] == [*(f"c{n}" for n in range(8)), "c0"]
    assert len(lines[0][1].split()) == 434  # every third
    assert drawn(ChartCurve("empty", ())) == ""


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (-0.25, "-0.25"),
        (1.0, "1"),
        (1.96, "2.0"),
        (99.5, "99.5"),
        (100.5, "100"),
        (150.5, "150"),
    ],
)
def test_a_number_has_as_many_digits_as_can_be_read(value: float, text: str) -> None:
    assert number_text(value) == text
