"""Rows of a comparison: kinds of kernels, steps, operators on the host."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import zip_longest

from neusight.integrations.profiles.aliases import ProblemSize
from neusight.integrations.profiles.comparison.figures import NS_PER_US, microseconds
from neusight.integrations.profiles.comparison.work import Work
from neusight.integrations.profiles.reading.profile import HostOp, Profile, ProfileStep
from neusight.predictors.kernel import KernelClass


@dataclass(frozen=True, slots=True)
class ComparisonRow:
    """Measured and forecast microseconds a step of one kind of kernel.

    `error` is forecast over measured, less one (None where nothing was measured);
    `error_share` is its part of the sum of all rows' absolute errors.
    """

    kernel_class: str
    op: str
    size: str
    num_measured: int
    num_forecast: int
    measured_us: float
    forecast_us: float
    error: float | None
    error_share: float


@dataclass(frozen=True, slots=True)
class StepRow:
    """One step beside the other side's step of the same turn; None where there is no such."""

    measured_name: str
    forecast_name: str
    measured_us: float | None
    forecast_us: float | None
    measured_kernel_us: float | None
    forecast_kernel_us: float | None
    measured_kernels: int | None
    forecast_kernels: int | None


@dataclass(frozen=True, slots=True)
class OperatorRow:
    """What the operators of one name cost the host in a step, with all that they call."""

    op: str
    num_measured: int
    num_forecast: int
    measured_us: float
    forecast_us: float
    error: float | None


def step_rows(measured: Profile, forecast: Profile) -> tuple[StepRow, ...]:
    """The steps of both sides that have kernels, in order, one beside the other."""
    sides = [[step for step in side.steps if step.events] for side in (measured, forecast)]
    rows = []
    for real, ours in zip_longest(*sides):
        rows.append(
            StepRow(
                measured_name=real.name if real else "",
                forecast_name=ours.name if ours else "",
                measured_us=microseconds(real.latency_ns) if real else None,
                forecast_us=microseconds(ours.latency_ns) if ours else None,
                measured_kernel_us=microseconds(real.kernel_ns) if real else None,
                forecast_kernel_us=microseconds(ours.kernel_ns) if ours else None,
                measured_kernels=len(real.events) if real else None,
                forecast_kernels=len(ours.events) if ours else None,
            )
        )
    return tuple(rows)


def operator_rows(
    measured: Profile, measured_step: ProfileStep, forecast: Profile, forecast_step: ProfileStep
) -> tuple[OperatorRow, ...]:
    """Operators by name, the largest difference first."""
    real, ours = _host_costs(measured, measured_step), _host_costs(forecast, forecast_step)
    rows = []
    for name in {**real, **ours}:
        (count, time_ns), (our_count, our_ns) = real.get(name, (0, 0)), ours.get(name, (0, 0))
        error = error_of(our_ns, time_ns)
        rows.append(
            OperatorRow(
                op=name,
                num_measured=count,
                num_forecast=our_count,
                measured_us=microseconds(time_ns),
                forecast_us=microseconds(our_ns),
                error=None if error is None else round(error, 6),
            )
        )
    return tuple(sorted(rows, key=lambda row: (-abs(row.forecast_us - row.measured_us), row.op)))


def _host_costs(profile: Profile, step: ProfileStep) -> dict[str, tuple[int, int]]:
    """For each name how many operators begin in the step, and their time on the host."""
    counts: Counter[str] = Counter()
    times: Counter[str] = Counter()
    stacks: dict[str, list[HostOp]] = defaultdict(list)
    for op in profile.ops:  # in order of start, outer ones first
        if not step.start_ns <= op.start_ns < step.start_ns + step.host_ns:
            continue
        stack = stacks[op.thread]
        while stack and stack[-1].end_ns <= op.start_ns:
            stack.pop()
        counts[op.name] += 1
        if all(outer.name != op.name for outer in stack):
            times[op.name] += op.duration_ns
        stack.append(op)
    return {name: (counts[name], times[name]) for name in counts}


def rows_of(
    pairs: Iterable[tuple[Work, Work]],
    only_measured: Iterable[Work],
    only_forecast: Iterable[Work],
) -> tuple[ComparisonRow, ...]:
    """Rows of equal class, size and operator, the largest error first."""
    sides: dict[tuple[KernelClass, ProblemSize, str], list[int]] = defaultdict(lambda: [0] * 4)
    for measured, forecast in pairs:
        sums = sides[measured.kind, measured.size, measured.op]
        _add(sums, 0, measured)
        _add(sums, 1, forecast)
    for side, works in enumerate((only_measured, only_forecast)):
        for work in works:
            _add(sides[work.kind, work.size, work.op], side, work)
    total_ns = sum(abs(sums[3] - sums[2]) for sums in sides.values())
    rows = [
        _row(
            (kind.value, op, str(size)),
            (sums[0], sums[1]),
            (sums[2] / NS_PER_US, sums[3] / NS_PER_US),
            abs(sums[3] - sums[2]) / total_ns if total_ns else 0.0,
        )
        for (kind, size, op), sums in sides.items()
    ]
    return tuple(
        sorted(rows, key=lambda row: (-abs(row.forecast_us - row.measured_us), row.op, row.size))
    )


def _add(sums: list[int], side: int, work: Work) -> None:
    """`sums` holds kernels measured and forecast, then nanoseconds measured and forecast."""
    sums[side] += work.num_kernels
    sums[2 + side] += work.duration_ns


def _row(
    of: tuple[str, str, str], counts: tuple[int, int], times_us: tuple[float, float], share: float
) -> ComparisonRow:
    """The row of a class, operator and size; counts and times are measured and forecast."""
    measured_us, forecast_us = times_us
    error = error_of(forecast_us, measured_us)
    return ComparisonRow(
        *of,
        *counts,
        measured_us=round(measured_us, 3),
        forecast_us=round(forecast_us, 3),
        error=None if error is None else round(error, 6),
        error_share=round(share, 6),
    )


def class_rows(rows: Iterable[ComparisonRow]) -> tuple[ComparisonRow, ...]:
    """Rows summed by class; their shares are those of the rows in them, which do not cancel."""
    groups: dict[str, list[ComparisonRow]] = defaultdict(list)
    for row in rows:
        groups[row.kernel_class].append(row)
    found = [
        _row(
            (kind, "", ""),
            (sum(row.num_measured for row in members), sum(row.num_forecast for row in members)),
            (sum(row.measured_us for row in members), sum(row.forecast_us for row in members)),
            sum(row.error_share for row in members),
        )
        for kind, members in groups.items()
    ]
    return tuple(sorted(found, key=lambda row: (-row.measured_us, row.kernel_class)))


def error_of(forecast: float, measured: float) -> float | None:
    """Forecast over measured, less one; None where nothing was measured."""
    return forecast / measured - 1 if measured else None


def score_of(rows: Iterable[ComparisonRow]) -> float:
    """1 where every row's time is right, less by what is wrong."""
    kept = list(rows)
    wrong = sum(abs(row.forecast_us - row.measured_us) for row in kept)
    larger = sum(max(row.forecast_us, row.measured_us) for row in kept)
    return round(1 - wrong / larger, 6) if larger else 0.0
