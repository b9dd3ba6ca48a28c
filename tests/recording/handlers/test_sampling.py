"""Samples have the shape of their parameters, though torch has no fake kernels for them."""

from __future__ import annotations

import torch

import neusight
from neusight.recording.recording import OpCall
from recorded_programs import entries_of


def test_samples_are_like_their_first_argument_and_are_recorded() -> None:
    with neusight.forecast_on("H100") as forecast:
        counts = torch.full((3, 4), 10.0, device="cuda")
        shares = torch.full((3, 4), 0.5, device="cuda")
        binomial = torch.binomial(counts, shares)
        dirichlet = torch._sample_dirichlet(counts)

    ops = [entry.signature.op for entry in entries_of(forecast, OpCall)]
    assert (binomial.shape, dirichlet.shape) == ((3, 4), (3, 4))
    assert ops[-2:] == ["aten::binomial", "aten::_sample_dirichlet"]
