"""Gradients on another device than what they are of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import neusight


class OnTheCpu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return torch.ones(4, 4)


def leaf(device: str) -> torch.Tensor:
    return torch.ones(4, 4, device=device, requires_grad=True)


@pytest.mark.parametrize(
    ("program", "words"),
    [
        (
            lambda: OnTheCpu.apply(leaf("cuda")).sum().backward(),
            "Function OnTheCpuBackward returned an invalid gradient at index 0 - expected device "
            "cuda:0 but got cpu",
        ),
        (
            lambda: (leaf("cuda") * 2).backward(torch.ones(4, 4)),
            "invalid gradient at index 0 - expected device cuda:0 but got cpu",
        ),
        (
            lambda: (leaf("cpu") * 2).backward(torch.ones(4, 4, device="cuda")),
            "invalid gradient at index 0 - expected device cpu but got cuda:0",
        ),
        (
            lambda: torch.ones(4)[torch.zeros(2, dtype=torch.long, device="cuda")],
            "indices should be either on cpu or on the same device as the indexed tensor (cpu)",
        ),
    ],
)
def test_the_words_are_those_of_cuda(program: Callable[[], object], words: str) -> None:
    with neusight.forecast_on("H100"):
        torch.ones(8, device="cuda").relu_()
        with pytest.raises(RuntimeError) as raised:
            program()

    assert words in str(raised.value)


def test_gradients_that_belong_together_pass() -> None:
    with neusight.forecast_on("H100"):
        x = leaf("cuda")
        (x * 2).backward(torch.ones(4, 4, device="cuda"))
        (x.sum() * 2).backward(torch.tensor(1.0))  # of no dimension: the engine moves it
        OnTheCpu.apply(leaf("cpu")).sum().backward()
        assert x.grad is not None and x.grad.is_cuda
