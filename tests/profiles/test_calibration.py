"""`neusight.calibrate` and its command: traces, folders and samples become a file that helps."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import neusight
from measured_environment import ENVIRONMENT
from neusight.forecast import Forecast
from neusight.integrations.cli.main import main
from neusight.integrations.profiles.calibration import _of_samples, calibrate
from neusight.integrations.profiles.reading.reading import read_profile_events
from neusight.output.trace.file import trace_events
from neusight.predictors.errors import CalibrationError, DataError, TraceError
from neusight.predictors.gpu import find_gpu
from neusight.predictors.kernel import Kernel
from neusight.predictors.measuring.calibration import Calibration, Measurement
from neusight.predictors.measuring.folder import (
    Quick,
    Sample,
    Workload,
    append_sample,
    write_environment,
    write_quick,
    write_workload,
)
from neusight.predictors.registry import find_predictor, predict
from places import TRACES, needs_traces

#: How much longer products take on the GPU that the made profiles come from.
SLOWER = 1.5


def model(width: int) -> nn.Module:
    return nn.Sequential(
        *(
            nn.Sequential(nn.Linear(width, inner), nn.GELU(), nn.Linear(inner, width))
            for inner in (2 * width, 3 * width, 4 * width, 5 * width)
        )
    )


@cache
def forecast_of(width: int) -> Forecast:
    with neusight.forecast_on("H100", host="profiled") as forecast:
        network = model(width).cuda().to(torch.bfloat16)
        for _ in range(3):
            with torch.no_grad():
                network(torch.randn(256, width, dtype=torch.bfloat16, device="cuda"))
            forecast.step()
    return forecast


def trace_of(width: int) -> dict[str, Any]:
    """A profile of a GPU whose products take longer than forecast."""
    forecast = forecast_of(width)
    trace = trace_events(forecast.timeline, forecast.memory, forecast.gpu)
    del trace["neusight"]
    events = json.loads(json.dumps(trace["traceEvents"]))
    for event in events:
        if event.get("cat") == "kernel" and event["args"].get("kernel class") == "gemm":
            event["dur"] *= SLOWER
    return {**trace, "traceEvents": events}


def write_trace(path: Path, width: int) -> Path:
    path.write_bytes(gzip.compress(json.dumps(trace_of(width)).encode()))
    return path


def sample(kernel: Kernel, *, slower: float = SLOWER, **options: Any) -> Sample:
    [estimate] = predict([kernel], "H100", "tiled_burst")
    time_us = estimate.latency_us * slower
    return Sample(op="linear", probe=kernel.key, kernels=(kernel,),
                  **{"kernel_us": time_us, "event_us": time_us + 3.0, **options})  # fmt: skip


def folder_of(place: Path) -> Path:
    """A folder as `neusight measure` leaves it: samples, constants, one workload with its trace."""
    place.mkdir()
    write_environment(place, ENVIRONMENT)
    for size in (256, 512, 1024, 2048):
        append_sample(place, sample(Kernel.gemm(size, 2 * size, size)))
        cold = sample(Kernel.gemm(size, 2 * size, size), slower=9.0, l2="cold")
        append_sample(place, cold)
    quick = [("gemm", sample(Kernel.gemm(8192, 4096, 2048)))]
    write_quick(place, Quick(tuple(quick), {"floor_us": 1.5}))
    (place / "workloads").mkdir()
    write_trace(place / "workloads" / "mlp.pt.trace.json.gz", 256)
    write_workload(
        place,
        Workload(
            workload="mlp",
            command=("mlp.py",),
            arguments={},
            mode="inference",
            environment={},
            step_us={"median": 100.0, "low": 90.0, "high": 110.0, "samples": []},
            profiled_step_us=200.0,
            peak_allocated_bytes=1,
            peak_reserved_bytes=1,
            num_kernels=12,
            gpu_busy_us=40.0,
            host_bound=True,
            trace="mlp.pt.trace.json.gz",
        ),
    )
    return place


def gemm_factor(made: Calibration) -> float:
    kernel = Kernel.gemm(256, 1024, 256, dtype="bfloat16")
    [plain] = predict([kernel], "H100")
    chosen = made.applied_to(find_predictor(), find_gpu("H100"))
    return chosen.predict([kernel], find_gpu("H100"))[0].latency_us / plain.latency_us


def test_a_trace_teaches_what_is_slower_and_the_host(tmp_path: Path) -> None:
    made = neusight.calibrate(write_trace(tmp_path / "t.json.gz", 256))

    assert made.gpu == "H100-SXM5-80GB" and made.predictor == "tiled"
    assert gemm_factor(made) == pytest.approx(SLOWER, rel=0.08)
    assert made.source["loo_error_after"] < 0.3 * made.source["loo_error_before"]
    assert made.profiled_host is not None and made.plain_host is None
    assert made.source["files"] == ["t.json.gz"]


def test_what_one_model_taught_helps_with_another(tmp_path: Path) -> None:
    calibration = neusight.calibrate(write_trace(tmp_path / "t.json.gz", 256))
    real = read_profile_events(trace_of(384))

    plain = neusight.compare(forecast_of(384), real)
    better = neusight.compare(forecast_of(384).on("H100", calibration=calibration), real)

    assert plain.kernel_time_error < -0.2
    assert abs(better.kernel_time_error) < 0.05


def test_a_forecast_applies_the_file_and_says_so(tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    neusight.calibrate(write_trace(tmp_path / "t.json.gz", 256)).save(path)

    with neusight.forecast_on("H100", calibration=path, host="profiled") as forecast:
        layer = nn.Linear(256, 1024, device="cuda", dtype=torch.bfloat16)
        layer(torch.randn(256, 256, device="cuda", dtype=torch.bfloat16))

    assert forecast.predictor_name == "tiled, calibrated"
    assert forecast.host.name == "profiled, calibrated"
    assert forecast.calibration == Calibration.load(path)
    assert {estimate.predictor for _, estimate in forecast.kernels} >= {"tiled, calibrated"}


def test_a_saved_forecast_keeps_its_calibration(tmp_path: Path) -> None:
    calibration = neusight.calibrate(write_trace(tmp_path / "t.json.gz", 256))
    forecast = forecast_of(384).on("H100", calibration=calibration, host="profiled")

    forecast.save(tmp_path / "f.json")
    again = Forecast.load(tmp_path / "f.json")

    assert again.to_json() == forecast.to_json()
    assert again.calibration == calibration


def test_a_saved_forecast_whose_calibration_is_outdated_still_opens(tmp_path: Path) -> None:
    calibration = neusight.calibrate(write_trace(tmp_path / "t.json.gz", 256))
    path = tmp_path / "f.json"
    forecast_of(384).on("H100", calibration=calibration).save(path)
    path.write_text(path.read_text().replace(calibration.behaviour, "0" * 12))

    again = Forecast.load(path)

    assert again.calibration is None
    assert "priced without the calibration it was saved with" in again.warnings[-1]


def test_a_calibration_stays_on_its_gpu() -> None:
    products = [Kernel.gemm(64 * size, 512, 512) for size in range(1, 8)]
    slow = [
        Measurement((kernel,), 1.5 * estimate.latency_us)
        for kernel, estimate in zip(products, predict(products, "H100"), strict=True)
    ]
    calibration = calibrate(slow, "H100")
    forecast = forecast_of(256).on("H100", calibration=calibration)

    assert forecast.on("H100").calibration == calibration
    assert forecast.on("H200").calibration is None
    assert forecast.on("H100", predictor="roofline").calibration is None
    with pytest.raises(CalibrationError, match=r"is for 'H100-SXM5-80GB', the forecast for H200"):
        forecast.on("H200", calibration=calibration)


def test_a_folder_teaches_kernels_steps_and_both_hosts(tmp_path: Path) -> None:
    made = calibrate(folder_of(tmp_path / "h100"))

    assert gemm_factor(made) == pytest.approx(SLOWER, rel=0.1)
    assert made.torch_version == "2.6.0" and made.source["driver"] == "570.1"
    assert made.plain_host is not None and made.profiled_host is not None
    assert made.plain_host["op_us"] == pytest.approx(made.profiled_host["op_us"] / 2, abs=2e-3)


def test_the_quick_constants_alone_are_enough_to_begin(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "h100")

    made = calibrate(folder / "quick.json")

    assert made.source["num_measurements"] == 1


def test_short_times_between_events_are_left_out(tmp_path: Path) -> None:
    folder = tmp_path / "h100"
    folder.mkdir()
    write_environment(folder, ENVIRONMENT)
    for size, kernel_us in ((64, None), (8192, None), (128, 5.0)):
        kernel = Kernel.gemm(size, size, size)
        append_sample(folder, sample(kernel, kernel_us=kernel_us))

    made = calibrate(folder)

    assert made.source["num_measurements"] == 2
    assert "1 samples below 100 µs were left out" in made.source["notes"][0]


def test_of_samples_the_hot_ones_count_and_times_between_events_from_100_microseconds() -> None:
    kernel = Kernel.gemm(64, 64, 64)
    short, long = (
        replace(sample(kernel), probe=f"{us}", kernel_us=None, event_us=us) for us in (99.9, 100.0)
    )
    cold = replace(sample(kernel), probe="p", kernel_us=7.0, l2="cold")
    loaded = replace(cold, clock_regime="sustained", kernel_us=8.0)
    notes: list[str] = []

    found = _of_samples([short, long, replace(cold, l2="hot", kernel_us=5.0), cold, loaded], notes)

    assert [(item.latency_us, item.sustained) for item in found] == [
        (100.0, False), (5.0, False), (8.0, True),
    ]  # fmt: skip
    assert notes == [
        "1 samples below 100 µs were left out: only the time between events is known, of which"
        " launches are too large a part"
    ]


def test_a_folder_of_traces_counts_what_are_traces(tmp_path: Path) -> None:
    write_trace(tmp_path / "a.json.gz", 256)
    write_trace(tmp_path / "b.json.gz", 384)
    (tmp_path / "settings.json").write_text("{}")

    made = calibrate(tmp_path)

    assert made.source["files"] == ["a.json.gz", "b.json.gz"]
    assert any("settings.json is left out" in note for note in made.source["notes"])


def test_a_trace_of_another_gpu_is_refused(tmp_path: Path) -> None:
    path = write_trace(tmp_path / "t.json.gz", 256)

    with pytest.raises(
        CalibrationError, match=r"t\.json\.gz was measured on H100-SXM5-80GB, .* is for L4"
    ):
        calibrate(path, "L4")


def test_an_unknown_gpu_must_be_named(tmp_path: Path) -> None:
    trace = {**trace_of(256), "deviceProperties": [{"id": 0, "name": "Radeon of some kind"}]}
    path = tmp_path / "t.json"
    path.write_text(json.dumps(trace))

    with pytest.raises(CalibrationError, match=r"on Radeon of some kind, which neusight does not"):
        calibrate(path)

    assert calibrate(path, "H100").gpu == "H100-SXM5-80GB"


def test_two_versions_of_torch_are_not_mixed(tmp_path: Path) -> None:
    first = folder_of(tmp_path / "a")
    second = tmp_path / "b"
    second.mkdir()
    write_environment(second, replace(ENVIRONMENT, torch="2.13.0"))
    append_sample(second, sample(Kernel.gemm(512, 512, 512)))

    with pytest.raises(CalibrationError, match=r"several versions of torch: 2\.13\.0, 2\.6\.0"):
        calibrate([first, second])


def test_a_trace_that_was_cut_off_teaches_what_is_left_of_it(tmp_path: Path) -> None:
    path = write_trace(tmp_path / "t.json.gz", 256)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])

    made = calibrate(path)

    assert made.source["num_measurements"] > 0
    assert any("cut off" in note for note in made.source["notes"])


def test_what_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "text.json").write_text("hello")
    broken = folder_of(tmp_path / "broken")
    (broken / "quick.json").write_text("{")

    with pytest.raises(CalibrationError, match="neither environment"):
        calibrate(tmp_path / "empty")
    with pytest.raises(TraceError, match=r"text\.json is not a trace"):
        calibrate(tmp_path / "text.json")
    with pytest.raises(DataError, match=r"quick\.json cannot be read"):
        calibrate(broken)
    with pytest.raises(CalibrationError, match="no measurements were given"):
        calibrate([])
    with pytest.raises(CalibrationError, match="Say of which GPU"):
        calibrate([Measurement((Kernel.gemm(8, 8, 8),), 3.0)])


def test_the_command_prints_what_it_gains_and_writes_the_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace, out = write_trace(tmp_path / "t.json.gz", 256), tmp_path / "c.json"

    code = main(["calibrate", str(trace), "--out", str(out)])

    shown = capsys.readouterr().out
    assert code == 0
    assert "before" in shown and "each problem left out in turn" in shown
    assert f"neusight run --calibration {out}" in shown
    assert Calibration.load(out).gpu == "H100-SXM5-80GB"


def test_the_command_says_what_is_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = write_trace(tmp_path / "t.json.gz", 256)
    wrong = [
        ([str(trace), "--gpu", "H10"], "Unknown GPU 'H10'"),
        ([str(trace), "--predictor", "oracle"], "Unknown predictor 'oracle'"),
        ([str(tmp_path / "none.json")], "No such file"),
    ]

    for arguments, reported in wrong:
        assert main(["calibrate", *arguments, "--out", str(tmp_path / "c.json")]) == 2
        assert reported in capsys.readouterr().err
    assert main(["calibrate", str(trace), "--out", str(tmp_path)]) == 2
    assert "cannot be written" in capsys.readouterr().err


SCRIPT = """
import torch
model = torch.nn.Linear(256, 1024).cuda().to(torch.bfloat16)
for _ in range(3):
    with torch.no_grad():
        model(torch.randn(256, 256, dtype=torch.bfloat16, device="cuda"))
    torch.cuda.synchronize()
"""


def test_a_run_applies_the_file_where_the_gpu_is_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script, out = tmp_path / "s.py", tmp_path / "c.json"
    script.write_text(SCRIPT)
    calibrate(write_trace(tmp_path / "t.json.gz", 256)).save(out)
    figures = tmp_path / "f.json"
    asked = ["run", "--gpu", "H100", "--gpu", "A100", "--calibration", str(out)]

    code = main([*asked, "--json", str(figures), str(script)])

    assert code == 0
    names = [item["predictor"] for item in json.loads(figures.read_text())["forecasts"]]
    assert names == ["tiled, calibrated", "tiled"]
    capsys.readouterr()
    assert main(["run", "--gpu", "A100", "--calibration", str(out), str(script)]) == 2
    assert "is of H100-SXM5-80GB, which is not among the GPUs" in capsys.readouterr().err


@needs_traces
def test_one_public_profile_helps_with_the_other() -> None:
    [bert] = TRACES.glob("h100__*bert-small*")

    made = calibrate(bert)

    assert made.source["loo_error_after"] <= made.source["loo_error_before"]
    assert made.profiled_host is not None


def test_samples_of_the_measuring_side_are_measurements_too() -> None:
    kernel = Kernel.gemm(1024, 1024, 1024)

    made = calibrate([sample(kernel), Measurement((kernel,), 30.0, sustained=True)], "H100")

    assert made.source["num_measurements"] == 2 and made.source["num_problems"] == 2


def test_the_first_screen_states_what_was_measured(tmp_path: Path) -> None:
    calibration = neusight.calibrate(write_trace(tmp_path / "t.json.gz", 256))

    text = forecast_of(384).on("H100", calibration=calibration).summary()

    assert "  measured  calibrated by" in text
    assert "measured  " not in forecast_of(384).summary()
