"""One training in a forecast for all tests of advice."""

from __future__ import annotations

import pytest

import neusight
from small_net import train


@pytest.fixture(scope="session")
def plain() -> neusight.Forecast:
    return train()
