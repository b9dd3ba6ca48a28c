"""Published figures become cases, or are left out with the reason."""

from __future__ import annotations

from pathlib import Path

import pytest

from neusight.integrations.suites.case import CaseProgram
from neusight.integrations.suites.published import published_suite
from neusight.predictors.errors import DataError
from places import ROOT
from suite_folders import FIGURE_HEAD, published_folder

DATA = ROOT.parent / "shared" / "data"

TIMM = "timm-a,x/y results/,RTX-3090,1,resnet18,64,224,amp-fp16,inf,no,,images/s,1000,nhwc"
LATENCY = "dle-inf-a,NVIDIA/z,V100-UNKNOWN,1,resnext101-32x4d,8,224,fp32,inf,no,,latency ms,12,"


def test_images_a_second_become_the_time_of_a_step(tmp_path: Path) -> None:
    [case] = published_suite(published_folder(tmp_path, [TIMM])).cases

    assert case.program == CaseProgram(
        "timm", "resnet18", "inf", 64, 224, "amp", channels_last=True
    )
    assert (case.source, case.gpu.name, case.value) == ("x/y", "RTX-3090", 1000.0)
    assert case.measured_ms == pytest.approx(64.0)


def test_what_the_source_does_not_say_is_kept_as_an_assumption(tmp_path: Path) -> None:
    [case] = published_suite(published_folder(tmp_path, [LATENCY])).cases

    assert (case.program.model, case.measured_ms) == ("resnext101_32x4d", 12.0)
    assert any("which card" in text for text in case.assumed)


@pytest.mark.parametrize(
    ("metric", "step_ms"),
    [("images/s", 64.0), ("iterations/s", 1.0), ("ms/step", 1000.0), ("latency ms", 1000.0)],
)
def test_a_figure_becomes_the_time_of_a_step(tmp_path: Path, metric: str, step_ms: float) -> None:
    [case] = published_suite(published_folder(tmp_path, [TIMM.replace("images/s", metric)])).cases

    assert (case.measured_ms, case.metric) == (step_ms, metric)


@pytest.mark.parametrize(
    ("name", "family"),
    [
        ("timm-x", "timm"), ("dle-train-resnet50", "timm"), ("dle-train-se_resnext101", "timm"),
        ("dle-inf-x", "timm"), ("hfcompile-x", "vision"), ("samfast-x", "sam"),
    ],
)  # fmt: skip
def test_a_source_says_who_builds_its_programs(tmp_path: Path, name: str, family: str) -> None:
    [case] = published_suite(published_folder(tmp_path, [TIMM.replace("timm-a", name)])).cases

    assert case.program.family == family


FUSED = "eager: what the source fuses by TorchScript is not fused"


@pytest.mark.parametrize(
    ("words", "mode", "is_fused"),
    [
        ("no", "", False), ("no (nvFuser/TorchScript used by repo)", "", True),
        ("inductor", "default", False), ("inductor default", "default", False),
        ("max-autotune", "max-autotune", False),
    ],
)  # fmt: skip
def test_words_of_compiling_are_modes(
    tmp_path: Path, words: str, mode: str, is_fused: bool
) -> None:
    [case] = published_suite(published_folder(tmp_path, [TIMM.replace(",no,", f",{words},")])).cases

    assert case.program.compiled == mode
    assert (FUSED in case.assumed) is is_fused


@pytest.mark.parametrize(
    ("notes", "version"),
    [
        ("nhwc", ""), ("torch 2.3.1; nhwc", "2.3"), ("NGC pytorch 21.03", "1.9"),
        ("NGC 21.03; torch 2.3", "1.9"), ("NGC 22.01; torch 2.3", ""),
    ],
)  # fmt: skip
def test_the_torch_that_ran_is_read_from_the_notes(
    tmp_path: Path, notes: str, version: str
) -> None:
    [case] = published_suite(published_folder(tmp_path, [TIMM.replace("nhwc", notes)])).cases

    assert case.torch == version
    assert (f"of torch {version};" in case.assumed[0]) is bool(version)
    assert ("not the source's" in case.assumed[0]) is not bool(version)


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        (TIMM.replace("images/s", "peak memory MiB"), "a figure of memory"),
        (TIMM.replace("timm-a", "gptfast-a"), "decoding token by token"),
        (TIMM.replace("timm-a", "new-a"), "its program is not available"),
        (TIMM.replace(",no,", ",by hand,"), "compiled as 'by hand'"),
        (TIMM.replace("RTX-3090", "Voodoo-2"), "Unknown GPU 'Voodoo-2'"),
    ],
)
def test_a_row_that_cannot_run_is_left_out_with_the_reason(
    tmp_path: Path, row: str, reason: str
) -> None:
    suite = published_suite(published_folder(tmp_path, [row]))

    [left_out] = suite.left_out
    assert reason in left_out.reason
    assert suite.cases == ()


def test_rows_of_several_gpus_belong_to_no_case(tmp_path: Path) -> None:
    folder = published_folder(tmp_path, [TIMM.replace(",1,resnet18", ",8,resnet18"), LATENCY])

    suite = published_suite(folder)

    assert [case.name for case in suite.cases] == ["dle-inf-a"]
    assert suite.left_out == ()


def test_a_missing_column_is_reported(tmp_path: Path) -> None:
    folder = published_folder(tmp_path, [TIMM], head=FIGURE_HEAD.replace(",metric", ",other"))

    with pytest.raises(DataError, match="lacks the column metric"):
        published_suite(folder)


@pytest.mark.skipif(not DATA.exists(), reason="the measured tables are not part of this checkout")
def test_every_published_row_of_one_gpu_is_run_or_left_out() -> None:
    suite = published_suite(DATA)

    assert len(suite.cases) + len(suite.left_out) == 116
    assert not [item for item in suite.left_out if "nobody wrote" in item.reason]


def test_mixed_inference_of_deep_learning_examples_is_nhwc_as_its_training(tmp_path: Path) -> None:
    mixed = LATENCY.replace("fp32", "amp-fp16").replace("dle-inf-a", "dle-inf-b")

    plain, half = published_suite(published_folder(tmp_path, [LATENCY, mixed])).cases

    assert (plain.program.channels_last, half.program.channels_last) == (False, True)
