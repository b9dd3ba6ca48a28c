"""Lays a forecast beside a real profile: what was right, what was not, what was not there."""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import zip_longest
from math import prod
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple

from neusight.integrations.profiles.aliases import (
    ALIASES_VERSION,
    ProblemSize,
    class_of_name,
    class_of_op,
    gradient_of,
    is_auxiliary,
    size_of,
)
from neusight.integrations.profiles.reading import (
    DeviceEvent,
    HostOp,
    Profile,
    ProfileStep,
    read_profile,
    read_profile_events,
)
from neusight.predictors.errors import TraceError, UnknownGPUError
from neusight.predictors.kernel import KernelClass
from neusight.predictors.printable import printable
from neusight.predictors.words import aligned, bytes_text, percent_text, time_text
from neusight.timeline.steady import HOST_BOUND_IDLE_SHARE

if TYPE_CHECKING:
    from neusight.forecast import Forecast

__all__ = [
    "Comparison",
    "ComparisonRow",
    "OperatorRow",
    "StepFigures",
    "StepRow",
    "compare",
    "step_figures",
    "summary_markdown",
]

#: Raised when a key of `Comparison.to_json` changes its meaning or goes.
SCHEMA_VERSION = 2

#: Without launch calls, a gap longer than this is the host's fault (gaps between queued kernels
#: are 1 to 2 µs on V100, A100 and H100).
_QUEUED_GAP_NS = 5_000

_ROWS_SHOWN = 12
_UNMATCHED_SHOWN = 8
_OPERATORS_SHOWN = 8
_NS_PER_US = 1000


class _Work(NamedTuple):
    """The kernels by which one operator call solves one problem."""

    kind: KernelClass
    size: ProblemSize
    op: str
    num_kernels: int
    duration_ns: int
    has_size: bool = True


#: So many of the rounds in which work is matched ask for equal sizes.
_TURNS_BY_SIZE = 2


@dataclass(frozen=True, slots=True)
class StepFigures:
    """One side of the comparison: a step's totals; times in microseconds.

    `gpu_idle_share` is the part of the step in which the GPU waits for the host, `loader_us` the
    host's time in its DataLoader.
    """

    gpu: str
    num_steps: int
    step_us: float
    kernel_us: float
    busy_us: float
    num_kernels: int
    loader_us: float
    gpu_idle_share: float
    bound: str
    peak_allocated_bytes: int | None
    peak_reserved_bytes: int | None


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


@dataclass(frozen=True)
class Comparison:
    """A forecast laid beside a profile; `table()` prints it, `to_json()` holds all of it.

    `matched_share` is the part of the measured kernel time whose kernels have a partner of the
    same class and problem size in the forecast; `class_share` asks for the class alone,
    `name_share` for the same operator name as well. `score` is 1 where every row's time is right:
    1 less the rows' absolute errors over the sum of the larger times. `warnings` tell where the two
    are not the same program, so that the errors mean nothing.
    """

    measured: StepFigures
    forecast: StepFigures
    classes: tuple[ComparisonRow, ...]
    rows: tuple[ComparisonRow, ...]
    unmatched_measured: tuple[ComparisonRow, ...]
    unmatched_forecast: tuple[ComparisonRow, ...]
    matched_share: float
    class_share: float
    name_share: float
    score: float
    notes: tuple[str, ...]
    steps: tuple[StepRow, ...] = ()
    operators: tuple[OperatorRow, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def kernel_time_error(self) -> float:
        """Forecast kernel time per step over the measured one, less one."""
        return _error(self.forecast.kernel_us, self.measured.kernel_us) or 0.0

    @property
    def step_time_error(self) -> float:
        """Forecast step time over the measured one, less one."""
        return _error(self.forecast.step_us, self.measured.step_us) or 0.0

    @property
    def same_bound(self) -> bool:
        """Whether both call the step host-bound, or both do not."""
        return self.measured.bound == self.forecast.bound

    def table(self, row_limit: int = _ROWS_SHOWN) -> str:
        """The comparison in text: totals, kernel classes, the largest operators, what is left."""
        return "\n".join(_sections(self, row_limit, _plain))

    def to_markdown(self, row_limit: int = _ROWS_SHOWN) -> str:
        """The same as Markdown tables."""
        return "\n".join(_sections(self, row_limit, _markdown)) + "\n"

    def to_json(self) -> dict[str, Any]:
        """All figures, as `neusight compare --json` writes them."""
        return {
            "schema_version": SCHEMA_VERSION,
            "aliases_version": ALIASES_VERSION,
            "measured": asdict(self.measured),
            "forecast": asdict(self.forecast),
            "kernel_time_error": round(self.kernel_time_error, 6),
            "step_time_error": round(self.step_time_error, 6),
            "same_bound": self.same_bound,
            "matched_share": self.matched_share,
            "class_share": self.class_share,
            "name_share": self.name_share,
            "score": self.score,
            "classes": [asdict(row) for row in self.classes],
            "rows": [asdict(row) for row in self.rows],
            "steps": [asdict(row) for row in self.steps],
            "operators": [asdict(row) for row in self.operators],
            "unmatched_measured": [asdict(row) for row in self.unmatched_measured],
            "unmatched_forecast": [asdict(row) for row in self.unmatched_forecast],
            "notes": list(self.notes),
            "warnings": list(self.warnings),
        }


def compare(forecast: Forecast | Profile | str | Path, real: Profile | str | Path) -> Comparison:
    """Compares a forecast (or its trace file) with a real profile, a step of median kernel time
    each.

    Kernels are put into classes by their names, and matched by class and problem size in the
    order of the program; where the profile has no shapes, by class and order alone, which
    `matched_share` does not count. TraceError where a file is no trace or holds no kernels.
    """
    ours, theirs = _profile_of(forecast), _profile_of(real)
    our_step, their_step = _step_of(ours), _step_of(theirs)
    our_work, their_work = _work_of(ours, our_step), _work_of(theirs, their_step)
    pairs, only_theirs, only_ours = _matched(their_work, our_work)
    rows = _rows(pairs, only_theirs, only_ours)
    measured_ns = sum(work.duration_ns for work in their_work) or 1
    our_classes = {work.kind for work in our_work}
    matched_share = round(sum(m.duration_ns for m, f in pairs if m.size == f.size) / measured_ns, 6)
    paired_share = round(sum(m.duration_ns for m, _ in pairs) / measured_ns, 6)
    has_sizes = any(work.has_size for work in their_work)
    return Comparison(
        measured=_figures(theirs, their_step),
        forecast=_figures(ours, our_step),
        classes=_class_rows(rows),
        rows=rows,
        unmatched_measured=_rows([], only_theirs, []),
        unmatched_forecast=_rows([], [], only_ours),
        matched_share=matched_share,
        class_share=round(
            sum(
                work.duration_ns
                for work in their_work
                if work.kind in our_classes and work.kind is not KernelClass.UNKNOWN
            )
            / measured_ns,
            6,
        ),
        name_share=round(sum(m.duration_ns for m, f in pairs if m.op == f.op) / measured_ns, 6),
        score=_score(rows),
        notes=tuple(_notes(ours, theirs, their_work)),
        steps=_step_rows(theirs, ours),
        operators=_operator_rows(theirs, their_step, ours, our_step),
        warnings=tuple(
            _differences(their_work, only_theirs, only_ours, matched_share)
            if has_sizes
            else _differences_by_class(paired_share)
        ),
    )


def _profile_of(source: Forecast | Profile | str | Path) -> Profile:
    if isinstance(source, Profile):
        return source
    if isinstance(source, (str, Path)):
        return read_profile(source)
    from neusight.output.trace.file import trace_events

    return read_profile_events(
        trace_events(source.timeline, source.memory, source.gpu), source="the forecast"
    )


def _step_of(profile: Profile) -> ProfileStep:
    step = profile.median_step()
    if step is None:
        raise TraceError(
            f"{profile.source} holds no kernels: it was made without a GPU, or without "
            "ProfilerActivity.CUDA. There is nothing to compare."
        )
    return step


# -- from kernels to work --------------------------------------------------------------------------


def _work_of(profile: Profile, step: ProfileStep) -> list[_Work]:
    """The step's kernels gathered by operator call, class and problem, in order of launch."""
    groups: dict[tuple[int, KernelClass, ProblemSize], list[DeviceEvent]] = {}
    by_op: dict[int, list[DeviceEvent]] = defaultdict(list)
    for event in step.events:
        by_op[event.op].append(event)
    gradients = {op: _gradients(profile, op, events) for op, events in by_op.items()}
    turn: Counter[int] = Counter()
    alone = -1  # a kernel of no operator is work of its own
    for event in step.events:
        op = profile.op_of(event)
        index = turn[event.op]
        turn[event.op] += 1
        kind = _class_of(event, op.name if op is not None else "")
        if op is None:
            size = ProblemSize("", (event.num_bytes,) if event.num_bytes else ())
            alone -= 1
            groups[alone, kind, size] = [event]
            continue
        size = size_of(kind, op, gradients[event.op][index])
        groups.setdefault((event.op, kind, size), []).append(event)
    return [
        _Work(
            kind=kind,
            size=size,
            op=profile.ops[position].name if position >= 0 else "",
            num_kernels=len(events),
            duration_ns=sum(event.duration_ns for event in events),
            has_size=position < 0 or bool(profile.ops[position].shapes),
        )
        for (position, kind, size), events in groups.items()
    ]


def _class_of(event: DeviceEvent, op: str) -> KernelClass:
    """The class of the work a kernel belongs to: its own, or that of the kernel it helps."""
    if event.kernel_class:
        try:
            kind = KernelClass(event.kernel_class)
        except ValueError:
            kind = KernelClass.UNKNOWN
    else:
        kind = class_of_name(event.name)
    return class_of_op(op) if op and is_auxiliary(kind, op) else kind


def _gradients(profile: Profile, op: int, events: Sequence[DeviceEvent]) -> list[str]:
    """For each kernel of a convolution's backward which gradient it serves; helpers go with the
    main kernel that follows, or with the last one."""
    if op < 0 or "backward" not in profile.ops[op].name:
        return [""] * len(events)
    by_op = gradient_of(profile.ops[op].name)
    if by_op:
        return [by_op] * len(events)
    told = [gradient_of(event.name) for event in events]
    last = ""
    for index in reversed(range(len(told))):
        last = told[index] = told[index] or last
    for index in range(1, len(told)):
        told[index] = told[index] or told[index - 1]
    return told


def _matched(
    measured: list[_Work], forecast: list[_Work]
) -> tuple[list[tuple[_Work, _Work]], list[_Work], list[_Work]]:
    """Pairs of equal class and size, equal operator names first, each in order; then those of
    which no size is known, by class alone; and the rest."""
    pairs: list[tuple[_Work, _Work]] = []
    keys: list[Callable[[_Work], object]] = [
        lambda work: (work.kind, work.size, work.op),
        lambda work: (work.kind, work.size),
        lambda work: (work.kind, work.op),
        lambda work: work.kind,
    ]
    for turn, key in enumerate(keys):
        waiting: dict[object, deque[int]] = defaultdict(deque)
        for index, work in enumerate(forecast):
            waiting[key(work)].append(index)
        taken: set[int] = set()
        left = []
        for work in measured:
            queue = waiting[key(work)]
            needs_size = turn >= _TURNS_BY_SIZE and work.has_size
            if not queue or needs_size or work.kind is KernelClass.UNKNOWN:
                left.append(work)
                continue
            index = queue.popleft()
            taken.add(index)
            pairs.append((work, forecast[index]))
        measured = left
        forecast = [work for index, work in enumerate(forecast) if index not in taken]
    return pairs, measured, forecast


def _differences_by_class(paired_share: float) -> list[str]:
    """The same where the profile has no shapes."""
    if paired_share >= _SAME_PROGRAM_SHARE:
        return []
    return [
        f"only {paired_share:.0%} of the measured kernel time has a partner of its class in the "
        "forecast, and the profile has no shapes to tell more: these are two programs. The errors "
        "below compare what is not alike."
    ]


def _differences(
    measured: Sequence[_Work],
    only_measured: Sequence[_Work],
    only_forecast: Sequence[_Work],
    matched_share: float,
) -> list[str]:
    """Why the forecast may be of another program than the profile, in words."""
    if matched_share >= _SAME_PROGRAM_SHARE:
        return []
    scale, share = _common_scale(measured, only_measured, only_forecast)
    if share >= _SAME_PROGRAM_SHARE:
        return [
            f"the forecast's problems are {scale:g} times as large as the measured ones, in "
            f"{share:.0%} of the measured kernel time: batch, sequence or width differ. Forecast "
            "the program with the settings that were measured."
        ]
    return [
        f"only {matched_share:.0%} of the measured kernel time has a partner of its class and size "
        "in the forecast: these are two programs, or two settings of one. The errors below compare "
        "what is not alike."
    ]


#: Below this share of matched kernel time a forecast is not of the program that was measured:
#: forecasts of public profiles match 0.9 and more.
_SAME_PROGRAM_SHARE = 0.5


def _common_scale(
    measured: Sequence[_Work], only_measured: Sequence[_Work], only_forecast: Sequence[_Work]
) -> tuple[float, float]:
    """The factor that most often lies between the sizes of work without partners, operator by
    operator in order, and the share of the measured kernel time that it explains."""
    waiting: dict[object, deque[_Work]] = defaultdict(deque)
    for work in only_forecast:
        waiting[work.kind, work.op, work.size.kind].append(work)
    times: Counter[float] = Counter()
    for work in only_measured:
        queue = waiting[work.kind, work.op, work.size.kind]
        if queue:
            ours, theirs = prod(queue.popleft().size.values), prod(work.size.values)
            times[round(ours / theirs, 3) if theirs else 0.0] += work.duration_ns
    del times[1.0], times[0.0]
    if not times:
        return 1.0, 0.0
    scale, time_ns = times.most_common(1)[0]
    return scale, time_ns / (sum(work.duration_ns for work in measured) or 1)


# -- figures -------------------------------------------------------------------------------------


def step_figures(profile: Profile) -> StepFigures:
    """A profile's step in figures; TraceError where it holds no kernels."""
    return _figures(profile, _step_of(profile))


def _figures(profile: Profile, step: ProfileStep) -> StepFigures:
    steps = [item for item in profile.steps if item.events]
    step_ns = median(item.latency_ns for item in steps)
    idle = median(_idle_share(profile, item) for item in steps)
    return StepFigures(
        gpu=profile.device_name,
        num_steps=len(steps),
        step_us=round(step_ns / _NS_PER_US, 3),
        kernel_us=round(step.kernel_ns / _NS_PER_US, 3),
        busy_us=round(step.busy_ns / _NS_PER_US, 3),
        num_kernels=len(step.events),
        loader_us=round(median(item.loader_ns for item in steps) / _NS_PER_US, 3),
        gpu_idle_share=round(idle, 6),
        bound="host" if idle > HOST_BOUND_IDLE_SHARE else "gpu",
        peak_allocated_bytes=profile.peak_allocated_bytes,
        peak_reserved_bytes=profile.peak_reserved_bytes,
    )


def _step_rows(measured: Profile, forecast: Profile) -> tuple[StepRow, ...]:
    """The steps of both sides that have kernels, in order, one beside the other."""
    sides = [[step for step in side.steps if step.events] for side in (measured, forecast)]
    rows = []
    for real, ours in zip_longest(*sides):
        rows.append(
            StepRow(
                measured_name=real.name if real else "",
                forecast_name=ours.name if ours else "",
                measured_us=_microseconds(real.latency_ns) if real else None,
                forecast_us=_microseconds(ours.latency_ns) if ours else None,
                measured_kernel_us=_microseconds(real.kernel_ns) if real else None,
                forecast_kernel_us=_microseconds(ours.kernel_ns) if ours else None,
                measured_kernels=len(real.events) if real else None,
                forecast_kernels=len(ours.events) if ours else None,
            )
        )
    return tuple(rows)


def _operator_rows(
    measured: Profile, measured_step: ProfileStep, forecast: Profile, forecast_step: ProfileStep
) -> tuple[OperatorRow, ...]:
    """Operators by name, the largest difference first."""
    real, ours = _host_costs(measured, measured_step), _host_costs(forecast, forecast_step)
    rows = []
    for name in {**real, **ours}:
        (count, time_ns), (our_count, our_ns) = real.get(name, (0, 0)), ours.get(name, (0, 0))
        error = _error(our_ns, time_ns)
        rows.append(
            OperatorRow(
                op=name,
                num_measured=count,
                num_forecast=our_count,
                measured_us=_microseconds(time_ns),
                forecast_us=_microseconds(our_ns),
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


def _microseconds(nanoseconds: int) -> float:
    return round(nanoseconds / _NS_PER_US, 3)


def _idle_share(profile: Profile, step: ProfileStep) -> float:
    """Share of the step in which the GPU idles, gaps between queued kernels not counted."""
    if not step.latency_ns:
        return 0.0
    queued_ns = 0
    reached_ns: int | None = None
    for event in sorted(step.events, key=lambda event: event.start_ns):
        if reached_ns is not None and event.start_ns > reached_ns:
            gap_ns = event.start_ns - reached_ns
            call = profile.launch_of(event)
            was_queued = call.end_ns <= reached_ns if call else gap_ns <= _QUEUED_GAP_NS
            queued_ns += gap_ns if was_queued else 0
        reached_ns = max(reached_ns or 0, event.end_ns)
    idle_ns = step.latency_ns - step.busy_ns - queued_ns
    return min(1.0, max(0.0, idle_ns / step.latency_ns))


def _rows(
    pairs: Iterable[tuple[_Work, _Work]],
    only_measured: Iterable[_Work],
    only_forecast: Iterable[_Work],
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
        _row(kind.value, op, str(size), sums, total_ns) for (kind, size, op), sums in sides.items()
    ]
    return tuple(
        sorted(rows, key=lambda row: (-abs(row.forecast_us - row.measured_us), row.op, row.size))
    )


def _add(sums: list[int], side: int, work: _Work) -> None:
    """`sums` holds kernels measured and forecast, then nanoseconds measured and forecast."""
    sums[side] += work.num_kernels
    sums[2 + side] += work.duration_ns


def _row(kind: str, op: str, size: str, sums: Sequence[int], total_ns: int) -> ComparisonRow:
    measured_us, forecast_us = sums[2] / _NS_PER_US, sums[3] / _NS_PER_US
    error = _error(forecast_us, measured_us)
    return ComparisonRow(
        kernel_class=kind,
        op=op,
        size=size,
        num_measured=sums[0],
        num_forecast=sums[1],
        measured_us=round(measured_us, 3),
        forecast_us=round(forecast_us, 3),
        error=None if error is None else round(error, 6),
        error_share=round(abs(sums[3] - sums[2]) / total_ns, 6) if total_ns else 0.0,
    )


def _class_rows(rows: Iterable[ComparisonRow]) -> tuple[ComparisonRow, ...]:
    """Rows summed by class; their shares are those of the rows in them, which do not cancel."""
    groups: dict[str, list[ComparisonRow]] = defaultdict(list)
    for row in rows:
        groups[row.kernel_class].append(row)
    found = []
    for kind, members in groups.items():
        measured_us = sum(row.measured_us for row in members)
        forecast_us = sum(row.forecast_us for row in members)
        error = _error(forecast_us, measured_us)
        found.append(
            ComparisonRow(
                kernel_class=kind,
                op="",
                size="",
                num_measured=sum(row.num_measured for row in members),
                num_forecast=sum(row.num_forecast for row in members),
                measured_us=round(measured_us, 3),
                forecast_us=round(forecast_us, 3),
                error=None if error is None else round(error, 6),
                error_share=round(sum(row.error_share for row in members), 6),
            )
        )
    return tuple(sorted(found, key=lambda row: (-row.measured_us, row.kernel_class)))


def _error(forecast: float, measured: float) -> float | None:
    return forecast / measured - 1 if measured else None


def _score(rows: Iterable[ComparisonRow]) -> float:
    kept = list(rows)
    wrong = sum(abs(row.forecast_us - row.measured_us) for row in kept)
    larger = sum(max(row.forecast_us, row.measured_us) for row in kept)
    return round(1 - wrong / larger, 6) if larger else 0.0


def _notes(ours: Profile, theirs: Profile, measured: list[_Work]) -> list[str]:
    notes = [f"measured: {text}" for text in theirs.notes]
    notes += [f"forecast: {text}" for text in ours.notes]
    if not ours.is_forecast:
        notes.append("the first trace is not marked as a forecast: two profiles were compared")
    if theirs.is_forecast:
        notes.append("the second trace is a forecast itself, not a profile")
    if _gpu_name(ours.device_name) != _gpu_name(theirs.device_name):
        notes.append(
            f"the GPUs differ: the forecast is for {ours.device_name or '?'}, measured was "
            f"{theirs.device_name or '?'}"
        )
    loader_us = median(step.loader_ns for step in theirs.steps) / _NS_PER_US
    if loader_us and not any(step.loader_ns for step in ours.steps):
        notes.append(
            f"the measured program spends {_time(loader_us)} a step in its DataLoader; the "
            "forecast knows of none"
        )
    unknown = sum(work.num_kernels for work in measured if work.kind is KernelClass.UNKNOWN)
    if unknown:
        notes.append(f"{unknown} measured kernels are of no known class")
    return notes


def _gpu_name(name: str) -> str:
    from neusight.predictors.gpu import find_gpu

    try:
        return find_gpu(name).name
    except UnknownGPUError:
        return name


# -- words ---------------------------------------------------------------------------------------

Table = list[tuple[str, ...]]
Format = Callable[[str, Table], str]


def _sections(comparison: Comparison, limit: int, show: Format) -> list[str]:
    sections = []
    if comparison.warnings:
        lines = ((text,) for text in comparison.warnings)
        sections.append(show("Not the same program", [("warning",), *lines]))
    sections += [
        show("A step", _totals(comparison)),
        show("By kernel class", _row_table(comparison.classes, ("class",))),
        show(
            f"The largest errors ({min(limit, len(comparison.rows))} of {len(comparison.rows)})",
            _row_table(comparison.rows[:limit], ("class", "operator", "size")),
        ),
    ]
    for title, rows in (
        ("Measured, not forecast", comparison.unmatched_measured),
        ("Forecast, not measured", comparison.unmatched_forecast),
    ):
        if rows:
            total_us = sum(row.measured_us + row.forecast_us for row in rows)
            sections.append(
                show(
                    f"{title}: {total_us:,.1f} µs",
                    _row_table(rows[:_UNMATCHED_SHOWN], ("class", "operator", "size")),
                )
            )
    if len(comparison.steps) > 1:
        sections.append(show("Steps", _step_table(comparison.steps[:limit])))
    both = [row for row in comparison.operators if row.num_measured and row.num_forecast]
    if both:
        shown = both[:_OPERATORS_SHOWN]
        title = f"Operators on the host ({len(shown)} of {len(both)} that both have)"
        sections.append(show(title, _operator_table(shown)))
    if comparison.notes:
        sections.append(show("Notes", [("note",), *((note,) for note in comparison.notes)]))
    return sections


def _totals(comparison: Comparison) -> Table:
    measured, forecast = comparison.measured, comparison.forecast
    table: Table = [
        ("", "measured", "forecast", "error"),
        ("kernel time", *_compared(measured.kernel_us, forecast.kernel_us)),
        ("step time", *_compared(measured.step_us, forecast.step_us)),
        ("data loader", *_compared(measured.loader_us, forecast.loader_us)),
        ("kernels", str(measured.num_kernels), str(forecast.num_kernels), ""),
        ("GPU idle", f"{measured.gpu_idle_share:.0%}", f"{forecast.gpu_idle_share:.0%}", ""),
        ("bound by", measured.bound, forecast.bound, "" if comparison.same_bound else "differs"),
    ]
    if not measured.loader_us and not forecast.loader_us:
        del table[3]
    for label, real, ours in (
        ("allocated", measured.peak_allocated_bytes, forecast.peak_allocated_bytes),
        ("reserved", measured.peak_reserved_bytes, forecast.peak_reserved_bytes),
    ):
        if real and ours:
            table.append((label, bytes_text(real), bytes_text(ours), _percent(ours, real)))
    shares = (
        ("matched by class and size", comparison.matched_share),
        ("matched by class", comparison.class_share),
        ("matched by operator name too", comparison.name_share),
        ("score", comparison.score),
    )
    return table + [(label, f"{share:.1%}", "", "") for label, share in shares]


def _row_table(rows: Sequence[ComparisonRow], labels: tuple[str, ...]) -> Table:
    table: Table = [
        (*labels, "kernels", "forecast", "measured µs", "forecast µs", "error", "of all error")
    ]
    for row in rows:
        cells = (row.kernel_class, row.op, row.size)[: len(labels)]
        table.append(
            (
                *cells,
                str(row.num_measured),
                str(row.num_forecast),
                f"{row.measured_us:,.1f}",
                f"{row.forecast_us:,.1f}",
                percent_text(row.error),
                f"{row.error_share:.1%}",
            )
        )
    return table


def _step_table(rows: Sequence[StepRow]) -> Table:
    table: Table = [
        ("step", "forecast's", "measured", "forecast", "kernel time", "forecast", "kernels",
         "forecast"),
    ]  # fmt: skip
    for row in rows:
        times = (
            row.measured_us, row.forecast_us, row.measured_kernel_us, row.forecast_kernel_us
        )  # fmt: skip
        table.append(
            (
                row.measured_name,
                row.forecast_name,
                *("" if time is None else _time(time) for time in times),
                *(
                    "" if count is None else str(count)
                    for count in (row.measured_kernels, row.forecast_kernels)
                ),
            )
        )
    return table


def _operator_table(rows: Sequence[OperatorRow]) -> Table:
    table: Table = [("operator", "calls", "forecast", "measured µs", "forecast µs", "error")]
    for row in rows:
        table.append(
            (
                row.op,
                str(row.num_measured),
                str(row.num_forecast),
                f"{row.measured_us:,.1f}",
                f"{row.forecast_us:,.1f}",
                percent_text(row.error),
            )
        )
    return table


def summary_markdown(comparisons: Mapping[str, Comparison]) -> str:
    """Several comparisons by name as Markdown: a table of their totals, one of kernel classes."""
    totals: Table = [
        ("profile", "GPU", "kernel time", "forecast", "error", "step", "forecast", "error",
         "bound", "forecast", "matched", "score"),
    ]  # fmt: skip
    classes: Table = [("profile", "class", "kernels", "measured µs", "forecast µs", "error")]
    for name, comparison in comparisons.items():
        measured, forecast = comparison.measured, comparison.forecast
        totals.append(
            (
                name,
                measured.gpu,
                *_compared(measured.kernel_us, forecast.kernel_us),
                *_compared(measured.step_us, forecast.step_us),
                measured.bound,
                forecast.bound,
                f"{comparison.matched_share:.1%}",
                f"{comparison.score:.1%}",
            )
        )
        for row in comparison.classes:
            classes.append(
                (
                    name,
                    row.kernel_class,
                    str(row.num_measured),
                    f"{row.measured_us:,.1f}",
                    f"{row.forecast_us:,.1f}",
                    percent_text(row.error),
                )
            )
    return "\n".join([_markdown("A step of each", totals), _markdown("By kernel class", classes)])


def _compared(measured_us: float, forecast_us: float) -> tuple[str, str, str]:
    return _time(measured_us), _time(forecast_us), _percent(forecast_us, measured_us)


def _percent(forecast: float, measured: float) -> str:
    return percent_text(_error(forecast, measured))


def _time(microseconds: float) -> str:
    return time_text(microseconds, decimals=3)


#: Columns of words, to the left.
_TEXT_COLUMNS = ("", "class", "operator", "size", "step", "forecast's")


def _plain(title: str, table: Table) -> str:
    """Columns aligned: the first to the left, figures to the right."""
    title, table = printable(title), _printable(table)
    if len(table[0]) == 1:
        return "\n".join([title, *(f"  {cells[0]}" for cells in table[1:]), ""])
    texts = sum(cell in _TEXT_COLUMNS for cell in table[0][:3]) or 1
    lines = [f"  {line}" for line in aligned(table, left=range(texts))]
    return "\n".join([title, *lines, ""])


def _markdown(title: str, table: Table) -> str:
    title = printable(title)
    head, *rows = _printable(table)
    if len(head) == 1:
        return "\n".join([f"### {title}", "", *(f"- {cells[0]}" for cells in rows), ""])
    lines = [f"### {title}", "", _cells(head), _cells(["---"] * len(head))]
    return "\n".join([*lines, *(_cells(row) for row in rows), ""])


def _printable(table: Table) -> Table:
    return [tuple(map(printable, row)) for row in table]


def _cells(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
