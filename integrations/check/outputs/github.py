"""A check's findings as annotations of a pull request, for GitHub Actions."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from neusight.integrations.check.causes import Cause
from neusight.integrations.check.judgement import Judgement
from neusight.integrations.check.outputs.report_text import figure_texts, own_line, state_text
from neusight.integrations.check.result import CaseResult
from neusight.predictors.formatting import amount_text
from neusight.predictors.terminal_text import printable_text

#: GitHub shows ten annotations of a step.
_ANNOTATIONS = 10


def github_annotations(results: Sequence[CaseResult], folder: Path, root: Path) -> list[str]:
    """Workflow commands that show each finding at its line; paths are relative to `root`."""
    found: list[str] = []
    for result in results:
        title = f"neusight: {result.name}"
        judgement = result.judgement
        if result.kind == "regression" and judgement is not None:
            found += [
                _annotation("error", text, title, place, folder, root)
                for text, place in _annotations(judgement, folder)
            ]
        elif result.exit_code:
            text = f"{state_text(result)} {result.failure}".strip()
            found.append(_annotation("error", text, title, "", folder, root))
        elif result.kind == "tool" and judgement is not None:
            text = f"{state_text(result)}: {', '.join(judgement.tool_changes)}"
            found.append(_annotation("notice", text, title, "", folder, root))
    return found[:_ANNOTATIONS]


def _annotations(judgement: Judgement, folder: Path) -> list[tuple[str, str]]:
    """(what is wrong, "file.py:12") of a regression: at least one, each line once."""
    worse = [change for change in judgement.metrics if change.status == "worse"]
    figures = ", ".join(f"{change.title} {' → '.join(figure_texts(change))}" for change in worse)
    if judgement.batch is not None:
        figures = f"{judgement.batch.words}: {figures}"
    found: dict[str, str] = {}
    for stop in judgement.new_stops:
        if stop.place:
            found.setdefault(stop.place, f"new {stop.what}: {stop.reason} ({figures})")
    for wait in judgement.new_waits:
        if wait.stack:
            text = f"waits for the GPU: {amount_text(wait.cost_us, 'us')} a step"
            found.setdefault(own_line(wait.stack, folder), f"{text} ({figures})")
    names = {change.name for change in worse}
    if names & {"step_latency_us", "gpu_busy_us", "num_kernels", "flops"}:
        _add_annotation(found, judgement.time_causes, judgement.time_stack, "us", figures, folder)
    if names & {"peak_memory_bytes", "peak_reserved_bytes"}:
        _add_annotation(
            found, judgement.memory_causes, judgement.memory_stack, "bytes", figures, folder
        )
    return [(text, place) for place, text in found.items()] or [(figures, "")]


def _add_annotation(
    found: dict[str, str],
    causes: Sequence[Cause],
    stack: Sequence[str],
    unit: str,
    figures: str,
    folder: Path,
) -> None:
    """At the line that made the module where one was resized, else where what is new is called."""
    growing = [cause for cause in causes if cause.amount > 0 and cause.is_in_module]
    if not growing:
        return
    totals: dict[str, float] = defaultdict(float)
    for cause in growing:
        totals[cause.module] += cause.amount
    innermost = {
        name for name in totals if not any(other.startswith(f"{name}.") for other in totals)
    }
    first = max(
        growing, key=lambda cause: (cause.module in innermost, totals[cause.module], cause.amount)
    )
    if first.is_resized:
        stack = first.made or stack
    if stack:
        named = sorted(totals, key=lambda module: -totals[module])[:3]
        modules = ", ".join(sorted(named))
        total = amount_text(sum(cause.amount for cause in growing), unit, signed=True)
        found.setdefault(own_line(stack, folder), f"{total} in {modules} ({figures})")


def _annotation(level: str, text: str, title: str, place: str, folder: Path, root: Path) -> str:
    name, _, number = place.rpartition(":")
    where = ""
    if name and number.isdigit():
        path = os.path.relpath(folder / name, root)
        where = f"file={_property(path)},line={number},"
    return f"::{level} {where}title={_property(title)}::{_escaped(text)}"


def _escaped(text: str) -> str:
    return printable_text(text).replace("%", "%25").replace("\n", "%0A")


def _property(text: str) -> str:
    return _escaped(text).replace(":", "%3A").replace(",", "%2C")
