"""Where torch itself decides against CUDA graphs, its reasons are reported, and it is so."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from compiled_net import torch_compile
from torch._dynamo.utils import counters

import neusight
from neusight.fake_cuda.compiling.graphs.install import reason_text
from neusight.recording.recording import Mark


def called(function: Callable[..., Any], *, y_on: str = "cuda", **options: Any) -> list[Any]:
    """How often graphs were launched in four calls, and the warnings."""
    with neusight.forecast_on("H100") as forecast, torch.no_grad():
        compiled = torch_compile(function, **options)
        for _ in range(4):
            compiled(torch.randn(64, 64, device="cuda"), torch.randn(64, 64, device=y_on))
            torch.cuda.synchronize()
    entries = [entry for step in forecast.recording.steps for entry in step.entries]
    found = sum(isinstance(entry, Mark) and entry.kind == "graph_begin" for entry in entries)
    return [found, *forecast.warnings]


def test_inputs_that_are_changed_are_named_with_their_line_and_run_without() -> None:
    counters.clear()

    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        y.mul_(2)
        return x @ y

    number, line = called(function, mode="reduce-overhead")

    assert number == 0
    assert line.startswith(
        "torch skips CUDA graphs here: mutated inputs (2 instances) at test_install.py:"
    )
    assert counters["inductor"]["cudagraph_skips"] == 1


def test_what_runs_on_the_cpu_is_left_out_of_the_graphs() -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.relu(x @ x), (y + 1) * 2

    found = called(function, y_on="cpu", mode="reduce-overhead")

    assert found == [
        3,
        "torch leaves a part of a graph out of its CUDA graphs: cpu ops (1)",
    ]


def test_the_backend_that_cannot_split_skips_it_whole() -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.relu(x @ x), (y + 1) * 2

    number, line = called(function, y_on="cpu", backend="cudagraphs")

    assert number == 0
    assert line.startswith("torch skips CUDA graphs here: cpu device (")


def test_reasons_lose_what_torch_says_twice() -> None:
    message = (
        "skipping cudagraphs due to skipping cudagraphs due to mutated inputs (1 instances). "
        'Found from : \n   File "/home/me/train.py", line 12, in step\n    x.add_(1)\n'
    )

    assert reason_text(message) == "mutated inputs (1 instances) at train.py:12"
    assert (
        reason_text(
            "disabling cudagraphs due to incompatible op aten.x Found from   "
            'File "a/b.py", line 3, in f\n'
        )
        == "incompatible op aten.x at b.py:3"
    )
