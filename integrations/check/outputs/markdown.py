"""A check's report for a pull request, as Markdown."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from neusight.integrations.check.judgement import MetricChange
from neusight.integrations.check.outputs.terminal import explanation
from neusight.integrations.check.outputs.words import change_text, state_text
from neusight.integrations.check.result import CaseResult
from neusight.predictors.terminal_text import printable, printable_text
from neusight.predictors.words import amount_text

__all__ = [
    "code_text",
    "markdown_report",
]


def markdown_report(results: Sequence[CaseResult], folder: Path) -> str:
    """A report for a pull request: a table of cases, then a section for each that has a story."""
    lines = ["## Performance forecast", "", "| case | result | step latency | peak memory |"]
    lines.append("|---|---|---:|---:|")
    for result in results:
        latency, memory = "", ""
        if result.judgement is not None:
            by_name = {change.name: change for change in result.judgement.metrics}
            latency = _cell(by_name["step_latency_us"])
            memory = _cell(by_name["peak_memory_bytes"])
        elif result.case is not None:
            latency = amount_text(result.case.metrics["step_latency_us"], "us")
            memory = amount_text(result.case.metrics["peak_memory_bytes"], "bytes")
        lines.append(f"| {code_text(result.name)} | {state_text(result)} | {latency} | {memory} |")
    for result in results:
        lines += _markdown_section(result, folder)
    lines += ["", "A forecast, not a measurement: no GPU was used."]
    return "\n".join(lines) + "\n"


def _cell(change: MetricChange) -> str:
    now = amount_text(change.after, change.unit)
    words = change_text(change)
    return now if words == "same" else f"{now} ({words})"


def _markdown_section(result: CaseResult, folder: Path) -> list[str]:
    if result.failure:
        return ["", f"### {code_text(result.name)}", "", _fenced([printable_text(result.failure)])]
    judgement = result.judgement
    if judgement is None or judgement.is_unchanged:
        return []
    return ["", f"### {code_text(result.name)}", "", _fenced(explanation(judgement, folder))]


def code_text(text: str) -> str:
    """A name in a Markdown table, whatever is in it."""
    ticks = "`" * (1 + max((len(run) for run in re.findall(r"`+", text)), default=0))
    pad = " " if "`" in text else ""
    plain = printable(" ".join(text.split())).replace("|", "\\|")
    return f"{ticks}{pad}{plain}{pad}{ticks}"


def _fenced(lines: Sequence[str]) -> str:
    text = "\n".join(lines)
    fence = "`" * max(3, 1 + max((len(run) for run in re.findall(r"`+", text)), default=0))
    return f"{fence}text\n{text}\n{fence}"
