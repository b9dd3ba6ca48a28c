"""A check's report as JSON: all of it, or the figures for github-action-benchmark."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from neusight.integrations.check.baseline import METRICS
from neusight.integrations.check.result import CaseResult

__all__ = [
    "benchmark_json",
    "report_json",
]

#: Raised when a key of the JSON changes its meaning or goes.
SCHEMA_VERSION = 1


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
    return {
        **document,
        "changes": [change._asdict() for change in judgement.metrics],
        "time_causes": [cause._asdict() for cause in judgement.time_causes],
        "memory_causes": [cause._asdict() for cause in judgement.memory_causes],
        "time_stack": list(judgement.time_stack),
        "memory_stack": list(judgement.memory_stack),
        "new_synchronizations": [wait._asdict() for wait in judgement.new_waits],
        "new_compiler_stops": [stop._asdict() for stop in judgement.new_stops],
        "gone_synchronizations": list(judgement.gone_waits),
        "new_kernels": [{"kernel": work, "count": n} for work, n in judgement.new_kernels],
        "gone_kernels": [{"kernel": work, "count": n} for work, n in judgement.gone_kernels],
        "tool_changes": list(judgement.tool_changes),
        "price_changes": [{"op": op, "share": share} for op, share in judgement.price_changes],
        "notes": list(judgement.notes),
    }


def benchmark_json(results: Sequence[CaseResult]) -> list[dict[str, Any]]:
    """For github-action-benchmark, tool `customSmallerIsBetter`."""
    return [
        {
            "name": f"{result.name}: {metric.title}",
            "unit": metric.unit or "count",
            "value": result.case.metrics[metric.name],
            "range": "0",
            "extra": f"neusight {result.case.tool['neusight']}, torch {result.case.tool['torch']}",
        }
        for result in results
        if result.case is not None and result.kind not in ("removed", "dropped")
        for metric in METRICS
    ]
