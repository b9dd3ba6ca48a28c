"""Writes ACCURACY.md: what was held out, and how near each predictor came on it.

python -m neusight.predictors.training.report --data DIR… --out ACCURACY.md --date 2026-01-31
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from neusight.predictors.files import write_atomically
from neusight.predictors.gpu import GPU
from neusight.predictors.learned.correction import (
    FAMILIES,
    UNSEEN,
    Trained,
    architecture_of,
    load_folder,
)
from neusight.predictors.learned.network import Network
from neusight.predictors.roofline import Roofline
from neusight.predictors.tiled import Tiled
from neusight.predictors.training.dataset import Group, is_held_out
from neusight.predictors.training.datasheet import prior_constants
from neusight.predictors.training.evaluate import (
    ABOVE_FLOOR,
    SIZE_NAMES,
    Score,
    is_calibration,
    label_overhead,
    priced,
    scores_of,
)
from neusight.predictors.training.fit import RECIPES, Rows, collect, commit, train
from neusight.predictors.training.reading import TABLES, read_dataset
from neusight.predictors.training.table_files import data_hash, disagreement

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
    """Every split: the shapes held out of training, then each GPU, then each architecture; and what
    no network covers.

    Labels with host overhead are scored as `evaluate` does: without the rows that estimate it,
    without it, and above twice the shortest label.
    """
    present = {name for name in TABLES if any(folder.glob(f"{name}.*"))}
    families = [name for name in families if present.issuperset(RECIPES[name].tables)]
    dataset = read_dataset(folder)
    shipped = load_folder(weights)
    rows = {family: collect(dataset.groups, family) for family in families}
    every = [
        _as_kernels(group)
        for group in dataset.groups
        if group.is_for_training and group.gpu.vendor in ("nvidia", "amd") and group.launches
    ]
    groups = [group for group in every if _is_covered(group, rows)]
    lines = []
    for group in groups:
        progress(f"held-out shapes: {group.gpu_label} {group.dtype} {group.phase_or_op}")
        mask = is_held_out(group.shape)
        if mask.any():
            lines.append(_line("held-out shapes", group, group.chosen(mask), Trained(shipped)))
    for split, name, inside in _left_out_gpus(groups):
        progress(f"leave one {split} out: {name}")
        correction = _without(rows, shipped, inside)
        for group in groups:
            if inside(group.gpu):
                lines += _left_out(split, group, correction, inside)
    for group in every:
        if not _is_covered(group, rows):
            progress(f"physics alone: {group.gpu_label} {group.dtype} {group.phase_or_op}")
            lines.append(_line("physics alone", group, _sampled(group), Trained({})))
    return lines


def _left_out_gpus(groups: Sequence[Group]) -> Iterator[tuple[str, str, Callable[[GPU], bool]]]:
    """What is left out of training in turn: each GPU, then each architecture."""
    for name in sorted({group.gpu.name for group in groups}):
        yield "GPU", name, _named(name)
    for architecture in sorted({architecture_of(group.gpu) for group in groups}):
        yield "architecture", architecture, _of(architecture)


def _as_kernels(group: Group) -> Group:
    """The group with the time of its kernels for labels: without the host's share of them."""
    if not group.has_overhead:
        return group
    overhead_us, floor_us = label_overhead(group)
    kept = ~is_calibration(group) & (group.latency_us > ABOVE_FLOOR * floor_us)
    chosen = group.chosen(kept)
    return replace(chosen, latency_us=chosen.latency_us - overhead_us, has_overhead=False)


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
        _line(f"{what} left out, own constants", group, sample, correction),
        _line(f"{what} left out, prior constants", group, prior, correction),
    ]


def _sampled(group: Group) -> Group:
    """At most about `_MOST_ROWS` rows, evenly spread."""
    mask = np.zeros(len(group.launches), dtype=np.bool_)
    mask[:: max(1, len(mask) // _MOST_ROWS)] = True
    return group.chosen(mask)


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
    "physics alone": "No network was trained for these: physics and the GPU's constants. The"
    " norms, rotations and activations of the serving libraries (rms_norm, rope, act) are old"
    " kernels that PyTorch does not have; they say little of a PyTorch program.",
}


def markdown(
    lines: Iterable[Line],
    *,
    date: str,
    data: str,
    commit_id: str,
    noise: Iterable[tuple[str, str, str, int, float]] = (),
    included: Iterable[str] = (),
) -> str:
    """The whole document; `noise` are rows of table, GPU, dtype, shapes and mean difference,
    `included` other sections as they are."""
    every = list(lines)
    parts = [_HEAD.format(date=date or "not stated", data=data, commit=commit_id or "unknown")]
    for split, explained in _EXPLAINED.items():
        chosen = [line for line in every if line.split == split]
        if chosen:
            parts.append(f"## {split[0].upper()}{split[1:]}\n\n{explained}\n\n{_table(chosen)}\n")
    measured = [
        f"| {table} | {gpu} | {dtype} | {count} | {apart * 100:.1f} |"
        for table, gpu, dtype, count, apart in noise
    ]
    if measured:
        parts.append(_NOISE + "\n".join(measured) + "\n")
    parts += [text.rstrip() + "\n" for text in included]
    parts.append(_LIMITS)
    return "\n".join(parts)


_NOISE = """## Noise of the data

How far two measurements of the same shape lie apart, by other sources or versions of a library:
larger over smaller less one, in percent. No predictor comes nearer to one of them, on average, than
half of that, and none that knows only one source nearer to the other than all of it.

| table | GPU | dtype | shapes | apart |
|---|---|---|---:|---:|
"""


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
it. The widths of the intervals of unseen GPUs come from all GPUs and architectures left out in
turn, the scored one included. FP8 rows hold the quantisation of the activations, prefill and decode
rows what serving libraries launch before an attention (the write to the cache, FlashAttention-3's
plan): each is priced as kernels of its own.

FP32 rows (linear, bmm, conv, and vector operations) hold the host's share of a launch, 10-110 µs.
It is estimated for each GPU and operation on a tenth of the shapes, which are not scored, and taken
off; only rows above twice the shortest label are scored. Large products on cards of 70-75 W (P4,
T4) took 1.2 to 5 times as long as the same FLOPs in aligned shapes: clocks follow power there.
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


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Write ACCURACY.md.")
    parser.add_argument("--data", required=True, type=Path, nargs="+")
    parser.add_argument("--include", type=Path, nargs="*", default=[], help="sections to add")
    parser.add_argument("--out", required=True, type=Path)
    parser.add_argument("--weights", type=Path, default=Path(__file__).parents[1] / "weights")
    parser.add_argument("--date", default="")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command."""
    options = _options(arguments)
    lines: list[Line] = []
    noise: list[tuple[str, str, str, int, float]] = []
    for folder in options.data:
        lines += measure(
            folder, options.weights, progress=lambda text: print(text, file=sys.stderr, flush=True)
        )
        noise += [(name, *row) for name in TABLES for row in disagreement(folder, name)]
    text = markdown(
        lines,
        date=options.date,
        data=", ".join(data_hash(folder, sorted(TABLES)) for folder in options.data),
        commit_id=commit(),
        noise=noise,
        included=[path.read_text(encoding="utf-8") for path in options.include],
    )
    write_atomically(options.out, text.encode())
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
