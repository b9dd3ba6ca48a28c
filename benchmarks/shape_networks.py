"""Networks that price a product by its raw shape alone: python benchmarks/shape_networks.py DATA.

The paper on NeuSight (arXiv 2407.13853) shows that networks which see a kernel's raw sizes and a
GPU's figures, and give its latency, fail on larger products and on GPUs that they were not trained
on. This trains perceptrons of 8 and 16 layers and small Transformers of 3 and 6 on the batched FP32
products of data/paper_fp32 whose sizes are at most 512, without the newest GPU, and scores them
on: held-out shapes of the same range, larger shapes, and the GPU left out. Beside them NeuSight's
own form, trained on the same rows, with the tiles of the rows. Mean absolute percentage error;
`--csv FILE` keeps it (recorded: benchmarks/shape_networks.csv).
"""

from __future__ import annotations

import argparse
import csv
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from neusight.predictors.published.neusight import (
    LEAST_UTILIZATION,
    features_of,
    ideal_us,
    shape_of,
    tilings,
)
from neusight.predictors.training.published.cut_rows import CutRows, measured_rows

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

#: Largest of m, n and k in training; the tables go to 4,096.
LARGEST_TRAINED = 512
LEFT_OUT = "A100-PCIE-40GB"

#: Width of the layers, heads of the Transformers, rows of a batch, AdamW's highest rate, seed.
WIDTH = 64
NUM_HEADS = 4
BATCH_ROWS = 512
LEARNING_RATE = 1e-3
SEED = 0

#: Share of the time in which the rate rises.
WARM_UP_SHARE = 0.05


class Rows(NamedTuple):
    """What networks see of a row, raw and as NeuSight has it, what was measured, and its split."""

    raw: Floats
    tiled: Floats
    ideal_us: Floats
    waves: Floats
    time_us: Floats
    largest: Floats
    is_left_out: Bools
    is_held_out: Bools


def rows_of(parts: Sequence[CutRows]) -> Rows:
    """All rows of a class, of every GPU."""
    pieces = []
    for part in parts:
        gpu = part.gpu
        tiling = tilings(part.kernels, part.tiles)
        shapes = np.array([shape_of(kernel) for kernel in part.kernels], dtype=np.float64)
        figures = (
            gpu.peak_flops("fp32") / 1e12,
            gpu.bandwidth_gbps,
            gpu.num_sms,
            gpu.l2_bytes / 2**20,
            gpu.memory_bytes / 2**30,
        )
        count = len(shapes)
        pieces.append(
            Rows(
                np.hstack([shapes, np.tile(figures, (count, 1))]),
                features_of(part.kernels, tiling, gpu),
                ideal_us(part.kernels, tiling, gpu),
                tiling.waves_on(gpu),
                part.time_us,
                shapes[:, 1:].max(axis=1),
                np.full(count, gpu.name == LEFT_OUT),
                part.held_out,
            )
        )
    return Rows(*(np.concatenate(column) for column in zip(*pieces, strict=True)))


class SizesAsTokens(torch.nn.Module):
    """A Transformer whose tokens are the sizes and figures, one each."""

    def __init__(self, num_inputs: int, num_layers: int) -> None:
        super().__init__()
        self.scale = torch.nn.Parameter(torch.randn(num_inputs, WIDTH) * 0.1)
        self.place = torch.nn.Parameter(torch.randn(num_inputs, WIDTH) * 0.1)
        layer = torch.nn.TransformerEncoderLayer(
            WIDTH, NUM_HEADS, 2 * WIDTH, dropout=0.0, batch_first=True, norm_first=True
        )
        self.layers = torch.nn.TransformerEncoder(layer, num_layers, enable_nested_tensor=False)
        self.output = torch.nn.Linear(WIDTH, 1)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """The logarithm of each row's latency, rows x 1."""
        tokens = inputs[:, :, None] * self.scale + self.place
        found: torch.Tensor = self.output(self.layers(tokens).mean(dim=1))
        return found


def perceptron(num_inputs: int, num_layers: int, num_outputs: int = 1) -> torch.nn.Module:
    """Layers with ReLU between them."""
    widths = [num_inputs, *[WIDTH] * num_layers]
    layers: list[torch.nn.Module] = []
    for before, after in pairwise(widths):
        layers += [torch.nn.Linear(before, after), torch.nn.ReLU()]
    return torch.nn.Sequential(*layers, torch.nn.Linear(WIDTH, num_outputs))


#: Networks by name: how one is made for a number of inputs, and whether it sees tiles.
NETWORKS: dict[str, tuple[Callable[[int], torch.nn.Module], bool]] = {
    "perceptron of 8 layers": (lambda inputs: perceptron(inputs, 8), False),
    "perceptron of 16 layers": (lambda inputs: perceptron(inputs, 16), False),
    "transformer of 3 layers": (lambda inputs: SizesAsTokens(inputs, 3), False),
    "transformer of 6 layers": (lambda inputs: SizesAsTokens(inputs, 6), False),
    "neusight": (lambda inputs: perceptron(inputs, 8, 2), True),
}


def splits_of(rows: Rows) -> dict[str, Bools]:
    """Rows by what was kept of them from training."""
    small = rows.largest <= LARGEST_TRAINED
    here = ~rows.is_left_out
    return {
        "trained": here & small & ~rows.is_held_out,
        "held-out shapes": here & small & rows.is_held_out,
        "up to twice as large": here & ~small & (rows.largest <= 2 * LARGEST_TRAINED),
        "larger": here & (rows.largest > 2 * LARGEST_TRAINED),
        "unseen GPU": rows.is_left_out & small,
        "unseen GPU, larger": rows.is_left_out & ~small,
    }


def errors_of(name: str, rows: Rows, *, seconds: float) -> dict[str, float]:
    """The mean |predicted / measured - 1| of a network on each split, trained so long."""
    made, is_tiled = NETWORKS[name]
    torch.manual_seed(SEED)
    splits = splits_of(rows)
    inputs = rows.tiled if is_tiled else rows.raw
    kept = inputs[splits["trained"]]
    seen = _tensor((inputs - kept.mean(axis=0)) / np.maximum(kept.std(axis=0), 1e-3))
    columns = [_tensor(column) for column in (rows.ideal_us, rows.waves, rows.time_us)]
    network = made(inputs.shape[1])
    trained = torch.tensor(np.flatnonzero(splits["trained"]))
    optimizer = torch.optim.AdamW(network.parameters(), lr=LEARNING_RATE)
    for share in _shares(seconds):
        rate = min(1.0, share / WARM_UP_SHARE) * 0.5 * (1.0 + np.cos(np.pi * share))
        for group in optimizer.param_groups:
            group["lr"] = LEARNING_RATE * rate
        chosen = trained[torch.randint(len(trained), (BATCH_ROWS,))]
        ideal, waves, measured = (column[chosen] for column in columns)
        predicted = _latency(network(seen[chosen]), ideal, waves, is_tiled=is_tiled)
        missed = (2.0 * (predicted - measured).abs() / (predicted + measured)).mean()
        optimizer.zero_grad()
        torch.autograd.backward(missed)
        optimizer.step()
    with torch.no_grad():
        parts = [
            _latency(network(seen[start:stop]), *(column[start:stop] for column in columns[:2]),
                     is_tiled=is_tiled)
            for start, stop in _chunks(len(seen))
        ]  # fmt: skip
    apart = np.abs(torch.cat(parts).numpy() / rows.time_us - 1.0)
    return {split: float(apart[mask].mean()) for split, mask in splits.items() if mask.any()}


def _latency(
    output: torch.Tensor, ideal: torch.Tensor, waves: torch.Tensor, *, is_tiled: bool
) -> torch.Tensor:
    if not is_tiled:
        return torch.exp(output[:, 0].clamp(-7.0, 22.0))
    alpha, beta = torch.sigmoid(output).unbind(1)
    return ideal / (alpha - beta / waves).clamp_min(LEAST_UTILIZATION)


def _shares(seconds: float) -> Iterator[float]:
    """How much of the processor's time is over, once a step, until it is."""
    start = time.process_time()
    while (share := (time.process_time() - start) / seconds) < 1.0:
        yield share


def _chunks(count: int, size: int = 8192) -> Iterator[tuple[int, int]]:
    for start in range(0, count, size):
        yield start, min(count, start + size)


def _tensor(values: Floats) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float32)


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints a line for each network, a column for each split."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("data", metavar="DATA", type=Path, help="the folder of the FP32 tables")
    parser.add_argument("--seconds", type=float, default=30.0, help="of training, each network")
    parser.add_argument("--csv", type=Path, metavar="FILE", help="write the figures there too")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    rows = rows_of(measured_rows(options.data)["nvidia", "bmm"])
    counts = {split: int(mask.sum()) for split, mask in splits_of(rows).items()}
    print(", ".join(f"{split}: {count} rows" for split, count in counts.items()))
    lines = []
    for name in NETWORKS:
        errors = errors_of(name, rows, seconds=options.seconds)
        lines += [(name, split, counts[split], round(error, 4)) for split, error in errors.items()]
        print(f"{name:<24}", *(f"{split} {error:.1%}" for split, error in errors.items()), sep="  ")
    if options.csv is not None:
        with options.csv.open("w", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(("network", "split", "num_rows", "mape"))
            writer.writerows(lines)
    return 0


if __name__ == "__main__":
    sys.exit(main())
