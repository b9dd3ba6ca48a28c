"""Trained classes: the nearest launch of a table, and files that come back as they were written."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from neusight.predictors.errors import WeightsError
from neusight.predictors.gpu import find_gpu
from neusight.predictors.published.integer_network import IntegerNetwork
from neusight.predictors.published.trained_class import (
    TileTable,
    TrainedClass,
    load_classes,
    save_class,
)

V100, T4, H100 = find_gpu("V100-PCIE-32GB"), find_gpu("T4"), find_gpu("H100")
TABLE = TileTable(
    ((V100.name, 7.0, 80), (T4.name, 7.5, 40)),
    np.array([0, 0, 1]),
    np.array([[1, 64, 64, 64], [1, 4096, 4096, 64], [1, 64, 64, 64]]),
    np.array([[32, 32], [128, 64], [64, 64]]),
)


def small() -> TrainedClass:
    network = IntegerNetwork(
        np.zeros(2), np.ones(2), np.zeros(2), np.ones(2),
        ((np.array([[1, -2], [3, 4]], dtype=np.int8), np.ones(2), np.zeros(2)),),
    )  # fmt: skip
    return TrainedClass("nvidia", "bmm", network, TABLE, 0.1, 0.3, {"gpus": [V100.name, T4.name]})


def test_a_shape_takes_the_tile_of_the_nearest_launch_on_its_gpu() -> None:
    found = TABLE.nearest([(1, 100, 50, 64), (1, 2000, 9000, 64)], V100)
    assert found.tolist() == [[32, 32], [128, 64]]
    assert TABLE.nearest([(1, 4096, 4096, 64)], T4).tolist() == [[64, 64]]


def test_a_gpu_that_the_table_lacks_asks_the_one_most_like_it() -> None:
    assert TABLE.nearest([(1, 64, 64, 64)], H100).tolist() == [[64, 64]]


def test_what_was_saved_is_read_again(tmp_path: Path) -> None:
    path = save_class(small(), tmp_path)
    [(key, found)] = load_classes(tmp_path).items()
    assert key == ("nvidia", "bmm")
    assert found.tiles.shapes.tolist() == TABLE.shapes.tolist()
    assert found.spread_on(V100) == 0.1
    assert found.spread_on(H100) == 0.3
    inputs = np.array([[0.5, 0.25]])
    assert (found.network.run(inputs) == small().network.run(inputs)).all()
    first = path.read_bytes()
    assert save_class(found, tmp_path).read_bytes() == first


def test_a_file_without_tiles_says_what_it_lacks(tmp_path: Path) -> None:
    path = save_class(small(), tmp_path)
    with np.load(path) as archive:
        arrays = {name: archive[name] for name in archive.files if name != "tiles"}
    np.savez(path, allow_pickle=False, **arrays)
    with pytest.raises(WeightsError, match=r"lack what the predictor 'neusight' needs.*tiles"):
        load_classes(tmp_path)


def test_tiles_of_no_size_are_refused(tmp_path: Path) -> None:
    path = save_class(small(), tmp_path)
    with np.load(path) as archive:
        arrays = {name: archive[name] for name in archive.files}
    arrays["tiles"] = np.zeros_like(arrays["tiles"])
    np.savez(path, allow_pickle=False, **arrays)
    with pytest.raises(WeightsError, match="its tiles do not fit its shapes"):
        load_classes(tmp_path)
