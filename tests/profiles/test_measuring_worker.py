"""The measuring process answers requests, on a real GPU as on a forecast."""

from __future__ import annotations

import io
import json
import os
from pathlib import Path
from typing import Any

import pytest

from neusight.integrations.profiles.measuring_worker import (
    RealBench,
    Rehearsal,
    answers,
    main,
    serve,
)
from neusight.predictors.errors import DataError
from neusight.predictors.measuring.folder import Sample, sample_from_json
from neusight.predictors.measuring.probes import Probe, prepared

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


def test_an_unknown_request_is_refused() -> None:
    with pytest.raises(DataError, match="'dance' is no request"):
        list(answers({"do": "dance"}, Rehearsal("H100"), lambda reply: None))


def test_a_rehearsal_describes_what_a_forecast_records() -> None:
    bench = Rehearsal("H100")

    with bench.stopwatch(), prepared(Probe.parse("softmax dtype=bf16 rows=64 width=128")) as call:
        (launch,) = bench.launches(call)

    assert launch.name == "softmax"
