"""Trains NeuSight's perceptrons (arXiv 2407.13853) on the FP32 tables.

As published: 8 hidden layers, SMAPE as loss, one network a class, NVIDIA and AMD apart. Ours: the
host's share is taken off each label first, so that a kernel's own duration is fitted; the layers
are 128 wide, not 512 (`width`; ACCURACY.md has what that costs), and their weights are kept as
bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from neusight.predictors.errors import DataError
from neusight.predictors.gpu import GPU
from neusight.predictors.published.integer_network import IntegerNetwork
from neusight.predictors.published.neusight import (
    LEAST_UTILIZATION,
    NeuSight,
    features_of,
    ideal_us,
    shape_of,
    tilings,
)
from neusight.predictors.published.trained_class import TileTable, TrainedClass, save_class
from neusight.predictors.training.evaluate import LEAST_LABEL_US
from neusight.predictors.training.published.cut_rows import CutRows, measured_rows
from neusight.predictors.training.published.perceptron import (
    DESCENT,
    MOST_EPOCHS,
    NUM_LAYERS,
    SEEN_ROWS,
    WIDTH,
    trained_network,
)
from neusight.predictors.training.tables.files import data_hash

if TYPE_CHECKING:
    import torch

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

#: Epochs of the networks that only show how far an unseen GPU is off, as a share of the others'.
LEFT_OUT_SHARE = 0.25

#: Rows of a class and GPU in training, and in the table of tiles; drawn by seed.
MOST_ROWS = 20_000
MOST_TILES = 1_500

#: Share of the held-out rows that lie in the interval.
COVERAGE = 0.8


def fit_neusight(
    folder: str | Path,
    out: str | Path,
    *,
    seed: int = 0,
    width: int = WIDTH,
    seen_rows: int = SEEN_ROWS,
    without: Sequence[str] = (),
    progress: Callable[[str], None] = lambda text: None,
) -> dict[str, dict[str, float]]:
    """Trains every class of the folder's table `kernels` and writes the weights to `out`.

    Each network sees `seen_rows` rows, counted each time, and has layers of `width`. Gives the mean
    absolute percentage error on held-out shapes, as a share, by vendor and class, and by GPU.
    GPUs named in `without` stay out. DataError where the folder has no such table or GPU.
    """
    by_class = measured_rows(folder, without=without)
    effort = _Effort(width, seen_rows, seed)
    place = Path(out)
    place.mkdir(parents=True, exist_ok=True)
    scores: dict[str, dict[str, float]] = {}
    for (vendor, name), parts in sorted(by_class.items()):
        progress(f"{vendor} {name}: {sum(len(part.kernels) for part in parts)} rows")
        trained, errors = _trained(vendor, name, parts, folder, effort)
        save_class(trained, place)
        scores[f"{vendor} {name}"] = errors
        progress("  " + ", ".join(f"{gpu} {error:.1%}" for gpu, error in errors.items()))
    return scores


class _Effort(NamedTuple):
    """How wide the networks are, how many rows each sees, and by which seed."""

    width: int
    seen_rows: int
    seed: int


class _Columns(NamedTuple):
    """What a network is trained on: features, then what turns utilization into time."""

    features: Floats
    ideal_us: Floats
    waves: Floats
    time_us: Floats


def _trained(
    vendor: str, name: str, parts: Sequence[CutRows], folder: str | Path, effort: _Effort
) -> tuple[TrainedClass, dict[str, float]]:
    """The class as it is kept, and its errors: each GPU's, and those of the newest as if unseen."""
    newest = max(parts, key=lambda part: (part.gpu.compute_capability, part.gpu.num_sms))
    others = [part for part in parts if part is not newest]
    if not others:
        raise DataError(f"{name} was measured on {newest.gpu.name} alone: two GPUs are needed.")
    without = _class_of(vendor, name, others, effort, share=LEFT_OUT_SHARE)
    unseen = _errors(without, newest.chosen(newest.held_out))
    trained = _class_of(vendor, name, parts, effort)
    errors = {part.gpu.name: _errors(trained, part.chosen(part.held_out)) for part in parts}
    kept = replace(
        trained,
        spread=_spread(np.concatenate(list(errors.values()))),
        unseen_spread=_spread(unseen),
        provenance={**trained.provenance, "data": data_hash(folder, ["kernels"])},
    )
    errors[f"{newest.gpu.name} left out"] = unseen
    return kept, {gpu: float(np.abs(np.expm1(found)).mean()) for gpu, found in errors.items()}


def _class_of(
    vendor: str, name: str, parts: Sequence[CutRows], effort: _Effort, *, share: float = 1.0
) -> TrainedClass:
    """A class trained on these GPUs; its error is not known yet."""
    provenance = {
        "gpus": [part.gpu.name for part in parts],
        "num_rows": sum(len(part.kernels) for part in parts),
        "paper": "arXiv 2407.13853",
    }
    network = _network(parts, effort, share=share)
    return TrainedClass(vendor, name, network, _tile_table(parts, effort.seed), 1, 1, provenance)


def _errors(trained: TrainedClass, rows: CutRows) -> Floats:
    """log(predicted / measured) of each row, by the predictor itself."""
    predictor = NeuSight({(trained.vendor, trained.name): trained})
    found = predictor.predict(rows.kernels, rows.gpu)
    predicted = np.array([item.latency_us for item in found])
    result: Floats = np.log(predicted / np.maximum(rows.time_us, LEAST_LABEL_US))
    return result


def _spread(errors: Floats) -> float:
    """Half width of the interval around a prediction, as a share."""
    return float(np.expm1(np.quantile(np.abs(errors), COVERAGE)))


def _tile_table(parts: Sequence[CutRows], seed: int) -> TileTable:
    generator = np.random.default_rng(seed)
    owner, shapes, tiles = [], [], []
    for index, part in enumerate(parts):
        rows = _drawn(np.flatnonzero(~part.held_out), MOST_TILES, generator)
        owner.append(np.full(len(rows), index))
        shapes.append(np.array([shape_of(part.kernels[row]) for row in rows.tolist()]))
        tiles.append(part.tiles[rows])
    return TileTable(
        tuple((p.gpu.name, _capability(p.gpu), p.gpu.num_sms) for p in parts),
        np.concatenate(owner),
        np.concatenate(shapes),
        np.concatenate(tiles),
    )


def _capability(gpu: GPU) -> float:
    major, minor = gpu.compute_capability
    return major + minor / 10


def _drawn(rows: NDArray[np.int64], most: int, generator: np.random.Generator) -> NDArray[np.int64]:
    if len(rows) <= most:
        return rows
    return np.sort(generator.choice(rows, most, replace=False))


def _columns(parts: Sequence[CutRows], seed: int) -> _Columns:
    generator = np.random.default_rng(seed)
    pieces = []
    for part in parts:
        rows = _drawn(np.flatnonzero(~part.held_out), MOST_ROWS, generator)
        kernels = [part.kernels[row] for row in rows.tolist()]
        tiling = tilings(kernels, part.tiles[rows])
        features = features_of(kernels, tiling, part.gpu)
        ideal = ideal_us(kernels, tiling, part.gpu)
        pieces.append(_Columns(features, ideal, tiling.waves_on(part.gpu), part.time_us[rows]))
    return _Columns(*(np.concatenate(column) for column in zip(*pieces, strict=True)))


def _network(parts: Sequence[CutRows], effort: _Effort, *, share: float = 1.0) -> IntegerNetwork:
    columns = _columns(parts, effort.seed)
    epochs = max(1, round(share * min(MOST_EPOCHS, effort.seen_rows / len(columns.features))))
    sizes, descent = (*(effort.width,) * NUM_LAYERS, 2), DESCENT._replace(epochs=epochs)
    return trained_network(columns.features, columns[1:], _smape, sizes, descent, seed=effort.seed)


def _smape(output: torch.Tensor, columns: Sequence[torch.Tensor]) -> torch.Tensor:
    """The mean of |p - y| / ((p + y) / 2) (section 4.3), p by the utilization of the output."""
    import torch

    ideal, waves, time = columns
    alpha, beta = torch.sigmoid(output).unbind(1)
    predicted = ideal / (alpha - beta / waves).clamp_min(LEAST_UTILIZATION)
    return 2.0 * ((predicted - time).abs() / (predicted + time)).mean()
