"""Measured workloads are forecast by their own scripts, and scored beside what they took."""

from __future__ import annotations

import gzip
import importlib.util
import json
from dataclasses import asdict, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import neusight
from measured_environment import ENVIRONMENT as MEASURED
from neusight.forecast import Forecast
from neusight.integrations.cli.main import main
from neusight.integrations.profiles import validation
from neusight.integrations.profiles.validation import (
    OperatorError,
    Totals,
    Validation,
    WorkloadScore,
    validate,
)
from neusight.integrations.program import fresh_process
from neusight.output.trace.file import trace_events
from neusight.predictors.errors import CalibrationError, DataError
from neusight.predictors.kernel import Kernel
from neusight.predictors.measuring.folder import Workload, write_environment
from neusight.predictors.registry import predict
from places import ROOT
from warm_python import WarmProcess, run_python

SCRIPT = """
import argparse
import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--width", type=int, default=64)
width = parser.parse_args().width
model = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, 1)).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(8):
    model(torch.randn(32, width, device="cuda")).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    torch.cuda.synchronize()
"""


ENVIRONMENT = replace(MEASURED, torch="2.6.0+cu124")

#: How much longer the measured steps take than forecast, and every kernel.
SLOWER, KERNELS_SLOWER = 1.25, 1.1


@pytest.fixture(autouse=True)
def scripts_run_in_warm_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fresh_process, "subprocess", WarmProcess.MODULE)


@pytest.fixture(scope="module")
def forecast(tmp_path_factory: pytest.TempPathFactory) -> Forecast:
    """The workload's own forecast."""
    folder = tmp_path_factory.mktemp("recorded")
    (folder / "mlp.py").write_text(SCRIPT)
    path = folder / "recording.json"
    command = ["-m", "neusight", "run", "--quiet", "--gpu", "H100", "--steps", "3"]
    done = run_python(*command, "--save", str(path), str(folder / "mlp.py"), "--width", "128")
    assert done.returncode == 0, done.stderr
    return Forecast.load(path)


def trace_of(forecast: Forecast) -> bytes:
    trace: dict[str, Any] = trace_events(forecast.timeline, forecast.memory, forecast.gpu)
    del trace["neusight"]
    for event in trace["traceEvents"]:
        if event.get("cat") == "kernel":
            event["dur"] *= KERNELS_SLOWER
    return gzip.compress(json.dumps(trace).encode())


def workload_of(forecast: Forecast, name: str = "mlp_wide") -> Workload:
    median = SLOWER * forecast.step_latency_us.median
    return Workload(
        workload=name,
        command=("mlp.py", "--width", "128"),
        arguments={"width": 128},
        mode="train",
        environment=asdict(ENVIRONMENT),
        step_us={"median": median, "low": median, "high": median, "samples": [median]},
        profiled_step_us=2 * median,
        peak_allocated_bytes=round(forecast.peak_memory_bytes * 1.02),
        peak_reserved_bytes=forecast.peak_reserved_bytes,
        num_kernels=forecast.verdict.num_kernels,
        gpu_busy_us=forecast.gpu_busy_us * KERNELS_SLOWER,
        host_bound=True,
        trace=f"{name}.pt.trace.json.gz",
    )


def folder_of(place: Path, forecast: Forecast, *workloads: Workload) -> Path:
    """A folder of measurements with its scripts beside."""
    inner = place / "workloads"
    inner.mkdir(parents=True)
    write_environment(place, ENVIRONMENT)
    (inner / "mlp.py").write_text(SCRIPT)
    for workload in workloads:
        document = {"schema_version": 1, **asdict(workload)}
        (inner / f"{workload.workload}.json").write_text(json.dumps(document))
        (inner / workload.trace).write_bytes(trace_of(forecast))
    return place


def test_a_workload_is_forecast_by_its_script_and_scored(
    tmp_path: Path, forecast: Forecast
) -> None:
    found = validate(folder_of(tmp_path / "h100", forecast, workload_of(forecast)))

    [row] = found.rows
    assert row.forecast_us == forecast.step_latency_us.median
    assert row.error == pytest.approx(1 / SLOWER - 1, abs=1e-4)
    assert row.is_inside == (SLOWER * row.forecast_us <= forecast.step_latency_us.high)
    assert row.memory_error == pytest.approx(1 / 1.02 - 1, abs=1e-4)
    assert row.kernel_error == 0.0
    assert row.busy_error == pytest.approx(1 / KERNELS_SLOWER - 1, abs=1e-3)
    assert row.is_host_bound and row.is_forecast_host_bound
    assert len(row.worst) == 3
    for item in row.worst:
        assert item.measured_us == pytest.approx(KERNELS_SLOWER * item.forecast_us, rel=0.01)
    assert found.gpu == "H100-SXM5-80GB" and found.predictor == "tiled"
    assert found.left_out == ()
    assert found.notes[0].startswith("measured with torch 2.6.0, forecast with ")


def test_a_run_of_seconds_is_priced_at_the_clocks_of_a_burst(
    tmp_path: Path, forecast: Forecast
) -> None:
    short = replace(workload_of(forecast, "short"), arguments={"steps": 20})
    minutes = int(60e6 / short.gpu_busy_us)
    long = replace(workload_of(forecast, "long"), arguments={"steps": minutes})
    folder = folder_of(tmp_path / "h100", forecast, short, long)

    found, named = validate(folder), validate(folder, predictor="tiled", only=["short"])

    assert found.predictor == "tiled, tiled_burst"  # in the order of the files
    assert "runs of less than 5 s are priced at the clocks of a burst" in found.notes
    assert named.predictor == "tiled"
    assert not any("burst" in note for note in named.notes)


def test_a_calibration_is_applied_and_said_to_have_seen_the_folder(
    tmp_path: Path, forecast: Forecast
) -> None:
    short = replace(workload_of(forecast), arguments={"width": 128, "steps": 20})
    folder = folder_of(tmp_path / "h100", forecast, short)
    neusight.calibrate(folder).save(tmp_path / "c.json")

    found = validate(folder, calibration=tmp_path / "c.json")

    assert found.predictor == "tiled, calibrated"
    assert abs(found.rows[0].busy_error or 1.0) < 0.05
    assert "fitted to this folder" in found.notes[0]


def test_the_command_prints_a_line_a_workload_and_the_totals(
    tmp_path: Path, forecast: Forecast, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = replace(workload_of(forecast, "broken"), command=("gone.py",))
    folder = folder_of(tmp_path / "h100", forecast, workload_of(forecast), broken)
    figures = tmp_path / "scores.json"

    code = main(["validate", str(folder), "--json", str(figures)])

    shown = capsys.readouterr().out
    assert code == 0
    assert "mlp_wide" in shown and "-20.0%" in shown
    assert "of the error: aten::" in shown
    assert "1 workloads: step time median error 20.0%, p90 20.0%" in shown
    assert "left out    broken: its script gone.py is not to be found" in shown
    document = json.loads(figures.read_text())
    assert document["totals"]["median_error"] == pytest.approx(0.2, abs=1e-4)
    assert document["rows"][0]["workload"] == "mlp_wide"
    assert document["left_out"][0].startswith("broken: ")


def test_a_trace_with_its_script_is_a_workload_too(tmp_path: Path, forecast: Forecast) -> None:
    (tmp_path / "mlp.py").write_text(SCRIPT.replace("default=64", "default=128"))
    (tmp_path / "mlp.json.gz").write_bytes(trace_of(forecast.on("H100", host="profiled")))
    (tmp_path / "alone.json.gz").write_bytes(trace_of(forecast))

    found = validate(tmp_path)

    [row] = found.rows
    assert row.workload == "mlp"
    assert abs(row.error) < 0.1
    assert row.kernel_error == 0.0
    assert found.left_out == ("alone: there is no alone.py beside alone.json.gz",)
    assert "under the profiler" in found.notes[-1]


def test_a_script_that_fails_is_left_out_with_its_reason(
    tmp_path: Path, forecast: Forecast
) -> None:
    folder = folder_of(tmp_path / "h100", forecast, workload_of(forecast))
    (folder / "workloads" / "mlp.py").write_text("raise RuntimeError('no weights here')")

    with pytest.raises(DataError, match=r"could be judged: mlp_wide: .*no weights here"):
        validate(folder)


def test_whole_generations_are_no_steps_of_a_forecast(tmp_path: Path, forecast: Forecast) -> None:
    arguments = {"width": 128, "new_tokens": 24}
    generation = replace(workload_of(forecast, "generation"), arguments=arguments)

    found = validate(folder_of(tmp_path, forecast, workload_of(forecast), generation))

    assert [row.workload for row in found.rows] == ["mlp_wide"]
    assert found.left_out == (
        "generation: it measured whole generations, and a step of a forecast is a token.",
    )


def test_a_calibration_of_another_gpu_is_refused_before_anything_is_forecast(
    tmp_path: Path, forecast: Forecast
) -> None:
    from neusight.predictors.measuring.calibrate import fit_calibration
    from neusight.predictors.measuring.calibration import Measurement

    kernel = Kernel.gemm(512, 512, 512)
    [estimate] = predict([kernel], "L4")
    path = tmp_path / "l4.json"
    fit_calibration([Measurement((kernel,), estimate.latency_us)], "L4").save(path)
    folder = folder_of(tmp_path / "h100", forecast, workload_of(forecast))

    with pytest.raises(CalibrationError, match="is for 'L4', the forecast for H100"):
        validate(folder, calibration=path)


def test_damaged_and_foreign_files_are_named(tmp_path: Path, forecast: Forecast) -> None:
    folder = folder_of(tmp_path / "h100", forecast, workload_of(forecast))
    (folder / "workloads" / "mlp_wide.json").write_text("{")

    with pytest.raises(DataError, match=r"mlp_wide: .*cannot be read"):
        validate(folder)
    with pytest.raises(DataError, match="has no workload 'other'; it has"):
        validate(folder_of(tmp_path / "b", forecast, workload_of(forecast)), only=["other"])
    with pytest.raises(DataError, match="There is no folder"):
        validate(tmp_path / "none")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="could be judged: it holds none"):
        validate(tmp_path / "empty")


@pytest.mark.parametrize(
    ("steps", "gpu_busy_us", "predictor"),
    [(20, 250_000.0, "tiled_burst"), (20, 250_001.0, None), (None, 1.0, None), ("20", 1.0, None)],
)
def test_runs_of_five_seconds_of_kernels_are_bursts(
    steps: object, gpu_busy_us: float, predictor: str | None, tmp_path: Path, forecast: Forecast
) -> None:
    workload = replace(workload_of(forecast), arguments={"steps": steps}, gpu_busy_us=gpu_busy_us)
    folder = folder_of(tmp_path / "h100", forecast, workload)

    task = validation._task_of_workload(folder / "workloads" / "mlp_wide.json", None, None)

    assert task.predictor == predictor


def test_what_names_no_script_or_is_no_trace_is_left_out(
    tmp_path: Path, forecast: Forecast
) -> None:
    folder = folder_of(tmp_path / "h100", forecast, replace(workload_of(forecast), command=()))
    alone = tmp_path / "alone"
    alone.mkdir()
    (alone / "mlp.py").write_text(SCRIPT)
    (alone / "mlp.json").write_text("{}")

    with pytest.raises(DataError, match=r"mlp_wide: .*mlp_wide\.json names no script"):
        validate(folder)
    with pytest.raises(DataError, match=r"judged: mlp: .*mlp\.json is not a trace"):
        validate(alone)


def test_a_workload_is_known_by_how_its_file_begins(tmp_path: Path) -> None:
    path = tmp_path / "a.json"

    for text, expected in (
        ('{"workload": 1}', True), (" " * 4086 + '"workload"', True),
        (" " * 4087 + '"workload"', False), ('{"work": 1}', False),
    ):  # fmt: skip
        path.write_text(text)
        assert validation._is_workload(path) is expected


def test_figures_that_were_not_measured_have_no_error() -> None:
    row = score(0.1, measured_bytes=0, measured_kernels=0.0, measured_busy_us=0.0)

    assert (row.memory_error, row.kernel_error, row.busy_error) == (None, None, None)
    document = row.to_json()
    assert (document["error"], document["is_inside"], document["busy_error"]) == (0.1, True, None)


@pytest.mark.parametrize(("error", "inside"), [(0.111, True), (0.112, False), (-0.09, True),
                                               (-0.1, False)])  # fmt: skip
def test_a_step_lies_within_the_interval(error: float, inside: bool) -> None:
    assert score(error).is_inside is inside


def test_the_command_names_wrong_options(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["validate", ".", "--predictor", "oracle"]) == 2
    assert "Unknown predictor 'oracle'" in capsys.readouterr().err
    assert main(["validate", ".", "--gpu", "H10"]) == 2
    assert "Did you mean" in capsys.readouterr().err


def score(error: float, **changes: Any) -> WorkloadScore:
    """A workload of 100 µs whose forecast is off by that share, ±10 %."""
    forecast_us = 100.0 * (1.0 + error)
    row = WorkloadScore(
        workload=f"{error:+.0%}",
        measured_us=100.0,
        forecast_us=forecast_us,
        low_us=0.9 * forecast_us,
        high_us=1.1 * forecast_us,
        measured_bytes=1000,
        forecast_bytes=1030,
        measured_kernels=10,
        forecast_kernels=10,
        is_host_bound=False,
        is_forecast_host_bound=False,
        measured_busy_us=80.0,
        forecast_busy_us=88.0,
    )
    return replace(row, **changes)


def test_totals_are_medians_shares_and_a_percentile() -> None:
    rows = (
        score(0.05),
        score(-0.1),
        score(0.2, is_forecast_host_bound=True),
        score(-0.4, measured_bytes=None, measured_kernels=None),
    )

    totals = Validation("H100", "tiled", rows).totals

    assert totals == Totals(
        num_workloads=4,
        median_error=0.15,
        p90_error=0.34,
        median_busy_error=0.1,
        median_memory_error=0.03,
        median_kernel_error=0.0,
        inside=0.25,
        right_verdicts=0.75,
    )


def test_a_wrong_verdict_and_a_miss_catch_the_eye() -> None:
    text = Validation("H100", "tiled", (score(0.2, is_host_bound=True),), ("x: why",)).table()

    assert "NO" in text and "yes, forecast not" in text
    assert "left out    x: why" in text


def test_the_table_in_full() -> None:
    worst = OperatorError("aten::mm", "gemm", "1x2x3", 10.0, 1234.5, 0.556)
    found = Validation(
        "H100",
        "tiled",
        (
            score(1 / 3, workload="a", worst=(worst,), is_host_bound=True),
            score(0.1, workload="longer", is_forecast_host_bound=True, measured_bytes=None),
            score(-0.2, workload="c", measured_kernels=None, measured_busy_us=0.0),
        ),
        left_out=("x: why",),
        notes=("a rehearsal",),
    )

    assert found.table().splitlines() == [
        "workload  measured  forecast   error  in 80 %  GPU busy  memory  kernels  host-bound",
        "a         100.0 µs  133.3 µs  +33.3%       NO    +10.0%   +3.0%    +0.0%  yes, forecast "
        "not",
        "     56% of the error: aten::mm 1x2x3: 10.0 µs measured, 1.234 ms forecast",
        "longer    100.0 µs  110.0 µs  +10.0%      yes    +10.0%       -    +0.0%  no, forecast "
        "yes",
        "c         100.0 µs   80.0 µs  -20.0%       NO         -   +3.0%        -  no",
        "",
        "H100, predictor tiled, 3 workloads: step time median error 20.0%, p90 30.7%; 33% inside "
        "the interval; host-bound or not right for 33%",
        "median errors: GPU busy 10.0%, peak memory 3.0%, kernels 0.0%",
        "left out    x: why",
        "note        a rehearsal",
    ]
    document = found.to_json()
    assert document["totals"] == {
        "num_workloads": 3, "median_error": 0.2, "p90_error": 0.306667, "median_busy_error": 0.1,
        "median_memory_error": 0.03, "median_kernel_error": 0.0, "inside": 0.333333,
        "right_verdicts": 0.333333,
    }  # fmt: skip
    assert (document["schema_version"], document["rows"][0]["error"]) == (1, 0.333333)
    assert Validation("H100", "tiled", (score(0.1),)).totals.p90_error == 0.1


@pytest.fixture
def measured_steps(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module("measured_steps")


def test_the_ratchet_states_what_got_worse_and_forgives_rounding(
    measured_steps: ModuleType,
) -> None:
    def rows(*scores: WorkloadScore) -> Any:
        return measured_steps.rows_of(Validation("H100", "tiled", scores).to_json())

    before = rows(score(0.1), score(-0.2))
    after = rows(score(0.102), replace(score(-0.3), workload="-20%"))

    assert before["H100", "+10%"]["memory_error"] == 0.03
    assert measured_steps.worse(after, before) == ["H100 -20%: error 20.0% -> 30.0%"]
    assert measured_steps.worse(before, after) == []
