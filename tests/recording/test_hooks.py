"""Hooks mark modules, optimizers and annotations, and none stays that fails."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from compiled_net import quiet
from torch import nn
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

import neusight
from neusight.recording.recording import Mark
from recorded_programs import Block, calls, data, entries_of, where


def test_an_optimizer_that_fails_does_not_stay() -> None:
    class Failing(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            raise ValueError("no step")

    def program() -> None:
        model = Block().cuda()
        optimizer = Failing(model.parameters(), lr=0.1)
        with pytest.raises(ValueError, match="no step"):
            optimizer.step()
        data().cos()

    assert where(calls(program), "cos") == [("forward", "")]


def test_a_module_that_fails_does_not_stay() -> None:
    class Failing(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise ValueError("no forward")

    def program() -> None:
        with pytest.raises(ValueError, match="no forward"):
            nn.Sequential(Failing())(data())
        data().cos()

    assert where(calls(program), "cos") == [("forward", "")]


def test_shared_and_unregistered_modules_have_a_path() -> None:
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.hidden = [nn.Linear(8, 8).cuda()]

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = self.hidden[0](x)
            return out

    def program() -> None:
        with torch.no_grad():
            Odd()(data())

    assert where(calls(program), "addmm") == [("forward", "Odd.Linear")]


def test_outermost_modules_of_one_class_are_numbered_while_they_are_there() -> None:
    class Pair(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(8, 8), nn.Sequential(nn.Linear(8, 8))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = self.second(self.first(x))
            return out

    def program() -> None:
        one, other = Pair().cuda(), Pair().cuda()
        for x in data(), data():
            other(one(x)).sum().backward()
            nn.Linear(8, 8).cuda()(x)

    found = where(calls(program), "addmm")

    assert found == 2 * [
        ("forward", "Pair.first"), ("forward", "Pair.second.0"),
        ("forward", "Pair_1.first"), ("forward", "Pair_1.second.0"), ("forward", "Linear"),
    ]  # fmt: skip


def test_a_module_and_what_compiles_it_have_one_name() -> None:
    def program() -> None:
        model = nn.Linear(8, 8).cuda()
        compiled: Any = torch.compile(model, backend="eager")
        compiled(model(data()))

    with quiet():
        assert where(calls(program), "addmm") == [("forward", "Linear")] * 2


def test_losses_of_each_step_have_one_name() -> None:
    def program() -> list[nn.Module]:
        losses: list[nn.Module] = [nn.MSELoss() for _ in range(3)]
        for loss in losses:
            loss(data(), data())
        return losses

    assert where(calls(program), "mse_loss") == [("forward", "MSELoss")] * 3


def test_modules_begin_and_end_in_turn() -> None:
    with neusight.forecast_on("H100") as forecast:
        Block().cuda()(data())

    marks = [(entry.kind, entry.name, entry.detail) for entry in entries_of(forecast, Mark)]
    assert marks == [
        ("module_begin", "Block", "Block"),
        ("module_begin", "Block.inner", "Linear"), ("module_end", "Block.inner", "Linear"),
        ("module_begin", "Block.outer", "Sequential"),
        ("module_begin", "Block.outer.0", "GELU"), ("module_end", "Block.outer.0", "GELU"),
        ("module_begin", "Block.outer.1", "Linear"), ("module_end", "Block.outer.1", "Linear"),
        ("module_end", "Block.outer", "Sequential"), ("module_end", "Block", "Block"),
    ]  # fmt: skip


def causal(batch: Any, head: Any, query: Any, key: Any) -> Any:
    return query >= key


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_a_graph_that_torch_calls_for_itself_ends_no_step() -> None:
    """Flex attention that is not compiled calls the graphs of its score_mod and mask_mod."""
    with neusight.forecast_on("H100") as forecast, torch.no_grad():
        query = torch.randn(1, 2, 128, 64, device="cuda")
        mask = create_block_mask(causal, None, None, 128, 128, device="cuda")
        flex_attention(query, query, query, block_mask=mask)

    assert len(forecast.recording.steps) == 1
    assert [kernel.name for kernel, _ in forecast.kernels].count("gemm") == 2


def test_a_graph_that_the_program_calls_ends_a_step_as_a_module_does() -> None:
    with neusight.forecast_on("H100") as forecast, torch.no_grad():
        graph = torch.fx.symbolic_trace(torch.nn.Linear(8, 8).cuda())
        for _ in range(3):
            graph(torch.randn(4, 8, device="cuda"))

    assert [step.kind for step in forecast.recording.steps][1:] == ["eval"] * 3


def test_a_call_of_a_compiled_function_ends_a_step() -> None:
    def prefill(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return x @ weight

    def decode(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return x @ weight + 1

    with neusight.forecast_on("H100") as forecast, torch.no_grad():
        weight = torch.ones(64, 64, device="cuda")
        start, go_on = torch.compile(prefill), torch.compile(decode)
        x = start(torch.ones(2, 128, 64, device="cuda"), weight)[:, -1:]
        for _ in range(6):
            x = go_on(x, weight)

    steps = forecast.recording.steps
    assert sum(step.count for step in steps if step.kind == "eval") == 7
    assert forecast.to_json()["step_is"] == "one call of decode"


def test_a_compiled_function_of_a_program_that_trains_ends_no_step() -> None:
    with neusight.forecast_on("H100") as forecast:
        net = torch.nn.Linear(64, 64).cuda()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        loss_of = torch.compile(lambda y: y.square().mean())
        for _ in range(3):
            loss_of(net(torch.ones(4, 64, device="cuda"))).backward()
            optimizer.step()
            optimizer.zero_grad()

    trained = [step.count for step in forecast.recording.steps if step.kind == "train"]
    assert sum(trained) == 3
    assert all(step.kind in ("train", "setup") for step in forecast.recording.steps)
