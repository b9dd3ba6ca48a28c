"""What all reports of a check say: changes, headlines, batches and places in words."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from check_results import BEFORE, project, regression, slower
from neusight.integrations.check.figures.batch_change import BatchChange
from neusight.integrations.check.figures.change import MetricChange, Status
from neusight.integrations.check.judgement import judge
from neusight.integrations.check.outputs.report_text import (
    batch_text,
    change_text,
    figure_texts,
    headline,
    own_line,
    place_text,
)
from neusight.integrations.check.result import CaseResult


def change(
    before: float, after: float, unit: str = "us", *, per: str = "", status: Status = "within",
    counts: tuple[int, int] = (1, 1),
) -> MetricChange:  # fmt: skip
    return MetricChange(
        "x", "x", unit, before, after, 0.0, 0.0, "0 %", status, per=per, counts=counts
    )


@pytest.mark.parametrize(
    ("found", "text"),
    [
        (change(100.0, 100.0), "same"),
        (change(1000.0, 1001.0), "+0.10%"),
        (change(1000.0, 999.5), "-0.05%"),
        (change(1000.0, 1000.499), "+0.499 µs"),
        (change(1000.0, 999.501), "-0.499 µs"),
        (change(3.0, 5.0, ""), "+2"),
        (change(0.0, 5.0), "+5 µs"),
        (change(2.0**30, 2.0**31, "bytes"), "+100.00%"),
        (change(100.0, 150.0, per="sample", counts=(2, 4)), "-25.00%"),
        (change(100.0, 200.0, per="sample", counts=(2, 4)), "same"),
    ],
)
def test_a_change_is_a_share_where_that_says_more_than_the_amount(
    found: MetricChange, text: str
) -> None:
    assert change_text(found) == text


def test_figures_are_of_one_sample_where_they_are_judged_so() -> None:
    assert figure_texts(change(1000.0, 3000.0, per="sample", counts=(2, 4))) == ("500 µs", "750 µs")


@pytest.mark.parametrize(
    ("status", "verdict"),
    [("within", "within tolerance"), ("tool", "by the tool"), ("worse", "worse"), ("same", "same")],
)
def test_another_batch_is_judged_per_sample_in_words(status: Status, verdict: str) -> None:
    judgement = judge("train", BEFORE, slower())
    per_sample = change(1000.0, 3000.0, per="sample", counts=(8, 16), status=status)
    other = replace(
        judgement, batch=BatchChange("sample", 8, 16), metrics=(change(1.0, 2.0), per_sample)
    )

    assert batch_text(other) == (
        f"batch 8 → 16: judged per sample: 125 µs → 187.5 µs a sample, {verdict}"
    )
    assert batch_text(judgement) == batch_text(replace(other, metrics=())) == ""


def test_the_headline_has_the_step_the_rate_and_the_peak() -> None:
    rate = {"samples_per_second": 8000.0, "tokens_per_second": 2e6}
    plain = CaseResult("train", "ok", judge("train", BEFORE, slower()), BEFORE)
    case = replace(BEFORE, metrics=BEFORE.metrics | rate)
    judgement = judge("train", case, replace(slower(), case=case))
    other = replace(judgement, batch=BatchChange("token", 512, 1024))

    assert headline(plain) == "1 ms a step, 1.00 GiB at the peak"
    assert headline(CaseResult("train", "ok", other, case)) == (
        "1 ms a step, 2,000,000 tokens/s, 1.00 GiB at the peak, tokens a step 512 → 1,024, "
        "judged per token"
    )
    assert headline(replace(regression(), case=None)) == ""


def test_the_programs_own_line_is_named_before_those_of_libraries(tmp_path: Path) -> None:
    folder = project(tmp_path)

    assert own_line(("torch/nn.py:3", "model.py:2", "train.py:1"), folder) == "model.py:2"
    assert own_line(("torch/nn.py:3", "torch/nn.py:9"), folder) == "torch/nn.py:3"
    assert place_text(("torch/nn.py:3", "model.py:2"), folder) == "model.py:2  self.up(x)"
    assert place_text(("torch/nn.py:3",), folder) == "torch/nn.py:3"
