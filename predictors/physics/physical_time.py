"""The result of the physics of a kernel class: a time, its bound, and the launch."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

Bound = Literal["compute", "memory", "launch", "communication"]

#: Shortest duration given, µs: a nanosecond, so that no kernel is free.
SHORTEST_US = 1e-3


@dataclass(frozen=True, slots=True)
class PhysicalTime:
    """How long a kernel takes by the physics alone: before any correction, without an interval.

    `time_us` is not rounded; `spread` is the half width of the 80 % interval as a share of it,
    on a GPU whose constants were measured. `at_most_us` is what another algorithm of the library
    takes, which it chooses where that is less (infinite: there is none); no correction is of it.
    """

    time_us: float
    bound: Bound
    spread: float
    tile: tuple[int, int] | None = None
    split_k: int = 1
    num_ctas: int = 1
    threads_per_cta: int = 256
    num_waves: float = 1.0
    at_most_us: float = math.inf


def whole_nanoseconds(time_us: float) -> float:
    """The duration rounded to whole nanoseconds, at least one; µs."""
    return max(SHORTEST_US, round(time_us * 1000.0) / 1000.0)


def smooth_maximum(*terms: float) -> float:
    """The 4-norm of the terms: at least the largest, more where others are near it."""
    largest = max(terms)
    if largest <= 0.0:
        return 0.0
    total = 0.0
    for term in terms:
        square = (term / largest) * (term / largest)
        total += square * square
    return largest * math.sqrt(math.sqrt(total))
