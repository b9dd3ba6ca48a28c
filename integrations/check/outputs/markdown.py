"""A check's report for a pull request, as Markdown."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from neusight.integrations.check.baseline import Case
from neusight.integrations.check.figures.batch_change import rate_of
from neusight.integrations.check.figures.change import MetricChange
from neusight.integrations.check.figures.metrics import KEPT_METRICS
from neusight.integrations.check.outputs.report_text import change_text, state_text
from neusight.integrations.check.outputs.terminal import explanation
from neusight.integrations.check.result import CaseResult
from neusight.predictors.formatting import amount_text
from neusight.predictors.terminal_text import printable, printable_text


def markdown_report(results: Sequence[CaseResult], folder: Path) -> str:
    """A report for a pull request: a table of cases, then a section for each that has a story."""
    lines = [
        "## Performance forecast",
        "",
        "| case | result | step latency | throughput | peak memory |",
        "|---|---|---:|---:|---:|",
    ]
    for result in results:
        cells = [code_text(result.name), state_text(result), *_figure_cells(result)]
        lines.append(f"| {' | '.join(cells)} |")
    for result in results:
        lines += _markdown_section(result, folder)
    lines += ["", "A forecast, not a measurement: no GPU was used."]
    return "\n".join(lines) + "\n"


def _figure_cells(result: CaseResult) -> list[str]:
    """Latency, throughput and memory; empty where they are not known."""
    case = result.case
    if case is None:
        return ["", "", ""]
    changes = () if result.judgement is None else result.judgement.metrics
    by_name = {change.name: change for change in changes}
    rate = rate_of(case.metrics)
    wanted = ["step_latency_us", "" if rate is None else rate[0].name, "peak_memory_bytes"]
    return [_cell(case, name, by_name.get(name)) if name else "" for name in wanted]


def _cell(case: Case, name: str, change: MetricChange | None) -> str:
    unit = next(metric.unit for metric in KEPT_METRICS if metric.name == name)
    now = amount_text(case.metrics[name], unit)
    words = "same" if change is None else change_text(change)
    of_one = f" a {change.per}" if change is not None and change.per else ""
    return now if words == "same" else f"{now} ({words}{of_one})"


def _markdown_section(result: CaseResult, folder: Path) -> list[str]:
    if result.failure:
        return ["", f"### {code_text(result.name)}", "", _fenced([printable_text(result.failure)])]
    judgement = result.judgement
    if judgement is None or judgement.is_unchanged:
        return []
    return ["", f"### {code_text(result.name)}", "", _fenced(explanation(judgement, folder))]


def code_text(text: str) -> str:
    """A name in a Markdown table, whatever is in it."""
    ticks = _ticks_around(text)
    pad = " " if "`" in text else ""
    plain = printable(" ".join(text.split())).replace("|", "\\|")
    return f"{ticks}{pad}{plain}{pad}{ticks}"


def _fenced(lines: Sequence[str]) -> str:
    text = "\n".join(lines)
    fence = _ticks_around(text).rjust(3, "`")
    return f"{fence}text\n{text}\n{fence}"


def _ticks_around(text: str) -> str:
    """One more than stand together in the text."""
    return "`" + max(re.findall(r"`+", text), key=len, default="")
