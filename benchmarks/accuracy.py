"""Scores on a sample of the measured tables of kernels, compared with the stored ones (ratchet.py).

    python benchmarks/accuracy.py             compares, exit code 1 where a group got worse
    python benchmarks/accuracy.py --table     all groups, with bias and intervals
    python benchmarks/accuracy.py --update    stores the scores

The sample is the shapes held out of training, at most 300 rows a group, of data/deepbench all
shapes; where labels hold the host's overhead, without the rows that estimate it and above twice the
floor.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import ratchet

from neusight.predictors.errors import UnsupportedKernelError
from neusight.predictors.tiled import Tiled
from neusight.predictors.training.dataset import Group, is_held_out
from neusight.predictors.training.evaluate import is_calibration, label_overhead, priced
from neusight.predictors.training.reading import read_dataset

DATA = Path(__file__).parents[2] / "shared" / "data"

#: The folders, and of those that the networks were fitted to the rows that were kept back alone.
FOLDERS = {"modern": True, "paper_fp32": True, "miopen_conv": True, "deepbench": False}

#: Rows of a group at most.
MOST_ROWS = 300


def rows(data: Path = DATA) -> Iterator[ratchet.Row]:
    """Each sampled row beside its price."""
    for folder, is_fitted in FOLDERS.items():
        if (data / folder).exists():
            for group in read_dataset(data / folder).groups:
                yield from _rows_of(group, folder, is_fitted=is_fitted)


def _rows_of(group: Group, folder: str, *, is_fitted: bool) -> Iterator[ratchet.Row]:
    overhead_us, floor_us = label_overhead(group) if group.has_overhead else (0.0, 0.0)
    kept = group.latency_us > 2.0 * floor_us
    if is_fitted:
        kept &= is_held_out(group.shape)
    if group.has_overhead:
        kept &= ~is_calibration(group)
    indices = np.flatnonzero(kept)
    if not len(indices):
        return
    mask = np.zeros(len(kept), dtype=np.bool_)
    mask[indices[:: max(1, len(indices) // MOST_ROWS)]] = True
    sample = group.chosen(mask)
    try:
        prices = priced(sample, Tiled(sustained=sample.sustained))
    except UnsupportedKernelError:
        return
    measured = sample.latency_us - overhead_us
    errors = prices.latency_us / measured - 1.0
    inside = (prices.low_us <= measured) & (measured <= prices.high_us)
    regime = "sustained" if sample.sustained else "burst"
    for launches, error, is_inside in zip(sample.launches, errors, inside, strict=True):
        layout = launches[-1].layout if group.table == "gemm" else ""
        yield ratchet.Row(
            f"{folder} {group.table} {group.phase_or_op}", group.gpu_label, group.dtype, layout,
            regime, float(error), bool(is_inside),
        )  # fmt: skip


if __name__ == "__main__":
    raise SystemExit(ratchet.run("kernel_tables", __doc__, DATA, rows))
