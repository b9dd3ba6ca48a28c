"""torch.nested makes tensors on the forecast's GPU, and is as before afterwards."""

from __future__ import annotations

import pytest
import torch

import neusight

#: torch says once that the layout is a prototype.
pytestmark = pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")


def test_torch_nested_is_as_before_afterwards() -> None:
    before = (torch.nested.nested_tensor, torch.nested.as_nested_tensor)

    with neusight.forecast_on("H100"):
        torch.nested.nested_tensor([torch.ones(2, 3)], device="cuda")

    assert (torch.nested.nested_tensor, torch.nested.as_nested_tensor) == before


def test_nested_tensors_of_the_cpu_stay_torchs_own() -> None:
    with neusight.forecast_on("H100"):
        torch.ones(1, device="cuda")
        here = torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(4, 3)])

    assert type(here) is torch.Tensor
    assert here.is_nested


def test_they_go_where_their_parts_are() -> None:
    with neusight.forecast_on("H100"):
        parts = [torch.ones(2, 3, device="cuda"), torch.ones(4, 3, device="cuda")]
        assert torch.nested.nested_tensor(parts).is_cuda
        assert torch.nested.as_nested_tensor(parts, layout=torch.jagged).layout is torch.jagged


def test_they_come_back_to_the_cpu() -> None:
    with neusight.forecast_on("H100"):
        back = torch.nested.nested_tensor([torch.ones(2, 3)], device="cuda").cpu()

    assert [tuple(part.shape) for part in back.unbind()] == [(2, 3)]
