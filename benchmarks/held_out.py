"""Writes accuracy.csv: what was held out of training, and how near each predictor came on it.

    python benchmarks/held_out.py --data DIR… --out accuracy.csv --date 2026-01-31

Beside it, accuracy.json says when, by which commit and from which data.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

import numpy as np
from numpy.typing import NDArray
from tables import table_text

from neusight.predictors.files import write_atomically
from neusight.predictors.gpu import GPU
from neusight.predictors.learned.correction import (
    FAMILIES,
    UNSEEN,
    NetworkFolder,
    Trained,
    architecture_of,
    family_of,
)
from neusight.predictors.learned.network import Network
from neusight.predictors.roofline import Roofline
from neusight.predictors.tiled import Tiled
from neusight.predictors.training.dataset import Group, is_held_out
from neusight.predictors.training.datasheet import prior_constants
from neusight.predictors.training.evaluate import (
    ABOVE_FLOOR,
    SIZE_NAMES,
    Prices,
    Score,
    is_calibration,
    label_overhead,
    priced,
    scores_of,
)
from neusight.predictors.training.fit import (
    RECIPES,
    Rows,
    collect,
    commit,
    folds_of,
    networks_of_folds,
    train,
)
from neusight.predictors.training.reading import TABLES, read_dataset
from neusight.predictors.training.tables.files import data_hash, found_table, rows_of_file

ROOT = Path(__file__).parents[1]

#: Families whose tables are too large to train on again for each GPU that is left out.
_NOT_TRAINED_AGAIN = ("convolution_miopen",)

#: Rows of a group that a leave-out score is taken on, evenly spread.
_MOST_ROWS = 4000


@dataclass(frozen=True)
class Line:
    """The scores of one group under one way of holding out."""

    split: str
    roofline: float
    scaled_roofline: float
    physics: float
    scores: dict[str, Score]


def measure(
    folders: Sequence[Path],
    weights: Path,
    *,
    families: Sequence[str] = tuple(name for name in FAMILIES if name not in _NOT_TRAINED_AGAIN),
    leave_out: bool = True,
    progress: Callable[[str], None] = lambda text: None,
) -> list[Line]:
    """Every split: the shapes held out of training, then each GPU, then each architecture; and what
    no network covers. A table that two folders have is the first one's; what a network prices in a
    table that it was not fitted to is left out.

    Of families with few shapes every shape is held out in turn, by a network for each fold.
    Leaving GPUs out trains networks again, which takes most of the time; `leave_out=False` skips
    it. Labels with host overhead are scored as `evaluate` does: without the rows that estimate it,
    without it, and above twice the shortest label.
    """
    measured: list[Group] = []
    present: set[str] = set()
    for folder in folders:
        found = [group for group in read_dataset(folder).groups if group.table not in present]
        measured += found
        present |= {group.table for group in found}
    families = [name for name in families if present.issuperset(RECIPES[name].tables)]
    shipped = NetworkFolder(weights)
    rows = {family: collect(measured, family) for family in families}
    every = [
        _as_kernels(group)
        for group in measured
        if group.is_for_training and group.gpu.vendor in ("nvidia", "amd") and group.launches
    ]
    groups = [group for group in every if _is_covered(group, rows)]
    lines = []
    folds = {
        family: [
            replace(network, spreads=shipped[family].spreads)
            for network in networks_of_folds(parts, family)
        ]
        for family, parts in rows.items()
        if RECIPES[family].num_folds
    }
    for group in groups:
        progress(f"held-out shapes: {group.gpu_label} {group.dtype} {group.phase_or_op}")
        lines += _held_out(group, shipped, folds)
    for split, name, inside in _left_out_gpus(groups) if leave_out else ():
        progress(f"leave one {split} out: {name}")
        correction = _without(rows, shipped, inside)
        for group in groups:
            if inside(group.gpu):
                lines += _left_out(split, group, correction, inside)
    for group in every:
        if not _is_covered(group, rows) and family_of(group.launches[0][-1], group.gpu) is None:
            progress(f"physics alone: {group.gpu_label} {group.dtype} {group.phase_or_op}")
            sample = _sampled(group)
            lines.append(_line("physics alone", group, sample, _prices(sample, Trained({}))))
    return lines


def _held_out(
    group: Group, shipped: Mapping[str, Network], folds: Mapping[str, Sequence[Network]]
) -> Iterator[Line]:
    """The score on the shapes that no network saw."""
    families = {family_of(launch[-1], group.gpu) for launch in group.launches}
    family = next((name for name in folds if name in families), None)
    if family is None:
        parts = [(is_held_out(group.shape), Trained(shipped))]
    else:
        within = folds_of(group.shape, len(folds[family]))
        parts = [
            (within == fold, Trained({**shipped, family: network}))
            for fold, network in enumerate(folds[family])
        ]
    seen = np.zeros(len(group.shape), dtype=np.bool_)
    columns = np.zeros((len(Prices._fields), len(seen)))
    for mask, correction in parts:
        if mask.any():
            columns[:, mask] = _prices(group.chosen(mask), correction)
            seen |= mask
    if seen.any():
        yield _line("held-out shapes", group, group.chosen(seen), Prices(*columns[:, seen]))


def _left_out_gpus(groups: Sequence[Group]) -> Iterator[tuple[str, str, Callable[[GPU], bool]]]:
    """What is left out of training in turn: each GPU, then each architecture."""
    for name in sorted({group.gpu.name for group in groups}):
        yield "GPU", name, lambda gpu, name=name: gpu.name == name
    for name in sorted({architecture_of(group.gpu) for group in groups}):
        yield "architecture", name, lambda gpu, name=name: architecture_of(gpu) == name


def _as_kernels(group: Group) -> Group:
    """The group with the time of its kernels for labels: without the host's share of them."""
    if not group.has_overhead:
        return group
    overhead_us, floor_us = label_overhead(group)
    kept = ~is_calibration(group) & (group.latency_us > ABOVE_FLOOR * floor_us)
    chosen = group.chosen(kept)
    return replace(chosen, latency_us=chosen.latency_us - overhead_us, has_overhead=False)


def _is_covered(group: Group, rows: dict[str, list[Rows]]) -> bool:
    return any(
        part.group.gpu_label == group.gpu_label
        and (part.group.table, part.group.dtype, part.group.phase_or_op)
        == (group.table, group.dtype, group.phase_or_op)
        for parts in rows.values()
        for part in parts
    )


def _without(
    rows: dict[str, list[Rows]], shipped: Mapping[str, Network], left_out: Callable[[GPU], bool]
) -> Trained:
    """Networks for unseen GPUs, trained without those."""
    networks = {}
    for family, parts in rows.items():
        inside = [part for part in parts if not left_out(part.group.gpu)]
        # A family without rows of those prices none of theirs.
        if inside and len(inside) < len(parts) and RECIPES[family].carries_over:
            made = train(inside, family, unseen=True)
            spreads = shipped[family + UNSEEN].spreads
            networks[family + UNSEEN] = replace(made, gpus=(), spreads=spreads)
    return Trained(networks)


def _left_out(
    what: str, group: Group, correction: Trained, left_out: Callable[[GPU], bool]
) -> list[Line]:
    sample = _sampled(group)
    prior = replace(sample, gpu=prior_constants(sample.gpu, without=left_out))
    return [
        _line(f"{what} left out, own constants", group, sample, _prices(sample, correction)),
        _line(f"{what} left out, prior constants", group, prior, _prices(prior, correction)),
    ]


def _sampled(group: Group) -> Group:
    """At most about `_MOST_ROWS` rows, evenly spread."""
    mask = np.zeros(len(group.launches), dtype=np.bool_)
    mask[:: max(1, len(mask) // _MOST_ROWS)] = True
    return group.chosen(mask)


def _prices(rows: Group, correction: Trained) -> Prices:
    return priced(rows, Tiled(sustained=rows.sustained, correction=correction))


def _line(split: str, group: Group, rows: Group, prices: Prices) -> Line:
    bound = priced(rows, Roofline()).latency_us
    # The constant is the median over every row of the GPU and operation: the best one can do.
    everything = priced(group, Roofline()).latency_us
    constant = float(np.median(group.latency_us / everything))
    physics = priced(rows, Tiled(sustained=rows.sustained, correction=None)).latency_us
    found = {score.size_class: score for score in scores_of(rows, prices, name="tiled")}
    return Line(
        split,
        _mape(bound, rows.latency_us),
        _mape(bound * constant, rows.latency_us),
        _mape(physics, rows.latency_us),
        found,
    )


def _mape(predicted: NDArray[np.float64], measured: NDArray[np.float64]) -> float:
    return float(np.abs(predicted / measured - 1.0).mean())


# -- the table ---------------------------------------------------------------------------------

_COLUMNS = (
    *("held_out", "gpu", "table", "dtype", "operation", "rows"),
    *("roofline", "roofline_x_const", "physics", "tiled", "sum_error", "within_interval"),
    *(f"tiled_{name}" for name in SIZE_NAMES),
)


def csv_text(lines: Iterable[Line]) -> str:
    """Every score as a row; errors are shares."""
    rows = []
    for line in lines:
        score = line.scores["all"]
        total = line.scores.get("model_shapes", score).sum_error
        sizes = (line.scores[name].mape if name in line.scores else "" for name in SIZE_NAMES)
        rows.append(
            (line.split, score.gpu, score.table, score.dtype, score.phase_or_op, score.num_rows,
             line.roofline, line.scaled_roofline, line.physics, score.mape, total,
             score.within_interval, *sizes)
        )  # fmt: skip
    return table_text(_COLUMNS, rows)


def _disagreement(folder: str | Path, name: str) -> list[tuple[str, str, int, float]]:
    """How far two measurements of the same shape lie apart: (GPU, dtype, number of shapes, mean of
    larger over smaller less one), for a table that several sources filled. The noise floor: no
    predictor can be nearer to one of them than half of it, whatever it knows."""
    path = found_table(Path(folder), name)
    if path is None or name not in _REPEATED:
        return []
    frame = rows_of_file(path)
    keys = [column for column in ("gpu", "dtype", *_REPEATED[name]) if column in frame.columns]
    if "clock_regime" in frame.columns:
        frame = frame[frame["clock_regime"].astype(str) != "sustained"]
    if name == "collectives" and "source" in frame.columns:  # others wait for ranks, or are no NCCL
        frame = frame[frame["source"].astype(str).str.contains("nccl-tests")]
    spread = frame.groupby(keys, observed=True)["latency_us"].agg(["min", "max", "count"])
    spread = spread[spread["count"] >= _LEAST_OPINIONS].reset_index()
    spread["apart"] = spread["max"] / spread["min"] - 1.0
    return [
        (str(label), str(dtype), len(rows), float(rows["apart"].mean()))
        for (label, dtype), rows in spread.groupby(["gpu", "dtype"], observed=True)
    ]


#: What identifies a shape, in the tables that hold several measurements of the same.
_REPEATED = {
    "gemm": ("m", "n", "k"),
    "attention": (
        "phase",
        "batch",
        "seq_q",
        "seq_kv",
        "heads",
        "kv_heads",
        "head_dim",
        "window",
    ),
    "collectives": ("op", "num_gpus", "num_nodes", "message_bytes"),
}

_LEAST_OPINIONS = 2


def _between_sources(folders: Sequence[Path]) -> str:
    """How far two sources' measurements of one shape lie apart: the median by table."""
    found = {}
    for name in sorted(TABLES):
        apart = [row[-1] for folder in folders for row in _disagreement(folder, name)]
        if apart:
            found[name] = f"{name} {100 * median(apart):.0f} %"
    return ", ".join(found.values())


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Write accuracy.csv.")
    parser.add_argument("--data", required=True, type=Path, nargs="+")
    parser.add_argument("--out", required=True, type=Path)
    parser.add_argument("--seen", action="store_true", help="leave no GPU out: a few minutes")
    parser.add_argument("--weights", type=Path, default=ROOT / "predictors" / "weights")
    parser.add_argument("--date", default="")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command."""
    options = _options(arguments)
    lines = measure(
        options.data,
        options.weights,
        leave_out=not options.seen,
        progress=lambda text: print(text, file=sys.stderr, flush=True),
    )
    stamp = {
        "commit": commit() or "unknown",
        "data": ", ".join(data_hash(folder, sorted(TABLES)) for folder in options.data),
        "date": options.date or "not stated",
        "between_sources": _between_sources(options.data),
    }
    write_atomically(options.out, csv_text(lines).encode())
    write_atomically(options.out.with_suffix(".json"), f"{json.dumps(stamp)}\n".encode())
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
