"""Where the time goes, in tables: by class of kernel, by op, and the kernels that take longest."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from neusight.integrations.report.page.colours import kind_of
from neusight.integrations.report.page.html_tables import (
    Cell,
    Detail,
    count_cell,
    share_cell,
    table,
    time_cell,
)
from neusight.integrations.report.page.lanes import problem_text, range_text
from neusight.output.figures import Row
from neusight.predictors.formatting import counted
from neusight.predictors.kernel import Kernel, KernelClass
from neusight.predictors.predictor import Estimate
from neusight.timeline.spans import StepSpan
from neusight.timeline.steady import kernels_of

if TYPE_CHECKING:
    from neusight.forecast import Forecast


def view_of_times(forecast: Forecast, step: StepSpan, detail: Detail) -> str:
    """The four tables of a step with kernels."""
    verdict = forecast.verdict
    return (
        _rows_table(verdict.by_kernel_class, "kernel class", detail, has_swatches=True)
        + _rows_table(verdict.by_op, "op", detail)
        + _rows_table(forecast.by_operator, "operator, with those in it", detail)
        + _kernel_table(forecast, step, detail)
    )


def _rows_table(
    rows: Sequence[Row], what: str, detail: Detail, *, has_swatches: bool = False
) -> str:
    shown, left = rows[: detail.num_rows], rows[detail.num_rows :]
    kinds = [kind_of(KernelClass(row.name)) for row in rows] if has_swatches else []
    rest = _cells(_sum_of_rows(left)) if left else []
    header = [what, "kernels", "time", "share"]
    caption = f"By {what}"
    return table(header, map(_cells, shown), caption=caption, kinds=kinds, rest=rest, bars={3})


def _sum_of_rows(rows: Sequence[Row]) -> Row:
    return Row(
        counted(len(rows), "more row"),
        sum(row.count for row in rows),
        sum(row.time_us for row in rows),
        sum(row.share for row in rows),
    )


def _cells(row: Row) -> list[str | Cell]:
    return [row.name, count_cell(row.count), time_cell(row.time_us), share_cell(row.share)]


def _kernel_table(forecast: Forecast, step: StepSpan, detail: Detail) -> str:
    """Equal kernels of the step together, the longest first."""
    sums: dict[Kernel, tuple[int, int, Estimate]] = {}
    for span in kernels_of(step, forecast.timeline):
        count, time_ns, _ = sums.get(span.kernel, (0, 0, span.estimate))
        sums[span.kernel] = (count + 1, time_ns + span.duration_ns, span.estimate)
    longest = sorted(sums.items(), key=lambda item: (-item[1][1], item[0].key))
    rows = [_kernel_row(kernel, *found) for kernel, found in longest[: detail.num_rows]]
    left = [found for _, found in longest[detail.num_rows :]]
    rest: list[str | Cell] = []
    if left:
        count, time_us = sum(found[0] for found in left), sum(found[1] for found in left) / 1000
        more = counted(len(left), "more kernel")
        rest = [more, "", count_cell(count), time_cell(time_us), "", "", "", ""]
    header = ["kernel", "problem", "count", "together", "each", "80 % range", "bound", "priced by"]
    caption = "Kernels that take longest together"
    return table(header, rows, caption=caption, words={1}, rest=rest)


def _kernel_row(kernel: Kernel, count: int, time_ns: int, estimate: Estimate) -> list[str | Cell]:
    return [
        kernel.name,
        problem_text(kernel),
        count_cell(count),
        time_cell(time_ns / 1000),
        time_cell(estimate.latency_us),
        Cell(range_text(estimate), estimate.high_us),
        estimate.bound,
        estimate.origin,
    ]
