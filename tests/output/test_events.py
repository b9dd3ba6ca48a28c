"""torch.profiler's own tables, printed of a forecast."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

import neusight


def program(device: str) -> None:
    model = nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 64)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        with torch.profiler.record_function("forward pass"):
            loss = model(torch.randn(32, 64).to(device)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


@pytest.fixture(scope="module")
def forecast() -> neusight.Forecast:
    with neusight.forecast_on("H100", with_stack=True) as forecast:
        program("cuda")
    return forecast


def rows_of(events: Any) -> dict[str, Any]:
    return {row.key: row for row in events}


def columns_of(table: str) -> list[str]:
    head = table.splitlines()[1]
    return [name.strip() for name in head.split("  ") if name.strip()]


def test_columns_are_those_of_torch_profiler_on_a_gpu(forecast: neusight.Forecast) -> None:
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True, with_flops=True) as real:
        torch.ones(4) + 1

    ours = columns_of(forecast.key_averages().table())

    cpu = columns_of(real.key_averages().table())
    on_a_gpu = [
        "Self CUDA", "Self CUDA %", "CUDA total", "CUDA time avg", "CUDA Mem", "Self CUDA Mem"
    ]  # fmt: skip
    assert [name for name in ours if name not in on_a_gpu] == cpu
    assert [name for name in ours if name in on_a_gpu] == on_a_gpu


@pytest.mark.parametrize(
    "sort_by",
    [
        "cpu_time", "cuda_time", "cpu_time_total", "cuda_time_total", "self_cpu_time_total",
        "self_cuda_time_total", "device_time_total", "self_device_time_total", "cpu_memory_usage",
        "cuda_memory_usage", "self_cuda_memory_usage", "device_memory_usage", "count",
    ],
)  # fmt: skip
def test_every_sort_key_of_torch_profiler_works(forecast: neusight.Forecast, sort_by: str) -> None:
    averages = forecast.key_averages()

    table = averages.table(sort_by=sort_by, row_limit=1)

    first = table.splitlines()[3].split("  ")
    attribute = sort_by.replace("cuda", "device")
    largest = max(averages, key=lambda row: getattr(row, attribute))
    shown = next(name for name in first if name.strip()).strip().removesuffix("...")
    best = getattr(largest, attribute)
    assert shown in {row.key[: len(shown)] for row in averages if getattr(row, attribute) == best}


def test_operators_have_the_time_of_their_kernels(forecast: neusight.Forecast) -> None:
    rows = rows_of(forecast.key_averages())

    kernels = [k for k in forecast.timeline.kernels if k.call.signature.op == "aten::addmm"]
    addmm = rows["aten::addmm"]
    assert addmm.count == 2 * 3
    assert addmm.self_device_time_total == pytest.approx(sum(k.duration_ns for k in kernels) / 1e3)
    assert addmm.flops == sum(kernel.kernel.flops for kernel in kernels)
    backward = rows["autograd::engine::evaluate_function: AddmmBackward0"]
    assert backward.device_time_total == pytest.approx(rows["AddmmBackward0"].device_time_total)
    assert rows["forward pass"].device_time_total > addmm.self_device_time_total
    shown = [step for step in forecast.timeline.steps if step.replay.step.kind != "setup"]
    launched = sum(step.last_kernel - step.first_kernel for step in shown)
    assert sum(row.count for row in rows.values() if row.device_type.name == "CUDA") == launched


def test_operators_show_what_memory_they_take(forecast: neusight.Forecast) -> None:
    rows = rows_of(forecast.key_averages())

    outputs = 3 * 4 * (32 * 128 + 32 * 64)
    assert rows["aten::gelu"].self_device_memory_usage == 3 * 4 * 32 * 128
    assert rows["aten::addmm"].self_device_memory_usage >= outputs
    assert rows["forward pass"].device_memory_usage >= outputs


def test_shapes_are_those_of_all_arguments(forecast: neusight.Forecast) -> None:
    grouped = forecast.key_averages(group_by_input_shape=True)

    shapes = {tuple(map(tuple, row.input_shapes)) for row in grouped if row.key == "aten::addmm"}
    assert shapes == {
        ((128,), (32, 64), (64, 128), (), ()),
        ((64,), (32, 128), (128, 64), (), ()),
    }


def test_stacks_can_be_distinguished(forecast: neusight.Forecast) -> None:
    grouped = forecast.key_averages(group_by_stack_n=1)

    stacks = {tuple(row.stack) for row in grouped if row.key == "aten::addmm"}
    assert stacks
    assert all("test_events.py" in stack[0] for stack in stacks)


def test_events_can_be_exported_and_listed(forecast: neusight.Forecast, tmp_path: Path) -> None:
    path = tmp_path / "events.json"

    events = forecast.events()
    events.export_chrome_trace(str(path))

    names = {event["name"] for event in json.loads(path.read_text())}
    assert {"aten::addmm", "cudaLaunchKernel", "Memcpy HtoD (Pageable -> Device)"} <= names
    assert events.total_average().self_cpu_time_total > 0
