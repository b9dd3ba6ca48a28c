"""How near measured kernels of one GPU come to another's: python benchmarks/carrying.py DATA.

Every kernel shape of the FP32 tables that was measured on both GPUs of a pair is carried from the
first to the second and laid beside what was measured there: by wave scaling alone (Habitat's, which
is fitted to nothing), by the ratio of prices, and by both. Our prices were fitted on rows of these
very GPUs, so the ratio is also taken of the roofline, which saw nothing, and of predictors that saw
neither of the two: our physics without networks, with the constants that are expected of GPUs not
measured; `linear`, fitted without them here; and NeuSight where `--neusight DIR` gives
weights trained without them
(`neusight fit --predictor neusight --without SOURCE --without TARGET DATA --out DIR`).
*Forecast* is our price without the profile: what carrying gains over it is the profile's worth.

*Carried* keeps a share of the deviation from our price, as `neusight carry` does (benchmarks/
carried_programs.py says why).

Rows that the host holds up (below twice the shortest label) say nothing and are left out. Printed
by operation and pair: median and 80 % quantile of |carried / measured - 1|; then the same over all
pairs of an operation. `--csv FILE` keeps them (benchmarks/results/carrying.csv, from V100; of
NeuSight to A100 alone). Wave scaling takes the bandwidth that each GPU reaches: one constant a GPU,
which was read from streaming kernels of the same tables.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from itertools import permutations
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from tables import write_table

from neusight.integrations.profiles.carrying.prices import KEPT_BY_OTHERS, KEPT_BY_RELATED
from neusight.predictors.gpu import GPU
from neusight.predictors.kernel import Kernel, KernelClass
from neusight.predictors.predictor import Predictor
from neusight.predictors.published.linear import Linear
from neusight.predictors.published.neusight import NeuSight
from neusight.predictors.published.trained_class import load_classes
from neusight.predictors.published.wave_scaling import LaunchSize, wave_scaled_us
from neusight.predictors.registry import find_predictor
from neusight.predictors.tiled import Tiled
from neusight.predictors.training.dataset import Group
from neusight.predictors.training.datasheet import KnownGPUs, prior_constants
from neusight.predictors.training.evaluate import ABOVE_FLOOR, label_overhead
from neusight.predictors.training.published.linear_fit import linear_classes
from neusight.predictors.training.reading import read_dataset
from neusight.predictors.training.tables.files import found_table, grouped, read_table
from neusight.predictors.training.tables.fp32 import FP32_TABLES

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


#: The ways, in the order of their columns: wave scaling; the ratio of our prices, with the share of
#: a deviation that is kept, our price alone; ratios of others' prices; ours that saw neither GPU.
WAYS = (
    "waves",
    "ratio",
    "carried",
    "forecast",
    "roofline",
    "linear unseen",
    "neusight unseen",
    "ratio unseen",
    "carried unseen",
    "forecast unseen",
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints a line for each operation and pair of GPUs, and one for each operation."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("data", metavar="DATA", type=Path, help="the folder of the FP32 tables")
    parser.add_argument("--from", dest="source", default="V100", help="only from GPUs so named")
    parser.add_argument("--to", dest="target", default="", help="only to GPUs so named")
    parser.add_argument("--neusight", type=Path, metavar="DIR", help="weights that saw neither")
    parser.add_argument("--csv", type=Path, metavar="FILE", help="write the figures there too")
    options = parser.parse_args(arguments)
    unseen = None if options.neusight is None else NeuSight(load_classes(options.neusight))
    groups = read_dataset(options.data, tables=("kernels", "conv_kernels")).groups
    print(f"{'operation':<10} {'from':<16} {'to':<16} {'rows':>5}  "
          + "  ".join(f"{way:<15}" for way in WAYS) + "  (median, 80 %)")  # fmt: skip
    lines: list[tuple[str, ...]] = []
    for op, by_gpu in measured(options.data).items():
        pooled: dict[str, list[Any]] = {}
        for source, target in permutations(by_gpu, 2):
            if options.source in source.name and options.target in target.name:
                predictors = {
                    "roofline": find_predictor("roofline"),
                    "linear unseen": _linear_without(groups, (source, target)),
                }
                if unseen is not None:
                    _require_unseen(unseen, (source, target))
                    predictors["neusight unseen"] = unseen
                errors = _errors(by_gpu[source], by_gpu[target], source, target, predictors)
                errors |= _own_errors(by_gpu[source], by_gpu[target], source, target)
                for way, values in errors.items():
                    pooled.setdefault(way, []).append(values)
                lines.append(_shown(op, source.name, target.name, errors))
        joined = {way: np.concatenate(values) for way, values in pooled.items()}
        if joined:
            lines.append(_shown(op, "all", "", joined))
    if options.csv is not None:
        columns = [f"{way} {part}" for way in WAYS for part in ("median", "q80")]
        write_table(options.csv, ("operation", "from", "to", "rows", *columns), lines)
    return 0


def _linear_without(groups: Sequence[Group], pair: tuple[GPU, GPU]) -> Predictor:
    """The published linear model, fitted on the rows of all GPUs but two."""
    return Linear(linear_classes([group for group in groups if group.gpu not in pair]))


def _require_unseen(predictor: NeuSight, pair: tuple[GPU, GPU]) -> None:
    seen = {gpu.name for gpu in pair} & predictor.trained_gpus
    if seen:
        raise SystemExit(f"These weights were trained on {', '.join(sorted(seen))}: no check.")


def _errors(
    there: dict[int, Row],
    here: dict[int, Row],
    source: GPU,
    target: GPU,
    predictors: dict[str, Predictor],
) -> dict[str, Any]:
    """|carried / measured - 1| of the shapes that were measured on both GPUs, by way."""
    rows, was, now = _on_both(there, here)
    if not rows:
        return {}
    kernels = [row.kernel for row in rows]
    carried = {}
    for way, predictor in predictors.items():
        carried[way] = was * _times(predictor, kernels, target) / _times(predictor, kernels, source)
    if kernels[0].kernel_class not in (KernelClass.GEMM, KernelClass.CONVOLUTION):
        carried["waves"] = np.array([
            wave_scaled_us(row.time_us, row.launch, source=source, target=target,
                           intensity=row.kernel.flops / row.kernel.num_bytes)
            for row in rows
        ])  # fmt: skip
    return {way: np.abs(times / now - 1.0) for way, times in carried.items()}


def _on_both(there: dict[int, Row], here: dict[int, Row]) -> tuple[list[Row], Any, Any]:
    """The rows of shapes that were measured on both, and their times, µs, there and here."""
    shapes = sorted(there.keys() & here.keys())[:MOST_SHAPES]
    rows = [there[shape] for shape in shapes]
    was, now = (np.array([side[shape].time_us for shape in shapes]) for side in (there, here))
    return rows, was, now


def _times(predictor: Predictor, kernels: Sequence[Kernel], gpu: GPU) -> Any:
    return np.array([estimate.latency_us for estimate in predictor.predict(kernels, gpu)])


def _own_errors(
    there: dict[int, Row], here: dict[int, Row], source: GPU, target: GPU
) -> dict[str, Any]:
    """The errors of our own prices: as shipped, and of our physics on GPUs as if neither had been
    measured; by their ratio, with the share of the deviation that is kept, and without any.
    """
    rows, was, now = _on_both(there, here)
    if not rows:
        return {}
    kernels, pair = [row.kernel for row in rows], (source, target)
    bare = tuple(prior_constants(gpu, without=lambda item: item in pair) for gpu in pair)
    alike = source.compute_capability == target.compute_capability
    found = {}
    for suffix, predictor, (before, after) in (
        ("", find_predictor("tiled_burst"), pair),
        (" unseen", Tiled(sustained=False, correction=None), bare),
    ):
        deviation = was / _times(predictor, kernels, before)
        forecast = _times(predictor, kernels, after)
        kept = KEPT_BY_RELATED if alike else KEPT_BY_OTHERS
        for way, share in (("ratio", 1.0), ("carried", kept), ("forecast", 0.0)):
            found[way + suffix] = np.abs(forecast * deviation**share / now - 1.0)
    return found


def _shown(op: str, source: str, target: str, errors: dict[str, Any]) -> tuple[str, ...]:
    """Prints a line and gives its cells."""
    count = len(errors["ratio"]) if errors else 0
    quantiles = {way: (np.median(errors[way]), np.quantile(errors[way], 0.8)) for way in errors}
    cells = [
        f"{quantiles[way][0]:4.0%} {quantiles[way][1]:5.0%}" if way in quantiles else "-"
        for way in WAYS
    ]
    print(f"{op:<10} {source:<16} {target:<16} {count:>5}  "
          + "  ".join(f"{cell:<15}" for cell in cells), flush=True)  # fmt: skip
    figures = [
        f"{quantiles[way][part]:.4f}" if way in quantiles else "" for way in WAYS for part in (0, 1)
    ]
    return (op, source, target, str(count), *figures)


if __name__ == "__main__":
    sys.exit(main())
