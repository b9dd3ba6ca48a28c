"""A predictor of one's own, as a package brings it: every kernel takes as long as it well may."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from neusight.predictors import GPU, Estimate, Kernel, Tiled

__all__ = ["Cautious"]


class Cautious:
    """Prices each kernel at the upper end of its interval: a budget that mostly holds."""

    name = "cautious"

    def __init__(self) -> None:
        self._tiled = Tiled()

    def predict(self, kernels: Sequence[Kernel], gpu: GPU) -> list[Estimate]:
        """One estimate a kernel, in order."""
        return [
            replace(estimate, latency_us=estimate.high_us, predictor=self.name)
            for estimate in self._tiled.predict(kernels, gpu)
        ]
