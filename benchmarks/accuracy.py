"""The accuracy ratchet: scores on a sample of the measured tables, compared with the stored ones.

    python benchmarks/accuracy.py             compares, exit code 1 where one got worse
    python benchmarks/accuracy.py --update    stores better scores; worse ones only with --worse

The sample is the shapes held out of training, at most 300 rows a group; where labels hold the
host's overhead, without the rows that estimate it and above twice the floor.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np

from neusight.predictors.tiled import Tiled
from neusight.predictors.training.dataset import Group, is_held_out
from neusight.predictors.training.evaluate import Prices, is_calibration, label_overhead, priced
from neusight.predictors.training.reading import read_dataset

STORED = Path(__file__).with_name("accuracy_scores.json")
DATA = Path(__file__).parents[2] / "shared" / "data"

#: Rows of a group, and what a mean error may grow by before it counts as worse (another version of
#: a library moves a rounding, not a third of a percent).
MOST_ROWS = 300
TOLERANCE = 0.003


def scores(data: Path = DATA) -> dict[str, float]:
    """Mean absolute error of each group's sample, a share."""
    found: dict[str, float] = {}
    for folder in ("modern", "paper_fp32"):
        for group in read_dataset(data / folder).groups:
            name = f"{group.gpu_label} {group.table} {group.dtype} {group.phase_or_op}"
            found[name] = round(_error(group), 4)
    return {name: error for name, error in sorted(found.items()) if np.isfinite(error)}


def _error(group: Group) -> float:
    overhead_us, floor_us = label_overhead(group) if group.has_overhead else (0.0, 0.0)
    kept = is_held_out(group.shape) & (group.latency_us > 2.0 * floor_us)
    if group.has_overhead:
        kept &= ~is_calibration(group)
    indices = np.flatnonzero(kept)
    if not len(indices):
        return float("nan")
    mask = np.zeros(len(kept), dtype=np.bool_)
    mask[indices[:: max(1, len(indices) // MOST_ROWS)]] = True
    sample = group.chosen(mask)
    prices: Prices = priced(sample, Tiled(sustained=sample.sustained))
    measured = sample.latency_us - overhead_us
    return float(np.abs(prices.latency_us / measured - 1.0).mean())


def worse(now: dict[str, float], stored: dict[str, float]) -> list[str]:
    """What got worse, or is no longer scored, in words."""
    lines = [f"{name}: no longer scored" for name in stored if name not in now]
    lines += [
        f"{name}: {stored[name]:.1%} -> {error:.1%}"
        for name, error in now.items()
        if name in stored and error > stored[name] + TOLERANCE
    ]
    return lines


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--update", action="store_true", help="store the scores")
    parser.add_argument("--worse", action="store_true", help="store worse ones too")
    options = parser.parse_args()
    if not DATA.exists():
        print(f"skipped: there are no measured tables at {DATA}")
        return 0
    now = scores()
    stored = json.loads(STORED.read_text()) if STORED.exists() else {}
    lines = worse(now, stored)
    for name, error in now.items():
        print(f"{name:<60} {error:7.1%}  {stored.get(name, float('nan')):7.1%}")
    print("\n".join(["worse:", *lines]) if lines else "nothing got worse")
    if options.update and (not lines or options.worse):
        STORED.write_text(json.dumps(now, indent=1, sort_keys=True) + "\n")
        return 0
    return 1 if lines else 0


if __name__ == "__main__":
    raise SystemExit(main())
