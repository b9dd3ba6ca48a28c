"""What every form of a check's report says alike: results, figures and places in words."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from neusight.integrations.check.judgement import MetricChange
from neusight.integrations.check.observation import code_at
from neusight.integrations.check.result import CaseResult
from neusight.predictors.words import amount_text

__all__ = [
    "change_text",
    "headline",
    "own_line",
    "place_text",
    "state_text",
]


def change_text(change: MetricChange) -> str:
    difference = change.after - change.before
    if difference == 0:
        return "same"
    if change.unit == "" or change.before == 0:
        return amount_text(difference, change.unit, signed=True)
    share = difference / change.before
    if abs(share) < 5e-4:
        return amount_text(difference, change.unit, signed=True)
    return f"{share:+.2%}"


def headline(result: CaseResult) -> str:
    case = result.case
    if case is None:
        return ""
    latency = amount_text(case.metrics["step_latency_us"], "us")
    memory = amount_text(case.metrics["peak_memory_bytes"], "bytes")
    return f"{latency} a step, {memory} at the peak"


def state_text(result: CaseResult) -> str:
    judgement = result.judgement
    if result.kind == "ok":
        assert judgement is not None
        return "ok, same as the baseline" if judgement.is_unchanged else "ok, within tolerance"
    return {
        "better": "ok, better than the baseline (--update keeps it)",
        "tool": "ok, but the tool changed and moved the figures (--update)",
        "regression": "REGRESSION",
        "new": "NO BASELINE (--update writes it)",
        "removed": "REMOVED",
        "foreign": "OTHER SETTINGS",
        "failed": "FAILED",
        "updated": "baseline written",
        "dropped": "dropped from the baseline",
    }[result.kind]


def place_text(stack: Sequence[str], folder: Path) -> str:
    """The innermost line of a stack, the program's own first; with its code."""
    place = own_line(stack, folder)
    code = code_at(place, folder)
    return f"{place}  {code}" if code else place


def own_line(stack: Sequence[str], folder: Path) -> str:
    """The innermost line in a file of the project; the innermost one where there is none."""
    return next((place for place in stack if code_at(place, folder)), stack[0])
