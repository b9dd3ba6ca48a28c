"""Fits the linear model (predictors/published/linear.py) on the FP32 tables."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from neusight.predictors.gpu import GPU
from neusight.predictors.published.linear import (
    FlopLine,
    LinearClass,
    fitted_line,
    linear_class_of,
    save_linear,
)
from neusight.predictors.training.dataset import Group, is_held_out
from neusight.predictors.training.evaluate import LEAST_LABEL_US, label_overhead
from neusight.predictors.training.published.cut_rows import left_out_gpus
from neusight.predictors.training.reading import read_dataset
from neusight.predictors.training.tables.files import data_hash

Floats = NDArray[np.float64]

_TABLES = ("kernels", "conv_kernels")


def fit_linear(
    folder: str | Path, out: str | Path, *, without: Sequence[str] = ()
) -> dict[tuple[str, str], LinearClass]:
    """Fits every class on the folder's FP32 tables, without every tenth shape, and writes
    `linear.json` to `out`. GPUs named in `without` stay out. DataError where the folder has no such
    table or GPU."""
    groups = read_dataset(folder, tables=_TABLES).groups
    left_out = left_out_gpus(without, {group.gpu.name for group in groups})
    classes = linear_classes([group for group in groups if group.gpu.name not in left_out])
    place = Path(out)
    place.mkdir(parents=True, exist_ok=True)
    provenance = {"data": data_hash(folder, _TABLES), "paper": "doi 10.1145/3613424.3614277"}
    save_linear(classes, place / "linear.json", provenance=provenance)
    return classes


def linear_classes(groups: Sequence[Group]) -> dict[tuple[str, str], LinearClass]:
    """A line for each class and GPU, and one over bandwidth for each class and vendor."""
    rows: dict[tuple[str, str], dict[GPU, list[tuple[Floats, Floats]]]] = {}
    for group in groups:
        name = linear_class_of(group.launches[0][0])
        if name is None:
            continue
        overhead_us, _ = label_overhead(group)
        kept = group.chosen(~is_held_out(group.shape))
        flops = np.array([launches[0].flops for launches in kept.launches], dtype=np.float64)
        times = np.maximum(kept.latency_us - overhead_us, LEAST_LABEL_US)
        by_gpu = rows.setdefault((group.gpu.vendor, name), {})
        by_gpu.setdefault(group.gpu, []).append((flops, times))
    return {key: _class_of(by_gpu) for key, by_gpu in rows.items()}


def _class_of(by_gpu: dict[GPU, list[tuple[Floats, Floats]]]) -> LinearClass:
    lines: dict[str, FlopLine] = {}
    bandwidths: list[float] = []
    for gpu, pieces in by_gpu.items():
        flops, times = (np.concatenate(column) for column in zip(*pieces, strict=True))
        lines[gpu.name] = fitted_line(flops, times)
        bandwidths.append(gpu.bandwidth_gbps)
    slope, base = np.polyfit(bandwidths, [line.flops_per_us for line in lines.values()], 1)
    return LinearClass(lines, float(base), float(slope))
