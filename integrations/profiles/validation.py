"""Forecasts every measured workload, and lays the forecasts beside what was measured.

A workload is a script with what it took on a real GPU: `workloads/NAME.json` of a folder that
`neusight measure` wrote, or a profiler's trace with the script of the same name beside it.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from neusight.integrations.profiles.comparison.breakdown import ComparisonRow
from neusight.integrations.profiles.comparison.comparison import compare
from neusight.integrations.profiles.comparison.figures import step_figures
from neusight.integrations.profiles.reading.profile import Profile
from neusight.integrations.profiles.reading.reading import read_profile
from neusight.integrations.program.forecasting import ProgramForecast
from neusight.integrations.program.fresh_process import recorded_apart
from neusight.integrations.program.options import ProgramOptions
from neusight.integrations.program.program import Program
from neusight.predictors.errors import DataError, NeusightError, TraceError, UnknownGPUError
from neusight.predictors.formatting import aligned, percent_text, time_text
from neusight.predictors.gpu import find_gpu
from neusight.predictors.measuring.calibration import Calibration
from neusight.predictors.registry import find_predictor
from neusight.predictors.terminal_text import printable_lines

if TYPE_CHECKING:
    from neusight.forecast import Forecast
    from neusight.predictors.measuring.folder import Workload

#: Raised when a key of `Validation.to_json` changes its meaning or goes.
SCHEMA_VERSION = 1

#: Steady steps that are recorded: enough for a median, few enough for large models.
_STEPS = 3
#: Seconds after which a workload that does not end is left out.
_TIMEOUT_S = 900.0
#: Seconds of kernels up to which a measured run is priced at the clocks of a burst: 64 workloads of
#: 20 steps on H100 and H200 (benchmarks/measured, up to 3.3 s) ran so, in the median within 2.7 %
#: against 4.4 at sustained clocks.
_BURST_S = 5.0
_BURST = "tiled_burst"
#: Operators that are named as the costliest errors.
_WORST = 3
#: Share of the error from which an operator is named.
_NAMED = 0.005
_TRACES = ("*.json", "*.json.gz")
_SHOWN_ERROR_CHARS = 300
#: Files of a folder of measurements that are no workloads; where a workload names itself.
_NO_WORKLOADS = ("environment.json", "quick.json")
_HEAD_BYTES = 4096


@dataclass(frozen=True)
class OperatorError:
    """An operator's kernels of one size, µs a step; `share` of the workload's absolute errors."""

    op: str
    kernel_class: str
    size: str
    measured_us: float
    forecast_us: float
    share: float


@dataclass(frozen=True)
class WorkloadScore:
    """One workload: measured beside forecast, µs and bytes a step; errors are forecast over
    measured, less one. Memory and kernels are None where they were not measured."""

    workload: str
    measured_us: float
    forecast_us: float
    low_us: float
    high_us: float
    measured_bytes: int | None
    forecast_bytes: int
    measured_kernels: float | None
    forecast_kernels: int
    is_host_bound: bool
    is_forecast_host_bound: bool
    measured_busy_us: float
    forecast_busy_us: float
    worst: tuple[OperatorError, ...] = ()

    @property
    def error(self) -> float:
        """Of the step time."""
        return self.forecast_us / self.measured_us - 1.0

    @property
    def is_inside(self) -> bool:
        """Whether the measured step lies in the forecast's interval."""
        return self.low_us <= self.measured_us <= self.high_us

    @property
    def memory_error(self) -> float | None:
        """Of the peak of allocated bytes."""
        return self.forecast_bytes / self.measured_bytes - 1.0 if self.measured_bytes else None

    @property
    def kernel_error(self) -> float | None:
        """Of the number of kernels."""
        return (
            self.forecast_kernels / self.measured_kernels - 1.0 if self.measured_kernels else None
        )

    @property
    def busy_error(self) -> float | None:
        """Of the time in which the GPU runs kernels."""
        if not self.measured_busy_us:
            return None
        return self.forecast_busy_us / self.measured_busy_us - 1.0

    def to_json(self) -> dict[str, Any]:
        """All of it."""
        return {
            **asdict(self),
            "error": _rounded(self.error),
            "is_inside": self.is_inside,
            "memory_error": _rounded(self.memory_error),
            "kernel_error": _rounded(self.kernel_error),
            "busy_error": _rounded(self.busy_error),
        }


@dataclass(frozen=True)
class Totals:
    """Over all workloads: median and 90th percentile of the absolute errors of step time, median
    of the others; shares of measured steps inside the interval and of right verdicts."""

    num_workloads: int
    median_error: float
    p90_error: float
    median_busy_error: float | None
    median_memory_error: float | None
    median_kernel_error: float | None
    inside: float
    right_verdicts: float


@dataclass(frozen=True)
class Validation:
    """All workloads of a folder; `left_out` says which could not be judged, and why."""

    gpu: str
    predictor: str
    rows: tuple[WorkloadScore, ...]
    left_out: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def totals(self) -> Totals:
        """The summary figures."""
        errors = sorted(abs(row.error) for row in self.rows)
        return Totals(
            num_workloads=len(self.rows),
            median_error=round(median(errors), 6),
            p90_error=round(_quantile(errors, 0.9), 6),
            median_busy_error=_median(row.busy_error for row in self.rows),
            median_memory_error=_median(row.memory_error for row in self.rows),
            median_kernel_error=_median(row.kernel_error for row in self.rows),
            inside=round(sum(row.is_inside for row in self.rows) / len(self.rows), 6),
            right_verdicts=round(
                sum(row.is_host_bound == row.is_forecast_host_bound for row in self.rows)
                / len(self.rows),
                6,
            ),
        )

    def to_json(self) -> dict[str, Any]:
        """The document of `neusight validate --json`."""
        return {
            "schema_version": SCHEMA_VERSION,
            "gpu": self.gpu,
            "predictor": self.predictor,
            "rows": [row.to_json() for row in self.rows],
            "totals": asdict(self.totals),
            "left_out": list(self.left_out),
            "notes": list(self.notes),
        }

    def table(self) -> str:
        """A line a workload, the operators that cost most of its error, and the totals."""
        return printable_lines([*_lines(self), "", *_total_lines(self)])


@dataclass(frozen=True)
class _Task:
    """A workload to forecast, and what it measured."""

    name: str
    gpu: str
    script: Path
    arguments: tuple[str, ...]
    #: Host costs to forecast with: what was measured without a profiler is plain.
    host: str | None
    measured_us: float
    measured_bytes: int | None
    measured_kernels: float | None
    measured_busy_us: float
    is_host_bound: bool
    trace: Path | None
    torch: str = ""
    is_rehearsal: bool = False
    #: What prices it; None: the default.
    predictor: str | None = None


def validate(
    folder: str | Path,
    *,
    gpu: str | None = None,
    scripts: str | Path | None = None,
    predictor: str | None = None,
    calibration: str | Path | None = None,
    only: Sequence[str] = (),
    progress: Callable[[str], object] = lambda text: None,
) -> Validation:
    """Forecasts every measured workload of a folder, without a GPU, one process each.

    `gpu` is for folders that do not name theirs; `scripts` the folder of the workloads' scripts
    (default: beside the measurements, then neusight's own benchmarks/workloads); `only` names
    workloads. DataError where nothing there can be judged.
    """
    place = Path(folder)
    left_out: list[str] = []
    tasks = list(_tasks(place, gpu, None if scripts is None else Path(scripts), left_out))
    known = [task.name for task in tasks]
    for name in only:
        if name not in known and not any(text.startswith(f"{name}:") for text in left_out):
            raise DataError(f"{place} has no workload {name!r}; it has {', '.join(known)}.")
    chosen = [task for task in tasks if not only or task.name in only]
    left_out = [text for text in left_out if not only or text.partition(":")[0] in only]
    seen = False
    if predictor is not None or calibration is not None:  # which corrects one predictor alone
        chosen = [replace(task, predictor=predictor) for task in chosen]
    if calibration is not None:
        fitted = Calibration.load(calibration)
        seen = place.resolve().name in fitted.source.get("files", ())
        for task in chosen:  # before minutes of forecasting
            fitted.applied_to(find_predictor(predictor), find_gpu(task.gpu))
    rows: list[WorkloadScore] = []
    predictors: dict[str, None] = {}
    for number, task in enumerate(chosen, start=1):
        progress(f"{number} of {len(chosen)}: {task.name}")
        try:
            forecast = _forecast_of(task, calibration)
            rows.append(_score(task, forecast))
            predictors[forecast.predictor_name] = None
        except NeusightError as error:
            left_out.append(f"{task.name}: {error}")
    if not rows:
        raise DataError(
            f"No workload of {place} could be judged: {'; '.join(left_out) or 'it holds none'}"
        )
    return Validation(
        gpu=", ".join(dict.fromkeys(task.gpu for task in chosen)),
        predictor=", ".join(predictors),
        rows=tuple(rows),
        left_out=tuple(left_out),
        notes=tuple(_notes(chosen, seen=seen, burst=predictor is None)),
    )


# -- what was measured ---------------------------------------------------------------------------


def _tasks(
    place: Path, gpu: str | None, scripts: Path | None, left_out: list[str]
) -> Iterator[_Task]:
    """The workloads of a folder of measurements, or the traces of one with their scripts."""
    if not place.is_dir():
        raise DataError(f"There is no folder {place} with measured workloads.")
    inner = place / "workloads" if (place / "workloads").is_dir() else place
    plain = sorted(path for path in inner.glob("*.json") if path.name not in _NO_WORKLOADS)
    is_measured = any((folder / "environment.json").exists() for folder in (inner, inner.parent))
    for path in plain if is_measured else filter(_is_workload, plain):
        is_measured = True
        try:
            yield _task_of_workload(path, gpu, scripts)
        except (DataError, UnknownGPUError) as error:
            left_out.append(f"{path.stem}: {error}")
    if is_measured:
        return
    for trace in sorted({path for pattern in _TRACES for path in inner.glob(pattern)}):
        name = trace.name.partition(".")[0]
        script = _script(f"{name}.py", inner, scripts)
        if script is None:
            left_out.append(f"{name}: there is no {name}.py beside {trace.name}")
            continue
        try:
            yield _task_of_trace(name, read_profile(trace), script, trace, gpu)
        except (TraceError, DataError, UnknownGPUError) as error:
            left_out.append(f"{name}: {error}")


def _is_workload(path: Path) -> bool:
    """Whether the file is a measured workload, not a trace, by how it begins."""
    with path.open("rb") as file:
        return b'"workload"' in file.read(_HEAD_BYTES)


def _task_of_workload(path: Path, gpu: str | None, scripts: Path | None) -> _Task:
    from neusight.predictors.measuring.folder import read_workload, rehearsed_gpu

    workload = read_workload(path)
    if not workload.command:
        raise DataError(f"{path} names no script.")
    script = _script(workload.command[0], path.parent, scripts)
    if script is None:
        raise DataError(
            f"its script {workload.command[0]} is not to be found. Give its folder: --scripts DIR"
        )
    if workload.arguments.get("new_tokens"):
        raise DataError("it measured whole generations, and a step of a forecast is a token.")
    trace = path.parent / workload.trace
    named = _gpu_of(workload, path)
    steps = workload.arguments.get("steps")
    busy_s = steps * workload.gpu_busy_us / 1e6 if isinstance(steps, int) else math.inf
    return _Task(
        name=workload.workload,
        gpu=find_gpu(gpu or rehearsed_gpu(named) or named).name,
        is_rehearsal=bool(rehearsed_gpu(named)),
        script=script,
        arguments=workload.command[1:],
        host=None,
        measured_us=float(workload.step_us["median"]),
        measured_bytes=workload.peak_allocated_bytes or None,
        measured_kernels=workload.num_kernels or None,
        measured_busy_us=workload.gpu_busy_us,
        is_host_bound=workload.host_bound,
        trace=trace if workload.trace and trace.exists() else None,
        torch=str(workload.environment.get("torch", "")),
        predictor=_BURST if busy_s <= _BURST_S else None,
    )


def _gpu_of(workload: Workload, path: Path) -> str:
    from neusight.predictors.measuring.folder import read_environment

    named = workload.environment.get("gpu")
    return str(named) if named else read_environment(path.parents[1]).gpu


def _task_of_trace(name: str, profile: Profile, script: Path, path: Path, gpu: str | None) -> _Task:
    figures = step_figures(profile)
    return _Task(
        name=name,
        gpu=find_gpu(gpu or figures.gpu).name,
        script=script,
        arguments=(),
        host="profiled",
        measured_us=figures.step_us,
        measured_bytes=figures.peak_allocated_bytes,
        measured_kernels=figures.num_kernels,
        measured_busy_us=figures.busy_us,
        is_host_bound=figures.bound == "host",
        trace=path,
    )


def _script(name: str, beside: Path, scripts: Path | None) -> Path | None:
    """The script of that name: where the user says, beside the measurements, in the checkout."""
    own = Path(__file__).resolve().parents[2] / "benchmarks" / "workloads"
    folders = [scripts] if scripts is not None else [beside, beside.parent, own]
    return next((folder / name for folder in folders if (folder / name).is_file()), None)


# -- forecast and score --------------------------------------------------------------------------


def _forecast_of(task: _Task, calibration: str | Path | None) -> Forecast:
    """The workload's forecast, recorded in a process of its own so that one failure loses none."""
    options = ProgramOptions(
        steps=_STEPS,
        predictor=task.predictor,
        calibration=None if calibration is None else str(Path(calibration).resolve()),
        host=task.host,
        quiet=True,
    )
    program, target = Program(str(task.script.resolve()), task.arguments), find_gpu(task.gpu)
    with tempfile.TemporaryDirectory(prefix="neusight-") as folder:
        found = recorded_apart(program, target, options, folder=Path(folder), timeout_s=_TIMEOUT_S)
    if found.outcome.failure:
        raise DataError(f"it cannot be forecast: {found.outcome.failure[:_SHOWN_ERROR_CHARS]}")
    forecast = ProgramForecast.of(found, program, target, options).forecast
    if not forecast.recording.num_ops:
        raise DataError("it cannot be forecast: it does nothing on the GPU")
    return forecast


def _score(task: _Task, forecast: Forecast) -> WorkloadScore:
    latency = forecast.step_latency_us
    worst: tuple[OperatorError, ...] = ()
    if task.trace is not None:
        rows = compare(forecast, task.trace).rows
        worst = tuple(_operator_error(row) for row in rows[:_WORST] if row.error_share >= _NAMED)
    return WorkloadScore(
        workload=task.name,
        measured_us=round(task.measured_us, 3),
        forecast_us=latency.median,
        low_us=latency.low,
        high_us=latency.high,
        measured_bytes=task.measured_bytes,
        forecast_bytes=forecast.peak_memory_bytes,
        measured_kernels=task.measured_kernels,
        forecast_kernels=forecast.verdict.num_kernels,
        is_host_bound=task.is_host_bound,
        is_forecast_host_bound=forecast.bound == "host",
        measured_busy_us=round(task.measured_busy_us, 3),
        forecast_busy_us=round(forecast.gpu_busy_us, 3),
        worst=worst,
    )


def _operator_error(row: ComparisonRow) -> OperatorError:
    return OperatorError(
        op=row.op or "(no operator)",
        kernel_class=row.kernel_class,
        size=row.size,
        measured_us=row.measured_us,
        forecast_us=row.forecast_us,
        share=row.error_share,
    )


def _notes(tasks: Sequence[_Task], *, seen: bool, burst: bool) -> Iterator[str]:
    from importlib.metadata import version

    if any(task.is_rehearsal for task in tasks):
        yield "a rehearsal: its times are forecasts, so these errors say nothing of a real GPU"
    if seen:
        yield "the calibration was fitted to this folder: these errors are in-sample"

    here = version("torch").partition("+")[0]
    others = sorted({task.torch.partition("+")[0] for task in tasks if task.torch} - {here})
    if others:
        yield f"measured with torch {', '.join(others)}, forecast with {here}"
    if burst and any(task.predictor == _BURST for task in tasks):
        yield f"runs of less than {_BURST_S:.0f} s are priced at the clocks of a burst"
    if any(task.host == "profiled" for task in tasks):
        yield "steps of traces were measured under the profiler, and are forecast so"


# -- figures and text ----------------------------------------------------------------------------


def _median(values: Iterator[float | None] | Any) -> float | None:
    known = [abs(value) for value in values if value is not None]
    return round(median(known), 6) if known else None


def _quantile(ordered: Sequence[float], share: float) -> float:
    """The value below which that share lies, between neighbours in proportion."""
    place = share * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (place - low) * (ordered[high] - ordered[low])


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 6)


def _lines(validation: Validation) -> Iterator[str]:
    head = ("workload", "measured", "forecast", "error", "in 80 %", "GPU busy", "memory",
            "kernels", "host-bound")  # fmt: skip
    cells: tuple[str, ...]
    table: list[tuple[tuple[str, ...], tuple[OperatorError, ...]]] = [(head, ())]
    for row in validation.rows:
        verdict = "yes" if row.is_host_bound else "no"
        if row.is_host_bound != row.is_forecast_host_bound:
            verdict += ", forecast not" if row.is_host_bound else ", forecast yes"
        cells = (
            row.workload,
            _time(row.measured_us),
            _time(row.forecast_us),
            f"{row.error:+.1%}",
            "yes" if row.is_inside else "NO",
            percent_text(row.busy_error, missing="-"),
            percent_text(row.memory_error, missing="-"),
            percent_text(row.kernel_error, missing="-"),
            verdict,
        )
        table.append((cells, row.worst))
    lines = aligned([cells for cells, _ in table], left=(0, len(head) - 1))
    for line, (_, worst) in zip(lines, table, strict=True):
        yield line
        for item in worst:
            yield (
                f"    {item.share:>4.0%} of the error: {item.op} {item.size}: "
                f"{_time(item.measured_us)} measured, {_time(item.forecast_us)} forecast"
            )


def _total_lines(validation: Validation) -> Iterator[str]:
    totals = validation.totals
    yield (
        f"{validation.gpu}, predictor {validation.predictor}, {totals.num_workloads} workloads: "
        f"step time median error {totals.median_error:.1%}, p90 {totals.p90_error:.1%}; "
        f"{totals.inside:.0%} inside the interval; host-bound or not right for "
        f"{totals.right_verdicts:.0%}"
    )
    parts = [
        f"{label} {value:.1%}"
        for label, value in (
            ("GPU busy", totals.median_busy_error),
            ("peak memory", totals.median_memory_error),
            ("kernels", totals.median_kernel_error),
        )
        if value is not None
    ]
    if parts:
        yield f"median errors: {', '.join(parts)}"
    for text in validation.left_out:
        yield f"left out    {text}"
    for text in validation.notes:
        yield f"note        {text}"


def _time(microseconds: float) -> str:
    return time_text(microseconds, decimals=3)
