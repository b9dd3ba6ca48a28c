"""Trains the multilayer perceptrons of the published predictors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from neusight.predictors.published.integer_network import IntegerNetwork, quantized
from neusight.predictors.training.descent import Descent, Layers, descend, first_layers, one_core

if TYPE_CHECKING:
    import torch

Floats = NDArray[np.float64]

#: Of a batch's outputs and columns, one number.
Loss = Callable[["torch.Tensor", Sequence["torch.Tensor"]], "torch.Tensor"]

#: How the perceptrons are trained, but for their epochs.
DESCENT = Descent(1, 1024, learning_rate=2e-3, weight_decay=1e-4, warm_up_share=0.1)

#: Hidden layers as published, and how wide those are that the package keeps (published: NeuSight
#: 512, Habitat 1,024).
NUM_LAYERS = 8
WIDTH = 128

#: Rows that a network sees in training, counted each time, and its epochs at most.
SEEN_ROWS = 3_000_000
MOST_EPOCHS = 400

#: A feature that varies less is constant in training.
_LEAST_SPREAD = 1e-3


def trained_network(
    features: Floats,
    columns: Sequence[Floats],
    loss: Loss,
    sizes: Sequence[int],
    descent: Descent,
    *,
    seed: int,
) -> IntegerNetwork:
    """The network whose outputs, rows x outputs, have the least mean `loss` beside `columns`.

    `sizes` are the widths of the hidden layers and the number of outputs. The features are
    standardized first; equal inputs and seeds give equal weights.
    """
    import torch

    mean, spread = features.mean(axis=0), np.maximum(features.std(axis=0), _LEAST_SPREAD)
    generator = torch.Generator().manual_seed(seed)

    def draw(matrix: torch.Tensor, num_inputs: int) -> torch.Tensor:
        """For ReLU (He et al. 2015, arXiv 1502.01852, equation 10)."""
        return matrix.normal_(0.0, (2.0 / num_inputs) ** 0.5, generator=generator)

    with one_core():
        tensors = [
            torch.tensor(column, dtype=torch.float32)
            for column in ((features - mean) / spread, *columns)
        ]
        layers = first_layers((features.shape[1], *sizes), draw)
        kept = descend(
            layers,
            tensors,
            lambda rows: loss(_output(layers, rows[0]), rows[1:]),
            descent,
            generator,
        )
    return IntegerNetwork(
        features.min(axis=0),
        features.max(axis=0),
        mean,
        spread,
        tuple((*quantized(matrix), bias) for matrix, bias in kept),
    )


def _output(layers: Layers, values: torch.Tensor) -> torch.Tensor:
    """What `IntegerNetwork.run` computes, for torch to differentiate."""
    import torch

    for index, (matrix, bias) in enumerate(layers):
        values = torch.relu(values) if index else values
        values = values @ matrix.T + bias
    return values
