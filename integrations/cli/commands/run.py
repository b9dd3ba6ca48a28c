"""`neusight run`: records a script, prices it on one GPU or several, prints the first screen."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from neusight.advice.advice import SMALLEST_GAIN, Advice, advice_for
from neusight.exit_codes import ExitCode
from neusight.integrations.cli.arguments import (
    OF_FILES,
    OF_RANKS,
    add_options,
    file_options,
    rank_options,
    stated_of_pricing,
)
from neusight.integrations.cli.files import (
    report_problems,
    write_chakra_traces,
    write_files,
    write_json,
    write_text,
    write_traces,
)
from neusight.integrations.cli.hints import no_cuda_hint
from neusight.integrations.cli.launchers import Launched, launched
from neusight.integrations.cli.screen import Screen, coloured, print_screen
from neusight.integrations.cli.trial import (
    TRIALS,
    Trial,
    trial_json,
    trial_lines,
    tried_compiling,
    with_trial,
)
from neusight.integrations.program.forecasting import ProgramForecast, forecast_program
from neusight.integrations.program.options import (
    DEFAULT_STEPS,
    ProgramOptions,
    checked_calibration,
    read_ranks,
    stated_options,
)
from neusight.integrations.program.program import Program
from neusight.integrations.program.progress.reporting import reporting_work
from neusight.integrations.program.runner import Outcome
from neusight.integrations.report.memory import MemoryReport, limit_of
from neusight.integrations.report.side_by_side import lay_side_by_side, parse_prices
from neusight.interrupts import raises_from_here
from neusight.predictors.errors import ForecastStateError, OptionError
from neusight.predictors.gpu import GPU, find_gpu
from neusight.predictors.terminal_text import printable, printable_text

if TYPE_CHECKING:
    from neusight.forecast import Forecast
    from neusight.integrations.cli.planning.points import PlanPoint
    from neusight.integrations.cli.sweep import Sweep, SweepPoint

HELP = "forecast an unmodified script"
USAGE = "neusight run --gpu GPU [options] SCRIPT.py|-m MODULE [args…]"
DESCRIPTION = (
    "Run a script as Python would, with forecasts for CUDA. All that follows the script is the "
    "script's. Exit codes: 0 ok, 2 wrong use, 3 the script itself failed."
)


def add_arguments(run: argparse.ArgumentParser) -> None:
    """The options of `neusight run`."""
    add_options(run, "--gpu", required=True)
    _add_outputs(run)
    run.set_defaults(own_words=())
    add_options(run, "--steps", default=str(DEFAULT_STEPS),
                help=f"steady steps until the script is ended ({DEFAULT_STEPS})")  # fmt: skip
    add_options(run, "--price")
    run.add_argument("--sweep", metavar="ARGUMENT=V1,V2,…",
                     help="run the script for each value of an argument of its own")  # fmt: skip
    run.add_argument("--try", dest="tried", choices=TRIALS,
                     help="run the script again, its models compiled by torch.compile, and show "
                     "both")  # fmt: skip
    add_options(run, "--samples", "--tokens")
    add_options(run, "--predictor", "--clock", "--calibration", "--torch", "--host")
    run.add_argument("--max-memory", nargs="?", const="", metavar="GiB",
                     help="judge if it fits into that much (all that the GPU has), and list "
                     "what would make it fit")  # fmt: skip
    run.add_argument("--quiet", action="store_true", help="print the verdict only, in a line")
    run.add_argument("--strict", action="store_true", help="fail at the first unmapped op")
    run.add_argument("--out-of-memory", choices=("report", "raise"), default="report",
                     help="go on past the GPU's memory, or raise as it would")  # fmt: skip
    add_options(run, "--max-ops", "--world-size", *OF_RANKS, *OF_FILES)


def _add_outputs(run: argparse.ArgumentParser) -> None:
    run.add_argument("--trace", metavar="DIR", help="write a trace for TensorBoard there")
    run.add_argument("--with-stack", action="store_true",
                     help="with --trace: show the Python functions around operators, "
                     "too")  # fmt: skip
    run.add_argument("--chakra", metavar="DIR",
                     help="write Chakra execution traces there, for ASTRA-sim")  # fmt: skip
    add_options(run, "--json")
    run.add_argument("--html", metavar="FILE", help="write a report for browsers there")
    run.add_argument("--save", metavar="FILE", help="save the recording, to price it again later")
    run.add_argument("--explain", action="append", default=[], metavar="MODULE|OP",
                     help="show how its kernels are priced: launch, bound, "
                     "origin")  # fmt: skip
    run.add_argument("--measured", metavar="DIR",
                     help="with --explain: a folder of measured kernels, as `neusight measure` "
                     "writes one, whose nearest rows are shown beside them")  # fmt: skip


@dataclass(frozen=True)
class RunRequest:
    """What a command line of `neusight run` asks for. `max_memory` is as it was given: "" is all
    that the GPU has, None does not judge. `command` is that line itself, `date` the day of a
    report."""

    program: Program
    gpu_names: tuple[str, ...]
    options: ProgramOptions
    prices: dict[str, float]
    max_memory: str | None
    sweep: str | None
    tries: bool
    trace: str | None
    chakra: str | None
    json: str | None
    html: str | None
    save: str | None
    explain: tuple[str, ...]
    measured: str | None
    command: str
    date: str

    @property
    def gpus(self) -> list[GPU]:
        """The GPUs, in the order asked for."""
        return [find_gpu(name) for name in self.gpu_names]


def run(options: argparse.Namespace, program: Program | None) -> int:
    """Runs the program once, prices it on every GPU asked for; the exit code."""
    request = _requested(options, program)
    if request.sweep is not None:
        return _sweep(request, request.sweep)
    first = forecast_program(request.program, request.gpus[0], request.options)
    outcome, recording = first.outcome, first.forecast.recording
    if outcome.is_interrupted and not recording.num_ops:
        if not outcome.is_lost:  # its process has said so
            print("neusight: interrupted before any CUDA work", file=sys.stderr)
        return ExitCode.INTERRUPTED
    if not recording.steps and outcome.failure:
        failure = printable(outcome.failure)
        when = "" if outcome.is_lost else " before any CUDA work"
        print(f"neusight: the script failed{when}: {failure}", file=sys.stderr)
        return ExitCode.SCRIPT_FAILED
    forecasts = [first.forecast, *_priced_on_others(first, request)]
    reports = _memory_reports(request, forecasts)
    problems = _report(request, forecasts, first, reports)
    if outcome.failure:
        return ExitCode.INTERRUPTED if outcome.is_interrupted else ExitCode.SCRIPT_FAILED
    if not recording.num_ops:
        own = ["run", *(word for name in request.gpu_names for word in ("--gpu", name))]
        print(f"neusight: {no_cuda_hint(request.program, own)}", file=sys.stderr)
        return ExitCode.WRONG_USE
    if not all(report.fits for report in reports):
        return ExitCode.JUDGED
    return ExitCode.WRONG_USE if problems else ExitCode.OK


# -- what is asked for ---------------------------------------------------------------------------


def _requested(options: argparse.Namespace, program: Program | None) -> RunRequest:
    """The command line as values; OptionError or UnknownGPUError for what cannot be run."""
    assert program is not None  # what lacks one was refused before it was parsed
    start = launched(program)
    command = shlex.join(["neusight", *options.own_words, *program.words])
    program = program if start is None else start.program
    program.require_script()
    date = ""
    if options.html:  # what is wrong with the day is said before anything is recorded
        from neusight.integrations.report.html import report_date

        date = report_date()
    request = RunRequest(
        program=program,
        gpu_names=tuple(options.gpu),
        options=_program_options(options, start),
        prices=parse_prices(options.price, gpus=[find_gpu(name).name for name in options.gpu]),
        max_memory=options.max_memory,
        sweep=options.sweep,
        tries=options.tried is not None,
        trace=options.trace,
        chakra=options.chakra,
        json=options.json,
        html=options.html,
        save=options.save,
        explain=tuple(options.explain),
        measured=options.measured,
        command=command,
        date=date,
    )
    _require_sense(request)
    return request


def _require_sense(request: RunRequest) -> None:
    """Raises what would be raised after minutes of recording: for a limit of memory, a calibration
    or a topology that means nothing."""
    if request.measured is not None and not request.explain:
        raise OptionError("--measured shows rows beside what --explain names: say --explain too")
    if request.max_memory is not None:
        limit_of(request.max_memory)
    checked_calibration(request.options, request.gpus)
    for target in request.gpus:
        request.options.topology_for(target)


def _program_options(options: argparse.Namespace, start: Launched | None) -> ProgramOptions:
    others = replace(
        file_options(options),
        strict=options.strict,
        out_of_memory=options.out_of_memory,
        max_ops=options.max_ops,
        samples=options.samples,
        tokens=options.tokens,
        # `compare` shows the lines behind what differs.
        with_stack=bool(options.max_memory is not None or options.save or options.with_stack),
        with_functions=options.with_stack,
        # The verdict is made without them.
        with_operators=any((options.trace, options.json, options.html, options.save)),
        rank=rank_options(options, start),
        ranks=read_ranks(options.rank)[1],
        wait_s=options.wait,
        topology=options.topology,
        network_gbps=options.network_gbps,
    )
    return stated_options(stated_of_pricing(options), others)


# -- several values, several GPUs ----------------------------------------------------------------


def _sweep(request: RunRequest, text: str) -> int:
    from neusight.integrations.cli.sweep import parse_sweep, sweep_table
    from neusight.integrations.cli.sweep_page import sweep_html

    def write_page(path: str) -> None:
        page = sweep_html(sweep, points, command=request.command, date=request.date)
        write_text(path, page)

    raises_from_here()
    sweep = parse_sweep(text)
    given = {
        "trace": request.trace,
        "chakra": request.chakra,
        "save": request.save,
        "keep-writes": request.options.keep_writes,
        "try": request.tries,
        "explain": request.explain,
    }
    unused = [name for name, path in given.items() if path]
    if unused:
        raise OptionError(f"--sweep writes no --{unused[0]}: run the value you choose by itself")
    points = _swept(request, sweep)
    print(coloured(sweep_table(sweep, points), sys.stdout))
    written, problems = write_files(
        [
            (request.json, lambda path: write_json(path, sweep.to_json(points))),
            (request.html, write_page),
        ]
    )
    for path in written:
        print(f"\n{'report:' if path == request.html else 'written to'} {path}")
    code = report_problems(problems)
    return ExitCode.SCRIPT_FAILED if all(point.failure for point in points) else code


def _swept(request: RunRequest, sweep: Sweep) -> list[SweepPoint]:
    """A point for each value and GPU, in order. Each value runs in a process of its own, two at a
    time where there are cores; unless it is quiet, standard error shows how many have ended."""
    from neusight.integrations.cli.planning.candidates import candidates_of
    from neusight.integrations.cli.planning.points import PlanRequest, evaluated_in_turn
    from neusight.integrations.cli.planning.processes import num_cores
    from neusight.integrations.cli.sweep import SweepPoint

    options = request.options
    asked = PlanRequest(tuple(request.gpus), options, request.prices, options.ranks)
    candidates = candidates_of(request.program, [sweep], [options.rank])
    found: dict[int, list[PlanPoint]] = {}

    def words() -> str:
        return f"{sweep.argument}: {len(found)} of {len(candidates)} done"

    with (
        reporting_work(words, quiet=options.quiet) as show,
        closing(
            evaluated_in_turn(asked, candidates, at_once=min(2, num_cores()), while_waiting=show)
        ) as done,
    ):
        found.update(done)
    return [
        SweepPoint(value, gpu="", failure=point.failure)
        if point.row is None
        else SweepPoint.of(value, point.row)
        for position, value in enumerate(sweep.values)
        for point in found[position]
    ]


def _priced_on_others(first: ProgramForecast, request: RunRequest) -> list[Forecast]:
    """The forecasts on the other GPUs; those are left out and named where the program would have to
    run again, but was interrupted."""
    found: list[Forecast] = []
    for name, target in list(zip(request.gpu_names, request.gpus, strict=True))[1:]:
        try:
            found.append(first.on(target).forecast)
        except ForecastStateError:
            if not first.outcome.is_interrupted:
                raise
            print(f"neusight: {name} is left out: the script must run again", file=sys.stderr)
    return found


def _memory_reports(request: RunRequest, forecasts: list[Forecast]) -> list[MemoryReport]:
    if request.max_memory is None or any(forecast.failure for forecast in forecasts):
        return []
    limit = limit_of(request.max_memory)
    return [
        MemoryReport(forecast.needs_most, limit)
        for forecast in forecasts
        if forecast.recording.num_ops
    ]


# -- what is shown and written -------------------------------------------------------------------


def _report(
    request: RunRequest,
    forecasts: list[Forecast],
    first: ProgramForecast,
    reports: list[MemoryReport],
) -> list[str]:
    """Writes what was asked for and prints the first screen; returns what could not be written,
    which is reported after it, so that nothing computed is lost."""
    outcome, is_quiet = first.outcome, request.options.quiet
    is_written = request.html or request.json or request.trace
    is_shown = is_written or (len(forecasts) == 1 and not is_quiet)
    # After a failure there is no step to change; what one rank gains is not what all of them gain.
    needs_advice = is_shown and not outcome.failure and not first.forecast.ranks
    advice = [advice_for(forecast) if needs_advice else [] for forecast in forecasts]
    trials = tried_compiling(first, forecasts) if request.tries and not outcome.failure else []
    for number, trial in enumerate(trials):
        advice[number] = with_trial(advice[number], trial, smallest_gain=SMALLEST_GAIN)
    problems = _write(request, forecasts, advice, reports, trials)
    if is_quiet:
        for forecast in forecasts:
            print(forecast.summary().partition("\n")[0])
    else:
        print_screen(_screen(request, first, problems), forecasts, advice)
    for report in reports:
        print(report.verdict if is_quiet else f"\n{report}")
    for trial in trials:
        lines = trial_lines(trial)
        if len(trials) > 1:
            print(f"\n{trial.eager.gpu.name}")
        print(lines[0].strip() if is_quiet else printable_text("\n".join(["", *lines])))
    problems += _explain(request, forecasts)
    report_problems([*_end_of(outcome), *problems])
    return problems


def _explain(request: RunRequest, forecasts: list[Forecast]) -> list[str]:
    """Prints what stands behind the prices that were asked for; returns what is not there."""
    missing: dict[str, None] = {}
    for what in request.explain:
        for forecast in forecasts:
            try:
                text = forecast.explain(what, measured=request.measured)
                print(f"\n{printable_text(text)}")
            except ValueError as error:
                missing[f"--explain: {error}"] = None
    return list(missing)


def _end_of(outcome: Outcome) -> list[str]:
    """How the program ended, if not well."""
    if outcome.is_interrupted:
        return ["interrupted; the forecast covers what it did before"]
    if outcome.failure:
        failure = f"the script failed: {printable(outcome.failure)}"
        return [failure, "the forecast covers what it did before"]
    return []


def _screen(request: RunRequest, first: ProgramForecast, problems: list[str]) -> Screen:
    return Screen(
        program=request.program,
        outcome=first.outcome,
        options=request.options,
        gpu_names=request.gpu_names,
        prices=request.prices,
        judges_memory=request.max_memory is not None,
        trace=request.trace,
        html=request.html,
        others=tuple(_written(request, first.forecast, problems)),
    )


def _written(
    request: RunRequest, first: Forecast, problems: list[str]
) -> Iterator[tuple[str, str]]:
    """What else was asked for and written, with its place."""
    chakra = request.chakra if first.recording.num_ops else None
    for what, place in (("figures", request.json), ("recording", request.save), ("chakra", chakra)):
        if place and not any(problem.startswith(f"{place} ") for problem in problems):
            yield what, place


def _write(
    request: RunRequest,
    forecasts: list[Forecast],
    advice: list[list[Advice]],
    reports: list[MemoryReport],
    trials: list[Trial],
) -> list[str]:
    def write_document(path: str) -> None:
        write_json(path, _document(forecasts, advice, request.prices, reports, trials))

    problems: list[str] = []
    first = forecasts[0]
    if request.trace and first.recording.num_ops:
        problems += write_traces(request.trace, forecasts, advice)
    if request.chakra and first.recording.num_ops:
        problems += write_chakra_traces(request.chakra, forecasts)
    _, others = write_files(
        [
            (request.save, first.save),
            (request.html, lambda path: _write_html(path, request, forecasts, advice)),
            (request.json, write_document),
        ]
    )
    return problems + others


def _write_html(
    path: str, request: RunRequest, forecasts: list[Forecast], advice: list[list[Advice]]
) -> None:
    from neusight.integrations.report.html import html_report

    page = html_report(
        forecasts,
        advice=advice,
        prices=request.prices,
        command=request.command,
        date=request.date,
    )
    write_text(path, page)


def _document(
    forecasts: list[Forecast],
    advice: list[list[Advice]],
    prices: dict[str, float],
    reports: list[MemoryReport],
    trials: list[Trial],
) -> dict[str, Any]:
    content = [
        {**forecast.to_json(), "advice": [item.to_json() for item in found]}
        for forecast, found in zip(forecasts, advice, strict=True)
    ]
    failed = any(forecast.failure for forecast in forecasts)
    compared = [] if failed else lay_side_by_side(forecasts, prices).to_json()
    document = {
        **(content[0] if len(content) == 1 else {"forecasts": content}),
        "schema_version": content[0]["schema_version"],
        "side_by_side": compared,
    }
    if trials:
        document["tried"] = {"compile": [trial_json(trial) for trial in trials]}
    if reports:
        document["max_memory"] = [report.to_json() for report in reports]
    return document
