"""A trace of ours beside what torch.profiler writes of the same script on the CPU.

Operators, their order, shapes and sequence numbers agree, but for four differences:

- operators that only call others (`linear`, `matmul`, `cross_entropy`) are not dispatched to a
  device and so not shown; the others' own children (`addmm`'s `expand`) are not looked at here;
- autograd nodes in which nothing is dispatched (`AddBackward0`) are not recorded;
- tensors saved for backward go and come by a `detach` that a program without listener does not run;
- two gradients of one tensor are added up by `add`, where PyTorch on a device may take `add_`.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile, schedule

import neusight

EVALUATE = "autograd::engine::evaluate_function: "
ACCUMULATE = "torch::autograd::AccumulateGrad"
STEP = 2


class Attention(nn.Module):
    """Embedding, normalization, attention by hand, a residual, a head."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.norm = nn.Embedding(32, 16), nn.LayerNorm(16)
        self.up, self.down, self.head = nn.Linear(16, 32), nn.Linear(32, 16), nn.Linear(16, 32)

    def forward(self, tokens: torch.Tensor) -> Any:
        x = self.embedding(tokens)
        x = x + self.down(torch.relu(self.up(self.norm(x))))
        q = x.view(2, 4, 2, 8).transpose(1, 2)
        weights = torch.softmax(q @ q.transpose(-1, -2) / 3, -1)
        return self.head((weights @ q).transpose(1, 2).reshape(2, 4, 16))


def program(device: str, end_step: Callable[[], object]) -> None:
    torch.manual_seed(0)
    model = Attention().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, foreach=True)
    tokens = torch.randint(32, (2, 4), device=device)
    for _ in range(4):
        logits = model(tokens)
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        end_step()


class Op(NamedTuple):
    """An operator as both traces show it: the autograd node it runs in, if any."""

    name: str
    node: str
    shapes: tuple[tuple[int, ...], ...]


@lru_cache
def only_calls_others(name: str) -> bool:
    """Whether an operator has no kernel for a device but is made of others."""
    namespace, _, base = name.partition("::")
    packet = getattr(torch.ops.aten, base, None) if namespace == "aten" else None
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    return packet is not None and any(
        has(full, "CompositeImplicitAutograd") and not has(full, "CUDA")
        for overload in packet.overloads()
        if torch._C._dispatch_has_kernel(
            full := name if overload == "default" else f"{name}.{overload}"
        )
    )


def is_node(name: str) -> bool:
    return name.startswith("autograd::") or name == ACCUMULATE or name[:-1].endswith("Backward")


def shapes_of(event: dict[str, Any]) -> tuple[tuple[int, ...], ...]:
    dims = event["args"].get("Input Dims", [])
    return tuple(tuple(item) for item in dims if item and not isinstance(item[0], list))


def ops_of(events: list[dict[str, Any]], step: str) -> Iterator[tuple[Op, dict[str, Any]]]:
    """The dispatched operators of a step in order, with the event of their autograd node."""
    (mark,) = [e for e in events if e["ph"] == "X" and e["name"] == step]
    end = mark["ts"] + mark["dur"]
    inside = [e for e in events if e.get("cat") == "cpu_op" and mark["ts"] <= e["ts"] < end]
    stacks: dict[Any, list[tuple[float, dict[str, Any], bool]]] = {}
    for event in sorted(inside, key=lambda e: (e["ts"], -e["dur"])):
        stack = stacks.setdefault(event["tid"], [])
        while stack and stack[-1][0] <= event["ts"]:
            stack.pop()
        name = event["name"]
        opaque = not is_node(name) and not only_calls_others(name)
        if opaque and not any(hides for _, _, hides in stack):
            node = next((e for _, e, _ in reversed(stack) if is_node(e["name"])), {"name": ""})
            own = node["name"].removeprefix(EVALUATE)
            if name != "aten::detach" or own == ACCUMULATE:
                plain = "aten::add" if name == "aten::add_" and own else name
                yield Op(plain, own, shapes_of(event)), node
        stack.append((event["ts"] + event["dur"], event, opaque))


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    window = schedule(wait=1, warmup=1, active=2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with profile(
            activities=[ProfilerActivity.CPU], record_shapes=True, schedule=window
        ) as prof:
            program("cpu", prof.step)
    path: Path = tmp_path_factory.mktemp("cpu") / "cpu.json"
    prof.export_chrome_trace(str(path))
    events: list[dict[str, Any]] = json.loads(path.read_text())["traceEvents"]
    return events


@pytest.fixture(scope="module")
def forecast(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    with neusight.forecast_on("H100") as forecast:
        program("cuda", forecast.step)
    path = tmp_path_factory.mktemp("ours") / "ours.json"
    forecast.export_chrome_trace(path)
    events: list[dict[str, Any]] = json.loads(path.read_text())["traceEvents"]
    return events


def test_operators_agree_in_name_order_node_and_shapes(
    measured: list[dict[str, Any]], forecast: list[dict[str, Any]]
) -> None:
    real = [op for op, _ in ops_of(measured, f"ProfilerStep#{STEP}")]
    ours = [op for op, _ in ops_of(forecast, f"ProfilerStep#{STEP + 1}")]

    assert len(real) > 100
    assert ours == real


def test_nodes_have_the_sequence_numbers_of_their_forward_operators(
    measured: list[dict[str, Any]], forecast: list[dict[str, Any]]
) -> None:
    """Both count up with each operator that autograd records, backward from the last."""

    def numbers(events: list[dict[str, Any]], step: str) -> list[int]:
        found = [
            node["args"]["Sequence number"]
            for op, node in ops_of(events, step)
            if op.node and op.node != ACCUMULATE
        ]
        return [number - found[0] for number in found]

    real = numbers(measured, f"ProfilerStep#{STEP}")
    ours = numbers(forecast, f"ProfilerStep#{STEP + 1}")

    assert min(real) < 0 == real[0]
    assert ours == real
