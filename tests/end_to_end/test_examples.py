"""The examples run as they stand, each in a process of its own, and print what they promise."""

from __future__ import annotations

import json
import os
import shutil
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast

import pytest

from places import ROOT
from warm_python import run_python

EXAMPLES = ROOT / "examples"


def run(*words: str, cwd: Path) -> str:
    done = run_python(*words, cwd=cwd, env={**os.environ, "HF_HUB_OFFLINE": "1"})
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def forecast(
    script: str, *arguments: str, cwd: Path, gpu: str = "H100", predictor: str = "tiled"
) -> dict[str, object]:
    run("-m", "neusight", "run", "--quiet", "--gpu", gpu, "--predictor", predictor, "--steps", "2",
        "--json", "o.json", str(EXAMPLES / script), *arguments, cwd=cwd)  # fmt: skip
    document: dict[str, object] = json.loads((cwd / "o.json").read_text())
    return document


def needs(*packages: str) -> pytest.MarkDecorator:
    missing = [package for package in packages if find_spec(package) is None]
    return pytest.mark.skipif(bool(missing), reason=f"not installed: {', '.join(missing)}")


def test_a_new_gpu_is_a_file_or_a_value(tmp_path: Path) -> None:
    printed = run(str(EXAMPLES / "new_gpu.py"), cwd=tmp_path)

    first, second = printed.splitlines()
    assert first.startswith("My-A30: ")
    assert first.endswith("constants: prior")
    assert second.startswith("My-A30 with twice the bandwidth: ")


def test_the_command_line_takes_the_file_of_a_gpu(tmp_path: Path) -> None:
    document = forecast(
        "train_gpt2.py", "--batch", "1", "--seq", "64", cwd=tmp_path, gpu=str(EXAMPLES / "a30.json")
    )

    assert document["gpu"] == "My-A30"
    assert document["unmapped"] == []


@pytest.mark.slow
def test_generated_text_has_a_first_token_and_more(tmp_path: Path) -> None:
    found = forecast(
        "generate_llama.py", "--layers", "2", "--batch", "4", "--prompt", "256", cwd=tmp_path
    )

    prefill, decode = cast("list[dict[str, object]]", found["phases"])
    assert (prefill["samples"], prefill["tokens"]) == (4, 256)
    assert decode["phase"] == "decode"
    # Keys and values of 8 heads of 128, in two layers, two bytes an element.
    assert found["kv_bytes_per_token"] == 2 * 2 * 8 * 128 * 2


def test_a_model_is_served(tmp_path: Path) -> None:
    run("-m", "neusight", "serve", str(EXAMPLES / "serve_own_model.py"), "--gpu", "H100",
        "--requests", "20", "--output", "8", "--json", "o.json", cwd=tmp_path)  # fmt: skip

    document = json.loads((tmp_path / "o.json").read_text())
    assert document["points"][0]["num_requests"] == 20
    assert document["servers"][0]["unmatched_kernels"] == []


@pytest.mark.slow
def test_a_compiled_training_launches_fewer_kernels(tmp_path: Path) -> None:
    def steady(mode: str) -> dict[str, Any]:
        document: dict[str, Any] = forecast(
            "train_gpt2_compiled.py", "--size", "tiny", "--batch", "2", "--seq", "64",
            "--mode", mode, cwd=tmp_path,
        )  # fmt: skip
        return document

    eager, compiled = steady("eager"), steady("default")

    assert compiled["unmapped"] == []
    assert compiled["num_kernels"] < eager["num_kernels"]
    assert compiled["peak_memory_bytes"] <= eager["peak_memory_bytes"]


@pytest.mark.slow
def test_a_sharded_llama_is_forecast(tmp_path: Path) -> None:
    script = (str(EXAMPLES / "train_fsdp.py"), "--size", "tiny", "--seq", "128")
    run("-m", "neusight", "run", "--gpu", "H100", "--quiet", "--steps", "1", "--json", "o.json",
        "--world-size", "8", "--rank", "7", *script, "--tp", "2", "--replicas", "2",
        cwd=tmp_path)  # fmt: skip

    document = json.loads((tmp_path / "o.json").read_text())

    assert document["unmapped"] == []


@pytest.mark.parametrize("how", [(), ("--shard",)])
def test_one_rank_of_many_is_forecast_behind_torchrun(how: tuple[str, ...], tmp_path: Path) -> None:
    script = (str(EXAMPLES / "train_ddp.py"), "--layers", "2", "--width", "256", *how)
    run("-m", "neusight", "run", "--gpu", "H100", "--quiet", "--steps", "2", "--json", "o.json",
        "torchrun", "--nnodes", "2", "--nproc-per-node", "4", *script, cwd=tmp_path)  # fmt: skip

    document = json.loads((tmp_path / "o.json").read_text())

    assert document["unmapped"] == []
    assert document["steps"][-1]["communication_us"] > 0


@pytest.mark.slow
def test_a_plan_ranks_what_fits(tmp_path: Path) -> None:
    run("-m", "neusight", "plan", "--gpu", "H100", "--world-size", "8", "--sweep", "tp=2,3",
        "--quiet", "--json", "o.json", str(EXAMPLES / "plan_parallelism.py"), "--layers", "2",
        "--width", "512", "--vocabulary", "1000", "--seq", "512", "--global-batch", "8",
        "--checkpoint", cwd=tmp_path)  # fmt: skip

    document = json.loads((tmp_path / "o.json").read_text())

    [point], [excluded] = document["points"], document["excluded"]
    assert (point["settings"]["tp"], point["world_size"]) == ("2", 8)
    assert round(point["tokens_per_second"] * point["latency_us"] / 1e6) == 8 * 512
    assert "8 ranks cannot be shared" in excluded["problem"]


def test_a_pipeline_over_nodes_pays_for_a_narrow_spine(tmp_path: Path) -> None:
    printed = run(str(EXAMPLES / "many_nodes.py"), "--nodes", "1,3840", "--oversubscription",
                  "1,8", "--layers-per-node", "1", "--width", "1024", cwd=tmp_path)  # fmt: skip

    rows = [line.split() for line in printed.splitlines()[1:]]
    stages = [float(row[-5]) for row in rows]

    assert [row[0] for row in rows] == ["1", "1", "3840", "3840"]
    assert stages[0] == stages[1] < stages[2] < stages[3]
    assert printed.splitlines()[0].split()[-2:] == ["MFU", "tokens/s"]
    assert all(row[-2].endswith("%") and float(row[-1].replace(",", "")) > 0 for row in rows)


def test_gpus_are_compared_with_their_costs(tmp_path: Path) -> None:
    printed = run(str(EXAMPLES / "compare_gpus.py"), cwd=tmp_path)

    assert [line.split()[0] for line in printed.splitlines()[1:4]] == [
        "H100-SXM5-80GB", "A100-SXM4-80GB", "L40S",
    ]  # fmt: skip
    assert "cheapest a step: " in printed


def test_a_trace_is_written_where_tensorboard_finds_it(tmp_path: Path) -> None:
    printed = run(str(EXAMPLES / "view_in_tensorboard.py"), "logs", cwd=tmp_path)

    assert "tensorboard --logdir logs" in printed
    assert list((tmp_path / "logs").glob("*.pt.trace.json.gz"))


def test_a_custom_op_is_priced_as_registered(tmp_path: Path) -> None:
    printed = run(str(EXAMPLES / "custom_op.py"), cwd=tmp_path)

    assert printed.startswith("swiglu: ")
    assert printed.endswith("unmapped ops: []\n")


@pytest.mark.slow
def test_a_package_brings_a_predictor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, site = tmp_path / "source", tmp_path / "site"
    shutil.copytree(EXAMPLES / "predictor_package", source)
    run(
        *("-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation"),
        *("--disable-pip-version-check", "--target", str(site), str(source)),
        cwd=tmp_path,
    )
    usual = forecast("train_gpt2.py", "--batch", "1", "--seq", "64", cwd=tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(site))

    document = forecast(
        "train_gpt2.py", "--batch", "1", "--seq", "64", cwd=tmp_path, predictor="cautious"
    )

    assert document["predictor"] == "cautious"
    assert busy_us(document) > 1.05 * busy_us(usual)


def busy_us(document: dict[str, Any]) -> float:
    """How long the GPU works in the last step."""
    return float(document["steps"][-1]["gpu_busy_us"])


@pytest.mark.slow
@needs("lightning")
def test_lightning_trains_under_a_forecast(tmp_path: Path) -> None:
    document = forecast(
        "train_lightning.py", "--batch", "4", "--seq", "32", "--width", "128", "--layers", "2",
        cwd=tmp_path,
    )  # fmt: skip

    assert document["tokens_per_step"] == 4 * 32
    assert document["unmapped"] == []


@pytest.mark.slow
@needs("lightning")
def test_lightnings_callback_ends_the_training(tmp_path: Path) -> None:
    assert "per training step" in run(str(EXAMPLES / "forecast_lightning.py"), cwd=tmp_path)


@pytest.mark.slow
@needs("transformers", "accelerate")
def test_the_trainer_trains_under_a_forecast(tmp_path: Path) -> None:
    document = forecast(
        "train_hf_trainer.py", "--batch", "2", "--seq", "32", "--width", "128", "--layers", "2",
        "--accumulate", "2", cwd=tmp_path,
    )  # fmt: skip

    assert document["tokens_per_step"] == 2 * 2 * 32
    assert document["unmapped"] == []
