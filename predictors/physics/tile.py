"""The CTA tiles and split-K factors a GEMM library chooses from."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from neusight.predictors.gpu import GPU

Floats = NDArray[np.float64]

#: CTA tiles (m, n) seen in the names of cuBLAS, CUTLASS and rocBLAS kernels.
TILES: tuple[tuple[int, int], ...] = (
    (128, 128),
    (128, 256),
    (256, 128),
    (256, 256),
    (64, 64),
    (64, 128),
    (128, 64),
    (64, 256),
    (256, 64),
    (16, 64),
    (16, 128),
    (32, 64),
    (32, 128),
    (64, 32),
    (128, 32),
    (32, 32),
    (64, 16),
    (128, 16),
)

#: In how many parts K is cut, each part a CTA of its own whose sums are added afterwards.
SPLITS: tuple[int, ...] = (1, 2, 4, 8, 16)

#: K elements a tile holds at once, and how many such stages are in flight (CUTLASS defaults).
STAGE_DEPTH = 64
NUM_STAGES = 3

#: Largest tile edges that matrix-unit-free (SIMT) libraries use: sgemm kernels end at 128x128.
SIMT_MAX_EDGE = 128


class Candidates(NamedTuple):
    """Every (tile, split) to try, as columns of shape (1, number of candidates)."""

    tile_m: Floats
    tile_n: Floats
    split: Floats


@cache
def candidates(*, matrix_unit: bool, splits: tuple[int, ...] = SPLITS) -> Candidates:
    """The candidates of a GEMM with or without matrix units; the same for every problem size,
    so that the best of them is never slower for a smaller problem."""
    tiles = [tile for tile in TILES if matrix_unit or max(tile) <= SIMT_MAX_EDGE]
    rows = [(tile_m, tile_n, split) for tile_m, tile_n in tiles for split in splits]
    table = np.array(rows, dtype=np.float64).T
    return Candidates(table[0:1], table[1:2], table[2:3])


def threads_of(tile: tuple[int, int]) -> int:
    """Threads of a CTA with that tile: four warps up to 128x64, eight up to 128x128, twelve above
    (two math groups and one that loads, as Hopper's kernels have)."""
    area = tile[0] * tile[1]
    if area <= 128 * 64:
        return 128
    return 256 if area <= 128 * 128 else 384


def tile_shared_memory_bytes(tile: tuple[int, int], itemsize: float, gpu: GPU) -> int:
    """Shared memory of a CTA with that tile, bytes: its stages of both operands, if they fit."""
    wanted = int((tile[0] + tile[1]) * STAGE_DEPTH * itemsize * NUM_STAGES)
    return min(wanted, gpu.shared_memory_per_block_optin_bytes)
