"""The program's own torch.profiler shows the forecast of what runs in its window."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile, schedule, tensorboard_trace_handler

from neusight import Forecast, ForecastStateError, forecast_on
from neusight.output.trace.file import trace_events

Step = Callable[[], None]


def training() -> Step:
    """What one step of a small model's training does."""
    model = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64)).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step() -> None:
        with torch.profiler.record_function("my forward"):
            loss = model(torch.randn(16, 64, device="cuda")).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def events_of(path: Path) -> list[dict[str, Any]]:
    """The events of a trace file."""
    text = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    found: list[dict[str, Any]] = json.loads(text)["traceEvents"]
    return found


def names_of(events: list[dict[str, Any]], category: str) -> Counter[str]:
    """How often each name of a category comes."""
    return Counter(event["name"] for event in events if event.get("cat") == category)


def last_steps(forecast: Forecast, num_steps: int) -> list[dict[str, Any]]:
    """The events of the last steps in the forecast's own trace."""
    trace: Any = trace_events(
        forecast.timeline, forecast.memory, forecast.gpu, max_steps=num_steps, with_modules=False
    )
    return list(trace["traceEvents"])


def test_the_trace_that_a_schedule_asks_for_has_its_steps_with_operators_and_kernels(
    tmp_path: Path,
) -> None:
    with forecast_on("H100", allow_writes=True) as forecast:
        step = training()
        with profile(
            activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA],
            schedule=schedule(wait=1, warmup=1, active=2, repeat=1),
            on_trace_ready=tensorboard_trace_handler(str(tmp_path), use_gzip=True),
            record_shapes=True,
        ) as profiler:
            for _ in range(6):
                step()
                profiler.step()

    (written,) = tmp_path.glob("*.pt.trace.json.gz")
    events = events_of(written)
    steps = [name for name in names_of(events, "user_annotation") if name.startswith("Profiler")]
    assert steps == ["ProfilerStep#2", "ProfilerStep#3"]
    assert names_of(events, "user_annotation")["my forward"] == 2
    assert names_of(events, "cpu_op")["aten::linear"] == 4
    assert names_of(events, "cuda_runtime")["cudaDeviceSynchronize"] == 1
    shown = last_steps(forecast, 2)
    assert names_of(events, "kernel") == names_of(shown, "kernel")
    assert names_of(events, "cpu_op") == names_of(shown, "cpu_op")


def test_its_steps_take_the_forecasts_time_and_its_forecast_is_as_without_it() -> None:
    def forecast_of(*, is_profiled: bool) -> tuple[Forecast, list[float]]:
        found: list[float] = []
        with forecast_on("H100") as forecast:
            step = training()
            with profile(schedule=schedule(wait=3, warmup=1, active=2, repeat=1)) as profiler:
                for _ in range(8):
                    step()
                    if is_profiled:
                        profiler.step()
                    else:
                        forecast.step()
            if is_profiled:
                events = profiler.events()
                found += [e.cpu_time_total for e in events if e.name == "ProfilerStep*"]
        return forecast, found

    plain, _ = forecast_of(is_profiled=False)
    profiled, times = forecast_of(is_profiled=True)

    assert profiled.step_latency_us == plain.step_latency_us
    assert [row["count"] for row in profiled.steps] == [row["count"] for row in plain.steps]
    assert times == pytest.approx([plain.step_latency_us.median] * 2, rel=1e-3)


def test_its_table_sums_the_kernels_of_the_window() -> None:
    with forecast_on("H100") as forecast:
        step = training()
        step()
        with profile() as profiler:
            step()
            step()
        averages = {event.key: event for event in profiler.key_averages()}
        table = profiler.key_averages().table(sort_by="cuda_time_total")

    assert averages["aten::linear"].count == 4
    assert averages["my forward"].count == 2
    assert "Self CUDA" in table
    kernel_us = sum(
        event.self_device_time_total
        for event in averages.values()
        if event.device_type.name == "CUDA"
    )
    assert kernel_us == pytest.approx(2 * forecast.gpu_busy_us, rel=1e-3)
    assert averages["aten::linear"].device_time_total > 0


@pytest.mark.parametrize(
    ("activities", "has_operators", "has_kernels"),
    [
        ([ProfilerActivity.CPU], True, False),
        ([ProfilerActivity.CUDA], False, True),
        (None, True, True),
    ],
)
def test_it_shows_the_activities_that_it_was_asked_for(
    activities: Any, has_operators: bool, has_kernels: bool, tmp_path: Path
) -> None:
    written = tmp_path / "own.json"
    with forecast_on("H100", allow_writes=True):
        step = training()
        with profile(activities=activities) as profiler:
            step()
        profiler.export_chrome_trace(str(written))
        names = {event.name for event in profiler.events()}

    events = events_of(written)
    assert bool(names_of(events, "cpu_op")) is has_operators
    assert bool(names_of(events, "kernel")) is has_kernels
    assert ("aten::linear" in names) is has_operators
    assert ("cudaLaunchKernel" in names) is has_kernels


def test_shapes_stacks_and_memory_are_shown_where_they_are_asked_for(tmp_path: Path) -> None:
    plain, full = tmp_path / "plain.json", tmp_path / "full.json"
    with forecast_on("H100", allow_writes=True):
        step = training()
        with profile() as profiler:
            step()
        profiler.export_chrome_trace(str(plain))
        with profile(record_shapes=True, with_stack=True, profile_memory=True) as profiler:
            step()
        profiler.export_chrome_trace(str(full))
        by_line = profiler.key_averages(group_by_stack_n=1)
        with profile() as profiler:
            step()
        after = [event.stack for event in profiler.events()]

    assert {event.get("cat") for event in events_of(full)} - {
        event.get("cat") for event in events_of(plain)
    } == {"python_function", "cpu_instant_event"}
    assert not any("Input Dims" in event.get("args", {}) for event in events_of(plain))
    assert any("Input Dims" in event.get("args", {}) for event in events_of(full))
    assert any(event["name"] == "nn.Module: Linear_0" for event in events_of(full))
    assert any(Path(__file__).name in line for event in by_line for line in event.stack)
    assert not any(after)


def test_what_the_program_adds_to_its_trace_stands_in_it(tmp_path: Path) -> None:
    written = tmp_path / "own.json"
    with forecast_on("H100", allow_writes=True):
        step = training()
        with profile() as profiler:
            step()
            profiler.add_metadata("who", "me")
        profiler.export_chrome_trace(str(written))

    content = json.loads(written.read_text())
    assert content["who"] == "me"
    assert content["neusight"]["forecast"] is True


def test_windows_follow_each_other_and_accumulate_where_asked() -> None:
    counts: list[int] = []

    def ready(profiler: Any) -> None:
        averages = {event.key: event.count for event in profiler.key_averages()}
        counts.append(averages["aten::linear"])

    with forecast_on("H100"):
        step = training()
        with profile(
            schedule=schedule(wait=0, warmup=1, active=1), on_trace_ready=ready, acc_events=True
        ) as profiler:
            for _ in range(6):
                step()
                profiler.step()

    assert counts == [2, 4, 6]


def test_the_older_profiler_of_autograd_shows_kernels_too() -> None:
    with forecast_on("H100"):
        step = training()
        with torch.autograd.profiler.profile(use_device="cuda") as profiler:
            step()

    averages = {event.key: event for event in profiler.key_averages()}
    assert averages["aten::addmm"].device_time_total > 0


def test_its_kernels_wait_for_what_the_gpu_was_given_before() -> None:
    def first_start_us(*, is_busy: bool) -> float:
        with forecast_on("H100"):
            x = torch.randn(8192, 8192, device="cuda")
            with profile(schedule=schedule(wait=0, warmup=1, active=1, repeat=1)) as profiler:
                for _ in range(10 if is_busy else 0):
                    x @ x
                profiler.step()
                x.sin()
                profiler.step()
        events = profiler.events()
        (frame,) = (event for event in events if event.name == "ProfilerStep*")
        (sine,) = (event for event in events if "sin_kernel" in event.name)
        return float(sine.time_range.start - frame.time_range.start)

    assert first_start_us(is_busy=False) < 1000
    assert first_start_us(is_busy=True) > 10_000


def test_only_kineto_itself_is_missing() -> None:
    with forecast_on("H100") as forecast:
        step = training()
        with profile(with_stack=True, record_shapes=True, profile_memory=True) as profiler:
            step()
            profiler.toggle_collection_dynamic(False, [ProfilerActivity.CUDA])
        with pytest.raises(ForecastStateError, match="no experimental_event_tree in a forecast"):
            profiler.profiler.kineto_results.experimental_event_tree()

    assert any("toggle_collection_dynamic" in warning for warning in forecast.warnings)
