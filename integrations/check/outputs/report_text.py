"""What every form of a check's report says alike: results, figures and places in words."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from neusight.integrations.check.figures.batch_change import rate_of
from neusight.integrations.check.figures.change import MetricChange
from neusight.integrations.check.judgement import Judgement
from neusight.integrations.check.observation import code_at
from neusight.integrations.check.result import CaseResult
from neusight.predictors.formatting import amount_text


def change_text(change: MetricChange) -> str:
    difference = change.one_after - change.one_before
    if difference == 0:
        return "same"
    if change.unit == "" or change.before == 0:
        return amount_text(difference, change.unit, signed=True)
    share = difference / change.one_before
    if abs(share) < 5e-4:
        return amount_text(difference, change.unit, signed=True)
    return f"{share:+.2%}"


def figure_texts(change: MetricChange) -> tuple[str, str]:
    """The figure before and now: of one, where it is judged so."""
    return (
        amount_text(change.one_before, change.unit),
        amount_text(change.one_after, change.unit),
    )


def headline(result: CaseResult) -> str:
    """What the step comes to, and whether it is of another batch than the baseline's."""
    case = result.case
    if case is None:
        return ""
    rate = rate_of(case.metrics)
    reported = [
        f"{amount_text(case.metrics['step_latency_us'], 'us')} a step",
        *([] if rate is None else [amount_text(rate[1], rate[0].unit)]),
        f"{amount_text(case.metrics['peak_memory_bytes'], 'bytes')} at the peak",
    ]
    batch = None if result.judgement is None else result.judgement.batch
    if batch is not None:
        reported.append(f"{batch.words}, judged per {batch.unit}")
    return ", ".join(reported)


def batch_text(judgement: Judgement) -> str:
    """How the judged figures of one sample compare, where a step consumes another number of them;
    "" where it does not."""
    batch = judgement.batch
    latency = next((change for change in judgement.metrics if change.per), None)
    if batch is None or latency is None:
        return ""
    was, now = figure_texts(latency)
    verdict = {"within": "within tolerance", "tool": "by the tool"}.get(
        latency.status, latency.status
    )
    words = f"{batch.words}: judged per {batch.unit}"
    return f"{words}: {was} → {now} a {batch.unit}, {verdict}"


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
