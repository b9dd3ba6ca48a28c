"""A comparison as tables, for the terminal and as Markdown."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from neusight.integrations.profiles.comparison.breakdown import (
    ComparisonRow,
    OperatorRow,
    StepRow,
    error_of,
)
from neusight.integrations.profiles.comparison.figures import step_time_text
from neusight.integrations.profiles.comparison.operator_pairs import OperatorPairs
from neusight.integrations.profiles.comparison.result import ComparedFigures
from neusight.predictors.formatting import aligned, bytes_text, percent_text
from neusight.predictors.terminal_text import printable

_UNMATCHED_SHOWN = 8

_OPERATORS_SHOWN = 8

Table = list[tuple[str, ...]]

Format = Callable[[str, Table], str]


def sections(comparison: ComparedFigures, limit: int, show: Format) -> list[str]:
    """The comparison's tables, each as `show` puts it; of long ones `limit` rows."""
    rows = comparison.rows
    shown = []
    if comparison.warnings:
        lines = ((text,) for text in comparison.warnings)
        shown.append(show("Not the same program", [("warning",), *lines]))
    shown += [
        show("A step", _totals(comparison)),
        show("By kernel class", _row_table(comparison.classes, ("class",))),
        show(
            f"The largest errors ({min(limit, len(rows))} of {len(rows)})",
            _row_table(rows[:limit], ("class", "operator", "size")),
        ),
        *_unmatched("Measured, not forecast", comparison.unmatched_measured, show),
        *_unmatched("Forecast, not measured", comparison.unmatched_forecast, show),
    ]
    if len(comparison.steps) > 1:
        shown.append(show("Steps", _step_table(comparison.steps[:limit])))
    both = [row for row in comparison.operators if row.num_measured and row.num_forecast]
    if both:
        most = both[:_OPERATORS_SHOWN]
        title = f"Operators on the host ({len(most)} of {len(both)} that both have)"
        shown.append(show(title, _operator_table(most)))
    shown += _operator_pairs(comparison.operator_pairs, show)
    if comparison.notes:
        shown.append(show("Notes", [("note",), *((note,) for note in comparison.notes)]))
    return shown


def _operator_pairs(pairs: OperatorPairs, show: Format) -> list[str]:
    """Operators that are not in the same place of both call trees, with the reason if known."""
    if not pairs.differences or not pairs.num_by_name:
        return []
    table: Table = [("within", "measured operators", "forecast operators", "times", "reason")]
    for row in pairs.differences[:_OPERATORS_SHOWN]:
        within = row.within or "the step"
        table.append(
            (within, row.measured or "-", row.forecast or "-", str(row.count), row.reason or "-")
        )
    title = (
        f"Operators: of {pairs.num_measured:,} measured {pairs.name_share:.1%} in the forecast by "
        f"name, {pairs.place_share:.1%} in the same place "
        f"({min(len(table) - 1, len(pairs.differences))} of {len(pairs.differences)} differences)"
    )
    return [show(title, table)]


def _unmatched(title: str, rows: Sequence[ComparisonRow], show: Format) -> list[str]:
    if not rows:
        return []
    total_us = sum(row.measured_us + row.forecast_us for row in rows)
    table = _row_table(rows[:_UNMATCHED_SHOWN], ("class", "operator", "size"))
    return [show(f"{title}: {total_us:,.1f} µs", table)]


def _totals(comparison: ComparedFigures) -> Table:
    measured, forecast = comparison.measured, comparison.forecast
    table: Table = [
        ("", "measured", "forecast", "error"),
        ("kernel time", *_compared(measured.kernel_us, forecast.kernel_us)),
        ("step time", *_compared(measured.step_us, forecast.step_us)),
        ("data loader", *_compared(measured.loader_us, forecast.loader_us)),
        ("kernels", str(measured.num_kernels), str(forecast.num_kernels), ""),
        ("GPU idle", f"{measured.gpu_idle_share:.0%}", f"{forecast.gpu_idle_share:.0%}", ""),
        ("bound by", measured.bound, forecast.bound, "" if comparison.same_bound else "differs"),
    ]
    if not measured.loader_us and not forecast.loader_us:
        del table[3]
    for label, real, ours in (
        ("allocated", measured.peak_allocated_bytes, forecast.peak_allocated_bytes),
        ("reserved", measured.peak_reserved_bytes, forecast.peak_reserved_bytes),
    ):
        if real and ours:
            table.append((label, bytes_text(real), bytes_text(ours), _percent(ours, real)))
    shares = (
        ("matched by class and size", comparison.matched_share),
        ("matched by class", comparison.class_share),
        ("matched by operator name too", comparison.name_share),
        ("score", comparison.score),
    )
    return table + [(label, f"{share:.1%}", "", "") for label, share in shares]


def _row_table(rows: Sequence[ComparisonRow], labels: tuple[str, ...]) -> Table:
    table: Table = [
        (*labels, "kernels", "forecast", "measured µs", "forecast µs", "error", "of all error")
    ]
    for row in rows:
        cells = (row.kernel_class, row.op, row.size)[: len(labels)]
        table.append(
            (
                *cells,
                str(row.num_measured),
                str(row.num_forecast),
                f"{row.measured_us:,.1f}",
                f"{row.forecast_us:,.1f}",
                percent_text(row.error),
                f"{row.error_share:.1%}",
            )
        )
    return table


def _step_table(rows: Sequence[StepRow]) -> Table:
    table: Table = [
        ("step", "forecast's", "measured", "forecast", "kernel time", "forecast", "kernels",
         "forecast"),
    ]  # fmt: skip
    for row in rows:
        times = (
            row.measured_us, row.forecast_us, row.measured_kernel_us, row.forecast_kernel_us
        )  # fmt: skip
        table.append(
            (
                row.measured_name,
                row.forecast_name,
                *("" if time is None else step_time_text(time) for time in times),
                *(
                    "" if count is None else str(count)
                    for count in (row.measured_kernels, row.forecast_kernels)
                ),
            )
        )
    return table


def _operator_table(rows: Sequence[OperatorRow]) -> Table:
    table: Table = [("operator", "calls", "forecast", "measured µs", "forecast µs", "error")]
    for row in rows:
        table.append(
            (
                row.op,
                str(row.num_measured),
                str(row.num_forecast),
                f"{row.measured_us:,.1f}",
                f"{row.forecast_us:,.1f}",
                percent_text(row.error),
            )
        )
    return table


def _compared(measured_us: float, forecast_us: float) -> tuple[str, str, str]:
    return (
        step_time_text(measured_us),
        step_time_text(forecast_us),
        _percent(forecast_us, measured_us),
    )


def _percent(forecast: float, measured: float) -> str:
    return percent_text(error_of(forecast, measured))


#: Columns of words, to the left.
_TEXT_COLUMNS = (
    "", "class", "operator", "size", "step", "forecast's", "within", "measured operators",
    "forecast operators",
)  # fmt: skip


def plain(title: str, table: Table) -> str:
    """Columns aligned: the first to the left, figures to the right."""
    title, table = printable(title), _printable(table)
    if len(table[0]) == 1:
        return "\n".join([title, *(f"  {cells[0]}" for cells in table[1:]), ""])
    texts = sum(cell in _TEXT_COLUMNS for cell in table[0][:3]) or 1
    lines = [f"  {line}" for line in aligned(table, left=range(texts))]
    return "\n".join([title, *lines, ""])


def markdown_table(title: str, table: Table) -> str:
    """A table as Markdown; one of a single column as a list."""
    title = printable(title)
    head, *rows = _printable(table)
    if len(head) == 1:
        return "\n".join([f"### {title}", "", *(f"- {cells[0]}" for cells in rows), ""])
    lines = [f"### {title}", "", _cells(head), _cells(["---"] * len(head))]
    return "\n".join([*lines, *(_cells(row) for row in rows), ""])


def _printable(table: Table) -> Table:
    return [tuple(map(printable, row)) for row in table]


def _cells(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
