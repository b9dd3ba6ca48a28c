"""Reads the CSV files of suites and checks their columns."""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from pathlib import Path

from neusight.predictors.errors import DataError

Row = dict[str, str]


def read_rows(path: Path, columns: Sequence[str]) -> list[Row]:
    """All rows of a CSV file; DataError where it does not exist, is empty or lacks a column."""
    try:
        with path.open(newline="", encoding="utf-8") as stream:
            reader = csv.DictReader(stream, strict=True)
            names = reader.fieldnames or ()
            missing = [name for name in columns if name not in names]
            if missing:
                raise DataError(
                    f"{path} lacks the column{'s' * (len(missing) > 1)} {', '.join(missing)}."
                )
            rows = list(reader)
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}.") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path} is no table of comma-separated values: {error}.") from error
    if not rows:
        raise DataError(f"{path} has no rows.")
    short = next((n for n, row in enumerate(rows, 2) if None in row.values() or None in row), None)
    if short is not None:
        raise DataError(f"{path}: row {short} has another number of cells than the head.")
    return rows


def number_in(row: Row, column: str, path: Path) -> float:
    """A positive number of a row; DataError where the cell says anything else."""
    try:
        value = float(row[column])
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value > 0.0):
        raise DataError(f"{path}: {column} is {row[column]!r}; it must be a positive number.")
    return value


def whole_in(row: Row, column: str, path: Path) -> int:
    """A positive integer of a row; DataError where the cell has anything else."""
    value = number_in(row, column, path)
    if value != int(value):
        raise DataError(f"{path}: {column} is {row[column]!r}; it must be a whole number.")
    return int(value)
