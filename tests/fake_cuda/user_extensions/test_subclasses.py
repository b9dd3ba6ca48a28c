"""Subclasses of torch.Tensor that are made of forecast tensors."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn

import neusight


class Named(torch.Tensor):
    """Adds a name."""

    name = "a"


class Packed(nn.Parameter):
    """A parameter that keeps something of its own."""

    bits: int

    def __new__(cls, data: Any, requires_grad: bool = True, bits: int = 4) -> Any:
        made = torch.Tensor._make_subclass(cls, data, requires_grad)
        made.bits = bits
        return made


def test_a_subclass_stays_one_through_ops() -> None:
    with neusight.forecast_on("H100") as forecast:
        x = torch.ones(4, 4, device="cuda", requires_grad=True)
        named = x.as_subclass(Named)
        out = named.sin() + 1
        assert isinstance(out, Named) and out.name == "a" and out.is_cuda
        out.sum().backward()
        assert x.grad is not None
        for _ in range(2):  # the second call comes from the cache
            assert (named * 2).shape == (4, 4)

    assert "sin" in [kernel.name for kernel, _ in forecast.kernels]


def test_a_subclass_of_parameters_keeps_its_attributes() -> None:
    with neusight.forecast_on("H100"):
        packed = Packed(torch.ones(4, 4, device="cuda"), bits=8)
        assert isinstance(packed, Packed) and isinstance(packed, nn.Parameter)
        assert (packed.bits, packed.requires_grad, packed.is_leaf) == (8, True, True)
        layer = nn.Linear(4, 4).cuda()
        layer.weight = packed
        layer(torch.ones(2, 4, device="cuda")).sum().backward()
        assert packed.grad is not None


def test_it_is_made_by_its_own_type_and_copied() -> None:
    """As peft and accelerate move the packed weights of bitsandbytes."""
    with neusight.forecast_on("H100"):
        packed = Packed(torch.ones(4, 4, device="cuda"))
        moved = type(packed)(packed.data, requires_grad=False, bits=8)
        assert isinstance(moved, Packed)
        assert (moved.bits, moved.requires_grad, moved.shape) == (8, False, (4, 4))
        again = copy.deepcopy(packed)
        assert isinstance(again, Packed) and again.requires_grad
