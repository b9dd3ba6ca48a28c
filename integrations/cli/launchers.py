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
    """What the program starts if it is torchrun, `accelerate launch`, `deepspeed` or the module of
    one of them; None if it is none. OptionError for arguments that the launcher itself refuses, or
    that leave the number of processes open."""
    read = _reader_of(program)
    return None if read is None else read(program)


def _reader_of(program: Program) -> Callable[[Program], Launched] | None:
    if program.is_module:
        return _MODULES.get(program.target)
    name = PurePath(program.target).name
    if name == "torchrun":
        return _by_torchrun
    if name == "deepspeed":
        return _by_deepspeed
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


#: Options of `deepspeed` with a value and without, which say nothing of the ranks; its own parser
#: cannot be imported before the GPU is there to be seen.
_DEEPSPEED_VALUES = (
    "-H", "--hostfile", "-i", "--include", "-e", "--exclude", "--master_port", "--master_addr",
    "--launcher", "--launcher_args", "--enable_each_rank_log", "--autotuning", "--bind_core_list",
    "--ssh_port", "--venv_script", "--log_level",
)  # fmt: skip
_DEEPSPEED_FLAGS = (
    "--no_python", "--no_ssh", "--no_ssh_check", "--force_multi", "--save_pid",
    "--bind_cores_to_rank", "-q", "--quiet",
)  # fmt: skip


def _by_deepspeed(program: Program) -> Launched:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    for name in _DEEPSPEED_VALUES:
        parser.add_argument(name)
    for name in ("--module", "--no_local_rank", *_DEEPSPEED_FLAGS):
        parser.add_argument(name, action="store_true")
    parser.add_argument("--num_gpus", "--num_accelerators", default="all")
    parser.add_argument("--num_nodes", default="1")
    parser.add_argument("--node_rank", type=int, default=0)
    parser.add_argument("user_script")
    parser.add_argument("user_args", nargs=argparse.REMAINDER)
    options = _parsed(parser, "deepspeed", program.arguments)
    per_node = _number("deepspeed", "--num_gpus", options.num_gpus)
    num_nodes = _number("deepspeed", "--num_nodes", options.num_nodes)
    local_rank = () if options.no_local_rank else ("--local_rank=0",)
    return Launched(
        Program(options.user_script, (*local_rank, *options.user_args), is_module=options.module),
        Rank(options.node_rank * per_node, num_nodes * per_node, per_node),
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
    """GPUs that a launcher would count itself ("gpu", "auto") cannot be counted here."""
    if not text.isdecimal() or not int(text):
        raise OptionError(f"{launcher}: say a number for {option}; {text!r} asks the machine")
    return int(text)


#: Modules that are launchers.
_MODULES: dict[str, Callable[[Program], Launched]] = {
    "torch.distributed.run": _by_torchrun,
    "torch.distributed.launch": _by_torchrun,
    "accelerate.commands.launch": _by_accelerate,
    "deepspeed.launcher.runner": _by_deepspeed,
}
