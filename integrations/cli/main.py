"""The commands of `neusight`, one small function each."""

from __future__ import annotations

import argparse
import errno
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from neusight._version import __version__
from neusight.compatibility.releases import refuse_platform
from neusight.compatibility.torch_internals import error_of_missing_name
from neusight.exit_codes import ExitCode
from neusight.integrations.cli.commands import check, compare, doctor, gpus, plan, run, serve
from neusight.integrations.cli.commands.measurements import (
    calibrate,
    carry,
    evaluate,
    fit,
    measure,
    validate,
)
from neusight.integrations.cli.hints import (
    command_hint,
    misplaced_option_hint,
    missing_gpu_hint,
    missing_program_hint,
    option_hint,
    script_problem,
)
from neusight.integrations.program.errors.internal_failure import (
    DEBUG_OPTION,
    debugging,
    internal_failure_text,
    is_debugging,
)
from neusight.integrations.program.guard.guarded_process import Terminated, ending_on_sigterm
from neusight.integrations.program.program import Program
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
from neusight.predictors.files import number_of
from neusight.predictors.terminal_text import printable_text


class Command(Protocol):
    """What a module of a command says of it."""

    HELP: str
    DESCRIPTION: str

    def add_arguments(self, parser: argparse.ArgumentParser, /) -> None:
        """Its options."""
        ...

    @property
    def run(self) -> Callable[..., int]:
        """Does what the options say, with the program of those that run one; the exit code."""
        ...


#: Those that run a program: all after the program is the program's.
_WITH_PROGRAM: Mapping[str, Command] = {
    "run": run,
    "plan": plan,
    "check": check,
    "compare": compare,
}
#: Commands that run a program only where that option asks for it.
_ONLY_WITH = {"compare": "--git"}
_WITHOUT_PROGRAM: Mapping[str, Command] = {
    "gpus": gpus,
    "serve": serve,
    "evaluate": evaluate,
    "fit": fit,
    "calibrate": calibrate,
    "carry": carry,
    "measure": measure,
    "validate": validate,
    "doctor": doctor,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command; what it returns is an `ExitCode`.

    Without `arguments` it is the process's own: programs then run in a process beside it, and
    SIGTERM cleans up.
    """
    if arguments is not None:
        return _run_guarded(list(arguments), is_command_line=False)
    settle_standard_streams()
    try:
        with ending_on_sigterm():
            return _run_guarded(sys.argv[1:], is_command_line=True)
    except Terminated:
        return ExitCode.TERMINATED
    except KeyboardInterrupt:  # again, before the first was said
        return ExitCode.INTERRUPTED


def _run_guarded(words: list[str], *, is_command_line: bool) -> int:
    own, program = _understood(words)
    with debugging(on=is_debugging() or DEBUG_OPTION in own):
        try:
            is_separated = program is not None and words[len(own)] == "--"
            code = _run(own, program, is_command_line=is_command_line, is_separated=is_separated)
            flush_standard_streams()
        except Exception as error:
            return _failed(error, own)
        except KeyboardInterrupt:
            if is_command_line:
                signal.signal(signal.SIGINT, signal.SIG_IGN)  # nothing is left to interrupt
            return _exit("interrupted", ExitCode.INTERRUPTED)
        return code


def _run(
    own: list[str], program: Program | None, *, is_command_line: bool, is_separated: bool
) -> int:
    parser = _parser()
    parsers = _parsers_of(parser)
    problem = command_hint(own, parsers)
    command = own[0] if own else ""
    if problem is None and command in parsers:
        asks_for_help = not {"-h", "--help"}.isdisjoint(own)
        if not asks_for_help:
            problem = _wrong_options(own, program, parsers[command])
        if problem is None and command == "check" and program is not None and not is_separated:
            problem = misplaced_option_hint(own, program, parsers[command])
    if problem is not None:
        return _exit(problem, ExitCode.WRONG_USE)
    options = parser.parse_args(own)
    options.is_command_line = is_command_line
    options.own_words = own
    if options.command is None:
        parser.print_help()
        return ExitCode.WRONG_USE
    if options.command in _ONLY_WITH:
        raises_from_here()
    if options.command in _WITH_PROGRAM:
        if _runs_programs(own):
            refuse_platform()
        return _WITH_PROGRAM[options.command].run(options, program)
    raises_from_here()
    return _WITHOUT_PROGRAM[options.command].run(options)


def _wrong_options(
    own: list[str], program: Program | None, parser: argparse.ArgumentParser
) -> str | None:
    """What to type instead, before the command is parsed."""
    if own[0] in _WITH_PROGRAM and own[-1] == "-m":
        return missing_program_hint(own, parser)
    problem = option_hint(own, parser, program)
    if problem is not None or own[0] not in _WITH_PROGRAM:
        return problem
    is_run = own[0] in ("run", "plan")
    has_gpu = any(word.partition("=")[0] == "--gpu" for word in own)
    has_model = own[0] == "plan" and any(word.partition("=")[0] == "--model" for word in own)
    if program is None and is_run and not has_model and (has_gpu or len(own) > 1):
        return missing_program_hint(own, parser)
    if is_run and not has_gpu:
        return missing_gpu_hint(own[0], own, program)
    return None if program is None else script_problem(program, own)


def _failed(error: Exception, words: Sequence[str]) -> ExitCode:
    """Says what went wrong; whose fault it is decides the code."""
    error = error_of_missing_name(error) or error
    if isinstance(error, (SlowMachineError, UnsupportedTorchError)):
        return _exit(str(error), ExitCode.NEUSIGHT_FAILED)
    if isinstance(error, NeusightError):
        return _exit(str(error), ExitCode.WRONG_USE)
    if isinstance(error, OSError) and _is_named(error.filename, words):
        reason = error.strerror or type(error).__name__
        return _exit(f"{error.filename}: {reason}", ExitCode.WRONG_USE)
    if isinstance(error, OSError) and error.filename is None and error.errno in _NO_SPACE:
        return _exit(f"the output cannot be written: {error.strerror}", ExitCode.NEUSIGHT_FAILED)
    return _exit(internal_failure_text(error), ExitCode.NEUSIGHT_FAILED)


#: What a standard output says that takes no more.
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EBADF)


def _is_named(filename: object, words: Sequence[str]) -> bool:
    """Whether the file is one of the command line's, or lies below one."""
    if not isinstance(filename, str):
        return False
    path = Path(filename).absolute()
    named = [Path(word.rpartition("=")[2]).absolute() for word in words if word]
    return any(item == path or item in path.parents for item in named if item != Path.cwd())


def _exit(text: str, code: ExitCode) -> ExitCode:
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
    for name, command in {**_WITH_PROGRAM, **_WITHOUT_PROGRAM}.items():
        usage = getattr(command, "USAGE", None)
        own = commands.add_parser(
            name, help=command.HELP, description=command.DESCRIPTION or None, usage=usage
        )
        command.add_arguments(own)
        own.add_argument(
            DEBUG_OPTION,
            action="store_true",
            help="show every frame of an error (NEUSIGHT_DEBUG=1)",
        )
    return parser


def _parsers_of(parser: argparse.ArgumentParser) -> Mapping[str, argparse.ArgumentParser]:
    """The parser of each command."""
    [commands] = [action for action in parser._actions if action.dest == "command"]
    assert isinstance(commands.choices, Mapping)
    return commands.choices


def _understood(words: list[str]) -> tuple[list[str], Program | None]:
    """As `_split`; `plan --serve MODEL` is `serve --plan MODEL`."""
    own, program = _split(words)
    if own[:1] != ["plan"] or not any(word.partition("=")[0] == "--serve" for word in own):
        return own, program
    rest = [word.removeprefix("--serve=") for word in words[1:] if word != "--serve"]
    return ["serve", "--plan", *rest], None


def _split(arguments: list[str]) -> tuple[list[str], Program | None]:
    """Our own arguments, and the program with its own: all after the script is the script's."""
    if not _runs_programs(arguments):
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
        if word in _WITH_OPTIONAL_NUMBER and (
            position > len(arguments) or number_of(arguments[position - 1]) is None
        ):
            position -= 1
    return arguments, None


def _runs_programs(words: Sequence[str]) -> bool:
    """Whether that command line may have a program in it."""
    if not words or words[0] not in _WITH_PROGRAM:
        return False
    option = _ONLY_WITH.get(words[0])
    return option is None or any(word.partition("=")[0] == option for word in words)


#: Options that a number may follow; what follows else is the script.
_WITH_OPTIONAL_NUMBER = {"--max-memory"}


def _options_without_value(command: str) -> set[str]:
    probe = argparse.ArgumentParser()
    _WITH_PROGRAM[command].add_arguments(probe)
    return {DEBUG_OPTION} | {
        option
        for action in probe._actions  # no public name lists them; argparse has had it since 2.7
        if action.nargs == 0
        for option in action.option_strings
    }
