"""JSON: all of it, and the figures of github-action-benchmark."""

from __future__ import annotations

import json
from dataclasses import replace

from check_results import BEFORE, regression
from neusight.integrations.check.figures.metrics import METRICS
from neusight.integrations.check.outputs.documents import benchmark_json, report_json
from neusight.integrations.check.result import CaseResult


def test_the_json_holds_everything() -> None:
    document = report_json([regression(), CaseResult("t", "failed", failure="it broke")])

    first, second = json.loads(json.dumps(document))["cases"]
    assert (document["schema_version"], document["exit_code"]) == (1, 3)
    assert report_json([])["exit_code"] == 0
    assert first["result"] == "regression"
    assert first["time_causes"][0]["module"] == "Net.0"
    assert first["memory_causes"][0]["amount"] == 2**30
    assert first["new_synchronizations"][0]["cost_us"] == 40.0
    assert [change["name"] for change in first["changes"]] == [metric.name for metric in METRICS]
    assert second["failure"] == "it broke"


def test_figures_for_github_action_benchmark_have_its_keys() -> None:
    rows = benchmark_json([regression(), CaseResult("gone", "removed", case=BEFORE)])

    assert len(rows) == len(METRICS)
    assert all(set(row) == {"name", "unit", "value", "range", "extra"} for row in rows)
    assert (rows[0]["name"], rows[0]["unit"], rows[0]["value"]) == (
        "train: step latency",
        "us",
        1500.0,
    )


def test_a_throughput_is_stated_so_that_smaller_is_better() -> None:
    rates = {"samples_per_step": 8, "samples_per_second": 8000.0}
    case = replace(BEFORE, metrics={**BEFORE.metrics, **rates})

    *_, row = benchmark_json([CaseResult("t", "new", case=case)])

    assert (row["name"], row["unit"], row["value"]) == ("t: time a sample", "us/sample", 125.0)
    assert benchmark_json([CaseResult("t", "removed", case=case)]) == []
