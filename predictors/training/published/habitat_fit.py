"""Trains Habitat's perceptrons (arXiv 2102.00527) on the FP32 tables of NVIDIA GPUs.

As published: 8 hidden ReLU layers on an operation's sizes and four figures of the GPU, the mean
absolute percentage error as loss. Ours: layers of 128 instead of 1,024, as they are kept in the
package; sizes, figures and latencies as logarithms, since those of the tables span five decades; no
transposed convolutions and no LSTM, of which there are no measurements here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from neusight.predictors.errors import DataError
from neusight.predictors.gpu import GPU
from neusight.predictors.kernel import Kernel
from neusight.predictors.published.habitat import LOG_RANGE, Habitat, features_of, operation_of
from neusight.predictors.published.integer_network import IntegerNetwork
from neusight.predictors.published.network_files import NetworkFile, save_network_file
from neusight.predictors.training.dataset import Group, is_held_out
from neusight.predictors.training.evaluate import label_overhead
from neusight.predictors.training.published.cut_rows import OFF_THE_FLOOR, left_out_gpus
from neusight.predictors.training.published.perceptron import (
    DESCENT,
    MOST_EPOCHS,
    NUM_LAYERS,
    SEEN_ROWS,
    WIDTH,
    trained_network,
)
from neusight.predictors.training.reading import read_dataset
from neusight.predictors.training.tables.files import data_hash

if TYPE_CHECKING:
    import torch

Floats = NDArray[np.float64]

_TABLES = ("kernels", "conv_kernels")


class TimedRows(NamedTuple):
    """Rows of one operation and GPU: kernels, their durations, and which are held out."""

    gpu: GPU
    kernels: list[Kernel]
    time_us: Floats
    held_out: NDArray[np.bool_]

    def chosen(self, mask: NDArray[np.bool_]) -> TimedRows:
        kernels = [self.kernels[index] for index in np.flatnonzero(mask).tolist()]
        return TimedRows(self.gpu, kernels, self.time_us[mask], self.held_out[mask])


def fit_habitat(
    folder: str | Path,
    out: str | Path,
    *,
    seed: int = 0,
    width: int = WIDTH,
    seen_rows: int = SEEN_ROWS,
    without: Sequence[str] = (),
    progress: Callable[[str], None] = lambda text: None,
) -> dict[str, dict[str, float]]:
    """Trains each operation without every tenth shape and writes `habitat_*.npz` to `out`.

    Gives the mean absolute percentage error on held-out shapes, as a share, by operation and GPU,
    where a GPU has any.
    GPUs named in `without` stay out. DataError where the folder has no such table or GPU.
    """
    Path(out).mkdir(parents=True, exist_ok=True)
    provenance = {"data": data_hash(folder, _TABLES), "paper": "arXiv 2102.00527"}
    scores: dict[str, dict[str, float]] = {}
    for operation, parts in sorted(_measured(folder, without).items()):
        progress(f"{operation}: {sum(len(part.kernels) for part in parts)} rows")
        network = _network(parts, width, seen_rows, seed)
        seen = [part.gpu.name for part in parts if not part.held_out.all()]
        meta = {"provenance": provenance}
        item = NetworkFile(Habitat.name, operation, network, tuple(dict.fromkeys(seen)), {}, meta)
        save_network_file(item, Path(out))
        scores[operation] = {
            part.gpu.name: _error(item, part) for part in parts if part.held_out.any()
        }
        progress("  " + ", ".join(f"{gpu} {error:.1%}" for gpu, error in scores[operation].items()))
    return scores


def _measured(folder: str | Path, without: Sequence[str]) -> dict[str, list[TimedRows]]:
    """The rows of NVIDIA GPUs by operation, without the host's share."""
    found: dict[str, list[TimedRows]] = {}
    groups = read_dataset(folder, tables=_TABLES).groups
    left_out = left_out_gpus(without, {group.gpu.name for group in groups})
    for group in groups:
        if group.gpu.vendor == "nvidia" and group.gpu.name not in left_out:
            for operation, rows in _by_operation(group):
                if rows.kernels:
                    found.setdefault(operation, []).append(rows)
    if not found:
        raise DataError(f"{folder} has no products and no convolutions of NVIDIA GPUs.")
    return found


def _by_operation(group: Group) -> list[tuple[str, TimedRows]]:
    kernels = [launches[0] for launches in group.launches]
    names = np.array([operation_of(kernel) or "" for kernel in kernels])
    if not names.any():
        return []
    overhead_us, floor_us = label_overhead(group)
    rows = TimedRows(group.gpu, kernels, group.latency_us - overhead_us, is_held_out(group.shape))
    is_long = group.latency_us > OFF_THE_FLOOR * floor_us
    return [
        (name, rows.chosen((names == name) & is_long))
        for name in sorted(set(names.tolist()) - {""})
    ]


def _network(parts: Sequence[TimedRows], width: int, seen_rows: int, seed: int) -> IntegerNetwork:
    kept = [part.chosen(~part.held_out) for part in parts if not part.held_out.all()]
    inputs = np.concatenate([features_of(part.kernels, part.gpu) for part in kept])
    measured = np.concatenate([part.time_us for part in kept])
    epochs = max(1, round(min(MOST_EPOCHS, seen_rows / len(inputs))))
    sizes = (*(width,) * NUM_LAYERS, 1)
    return trained_network(
        inputs, [measured], _mape, sizes, DESCENT._replace(epochs=epochs), seed=seed
    )


def _mape(output: torch.Tensor, columns: Sequence[torch.Tensor]) -> torch.Tensor:
    """The mean of |p - y| / y, p the exponential of the output."""
    import torch

    (measured,) = columns
    predicted = torch.exp(output[:, 0].clamp(*LOG_RANGE))
    return ((predicted - measured).abs() / measured).mean()


def _error(item: NetworkFile, rows: TimedRows) -> float:
    kept = rows.chosen(rows.held_out)
    found = Habitat({item.name: item}).predict(kept.kernels, kept.gpu)
    predicted = np.array([estimate.latency_us for estimate in found])
    return float(np.abs(predicted / kept.time_us - 1.0).mean())
