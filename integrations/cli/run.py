"""`neusight run`: records a script, prices it on one GPU or several, prints the first screen."""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from neusight.advice.advice import Advice, advice_for, advice_lines, fitting_lines
from neusight.exit_codes import ExitCode
from neusight.integrations.cli.hints import no_cuda_hint
from neusight.integrations.program.landlock import guard_words
from neusight.integrations.program.program import (
    checked_keep_folder,
    in_guarded_process,
    is_guarded,
)
from neusight.integrations.program.runner import (
    Outcome,
    Program,
    hide_gpus,
    run_program,
    telling_progress,
)
from neusight.integrations.report.memory import MemoryReport, limit_of
from neusight.integrations.report.side_by_side import parse_prices, side_by_side
from neusight.interrupts import raises_from_here
from neusight.output.batch import SAMPLES_OPTION, TOKENS_OPTION
from neusight.predictors.errors import (
    CalibrationError,
    ForecastStateError,
    OptionError,
    TraceError,
)
from neusight.predictors.gpu import find_gpu
from neusight.predictors.measuring.calibration import Calibration
from neusight.predictors.printable import printable, printable_text
from neusight.predictors.registry import require_predictor

if TYPE_CHECKING:
    from neusight.fake_cuda.store.store import Store
    from neusight.forecast import Forecast
    from neusight.ops.own_ops import OwnOps
    from neusight.predictors.gpu import GPU
    from neusight.recording.recording import Recording
    from neusight.session import SessionOptions

__all__ = ["add_arguments", "add_file_arguments", "command_of", "run", "tried", "write_json"]

#: Steady steps after which the script is ended: enough for a median.
DEFAULT_STEPS = 5

#: Ops after which a loop counts as endless; a step of a large model has some ten thousand.
DEFAULT_MAX_OPS = 5_000_000

#: In the warning that the script wrote to files.
_OF_FILES = "--keep-writes"

#: Options that a recording in a process of its own takes over, with a value and without.
_FORWARDED = ("steps", "predictor", "host", "out_of_memory", "max_ops", "samples", "tokens")
_FORWARDED_FLAGS = ("strict", "allow_writes")


def add_arguments(run: argparse.ArgumentParser) -> None:
    """The options of `neusight run`."""
    run.add_argument("--gpu", action="append", required=True, metavar="NAME",
                     help="target GPU, also several (`neusight gpus` lists all)")  # fmt: skip
    run.add_argument("--trace", metavar="DIR", help="write a trace for TensorBoard there")
    run.add_argument("--json", metavar="FILE", help="write all figures there")
    run.add_argument("--html", metavar="FILE", help="write a report for browsers there")
    run.add_argument("--save", metavar="FILE", help="save the recording, to price it again later")
    run.add_argument("--steps", default=str(DEFAULT_STEPS), metavar="N|all",
                     help=f"steady steps until the script is ended ({DEFAULT_STEPS})")  # fmt: skip
    run.add_argument("--price", action="append", default=[], metavar="GPU=PRICE,…",
                     help="price of a GPU an hour, for the cost of steps and tokens")  # fmt: skip
    run.add_argument("--sweep", metavar="ARGUMENT=V1,V2,…",
                     help="run the script for each value of an argument of its own")  # fmt: skip
    run.add_argument("--samples", type=int, metavar="N",
                     help="samples a step takes in, if its shapes do not tell")  # fmt: skip
    run.add_argument("--tokens", type=int, metavar="N", help="the same for tokens")
    run.add_argument("--predictor", metavar="NAME", help="who prices the kernels")
    run.add_argument("--calibration", metavar="FILE", type=os.path.abspath,
                     help="what `neusight calibrate` learnt of the GPU and its host")  # fmt: skip
    run.add_argument("--host", choices=("plain", "older", "profiled"),
                     help="cost of the host (default: what machines with that GPU usually have); "
                     "profiled: slowed by a profiler")  # fmt: skip
    run.add_argument("--max-memory", nargs="?", const="", metavar="GiB",
                     help="judge if it fits into that much (all that the GPU has), and tell what "
                     "would make it fit")  # fmt: skip
    run.add_argument("--quiet", action="store_true", help="print the verdict only, in a line")
    run.add_argument("--strict", action="store_true", help="fail at the first unmapped op")
    run.add_argument("--out-of-memory", choices=("report", "raise"), default="report",
                     help="go on past the GPU's memory, or raise as it would")  # fmt: skip
    run.add_argument("--max-ops", type=int, default=DEFAULT_MAX_OPS, metavar="N",
                     help="end a loop that waits for an invented value after N ops")  # fmt: skip
    add_file_arguments(run)


def add_file_arguments(command: argparse.ArgumentParser) -> None:
    """The options of whoever runs a script: what becomes of the files that it writes."""
    command.add_argument("--keep-writes", metavar="DIR", type=os.path.abspath,
                         help="collect there what the script writes: files that are new, and the "
                         "copies that it wrote instead of yours")  # fmt: skip
    command.add_argument("--allow-writes", action="store_true",
                         help="let the script write, move and remove your files")  # fmt: skip


def run(options: argparse.Namespace, program: Program | None) -> int:
    """Runs the program once, prices it on every GPU asked for; the exit code."""
    prices = _checked(options, program)
    assert program is not None
    if options.sweep:
        return _sweep(options, program)
    hide_gpus()
    forecast, outcome = _record(options, program)
    if outcome.is_interrupted and not forecast.recording.num_ops:
        if not outcome.is_lost:  # its process has said so
            print("neusight: interrupted before any CUDA work", file=sys.stderr)
        return ExitCode.INTERRUPTED
    if not forecast.recording.steps and outcome.failure:
        failure = printable(outcome.failure)
        when = "" if outcome.is_lost else " before any CUDA work"
        print(f"neusight: the script failed{when}: {failure}", file=sys.stderr)
        return ExitCode.SCRIPT_FAILED
    forecasts = [
        forecast,
        *_priced_on_others(forecast, options, program, may_run=not outcome.is_interrupted),
    ]
    reports = _memory_reports(options, forecasts)
    problems = _report(options, program, forecasts, outcome, prices, reports)
    if outcome.failure:
        return ExitCode.INTERRUPTED if outcome.is_interrupted else ExitCode.SCRIPT_FAILED
    if not forecast.recording.num_ops:
        own = ["run", *(word for name in options.gpu for word in ("--gpu", name))]
        print(f"neusight: {no_cuda_hint(program, own)}", file=sys.stderr)
        return ExitCode.WRONG_USE
    if not all(report.fits for report in reports):
        return ExitCode.JUDGED
    return ExitCode.WRONG_USE if problems else ExitCode.OK


def _checked(options: argparse.Namespace, program: Program | None) -> dict[str, float]:
    """OptionError or UnknownGPUError for what cannot be run; the prices."""
    if program is None:
        raise OptionError("give the script to run: neusight run --gpu H100 train.py")
    if not program.is_module and not Path(program.target).is_file():
        raise OptionError(f"there is no script {program.target!r} in {Path.cwd()}")
    if options.steps != "all" and not (options.steps.isdigit() and int(options.steps) > 0):
        raise OptionError(f"--steps is {options.steps!r}; it must be a number above 0, or all")
    require_predictor(options.predictor)
    if options.max_memory is not None:
        limit_of(options.max_memory)
    checked_keep_folder(options.keep_writes, allow_writes=options.allow_writes)
    for name in ("samples", "tokens"):
        value = getattr(options, name)
        if value is not None and value <= 0:
            raise OptionError(f"--{name} is {value}; it must be a number above 0")
    targets = [find_gpu(name) for name in options.gpu]  # before minutes of recording
    if options.calibration and not any(_learnt(options, target) for target in targets):
        of = Calibration.load(options.calibration).gpu
        raise CalibrationError(
            f"{options.calibration} is of {of}, which is not among the GPUs asked for: "
            f"{', '.join(target.name for target in targets)}. Calibrate for one of them, or "
            "leave --calibration out."
        )
    return parse_prices(options.price)


def _learnt(options: argparse.Namespace, target: GPU) -> Calibration | None:
    """What the calibration file says of that GPU; None for all others."""
    if not options.calibration:
        return None
    calibration = Calibration.load(options.calibration)
    return calibration if calibration.gpu == target.name else None


def _sweep(options: argparse.Namespace, program: Program) -> int:
    from neusight.integrations.cli.sweep import parse_sweep, sweep_table, swept

    raises_from_here()
    sweep = parse_sweep(options.sweep)
    written = ("trace", "save", "html", "keep_writes")
    unused = [name.replace("_", "-") for name in written if getattr(options, name)]
    if unused:
        raise OptionError(f"--sweep writes no --{unused[0]}: run the value you choose by itself")
    points = swept(
        sweep,
        program,
        lambda varied, path: command_of(options, varied, gpus=options.gpu, json=path),
        tell=_teller(options),
    )
    print(_coloured(sweep_table(sweep, points), sys.stdout))
    problems: list[str] = []
    if options.json:
        document = {
            "schema_version": 1,
            "argument": sweep.argument,
            "points": [point.to_json() for point in points],
        }
        problems = tried(lambda: write_json(Path(options.json), document), options.json)
    for problem in problems:
        print(f"neusight: {problem}", file=sys.stderr)
    return ExitCode.SCRIPT_FAILED if all(point.failure for point in points) else ExitCode.OK


def _teller(options: argparse.Namespace) -> Callable[[str], object]:
    """Says on a terminal how far it is."""
    if options.quiet or not sys.stderr.isatty():
        return lambda text: None
    return lambda text: print(f"neusight: {text}", file=sys.stderr, flush=True)


# -- recording -----------------------------------------------------------------------------------


def _record(options: argparse.Namespace, program: Program) -> tuple[Forecast, Outcome]:
    from neusight.forecast import Forecast
    from neusight.ops.own_ops import register_own_ops

    recorded_with = _session_options(options, program)
    priced_with = recorded_with.forecast
    if not _is_guarded(options):
        recording, outcome, _ = _recorded(options, program, recorded_with)
        return Forecast(recording, priced_with), outcome
    ended = in_guarded_process(
        lambda store: _recorded(options, program, recorded_with, store),
        program,
        keep=options.keep_writes,
    )
    if ended.answer is None:
        outcome = Outcome(failure=ended.failure, exit_code=ended.exit_code, is_lost=True)
        return Forecast(_nothing(options, program), priced_with), outcome
    recording, outcome, ops = ended.answer
    register_own_ops(ops)
    return Forecast(recording, priced_with), outcome


def _session_options(options: argparse.Namespace, program: Program) -> SessionOptions:
    from neusight.forecast import forecast_options
    from neusight.session import SessionOptions

    target = find_gpu(options.gpu[0])
    return SessionOptions(
        forecast_options(
            target,
            predictor=options.predictor,
            calibration=_learnt(options, target),
            host=options.host,
        ),
        strict=options.strict,
        on_out_of_memory=options.out_of_memory,
        virtual_time=True,
        allow_writes=options.allow_writes,
        keep_writes=options.keep_writes,
        steady_steps=None if options.steps == "all" else int(options.steps),
        max_ops=options.max_ops,
        script=_script_of(program),
        with_stack=options.max_memory is not None,
        stated=_stated(options),
    )


def _recorded(
    options: argparse.Namespace,
    program: Program,
    recorded_with: SessionOptions,
    store: Store | None = None,
) -> tuple[Recording, Outcome, OwnOps]:
    """Records in this process; with a store, in one that is the program's alone."""
    from neusight.ops import formulas
    from neusight.ops.own_ops import own_ops
    from neusight.session import Session

    before = formulas()
    session = Session(recorded_with, store=store)
    with telling_progress(session, quiet=options.quiet):
        outcome = run_program(program, session, is_guarded=store is not None)
    recording = session.forecast.recording
    return recording, outcome, own_ops(recording, before)


def _is_guarded(options: argparse.Namespace) -> bool:
    return is_guarded(is_command_line=options.is_command_line, allow_writes=options.allow_writes)


def _script_of(program: Program) -> str:
    return " ".join([Path(program.target).name, *program.arguments])


def _nothing(options: argparse.Namespace, program: Program) -> Recording:
    """What is known of a program whose process ended before it could tell anything."""
    import torch

    from neusight.recording.recording import Recording

    gpu = find_gpu(options.gpu[0]).name
    return Recording((), gpu, torch.__version__, script=_script_of(program))


def _memory_reports(options: argparse.Namespace, forecasts: list[Forecast]) -> list[MemoryReport]:
    if options.max_memory is None or any(forecast.failure for forecast in forecasts):
        return []
    limit = limit_of(options.max_memory)
    return [MemoryReport(forecast, limit) for forecast in forecasts if forecast.recording.num_ops]


def _stated(options: argparse.Namespace) -> dict[str, str]:
    stated = {SAMPLES_OPTION: options.samples, TOKENS_OPTION: options.tokens}
    return {name: str(value) for name, value in stated.items() if value is not None}


def _priced_on_others(
    forecast: Forecast, options: argparse.Namespace, program: Program, *, may_run: bool
) -> list[Forecast]:
    """The same recording on the other GPUs, or a new one where the program would take another path;
    those GPUs are left out and named where it may not run again."""
    found: list[Forecast] = []
    for name in options.gpu[1:]:
        learnt = _learnt(options, find_gpu(name))
        try:
            found.append(forecast.on(name, host=options.host, calibration=learnt))
        except ForecastStateError:
            if may_run:
                found.append(_recorded_again(name, options, program))
            else:
                print(f"neusight: {name} is left out: the script must run again", file=sys.stderr)
    return found


def _recorded_again(name: str, options: argparse.Namespace, program: Program) -> Forecast:
    from neusight.forecast import Forecast

    with tempfile.TemporaryDirectory(prefix="neusight-") as folder:
        path = Path(folder) / "recording.json.gz"
        done = subprocess.run(
            command_of(options, program, gpus=[name], save=str(path)),
            capture_output=True,
            text=True,
        )
        if not path.exists():
            raise ForecastStateError(
                f"The script could not be recorded on {name}: {done.stderr.strip()[-500:]}"
            )
        return Forecast.load(path)


def command_of(
    options: argparse.Namespace, program: Program, *, gpus: Sequence[str], **outputs: str
) -> list[str]:
    """The command that runs a program with these options in a process of its own; `outputs` are
    options with the path that each writes."""
    command = [sys.executable, "-m", "neusight", "run", "--quiet"]
    for name in gpus:
        command += ["--gpu", name]
    for name in _FORWARDED:
        value = getattr(options, name)
        command += [] if value is None else [f"--{name.replace('_', '-')}", str(value)]
    command += [
        f"--{name.replace('_', '-')}" for name in _FORWARDED_FLAGS if getattr(options, name)
    ]
    if any(_learnt(options, find_gpu(name)) for name in gpus):
        command += ["--calibration", options.calibration]
    for text in options.price:
        command += ["--price", text]
    for name, path in outputs.items():
        command += [f"--{name}", path]
    return [*command, *(["-m"] if program.is_module else []), program.target, *program.arguments]


# -- the first screen ----------------------------------------------------------------------------


def _report(
    options: argparse.Namespace,
    program: Program,
    forecasts: list[Forecast],
    outcome: Outcome,
    prices: dict[str, float],
    reports: list[MemoryReport],
) -> list[str]:
    """Writes what was asked for and prints the first screen; returns what could not be written,
    which is told after it, so that nothing computed is lost."""
    from neusight.integrations.report.html import write_html_report

    problems: list[str] = []
    first = forecasts[0]
    needs_advice = options.html or options.json or (len(forecasts) == 1 and not options.quiet)
    needs_advice = needs_advice and not outcome.failure  # there is no step to change
    advice = [advice_for(forecast) if needs_advice else [] for forecast in forecasts]
    if options.trace and first.recording.num_ops:
        problems += _write_traces(options.trace, forecasts)
    if options.save:
        problems += tried(lambda: first.save(options.save), options.save)
    if options.html and first.recording.num_ops:
        problems += tried(
            lambda: write_html_report(options.html, forecasts, advice=advice, prices=prices),
            options.html,
        )
    if options.json:
        document = _document(forecasts, advice, prices)
        if reports:
            document["max_memory"] = [report.to_json() for report in reports]
        problems += tried(lambda: write_json(Path(options.json), document), options.json)
    if options.quiet:
        for forecast in forecasts:
            print(forecast.summary().partition("\n")[0])
    else:
        _print_screen(options, program, forecasts, advice, outcome, prices)
    for report in reports:
        print(report.verdict if options.quiet else f"\n{report}")
    if outcome.is_interrupted:
        print("neusight: interrupted; the forecast covers what it did before", file=sys.stderr)
    elif outcome.failure:
        print(f"neusight: the script failed: {printable(outcome.failure)}", file=sys.stderr)
        print("neusight: the forecast covers what it did before", file=sys.stderr)
    for problem in problems:
        print(f"neusight: {problem}", file=sys.stderr)
    return problems


def _print_screen(
    options: argparse.Namespace,
    program: Program,
    forecasts: list[Forecast],
    advice: list[list[Advice]],
    outcome: Outcome,
    prices: dict[str, float],
) -> None:
    if outcome.failure and not outcome.is_interrupted:
        texts = [forecast.summary() for forecast in forecasts]
        print(_coloured("\n".join(["", *texts]), sys.stdout))
        return
    lines = [""]
    compared = side_by_side(forecasts, prices)
    ended = f"  note      the script was ended after {options.steps} steady steps (--steps)"
    notes = [ended] if outcome.stopped_early else []
    if any(_OF_FILES in text for text in forecasts[0].warnings):
        notes.append(f"  files     {guard_words(is_guarded=_is_guarded(options))}")
    if len(forecasts) == 1:
        if forecasts[0].fits or options.max_memory is not None:
            changes = advice_lines(advice[0])
        else:
            changes = fitting_lines(MemoryReport(forecasts[0]).advice)
        lines.append(forecasts[0].summary(changes=[*notes, *changes]))
    if len(forecasts) > 1 or prices:
        lines += ["", compared.table(), *([compared.words()] if compared.words() else [])]
    if len(forecasts) > 1:
        lines += [*_notes_of(forecasts), *notes]
        if options.max_memory is None and not all(forecast.fits for forecast in forecasts):
            lines.append("  memory    --max-memory tells what would make it fit")
    if options.trace and forecasts[0].trace_path:
        lines.append(f"  open with tensorboard --logdir {options.trace}")
    if options.html:
        lines.append(f"  report    {options.html}")
    if forecasts[0].recording.num_ops:
        lines.append(f"  in CI     {_check_command(options, program)}")
    print(_coloured(printable_text("\n".join(lines)), sys.stdout))


def _check_command(options: argparse.Namespace, program: Program) -> str:
    """The command that keeps these figures from getting worse, as a shell reads it."""
    words = ["neusight", "check"]
    for name in options.gpu:
        words += ["--gpu", name]
    words += ["-m"] if program.is_module else []
    return f"{shlex.join([*words, program.target, *program.arguments])} (first with --update)"


def _notes_of(forecasts: list[Forecast]) -> list[str]:
    """What to know of each forecast, equal notes of several said once."""
    notes: dict[str, list[str]] = {}
    for forecast in forecasts:
        texts = list(forecast.warnings)
        if forecast.unmapped:
            texts.append(
                f"unmapped, priced by bytes over bandwidth: {', '.join(forecast.unmapped)}"
            )
        for text in texts:
            notes.setdefault(text, []).append(forecast.gpu.name)
    return [
        f"  note      {text}" + ("" if len(names) == len(forecasts) else f" ({', '.join(names)})")
        for text, names in notes.items()
    ]


_BOLD, _RED, _GREEN, _DIM, _PLAIN = "\x1b[1m", "\x1b[31m", "\x1b[32m", "\x1b[2m", "\x1b[0m"
_COLOURS = (
    (re.compile(r"^(\S+: )(fits)\b", re.MULTILINE), rf"{_BOLD}\1{_GREEN}\2{_PLAIN}"),
    (re.compile(r"^(\S+: )(does not fit)\b", re.MULTILINE), rf"{_BOLD}\1{_RED}\2{_PLAIN}"),
    (re.compile(r"\bNO\b"), rf"{_RED}NO{_PLAIN}"),
    (re.compile(r"^(  note  .*)$", re.MULTILINE), rf"{_DIM}\1{_PLAIN}"),
)


def _coloured(text: str, stream: TextIO) -> str:
    """With colours on a terminal, unless NO_COLOR is set (https://no-color.org)."""
    if not stream.isatty() or os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return text
    for pattern, replacement in _COLOURS:
        text = pattern.sub(replacement, text)
    return text


# -- files ---------------------------------------------------------------------------------------


def _document(
    forecasts: list[Forecast], advice: list[list[Advice]], prices: dict[str, float]
) -> dict[str, Any]:
    content = [
        {**forecast.to_json(), "advice": [item.to_json() for item in found]}
        for forecast, found in zip(forecasts, advice, strict=True)
    ]
    failed = any(forecast.failure for forecast in forecasts)
    compared = [] if failed else side_by_side(forecasts, prices).to_json()
    if len(content) == 1:
        return {**content[0], "side_by_side": compared}
    return {
        "schema_version": content[0]["schema_version"],
        "forecasts": content,
        "side_by_side": compared,
    }


def _write_traces(folder: str, forecasts: list[Forecast]) -> list[str]:
    from neusight.integrations.frameworks.tensorboard import trace_handler

    problems: list[str] = []
    for forecast in forecasts:
        place = Path(folder) if len(forecasts) == 1 else Path(folder) / forecast.gpu.name
        try:
            trace_handler(place)(forecast)
        except TraceError as error:
            problems.append(str(error))
    return problems


def tried(write: Callable[[], object], path: str) -> list[str]:
    """Writes; the problem in words where the file cannot be written."""
    try:
        write()
    except OSError as error:
        return [f"{path} cannot be written: {error.strerror or error}"]
    return []


def write_json(path: Path, document: Any) -> None:
    """Writes aside and renames, keys sorted, so that equal values give equal bytes."""
    from neusight.predictors.files import write_atomically

    text = json.dumps(document, indent=1, sort_keys=True, allow_nan=False) + "\n"
    write_atomically(path, text.encode())
