"""Where the time goes, in tables: shares as bars, and what has no row added up."""

from __future__ import annotations

import re
from collections import Counter

import pytest

from neusight.forecast import Forecast
from neusight.integrations.report.page.html_tables import Detail
from neusight.integrations.report.page.time_tables import view_of_times
from neusight.predictors.kernel import Kernel


def shown(forecast: Forecast, num_rows: int) -> str:
    step = forecast.timeline.steps[-1]
    return view_of_times(forecast, step, Detail(num_spans=60, num_rows=num_rows, num_instances=0))


def figures(page: str, of: str = "<td ") -> list[float]:
    return [float(text) for text in re.findall(f'{of}data-v="([^"]*)"', page)]


def test_shares_are_drawn_as_bars_and_rows_that_have_no_place_are_added_up(
    forecast: Forecast,
) -> None:
    first, *others = forecast.verdict.by_kernel_class

    classes = shown(forecast, 1).partition("</table>")[0]

    shares = figures(classes, of='class="bar" ')
    assert shares == pytest.approx([first.share, sum(row.share for row in others)], abs=1e-3)
    assert f"{len(others)} more rows" in classes


def test_the_kernels_that_take_longest_stand_first(forecast: Forecast) -> None:
    step = forecast.timeline.steps[-1]
    spans = forecast.timeline.kernels[step.first_kernel : step.last_kernel]

    kernels = shown(forecast, 1).rpartition("<table")[2]

    most, left = kernels.split("<tfoot>")
    times: Counter[Kernel] = Counter()
    for span in spans:
        times[span.kernel] += span.duration_ns
    [(longest, time_ns)] = times.most_common(1)
    count = sum(span.kernel == longest for span in spans)
    assert figures(most)[:2] == pytest.approx([count, time_ns / 1000])
    assert figures(left) == pytest.approx(
        [len(spans) - count, (sum(times.values()) - time_ns) / 1000]
    )
    assert f"{len(times) - 1} more kernels" in left
