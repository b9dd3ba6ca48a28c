"""How near measured kernels of one GPU come to another's: python benchmarks/carrying.py DATA.

Every kernel shape of the FP32 tables that was measured on both GPUs of a pair is carried from the
first to the second, by wave scaling, by the ratio of prices and by both, and laid beside what was
measured there. Rows that the host holds up (below twice the shortest label) say nothing and are
left out. Printed by operation: median and 80 % quantile of |carried / measured - 1|, and how many
lie within the interval.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from itertools import permutations
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from neusight.predictors.gpu import GPU
from neusight.predictors.kernel import Kernel, KernelClass
from neusight.predictors.published.wave_scaling import LaunchSize, wave_scaled_us
from neusight.predictors.registry import find_predictor
from neusight.predictors.training.dataset import Group
from neusight.predictors.training.datasheet import KnownGPUs
from neusight.predictors.training.evaluate import ABOVE_FLOOR, label_overhead
from neusight.predictors.training.fp32_tables import FP32_TABLES
from neusight.predictors.training.table_files import found_table, grouped, read_table

#: Shapes of an operation and pair of GPUs that are carried; those of the lowest hash.
MOST_SHAPES = 300


class Row(NamedTuple):
    """A measured kernel: what it is, how it was launched, and its own duration, µs."""

    kernel: Kernel
    launch: LaunchSize
    time_us: float


def measured(folder: Path) -> dict[str, dict[GPU, dict[int, Row]]]:
    """The rows by operation, GPU and shape, without the host's share."""
    found: dict[str, dict[GPU, dict[int, Row]]] = {}
    for table in ("kernels", "conv_kernels"):
        path = found_table(folder, table)
        if path is None:
            continue
        frame, book = read_table(path, FP32_TABLES[table]), KnownGPUs(folder)
        keys = ("gpu", "op") if table == "kernels" else ("gpu",)
        for group, rows in _beside(frame, keys, book, table):
            if group.gpu.vendor == "nvidia":
                found.setdefault(group.phase_or_op, {})[group.gpu] = dict(_rows(group, rows))
    return found


def _beside(
    frame: Any, keys: Sequence[str], book: KnownGPUs, table: str
) -> Iterator[tuple[Group, Any]]:
    groups = FP32_TABLES[table].groups(frame, book, [])
    for group, (_, _, rows) in zip(groups, grouped(frame, keys, book, table, []), strict=True):
        if len(group.launches) == len(rows):
            yield group, rows


def _rows(group: Group, rows: Any) -> Iterator[tuple[int, Row]]:
    overhead_us, floor_us = label_overhead(group)
    columns = ("grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z")
    launches = (
        rows[list(columns)].fillna(1).astype(int).to_numpy()
        if columns[0] in rows.columns
        else np.ones((len(rows), 6), dtype=int)
    )
    for launched, label, shape, (*grid, x, y, z) in zip(
        group.launches, group.latency_us, group.shape.tolist(), launches.tolist(), strict=True
    ):
        if label > ABOVE_FLOOR * floor_us:
            launch = LaunchSize(int(np.prod(grid)), x * y * z)
            yield shape, Row(launched[0], launch, float(label - overhead_us))


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints a line for each operation and pair of GPUs."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("data", metavar="DATA", type=Path, help="the folder of the FP32 tables")
    parser.add_argument("--from", dest="source", default="V100", help="only from GPUs so named")
    options = parser.parse_args(arguments)
    predictor = find_predictor("tiled_burst")
    print(f"{'operation':<10} {'from':<16} {'to':<16} {'rows':>5}  waves      prices     both"
          "       (median, 80 %)")  # fmt: skip
    for op, by_gpu in measured(options.data).items():
        for source, target in permutations(by_gpu, 2):
            if options.source in source.name:
                line = _line(by_gpu[source], by_gpu[target], source, target, predictor)
                print(f"{op:<10} {source.name:<16} {target.name:<16} {line}", flush=True)
    return 0


def _line(
    there: dict[int, Row], here: dict[int, Row], source: GPU, target: GPU, predictor: Any
) -> str:
    shapes = sorted(there.keys() & here.keys())[:MOST_SHAPES]
    if not shapes:
        return "    0"
    kernels = [there[shape].kernel for shape in shapes]
    prices = zip(
        predictor.predict(kernels, source), predictor.predict(kernels, target), strict=True
    )
    ratios = np.array([after.latency_us / before.latency_us for before, after in prices])
    was = np.array([there[shape].time_us for shape in shapes])
    now = np.array([here[shape].time_us for shape in shapes])
    by_prices = was * ratios
    if kernels[0].kernel_class in (KernelClass.GEMM, KernelClass.CONVOLUTION):
        return f"{len(shapes):>5}  {'-':<10} {_errors(by_prices, now)}"
    by_waves = np.array([
        wave_scaled_us(there[shape].time_us, there[shape].launch, source=source, target=target,
                       intensity=kernel.flops / kernel.num_bytes)
        for shape, kernel in zip(shapes, kernels, strict=True)
    ])  # fmt: skip
    both = np.sqrt(by_prices * by_waves)
    return (
        f"{len(shapes):>5}  {_errors(by_waves, now)} {_errors(by_prices, now)} {_errors(both, now)}"
    )


def _errors(carried: Any, measured_us: Any) -> str:
    errors = np.abs(carried / measured_us - 1.0)
    return f"{np.median(errors):4.0%} {np.quantile(errors, 0.8):4.0%} "


if __name__ == "__main__":
    sys.exit(main())
