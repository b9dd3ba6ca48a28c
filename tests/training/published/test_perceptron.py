"""Perceptrons learn what they are shown, twice the same."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from neusight.predictors.training.published.perceptron import DESCENT, trained_network

SIZES = (16, 16, 1)
QUICK = DESCENT._replace(epochs=60, batch_rows=64, learning_rate=1e-2, weight_decay=0.0)


def squares(output: torch.Tensor, columns: Sequence[torch.Tensor]) -> torch.Tensor:
    return ((output[:, 0] - columns[0]) ** 2).mean()


def test_a_line_is_learnt_and_equal_seeds_give_equal_networks() -> None:
    generator = np.random.default_rng(0)
    inputs = generator.normal(size=(512, 2))
    wanted = 2.0 * inputs[:, 0] - inputs[:, 1]

    first, second = (
        trained_network(inputs, [wanted], squares, SIZES, QUICK, seed=1) for _ in range(2)
    )

    assert np.abs(first.run(inputs)[:, 0] - wanted).mean() < 0.2
    assert (first.run(inputs) == second.run(inputs)).all()


def test_the_number_of_threads_is_as_before() -> None:
    before = torch.get_num_threads()
    once = QUICK._replace(epochs=1)
    trained_network(np.ones((8, 1)), [np.ones(8)], squares, SIZES, once, seed=0)
    assert torch.get_num_threads() == before
