"""What TensorBoard's text tab says of a forecast: verdict, what to change, the whole summary."""

from __future__ import annotations

import html
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from neusight.advice.advice import Advice, advice_for, fitting_lines
from neusight.integrations.report.memory import MemoryReport
from neusight.predictors.formatting import time_text
from neusight.predictors.terminal_text import printable

if TYPE_CHECKING:
    from neusight.forecast import Forecast

#: What Markdown would take for its own, and what it leaves to HTML.
_MARKS = re.compile(r"([\\`*_{}\[\]|#])")


def advice_to_show(forecast: Forecast) -> list[Advice]:
    """What would make the step faster; nothing of a program that failed, nor of several ranks."""
    if forecast.failure or forecast.ranks or forecast.verdict.num_kernels == 0:
        return []
    return advice_for(forecast)


def forecast_markdown(forecast: Forecast, advice: Sequence[Advice]) -> str:
    """The forecast as Markdown; `advice` is on its step.

    Of a program that does not fit it shows what would make it fit instead.
    """
    verdict, *_ = summary = forecast.summary().splitlines()
    parts = [f"### {_plain(verdict)}", *_changes(forecast, advice), *_rows_of(forecast)]
    return "\n\n".join([*parts, "#### In full", "\n".join(f"    {line}" for line in summary)])


def _rows_of(forecast: Forecast) -> list[str]:
    rows = [
        (row.name, time_text(row.time_us), f"{row.share:.1%}", f"{row.count:,}")
        for row in forecast.verdict.by_kernel_class
    ]
    if not rows or forecast.failure:
        return []
    lines = [["kernels", "a step", "share", "launches"], ["---"] * 4]
    lines += [[_plain(cell) for cell in row] for row in rows]
    table = "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
    return ["#### Where the time goes", table]


def _changes(forecast: Forecast, advice: Sequence[Advice]) -> list[str]:
    if not forecast.fits and not forecast.failure:
        title, *lines = fitting_lines(MemoryReport(forecast.needs_most).advice)
        return [f"#### {_plain(title.strip())}", *(f"- {_plain(line.strip())}" for line in lines)]
    if not advice:
        return []
    lines = [
        f"- **{time_text(item.latency_us)} a step ({-item.gain + 0.0:.0%})** "
        f"{_plain(item.what)}  \n  *{_plain(item.assumes)}*"
        for item in advice
    ]
    return ["#### What to change (each alone)", "\n".join(lines)]


def _plain(text: str) -> str:
    """Text of the program's own, so that it reads as it stands."""
    return _MARKS.sub(r"\\\1", html.escape(printable(text), quote=False))
