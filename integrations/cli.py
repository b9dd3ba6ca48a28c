"""The commands of `neusight`, one small function each."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from neusight._version import __version__
from neusight.integrations.runner import Outcome, Program, hide_gpus, run_program
from neusight.predictors.errors import ForecastStateError, NeusightError, TraceError
from neusight.predictors.predictor import predictors

if TYPE_CHECKING:
    from neusight.forecast import Forecast
    from neusight.predictors.network import Network

__all__ = ["main"]

OK, JUDGED, WRONG_USE, SCRIPT_FAILED = range(4)

#: Steady steps after which the script is ended: enough for a median.
DEFAULT_STEPS = 5

#: Ops after which a loop counts as endless; a step of a large model has some ten thousand.
DEFAULT_MAX_OPS = 5_000_000

_GIB = 2**30


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command; 0 ok, 1 judged bad, 2 wrong use, 3 the script failed."""
    own, program = _split(list(sys.argv[1:] if arguments is None else arguments))
    parser = _parser()
    options = parser.parse_args(own)
    if options.command is None:
        parser.print_help()
        return WRONG_USE
    try:
        if options.command == "run":
            return _run(options, program)
        if options.command == "compare":
            return _compare(options)
        if options.command == "evaluate":
            return _evaluate(options)
        if options.command == "fit":
            return _fit(options)
        return _gpus(options)
    except NeusightError as error:
        print(f"neusight: {error}", file=sys.stderr)
        return WRONG_USE


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="neusight",
        description="Forecast what a PyTorch CUDA program does on a GPU that is not there.",
    )
    parser.add_argument("--version", action="version", version=f"neusight {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    run = commands.add_parser(
        "run",
        help="forecast an unmodified script",
        usage="neusight run --gpu GPU [options] SCRIPT.py|-m MODULE [args…]",
        description="Run a script as Python would, with forecasts for CUDA. All that follows the "
        "script is the script's. Exit codes: 0 ok, 2 wrong use, 3 the script itself failed.",
    )
    run.add_argument("--gpu", action="append", required=True, metavar="NAME",
                     help="target GPU, also several (`neusight gpus` lists all)")  # fmt: skip
    run.add_argument("--trace", metavar="DIR", help="write a trace for TensorBoard there")
    run.add_argument("--json", metavar="FILE", help="write all figures there")
    run.add_argument("--save", metavar="FILE", help="save the recording, to price it again later")
    run.add_argument("--steps", default=str(DEFAULT_STEPS), metavar="N|all",
                     help=f"steady steps until the script is ended ({DEFAULT_STEPS})")  # fmt: skip
    run.add_argument("--predictor", metavar="NAME", help="who prices the kernels")
    run.add_argument("--host", choices=("plain", "older", "profiled"),
                     help="cost of the host (default: what machines with that GPU usually have); "
                     "profiled: slowed by a profiler")  # fmt: skip
    run.add_argument("--strict", action="store_true", help="fail at the first unmapped op")
    run.add_argument("--out-of-memory", choices=("report", "raise"), default="report",
                     help="go on past the GPU's memory, or raise as it would")  # fmt: skip
    run.add_argument("--max-ops", type=int, default=DEFAULT_MAX_OPS, metavar="N",
                     help="end a loop that waits for an invented value after N ops")  # fmt: skip
    run.add_argument("--allow-writes", action="store_true",
                     help="let checkpoints overwrite the script's own paths")  # fmt: skip
    comparison = commands.add_parser(
        "compare",
        help="lay a forecast beside a real profile",
        description="Compare the trace of a forecast with the trace that torch.profiler wrote.",
    )
    comparison.add_argument("forecast", metavar="FORECAST", help="trace of `neusight run --trace`")
    comparison.add_argument("real", metavar="REAL", help="trace of torch.profiler, also gzipped")
    comparison.add_argument("--json", metavar="FILE", help="write all figures there")
    comparison.add_argument("--markdown", metavar="FILE", help="write the tables there")
    gpus = commands.add_parser("gpus", help="list the GPUs, or show one")
    gpus.add_argument("name", nargs="?", help="a GPU")
    evaluate = commands.add_parser("evaluate", help="score predictors on measured kernels")
    evaluate.add_argument("--data", required=True, metavar="DIR", help="folder with the tables")
    evaluate.add_argument("--predictor", action="append", metavar="NAME",
                          help="who prices the kernels, also several (tiled)")  # fmt: skip
    evaluate.add_argument("--json", metavar="FILE", help="write all scores there")
    evaluate.add_argument("--sizes", action="store_true", help="show every size class")
    fit = commands.add_parser("fit", help="fit the trained predictors to measured kernels")
    fit.add_argument("data", metavar="DATA", nargs="+", help="folders with the tables")
    fit.add_argument("--out", required=True, metavar="DIR", help="folder for the weights")
    fit.add_argument("--date", default="", help="date to note in the weights")
    fit.add_argument("--seed", type=int, default=0, metavar="N", help="seed of the fit (0)")
    return parser


_WITHOUT_VALUE = {"--strict", "--allow-writes", "-h", "--help"}


def _split(arguments: list[str]) -> tuple[list[str], Program | None]:
    """Our own arguments, and the program with its own: all after the script is the script's."""
    if not arguments or arguments[0] != "run":
        return arguments, None
    position = 1
    while position < len(arguments):
        word = arguments[position]
        if word == "-m":
            rest = arguments[position + 1 :]
            program = Program(rest[0], tuple(rest[1:]), is_module=True) if rest else None
            return arguments[:position], program
        if word == "--" or not word.startswith("-"):
            rest = arguments[position + (word == "--") :]
            return arguments[:position], Program(rest[0], tuple(rest[1:])) if rest else None
        position += 1 if word in _WITHOUT_VALUE or "=" in word else 2
    return arguments, None


# -- neusight run ----------------------------------------------------------------------------


def _run(options: argparse.Namespace, program: Program | None) -> int:
    if program is None:
        return _wrong("give the script to run: neusight run --gpu H100 train.py")
    if not program.is_module and not Path(program.target).is_file():
        return _wrong(f"there is no script {program.target!r} in {Path.cwd()}")
    if options.steps != "all" and not (options.steps.isdigit() and int(options.steps) > 0):
        return _wrong(f"--steps is {options.steps!r}; it must be a number above 0, or all")
    if options.predictor is not None and options.predictor not in predictors():
        return _wrong(f"unknown predictor {options.predictor!r}; known: {', '.join(predictors())}")
    hide_gpus()
    forecast, outcome = _record(options, program)
    if not forecast.recording.steps and outcome.failure:
        print(
            f"neusight: the script failed before any CUDA work: {outcome.failure}", file=sys.stderr
        )
        return SCRIPT_FAILED
    forecasts = [
        forecast,
        *(_priced_on(name, forecast, options, program) for name in options.gpu[1:]),
    ]
    _report(options, forecasts, outcome)
    if outcome.failure:
        return SCRIPT_FAILED
    return OK if forecast.recording.num_ops else WRONG_USE


def _record(options: argparse.Namespace, program: Program) -> tuple[Forecast, Outcome]:
    from neusight.forecast import Forecast, Session, host_profile
    from neusight.predictors.gpu import gpu
    from neusight.predictors.predictor import predictor

    target = gpu(options.gpu[0])
    forecast = Forecast(target, predictor(options.predictor), host_profile(options.host, target))
    session = Session(
        forecast,
        strict=options.strict,
        raise_out_of_memory=options.out_of_memory == "raise",
        virtual_time=True,
        allow_writes=options.allow_writes,
        steady_steps=None if options.steps == "all" else int(options.steps),
        max_ops=options.max_ops,
        script=" ".join([Path(program.target).name, *program.arguments]),
    )
    return forecast, run_program(program, session)


def _priced_on(
    name: str, forecast: Forecast, options: argparse.Namespace, program: Program
) -> Forecast:
    """The same recording on another GPU, or a new one where the program would take another path."""
    try:
        return forecast.on(name)
    except ForecastStateError:
        return _recorded_again(name, options, program)


def _recorded_again(name: str, options: argparse.Namespace, program: Program) -> Forecast:
    from neusight.forecast import Forecast

    with tempfile.TemporaryDirectory(prefix="neusight-") as folder:
        path = Path(folder) / "recording.json.gz"
        command = [sys.executable, "-m", "neusight", "run", "--gpu", name, "--save", str(path)]
        command += ["--steps", options.steps]
        command += ["--host", options.host] if options.host else []
        command += ["--max-ops", str(options.max_ops), "--out-of-memory", options.out_of_memory]
        command += ["--predictor", options.predictor] if options.predictor else []
        command += ["--strict"] if options.strict else []
        command += ["-m"] if program.is_module else []
        done = subprocess.run(
            [*command, program.target, *program.arguments], capture_output=True, text=True
        )
        if not path.exists():
            raise ForecastStateError(
                f"The script could not be recorded on {name}: {done.stderr.strip()[-500:]}"
            )
        return Forecast.load(path)


def _report(options: argparse.Namespace, forecasts: list[Forecast], outcome: Outcome) -> None:
    """Writes what was asked for and prints the first screen; a file that cannot be written is told
    after it, so that nothing computed is lost."""
    problems: list[str] = []
    first = forecasts[0]
    if options.trace and first.recording.num_ops:
        problems += _write_traces(options.trace, forecasts)
    if options.save:
        problems += _tried(lambda: first.save(options.save), options.save)
    if options.json:
        content = [forecast.to_json() for forecast in forecasts]
        document: Any = (
            content[0]
            if len(content) == 1
            else {"schema_version": content[0]["schema_version"], "forecasts": content}
        )
        problems += _tried(lambda: _write_json(Path(options.json), document), options.json)
    print()
    for forecast in forecasts:
        print(forecast.summary())
    if outcome.stopped_early:
        print(f"  note      the script was ended after {options.steps} steady steps (--steps)")
    if options.trace and first.trace_path:
        print(f"  open with tensorboard --logdir {options.trace}")
    if outcome.failure:
        print(f"neusight: the script failed: {outcome.failure}", file=sys.stderr)
        print("neusight: the forecast covers what it did before", file=sys.stderr)
    for problem in problems:
        print(f"neusight: {problem}", file=sys.stderr)


def _write_traces(folder: str, forecasts: list[Forecast]) -> list[str]:
    from neusight.integrations.tensorboard import trace_handler

    problems: list[str] = []
    for forecast in forecasts:
        place = Path(folder) if len(forecasts) == 1 else Path(folder) / forecast.gpu.name
        try:
            trace_handler(place)(forecast)
        except TraceError as error:
            problems.append(str(error))
    return problems


def _tried(write: Any, path: str) -> list[str]:
    try:
        write()
    except OSError as error:
        return [f"{path} cannot be written: {error.strerror or error}"]
    return []


def _write_json(path: Path, document: Any) -> None:
    from neusight.saving import write_atomically

    text = json.dumps(document, indent=1, sort_keys=True, allow_nan=False) + "\n"
    write_atomically(path, text.encode())


def _wrong(text: str) -> int:
    print(f"neusight: {text}", file=sys.stderr)
    return WRONG_USE


# -- neusight compare --------------------------------------------------------------------------


def _compare(options: argparse.Namespace) -> int:
    from neusight.integrations.comparison import compare
    from neusight.saving import write_atomically

    comparison = compare(options.forecast, options.real)
    problems: list[str] = []
    if options.json:
        path = options.json
        problems += _tried(lambda: _write_json(Path(path), comparison.to_json()), path)
    if options.markdown:
        text = comparison.to_markdown().encode()
        problems += _tried(lambda: write_atomically(Path(options.markdown), text), options.markdown)
    print(comparison.table())
    for problem in problems:
        print(f"neusight: {problem}", file=sys.stderr)
    return WRONG_USE if problems else OK


# -- neusight gpus -----------------------------------------------------------------------------


def _gpus(options: argparse.Namespace) -> int:
    from neusight.predictors.gpu import gpu, gpus

    if options.name is not None:
        for name, value in gpu(options.name).to_json().items():
            print(f"{name:<38} {value}")
        return OK
    print(f"{'name':<28} {'architecture':<18} {'memory':>8} {'GB/s':>7} {'bf16 TFLOP/s':>13}")
    for name in gpus():
        item = gpu(name)
        peak = item.peak_tflops.get("bf16")
        print(
            f"{name:<28} {item.architecture:<18} {item.memory_bytes / _GIB:>6.0f} G "
            f"{item.bandwidth_gbps:>7.0f} {f'{peak:.0f}' if peak else '-':>13}"
        )
    return OK


# -- neusight evaluate, neusight fit -----------------------------------------------------------


def _evaluate(options: argparse.Namespace) -> int:
    from neusight.predictors.training.evaluate import evaluate, table_of

    names = options.predictor or ["tiled"]
    unknown = [name for name in names if name not in predictors()]
    if unknown:
        return _wrong(f"unknown predictor {unknown[0]!r}; known: {', '.join(predictors())}")
    report = evaluate(options.data, predictors=names)
    print(table_of(report.rows, every_size=options.sizes))
    for reason in report.left_out:
        print(f"left out: {reason}")
    problems = []
    if options.json:
        problems = _tried(lambda: _write_json(Path(options.json), report.to_json()), options.json)
    for problem in problems:
        print(f"neusight: {problem}", file=sys.stderr)
    return WRONG_USE if problems else OK


def _fit(options: argparse.Namespace) -> int:
    from neusight.predictors.training.fit import fit

    networks: dict[str, Network] = {}
    for folder in options.data:
        networks |= fit(folder, options.out, date=options.date, seed=options.seed)
    for family, network in networks.items():
        print(f"{family}: {network.provenance['num_rows']} rows of {', '.join(network.gpus)}")
        for name, error in network.provenance["mape"].items():
            print(f"  {name:<40} {error:6.1%} on held-out shapes")
    return OK
