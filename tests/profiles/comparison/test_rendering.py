"""Tables of a comparison: in columns, as Markdown, or as a list where there is one column."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from neusight.integrations.profiles.comparison.breakdown import (
    ComparisonRow,
    OperatorRow,
    StepRow,
)
from neusight.integrations.profiles.comparison.figures import StepFigures
from neusight.integrations.profiles.comparison.operator_pairs import (
    OperatorDifference,
    OperatorPairs,
)
from neusight.integrations.profiles.comparison.rendering import markdown_table, plain, sections
from neusight.integrations.profiles.comparison.result import ComparedFigures
from places import require_golden

TABLE: list[tuple[str, ...]] = [
    ("kernel", "real", "forecast"),
    ("a|b", "1.0 ms", "10.0 ms"),
    ("gemm", "2.0 ms", "-"),
]


def test_figures_stand_below_each_other_at_the_right() -> None:
    assert plain("Kernels", TABLE).splitlines() == [
        "Kernels",
        "  kernel    real  forecast",
        "  a|b     1.0 ms   10.0 ms",
        "  gemm    2.0 ms         -",
    ]


def test_markdown_has_a_rule_below_its_head_and_no_bar_within_a_cell() -> None:
    assert markdown_table("Kernels", TABLE).splitlines() == [
        "### Kernels",
        "",
        "| kernel | real | forecast |",
        "| --- | --- | --- |",
        "| a\\|b | 1.0 ms | 10.0 ms |",
        "| gemm | 2.0 ms | - |",
    ]


def test_one_column_is_a_list() -> None:
    table: list[tuple[str, ...]] = [("note",), ("first",), ("second",)]

    assert plain("Notes", table).splitlines() == ["Notes", "  first", "  second"]
    assert markdown_table("Notes", table).splitlines() == ["### Notes", "", "- first", "- second"]


def test_two_columns_are_no_list() -> None:
    assert plain("Ops", [("op", "real"), ("mm", "1")]).splitlines() == [
        "Ops", "  op  real", "  mm     1",
    ]  # fmt: skip
    assert markdown_table("Ops", [("op", "real"), ("mm", "1")]).splitlines()[2:] == [
        "| op | real |", "| --- | --- |", "| mm | 1 |",
    ]  # fmt: skip


def step_figures(step_us: float, **others: object) -> StepFigures:
    figures = StepFigures(
        gpu="H100", num_steps=3, step_us=step_us, kernel_us=800.0, busy_us=700.0, num_kernels=7,
        loader_us=0.0, gpu_idle_share=0.256, bound="gpu", peak_allocated_bytes=None,
        peak_reserved_bytes=None,
    )  # fmt: skip
    return replace(figures, **others)  # type: ignore[arg-type]


def comparison_row(op: str, measured_us: float, forecast_us: float) -> ComparisonRow:
    error = forecast_us / measured_us - 1 if measured_us else None
    return ComparisonRow("gemm", op, "1x2", 3, 4, measured_us, forecast_us, error, 0.125)


ROWS = tuple(comparison_row(f"op{n}", 1000.0, 1100.0 + n) for n in range(3))
LEAST = ComparedFigures(
    measured=step_figures(1000.0), forecast=step_figures(1250.0, bound="host", kernel_us=600.0),
    classes=(comparison_row("", 3000.0, 3303.0),), rows=ROWS,
    unmatched_measured=(), unmatched_forecast=(),
    matched_share=0.75, class_share=0.8, name_share=0.5, score=0.9, notes=(),
)  # fmt: skip


def test_the_least_and_the_most_that_a_comparison_shows() -> None:
    """Of nine that have no partner, nine operators and nine differences eight are shown."""
    lonely = tuple(comparison_row(f"alone{n}", 7.0, 0.0) for n in range(9))
    operators = [OperatorRow(f"aten::{n}", 1, 2, 1234.5, 617.25, -0.5) for n in range(9)]
    differences = tuple(OperatorDifference("", f"a{n}", "", 2, 1, 0, "") for n in range(9))
    steps = [StepRow("one", "two", 5000.0, 6000.0, 5.0, 2.5, 2, 1)]
    steps += [StepRow(f"step {n}", "", 5.0, None, 2.5, None, 1, None) for n in range(2)]
    most = replace(
        LEAST,
        measured=step_figures(1000.0, loader_us=2.5, peak_allocated_bytes=2**30,
                              peak_reserved_bytes=2**31),
        forecast=step_figures(1250.0, peak_allocated_bytes=3 * 2**29, peak_reserved_bytes=None),
        unmatched_measured=lonely, unmatched_forecast=lonely[:1], notes=("a note",),
        steps=tuple(steps), operators=(*operators, OperatorRow("aten::x", 0, 1, 0.0, 1.0, None)),
        operator_pairs=OperatorPairs(1200, 1100, 900, 600, 0, differences), warnings=("a | b",),
    )  # fmt: skip

    shown = [*sections(LEAST, 2, plain), *sections(most, 2, plain)]
    require_golden("comparison_text.txt", "\n".join(shown).splitlines())

    one_step = replace(most, steps=most.steps[:1], operators=most.operators[-1:])
    titles = [part.partition("\n")[0] for part in sections(one_step, 9, markdown_table)]
    assert titles == [
        "### Not the same program", "### A step", "### By kernel class",
        "### The largest errors (3 of 3)", "### Measured, not forecast: 63.0 µs",
        "### Forecast, not measured: 7.0 µs",
        "### Operators: of 1,200 measured 75.0% in the forecast by name, 50.0% in the same place "
        "(8 of 9 differences)",
        "### Notes",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("left_out", "is_shown"),
    [({"num_by_name": 0}, False), ({"differences": ()}, False), ({}, True)],
)
def test_operators_are_compared_where_both_sides_have_any(
    left_out: dict[str, Any], is_shown: bool
) -> None:
    pairs = OperatorPairs(2, 2, 1, 1, 0, (OperatorDifference("a", "b", "c", 1, 1, 1, "d"),))
    compared = replace(LEAST, operator_pairs=replace(pairs, **left_out))

    assert any(text.startswith("Operators: ") for text in sections(compared, 9, plain)) is is_shown
    half = OperatorPairs(8, 8, 3, 2, num_excused=2)
    assert (half.name_share, half.shared_name_share, half.place_share) == (3 / 8, 3 / 6, 2 / 8)
    none = OperatorPairs(0, 0, 0, 0)
    assert (none.name_share, none.shared_name_share, none.place_share) == (0.0, 0.0, 0.0)
