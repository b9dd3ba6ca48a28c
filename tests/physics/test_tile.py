"""Tiles and splits to choose from."""

from __future__ import annotations

from neusight.predictors.gpu import find_gpu
from neusight.predictors.physics.tile import (
    SPLITS,
    TILES,
    candidates,
    threads_of,
    tile_shared_memory_bytes,
)


def test_every_tile_is_tried_with_every_split() -> None:
    table = candidates(matrix_unit=True)

    assert table.tile_m.shape == (1, len(TILES) * len(SPLITS))


def test_ordinary_cores_have_no_tile_above_128() -> None:
    table = candidates(matrix_unit=False)

    assert table.tile_m.max() == table.tile_n.max() == 128


def test_threads_grow_with_the_tile() -> None:
    assert [threads_of(tile) for tile in ((64, 64), (128, 128), (128, 256))] == [128, 256, 384]


def test_shared_memory_of_a_tile_fits_a_block() -> None:
    for name in ("T4", "A100", "H100"):
        one = find_gpu(name)
        for tile in TILES:
            wanted = tile_shared_memory_bytes(tile, 4, one)
            assert 0 < wanted <= one.shared_memory_per_block_optin_bytes
