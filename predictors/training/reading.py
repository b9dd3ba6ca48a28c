"""A folder of measured kernels as a dataset, whatever wrote it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from neusight.predictors.errors import DataError
from neusight.predictors.gpu import GPU
from neusight.predictors.training.dataset import Dataset, Group
from neusight.predictors.training.datasheet import KnownGPUs
from neusight.predictors.training.measured import measured_dataset
from neusight.predictors.training.tables.convolutions import CONVOLUTION_TABLES
from neusight.predictors.training.tables.files import Table, found_table, read_table
from neusight.predictors.training.tables.fp32 import FP32_TABLES
from neusight.predictors.training.tables.modern import MODERN_TABLES

TABLES: dict[str, Table] = {**MODERN_TABLES, **FP32_TABLES, **CONVOLUTION_TABLES}


def read_dataset(
    folder: str | Path, *, tables: Sequence[str] | None = None, only: GPU | None = None
) -> Dataset:
    """Reads the tables of a folder, all or those named; with `only`, the rows of that GPU.

    DataError where the folder has none, a column is missing, a figure is impossible, or pandas is.
    """
    place = Path(folder)
    if not place.is_dir():
        raise DataError(f"There is no folder {place} with tables of measurements.")
    if (place / "environment.json").exists():  # written by `neusight measure`, in its own form
        return measured_dataset(place, tables=tables)
    known = {name: found_table(place, name) for name in tables or TABLES}
    present = {name: path for name, path in known.items() if path is not None}
    if not present:
        raise DataError(
            f"{place} holds no table that neusight knows; it reads"
            f" {', '.join(f'{name}.parquet' for name in TABLES)} (or .csv)."
        )
    book = KnownGPUs(place, only)
    groups: list[Group] = []
    left_out: list[str] = []
    for name, path in present.items():
        frame = read_table(path, TABLES[name])
        groups += list(TABLES[name].groups(frame, book, left_out))
    return Dataset(place, tuple(groups), tuple(left_out))
