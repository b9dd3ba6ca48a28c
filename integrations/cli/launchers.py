"""Launchers that start many processes: the program is one of them, and nothing is started."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import PurePath

from neusight.fake_cuda.distributed.rank import Rank
from neusight.integrations.program.program import Program
from neusight.predictors.errors import OptionError


@dataclass(frozen=True)
class Launched:
    """What a launcher would start: the program, and its first process."""

    program: Program
    rank: Rank


def is_launcher(program: Program) -> bool:
    """Whether it starts another program as many processes.

    >>> is_launcher(Program("torchrun", ("--nproc-per-node", "8", "train.py")))
    True
    """
    return _reader_of(program) is not None


def launched(program: Program) -> Launched | None:
    """What the program starts if it is torchrun, `accelerate launch` or the module of one of them;
    None if it is none. OptionError for arguments that the launcher itself refuses, or that leave
    the number of processes open."""
    read = _reader_of(program)
    return None if read is None else read(program)


def _reader_of(program: Program) -> Callable[[Program], Launched] | None:
    if program.is_module:
        return _MODULES.get(program.target)
    name = PurePath(program.target).name
    if name == "torchrun":
        return _by_torchrun
    return _by_accelerate if (name, *program.arguments[:1]) == ("accelerate", "launch") else None


def _by_torchrun(program: Program) -> Launched:
    from torch.distributed.run import get_args_parser

    name = program.target
    options = _parsed(get_args_parser(), name, program.arguments)
    per_node = _number(name, "--nproc-per-node", str(options.nproc_per_node))
    nodes = str(options.nnodes).partition(":")[0]  # MIN:MAX
    num_nodes = _number(name, "--nnodes", nodes)
    words = (options.training_script, *options.training_script_args)
    return Launched(
        Program(words[0], tuple(words[1:]), is_module=bool(options.module)),
        Rank(options.node_rank * per_node, num_nodes * per_node, per_node),
    )


def _by_accelerate(program: Program) -> Launched:
    try:
        from accelerate.commands.launch import launch_command_parser
    except ImportError as error:
        raise OptionError(
            "accelerate is not installed, which `accelerate launch` belongs to; say --world-size "
            "and the script itself"
        ) from error
    own = program.arguments if program.is_module else program.arguments[1:]
    options = _parsed(launch_command_parser(), "accelerate launch", own)
    if options.num_processes is None:
        raise OptionError("accelerate launch: say --num_processes; its own file is not read here")
    num_nodes = options.num_machines or 1
    if options.num_processes % num_nodes:
        raise OptionError(
            f"accelerate launch: {options.num_processes} processes do not fill {num_nodes} machines"
        )
    per_node = options.num_processes // num_nodes
    words = (options.training_script, *options.training_script_args)
    return Launched(
        Program(words[0], tuple(words[1:]), is_module=bool(options.module)),
        Rank((options.machine_rank or 0) * per_node, options.num_processes, per_node),
    )


def _parsed(
    parser: argparse.ArgumentParser, name: str, arguments: Sequence[str]
) -> argparse.Namespace:
    """The launcher's own reading of its arguments."""

    def refuse(message: str) -> None:
        raise OptionError(f"{name}: {message}")

    parser.error = refuse  # type: ignore[method-assign, assignment]
    return parser.parse_args(list(arguments))


def _number(launcher: str, option: str, text: str) -> int:
    """GPUs that a launcher would count itself ("gpu", "auto") are for nobody to count here."""
    if not text.isdecimal() or not int(text):
        raise OptionError(f"{launcher}: say a number for {option}; {text!r} asks the machine")
    return int(text)


#: Modules that are launchers.
_MODULES: dict[str, Callable[[Program], Launched]] = {
    "torch.distributed.run": _by_torchrun,
    "torch.distributed.launch": _by_torchrun,
    "accelerate.commands.launch": _by_accelerate,
}
