"""Copies take values along where they are known, or small enough to invent."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from recorded_programs import values_of


def test_large_copies_to_the_cpu_hold_no_data_until_they_are_computed_on() -> None:
    def program() -> tuple[Any, ...]:
        big = torch.randn(2048, 1024, device="cuda").cpu()
        return big.device.type, tuple(big.shape), bool(big.sum().isfinite())

    assert values_of(program) == ("cpu", (2048, 1024), True)


def test_small_parameters_keep_their_values_on_the_way_to_the_gpu() -> None:
    def program() -> tuple[float, float]:
        scale = nn.Parameter(torch.tensor(2.0))
        with torch.no_grad():
            scale.mul_(2)
        return scale.item(), scale.cuda().square().item()

    assert values_of(program) == (4.0, 16.0)
