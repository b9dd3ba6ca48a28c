"""Tables of a comparison: in columns, as Markdown, or as a list where there is one column."""

from __future__ import annotations

from neusight.integrations.profiles.comparison.rendering import markdown_table, plain

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
