"""Workloads: what is kept of a trace, and which figures are read from it."""

from __future__ import annotations

import gzip
import json
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from neusight.integrations.profiles import workloads
from neusight.integrations.profiles.workloads import (
    figures_of_trace,
    measured_workload,
    step_times,
    trimmed,
    zipped,
)
from neusight.predictors.errors import DataError
from neusight.session import forecast_on
from places import ROOT
from profile_events import host_event as span

WORKLOADS = ROOT / "benchmarks" / "workloads"


def a_trace(num_steps: int = 3, *, text: str = "") -> dict[str, Any]:
    """Steps of 100 us: two kernels of 20 us, 2 us apart, then nothing to do for the GPU."""
    events: list[dict[str, Any]] = []
    for step in range(num_steps):
        start = 1000.0 + 100 * step
        events.append(span("user_annotation", f"ProfilerStep#{step}", start, 99))
        for index in range(2):
            number = 10 * step + index + 1
            events += [
                span("cpu_op", "aten::mm", start + 2 * index, 1, **{"Call stack": "/home/me.py"}),
                span("cuda_runtime", "cudaLaunchKernel", start + 2 * index, 1, correlation=number),
                span(
                    "kernel", f"gemm_{index}{text}", start + 10 + 22 * index, 20,
                    correlation=number, device=0, stream=7,
                ),
            ]  # fmt: skip
        events.append(span("python_function", "secret.py(3): main", start, 90))
    return {
        "schemaVersion": 1,
        "deviceProperties": [{"id": 0, "name": "a GPU", "uuid": "GPU-1234", "numSms": 132}],
        "distributedInfo": {"hostname": "my-host"},
        "traceName": "/home/me/trace.json",
        "traceEvents": [
            *events,
            {"ph": "M", "name": "process_name", "args": {"name": "python train.py --key 1"}},
            {"ph": "i", "name": "[memory]", "ts": 1001.0, "args": {"Total Allocated": 5}},
        ],
    }


def test_nothing_private_is_kept() -> None:
    text = json.dumps(trimmed(a_trace()))

    for private in ("my-host", "/home", "GPU-1234", "secret", "--key", "hostname"):
        assert private not in text
    for kept in ("ProfilerStep#2", "gemm_1", "cudaLaunchKernel", "aten::mm", "[memory]", "numSms"):
        assert kept in text


def test_the_figures_are_those_of_the_median_step() -> None:
    figures = figures_of_trace(trimmed(a_trace()), step_us=43.0)

    assert figures == {
        "num_kernels": 2,
        "gpu_busy_us": 40.0,
        "host_bound": False,
        "kernels": (
            {"name": "gemm_0", "count": 1, "time_us": 20.0},
            {"name": "gemm_1", "count": 1, "time_us": 20.0},
        ),
    }


@pytest.mark.parametrize(("step_us", "host_bound"), [(50.0, False), (57.0, True), (100.0, True)])
def test_a_step_is_host_bound_where_its_gpu_idles_for_a_quarter(
    step_us: float, host_bound: bool
) -> None:
    # 40 us of kernels, and 2 us between them that are the stream's own.
    assert figures_of_trace(trimmed(a_trace()), step_us=step_us)["host_bound"] is host_bound


@pytest.mark.parametrize(("gap_us", "host_bound"), [(3.0, False), (3.5, True)])
def test_a_gap_of_three_microseconds_is_the_streams_own(gap_us: float, host_bound: bool) -> None:
    """Of 24 kernels of 1 µs the gaps are idle, and 20 µs more: less than a quarter without them."""
    begin = 1001.0
    kernels = [
        span("kernel", "k", begin + (1 + gap_us) * at, 1.0, device=0, stream=7) for at in range(24)
    ]
    trace = {"traceEvents": [span("user_annotation", "ProfilerStep#1", 1000.0, 200.0), *kernels]}

    found = figures_of_trace(trace, step_us=24 + 23 * gap_us + 20)

    assert (found["num_kernels"], found["gpu_busy_us"]) == (24, 24.0)
    assert found["host_bound"] is host_bound


@pytest.mark.parametrize(
    ("step_s", "num_steps"), [(2.0, 10), (0.11, 10), (0.05, 20), (0.021, 48), (1e-3, 50)]
)
def test_steps_are_timed_for_a_second_within_bounds(
    monkeypatch: pytest.MonkeyPatch, step_s: float, num_steps: int
) -> None:
    now = [0.0]

    def step() -> None:
        now[0] += step_s / 2

    monkeypatch.setattr(workloads, "time", SimpleNamespace(perf_counter=lambda: now[0]))

    times_us = workloads._timed(step, step)

    assert len(times_us) == num_steps
    assert times_us == pytest.approx([step_s * 1e6] * num_steps)


@pytest.mark.parametrize("size", [399_000, 401_000])
def test_traces_beyond_400_kilobytes_lose_steps(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[int] = []

    def gzipped(trace: Any) -> bytes:
        kept.append(sum("ProfilerStep" in event["name"] for event in trace["traceEvents"]))
        return bytes(size)

    monkeypatch.setattr(workloads, "_gzipped", gzipped)
    zipped(trimmed(a_trace()))

    assert kept == ([3, 2, 1] if size > 400_000 else [3])


def test_large_traces_lose_steps_but_never_all() -> None:
    import random

    draw = random.Random(0)
    text = "".join(draw.choice("abcdefghij") for _ in range(400_000))

    data = zipped(trimmed(a_trace(text=text)))

    kept = json.loads(gzip.decompress(data))
    steps = [event for event in kept["traceEvents"] if "ProfilerStep" in event["name"]]
    assert [step["name"] for step in steps] == ["ProfilerStep#0"]
    assert len(data) < len(gzip.compress(json.dumps(a_trace(text=text)).encode()))


def test_small_traces_are_kept_whole_and_equal_ones_give_equal_bytes() -> None:
    trace = trimmed(a_trace())

    assert json.loads(gzip.decompress(zipped(trace))) == trace
    assert zipped(trace) == zipped(trimmed(a_trace()))


def test_a_profile_without_kernels_says_what_may_be_wrong() -> None:
    trace = {"traceEvents": [span("cpu_op", "aten::mm", 1, 1)]}

    with pytest.raises(DataError, match="holds no kernel: may the profiler read"):
        figures_of_trace(trace, step_us=1.0)


def test_step_times_give_the_middle_of_the_runs() -> None:
    times = step_times([float(value) for value in range(1, 22)])

    assert (times["median"], times["low"], times["high"]) == (11.0, 3.0, 19.0)
    assert len(times["samples"]) == 21


@pytest.mark.parametrize("has_kernels", [True, False])
def test_a_workload_is_measured_in_a_forecast_as_on_a_gpu(
    monkeypatch: pytest.MonkeyPatch, has_kernels: bool
) -> None:
    """The whole way, on a forecast; where the profiler sees no kernels, events give the GPU's time.

    The virtual host takes no time where the script looks at its clock, so the step is all GPU.
    """
    arguments = ["--batch", "64", "--seq", "32"]
    if not has_kernels:
        monkeypatch.setattr(workloads, "trimmed", lambda trace: {"traceEvents": []})

    with forecast_on("H100", predictor="roofline") as forecast:
        workload, trace = measured_workload(
            "lstm", WORKLOADS / "lstm.py", arguments, environment={"gpu": "H100"}
        )

    found = (workload.num_kernels > 0, workload.kernels != (), workload.trace != "", trace != b"")
    assert found == (has_kernels,) * 4
    assert (workload.command, workload.mode) == (("lstm.py", *arguments), "train")
    assert workload.arguments["seq"] == 32
    assert len(workload.step_us["samples"]) >= 10
    assert workload.peak_allocated_bytes > 4 * 33278 * 1024 * 4
    assert workload.gpu_busy_us == pytest.approx(forecast.gpu_busy_us, rel=0.01)
    assert workload.gpu_busy_us <= workload.step_us["median"] < 60e6
    assert workload.gpu_busy_us <= (workload.profiled_step_us or 0.0) < 60e6
    assert sum(row["count"] for row in workload.kernels) == workload.num_kernels
    if has_kernels:
        assert gzip.decompress(trace).count(b"ProfilerStep#") == 3
    assert str(WORKLOADS) not in sys.path
    assert sum(step["count"] for step in forecast.steps) >= 15


@pytest.mark.parametrize(
    ("host_us", "filling_us", "fillings"),
    [(100.0, 30.0, 6), (100.0, 500.0, 1), (10.0, 0.5, 16), (10.0, 0.0, 16)],
)
def test_the_gpu_is_kept_busy_half_as_long_again_as_the_host_needs(
    monkeypatch: pytest.MonkeyPatch, host_us: float, filling_us: float, fillings: int
) -> None:
    """What lies before each of three runs; of filling no less than a microsecond is believed."""
    times_us = iter((host_us, filling_us))
    done: list[str] = []
    filler = SimpleNamespace(sum=lambda: done.append("fill"))
    event = SimpleNamespace(record=lambda: None, elapsed_time=lambda end: 0.02)
    monkeypatch.setattr(workloads, "_host_us", lambda call: next(times_us))
    monkeypatch.setattr("torch.zeros", lambda numel, device: filler)
    monkeypatch.setattr("torch.cuda.Event", lambda enable_timing: event)
    monkeypatch.setattr("torch.cuda.synchronize", lambda: None)

    found = workloads._figures_by_events(lambda: done.append("step"), step_us=25.0)

    assert done == ["fill"] + 3 * [*(fillings * ["fill"]), "step"]
    assert (found["gpu_busy_us"], found["host_bound"]) == (20.0, False)
