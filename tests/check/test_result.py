"""What becomes of a case: judged, foreign, removed, written again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from neusight.integrations.check.baseline import Case, read_baseline, update_baseline
from neusight.integrations.check.figures.metrics import METRICS
from neusight.integrations.check.figures.tolerance import DEFAULT_TOLERANCES
from neusight.integrations.check.observation import Observation
from neusight.integrations.check.result import (
    CaseResult,
    removed_result,
    result_of,
    updated,
)

MADE_WITH = {"host": "plain", "predictor": "tiled", "steps": "5"}
CALIBRATED = {**MADE_WITH, "host": "plain, calibrated", "calibration": "a.json"}
CASE = Case(
    gpu="L4", program=("train.py",), settings=MADE_WITH, bound="host", tool={"code": "1"}, work="w",
    files="", metrics={metric.name: 100.0 for metric in METRICS}, peak="", ops=(), memory=(),
    waits=(),
)  # fmt: skip
SLOWER = {**CASE.metrics, "step_latency_us": 200.0}


def result(before: Case | None, now: Case | str) -> CaseResult:
    seen = now if isinstance(now, str) else Observation(now, {}, {}, {}, {})
    return result_of("train on L4", seen, before, DEFAULT_TOLERANCES)


def test_each_outcome_has_its_kind() -> None:
    assert result(CASE, "it failed").kind == "failed"
    assert result(None, CASE).kind == "new"
    assert result(CASE, CASE).kind == "ok"
    assert result(CASE, replace(CASE, metrics=SLOWER)).kind == "regression"
    assert result(replace(CASE, metrics=SLOWER), CASE).kind == "better"


@pytest.mark.parametrize(
    ("before", "now", "words"),
    [
        (MADE_WITH, {**MADE_WITH, "steps": "3"}, "made with steps 5, this check uses 3"),
        (MADE_WITH, CALIBRATED, "made with calibration (not set), this check uses a.json"),
        (CALIBRATED, MADE_WITH, "made with calibration a.json, this check uses (not set)"),
    ],
)
def test_a_baseline_of_other_settings_is_foreign(
    before: dict[str, str], now: dict[str, str], words: str
) -> None:
    found = result(replace(CASE, settings=before), replace(CASE, settings=now))

    assert found.kind == "foreign"
    assert words in found.failure


def test_a_baseline_of_another_gpu_is_foreign_and_that_of_another_batch_is_not() -> None:
    other = result(replace(CASE, gpu="T4"), CASE)

    assert (other.kind, other.failure) == ("foreign", "the baseline is for T4")
    assert result(replace(CASE, settings={**MADE_WITH, "samples": "8"}), CASE).kind == "ok"


def test_another_calibration_is_a_change_of_the_tool_wherever_its_file_is() -> None:
    before = replace(CASE, settings=CALIBRATED, tool={"code": "1", "calibration": "2"})
    now = replace(before, settings={**CALIBRATED, "calibration": "moved/a.json"})
    other = replace(now, tool={"code": "1", "calibration": "3"}, metrics=SLOWER)

    assert result(before, now).kind == "ok"
    moved = result(before, other)
    assert moved.kind == "tool"
    assert moved.judgement is not None
    assert moved.judgement.tool_changes == ("the calibration",)


def test_a_removed_case_names_the_one_that_does_the_same() -> None:
    new = result(None, CASE)

    assert "'train on L4' does the same" in removed_result("old on L4", CASE, [new]).failure
    assert "does the same" not in removed_result("old", replace(CASE, work="x"), [new]).failure


def test_failed_cases_stay_in_the_baseline_as_they_are(tmp_path: Path) -> None:
    path = tmp_path / "neusight.json"
    update_baseline(path, lambda cases: {"a": CASE, "b": CASE, "gone": CASE})
    slower = replace(CASE, metrics=SLOWER)
    results = [CaseResult("a", "new", case=slower), CaseResult("b", "failed", failure="it died")]

    found = updated(path, results, ["gone"])

    assert [(item.name, item.kind) for item in found] == [
        ("a", "updated"), ("b", "failed"), ("gone", "dropped"),
    ]  # fmt: skip
    assert read_baseline(path) == {"a": slower, "b": CASE}
