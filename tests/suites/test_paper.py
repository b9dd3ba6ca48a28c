"""Labels of the NeuSight paper become cases."""

from __future__ import annotations

from pathlib import Path

import pytest

from neusight.integrations.suites.case import CaseProgram
from neusight.integrations.suites.paper import model_settings, paper_suite
from neusight.predictors.errors import DataError
from places import ROOT
from suite_folders import paper_folder

DATA = ROOT.parent / "shared" / "data" / "paper_fp32"


def test_a_label_becomes_the_program_that_ran(tmp_path: Path) -> None:
    labels = ("Tesla T4,tiny_gpt,inf,16,2,,3.5", "Tesla T4,tiny_gpt,train,16,4,tp4,7")
    folder = paper_folder(tmp_path, labels)

    eager, split = paper_suite(folder).cases

    assert eager.program == CaseProgram("language", "tiny_gpt", "inf", 2, 16)
    assert (eager.gpu.name, eager.measured_ms) == ("T4", 3.5)
    assert split.program == CaseProgram(
        "split", "tiny_gpt", "train", 4, 16, split="tp", num_ranks=4
    )
    assert any("not published" in text for text in split.assumed)


def test_fusion_is_compiled_and_switch_transformers_have_their_own_program(tmp_path: Path) -> None:
    labels = ("Tesla T4,tiny_gpt,inf,16,2,fusion,3.5", "Tesla T4,tiny_switch,inf,16,2,,3.5")
    fused, switch = paper_suite(paper_folder(tmp_path, labels)).cases

    assert fused.program.compiled == "default"
    assert switch.program.family == "switch"
    assert any("one of them" in text for text in switch.assumed)


def test_gpus_without_kernels_in_the_tables_are_marked(tmp_path: Path) -> None:
    labels = ("Tesla T4,tiny_gpt,inf,16,2,,3.5", "Tesla P4,tiny_gpt,inf,16,2,,3.5")
    folder = paper_folder(tmp_path, labels)

    marked = [case.is_held_out for case in paper_suite(folder, measured={"T4"}).cases]

    assert marked == [False, True]
    assert not any(case.is_held_out for case in paper_suite(folder).cases)


def test_a_gpu_that_nobody_knows_is_left_out_and_the_others_run(tmp_path: Path) -> None:
    labels = ("Voodoo 2,tiny_gpt,inf,16,2,,3.5", "Tesla T4,tiny_gpt,inf,16,2,,3.5")

    suite = paper_suite(paper_folder(tmp_path, labels))

    [left_out] = suite.left_out
    assert left_out.name == "Voodoo 2 tiny_gpt inf 16 2"
    assert "neither neusight nor gpus.csv knows this GPU" in left_out.reason
    assert len(suite.cases) == 1


@pytest.mark.parametrize(
    ("label", "reported"),
    [
        ("Tesla T4,other,inf,16,2,,3.5", "'other' is not in model_configs.json"),
        ("Tesla T4,tiny_gpt,sleep,16,2,,3.5", "the mode is 'sleep'"),
        ("Tesla T4,tiny_gpt,inf,16,2,dp9,3.5", "the option is 'dp9'"),
        ("Tesla T4,tiny_gpt,inf,16,0,,3.5", "batch is '0'"),
        ("Tesla T4,tiny_gpt,inf,16,2,,slow", "step_ms is 'slow'"),
    ],
)
def test_a_label_that_means_nothing_is_reported(tmp_path: Path, label: str, reported: str) -> None:
    with pytest.raises(DataError, match=reported):
        paper_suite(paper_folder(tmp_path, [label]))


@pytest.mark.parametrize(
    ("text", "reported"),
    [("{", "is no JSON"), ("[]", "must hold an object"), ('{"a": 1}', "must hold an object")],
)
def test_damaged_configurations_are_reported(tmp_path: Path, text: str, reported: str) -> None:
    (tmp_path / "model_configs.json").write_text(text)

    with pytest.raises(DataError, match=reported):
        model_settings(tmp_path)


def test_missing_configurations_are_reported(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"model_configs.json cannot be read"):
        model_settings(tmp_path)


@pytest.mark.skipif(not DATA.exists(), reason="the measured tables are not part of this checkout")
def test_every_label_of_the_paper_is_a_case() -> None:
    suite = paper_suite(DATA)

    assert len(suite.cases) == 87
    assert suite.left_out == ()
    assert sum(bool(case.program.split) for case in suite.cases) == 5
    assert sum(bool(case.program.compiled) for case in suite.cases) == 4
