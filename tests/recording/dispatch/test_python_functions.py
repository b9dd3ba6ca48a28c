"""The Python functions around operators, as torch's profiler shows them with stacks."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import neusight


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x.square()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        return gradient.mul(2 * x)


def loss_of(output: torch.Tensor) -> torch.Tensor:
    squares: torch.Tensor = Square.apply(output)
    return squares.sum()


def step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    loss_of(model(torch.ones(8, 8, device="cuda"))).backward()
    optimizer.step()
    optimizer.zero_grad()


def recorded(*, with_stack: bool = True) -> neusight.Forecast:
    with neusight.forecast_on("H100", with_stack=with_stack) as forecast:
        model = nn.Sequential(nn.Linear(8, 8), nn.ReLU()).cuda()
        optimizer = torch.optim.SGD(model.parameters())
        for _ in range(3):
            step(model, optimizer)
            forecast.step()
    return forecast


def trace_of(forecast: neusight.Forecast, folder: Path) -> dict[str, Any]:
    forecast.export_chrome_trace(folder / "trace.json")
    found: dict[str, Any] = json.loads((folder / "trace.json").read_text())
    return found


def functions(trace: dict[str, Any], number: int = 2) -> list[dict[str, Any]]:
    """Those in a step, in order."""
    events = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    around = next(event for event in events if event["name"] == f"ProfilerStep#{number}")
    return [
        event
        for event in events
        if event["cat"] == "python_function"
        and around["ts"] <= event["ts"] < around["ts"] + around["dur"]
    ]


def without_line(event: dict[str, Any]) -> str:
    begin, _, rest = str(event["name"]).partition("(")
    return begin.rpartition("tests/recording/dispatch/")[2] + rest.partition(")")[2]


@pytest.fixture(scope="module")
def forecast() -> neusight.Forecast:
    return recorded()


def test_functions_of_program_and_torch_have_their_caller_as_parent(
    forecast: neusight.Forecast, tmp_path: Path
) -> None:
    found = functions(trace_of(forecast, tmp_path))

    names = {event["args"]["Python id"]: without_line(event) for event in found}
    edges = {(names.get(event["args"]["Python parent id"]), without_line(event)) for event in found}
    here = "test_python_functions.py"
    assert {
        (f"{here}: recorded", f"{here}: step"),
        (f"{here}: step", "nn.Module: Sequential_0"),
        ("nn.Module: Sequential_0", "torch/nn/modules/module.py: _call_impl"),
        ("torch/nn/modules/module.py: _call_impl", "torch/nn/modules/container.py: forward"),
        ("torch/nn/modules/container.py: forward", "nn.Module: Linear_0"),
        (f"{here}: step", f"{here}: loss_of"),
        (f"{here}: loss_of", "torch/autograd/function.py: apply"),
        ("torch/autograd/function.py: apply", f"{here}: forward"),
        (f"{here}: step", "torch/_tensor.py: backward"),
    } <= edges
    assert len(names) == len(found)


def test_no_function_of_neusight_and_none_in_a_node_of_autograd_is_shown(
    forecast: neusight.Forecast, tmp_path: Path
) -> None:
    trace = trace_of(forecast, tmp_path)

    names = Counter(map(without_line, functions(trace)))
    assert trace["with_stack"] == 1
    assert not any("neusight" in name or "torch_dispatch" in name for name in names)
    assert "test_python_functions.py: backward" not in names
    assert names["torch/autograd/graph.py: _engine_run_backward"] == 1


def test_what_lies_on_a_thread_nests(forecast: neusight.Forecast, tmp_path: Path) -> None:
    events = [event for event in trace_of(forecast, tmp_path)["traceEvents"] if event["ph"] == "X"]

    for thread in {event["tid"] for event in events}:
        open_: list[float] = []
        on_thread = [event for event in events if event["tid"] == thread]
        for event in sorted(on_thread, key=lambda event: (event["ts"], -event["dur"])):
            while open_ and open_[-1] <= event["ts"]:
                open_.pop()
            end = event["ts"] + event["dur"]
            assert not open_ or end <= open_[-1], event
            open_.append(end)


def test_functions_change_no_figure_and_come_back_from_a_file(
    forecast: neusight.Forecast, tmp_path: Path
) -> None:
    plain = recorded(with_stack=False)
    forecast.save(tmp_path / "saved.json")
    loaded = neusight.Forecast.load(tmp_path / "saved.json")

    assert plain.step_latency_us == forecast.step_latency_us
    assert plain.by_operator == forecast.by_operator
    assert trace_of(loaded, tmp_path)["traceEvents"] == trace_of(forecast, tmp_path)["traceEvents"]
    assert not any(
        operator.is_function for step in plain.recording.steps for operator in step.operators
    )


def test_each_repeated_step_has_its_functions(forecast: neusight.Forecast, tmp_path: Path) -> None:
    trace = trace_of(forecast, tmp_path)

    assert [without_line(event) for event in functions(trace, 2)] == [
        without_line(event) for event in functions(trace, 3)
    ]
