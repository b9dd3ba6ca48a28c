"""Files of measured kernels: found, read and checked, and their rows grouped."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from neusight.predictors.errors import DataError
from neusight.predictors.gpu import GPU
from neusight.predictors.training.dataset import Bools, Group, Launches
from neusight.predictors.training.datasheet import KnownGPUs

#: A table: pandas comes with an extra and has no types of its own.
DataFrame = Any


def data_hash(folder: str | Path, names: Sequence[str]) -> str:
    """Twelve hex digits of the bytes of those tables; for provenance."""
    digest = hashlib.sha256()
    for name in names:
        path = found_table(Path(folder), name) or Path(folder) / f"{name}.csv.gz"
        if path.exists():
            digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


def found_table(folder: Path, name: str) -> Path | None:
    """The file of a table, None where the folder has none."""
    for suffix in (".parquet", ".csv"):
        path = folder / f"{name}{suffix}"
        if path.exists():
            return path
    return None


def _pandas() -> Any:
    try:
        pandas = import_module("pandas")
        import_module("pyarrow")  # pandas reads .parquet through it
    except ImportError as error:
        raise DataError(
            "Reading tables of measurements needs pandas and pyarrow:"
            " pip install 'neusight-hooks[data]'."
        ) from error
    return pandas


def rows_of_file(path: Path) -> DataFrame:
    """A file's rows as they are."""
    pandas = _pandas()
    try:
        return pandas.read_parquet(path) if path.suffix == ".parquet" else pandas.read_csv(path)
    except Exception as error:  # pyarrow and pandas raise many kinds for a damaged file
        raise DataError(f"{path} cannot be read: {error}") from error


def read_table(path: Path, table: Table) -> DataFrame:
    """The rows of a file that are to be used; DataError where a column or a figure cannot be."""
    frame = rows_of_file(path)
    missing = [column for column in table.columns if column not in frame.columns]
    if missing:
        raise DataError(f"{path} lacks the columns {', '.join(missing)}; it has {len(frame)} rows.")
    if "primary" in frame.columns:
        frame = frame[frame["primary"].astype(bool)]
    _require(frame, path, "latency_us", least=0.0, inclusive=False)
    for column in table.sizes:
        if frame[column].notna().any():
            _require(frame, path, column, least=table.least, inclusive=True)
    if "consensus_us" in frame.columns:
        frame = frame.assign(latency_us=frame["consensus_us"].fillna(frame["latency_us"]))
        _require(frame, path, "latency_us", least=0.0, inclusive=False)
    return frame


def _require(frame: DataFrame, path: Path, column: str, *, least: float, inclusive: bool) -> None:
    """DataError where a figure is missing, infinite or too small; columns that some rows need
    (m of a matrix product) are looked at where they are filled."""
    values = frame[column]
    if column != "latency_us":
        values = values.dropna()
    try:
        numbers = values.to_numpy(dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise DataError(f"{path}: column {column} holds what is no number ({error}).") from error
    wrong = ~np.isfinite(numbers) | (numbers < least if inclusive else numbers <= least)
    if wrong.any():
        first = numbers[wrong][0]
        bound = f"at least {least:g}" if inclusive else f"above {least:g}"
        raise DataError(
            f"{path}: column {column} has {int(wrong.sum())} of {len(numbers)} rows with a value"
            f" that cannot be (the first is {first:g}); it must be finite and {bound}."
        )


#: torch's names of the dtypes in the tables.
DTYPES = {
    "bf16": "bfloat16",
    "fp16": "float16",
    "half": "float16",
    "fp32": "float32",
    "fp8_dynamic": "float8_e4m3fn",
    "fp8_block128": "float8_e4m3fn",
    "int8": "int8",
    "fp16_tensor_core": "float16",
    "fp16_storage_fp32_math": "float16",
}

#: Sources whose rows come from long profiler loops: on one GPU and shape they are as fast as burst
#: rows up to 0.3 ms and 10-17 % slower above, as sustained clocks are.
_SUSTAINED_SOURCES = "vidur"


def grouped(
    frame: DataFrame, keys: Sequence[str], book: KnownGPUs, table: str, left_out: list[str]
) -> Iterator[tuple[tuple[str, ...], GPU, DataFrame]]:
    """The rows of each key; groups that cannot be priced are shown in `left_out`."""
    for key, rows in frame.groupby(list(keys), observed=True, sort=True):
        names = tuple(str(part) for part in key)
        found = book.find(names[0])
        if isinstance(found, str):
            left_out.append(f"{table}: {len(rows)} rows of {names[0]}: {found}")
            continue
        yield names, found, rows


def group_of(
    rows: DataFrame,
    gpu: GPU,
    names: tuple[str, str, str, str],
    launches: Sequence[Launches],
    shape: Sequence[Any],
    **more: Any,
) -> Group:
    """The rows as a group; `names` are the table's GPU, the table, dtype and operation, `shape` the
    columns that identify a row's shape."""
    latency_us = rows["latency_us"].to_numpy(dtype=np.float64)
    label, table, dtype, operation = names
    return Group(
        label, gpu, table, dtype, operation, launches, latency_us, shape_numbers(*shape), **more
    )


def regimes(rows: DataFrame) -> Bools:
    """Which rows were measured at sustained clocks."""
    sustained = np.zeros(len(rows), dtype=np.bool_)
    if "clock_regime" in rows.columns:
        sustained |= (rows["clock_regime"].astype(str) == "sustained").to_numpy()
    if "source" in rows.columns:
        sustained |= rows["source"].astype(str).str.startswith(_SUSTAINED_SOURCES).to_numpy()
    return sustained


def by_regime(group: Group, sustained: Bools) -> Iterator[Group]:
    """The group in two: burst rows and sustained ones, where there are any."""
    for regime in (False, True):
        mask = sustained == regime
        if mask.any():
            yield replace(group.chosen(mask), sustained=regime)


def shape_numbers(*columns: Any) -> NDArray[np.uint64]:
    """A number for each row's shape."""
    mixed = np.zeros(len(columns[0]), dtype=np.uint64)
    for column in columns:
        values = np.asarray(column, dtype=np.float64).astype(np.int64).astype(np.uint64)
        mixed = (mixed ^ values) * np.uint64(0x100000001B3) + np.uint64(0x9E3779B97F4A7C15)
    return mixed


@dataclass(frozen=True)
class Table:
    """What a table must have, and how its rows become kernels."""

    columns: tuple[str, ...]
    sizes: tuple[str, ...]
    groups: Callable[[Any, KnownGPUs, list[str]], Iterator[Group]]
    least: float = 1.0
