"""Every workload that is measured is one that can be forecast, with no op unmapped."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from neusight.integrations.profiles.workloads import loaded
from neusight.predictors.errors import DataError
from neusight.session import forecast_on
from places import ROOT
from warm_python import run_python

FOLDER = ROOT / "benchmarks" / "workloads"
SETTINGS: list[dict[str, Any]] = json.loads((FOLDER / "settings.json").read_text())
SCRIPTS = sorted({row["script"] for row in SETTINGS})

#: The least of each model that still takes every path.
SMALL: dict[str, list[str]] = {
    "gpt2.py": ["--seq", "32"],
    "llama.py": ["--size", "160m", "--seq", "32"],
    "bert.py": ["--seq", "32"],
    "t5.py": ["--size", "small", "--seq", "32"],
    "vit.py": ["--size", "small"],
    "unet.py": ["--image", "16"],
    "lstm.py": ["--seq", "8"],
    "moe.py": ["--seq", "32", "--layers", "1"],
}


def small(script: str, *more: str) -> list[str]:
    return [*SMALL.get(script, []), "--batch", "2", *more]


def forecast(script: str, arguments: list[str], *, gpu: str = "H100") -> Any:
    with (
        loaded(FOLDER / script) as module,
        forecast_on(gpu, predictor="roofline", strict=True) as result,
    ):
        step = module.build(module.parser().parse_args(arguments))
        step()
        step()
    return result


def test_there_are_models_and_settings_of_all_kinds() -> None:
    names = [row["name"] for row in SETTINGS]
    stated = " ".join(word for row in SETTINGS for word in row["arguments"])

    assert len(set(names)) == len(names) >= 24
    assert len(SCRIPTS) == 11
    precisions = "fp32 tf32 fp16 bf16-weights --channels-last --benchmark"
    for word in f"inference --checkpoint eager adamw-fused --decode {precisions}".split():
        assert word in stated


def test_the_first_six_models_come_first_in_training_and_inference() -> None:
    first = [(row["script"], "inference" in row["arguments"]) for row in SETTINGS[:12]]

    assert first == [
        (f"{name}.py", inference)
        for inference in (False, True)
        for name in ("gpt2", "llama", "bert", "resnet50", "vit", "lstm")
    ]


@pytest.mark.parametrize("script", SCRIPTS)
def test_all_its_settings_are_understood(script: str) -> None:
    with loaded(FOLDER / script) as module:
        for row in SETTINGS:
            if row["script"] == script:
                module.parser().parse_args(row["arguments"])


@pytest.mark.parametrize("script", SCRIPTS)
def test_it_is_forecast_in_training_with_no_op_unmapped(script: str) -> None:
    result = forecast(script, small(script))

    assert "train" in {step.kind for step in result.recording.steps}
    assert result.gpu_busy_us > 0


@pytest.mark.parametrize("script", SCRIPTS)
def test_it_is_forecast_in_inference_with_no_op_unmapped(script: str) -> None:
    result = forecast(script, small(script, "--mode", "inference", "--dtype", "fp16-weights"))

    assert "eval" in {step.kind for step in result.recording.steps}
    assert result.gpu_busy_us > 0


@pytest.mark.parametrize(
    ("script", "arguments"),
    [
        ("gpt2.py", ["--checkpoint", "--attention", "eager", "--optimizer", "adamw-fused"]),
        ("gpt2.py", ["--dtype", "fp16", "--clip"]),
        ("llama.py", ["--mode", "inference", "--decode", "--dtype", "bf16-weights"]),
        ("resnet50.py", ["--dtype", "tf32", "--benchmark", "--channels-last"]),
        ("lstm.py", ["--optimizer", "adam-loop", "--dtype", "fp32"]),
    ],
)
def test_other_settings_are_forecast_with_no_op_unmapped(script: str, arguments: list[str]) -> None:
    assert forecast(script, small(script, *arguments)).gpu_busy_us > 0


def test_a_workload_is_an_ordinary_script(tmp_path: Path) -> None:
    done = run_python(
        *("-m", "neusight", "run", "--gpu", "H100", "--steps", "2"),
        *("--json", str(tmp_path / "out.json"), str(FOLDER / "lstm.py"), *small("lstm.py")),
    )

    assert done.returncode == 0, done.stderr
    assert "step 0: " in done.stdout
    assert json.loads((tmp_path / "out.json").read_text())["unmapped"] == []


def test_files_that_are_no_workload_are_named(tmp_path: Path) -> None:
    (tmp_path / "other.py").write_text("def parser(): ...\n")

    with (
        pytest.raises(DataError, match="no workload: it has no function build"),
        loaded(tmp_path / "other.py"),
    ):
        pass
    with (
        pytest.raises(DataError, match=r"There is no workload .*none\.py"),
        loaded(tmp_path / "none.py"),
    ):
        pass
