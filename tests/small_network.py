"""A network of a few weights, for tests of what is done with one."""

from __future__ import annotations

import numpy as np

from neusight.predictors.learned.network import Network

_numbers = np.random.default_rng(0)
SMALL_NETWORK = Network(
    features=("a", "b", "c"),
    low=np.full(3, -1.0),
    high=np.full(3, 1.0),
    mean=np.zeros(3),
    scale=np.ones(3),
    layers=(
        (_numbers.normal(size=(4, 3)), _numbers.normal(size=4)),
        (_numbers.normal(size=(1, 4)), _numbers.normal(size=1)),
    ),
    bound=0.5,
    spreads=np.full((1, 4), 0.1),
    gpus=("G",),
    architectures=("Gamma",),
    provenance={"seed": 0, "data": {"gemm": "ab"}},
)
