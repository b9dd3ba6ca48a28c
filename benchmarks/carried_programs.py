"""What a program measured on one GPU says of another: python benchmarks/carried_programs.py.

Programs of programs.csv (measured whole, with the error of their forecast) that were measured the
same way on two GPUs: the forecast for the second is multiplied by a share of what was measured on
the first over its forecast there. Share 0 is a forecast without a profile, 1 the ratio of prices.
Printed by half of the names (the even ones chose the shares that `neusight carry` keeps) and by
whether the two have one compute capability: median and 80 % quantile of |carried / measured - 1|.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterator
from itertools import permutations
from pathlib import Path
from typing import NamedTuple

import numpy as np
from tables import read_table

from neusight.integrations.profiles.carrying.prices import KEPT_BY_OTHERS, KEPT_BY_RELATED
from neusight.predictors.gpu import find_gpu

PROGRAMS = Path(__file__).parent / "results" / "programs.csv"

#: Shares of the logarithm of measured / forecast that are shown.
SHARES = (0.0, 0.125, KEPT_BY_OTHERS, 0.5, 0.75, KEPT_BY_RELATED, 1.0)

#: A GPU's rows of operator chains are of other sources than its programs. Those of a host that is
#: not its usual one are left out too.
_CHAINS = "chains"


class Pair(NamedTuple):
    """A program on two GPUs: log(forecast / measured) on each."""

    half: str
    are_related: bool
    there: float
    here: float


def pairs(path: Path) -> Iterator[Pair]:
    """Every program that two GPUs ran, carried both ways."""
    found: dict[tuple[str, str], dict[str, tuple[str, float]]] = defaultdict(dict)
    for row in read_table(path):
        if row["error"] and row["level"] != _CHAINS and not row["host"]:
            figure = row["half"], float(np.log1p(float(row["error"])))
            found[row["level"], row["name"]][row["gpu"]] = figure
    for by_gpu in found.values():
        for source, target in permutations(by_gpu, 2):
            half, there = by_gpu[source]
            capabilities = {find_gpu(name).compute_capability for name in (source, target)}
            yield Pair(half, len(capabilities) == 1, there, by_gpu[target][1])


def main() -> int:
    """Prints a line for each half and kinship."""
    known = list(pairs(PROGRAMS))
    print(f"{'share kept':<38}" + "".join(f"{share:>14g}" for share in SHARES))
    for are_related in (True, False):
        for half in ("even", "odd"):
            chosen = [
                pair for pair in known if (pair.are_related, pair.half) == (are_related, half)
            ]
            there, here = (np.array([pair[side] for pair in chosen]) for side in (2, 3))
            cells = []
            for share in SHARES:
                errors = np.abs(np.expm1(here - share * there))
                cells.append(f"{np.median(errors):7.1%} {np.quantile(errors, 0.8):5.1%}")
            name = "one capability" if are_related else "others"
            print(f"{name:<16}{half:<6}{len(chosen):>6} pairs     " + " ".join(cells))
    return 0


if __name__ == "__main__":
    sys.exit(main())
