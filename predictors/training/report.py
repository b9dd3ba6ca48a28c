"""Writes ACCURACY.md and accuracy.csv: what was held out, and how near each predictor came on it.

python -m neusight.predictors.training.report --data DIR… --out ACCURACY.md --date 2026-01-31

The document is a page; every row behind it stands in the table beside it.
"""

from __future__ import annotations

import argparse
import csv
import io
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

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
from neusight.predictors.training.tables.files import data_hash, disagreement

__all__ = ["Line", "csv_text", "kind_of", "main", "markdown", "measure"]

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
    leave_out: bool = True,
    progress: Callable[[str], None] = lambda text: None,
) -> list[Line]:
    """Every split: the shapes held out of training, then each GPU, then each architecture; and what
    no network covers.

    Leaving GPUs out trains networks anew, which takes most of the time; `leave_out=False` skips it.
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
    for split, name, inside in _left_out_gpus(groups) if leave_out else ():
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


# -- the table ---------------------------------------------------------------------------------

_COLUMNS = (
    *("held_out", "gpu", "table", "dtype", "operation", "rows"),
    *("roofline", "roofline_x_const", "physics", "tiled", "sum_error", "within_interval"),
    *(f"tiled_{name}" for name in SIZE_NAMES),
)


def csv_text(lines: Iterable[Line]) -> str:
    """Every score as a row; errors are shares."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(_COLUMNS)
    for line in lines:
        score = line.scores["all"]
        total = line.scores.get("model_shapes", score).sum_error
        sizes = (line.scores[name].mape if name in line.scores else "" for name in SIZE_NAMES)
        writer.writerow(
            (line.split, score.gpu, score.table, score.dtype, score.phase_or_op, score.num_rows,
             line.roofline, line.scaled_roofline, line.physics, score.mape, total,
             score.within_interval, *sizes)
        )  # fmt: skip
    return out.getvalue()


# -- the page ----------------------------------------------------------------------------------

#: The ways of holding out, as columns: the split, its heading, and what it means.
_SPLITS = (
    ("held-out shapes", "shapes"),
    ("GPU left out, own constants", "GPU"),
    ("GPU left out, prior constants", "GPU, datasheet"),
    ("architecture left out, own constants", "architecture"),
    ("architecture left out, prior constants", "architecture, datasheet"),
)
_PHYSICS = "physics alone"


def kind_of(score: Score) -> str:
    """What a row of the page is about."""
    if score.table == "gemm":
        return "products, FP8" if score.dtype.startswith("fp8") else "products, 16 bit"
    if score.table == "attention":
        return f"attention, {score.phase_or_op.partition('_')[0]}"
    if score.table == "conv_kernels":
        return "convolutions, FP32"
    if score.table == "kernels":
        is_product = score.phase_or_op in ("linear", "bmm")
        return "products, FP32" if is_product else "vectors, softmax, norms, FP32"
    return "collectives" if score.table == "collectives" else "norms and quantisation, 16 bit"


def markdown(
    lines: Iterable[Line],
    *,
    date: str,
    data: str,
    commit_id: str,
    noise: Iterable[tuple[str, str, str, int, float]] = (),
    included: Iterable[str] = (),
) -> str:
    """The page; `noise` are rows of table, GPU, dtype, shapes and mean difference, `included`
    other sections as they are."""
    every = list(lines)
    head = _HEAD.format(date=date or "not stated", data=data, commit=commit_id or "unknown")
    parts = [*(text.rstrip() + "\n" for text in included), _kernels_section(every, list(noise))]
    return "\n".join([head, *parts, _LIMITS])


def _kernels_section(
    lines: Sequence[Line], noise: Sequence[tuple[str, str, str, int, float]]
) -> str:
    kinds = sorted({kind_of(line.scores["all"]) for line in lines})
    titles = [title for _, title in _SPLITS]
    rows = [
        f"| single kernels | {' | '.join(titles)} | physics alone | in 80 % |",
        "|---|" + "---:|" * (len(titles) + 2),
    ]
    for kind in kinds:
        own = [line for line in lines if kind_of(line.scores["all"]) == kind]
        cells = [_cell([line for line in own if line.split == split]) for split, _ in _SPLITS]
        rows.append(f"| {kind} | {' | '.join(cells)} | {_physics(own)} | {_inside(own)} |")
    text = _KERNELS + "\n".join(rows) + "\n"
    if noise:
        apart = ", ".join(
            f"{table} {median(part for name, _, _, _, part in noise if name == table):.0%}"
            for table in sorted({name for name, *_ in noise})
        )
        text += f"\nTwo measurements of one shape by other sources differ by: {apart} (median).\n"
    return text


def _cell(lines: Sequence[Line]) -> str:
    """The median over GPUs and operations, and the worst."""
    if not lines:
        return ""
    errors = [line.scores["all"].mape for line in lines]
    worst = max(lines, key=lambda line: line.scores["all"].mape).scores["all"]
    return f"{median(errors) * 100:.1f} ({worst.mape * 100:.0f} {worst.gpu})"


def _physics(lines: Sequence[Line]) -> str:
    """Without networks, on held-out shapes or where there is none."""
    found = [line.physics for line in lines if line.split in (_SPLITS[0][0], _PHYSICS)]
    return f"{median(found) * 100:.1f}" if found else ""


def _inside(lines: Sequence[Line]) -> str:
    seen = [line.scores["all"].within_interval for line in lines if line.split == _SPLITS[0][0]]
    unseen = [line.scores["all"].within_interval for line in lines if "prior" in line.split]
    return " / ".join(f"{median(part) * 100:.0f}" for part in (seen, unseen) if part)


_HEAD = """# How accurate the forecasts are

Written on {date}, commit {commit}, data {data}, by `scripts/accuracy`; do not edit. Errors are
absolute percentage errors, in percent. Every score behind the medians stands in
[accuracy.csv](accuracy.csv), of whole programs in [programs.csv](programs.csv) and
[compiled_programs.csv](compiled_programs.csv).
"""

_KERNELS = """## Single kernels

Mean error by GPU and operation: the median over them, in brackets the worst. *Shapes*: every tenth
shape was kept out of training on every GPU. *GPU*, *architecture*: no network saw it; its own
constants (product and bandwidth utilization, floor) as a short microbenchmark gives them, or as the
*datasheet* and the power limit alone let one expect. *Physics alone*: without networks. *In 80 %*:
share of rows inside the interval, on seen GPUs / on GPUs and architectures left out.

"""

_LIMITS = """## What is physics, and what this does not say

- Trained on tables: products x W^T in 16 bit and FP8, FP32 products, softmax and layer norm, plain
  FP32 convolutions, attention forward of serving libraries, NCCL on NVLink switches. All else is
  physics, whose constants were chosen on the even half of the programs above and single public
  profiles, and judged on the odd half: gradients in 16 bit, TF32, backward attention, PyTorch's own
  elementwise, norm, reduction, gather, pooling and scan kernels, convolutions on tensor cores.
- The host is a distribution: a factor of 2.5 lies between a server of one's own and a shared one.
- Tables are short bursts; training runs sustained, where products are 10-16 % slower, a separate
  factor of the GPU. Cards of 70-75 W (P4, T4) differ by 1.2-5 times with their temperature.
- Over PCIe, bridges and networks, hosts differ by 10 times: physics with a wide interval answers.
"""


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Write ACCURACY.md and accuracy.csv.")
    parser.add_argument("--data", required=True, type=Path, nargs="+")
    parser.add_argument("--include", type=Path, nargs="*", default=[], help="sections to add")
    parser.add_argument("--out", required=True, type=Path)
    parser.add_argument("--seen", action="store_true", help="leave no GPU out: a few minutes")
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
            folder,
            options.weights,
            leave_out=not options.seen,
            progress=lambda text: print(text, file=sys.stderr, flush=True),
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
    write_atomically(options.out.with_name("accuracy.csv"), csv_text(lines).encode())
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
