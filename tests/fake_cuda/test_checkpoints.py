"""Checkpoints go to where the script wants them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import neusight


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    path = tmp_path / "model.pt"
    torch.save({"weight": torch.zeros(3), "bias": torch.zeros(2)}, path)
    return path


@pytest.mark.parametrize(
    "place", [lambda storage, _: storage.cuda(), lambda storage, _: storage.to("cuda:0")]
)
def test_a_function_may_place_storages_on_the_gpu(
    place: Callable[[Any, str], Any], checkpoint: Path
) -> None:
    with neusight.forecast_on("H100") as forecast:
        state = torch.load(checkpoint, map_location=place)

    assert {tensor.device for tensor in state.values()} == {torch.device("cuda", 0)}
    assert [kernel.name for kernel, _ in forecast.kernels] == ["memcpy_h2d"] * 2


def test_a_function_may_leave_them_where_they_are(checkpoint: Path) -> None:
    with neusight.forecast_on("H100"):
        state = torch.load(checkpoint, map_location=lambda storage, _: storage)
        torch.zeros(3, device="cuda")

    assert {tensor.device.type for tensor in state.values()} == {"cpu"}


def test_a_storage_of_its_own_goes_to_the_gpu_too() -> None:
    with neusight.forecast_on("H100"):
        storage = torch.zeros(3).untyped_storage().cuda()
        assert storage.nbytes() == 12
        torch.zeros(3, device="cuda")
