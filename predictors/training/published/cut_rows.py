"""Measured kernels of NeuSight's classes, each with the tile that its launch shows."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from neusight.predictors.errors import DataError
from neusight.predictors.gpu import GPU, find_gpu
from neusight.predictors.kernel import Kernel, KernelClass
from neusight.predictors.published.classes import class_of
from neusight.predictors.published.neusight import shape_of
from neusight.predictors.training.dataset import Group, is_held_out
from neusight.predictors.training.datasheet import KnownGPUs
from neusight.predictors.training.evaluate import label_overhead
from neusight.predictors.training.tables.files import (
    DataFrame,
    found_table,
    grouped,
    read_table,
)
from neusight.predictors.training.tables.fp32 import FP32_TABLES

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

#: Labels from this many times the shortest on are of their kernel, not of the host.
OFF_THE_FLOOR = 1.3


@dataclass(frozen=True, eq=False)
class CutRows:
    """Rows of one class and GPU: the kernels, how they were cut, and their durations, µs."""

    gpu: GPU
    kernels: list[Kernel]
    tiles: NDArray[np.int64]
    time_us: Floats
    held_out: Bools

    def chosen(self, mask: Bools) -> CutRows:
        """The rows where `mask` is true."""
        kernels = [self.kernels[index] for index in np.flatnonzero(mask).tolist()]
        return CutRows(self.gpu, kernels, self.tiles[mask], self.time_us[mask], self.held_out[mask])


def measured_rows(
    folder: str | Path, *, without: Sequence[str] = ()
) -> dict[tuple[str, str], list[CutRows]]:
    """The rows of the table `kernels` by vendor and class, an entry a GPU; without overhead, and
    without those of some GPUs.

    DataError where the folder has no such table or no such GPU.
    """
    frame, book = _table_of(Path(folder)), KnownGPUs(Path(folder))
    beside = grouped(frame, ("gpu", "op"), book, "kernels", [])
    parts: dict[tuple[str, str], dict[str, list[CutRows]]] = {}
    for group, (_, _, rows) in zip(_TABLE.groups(frame, book, []), beside, strict=True):
        for name, found in _by_class(_measured(group, rows)):
            by_gpu = parts.setdefault((group.gpu.vendor, name), {})
            by_gpu.setdefault(group.gpu.name, []).append(found)
    if not parts:
        raise DataError(
            f"{folder} has no row of products or vectors whose kernel name states its tile."
        )
    left_out = left_out_gpus(without, {gpu for by_gpu in parts.values() for gpu in by_gpu})
    return {
        key: [_joined(pieces) for gpu, pieces in by_gpu.items() if gpu not in left_out]
        for key, by_gpu in parts.items()
        if not by_gpu.keys() <= left_out
    }


def left_out_gpus(names: Sequence[str], known: Collection[str]) -> set[str]:
    """The measured GPUs that are called so; DataError where one was not measured.

    >>> left_out_gpus(["t4"], {"T4", "P4"})
    {'T4'}
    """
    found = {find_gpu(name).name for name in names}
    for name in sorted(found - set(known)):
        raise DataError(f"{name} was not measured; the tables hold {', '.join(sorted(known))}.")
    return found


_TABLE = FP32_TABLES["kernels"]
_GRID = ("grid_x", "grid_y", "grid_z")


def _table_of(folder: Path) -> DataFrame:
    path = found_table(folder, "kernels")
    if path is None:
        raise DataError(f"{folder} holds no table `kernels`, which the predictor is fitted to.")
    frame = read_table(path, _TABLE)
    missing = [name for name in ("kernel_name", *_GRID) if name not in frame.columns]
    if missing:
        raise DataError(f"{path} lacks {', '.join(missing)}: it does not state the tiles.")
    return frame


def _by_class(rows: CutRows) -> Iterator[tuple[str, CutRows]]:
    """The rows of each class; a bmm of one product is no batched one."""
    names = np.array([class_of(kernel) or "" for kernel in rows.kernels])
    for name in sorted(set(names.tolist()) - {""}):
        yield name, rows.chosen(names == name)


def _measured(group: Group, rows: DataFrame) -> CutRows:
    overhead_us, floor_us = label_overhead(group)
    kernels = [launches[0] for launches in group.launches]
    grids = rows[list(_GRID)].to_numpy(dtype=np.int64)
    names = rows["kernel_name"].astype(str).tolist()
    tiles = [
        tile_of_launch(kernel, name, grid)
        for kernel, name, grid in zip(kernels, names, grids.tolist(), strict=True)
    ]
    known = np.array([tile is not None for tile in tiles])
    known &= group.latency_us > OFF_THE_FLOOR * floor_us
    measured = CutRows(
        group.gpu,
        kernels,
        np.array([tile or (1, 1) for tile in tiles], dtype=np.int64),
        group.latency_us - overhead_us,
        is_held_out(group.shape),
    )
    return measured.chosen(known)


#: A tile in a product's kernel name: cuBLAS ("sgemm_128x64_tn"), then hipBLAS ("_MT128x64x16_").
#: Both count in columns first, so the first figure is along our n.
_TILE_IN_NAME = re.compile(r"_(?:MT)?(\d+)x(\d+)(?:x\d+)?_")


def tile_of_launch(kernel: Kernel, name: str, grid: Sequence[int]) -> tuple[int, int] | None:
    """The tile that a measured launch shows: from the name of a product, else the elements of the
    output that a CTA has; None where the name does not state.

    >>> tile_of_launch(Kernel.gemm(64, 128, 32), "ampere_sgemm_128x64_tn", (1, 1, 1))
    (64, 128)
    """
    if kernel.kernel_class is KernelClass.GEMM:
        found = _TILE_IN_NAME.search(name)
        return (int(found[2]), int(found[1])) if found else None
    num_ctas = max(1, grid[0] * grid[1] * grid[2])
    _, rows, width, _ = shape_of(kernel)
    return (-(-rows * width // num_ctas), 1)


def _joined(pieces: Sequence[CutRows]) -> CutRows:
    return CutRows(
        pieces[0].gpu,
        [kernel for piece in pieces for kernel in piece.kernels],
        np.concatenate([piece.tiles for piece in pieces]),
        np.concatenate([piece.time_us for piece in pieces]),
        np.concatenate([piece.held_out for piece in pieces]),
    )
