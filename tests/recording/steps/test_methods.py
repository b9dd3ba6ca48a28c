"""Methods that call parts of their module: one call is one step of inference."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest
import torch
from torch import nn

import neusight
from neusight.recording.recording import STEP_OPTION, OpCall, Step


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.hidden = nn.Linear(32, 32)

    def forward(self, x: torch.Tensor, t: int) -> torch.Tensor:
        return torch.mul(self.hidden(x), t)


class Diffusion(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = Net()
        self.last = nn.Linear(32, 8)

    @torch.no_grad()
    def sample(self, count: int, times: int = 20) -> torch.Tensor:
        x = torch.randn(count, 32, device="cuda")
        for t in range(times):
            x = x - self.net(x, t)
        return torch.softmax(self.last(x), -1)

    @torch.no_grad()
    def stream(self, count: int) -> Iterator[torch.Tensor]:
        x = torch.randn(count, 32, device="cuda")
        for t in range(4):
            x = self.net(x, t)
            yield x

    @torch.no_grad()
    def generate(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(6):
            self(x)
        return x

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.clone(self.last(self.net(x, 1)))


def _step_is(forecast: neusight.Forecast) -> str:
    return forecast.recording.options[STEP_OPTION]


def _counts(forecast: neusight.Forecast) -> dict[str, int]:
    found: dict[str, int] = {}
    for step in forecast.recording.steps:
        found[step.kind] = found.get(step.kind, 0) + step.count
    return found


def _ops(step: Step) -> list[str]:
    return [entry.signature.op for entry in step.entries if isinstance(entry, OpCall)]


@pytest.mark.parametrize("calls", [1, 3])
def test_the_whole_call_is_the_step(calls: int) -> None:
    with neusight.forecast_on("H100") as forecast:
        model = Diffusion().cuda().eval()
        for _ in range(calls):
            model.sample(16)
    assert _step_is(forecast) == "one call of Diffusion.sample"
    assert _counts(forecast) == {"setup": 1, "eval": calls}
    assert _ops(forecast.recording.steps[-1]).count("aten::addmm") == 21
    assert forecast.verdict.batch.samples == 16
    assert "in all" in forecast.summary()


def test_what_the_program_does_after_the_last_call_is_no_part_of_it() -> None:
    with neusight.forecast_on("H100") as forecast:
        model = Diffusion().cuda().eval()
        for _ in range(2):
            model.sample(16)
        torch.ones(8, device="cuda").sum().item()
    ops = [_ops(step) for step in forecast.recording.steps if step.kind == "eval"]
    assert "aten::softmax" in ops[0] or "aten::_softmax" in ops[0]
    assert not any("aten::sum" in names for names in ops[:1])


def test_a_generator_runs_until_it_is_exhausted() -> None:
    with neusight.forecast_on("H100") as forecast:
        model = Diffusion().cuda().eval()
        for _ in range(2):
            for x in model.stream(4):
                x.sum().item()
    assert _step_is(forecast) == "one call of Diffusion.stream"


def test_a_method_that_calls_its_own_module_leaves_each_call_a_step() -> None:
    with neusight.forecast_on("H100") as forecast:
        model = Diffusion().cuda().eval()
        model.generate(torch.ones(4, 32, device="cuda"))
    assert _step_is(forecast) == "one call of Diffusion"
    assert _counts(forecast)["eval"] == 6


def test_a_part_that_is_called_first_does_not_hide_the_calls_of_the_module_itself() -> None:
    class Seq2Seq(Diffusion):
        @torch.no_grad()
        def generate(self, x: torch.Tensor) -> torch.Tensor:
            x = self.net(x, 1)  # an encoder
            for _ in range(6):
                self(x)
            return x

    with neusight.forecast_on("H100") as forecast:
        Seq2Seq().cuda().eval().generate(torch.ones(4, 32, device="cuda"))
    assert _step_is(forecast).endswith("one call of Seq2Seq")


def test_training_steps_are_those_of_the_optimizer() -> None:
    class Trained(Diffusion):
        def loss(self, x: torch.Tensor) -> torch.Tensor:
            return torch.sum(self.last(self.net(x, 1)))

    with neusight.forecast_on("H100") as forecast:
        model = Trained().cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            model.loss(torch.ones(4, 32, device="cuda")).backward()
            optimizer.step()
        model.sample(4)
    assert _step_is(forecast) == "one step of SGD"


def test_memory_is_freed_when_the_method_returns() -> None:
    def allocated(model: Diffusion) -> int:
        model.sample(16)
        return torch.cuda.memory_allocated()

    with neusight.forecast_on("H100"):
        model = Diffusion().cuda().eval()
        first = allocated(model)
        assert allocated(model) == first == torch.cuda.memory_allocated()


def test_a_debugger_keeps_its_trace_functions() -> None:
    def trace(*args: object) -> None:
        return None

    before = sys.gettrace()
    with neusight.forecast_on("H100") as forecast:
        model = Diffusion().cuda().eval()
        sys.settrace(trace)
        try:
            model.sample(16)
        finally:
            sys.settrace(before)
    assert "sample" not in _step_is(forecast)
