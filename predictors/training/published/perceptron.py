"""Trains the multilayer perceptrons of the published predictors, with torch, on one core."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from neusight.predictors.published.integer_network import IntegerNetwork, quantized

if TYPE_CHECKING:
    import torch

Floats = NDArray[np.float64]

#: Of a batch's outputs and columns, one number.
Loss = Callable[["torch.Tensor", Sequence["torch.Tensor"]], "torch.Tensor"]

#: Share of the steps in which the learning rate rises.
_WARM_UP_SHARE = 0.1

#: A feature that varies less is constant in training.
_LEAST_SPREAD = 1e-3


class Descent(NamedTuple):
    """The widths of the hidden layers, the number of outputs, and how AdamW goes through it."""

    hidden: tuple[int, ...]
    num_outputs: int
    epochs: int
    batch_rows: int
    learning_rate: float
    weight_decay: float


def trained_network(
    features: Floats,
    columns: Sequence[Floats],
    loss: Loss,
    descent: Descent,
    *,
    seed: int,
) -> IntegerNetwork:
    """The network whose outputs, rows x outputs, have the least mean `loss` beside `columns`.

    The features are standardized first; equal inputs and seeds give equal weights.
    """
    import torch

    mean, spread = features.mean(axis=0), np.maximum(features.std(axis=0), _LEAST_SPREAD)
    previous = torch.get_num_threads()
    torch.set_num_threads(1)  # the order of sums, and so the weights, depends on it
    try:
        inputs, *others = (
            torch.tensor(column, dtype=torch.float32)
            for column in ((features - mean) / spread, *columns)
        )
        layers = _descended(inputs, others, loss, descent, torch.Generator().manual_seed(seed))
    finally:
        torch.set_num_threads(previous)
    kept = [(_array(matrix), _array(bias)) for matrix, bias in layers]
    return IntegerNetwork(
        features.min(axis=0),
        features.max(axis=0),
        mean,
        spread,
        tuple((*quantized(matrix), bias) for matrix, bias in kept),
    )


def _array(tensor: torch.Tensor) -> Floats:
    found: Floats = tensor.detach().numpy().astype(np.float64)
    return found


def _descended(
    inputs: torch.Tensor,
    columns: Sequence[torch.Tensor],
    loss: Loss,
    descent: Descent,
    generator: torch.Generator,
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    import torch

    layers = _first_layers((inputs.shape[1], *descent.hidden, descent.num_outputs), generator)
    batch = min(descent.batch_rows, len(inputs))
    num_steps = descent.epochs * (len(inputs) // batch)
    optimizer, schedule = _optimizer(layers, descent, num_steps)
    for _ in range(descent.epochs):
        order = torch.randperm(len(inputs), generator=generator)
        for start in range(0, len(inputs) - batch + 1, batch):
            rows = order[start : start + batch]
            missed = loss(_output(layers, inputs[rows]), [column[rows] for column in columns])
            optimizer.zero_grad()
            torch.autograd.backward(missed)
            optimizer.step()
            schedule.step()
    return layers


def _optimizer(
    layers: Sequence[tuple[torch.Tensor, torch.Tensor]], descent: Descent, num_steps: int
) -> tuple[torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler]:
    """AdamW, whose rate rises at first and then falls to nothing."""
    import torch

    optimizer = torch.optim.AdamW(
        [part for layer in layers for part in layer],
        lr=descent.learning_rate,
        weight_decay=descent.weight_decay,
    )
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, descent.learning_rate, total_steps=num_steps + 1, pct_start=_WARM_UP_SHARE
    )
    return optimizer, schedule


def _first_layers(
    sizes: Sequence[int], generator: torch.Generator
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Matrices for ReLU (He et al. 2015, arXiv 1502.01852, equation 10), and biases of zero."""
    import torch

    layers = []
    for before, after in pairwise(sizes):
        drawn = torch.empty(after, before).normal_(0.0, (2.0 / before) ** 0.5, generator=generator)
        layers.append((drawn.requires_grad_(), torch.zeros(after, requires_grad=True)))
    return layers


def _output(
    layers: Sequence[tuple[torch.Tensor, torch.Tensor]], values: torch.Tensor
) -> torch.Tensor:
    """What `IntegerNetwork.run` computes, for torch to differentiate."""
    import torch

    for index, (matrix, bias) in enumerate(layers):
        values = torch.relu(values) if index else values
        values = values @ matrix.T + bias
    return values
