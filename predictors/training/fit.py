"""Fits the corrections: log(measured / physics) by small networks on dimensionless features.

Every tenth shape is kept out of training on all GPUs; the intervals of known GPUs are calibrated on
those shapes, those of unseen GPUs on networks that never saw the GPU's architecture.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from neusight.predictors.errors import DataError
from neusight.predictors.gpu import GPU
from neusight.predictors.kernel import Kernel
from neusight.predictors.learned.correction import (
    FAMILIES,
    SIZE_CLASSES_US,
    UNSEEN,
    architecture_of,
    family_of,
)
from neusight.predictors.learned.network import Network, exp_of, save_network
from neusight.predictors.tiled import Tiled
from neusight.predictors.training.dataset import Group, is_held_out
from neusight.predictors.training.datasheet import prior_constants
from neusight.predictors.training.descent import Descent, Layers, descend, first_layers, one_core
from neusight.predictors.training.evaluate import ABOVE_FLOOR, label_overhead
from neusight.predictors.training.reading import read_dataset
from neusight.predictors.training.tables.files import data_hash

if TYPE_CHECKING:
    import torch

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Shapes = NDArray[np.uint64]

#: Coverage that the intervals are calibrated to.
COVERAGE = 0.8

#: Rows whose features are computed at once.
_CHUNK = 2048

#: Rows of a group that calibrate the intervals of unseen GPUs.
_CALIBRATION_ROWS = 4000


class Recipe(NamedTuple):
    """How a family is trained. Chosen by leave-one-architecture-out on the visible data."""

    tables: tuple[str, ...]
    hidden: tuple[int, ...] = (64, 64, 64)
    #: The correction stays within e^±bound.
    bound: float = 1.0
    epochs: int = 40
    #: Epochs of the networks for unseen GPUs.
    unseen_epochs: int = 10
    batch_rows: int = 512
    #: Rows of a batch for unseen GPUs: larger ones fit single GPUs less.
    unseen_batch_rows: int = 2048
    learning_rate: float = 4e-3
    weight_decay: float = 1e-3
    #: Whether a network for unseen GPUs does better than the physics; where not, there is none.
    carries_over: bool = True
    #: The bound for unseen GPUs, where it is tighter.
    unseen_bound: float | None = None
    #: Noise added to the standardized features, and for unseen GPUs: against overfitting to single
    #: GPUs.
    jitter: float = 0.02
    unseen_jitter: float = 0.2
    #: Where a tenth of the shapes is too few to calibrate on: so many networks calibrate, each on
    #: all rows but another part of the shapes.
    num_folds: int = 0


#: Families of few rows: FP32 products and collectives, measured convolutions.
_FEW_ROWS = Recipe(("kernels",), bound=1.5, epochs=50, batch_rows=256, unseen_batch_rows=256)
_CONVOLUTION = _FEW_ROWS._replace(tables=("convolution",), hidden=(128, 128), unseen_epochs=40)

RECIPES: dict[str, Recipe] = {
    "gemm_16bit": Recipe(("gemm",)),
    "gemm_fp8": Recipe(("gemm",), bound=2.5),
    "attention_prefill": Recipe(("attention",), bound=1.5, epochs=50, unseen_epochs=8),
    "attention_decode": Recipe(("attention",), bound=3.0, epochs=50, unseen_epochs=6, jitter=0.005),
    "gemm_fp32": _FEW_ROWS._replace(unseen_epochs=5, unseen_bound=0.5),
    "gemm_fp32_pascal": _FEW_ROWS._replace(carries_over=False),
    "gemm_fp32_amd": _FEW_ROWS._replace(epochs=150, unseen_epochs=20, unseen_bound=0.5),
    "rows_fp32": Recipe(("kernels",), hidden=(64, 64), epochs=80, carries_over=False),
    "convolution_fp32": _FEW_ROWS._replace(
        tables=("conv", "conv_kernels"), bound=2.5, unseen_epochs=25, jitter=0.1, num_folds=5
    ),
    "convolution_volta": Recipe(
        ("conv",),
        hidden=(64, 64),
        bound=3.0,
        epochs=200,
        batch_rows=64,
        unseen_epochs=60,
        unseen_batch_rows=64,
        jitter=0.1,
        num_folds=5,
    ),
    "convolution_groups": _CONVOLUTION._replace(bound=3.0, epochs=120, batch_rows=128, jitter=0.1),
    "convolution_hopper": _CONVOLUTION._replace(epochs=60, jitter=0.2),
    "convolution_miopen": Recipe(
        ("conv",), bound=4.0, epochs=25, batch_rows=2048, unseen_epochs=4, jitter=0.01
    ),
    "collective": _FEW_ROWS._replace(
        tables=("collectives",), hidden=(32, 32), bound=1.0, epochs=150, unseen_epochs=40
    ),
    "quantisation": Recipe(
        ("memory_bound",),
        hidden=(64, 64),
        bound=1.5,
        epochs=200,
        unseen_epochs=50,
        unseen_batch_rows=512,
    ),
}


@dataclass(frozen=True, eq=False)
class Rows:
    """The rows of a family from one group: features, physical and measured time of one kernel."""

    group: Group
    features: Floats
    physics_us: Floats
    measured_us: Floats
    shape: Shapes

    @property
    def target(self) -> Floats:
        """What the network learns."""
        result: Floats = np.log(self.measured_us / self.physics_us)
        return result


def collect(groups: Sequence[Group], family: str) -> list[Rows]:
    """The rows of a family in its tables; what precedes its kernel in a launch is taken off the
    label."""
    tables = RECIPES[family].tables
    found = (_rows_of(group, family) for group in groups if group.table in tables)
    return [rows for rows in found if rows is not None and len(rows.target)]


def _rows_of(group: Group, family: str) -> Rows | None:
    if not group.launches or not group.is_for_training:
        return None
    kernels = [launch[-1] for launch in group.launches]
    covered = np.array([family_of(kernel, group.gpu) == family for kernel in kernels])
    if not covered.any():
        return None
    label = group.latency_us - _preceding_us(group)
    if group.has_overhead:
        overhead_us, floor_us = label_overhead(group)
        label = label - overhead_us
        covered &= group.latency_us > ABOVE_FLOOR * floor_us
    # A part that takes nearly all of the label leaves nothing to learn from.
    covered &= label > _LEAST_SHARE * group.latency_us
    group, label = group.chosen(covered), label[covered]
    kernels = [launch[-1] for launch in group.launches]
    features, physics = _described(kernels, group.gpu, family, sustained=group.sustained)
    return Rows(group, features, physics, label, group.shape)


_LEAST_SHARE = 0.2


def _preceding_us(group: Group) -> Floats:
    """What all launches of a row but the last take: measured where it was, else by the physics."""
    if len(group.launches[0]) == 1:
        return np.zeros(len(group.launches))
    tiled = Tiled(sustained=group.sustained, correction=None)
    firsts = [kernel for launch in group.launches for kernel in launch[:-1]]
    priced = dict(zip(firsts, tiled.predict(firsts, group.gpu), strict=True))
    times = np.array(
        [sum(priced[kernel].latency_us for kernel in launch[:-1]) for launch in group.launches]
    )
    if group.parts_us is None:
        return times
    return np.where(np.isnan(group.parts_us), times, group.parts_us)


def _described(
    kernels: Sequence[Kernel], gpu: GPU, family: str, *, sustained: bool
) -> tuple[Floats, Floats]:
    timings = Tiled(sustained=sustained, correction=None).timings(kernels, gpu)
    describe = FAMILIES[family].table
    features = [
        describe(kernels[start : start + _CHUNK], timings[start : start + _CHUNK], gpu)
        for start in range(0, len(kernels), _CHUNK)
    ]
    none = np.empty((0, len(FAMILIES[family].names)))
    return np.concatenate([none, *features]), np.array([timing.time_us for timing in timings])


def with_prior_constants(rows: Rows, family: str, *, without: Callable[[GPU], bool]) -> Rows:
    """The same rows on the GPU as if nothing had been measured on it or on `without`."""
    target = prior_constants(rows.group.gpu, without=without)
    kernels = [launch[-1] for launch in rows.group.launches]
    features, physics = _described(kernels, target, family, sustained=rows.group.sustained)
    return replace(rows, features=features, physics_us=physics)


# -- training ----------------------------------------------------------------------------------


def train(
    rows: Sequence[Rows],
    family: str,
    *,
    seed: int = 0,
    unseen: bool = False,
    left_out: Callable[[Shapes], Bools] | None = None,
    progress: Callable[[float], None] = lambda share: None,
) -> Network:
    """A network on those rows, without the held-out shapes; its intervals are not calibrated yet.
    `unseen` gives the smoother one, for GPUs that are not among them; `left_out` says which shapes
    are held out (else every tenth).

    The result depends on the rows, their order, the seed and the version of torch alone.
    """
    recipe = _recipe_of(family, unseen=unseen)
    features, target, weight = _training_rows(rows, family, left_out or is_held_out)
    low, high = features.min(axis=0), features.max(axis=0)
    mean, scale = features.mean(axis=0), features.std(axis=0)
    scale = np.where(scale < _LEAST_SCALE, 1.0, scale)
    layers = _optimized(
        (features - mean) / scale, target, weight, recipe, seed=seed, progress=progress
    )
    names = tuple(sorted({part.group.gpu.name for part in rows}))
    return Network(
        features=FAMILIES[family].names,
        low=low,
        high=high,
        mean=mean,
        scale=scale,
        layers=layers,
        bound=recipe.bound,
        spreads=np.full((len(names), len(SIZE_CLASSES_US) + 1), _UNCALIBRATED),
        gpus=names,
        architectures=tuple(sorted({architecture_of(part.group.gpu) for part in rows})),
        provenance={"seed": seed},
    )


def _recipe_of(family: str, *, unseen: bool) -> Recipe:
    recipe = RECIPES[family]
    if not unseen:
        return recipe
    return recipe._replace(
        epochs=recipe.unseen_epochs,
        batch_rows=recipe.unseen_batch_rows,
        jitter=recipe.unseen_jitter,
        bound=recipe.unseen_bound or recipe.bound,
    )


def _training_rows(
    rows: Sequence[Rows], family: str, left_out: Callable[[Shapes], Bools]
) -> tuple[Floats, Floats, Floats]:
    """Features, target and weight of each row whose shape is not held out: a group counts by the
    square root of its rows, and the mean weight is 1."""
    kept = [~left_out(part.shape) for part in rows]
    if not any(mask.any() for mask in kept):
        raise DataError(f"There are no rows to train {family} on.")
    features = np.concatenate([part.features[mask] for part, mask in zip(rows, kept, strict=True)])
    target = np.concatenate([part.target[mask] for part, mask in zip(rows, kept, strict=True)])
    weight = np.concatenate(
        [np.full(int(mask.sum()), 1.0 / np.sqrt(max(1, mask.sum()))) for mask in kept]
    )
    return features, target, weight / weight.mean()


#: Half width of the intervals until they are calibrated.
_UNCALIBRATED = 0.3

#: A feature that varies less is constant in training.
_LEAST_SCALE = 1e-6


def _optimized(
    inputs: Floats,
    target: Floats,
    weight: Floats,
    recipe: Recipe,
    *,
    seed: int,
    progress: Callable[[float], None],
) -> tuple[tuple[Floats, Floats], ...]:
    """The layers that fit the target best, by AdamW on the weighted mean of |error|."""
    import torch

    generator = torch.Generator().manual_seed(seed)

    def draw(matrix: torch.Tensor, num_inputs: int) -> torch.Tensor:
        """Within 1/√inputs."""
        edge = (1.0 / num_inputs) ** 0.5
        return matrix.uniform_(-edge, edge, generator=generator)

    def loss(rows: Sequence[torch.Tensor]) -> torch.Tensor:
        given, wanted, weights = rows
        noise = torch.empty_like(given).normal_(generator=generator)
        found = _output(layers, given + recipe.jitter * noise, recipe.bound)
        return (weights * (found - wanted).abs()).mean()

    with one_core():
        layers = first_layers([inputs.shape[1], *recipe.hidden, 1], draw)
        columns = [torch.tensor(part, dtype=torch.float32) for part in (inputs, target, weight)]
        descent = Descent(
            recipe.epochs,
            recipe.batch_rows,
            recipe.learning_rate,
            recipe.weight_decay,
            _WARM_UP_SHARE,
        )
        return tuple(descend(layers, columns, loss, descent, generator, progress))


#: Share of the steps in which the learning rate rises.
_WARM_UP_SHARE = 0.15


def _output(layers: Layers, values: torch.Tensor, bound: float) -> torch.Tensor:
    """What `Network.run` computes, for torch to differentiate."""
    import torch

    for index, (matrix, bias) in enumerate(layers):
        values = values @ matrix.T + bias
        if index + 1 < len(layers):
            values = 0.5 * values * (1.0 + values * torch.rsqrt(1.0 + values * values))
    last = values[:, 0]
    return bound * last * torch.rsqrt(1.0 + last * last)


# -- intervals ---------------------------------------------------------------------------------


def _spreads(
    network: Network, rows: Sequence[Rows], *, of: Callable[[Shapes], Bools] = is_held_out
) -> Floats:
    """Half widths that hold `COVERAGE` of the rows of those shapes, by size class; each group
    counts alike, but for those of few rows."""
    errors, classes, weights = [], [], []
    for part in rows:
        mask = of(part.shape)
        if not mask.any():
            continue
        predicted = part.physics_us[mask] * exp_of(network.run(part.features[mask]))
        errors.append(np.abs(np.log(part.measured_us[mask] / predicted)))
        classes.append(np.searchsorted(np.array(SIZE_CLASSES_US), predicted, side="right"))
        weights.append(np.full(int(mask.sum()), 1.0 / max(_FULL_GROUP, int(mask.sum()))))
    error, size, weight = (np.concatenate(parts) for parts in (errors, classes, weights))
    every = _quantile(error, weight)
    result = [
        _quantile(error[size == index], weight[size == index])
        if (size == index).sum() >= _LEAST_ROWS
        else every
        for index in range(len(SIZE_CLASSES_US) + 1)
    ]
    return np.expm1(np.maximum(result, _LEAST_SPREAD))


#: Rows from which a group counts in full.
_FULL_GROUP = 500

#: Rows below which a size class takes the quantile of all.
_LEAST_ROWS = 100
_LEAST_SPREAD = 0.01


def _quantile(values: Floats, weights: Floats) -> float:
    order = np.argsort(values, kind="stable")
    reached = np.cumsum(weights[order]) / weights.sum()
    return float(values[order][np.searchsorted(reached, COVERAGE)])


def calibrated(network: Network, rows: Sequence[Rows]) -> Network:
    """The network of known GPUs with their intervals, from the held-out shapes of each."""
    own = ([part for part in rows if part.group.gpu.name == name] for name in network.gpus)
    return replace(network, spreads=np.stack([_spreads(network, parts) for parts in own]))


def _calibrated_on(network: Network, predicted: Sequence[Rows]) -> Network:
    """The same from rows that networks without their shapes have predicted."""
    own = ([part for part in predicted if part.group.gpu.name == name] for name in network.gpus)
    known = [_spreads(_neutral(network), parts, of=_every_of) for parts in own]
    return replace(network, spreads=np.stack(known))


def _cross_validated(
    rows: Sequence[Rows], family: str, *, seed: int, progress: Callable[[float], None]
) -> list[Rows]:
    """The rows with, as their physics, what a network says that saw none of their shape."""
    num_folds = RECIPES[family].num_folds
    predicted = [part.physics_us.copy() for part in rows]
    for fold, network in enumerate(networks_of_folds(rows, family, seed=seed, progress=progress)):
        for part, times in zip(rows, predicted, strict=True):
            mask = folds_of(part.shape, num_folds) == fold
            times[mask] *= exp_of(network.run(part.features[mask]))
    return [replace(part, physics_us=times) for part, times in zip(rows, predicted, strict=True)]


def networks_of_folds(
    rows: Sequence[Rows],
    family: str,
    *,
    seed: int = 0,
    progress: Callable[[float], None] = lambda share: None,
) -> Iterator[Network]:
    """A network for each fold of the shapes, which saw none of it."""
    num_folds = RECIPES[family].num_folds
    for fold in range(num_folds):
        yield train(
            rows,
            family,
            seed=seed,
            left_out=lambda shape, fold=fold: folds_of(shape, num_folds) == fold,  # type: ignore[misc]
            progress=_within(progress, fold / num_folds, 1.0 / num_folds),
        )


def folds_of(shape: Shapes, num_folds: int) -> NDArray[np.int64]:
    """Which fold each shape is in, the same on every GPU and machine."""
    within = np.zeros(len(shape), dtype=np.int64)
    for fold in range(1, num_folds):
        # Of the shapes that are not in a fold before, as many as fall to each of those left.
        share = 1.0 / (num_folds - fold + 1)
        chosen = is_held_out(shape, share=share, salt=fold)
        within[(within == 0) & chosen] = fold
    return within


def calibrated_unseen(
    general: Network,
    known: Network,
    rows: Sequence[Rows],
    family: str,
    *,
    seed: int = 0,
    progress: Callable[[float], None] = lambda share: None,
) -> Network:
    """The network of unseen GPUs with its intervals: from networks that never saw the GPU, and from
    such that saw none of its architecture, each with the GPU's own constants and with prior ones.

    What was not seen is never surer than what was: widths grow with each thing unknown.
    """
    pairs = _left_out_in_turn(rows, family, seed=seed, progress=progress)
    typical = np.median(known.spreads, axis=0)
    spreads = _growing(typical, _widths(pairs[True]), _widths(pairs[False]))
    return replace(general, spreads=spreads, gpus=())


def _left_out_in_turn(
    rows: Sequence[Rows], family: str, *, seed: int, progress: Callable[[float], None]
) -> dict[bool, list[tuple[Network, Rows, Rows]]]:
    """Networks that never saw some GPUs, and the rows of those GPUs, with their own constants and
    with prior ones; by whether the network saw others of their architecture."""
    splits = _splits_of(rows)
    pairs: dict[bool, list[tuple[Network, Rows, Rows]]] = {True: [], False: []}
    for index, (is_related, is_left_out) in enumerate(splits):
        other = train(
            [part for part in rows if not is_left_out(part.group.gpu)],
            family,
            seed=seed,
            unseen=True,
            progress=_within(progress, index / len(splits), 1.0 / len(splits)),
        )
        for part in rows:
            if is_left_out(part.group.gpu):
                sample = _sample(part)
                prior = with_prior_constants(sample, family, without=is_left_out)
                pairs[is_related].append((other, sample, prior))
    return pairs


def _growing(
    typical: Floats, related: tuple[Floats, Floats] | None, new: tuple[Floats, Floats] | None
) -> Floats:
    """The rows of `Network.spreads` for unseen GPUs, from the widths that were seen on known
    and on new architectures: no row is narrower than one with more that is known."""
    if related is None and new is None:  # a single GPU
        related = new = (typical * _UNTRIED, typical * _UNTRIED * _UNTRIED)
    related, new = related or new, new or related
    assert related is not None and new is not None
    own, prior_widths = np.maximum(related[0], typical), np.maximum(related[1], related[0])
    new_own = np.maximum(new[0], own)
    new_prior = np.maximum(np.maximum(new[1], new_own), prior_widths)
    return np.stack([own, np.maximum(prior_widths, own), new_own, new_prior])


#: How much wider the interval is for each step beyond what could be tried by leaving GPUs out.
_UNTRIED = 2.0


def _splits_of(rows: Sequence[Rows]) -> list[tuple[bool, Callable[[GPU], bool]]]:
    """What is left out in turn: GPUs whose architecture has others (True), and architectures."""
    known = {part.group.gpu.name: part.group.gpu for part in rows}
    architectures = [architecture_of(gpu) for gpu in known.values()]
    splits = [
        (True, _named(name))
        for name, gpu in sorted(known.items())
        if architectures.count(architecture_of(gpu)) > 1
    ]
    every = sorted(set(architectures))
    if len(every) > 1:
        splits += [(False, _is_of(architecture)) for architecture in every]
    return splits


def _named(name: str) -> Callable[[GPU], bool]:
    return lambda item: item.name == name


def _is_of(architecture: str) -> Callable[[GPU], bool]:
    return lambda item: architecture_of(item) == architecture


def _widths(pairs: Sequence[tuple[Network, Rows, Rows]]) -> tuple[Floats, Floats] | None:
    """Half widths with own constants and with prior ones, None where nothing was left out."""
    if not pairs:
        return None
    own = _spreads_of_pairs([(network, sample) for network, sample, _ in pairs])
    prior = _spreads_of_pairs([(network, sample) for network, _, sample in pairs])
    return own, prior


def _within(
    progress: Callable[[float], None], start: float, share: float
) -> Callable[[float], None]:
    return lambda done: progress(start + share * done)


def _sample(rows: Rows) -> Rows:
    """At most `_CALIBRATION_ROWS` rows, evenly spread."""
    mask = np.zeros(len(rows.target), dtype=np.bool_)
    mask[:: max(1, len(mask) // _CALIBRATION_ROWS)] = True
    return Rows(
        rows.group.chosen(mask),
        rows.features[mask],
        rows.physics_us[mask],
        rows.measured_us[mask],
        rows.shape[mask],
    )


def _spreads_of_pairs(pairs: Sequence[tuple[Network, Rows]]) -> Floats:
    """As `_spreads`, each group with the network that never saw its architecture."""
    corrected = [
        replace(part, physics_us=part.physics_us * exp_of(network.run(part.features)))
        for network, part in pairs
    ]
    return _spreads(_neutral(pairs[0][0]), corrected, of=_every_of)


def _neutral(network: Network) -> Network:
    width = len(network.features)
    return replace(network, layers=((np.zeros((1, width)), np.zeros(1)),))


# -- the command -------------------------------------------------------------------------------


def fit_folders(
    folders: Sequence[str | Path],
    out: str | Path,
    *,
    date: str = "",
    seed: int = 0,
    show_progress: bool = True,
) -> dict[str, Network]:
    """Fits every family whose tables the folders have, and writes its weights to `out`.

    `date` goes into the provenance; the same data, seed and versions give the same bytes.
    """
    wanted = sorted({name for recipe in RECIPES.values() for name in recipe.tables})
    present = {
        folder: [name for name in wanted if any(Path(folder).glob(f"{name}.*"))]
        for folder in folders
    }
    every = {name for names in present.values() for name in names}
    if not every:
        places = ", ".join(map(str, folders))
        raise DataError(f"{places} holds none of the tables that are fitted: {', '.join(wanted)}.")
    groups = [
        group
        for folder, names in present.items()
        if names
        for group in read_dataset(folder, tables=names).groups
    ]
    networks: dict[str, Network] = {}
    for family, recipe in RECIPES.items():
        tables = recipe.tables
        rows = collect(groups, family) if every.issuperset(tables) else []
        if not rows:
            continue
        provenance = {
            "data": " ".join(
                data_hash(folder, tables)
                for folder in folders
                if set(tables) & set(present[folder])
            ),
            "commit": commit(),
            "date": date,
            "seed": seed,
            "num_rows": int(sum(len(part.target) for part in rows)),
            "held_out": "every tenth shape, on all GPUs",
        }
        made = _networks_of(rows, family, seed=seed, show_progress=show_progress)
        for name, (item, scores) in made.items():
            complete = replace(item, provenance={**provenance, "mape": scores})
            networks[name] = complete
            save_network(complete, Path(out) / f"{name}.npz")
    return networks


def _networks_of(
    rows: Sequence[Rows], family: str, *, seed: int, show_progress: bool
) -> dict[str, tuple[Network, dict[str, float]]]:
    """The network of the GPUs that were measured, and the one for others where it is of use, each
    with its errors on held-out shapes."""
    bar = _Bar(family, enabled=show_progress)
    network = train(rows, family, seed=seed, progress=_within(bar.show, 0.0, 0.2))
    if RECIPES[family].num_folds:
        bars = _within(bar.show, 0.2, 0.3)
        predicted = _cross_validated(rows, family, seed=seed, progress=bars)
        known = _calibrated_on(network, predicted)
        made = {family: (known, _scores(_neutral(network), predicted, of=_every_of))}
    else:
        known = calibrated(network, rows)
        made = {family: (known, _scores(network, rows))}
    if RECIPES[family].carries_over:
        general = train(rows, family, seed=seed, unseen=True, progress=_within(bar.show, 0.5, 0.1))
        unseen = calibrated_unseen(
            general, known, rows, family, seed=seed, progress=_within(bar.show, 0.6, 0.4)
        )
        made[family + UNSEEN] = (unseen, _scores(general, rows))
    bar.end()
    return made


def _every_of(shape: Shapes) -> Bools:
    return np.ones(len(shape), dtype=np.bool_)


def _scores(
    network: Network,
    rows: Sequence[Rows],
    *,
    of: Callable[[Shapes], Bools] = is_held_out,
) -> dict[str, float]:
    """Mean absolute error of held-out shapes by GPU and dtype, a share."""
    scores = {}
    for part in rows:
        mask = of(part.shape)
        if mask.any():
            predicted = part.physics_us[mask] * exp_of(network.run(part.features[mask]))
            error = np.abs(predicted / part.measured_us[mask] - 1.0)
            group = part.group
            name = f"{group.gpu_label} {group.dtype} {group.phase_or_op}"
            scores[name] = round(float(error.mean()), 4)
    return scores


def commit() -> str:
    """The commit of the checkout that fits, "" outside of one."""
    try:
        shown = subprocess.run(
            ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short=12", "HEAD"],
            capture_output=True,
            text=True,
            check=False,
        )
    except OSError:
        return ""
    return shown.stdout.strip()


class _Bar:
    """A progress bar on the terminal, at most two updates a second; in a log, a line at the end."""

    def __init__(self, label: str, *, enabled: bool) -> None:
        self._label, self._enabled = label, enabled
        self._is_terminal = sys.stderr.isatty()
        self._start = self._shown = time.monotonic()

    def show(self, share: float) -> None:
        now = time.monotonic()
        if not (self._enabled and self._is_terminal) or now - self._shown < 0.5:
            return
        self._shown = now
        done = int(share * 30)
        left = (now - self._start) * (1.0 - share) / max(share, 1e-3)
        bar = "█" * done + "·" * (30 - done)
        print(
            f"\r{self._label:<20} {bar} {share:4.0%}, {left:.0f} s left ", end="", file=sys.stderr
        )

    def end(self) -> None:
        if self._enabled:
            seconds = time.monotonic() - self._start
            start = "\r" if self._is_terminal else ""
            print(
                f"{start}{self._label:<20} {'█' * 30} 100%, {seconds:.0f} s      ",
                file=sys.stderr,
                flush=True,
            )
