"""What the last, partial wave of a launch costs."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["effective_waves"]

Floats = NDArray[np.float64]


def effective_waves(waves: Floats, tail_cost: float) -> Floats:
    """Waves as time feels them: at least one, the last partial one charged in part.

    With `tail_cost` 1 a tail wave costs a whole wave (the published NeuSight form), with 0 it
    costs its share; measured GEMMs lie between, as CTAs of a tail run faster alone. Never falls
    as `waves` grows.
    """
    tail = np.ceil(waves) - waves
    return np.maximum(1.0, waves + tail_cost * tail)
