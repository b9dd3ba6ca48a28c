"""Writes ACCURACY.md: what was held out, and how near each predictor came on it.

python -m neusight.predictors.training.report --data DIR --out ACCURACY.md --date 2026-01-31
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from neusight.predictors.correction import FAMILIES, UNSEEN, Trained, load_folder
from neusight.predictors.gpu import GPU
from neusight.predictors.network import Network
from neusight.predictors.roofline import Roofline
from neusight.predictors.tiled import Tiled
from neusight.predictors.training.data import (
    Group,
    data_hash,
    is_held_out,
    prior_constants,
    read_dataset,
)
from neusight.predictors.training.evaluate import SIZE_NAMES, Score, priced, scores_of
from neusight.predictors.training.fit import RECIPES, Rows, architecture_of, collect, commit, train

__all__ = ["Line", "main", "markdown", "measure"]

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
    folder: Path,
    weights: Path,
    *,
    families: Sequence[str] = tuple(FAMILIES),
    progress: Callable[[str], None] = lambda text: None,
) -> list[Line]:
    """Every split: the shapes held out of training, then each GPU, then each architecture."""
    tables = sorted({table for family in families for table in RECIPES[family].tables})
    dataset = read_dataset(folder, tables=tables)
    shipped = load_folder(weights)
    rows = {family: collect(dataset.groups, family) for family in families}
    covered = {id(part.group.gpu): part.group.gpu for parts in rows.values() for part in parts}
    names = {item.name for item in covered.values()}
    groups = [
        group
        for group in dataset.groups
        if group.gpu.name in names and group.is_for_training and _is_covered(group, rows)
    ]
    lines = []
    for group in groups:
        progress(f"held-out shapes: {group.gpu_label} {group.dtype} {group.phase_or_op}")
        mask = is_held_out(group.shape)
        if mask.any():
            lines.append(_line("held-out shapes", group, group.chosen(mask), Trained(shipped)))
    gpu_names = sorted(names)
    for name in gpu_names:
        progress(f"leave one GPU out: {name}")
        itself = _named(name)
        correction = _without(rows, shipped, itself)
        for group in groups:
            if group.gpu.name == name:
                lines += _left_out("GPU", group, correction, itself)
    for architecture in sorted({architecture_of(item) for item in covered.values()}):
        progress(f"leave one architecture out: {architecture}")
        inside = _of(architecture)
        correction = _without(rows, shipped, inside)
        for group in groups:
            if inside(group.gpu):
                lines += _left_out("architecture", group, correction, inside)
    return lines


def _named(name: str) -> Callable[[GPU], bool]:
    return lambda item: item.name == name


def _of(architecture: str) -> Callable[[GPU], bool]:
    return lambda item: architecture_of(item) == architecture


def _is_covered(group: Group, rows: dict[str, list[Rows]]) -> bool:
    return any(
        part.group.gpu_label == group.gpu_label
        and (part.group.table, part.group.dtype, part.group.phase_or_op)
        == (group.table, group.dtype, group.phase_or_op)
        for parts in rows.values()
        for part in parts
    )


def _without(
    rows: dict[str, list[Rows]], shipped: dict[str, Network], left_out: Callable[[GPU], bool]
) -> Trained:
    """Networks for unseen GPUs, trained without those."""
    networks = {}
    for family, parts in rows.items():
        inside = [part for part in parts if not left_out(part.group.gpu)]
        if inside:
            made = train(inside, family, unseen=True)
            spreads = shipped[family + UNSEEN].spreads
            networks[family + UNSEEN] = replace(made, gpus=(), spreads=spreads)
    return Trained(networks)


def _left_out(
    what: str, group: Group, correction: Trained, left_out: Callable[[GPU], bool]
) -> list[Line]:
    mask = np.zeros(len(group.launches), dtype=np.bool_)
    mask[:: max(1, len(mask) // _MOST_ROWS)] = True
    sample = group.chosen(mask)
    prior = replace(sample, gpu=prior_constants(sample.gpu, without=left_out))
    return [
        _line(f"{what} left out, own constants", group, sample, correction),
        _line(f"{what} left out, prior constants", group, prior, correction),
    ]


def _line(split: str, group: Group, rows: Group, correction: Trained) -> Line:
    sustained = rows.sustained
    bound = priced(rows, Roofline()).latency_us
    # The constant is the median over every row of the GPU and operation: the best one can do.
    everything = priced(group, Roofline()).latency_us
    constant = float(np.median(group.latency_us / everything))
    physics = priced(rows, Tiled(sustained=sustained, correction=None)).latency_us
    prices = priced(rows, Tiled(sustained=sustained, correction=correction))
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


# -- Markdown ----------------------------------------------------------------------------------

_EXPLAINED = {
    "held-out shapes": "Every tenth shape was kept out of training on every GPU. The GPU, its"
    " constants and its other shapes were seen.",
    "GPU left out, own constants": "The network never saw the GPU; its siblings it did. The three"
    " constants of the GPU (GEMM utilization, bandwidth utilization, floor) come from its own data,"
    " as a short microbenchmark would give them.",
    "GPU left out, prior constants": "As above, and the constants are the mean over the other"
    " measured GPUs: the datasheet alone.",
    "architecture left out, own constants": "The network saw no GPU of the architecture; the"
    " constants come from the GPU's own data.",
    "architecture left out, prior constants": "The network saw no GPU of the architecture, and the"
    " constants are the mean over the others: the datasheet alone.",
}


def markdown(lines: Iterable[Line], *, date: str, data: str, commit_id: str) -> str:
    """The whole document."""
    every = list(lines)
    parts = [_HEAD.format(date=date or "not stated", data=data, commit=commit_id or "unknown")]
    for split, explained in _EXPLAINED.items():
        chosen = [line for line in every if line.split == split]
        if chosen:
            parts.append(f"## {split[0].upper()}{split[1:]}\n\n{explained}\n\n{_table(chosen)}\n")
    parts.append(_LIMITS)
    return "\n".join(parts)


_HEAD = """# How accurate the forecasts are

Written by `python -m neusight.predictors.training.report` on {date}, commit {commit}, data {data}.
Do not edit.

Errors are mean absolute percentage errors of single kernels, in percent. *Roofline* is the larger
of FLOPs over peak and bytes over bandwidth; *x const* multiplies it by the GPU's and operation's
own median ratio, found on the very rows it is scored on; *physics* is `Tiled` without networks;
*tiled* is the default predictor. *Sum* is Σpredicted/Σmeasured - 1, over layer-like shapes where
the table has GEMMs, else over all rows. *In 80 %* is the share of rows inside the interval. The
last columns are the error by measured duration.

The forms, features and sizes of the networks were chosen by leaving GPUs and architectures out of
this data. The constants of the physics, the same for every GPU, were fitted on a sample of all of
it. The widths of the intervals of unseen GPUs come from all architectures left out in turn, the
scored one included. FP8 rows hold the quantisation of the activations, priced as its own kernel.
Attention rows hold the wrapper kernels of the serving libraries that were measured, which matter
below 20 µs.
"""

_LIMITS = """## What this does not say

- Data and weight gradients (NN and TN layouts), TF32, backward attention, batched products and
  PyTorch's own elementwise, norm and softmax kernels in 16 bit are in no table: they are priced by
  physics with wide intervals, and a forecast's coverage counts them as physics.
- FlashAttention-2 on Hopper and Blackwell, which PyTorch may choose, was not measured either.
- Rows are short bursts unless their table says otherwise; training steps run sustained, where large
  products are 10-16 % slower, a separate factor of the GPU.
- Collectives: NVLink switches within one host. Over PCIe, bridges and networks, hosts differ by 10
  times, and physics with a wide interval answers.
"""


def _table(lines: Sequence[Line]) -> str:
    head = ["GPU", "dtype", "operation", "rows", "roofline", "x const", "physics", "tiled", "sum",
            "in 80 %", *SIZE_NAMES]  # fmt: skip
    rows = ["| " + " | ".join(head) + " |", "|---|---|---|" + "---:|" * (len(head) - 3)]
    for line in lines:
        score = line.scores["all"]
        total = line.scores.get("model_shapes", score).sum_error
        cells = [
            score.gpu,
            score.dtype,
            score.phase_or_op,
            f"{score.num_rows}",
            f"{line.roofline:.1%}",
            f"{line.scaled_roofline:.1%}",
            f"{line.physics:.1%}",
            f"**{score.mape:.1%}**",
            f"{total:+.1%}",
            f"{score.within_interval:.0%}",
            *(
                f"{line.scores[name].mape:.1%}" if name in line.scores else ""
                for name in SIZE_NAMES
            ),
        ]
        rows.append("| " + " | ".join(cell.replace("%", "") for cell in cells) + " |")
    return "\n".join(rows)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(description="Write ACCURACY.md.")
    parser.add_argument("--data", required=True, type=Path)
    parser.add_argument("--out", required=True, type=Path)
    parser.add_argument("--weights", type=Path, default=Path(__file__).parents[1] / "weights")
    parser.add_argument("--date", default="")
    options = parser.parse_args(arguments)
    lines = measure(
        options.data, options.weights, progress=lambda text: print(text, file=sys.stderr)
    )
    tables = sorted({table for recipe in RECIPES.values() for table in recipe.tables})
    text = markdown(
        lines, date=options.date, data=data_hash(options.data, tables), commit_id=commit()
    )
    options.out.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
