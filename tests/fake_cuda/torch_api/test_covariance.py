"""Weights not known pass the checks of torch.cov, which are waits all the same."""

from __future__ import annotations

import pytest
import torch

import neusight
from neusight.fake_cuda.torch_api.covariance import _weighted
from neusight.recording.recording import Synchronize


def test_weights_that_nobody_knows_are_valid() -> None:
    with neusight.forecast_on("H100") as forecast:
        data = torch.randn(3, 5, device="cuda", requires_grad=True)
        counts = torch.randint(1, 5, (5,), device="cuda")
        shares = torch.rand(5, device="cuda", requires_grad=True)
        out = data.cov(fweights=counts, aweights=shares)
        out.sum().backward()
        alone = torch.cov(data[0], aweights=shares, correction=0)
        assert data.grad is not None and shares.grad is not None
        assert (out.shape, alone.shape, shares.grad.shape) == ((3, 3), (), (5,))

    entries = [entry for step in forecast.recording.steps for entry in step.entries]
    waits = [entry for entry in entries if isinstance(entry, Synchronize)]
    assert len(waits) == 4 + 3


def test_known_weights_are_checked() -> None:
    with neusight.forecast_on("H100"):
        data = torch.randn(3, 2, device="cuda")
        with pytest.raises(RuntimeError, match="fweights cannot be negative"):
            torch.cov(data, fweights=torch.tensor([1, -2], device="cuda"))


@pytest.mark.parametrize("correction", [0, 1, 2])
@pytest.mark.parametrize("shape", [(3, 5), (5,)])
@pytest.mark.parametrize("given", ["fweights", "aweights", "both"])
def test_it_computes_what_torch_does(given: str, shape: tuple[int, ...], correction: int) -> None:
    data = torch.arange(15.0)[: torch.Size(shape).numel()].view(shape).square() + 1j
    counts, shares = torch.tensor([1, 2, 3, 1, 4]), torch.tensor([0.5, 0.1, 2.0, 0.7, 0.2])
    fweights, aweights = (
        (counts if given != "aweights" else None),
        (shares if given != "fweights" else None),
    )
    weights = [weight for weight in (fweights, aweights) if weight is not None]

    found = _weighted(data, correction, weights, aweights)

    expected = torch.cov(data, correction=correction, fweights=fweights, aweights=aweights)
    assert torch.allclose(found, expected)
