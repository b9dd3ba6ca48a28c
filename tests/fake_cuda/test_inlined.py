"""Answers that compiled programs ask for are compiled with them."""

from __future__ import annotations

import pytest
import torch

import neusight
from neusight.fake_cuda.inlined import is_tracers_tensor


def test_tensors_of_a_forecast_are_no_tracers() -> None:
    fake = torch._subclasses.FakeTensorMode().from_tensor(torch.ones(2))

    with neusight.forecast_on("H100"):
        assert not is_tracers_tensor(torch.ones(2, device="cuda"))

    assert is_tracers_tensor(fake)
    assert not is_tracers_tensor(3)


def test_transformers_question_breaks_no_graph() -> None:
    utils = pytest.importorskip("transformers.utils.import_utils")

    def doubled(x: torch.Tensor) -> torch.Tensor:
        return x * 3 if utils.is_fake_tensor(x) else x * 2

    with neusight.forecast_on("H100"):
        compiled = torch.compile(doubled, fullgraph=True, backend="eager")
        assert compiled(torch.ones(2, device="cuda")).shape == (2,)


def test_tensors_made_of_values_are_part_of_a_graph() -> None:
    """`torch.tensor` is ours in a forecast; it breaks no graph."""

    def bounded(x: torch.Tensor) -> torch.Tensor:
        return torch.min(x, torch.tensor(2.0)) + torch.tensor([1.0, 2.0], device=x.device)

    with neusight.forecast_on("H100"):
        compiled = torch.compile(bounded, fullgraph=True, backend="eager")
        assert compiled(torch.ones(64, 2, device="cuda")).shape == (64, 2)


def test_an_encoder_layer_is_one_graph() -> None:
    """`has_torch_function`, which it asks in eval, is ours in a forecast."""
    with neusight.forecast_on("H100"):
        layer = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, device="cuda").eval()
        compiled = torch.compile(layer, fullgraph=True, backend="eager")
        with torch.no_grad():
            assert compiled(torch.ones(2, 4, 8, device="cuda")).shape == (2, 4, 8)
