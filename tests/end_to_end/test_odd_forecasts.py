"""Advice on forecasts of hardly anything: no kernel, no time, one op, nothing in a tensor."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as some
from torch import nn

import neusight
from neusight.advice.advice import advice_for, advice_lines
from neusight.advice.memory import memory_advice
from neusight.predictors.gpu import GPU
from neusight.predictors.kernel import Kernel
from neusight.predictors.predictor import Estimate
from neusight.predictors.registry import find_predictor


class NoTime:
    """Says that every kernel takes none."""

    name = "no-time"

    def predict(self, kernels: Sequence[Kernel], gpu: GPU) -> list[Estimate]:
        return [
            replace(estimate, latency_us=0.0, low_us=0.0, high_us=0.0)
            for estimate in find_predictor("tiled").predict(kernels, gpu)
        ]


def an_optimizer_of_nothing() -> None:
    parameter = nn.Parameter(torch.zeros(0, device="cuda"))
    parameter.sum().backward()
    torch.optim.Adam([parameter]).step()


def an_empty_graph() -> None:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        pass
    graph.replay()


PIECES: dict[str, Callable[[], object]] = {
    "nothing": lambda: None,
    "memory": lambda: torch.empty(8, device="cuda"),
    "view": lambda: torch.empty(8, device="cuda").view(2, 4).t(),
    "wait": lambda: torch.cuda.synchronize(),
    "read": lambda: torch.ones(1, device="cuda").item(),
    "one op": lambda: torch.ones(4, device="cuda").relu_(),
    "empty op": lambda: torch.zeros(0, device="cuda").relu(),
    "empty product": lambda: torch.zeros(0, 4, device="cuda") @ torch.zeros(4, 0, device="cuda"),
    "odd product": lambda: torch.zeros(3, 5, device="cuda") @ torch.zeros(5, 7, device="cuda"),
    "no output": lambda: nn.Linear(4, 0).cuda()(torch.zeros(2, 4, device="cuda")),
    "on the CPU": lambda: torch.ones(4).relu(),
    "optimizer": an_optimizer_of_nothing,
    "graph": an_empty_graph,
}


@pytest.mark.filterwarnings("ignore::neusight.session.NoCudaWorkWarning")
@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")
@settings(max_examples=20, suppress_health_check=list(HealthCheck))
@given(
    names=some.lists(some.sampled_from(sorted(PIECES)), min_size=0, max_size=3),
    steps=some.sampled_from([0, 1, 3]),
    takes_time=some.booleans(),
)
def test_no_forecast_is_too_odd_for_a_report(
    names: list[str], steps: int, takes_time: bool
) -> None:
    with neusight.forecast_on("H100", predictor=None if takes_time else NoTime()) as forecast:
        for _ in range(max(1, steps)):
            for name in names:
                PIECES[name]()
            if steps:
                forecast.step()

    found = advice_for(forecast)
    advice_lines(found)

    assert all(0 < advice.gain <= 1 for advice in found)
    assert forecast.summary()
    assert forecast.to_json()["schema_version"]
    memory_advice(forecast.recording, forecast.gpu)
