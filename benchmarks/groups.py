"""Errors by group, none of which a better total may hide: convolutions, and programs.

    python benchmarks/groups.py             a table, and what got worse; exit code 1 where one did
    python benchmarks/groups.py --update    stores better scores; worse ones only with --worse

A group is a source, a GPU, a layout, a dtype and a pass or mode, of at least `LEAST_ROWS` rows.
Convolutions are priced anew: of data/miopen_conv the layers that were kept out of the fit, of
data/deepbench all (its networks are fitted to them; five-fold figures stand in the networks). Of
programs the errors are read that benchmarks/programs.py and suites.py stored. Steps of
torchvision's networks have a ratchet of the same kind: benchmarks/vision_networks.py.
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import NamedTuple

import numpy as np

from neusight.predictors.tiled import Tiled
from neusight.predictors.training.dataset import Group, is_held_out
from neusight.predictors.training.evaluate import priced
from neusight.predictors.training.reading import read_dataset

HERE = Path(__file__).parent
DATA = HERE.parents[1] / "shared" / "data"
STORED = HERE / "group_scores.json"

#: Groups of fewer rows are not held, and by how much a group may get worse, as a share of its
#: error.
LEAST_ROWS = 8
TOLERANCE = 0.1

#: Rows of a group that are priced at most.
MOST_ROWS = 300


class Score(NamedTuple):
    """A group's median error, by its size and with its sign, as shares."""

    num_rows: int
    error: float
    bias: float


def convolutions(data: Path = DATA) -> Iterator[tuple[str, list[float]]]:
    """The signed errors of single convolutions."""
    for source, is_kept_out in (("deepbench", False), ("miopen_conv", True)):
        if not (data / source).is_dir():
            continue
        for group in read_dataset(data / source, tables=["conv"]).groups:
            name = f"{source}: {group.gpu_label}, {group.dtype}, {group.phase_or_op}"
            yield name, _errors(group, is_kept_out=is_kept_out)


def _errors(group: Group, *, is_kept_out: bool) -> list[float]:
    indices = np.flatnonzero(is_held_out(group.shape) if is_kept_out else group.latency_us > 0.0)
    mask = np.zeros(len(group.latency_us), dtype=np.bool_)
    mask[indices[:: max(1, len(indices) // MOST_ROWS)]] = True
    if not mask.any():
        return []
    sample = group.chosen(mask)
    prices = priced(sample, Tiled(sustained=sample.sustained))
    errors: list[float] = (prices.latency_us / sample.latency_us - 1.0).tolist()
    return errors


def programs(folder: Path = HERE) -> Iterator[tuple[str, float]]:
    """The stored signed errors of whole programs, each with its group."""
    for row in _rows(folder.parent / "programs.csv"):
        if row["error"]:
            yield f"programs: {row['gpu']}, eager, {row['dominant']}", float(row["error"])
    for row in _rows(folder.parent / "compiled_programs.csv"):
        if row["compiled_error"]:
            yield (
                f"programs: {row['gpu']}, compiled, {row['dominant']}",
                float(row["compiled_error"]),
            )
    for row in _rows(folder / "suite_published.csv"):
        if row["predictor"] == "tiled" and row["error"]:
            layout = "NHWC" if "nhwc" in row["case"] else "NCHW" if "nchw" in row["case"] else ""
            how = " ".join(filter(None, (row["mode"], row["precision"], row["compiled"], layout)))
            yield f"published: {row['source']}, {row['gpu']}, {how}", float(row["error"])


def _rows(path: Path) -> Iterator[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        yield from csv.DictReader(file)


def scores(data: Path = DATA) -> dict[str, Score]:
    """Every group of enough rows."""
    groups: dict[str, list[float]] = dict(convolutions(data))
    for name, error in programs():
        groups.setdefault(name, []).append(error)
    return {
        name: Score(len(errors), round(median(map(abs, errors)), 4), round(median(errors), 4))
        for name, errors in sorted(groups.items())
        if len(errors) >= LEAST_ROWS
    }


def worse(now: dict[str, Score], stored: dict[str, float]) -> list[str]:
    """The groups whose error grew by more than `TOLERANCE` of it, and those that are gone."""
    lines = [f"{name}: no longer scored" for name in stored if name not in now]
    return lines + [
        f"{name}: {stored[name]:.1%} -> {score.error:.1%}"
        for name, score in now.items()
        if name in stored and score.error > stored[name] * (1.0 + TOLERANCE)
    ]


def table(found: dict[str, Score]) -> str:
    """A line a group."""
    lines = [f"{'group':<72} {'rows':>5} {'median':>7} {'bias':>7}"]
    for name, score in found.items():
        lines.append(f"{name:<72} {score.num_rows:>5} {score.error:>7.1%} {score.bias:>+7.1%}")
    return "\n".join(lines)


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--update", action="store_true", help="store better scores")
    parser.add_argument("--worse", action="store_true", help="store worse ones too")
    options = parser.parse_args()
    if not DATA.is_dir():
        print(f"skipped: there are no measurements at {DATA}")
        return 0
    found = scores()
    stored = json.loads(STORED.read_text()) if STORED.exists() else {}
    print(table(found))
    lines = worse(found, stored)
    print("\n".join(["worse:", *lines]) if lines else "none is worse than stored")
    if options.update and (options.worse or not lines):
        kept = {name: score.error for name, score in found.items()}
        STORED.write_text(json.dumps(kept, indent=1, sort_keys=True) + "\n")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
