"""The terminal: a line for each case, and why."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from check_results import BEFORE, project, regression, slower
from neusight.integrations.check.baseline import Case, OperatorTimeRow
from neusight.integrations.check.figures.batch_change import intake_figures
from neusight.integrations.check.judgement import judge
from neusight.integrations.check.outputs.terminal import explanation, figure_lines, text_of
from neusight.integrations.check.result import CaseResult
from neusight.output.batch import Batch


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return project(tmp_path)


def test_an_unchanged_case_is_one_line(folder: Path) -> None:
    seen = replace(slower(), case=BEFORE)
    result = CaseResult("train", "ok", judge("train", BEFORE, seen), BEFORE)

    text = text_of(result, folder)

    assert text == "train: ok, same as the baseline, 1 ms a step, 1.00 GiB at the peak"


def test_a_regression_says_what_by_how_much_and_where(folder: Path) -> None:
    text = text_of(regression(), folder)

    assert text.startswith("train: REGRESSION, 1.5 ms a step, 2.00 GiB at the peak")
    for words in (
        "step latency 1 ms 1.5 ms +50.00% 0.5 % WORSE",
        "+450 µs Net.0: aten::addmm (gemm 8x8x8 bf16 → gemm 8x16x8 bf16)",
        "model.py:2 self.up(x)",
        "made at model.py:1 self.up = nn.Linear(8, 16)",
        "+1.00 GiB Net.0: aten::addmm (activation)",
        "new synchronization (item, 1 a step): the step is 40 µs longer for it",
        "train.py:1 loss.item()",
        "new kernels: 1 x gemm 8x16x8 bf16",
        "note: priced by bytes over bandwidth, as fallback: my::op",
    ):
        assert words in " ".join(text.split())


def test_a_figure_that_falls_to_nothing_is_shown_and_one_that_is_nothing_is_not() -> None:
    judgement = judge("train", BEFORE, slower())
    gone = judgement.metrics[0]._replace(title="gone", before=3.0, after=0.0)
    none = gone._replace(title="none", before=0.0)

    _, *lines = figure_lines(replace(judgement, metrics=(gone, none)), ("before", "now"))

    assert [line.split()[0] for line in lines] == ["gone"]


def test_operators_are_named_with_their_kernel_time_before_and_now(folder: Path) -> None:
    before = replace(BEFORE, operators=(OperatorTimeRow("aten::linear", 2, 900_000),))
    seen = slower()
    now = replace(seen.case, operators=(OperatorTimeRow("aten::linear", 2, 1_350_000),))

    lines = explanation(judge("train.py", before, replace(seen, case=now)), folder)

    assert lines[lines.index("  kernel time in operators, those that they call included:") + 1] == (
        "        +450 µs  aten::linear: 900 µs → 1.35 ms"
    )


def test_quietly_every_case_is_one_line(folder: Path) -> None:
    assert "\n" not in text_of(regression(), folder, quiet=True)


def test_a_failure_says_why(folder: Path) -> None:
    text = text_of(CaseResult("train", "failed", failure="ValueError: no"), folder)

    assert text == "train: FAILED: ValueError: no"


def test_a_place_without_a_file_is_named_without_code(tmp_path: Path) -> None:
    judgement = regression().judgement
    assert judgement is not None

    assert any(line.strip() == "model.py:2" for line in explanation(judgement, tmp_path))


def test_another_batch_is_reported_first_and_judged_by_the_sample(folder: Path) -> None:
    def of_batch(case: Case, samples: int, latency_us: float) -> Case:
        known = intake_figures(Batch(samples=samples), latency_us)
        metrics = {**case.metrics, "step_latency_us": latency_us, **known}
        return replace(case, metrics=metrics, batch_source="input")

    before = of_batch(BEFORE, 8, 1000.0)
    seen = slower()
    judgement = judge("train", before, replace(seen, case=of_batch(seen.case, 16, 1600.0)))
    result = CaseResult("train", "better", judgement, judgement.case)

    first, reported, *lines = text_of(result, folder).splitlines()

    assert first.endswith("1.6 ms a step, 10,000 samples/s, 2.00 GiB at the peak, "
                          "batch 8 → 16, judged per sample")  # fmt: skip
    assert reported == "  batch 8 → 16: judged per sample: 125 µs → 100 µs a sample, better"
    assert "  latency a sample             125 µs       100 µs    -20.00%  0.5 %  better" in lines
    assert "  throughput, samples/s         8,000       10,000    +25.00%  0.5 %  better" in lines
