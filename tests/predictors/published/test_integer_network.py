"""Whole-number networks: as a plain network within the grid, and bit-equal in any order."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from neusight.predictors.published.integer_network import MOST_WEIGHT, IntegerNetwork, quantized

Floats = NDArray[np.float64]


def network(generator: np.random.Generator, sizes: tuple[int, ...]) -> IntegerNetwork:
    layers = []
    for before, after in pairwise(sizes):
        weight = generator.normal(size=(after, before)) / before**0.5
        layers.append((*quantized(weight), generator.normal(size=after)))
    width = sizes[0]
    return IntegerNetwork(
        np.full(width, -5.0), np.full(width, 5.0), np.zeros(width), np.ones(width), tuple(layers)
    )


def plain(item: IntegerNetwork, inputs: Floats) -> Floats:
    values = np.clip(inputs, item.low, item.high)
    for index, (weights, scale, bias) in enumerate(item.layers):
        values = np.maximum(values, 0.0) if index else values
        values = values @ (weights * scale[:, None]).T + bias
    return values


def test_it_computes_what_a_network_of_floats_does_to_the_grid() -> None:
    generator = np.random.default_rng(1)
    item = network(generator, (5, 32, 32, 2))
    inputs = generator.normal(size=(200, 5))
    assert np.abs(item.run(inputs) - plain(item, inputs)).max() < 1e-2


def test_rows_have_the_same_bits_whatever_lies_beside_them_and_in_whatever_order() -> None:
    generator = np.random.default_rng(2)
    item = network(generator, (5, 64, 64, 2))
    inputs = generator.normal(size=(3000, 5))
    order = generator.permutation(len(inputs))
    found = item.run(inputs)
    assert (item.run(inputs[order]) == found[order]).all()
    assert (item.run(inputs[7:8]) == found[7:8]).all()


def test_sums_are_exact_in_any_order_of_the_inner_values() -> None:
    """The largest weights and values a layer may hold: whole numbers below 2^53 all the way."""
    generator = np.random.default_rng(3)
    weights = np.full((1, 512), MOST_WEIGHT, dtype=np.int8)
    steps = generator.integers(2**27, 2**28, size=(1, 512)).astype(np.float64)
    exact = sum(int(step) * MOST_WEIGHT for step in steps[0])
    assert int((steps @ weights.T.astype(np.float64))[0, 0]) == exact


def test_inputs_beyond_those_of_training_count_as_the_nearest_of_them() -> None:
    item = network(np.random.default_rng(4), (3, 8, 1))
    assert (item.run(np.full((1, 3), 1e9)) == item.run(np.full((1, 3), 5.0))).all()


def test_no_rows_give_no_outputs() -> None:
    assert network(np.random.default_rng(5), (3, 8, 2)).run(np.zeros((0, 3))).shape == (0, 2)


def test_a_row_of_zeros_keeps_a_scale() -> None:
    steps, scale = quantized(np.zeros((2, 3)))
    assert not steps.any()
    assert (scale > 0).all()
