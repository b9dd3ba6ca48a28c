"""A program is recorded once and priced for each GPU and by each predictor."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from neusight.integrations.suites import results
from neusight.integrations.suites.case import CaseProgram, LeftOut, Suite, SuiteCase
from neusight.integrations.suites.paper import paper_suite
from neusight.integrations.suites.results import PricedCase, case_results
from neusight.predictors.errors import UnsupportedKernelError
from neusight.predictors.gpu import GPU
from neusight.predictors.kernel import Kernel
from neusight.predictors.predictor import Estimate
from neusight.predictors.registry import find_predictor
from suite_folders import paper_folder, priced_case


class RefusesAll:
    """A predictor that prices nothing."""

    name = "refuses"

    def predict(self, kernels: Sequence[Kernel], gpu: GPU) -> list[Estimate]:
        raise UnsupportedKernelError("no kernel is good enough")


def test_a_program_is_recorded_once_for_all_gpus_and_predictors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("transformers")
    labels = ("Tesla T4,tiny_gpt,inf,16,2,,3", "NVIDIA L4,tiny_gpt,inf,16,2,,3")
    folder = paper_folder(tmp_path, labels)
    recorded: list[str] = []
    record: Any = results.record_program  # type: ignore[attr-defined]

    def counted(program: CaseProgram, gpu: GPU, data: Path, kept: Path | None) -> object:
        recorded.append(gpu.name)
        return record(program, gpu, data, kept)

    monkeypatch.setattr(results, "record_program", counted)
    named = {name: find_predictor(name) for name in ("roofline", "tiled")}

    found = list(case_results(paper_suite(folder), {**named, "bad": RefusesAll()}, folder))

    priced = [item for item in found if isinstance(item, PricedCase)]
    assert recorded == ["T4"]
    assert [(item.case.gpu.name, item.predictor) for item in priced] == [
        ("T4", "roofline"),
        ("T4", "tiled"),
        ("L4", "roofline"),
        ("L4", "tiled"),
    ]
    assert all(0.0 < item.low_ms <= item.forecast_ms <= item.high_ms for item in priced)
    left_out = [item.reason for item in found if isinstance(item, LeftOut)]
    assert left_out == ["not priced by bad: no kernel is good enough"] * 2


def test_a_program_that_cannot_be_built_is_left_out_with_the_reason(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    case = priced_case("a", 0.0, program=CaseProgram("vision", "unheard-of", "inf", 1, 32)).case
    suite = Suite("published", (case,), ())

    assert list(case_results(suite, {}, tmp_path)) == [
        LeftOut("a", "a source", "unheard-of: its configuration is not available")
    ]


def test_errors_are_signed_and_intervals_hold_or_not() -> None:
    result = priced_case("a", -0.05)

    assert result.error == pytest.approx(-0.05)
    assert result.is_inside
    assert not priced_case("a", 0.5).is_inside


def test_a_predictor_is_trained_where_it_saw_kernels_of_that_gpu() -> None:
    assert priced_case("a", 0.1, trained_share=0.1).status == "trained"
    assert priced_case("a", 0.1, trained_share=0.0).status == "untrained"


def test_cases_are_values() -> None:
    assert isinstance(priced_case("a", 0.1).case, SuiteCase)
    assert priced_case("a", 0.1) == priced_case("a", 0.1)
