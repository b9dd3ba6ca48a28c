"""The commands of `neusight`, one small function each."""

from __future__ import annotations

import argparse
import errno
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from neusight._version import __version__
from neusight.exit_codes import ExitCode
from neusight.integrations.cli import calibrate as calibrate_command
from neusight.integrations.cli import check as check_command
from neusight.integrations.cli import doctor
from neusight.integrations.cli import measure as measure_command
from neusight.integrations.cli import run as run_command
from neusight.integrations.cli import validate as validate_command
from neusight.integrations.cli.hints import (
    command_hint,
    missing_gpu_hint,
    missing_program_hint,
    option_hint,
    script_problem,
)
from neusight.integrations.cli.run import tried, write_json
from neusight.integrations.program.internal_failure import (
    DEBUG_OPTION,
    debugging,
    failure_words,
    is_debugging,
)
from neusight.integrations.program.program import Terminated, ending_on_sigterm
from neusight.integrations.program.runner import Program
from neusight.integrations.program.standard_streams import (
    flush_standard_streams,
    settle_standard_streams,
)
from neusight.interrupts import raises_from_here
from neusight.predictors.errors import (
    NeusightError,
    SlowMachineError,
    UnsupportedTorchError,
)
from neusight.predictors.printable import printable, printable_text
from neusight.predictors.registry import require_predictor

if TYPE_CHECKING:
    from neusight.predictors.learned.network import Network

__all__ = ["main"]

_GIB = 2**30


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command; what it returns is an `ExitCode`.

    Without `arguments` it is the process's own: programs then run in a process beside it, and
    SIGTERM cleans up.
    """
    if arguments is not None:
        return _told(list(arguments), is_command_line=False)
    settle_standard_streams()
    try:
        with ending_on_sigterm():
            return _told(sys.argv[1:], is_command_line=True)
    except Terminated:
        return ExitCode.TERMINATED


def _told(words: list[str], *, is_command_line: bool) -> int:
    own, program = _split(words)
    with debugging(on=is_debugging() or DEBUG_OPTION in own):
        try:
            code = _run(own, program, is_command_line=is_command_line)
            flush_standard_streams()
        except Exception as error:
            return _failed(error, own)
        except KeyboardInterrupt:
            return _said("interrupted", ExitCode.INTERRUPTED)
        return code


def _run(own: list[str], program: Program | None, *, is_command_line: bool) -> int:
    parser = _parser()
    parsers = _parsers_of(parser)
    problem = command_hint(own, parsers)
    command = own[0] if own else ""
    if problem is None and command in parsers:
        asks_for_help = not {"-h", "--help"}.isdisjoint(own)
        problem = None if asks_for_help else _wrong_options(own, program, parsers[command])
    if problem is not None:
        return _said(problem, ExitCode.WRONG_USE)
    options = parser.parse_args(own)
    options.is_command_line = is_command_line
    if options.command is None:
        parser.print_help()
        return ExitCode.WRONG_USE
    if options.command not in _WITH_PROGRAM:
        raises_from_here()
    return _commands(options, program)[options.command]()


def _commands(options: argparse.Namespace, program: Program | None) -> dict[str, Callable[[], int]]:
    return {
        "run": lambda: run_command.run(options, program),
        "check": lambda: check_command.check(options, program),
        "compare": lambda: _compare(options),
        "evaluate": lambda: _evaluate(options),
        "fit": lambda: _fit(options),
        "calibrate": lambda: calibrate_command.run(options),
        "validate": lambda: validate_command.run(options),
        "measure": lambda: measure_command.run(options),
        "doctor": lambda: doctor.run(options),
        "gpus": lambda: _gpus(options),
    }


def _wrong_options(
    own: list[str], program: Program | None, parser: argparse.ArgumentParser
) -> str | None:
    """What to type instead, before the command is parsed."""
    if own[0] in _WITH_PROGRAM and own[-1] == "-m":
        return missing_program_hint(own, parser)
    problem = option_hint(own, parser, program)
    if problem is not None or own[0] not in _WITH_PROGRAM:
        return problem
    is_run = own[0] == "run"
    has_gpu = any(word.partition("=")[0] == "--gpu" for word in own)
    if program is None and is_run and (has_gpu or len(own) > 1):
        return missing_program_hint(own, parser)
    if is_run and not has_gpu:
        return missing_gpu_hint(own[0], own, program)
    return None if program is None else script_problem(program, own)


def _failed(error: Exception, words: Sequence[str]) -> ExitCode:
    """Says what went wrong; whose fault it is decides the code."""
    if isinstance(error, (SlowMachineError, UnsupportedTorchError)):
        return _said(str(error), ExitCode.NEUSIGHT_FAILED)
    if isinstance(error, NeusightError):
        return _said(str(error), ExitCode.WRONG_USE)
    if isinstance(error, OSError) and _is_named(error.filename, words):
        reason = error.strerror or type(error).__name__
        return _said(f"{error.filename}: {reason}", ExitCode.WRONG_USE)
    if isinstance(error, OSError) and error.filename is None and error.errno in _NO_ROOM:
        return _said(f"the output cannot be written: {error.strerror}", ExitCode.NEUSIGHT_FAILED)
    return _said(failure_words(error), ExitCode.NEUSIGHT_FAILED)


#: What a standard output says that takes no more.
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EBADF)


def _is_named(filename: object, words: Sequence[str]) -> bool:
    """Whether the file is one of the command line's, or lies below one."""
    if not isinstance(filename, str):
        return False
    path = Path(filename).absolute()
    named = [Path(word.rpartition("=")[2]).absolute() for word in words if word]
    return any(item == path or item in path.parents for item in named if item != Path.cwd())


def _said(text: str, code: ExitCode) -> ExitCode:
    if sys.stderr is not None:  # closed by the shell: 2>&-
        print(f"neusight: {printable_text(text)}", file=sys.stderr, flush=True)
    return code


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
    run_command.add_arguments(run)
    check = commands.add_parser(
        "check",
        help="judge a script's forecast by a baseline",
        usage="neusight check [--gpu GPU] [options] [SCRIPT.py|-m MODULE [args…]]",
        description="Forecast a script, or all cases of the project, and compare with the baseline "
        "under version control. Exit codes: 0 ok, 1 a regression, 2 wrong use, 3 the script itself "
        "failed.",
    )
    check_command.add_arguments(check)
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
    calibrate = commands.add_parser(
        "calibrate",
        help="learn from a real GPU's profile or measurements",
        description="Learn the constants of a GPU, corrections by kernel class and dtype, and the "
        "costs of its host. A correction is kept only where it makes measurements come out nearer "
        "that were left out of its fit.",
    )
    calibrate_command.add_arguments(calibrate)
    measure = commands.add_parser(
        "measure",
        help="measure the GPU of this machine",
        description="Measure the constants of this machine's GPU, kernels of every class, and "
        "whole training and inference steps, within a time budget. The same command again goes on "
        "from there. Nothing of the GPU is changed.",
    )
    measure_command.add_arguments(measure)
    validate = commands.add_parser(
        "validate",
        help="forecast measured workloads, and score the forecasts",
        description="Forecast every workload that was measured on a real GPU, on this machine "
        "without one, and print how near each came: step time, memory, kernels, and the operators "
        "that cost most of the error.",
    )
    validate_command.add_arguments(validate)
    examination = commands.add_parser("doctor", help="tell what this environment can do")
    doctor.add_arguments(examination)
    for command in commands.choices.values():
        _add_debug(command)
    return parser


def _parsers_of(parser: argparse.ArgumentParser) -> Mapping[str, argparse.ArgumentParser]:
    """The parser of each command."""
    [commands] = [action for action in parser._actions if action.dest == "command"]
    assert isinstance(commands.choices, Mapping)
    return commands.choices


def _add_debug(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        DEBUG_OPTION, action="store_true", help="show every frame of an error (NEUSIGHT_DEBUG=1)"
    )


#: Commands that run a program, and who knows their options.
_WITH_PROGRAM = {"run": run_command.add_arguments, "check": check_command.add_arguments}


def _split(arguments: list[str]) -> tuple[list[str], Program | None]:
    """Our own arguments, and the program with its own: all after the script is the script's."""
    if not arguments or arguments[0] not in _WITH_PROGRAM:
        return arguments, None
    without_value = _options_without_value(arguments[0])
    position = 1
    while position < len(arguments):
        word = arguments[position]
        if word == "-m":
            rest = arguments[position + 1 :]
            if not rest:
                return arguments, None
            return arguments[:position], Program(rest[0], tuple(rest[1:]), is_module=True)
        if word == "--" or not word.startswith("-"):
            rest = arguments[position + (word == "--") :]
            return arguments[:position], Program(rest[0], tuple(rest[1:])) if rest else None
        position += 1 if word in without_value or "=" in word else 2
        if word in _WITH_OPTIONAL_NUMBER and not _is_number(arguments[position - 1 : position]):
            position -= 1
    return arguments, None


#: Options that a number may follow; what follows else is the script.
_WITH_OPTIONAL_NUMBER = {"--max-memory"}


def _is_number(words: Sequence[str]) -> bool:
    try:
        return bool([float(word) for word in words])
    except ValueError:
        return False


def _options_without_value(command: str) -> set[str]:
    probe = argparse.ArgumentParser()
    _WITH_PROGRAM[command](probe)
    _add_debug(probe)
    return {
        option
        for action in probe._actions  # no public name lists them; argparse has had it since 2.7
        if action.nargs == 0
        for option in action.option_strings
    }


# -- neusight compare --------------------------------------------------------------------------


def _compare(options: argparse.Namespace) -> int:
    from neusight.integrations.profiles.comparison import compare
    from neusight.predictors.files import write_atomically

    comparison = compare(options.forecast, options.real)
    problems: list[str] = []
    if options.json:
        path = options.json
        problems += tried(lambda: write_json(Path(path), comparison.to_json()), path)
    if options.markdown:
        text = comparison.to_markdown().encode()
        problems += tried(lambda: write_atomically(Path(options.markdown), text), options.markdown)
    print(comparison.table())
    for problem in problems:
        print(f"neusight: {problem}", file=sys.stderr)
    return ExitCode.WRONG_USE if problems else ExitCode.OK


# -- neusight gpus -----------------------------------------------------------------------------


def _gpus(options: argparse.Namespace) -> int:
    from neusight.predictors.gpu import find_gpu, gpus

    if options.name is not None:
        for name, value in find_gpu(options.name).to_json().items():
            print(printable(f"{name:<38} {value}"))
        return ExitCode.OK
    print(f"{'name':<28} {'architecture':<18} {'memory':>8} {'GB/s':>7} {'bf16 TFLOP/s':>13}")
    for name in gpus():
        item = find_gpu(name)
        peak = item.peak_tflops.get("bf16")
        print(
            f"{printable(name):<28} {printable(item.architecture):<18} "
            f"{item.memory_bytes / _GIB:>6.0f} G {item.bandwidth_gbps:>7.0f} "
            f"{f'{peak:.0f}' if peak else '-':>13}"
        )
    return ExitCode.OK


# -- neusight evaluate, neusight fit -----------------------------------------------------------


def _evaluate(options: argparse.Namespace) -> int:
    from neusight.predictors.training.evaluate import evaluate, table_of

    names = options.predictor or ["tiled"]
    for name in names:
        require_predictor(name)
    report = evaluate(options.data, predictors=names)
    print(table_of(report.rows, every_size=options.sizes))
    for reason in report.left_out:
        print(printable(f"left out: {reason}"))
    problems = []
    if options.json:
        problems = tried(lambda: write_json(Path(options.json), report.to_json()), options.json)
    for problem in problems:
        print(f"neusight: {problem}", file=sys.stderr)
    return ExitCode.WRONG_USE if problems else ExitCode.OK


def _fit(options: argparse.Namespace) -> int:
    from neusight.predictors.training.fit import fit

    networks: dict[str, Network] = {}
    for folder in options.data:
        networks |= fit(folder, options.out, date=options.date, seed=options.seed)
    for family, network in networks.items():
        print(f"{family}: {network.provenance['num_rows']} rows of {', '.join(network.gpus)}")
        for name, error in network.provenance["mape"].items():
            print(f"  {name:<40} {error:6.1%} on held-out shapes")
    return ExitCode.OK
