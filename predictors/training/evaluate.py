"""Scores predictors on tables of measured kernels, by GPU, table, dtype, operation and size."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from neusight.predictors.errors import DataError, UnsupportedKernelError
from neusight.predictors.formatting import aligned
from neusight.predictors.kernel import KernelClass
from neusight.predictors.learned.correction import SIZE_CLASSES_US
from neusight.predictors.predictor import Predictor
from neusight.predictors.registry import find_predictor
from neusight.predictors.terminal_text import printable
from neusight.predictors.tiled import Tiled
from neusight.predictors.training.dataset import Dataset, Group, is_held_out
from neusight.predictors.training.reading import read_dataset

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

SIZE_NAMES = ("<10us", "10-100us", "0.1-1ms", ">1ms")

#: Share of the rows of a table with host overhead that estimate it; they are not scored.
CALIBRATION_SHARE = 0.1
CALIBRATION_SALT = 1


#: Rows priced at once.
_CHUNK = 50_000


@dataclass(frozen=True)
class Score:
    """How near a predictor came on some rows; shares, not percent.

    `size_class` is "all", a range of measured time, or "above_floor": rows with host overhead that
    take more than twice the floor. `sum_error` is Σpredicted/Σmeasured − 1.
    """

    gpu: str
    table: str
    dtype: str
    phase_or_op: str
    size_class: str
    num_rows: int
    mape: float
    median_ape: float
    p90_ape: float
    sum_error: float
    within_interval: float
    predictor: str
    clock_regime: str = "burst"
    label_overhead_us: float | None = None


@dataclass(frozen=True)
class Report:
    """All scores of a folder, and what could not be scored with the reason."""

    rows: tuple[Score, ...]
    left_out: tuple[str, ...]

    def to_json(self) -> dict[str, object]:
        """The document of `neusight evaluate --json`."""
        return {
            "schema_version": 1,
            "rows": [asdict(row) for row in self.rows],
            "left_out": list(self.left_out),
        }


class Prices(NamedTuple):
    """What a predictor says of each row, µs: the sum over what the row launched."""

    latency_us: Floats
    low_us: Floats
    high_us: Floats


def score_folder(folder: str | Path, *, predictors: Sequence[str] = ("tiled",)) -> Report:
    """Prices every row of the tables in a folder and scores each predictor.

    DataError where the folder or a table cannot be used; ValueError for an unknown predictor.
    """
    return score_dataset(read_dataset(folder), predictors=predictors)


def score_dataset(
    dataset: Dataset,
    *,
    predictors: Sequence[str],
    progress: Callable[[str], None] = lambda text: None,
) -> Report:
    """The same of rows that were read already."""
    left_out = list(dataset.left_out)
    rows: list[Score] = []
    for name in predictors:
        chosen = {regime: in_regime(name, sustained=regime) for regime in (False, True)}
        for group in dataset.groups:
            progress(f"{name} {group.gpu_label} {group.table} {group.dtype} {group.phase_or_op}")
            try:
                rows += _scored(group, chosen[group.sustained], name)
            except UnsupportedKernelError as error:
                left_out.append(f"{group.table}: {len(group.launches)} rows: {error}")
    if not rows:
        raise DataError(
            f"No row of {dataset.folder} could be scored: {'; '.join(left_out) or 'no rows'}."
        )
    return Report(tuple(rows), tuple(dict.fromkeys(left_out)))


def in_regime(name: str, *, sustained: bool) -> Predictor:
    """The predictor at the clocks of the labels."""
    return find_predictor("tiled_burst" if name == "tiled" and not sustained else name)


def _scored(group: Group, chosen: Predictor, name: str) -> Iterator[Score]:
    prices = priced(group, chosen)
    if not group.has_overhead:
        yield from scores_of(group, prices, name=name)
        return
    overhead_us, floor_us = label_overhead(group)
    scored = ~is_calibration(group)
    measured = np.maximum(group.latency_us - overhead_us, LEAST_LABEL_US)
    kept = group.chosen(scored)
    yield from scores_of(
        kept,
        Prices(*(values[scored] for values in prices)),
        name=name,
        measured_us=measured[scored],
        above_floor=group.latency_us[scored] > ABOVE_FLOOR * floor_us,
        overhead_us=overhead_us,
    )


#: Labels from this many times the shortest on are of their kernel.
ABOVE_FLOOR = 2.0

#: What is left of a label at least, once the host's share is off.
LEAST_LABEL_US = 0.1


def is_calibration(group: Group) -> Bools:
    """The rows that estimate the host's overhead: a tenth of the shapes, chosen by their hash."""
    return is_held_out(group.shape, share=CALIBRATION_SHARE, salt=CALIBRATION_SALT)


def label_overhead(group: Group) -> tuple[float, float]:
    """The host's share of each label and the shortest label, µs, of that GPU and operation.

    From the calibration rows alone. Streaming operations, whose time is a multiple of the physics',
    give their overhead as the intercept of their labels over it: the shortest label would be too
    much, as launches overlap with longer kernels (V100: 29 µs for add, which leaves 1,045 GB/s of
    900; the intercept is 15). For others it is the shortest label less the shortest kernel.
    """
    rows = group.chosen(is_calibration(group))
    if not len(rows.latency_us):
        return 0.0, 0.0
    times = priced(rows, Tiled(correction=None)).latency_us
    floor = float(rows.latency_us.min())
    if rows.launches[0][-1].kernel_class is KernelClass.ELEMENTWISE:
        longer = rows.latency_us > _OFF_THE_FLOOR * floor
        if longer.sum() >= _LEAST_LONGER:
            return _intercept(times[longer], rows.latency_us[longer], floor), floor
    return max(0.0, floor - float(times.min())), floor


#: Labels from this many times the shortest on are not held up by the host; at least so many.
_OFF_THE_FLOOR = 1.3
_LEAST_LONGER = 10

#: Overheads tried between two bounds, then again around the best of them, so often.
_NUM_TRIED = 33
_NUM_ROUNDS = 4


def _intercept(times: Floats, labels: Floats, floor: float) -> float:
    """The overhead between none and `floor` at which labels are, in the mean of |log|, nearest to
    it plus a multiple of `times`."""

    def error(overhead: float) -> float:
        slope = float(np.median((labels - overhead) / times))
        return float(np.abs(np.log((overhead + slope * times) / labels)).mean())

    low, best, high = 0.0, 0.0, floor
    for _ in range(_NUM_ROUNDS):
        tried = np.linspace(low, high, _NUM_TRIED).tolist()
        best = min(tried, key=error)
        step = (high - low) / (_NUM_TRIED - 1)
        low, high = max(0.0, best - step), min(floor, best + step)
    return best


def priced(group: Group, chosen: Predictor) -> Prices:
    """The price of each row: its launches, one after the other."""
    totals = np.zeros((3, len(group.launches)))
    for start in range(0, len(group.launches), _CHUNK):
        rows = group.launches[start : start + _CHUNK]
        flat = [kernel for launch in rows for kernel in launch]
        owners = [start + index for index, launch in enumerate(rows) for _ in launch]
        found = chosen.predict(flat, group.gpu)
        times = np.array([(item.latency_us, item.low_us, item.high_us) for item in found])
        np.add.at(totals.T, owners, times)
    return Prices(*totals)


def scores_of(
    group: Group,
    prices: Prices,
    *,
    name: str,
    measured_us: Floats | None = None,
    above_floor: Bools | None = None,
    overhead_us: float | None = None,
) -> Iterator[Score]:
    """A score of all rows, and one a size class that has any."""
    measured = group.latency_us if measured_us is None else measured_us
    classes = np.searchsorted(np.array(SIZE_CLASSES_US), measured, side="right")
    masks: list[tuple[str, Bools]] = [("all", np.ones(len(measured), dtype=np.bool_))]
    masks += [(label, classes == index) for index, label in enumerate(SIZE_NAMES)]
    if above_floor is not None:
        masks.append(("above_floor", above_floor))
    if group.is_model_shape is not None:
        masks.append(("model_shapes", group.is_model_shape))
    for label, mask in masks:
        if mask.any():
            yield _score(group, prices, mask, measured[mask], label, name, overhead_us)


def _score(
    group: Group,
    prices: Prices,
    mask: Bools,
    truth: Floats,
    size_class: str,
    name: str,
    overhead_us: float | None,
) -> Score:
    guess = prices.latency_us[mask]
    error = np.abs(guess / truth - 1.0)
    inside = (prices.low_us[mask] <= truth) & (truth <= prices.high_us[mask])
    return Score(
        gpu=group.gpu_label,
        table=group.table,
        dtype=group.dtype,
        phase_or_op=group.phase_or_op,
        size_class=size_class,
        num_rows=int(mask.sum()),
        mape=_rounded(error.mean()),
        median_ape=_rounded(np.median(error)),
        p90_ape=_rounded(np.quantile(error, 0.9)),
        sum_error=_rounded(guess.sum() / truth.sum() - 1.0),
        within_interval=_rounded(inside.mean()),
        predictor=name,
        clock_regime="sustained" if group.sustained else "burst",
        label_overhead_us=None if overhead_us is None else round(overhead_us, 2),
    )


def _rounded(value: Any) -> float:
    return round(float(value), 5)


def table_of(rows: Sequence[Score], *, every_size: bool = False) -> str:
    """The scores as people read them: percent, a line each; size classes where asked for."""
    head = ("gpu", "table", "dtype", "op", "size", "rows", "MAPE", "median", "p90", "sum", "in 80%")
    lines = [[*head, "predictor"]]
    lines += [
        [
            row.gpu,
            row.table,
            row.dtype,
            row.phase_or_op,
            row.size_class,
            f"{row.num_rows}",
            f"{row.mape:.1%}",
            f"{row.median_ape:.1%}",
            f"{row.p90_ape:.1%}",
            f"{row.sum_error:+.1%}",
            f"{row.within_interval:.0%}",
            row.predictor,
        ]
        for row in rows
        if every_size or row.size_class in ("all", "above_floor", "model_shapes")
    ]
    lines = [[printable(cell) for cell in line] for line in lines]
    return "\n".join(aligned(lines, left=range(5)))
