"""The candidates in order: the fastest and the cheapest that fit, and why others are out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from neusight.integrations.cli.planning.candidates import Candidate
from neusight.integrations.cli.planning.points import PlanPoint
from neusight.integrations.report.side_by_side import SideBySideRow, fits_cell, text_table
from neusight.predictors.formatting import milliseconds_text
from neusight.predictors.terminal_text import printable

#: Raised when the form of the document changes.
SCHEMA_VERSION = 1

RankedBy = Literal["time", "cost"]

_GIB = 2**30
_MILLION = 1e6
_THOUSAND = 1e3


@dataclass(frozen=True)
class _Unit:
    """What times and costs are for: a thousand steps, or a million of the batch of a step."""

    name: str
    rate: Callable[[SideBySideRow], float | None]
    cost: Callable[[SideBySideRow], float | None]
    count: float


_UNITS = (
    _Unit("tokens", lambda r: r.tokens_per_second, lambda r: r.cost_per_million_tokens, _MILLION),
    _Unit(
        "samples", lambda r: r.samples_per_second, lambda r: r.cost_per_million_samples, _MILLION
    ),
    _Unit("steps", lambda r: 1e6 / r.latency_us, lambda r: r.cost_per_thousand_steps, _THOUSAND),
)


@dataclass(frozen=True)
class Ranking:
    """The points in the order of their candidates, whatever ended first. `candidates` are all that
    were asked for: those without a point were not done when the plan was interrupted."""

    candidates: tuple[Candidate, ...]
    points: tuple[PlanPoint, ...]
    ranked_by: RankedBy = "time"

    @cached_property
    def _fitting(self) -> list[tuple[PlanPoint, SideBySideRow]]:
        found = [(point, point.row) for point in self.points if not point.problem]
        return [(point, row) for point, row in found if row is not None]

    @cached_property
    def unit(self) -> _Unit:
        """Tokens or samples, if all that fit show how many they take in, by the same means: else
        candidates of other batches could not be compared; else steps."""
        rows = [row for _, row in self._fitting]
        if len({row.batch_source for row in rows}) > 1:
            return _UNITS[-1]
        return next(unit for unit in _UNITS if all(unit.rate(row) is not None for row in rows))

    @property
    def ranked(self) -> list[PlanPoint]:
        """The points that fit, best first; equal ones in the order of the candidates."""
        points = [point for point, _ in self._fitting]
        return sorted(points, key=self._cost if self.ranked_by == "cost" else self._time)

    @property
    def excluded(self) -> list[PlanPoint]:
        """The points that do not fit or failed."""
        return [point for point in self.points if point.problem]

    @property
    def unfinished(self) -> list[Candidate]:
        """The candidates without a point."""
        done = [point.candidate for point in self.points]
        return [candidate for candidate in self.candidates if candidate not in done]

    def _time(self, point: PlanPoint) -> float:
        """Seconds per unit, over all ranks."""
        return 1.0 / self._rate(point)

    def _rate(self, point: PlanPoint) -> float:
        """Units per second, over all ranks."""
        rate = None if point.row is None else self.unit.rate(point.row)
        assert rate is not None
        return rate

    def _cost(self, point: PlanPoint) -> float:
        """The cost per unit at the GPUs' prices; in GPU-hours unless all have one."""
        assert point.row is not None
        if self._has_prices:
            return self.unit.cost(point.row) or 0.0
        return point.row.world_size * self._time(point) * self.unit.count / 3600.0

    @cached_property
    def _has_prices(self) -> bool:
        return all(row.price_per_hour is not None for _, row in self._fitting)

    # -- what is shown -----------------------------------------------------------------------------

    def text(self) -> str:
        """The table, the best, and why others are out."""
        nothing = "none of these fits" if self.points else "nothing was done"
        parts = [self._table(), self._best()] if self.ranked else [nothing]
        if self.excluded:
            parts.append("\nleft out")
            parts += [f"  {printable(f'{p.title}: {p.problem}')}" for p in self.excluded]
        if self.unfinished:
            parts.append("\nnot done when it was interrupted")
            parts += [f"  {printable(candidate.title)}" for candidate in self.unfinished]
        return "\n".join(parts)

    def _table(self) -> str:
        names = [name for name, _ in self.candidates[0].settings]
        count = "1000 steps" if self.unit.name == "steps" else f"1M {self.unit.name}"
        header = [
            "rank", *names, "GPU", "ms a step", "80 % range", f"{self.unit.name}/s", "MFU",
            "exposed", "GiB", "fits", f"{'cost' if self._has_prices else 'GPU h'}, {count}",
        ]  # fmt: skip
        cells = [
            [str(place), *self._cells(point)] for place, point in enumerate(self.ranked, start=1)
        ]
        return text_table(header, cells)

    def _cells(self, point: PlanPoint) -> list[str]:
        row = point.row
        assert row is not None
        rate = self._rate(point)
        return [
            *(value for _, value in point.candidate.settings),
            row.gpu,
            milliseconds_text(row.latency_us),
            f"{milliseconds_text(row.low_us)} to {milliseconds_text(row.high_us)}",
            f"{rate:,.0f}" if rate >= 10 else f"{rate:.3g}",
            f"{row.mfu:.1%}",
            f"{point.exposed_communication_us / 1e3:,.2f}",
            f"{(row.used_bytes or 0) / _GIB:.1f} of {row.capacity_bytes / _GIB:.0f}",
            fits_cell(row.memory_verdict),
            f"{self._cost(point):.3g}",
        ]

    def _best(self) -> str:
        fastest, cheapest = min(self.ranked, key=self._time), min(self.ranked, key=self._cost)
        stated = f"fastest: {fastest.title}; cheapest: {cheapest.title}"
        if max(row.world_size for _, row in self._fitting) > 1:
            stated += (
                "\nrates and costs are those of all ranks; a step, MFU, exposed communication (ms) "
                "and memory those of one"
            )
        return stated

    def to_json(self) -> dict[str, Any]:
        """The document of `neusight plan --json`."""
        return {
            "schema_version": SCHEMA_VERSION,
            "ranked_by": self.ranked_by,
            "unit": self.unit.name,
            "points": [point.to_json() for point in self.ranked],
            "excluded": [point.to_json() for point in self.excluded],
            "unfinished": [dict(candidate.settings) for candidate in self.unfinished],
        }


def interim_text(points: Sequence[PlanPoint]) -> str:
    """The result of a candidate in one line, for when it is done."""
    stated = []
    for point in points:
        if point.problem or point.row is None:
            stated.append(f"{point.title}: {point.problem}")
        else:
            fits = "" if point.row.memory_verdict == "fits" else ", close (may not fit)"
            stated.append(f"{point.title}: {point.row.latency_us / 1e3:,.2f} ms a step{fits}")
    return printable("; ".join(stated))
