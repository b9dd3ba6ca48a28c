"""A forecast that pages are made of."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import neusight
from neusight.forecast import Forecast


@pytest.fixture(scope="package")
def forecast() -> Forecast:
    """Three training steps of two layers."""
    with neusight.forecast_on("H100") as forecast:
        model = nn.Sequential(nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 512)).cuda()
        for _ in range(3):
            model(torch.randn(64, 512, device="cuda")).sum().backward()
            forecast.step()
    return forecast
