"""One small network, trained eager and compiled, for all tests of compiling."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from compiled_net import quiet, train

import neusight


@pytest.fixture(autouse=True)
def no_hints() -> Iterator[None]:
    with quiet():
        yield


@pytest.fixture(scope="session")
def compiled() -> neusight.Forecast:
    return train(lambda net: torch.compile(net))


@pytest.fixture(scope="session")
def eager() -> neusight.Forecast:
    return train(lambda net: net)
