"""The measuring process answers requests, on a real GPU as on a forecast."""

from __future__ import annotations

import gzip
import io
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import neusight
from neusight.integrations.profiles import measuring_worker
from neusight.integrations.profiles.measuring_worker import (
    RealBench,
    Rehearsal,
    answers,
    main,
    serve,
)
from neusight.predictors.errors import DataError
from neusight.predictors.gpu import find_gpu
from neusight.predictors.measuring.folder import Sample, sample_from_json
from neusight.predictors.measuring.probes import Probe, prepared
from neusight.predictors.measuring.stopwatch import Conditions

GELU = "gelu dtype=bf16 numel=67108864"
BACKWARD = "layer_norm_backward dtype=bf16 rows=8192 width=768"


def served(*requests: dict[str, Any], gpu: str | None = "H100") -> list[dict[str, Any]]:
    out = io.StringIO()
    lines = "".join(json.dumps(request) + "\n" for request in requests)
    serve(io.StringIO(lines), out, gpu)
    return [json.loads(line) for line in out.getvalue().splitlines()]


def samples_of(replies: list[dict[str, Any]]) -> list[Sample]:
    return [sample_from_json(reply["sample"], "x") for reply in replies if "sample" in reply]


def test_each_request_is_answered_until_it_is_done() -> None:
    replies = served({"do": "environment"}, {"do": "probes", "probes": [GELU], "sustained": False})

    assert [next(iter(reply)) for reply in replies] == [
        "environment", "done", "begin", "begin", "sample", "sample", "done"
    ]  # fmt: skip
    assert replies[0]["environment"]["gpu"] == "forecast of H100-SXM5-80GB"
    assert replies[0]["environment"]["driver"] == "none, a rehearsal"


def test_what_a_library_prints_is_no_reply(capfd: pytest.CaptureFixture[str]) -> None:
    assert main("H10") == 2
    os.write(1, b"a library")

    out, err = capfd.readouterr()
    assert "Unknown GPU 'H10'" in json.loads(out)["error"]
    assert err == "a library"


def test_a_rehearsal_gives_the_times_that_are_forecast() -> None:
    from neusight.predictors import predict

    hot, cold = samples_of(served({"do": "probes", "probes": [GELU], "sustained": False}))

    (kernel,) = hot.kernels
    (estimate,) = predict([kernel], "H100", "tiled_burst")
    assert (kernel.name, kernel.num_bytes) == ("gelu", 2 * 2 * 67108864)
    assert hot.latency_us == pytest.approx(estimate.latency_us, abs=1e-3)
    assert (hot.l2, cold.l2) == ("hot", "cold")


def test_the_kernels_of_a_backward_pass_are_distinguished() -> None:
    found = samples_of(served({"do": "probes", "probes": [BACKWARD], "sustained": False}))

    assert {(sample.probe.partition(" part=")[2], sample.kernels[0].name) for sample in found} == {
        ("1/2", "layer_norm_backward"),
        ("2/2", "layer_norm_backward_weight"),
    }


def test_a_probe_that_does_not_fit_is_refused() -> None:
    (begin, refused, done) = served(
        {"do": "probes", "probes": ["gelu dtype=fp32 numel=99999999999"], "sustained": False}
    )

    assert (next(iter(begin)), next(iter(done))) == ("begin", "done")
    assert "OutOfMemoryError" in refused["refused"]["reason"]


def test_without_a_gpu_the_process_says_why() -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("here is a GPU")

    (reply,) = served({"do": "environment"}, gpu=None)

    assert "There is no GPU to measure: torch" in reply["error"]
    with pytest.raises(DataError):
        RealBench()


def test_a_workload_that_fails_is_refused_with_its_reason(tmp_path: Path) -> None:
    script = tmp_path / "broken.py"
    script.write_text("def parser(): ...\ndef build(settings): ...\n")
    request = {"do": "workload", "name": "broken", "script": str(script), "arguments": [],
               "folder": str(tmp_path)}  # fmt: skip

    refused, done = served(request)

    assert refused["refused"]["subject"] == "workload broken"
    assert refused["refused"]["reason"].startswith("AttributeError: ")
    assert done == {"done": True}


WORKLOAD = """
import argparse
import torch

def parser():
    found = argparse.ArgumentParser()
    found.add_argument("--mode", default="train")
    return found

def build(settings):
    layer = torch.nn.Linear(64, 64, device="cuda")
    return lambda: layer(torch.ones(8, 64, device="cuda")).sum().backward()
"""


def test_a_rehearsed_workload_has_figures_and_a_trace(tmp_path: Path) -> None:
    script = tmp_path / "small.py"
    script.write_text(WORKLOAD)
    request = {"do": "workload", "name": "w", "script": str(script), "folder": str(tmp_path)}

    found, done = served({**request, "arguments": ["--mode", "inference"]})
    wrong, _ = served({**request, "arguments": [], "folder": str(script)})

    workload = found["workload"]
    assert (workload["command"], workload["mode"]) == (
        ["small.py", "--mode", "inference"], "inference"
    )  # fmt: skip
    assert workload["num_kernels"] == sum(row["count"] for row in workload["kernels"]) > 4
    assert 0 < workload["gpu_busy_us"] < workload["step_us"]["median"]
    assert workload["environment"]["gpu"] == "forecast of H100-SXM5-80GB"
    trace = json.loads(gzip.decompress((tmp_path / workload["trace"]).read_bytes()))
    assert workload["trace"] == "w.pt.trace.json.gz" and trace["traceEvents"]
    assert done == {"done": True}
    assert "w.pt.trace.json.gz cannot be written: " in wrong["error"]


@pytest.fixture
def nvidia_smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Puts a command of that name in front, which prints a text; the words that it got."""

    def install(text: str, code: int = 0) -> Path:
        program, asked = tmp_path / "nvidia-smi", tmp_path / "asked"
        program.write_text(f"#!/bin/sh\necho $* >> {asked}\nprintf '{text}'\nexit {code}\n")
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
        return asked

    return install


@pytest.mark.parametrize(
    ("text", "busy"),
    [
        ("10, 2048\\n", ""),
        ("11, 2049\\n", "its utilization is 11 %"),
        ("10, 2560\\n99, 9999\\n", "2.5 GiB of its memory are in use"),
        ("[N/A], [N/A]\\n", ""),
        ("99\\n", ""),
        ("", ""),
    ],
)
def test_a_gpu_is_busy_by_its_utilization_or_its_memory(
    text: str, busy: str, nvidia_smi: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = nvidia_smi(text.replace("%", "%%"))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5")
    monkeypatch.setattr(measuring_worker, "_SECOND_LOOK_S", 0.0)

    assert measuring_worker._busy() == busy

    assert (
        asked.read_text().splitlines()
        == ["-i 3 --query-gpu=utilization.gpu,memory.used --format=csv,noheader,nounits"] * 2
    )


def test_a_driver_that_fails_says_nothing(
    nvidia_smi: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    nvidia_smi("99, 99999", code=6)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    assert measuring_worker._smi("utilization.gpu", "memory.used") == ["", ""]
    assert measuring_worker._gpu_index() == "0"


def test_clock_and_power_are_followed(nvidia_smi: Callable[..., Path]) -> None:
    nvidia_smi("1980, 345.5\\n1755, [N/A]\\n")
    ends = time.monotonic() + 60.0

    conditions = measuring_worker._conditions_reader()
    while conditions() != Conditions(1755.0, None) and time.monotonic() < ends:
        pass

    assert conditions() == Conditions(1755.0, None)


def test_a_gpu_that_torch_sees_is_what_is_measured() -> None:
    with neusight.forecast_on("H100"):
        bench = RealBench()
        found = bench.environment()
        stopwatch = bench.stopwatch()

        assert (found.gpu, found.compute_capability, found.num_sms, found.memory_bytes) == (
            "NVIDIA H100 80GB HBM3", "9.0", 132, find_gpu("H100").memory_bytes
        )  # fmt: skip
        assert bench.num_gpus() == 1 and not bench.busy()
        with stopwatch as first, bench.stopwatch() as second:
            assert first is second


def test_an_unknown_request_is_refused() -> None:
    with pytest.raises(DataError, match="'dance' is no request"):
        list(answers({"do": "dance"}, Rehearsal("H100"), lambda reply: None))


def test_a_rehearsal_describes_what_a_forecast_records() -> None:
    bench = Rehearsal("H100")

    with bench.stopwatch(), prepared(Probe.parse("softmax dtype=bf16 rows=64 width=128")) as call:
        (launch,) = bench.launches(call)

    assert launch.name == "softmax"
