"""Multilayer perceptrons as papers train them, run in whole numbers: bit-equal on every machine.

Weights are kept as bytes, with one scale a row, and the values between layers are rounded to a
fixed grid. Every product and sum of a layer is then a whole number below 2^53, which float64 holds
exactly: a matrix library may add them in any order.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

#: Steps of the grid of values between layers, per unit: finer than float16 below 2.
GRID = 2.0**12

#: Largest value between layers, in units. With it a product is below 2^7 · 2^28 and the sum of
#: 2^17 of them below 2^53.
_MOST_VALUE = 2.0**16

#: Largest weight in steps of its row's scale: what fits a signed byte.
MOST_WEIGHT = 127

#: Rows run at once: their values stay in the processor's cache.
_CHUNK = 2048


@dataclass(frozen=True, eq=False)
class IntegerNetwork:
    """ReLU layers over standardized inputs: `weights` are int8 (outputs x inputs) with a `scale`
    and a `bias` for each output.

    `low` and `high` are the range of each input in training, to which inputs are clipped; `mean`
    and `spread` standardize them.
    """

    low: Floats
    high: Floats
    mean: Floats
    spread: Floats
    layers: tuple[tuple[NDArray[np.int8], Floats, Floats], ...]

    def run(self, inputs: Floats) -> Floats:
        """What the last layer gives, rows x outputs, for rows x inputs."""
        outputs = [
            self._forward(inputs[start : start + _CHUNK]) for start in range(0, len(inputs), _CHUNK)
        ]
        return np.concatenate(outputs) if outputs else np.zeros((0, len(self.layers[-1][2])))

    def _forward(self, inputs: Floats) -> Floats:
        clipped = np.minimum(np.maximum(inputs, self.low), self.high)
        values: Floats = (clipped - self.mean) / self.spread
        for index, (weights, scale, bias) in enumerate(self.layers):
            if index:
                values = np.maximum(values, 0.0)
            steps = np.rint(np.clip(values, -_MOST_VALUE, _MOST_VALUE) * GRID)
            values = (steps @ weights.T.astype(np.float64)) * (scale / GRID) + bias
        return values


def quantized(weight: Floats) -> tuple[NDArray[np.int8], Floats]:
    """A layer's weights as bytes and the scale of each row, by the largest weight of the row.

    >>> bytes_, scale = quantized(np.array([[0.5, -1.0]]))
    >>> bytes_.tolist(), float(scale[0]) == 1.0 / MOST_WEIGHT
    ([[64, -127]], True)
    """
    largest = np.abs(weight).max(axis=1)
    scale = np.where(largest > 0, largest, 1.0) / MOST_WEIGHT
    return np.rint(weight / scale[:, None]).astype(np.int8), scale
