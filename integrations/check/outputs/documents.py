"""A check's report as JSON: all of it, or the figures for github-action-benchmark."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from neusight.integrations.check.baseline import Case
from neusight.integrations.check.figures.batch_change import rate_of
from neusight.integrations.check.figures.metrics import METRICS
from neusight.integrations.check.judgement import Judgement
from neusight.integrations.check.result import CaseResult

#: Raised when a key of the JSON changes its meaning or goes.
SCHEMA_VERSION = 1

#: Cases that nothing was forecast of.
_GONE = ("removed", "dropped")


def report_json(results: Sequence[CaseResult]) -> dict[str, Any]:
    """All that is known, nothing left out."""
    return {
        "schema_version": SCHEMA_VERSION,
        "exit_code": max((result.exit_code for result in results), default=0),
        "cases": [_case_json(result) for result in results],
    }


def _case_json(result: CaseResult) -> dict[str, Any]:
    judgement, case = result.judgement, result.case
    document: dict[str, Any] = {
        "name": result.name,
        "result": result.kind,
        "failure": result.failure,
        "gpu": case.gpu if case else None,
        "metrics": dict(case.metrics) if case else None,
        "tool": dict(case.tool) if case else None,
    }
    if judgement is None:
        return document
    return {**document, **judgement_json(judgement)}


def judgement_json(judgement: Judgement) -> dict[str, Any]:
    """What changed, and what made it change."""
    return {
        "batch": None if judgement.batch is None else judgement.batch._asdict(),
        "changes": [change._asdict() for change in judgement.metrics],
        "optimizer_change": judgement.optimizer_change or None,
        "time_causes": [cause._asdict() for cause in judgement.time_causes],
        "memory_causes": [cause._asdict() for cause in judgement.memory_causes],
        "time_stack": list(judgement.time_stack),
        "memory_stack": list(judgement.memory_stack),
        "new_synchronizations": [wait._asdict() for wait in judgement.new_waits],
        "new_compiler_stops": [stop._asdict() for stop in judgement.new_stops],
        "gone_synchronizations": list(judgement.gone_waits),
        "new_kernels": [{"kernel": work, "count": n} for work, n in judgement.new_kernels],
        "gone_kernels": [{"kernel": work, "count": n} for work, n in judgement.gone_kernels],
        "operator_changes": [change._asdict() for change in judgement.operator_changes],
        "tool_changes": list(judgement.tool_changes),
        "price_changes": [{"op": op, "share": share} for op, share in judgement.price_changes],
        "notes": list(judgement.notes),
    }


def benchmark_json(results: Sequence[CaseResult]) -> list[dict[str, Any]]:
    """For github-action-benchmark, tool `customSmallerIsBetter`."""
    cases = [
        (result.name, result.case)
        for result in results
        if result.case is not None and result.kind not in _GONE
    ]
    rows = [
        _benchmark_row(name, case, metric.title, metric.unit or "count", case.metrics[metric.name])
        for name, case in cases
        for metric in METRICS
    ]
    for name, case in cases:
        rate = rate_of(case.metrics)
        if rate is not None:  # stated so that smaller is better
            one = rate[0].unit.removesuffix("s/s")
            rows.append(_benchmark_row(name, case, f"time a {one}", f"us/{one}", 1e6 / rate[1]))
    return rows


def _benchmark_row(name: str, case: Case, title: str, unit: str, value: float) -> dict[str, Any]:
    return {
        "name": f"{name}: {title}",
        "unit": unit,
        "value": value,
        "range": "0",
        "extra": f"neusight {case.tool['neusight']}, torch {case.tool['torch']}",
    }
