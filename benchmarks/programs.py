"""Whole small programs against measured times: data/kernelbench and data/fused_ops_baselines.

    python benchmarks/programs.py                      all: a table by GPU, level and class
    python benchmarks/programs.py --gpu L40S --list    a line for each case
    python benchmarks/programs.py --only 56_conv       those with this in their names
    python benchmarks/programs.py --kernels --only X   and the kernels of each
    python benchmarks/programs.py --graphs cudagraphs  compiled with CUDA graphs, bound by the host
    python benchmarks/programs.py --unmeasured         as if a GPU had never been measured
    python benchmarks/programs.py --update             stores the scores (ratchet.py)

Each program is recorded once, inside a forecast, as its authors timed it; recordings are kept under
`--recordings` and priced again, so that a change of prices is seen in a minute (delete the folder
after a change of recording). A program that cannot be forecast is listed with its reason. The time
is that between the label's own events: from the first to the end of the last kernel. Programs
whose name hashes odd (`half`) judge what was chosen on the even ones.

As if a GPU had never been measured: its constants are means over others, and its kernels take the
networks for unseen GPUs. Those were fitted to rows of T4 and A100 too; fitted again without them
(FP32 products and convolutions) they move no GPU's median by more than 0.4 points.
"""

from __future__ import annotations

import argparse
import tempfile
import warnings
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from functools import cache
from hashlib import sha256
from pathlib import Path
from statistics import median
from typing import Literal

import kernelbench
import operator_chains
import ratchet
from tables import write_table

import neusight
from neusight.forecast import Forecast
from neusight.predictors.errors import ForecastStateError
from neusight.predictors.gpu import GPU
from neusight.predictors.training.datasheet import prior_constants
from neusight.timeline.spans import KernelSpan, StepSpan

RECORDINGS = Path(tempfile.gettempdir()) / "neusight-program-recordings"

#: Steps recorded: the first takes workspaces and caches.
STEPS = 3

Case = kernelbench.Case | operator_chains.Case

#: Modes of data/kernelbench with CUDA graphs.
GRAPHS = {
    "reduce-overhead": "compile_inductor_reduce-overhead",
    "cudagraphs": "compile_cudagraphs",
}
#: Longest time of a program, compiled without graphs, that the host alone bounds.
_LONGEST_US = 75.0


@dataclass(frozen=True)
class Result:
    """A case and its forecast, µs; `low_us` to `high_us` is the 80 % interval; `reason` says why
    there is none. `host` is that of the measurement where it is not the GPU's usual one."""

    name: str
    gpu: str
    level: str
    half: Literal["even", "odd"]
    measured_us: float
    forecast_us: float = 0.0
    low_us: float = 0.0
    high_us: float = 0.0
    bound: str = ""
    dominant: str = ""
    dominant_share: float = 0.0
    reason: str = ""
    host: str = ""

    @property
    def error(self) -> float:
        """The signed error, a share."""
        return self.forecast_us / self.measured_us - 1.0

    @property
    def is_inside(self) -> bool:
        """Whether the measurement lies in the interval."""
        return self.low_us <= self.measured_us <= self.high_us


def cases() -> list[Case]:
    """Every measured time of an eager program."""
    chains = [case for case in operator_chains.cases() if case.metric == "speed"]
    return [*kernelbench.cases(), *chains]


def graphed_cases(graphs: str) -> list[Case]:
    """Programs run with CUDA graphs that the host bounds: compiled without, they are short."""
    short = {
        (case.gpu, case.blob)
        for case in kernelbench.cases(mode=kernelbench.COMPILED)
        if case.version == "v0" and case.measured_us < _LONGEST_US
    }
    return [
        case
        for case in kernelbench.cases(mode=GRAPHS[graphs])
        if (case.gpu, case.blob) in short and case.level < 3
    ]


def name_of(case: Case) -> str:
    """How lists name a case."""
    if isinstance(case, kernelbench.Case):
        return f"{case.level}/{case.problem.removesuffix('.py')}.{case.blob}"
    return case.program


def level_of(case: Case) -> str:
    """The group of a case beside its GPU: what was timed and how."""
    if isinstance(case, kernelbench.Case):
        return f"level {case.level} {case.version} {case.method}"
    return "chains"


def half_of(program: str) -> Literal["even", "odd"]:
    """Which half a program is in, by the hash of its name without sizes."""
    return "odd" if sha256(program.encode()).digest()[0] % 2 else "even"


def recorded(case: Case, folder: Path, gpu: str) -> Forecast:
    """The program's forecast on a GPU, from its recording where there is one."""
    if isinstance(case, kernelbench.Case) and case.mode != kernelbench.EAGER:
        return _recorded_on(case, folder, gpu)  # fusion asks the GPU
    path = folder / f"{case.program}.json"
    if not path.exists():
        _record(case, path, "H100")
    found = Forecast.load(path)
    found = found.of(found.recording.as_torch(case.torch))
    try:
        return found.on(gpu)
    except ForecastStateError:  # it asked the GPU something that this one answers otherwise
        return _recorded_on(case, folder, gpu)


def _recorded_on(case: Case, folder: Path, gpu: str) -> Forecast:
    path = folder / f"{case.program}.{gpu}.json"
    if not path.exists():
        _record(case, path, gpu)
    found = Forecast.load(path)
    return found.of(found.recording.as_torch(case.torch))


@cache
def as_unmeasured(gpu: GPU) -> GPU:
    """The GPU under another name, with the constants of others."""
    known = prior_constants(gpu, without=lambda other: other.model == gpu.model)
    return replace(known, name=f"Unmeasured {gpu.name}", aliases=())


def _in_its_regime(found: Forecast, case: Case) -> Forecast:
    """The forecast at the clocks of the measurement: do_bench runs a chain for a tenth of a second,
    in which the power limit hardly sets in; the others ran for longer, as programs do. And beside
    the host of the measurement."""
    if isinstance(case, operator_chains.Case):
        return found.on(found.gpu, predictor="tiled_burst")
    return found.on(found.gpu, host=case.host) if case.host else found


def _record(case: Case, path: Path, gpu: str) -> None:
    with warnings.catch_warnings(), neusight.forecast_on(gpu) as found:
        warnings.simplefilter("ignore")
        if isinstance(case, kernelbench.Case):
            kernelbench.run(case, STEPS, found)
        else:
            operator_chains.run(case, STEPS, found)
    path.parent.mkdir(parents=True, exist_ok=True)
    found.save(path)


def between_events_us(found: Forecast, case: Case) -> float:
    """What the label's events enclose: the host from an idle stream on, or behind what hid it."""
    timeline = found.timeline
    step = timeline.steps[-1]
    kernels = timeline.kernels[step.first_kernel : step.last_kernel]
    if not kernels:
        return 0.0
    # The second event is recorded when the host is through, and reached when the kernels are.
    host = timeline.host[step.first_host : step.last_host]
    waits = [span for span in host if span.kind == "sync"]
    recorded_ns = waits[-1].start_ns if waits else 0
    last_ns = max(recorded_ns, *(kernel.end_ns for kernel in kernels))
    event_ns = round(2 * found.host.event_us * 1e3)  # the calls that record both
    if _is_behind_a_fill(case):
        return (last_ns + event_ns - kernels[0].end_ns) / 1e3
    return (last_ns + event_ns - timeline.steps[-2].done_ns) / 1e3


def _is_behind_a_fill(case: Case) -> bool:
    return isinstance(case, operator_chains.Case) or case.method == "cold_l2"


def kernels_of(found: Forecast, case: Case) -> list[KernelSpan]:
    """The kernels of the last step that the label's events enclose."""
    step: StepSpan = found.timeline.steps[-1]
    kernels = list(found.timeline.kernels[step.first_kernel : step.last_kernel])
    return kernels[1:] if _is_behind_a_fill(case) else kernels


def result_of(case: Case, folder: Path, *, is_unmeasured: bool = False) -> Result:
    """Forecasts one case."""
    measured = case.measured_us if isinstance(case, kernelbench.Case) else case.measured
    program = case.problem if isinstance(case, kernelbench.Case) else case.program
    host = (case.host if isinstance(case, kernelbench.Case) else None) or ""
    empty = Result(name_of(case), case.gpu, level_of(case), half_of(program), measured, host=host)
    try:
        found = recorded(case, folder, case.gpu)
        if is_unmeasured:
            found = found.on(as_unmeasured(found.gpu))
        found = _in_its_regime(found, case)
        time_us = between_events_us(found, case)
    except Exception as error:
        return Result(**{**asdict(empty), "reason": f"{type(error).__name__}: {error}"[:300]})
    latency = found.step_latency_us
    by_class: dict[str, float] = {}
    for kernel in kernels_of(found, case):
        name = kernel.kernel.kernel_class.value
        by_class[name] = by_class.get(name, 0.0) + kernel.duration_ns / 1e3
    dominant = max(by_class, key=lambda name: by_class[name], default="")
    scale = time_us / latency.median if latency.median else 0.0
    return Result(
        **{
            **asdict(empty),
            "forecast_us": time_us,
            "low_us": latency.low * scale,
            "high_us": latency.high * scale,
            "bound": found.bound,
            "dominant": dominant,
            "dominant_share": by_class.get(dominant, 0.0) / max(sum(by_class.values()), 1e-9),
            "reason": "" if time_us else "launches no kernel",
        }
    )


def table(results: list[Result]) -> str:
    """Errors by GPU and level, and by GPU and dominant class; of each half too."""
    forecast = [result for result in results if not result.reason]
    lines = [_HEAD]
    for title, key in _GROUPINGS:
        for name in sorted({key(result) for result in forecast}):
            lines.append(_line(f"{title}{name}", [r for r in forecast if key(r) == name]))
    lines.append(_line("all", forecast))
    return "\n".join(lines)


_HEAD = (
    f"{'group':<52} {'cases':>5} {'median':>7} {'even':>6} {'odd':>6} {'<20 %':>6}"
    f" {'bias':>7} {'in 80 %':>7}"
)

_GROUPINGS = (
    ("", lambda result: f"{result.gpu} {result.level}"),
    ("", lambda result: f"{result.gpu} {_what(result)}"),
    ("all GPUs, ", lambda result: _what(result)),
    ("all of ", lambda result: result.gpu),
)


def _what(result: Result) -> str:
    if result.level == "chains":
        return f"chain {result.name.split('_')[0]}"
    return "host" if result.bound == "host" else result.dominant


def _line(name: str, group: list[Result]) -> str:
    errors = [abs(result.error) for result in group]
    halves = [median_of(abs(r.error) for r in group if r.half == half) for half in ("even", "odd")]
    within = sum(error < 0.2 for error in errors) / len(errors)
    inside = sum(result.is_inside for result in group) / len(errors)
    bias = median(result.error for result in group)
    return (
        f"{name:<52} {len(group):>5} {median(errors):>7.1%} {halves[0]:>6.1%} {halves[1]:>6.1%}"
        f" {within:>6.0%} {bias:>+7.1%} {inside:>7.0%}"
    )


def median_of(values: Iterable[float]) -> float:
    """The median; NaN where there is no value."""
    found = list(values)
    return median(found) if found else float("nan")


def rows() -> list[ratchet.Row]:
    """What the ratchet holds: each case that can be forecast."""
    if not kernelbench.DATA.exists():
        return []
    return rows_of(result_of(case, RECORDINGS) for case in cases())


def rows_of(results: Iterable[Result]) -> list[ratchet.Row]:
    """The results as the ratchet takes them: by level, and by what binds or most of the time is."""
    return [
        ratchet.Row(what, result.gpu, "", "", "", result.error, result.is_inside)
        for result in results
        if not result.reason
        for what in dict.fromkeys((result.level, _what(result)))
    ]


def show_case(result: Result, case: Case, options: argparse.Namespace) -> None:
    """A line of a case, and one for each of its kernels where asked."""
    print(
        f"{result.gpu:<15} {result.half:<4} {result.name:<70} {result.measured_us:>11.1f}"
        f" {result.forecast_us:>11.1f} {result.error:>+7.1%} {result.bound:<6} {result.dominant}",
        flush=True,
    )
    if not options.kernels:
        return
    found = _in_its_regime(recorded(case, options.recordings, case.gpu), case)
    for kernel in kernels_of(found, case):
        estimate = kernel.estimate
        print(f"    {estimate.latency_us:>11.1f} {estimate.origin:<8} {kernel.kernel.key}")


def parser_of(description: str | None) -> argparse.ArgumentParser:
    """A parser of the options by which programs are chosen, listed and kept."""
    parser = argparse.ArgumentParser(description=(description or "").splitlines()[0])
    parser.add_argument("--gpu", default="", help="only GPUs with this in their name")
    parser.add_argument("--only", default="", help="only programs with this in their name")
    parser.add_argument("--level", default="", help="only groups that start with this")
    parser.add_argument("--half", default="", help="only this half: even or odd")
    parser.add_argument("--list", action="store_true", help="a line for each program")
    parser.add_argument("--recordings", type=Path, default=RECORDINGS)
    parser.add_argument("--csv", type=Path, help="write a row for each program")
    return parser


def is_chosen(case: Case, options: argparse.Namespace) -> bool:
    """Whether the options choose a case; its half is that of its result."""
    return (
        options.gpu.lower() in case.gpu.lower()
        and options.only in name_of(case)
        and level_of(case).startswith(options.level)
    )


def is_part(options: argparse.Namespace) -> bool:
    """Whether the options leave programs out."""
    return any((options.gpu, options.only, options.level, options.half))


def main() -> int:
    """The command."""
    parser = parser_of(__doc__)
    parser.add_argument("--graphs", choices=GRAPHS, help="short programs run with CUDA graphs")
    parser.add_argument("--unmeasured", action="store_true", help="as if no GPU had been measured")
    parser.add_argument("--kernels", action="store_true", help="the kernels of each case too")
    options = ratchet.parsed(parser, kernelbench.DATA, "measured programs")
    results = []
    for case in graphed_cases(options.graphs) if options.graphs else cases():
        if not is_chosen(case, options):
            continue
        result = result_of(case, options.recordings, is_unmeasured=options.unmeasured)
        if options.half not in ("", result.half):
            continue
        results.append(result)
        if options.list or options.kernels:
            show_case(result, case, options)
    return report(results, options)


def report(results: list[Result], options: argparse.Namespace) -> int:
    """Prints the table, what could not be forecast and what got worse; stores what is asked."""
    if not results:
        print("no such program")
        return 2
    print(table(results))
    for name, reason in sorted({(r.name, r.reason) for r in results if r.reason}):
        print(f"not forecast: {name}: {reason}")
    if options.csv:
        write_csv(results, options.csv)
    if is_part(options) or options.graphs or options.unmeasured:
        return 0
    return ratchet.judged("programs", rows_of(results), options)


def write_csv(results: list[Result], path: Path) -> None:
    """The error of every case as a row, without the measurements, which are others' data."""
    columns = ("gpu", "host", "level", "name", "half", "bound", "dominant", "reason")
    rows = []
    for result in results:
        found = (f"{result.dominant_share:.2f}", f"{result.error:.4f}", result.is_inside)
        stated = (getattr(result, name) for name in columns)
        rows.append((*stated, *(found if not result.reason else ("", "", ""))))
    write_table(path, (*columns, "dominant_share", "error", "is_inside"), rows)


if __name__ == "__main__":
    raise SystemExit(main())
