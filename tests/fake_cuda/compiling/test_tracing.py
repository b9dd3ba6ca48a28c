"""Dynamo takes forecast tensors for plain ones, and does not look into neusight."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from compiled_net import Net, ops, torch_compile
from torch import nn

import neusight
from neusight.recording.tensor import ForecastTensor


def test_a_model_is_one_graph() -> None:
    from torch._dynamo.testing import CompileCounter

    counter = CompileCounter()
    with neusight.forecast_on("H100"):
        model: Any = torch.compile(Net().cuda().eval(), backend=counter)
        for _ in range(3):
            model(torch.randn(8, 256, device="cuda"))

    assert (counter.frame_count, counter.op_count) == (1, 5)


def test_nothing_of_neusight_stays_in_dynamo() -> None:
    from torch._dynamo import trace_rules
    from torch._dynamo.variables.builder import VariableBuilder

    with neusight.forecast_on("H100"):
        torch_compile(lambda x: x + 1, backend="eager")(torch.ones(3, device="cuda"))
        inside = list(trace_rules.SKIP_DIRS)

    assert len(trace_rules.SKIP_DIRS) == len(inside) - 1
    assert ForecastTensor not in VariableBuilder._type_dispatch()


def test_an_optimizer_may_be_compiled() -> None:
    with neusight.forecast_on("H100") as forecast:
        net = Net().cuda()
        optimizer = torch.optim.AdamW(net.parameters())
        step: Any = torch.compile(optimizer.step)
        for _ in range(2):
            net(torch.randn(8, 256, device="cuda")).sum().backward()
            step()
            optimizer.zero_grad()
    kernels = [kernel for kernel, _ in forecast.kernels if "triton_for_fused" in kernel.name]
    num_bytes = sum(parameter.numel() for parameter in Net().parameters()) * 4

    assert len(kernels) == 2 * 2  # one counts the steps
    # It reads parameter, gradient and two states, and writes all but the gradient.
    assert max(kernel.num_bytes for kernel in kernels) / num_bytes == pytest.approx(7, rel=1e-3)
    assert "aten::_foreach_addcdiv_" not in ops(*forecast.recording.steps)


@pytest.mark.parametrize("make", [torch.optim.AdamW, torch.optim.SGD])
def test_a_compiled_optimizer_breaks_where_torch_does_only_and_leaves_no_state(make: Any) -> None:
    torch._dynamo.utils.counters.clear()
    with neusight.forecast_on("H100") as forecast:
        net = nn.Linear(64, 64).cuda()
        optimizer = make(net.parameters(), lr=0.1)
        step: Any = torch_compile(optimizer.step)
        for _ in range(3):
            net(torch.ones(8, 64, device="cuda")).sum().backward()
            step()
            optimizer.zero_grad()
        breaks = list(torch._dynamo.utils.counters["graph_break"])

    # Torch breaks the graph itself where the step turns gradients off (torch/optim/optimizer.py).
    assert all("torch._dynamo.graph_break()" in reason for reason in breaks)
    assert not [line for line in forecast.warnings if "graph" in line]
    assert not optimizer.state


def test_a_compiled_optimizer_may_be_a_cuda_graph() -> None:
    with neusight.forecast_on("H100") as forecast:
        net: Any = torch_compile(nn.Linear(64, 64).cuda(), mode="reduce-overhead")
        optimizer = torch.optim.AdamW(net.parameters(), capturable=True)
        step: Any = torch_compile(optimizer.step, mode="reduce-overhead")
        for _ in range(3):
            net(torch.ones(8, 64, device="cuda")).sum().backward()
            step()
            optimizer.zero_grad()

    assert not [line for line in forecast.warnings if "forecast as eager" in line]


def test_torch_does_not_warn_of_hooks_that_are_ours() -> None:
    with warnings.catch_warnings(record=True) as reported, neusight.forecast_on("H100"):
        warnings.simplefilter("always")
        model: Any = torch.compile(Net().cuda().eval(), backend="eager")
        model(torch.randn(8, 256, device="cuda"))

    assert not [text for text in reported if "global hooks" in str(text.message)]


def test_values_gathered_by_index_are_counted_as_rows() -> None:
    with neusight.forecast_on("H100") as forecast:
        table = torch.randn(5000, 64, device="cuda")
        run: Any = torch_compile(lambda rows: table[rows] * 2)
        run(torch.zeros(8, dtype=torch.int64, device="cuda"))
    [kernel] = [kernel for kernel, _ in forecast.kernels if kernel.name.startswith("triton")]

    assert (kernel.bytes_read, kernel.bytes_written) == (8 * 64 * 4 + 8 * 8, 8 * 64 * 4)


def doubled(module: nn.Module, given: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    return (given[0] * 2,)


class Hooked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 8)
        self.inner.register_forward_pre_hook(doubled)

    def forward(self, x: torch.Tensor) -> Any:
        return self.inner(x)


def test_modules_with_hooks_of_their_own_share_a_graph() -> None:
    """As those of tensor parallelism are: torch then asks whether all modules have hooks, too."""
    from torch._dynamo.testing import CompileCounter

    counter = CompileCounter()
    with neusight.forecast_on("H100"), torch.no_grad():
        x = torch.ones(4, 8, device="cuda")
        for layer in [Hooked().cuda() for _ in range(4)]:
            layer.compile(fullgraph=True, backend=counter)
            x = layer(x)

    assert counter.frame_count == 1
