"""Arguments that several commands take, and where they become values."""

from __future__ import annotations

import argparse
import os

from neusight.fake_cuda.distributed.rank import GPUS_PER_NODE, Rank, stated_rank
from neusight.forecast import forecast_options
from neusight.integrations.cli.launchers import Launched
from neusight.integrations.program.guard.guarded_process import checked_keep_folder, is_guarded
from neusight.integrations.program.options import (
    DEFAULT_WAIT_S,
    STATED,
    ProgramOptions,
    read_ranks,
)
from neusight.predictors.registry import predictor_at

__all__ = [
    "add_file_arguments",
    "add_predictor_arguments",
    "add_rank_arguments",
    "file_options",
    "rank_options",
    "stated_of_pricing",
]


def add_file_arguments(command: argparse.ArgumentParser) -> None:
    """The options of whoever runs a script: what becomes of the files that it writes."""
    command.add_argument("--keep-writes", metavar="DIR", type=os.path.abspath,
                         help="collect there what the script writes: files that are new, and the "
                         "copies that it wrote instead of yours")  # fmt: skip
    command.add_argument("--allow-writes", action="store_true",
                         help="let the script write, move and remove your files")  # fmt: skip


def add_predictor_arguments(command: argparse.ArgumentParser) -> None:
    """Who prices the kernels, and at which clocks."""
    command.add_argument("--predictor", metavar="NAME", help="who prices the kernels")
    command.add_argument("--clock", choices=("burst", "sustained"),
                         help="clocks of the GPU: sustained, those that its power limit allows a "
                         "long load (default), or burst, of its first milliseconds")  # fmt: skip


def stated_of_pricing(options: argparse.Namespace) -> dict[str, str | None]:
    """What a command line says of `STATED`, the predictor at its clock; OptionError."""
    stated: dict[str, str | None] = {name: getattr(options, name) for name in STATED}
    return {**stated, "predictor": predictor_at(options.clock, options.predictor)}


def add_rank_arguments(command: argparse.ArgumentParser, *, takes_several: bool = False) -> None:
    """The options of whoever runs a script as one process of many; `takes_several` leaves a list of
    numbers of them as text."""
    command.add_argument("--world-size", type=str if takes_several else int,
                         metavar="N[,N…]" if takes_several else "N",
                         help="run it as one of N processes, each with a GPU of its own; a script "
                         "behind torchrun or accelerate launch says it there")  # fmt: skip
    command.add_argument("--gpus-per-node", type=int, metavar="N",
                         help=f"how many of them share a host (up to {GPUS_PER_NODE})")  # fmt: skip
    command.add_argument("--topology", metavar="NAME|FILE.json",
                         help="how GPUs and hosts are joined (default: as in the GPU's reference "
                         "system; `neusight gpus --topologies` lists all)")  # fmt: skip
    command.add_argument("--rank", metavar="K[,K…]|K..L|all-distinct",
                         help="which of them (0); several run side by side and exchange what they "
                         "send each other. all-distinct: all of up to 16, of more rank 0, those "
                         "that it exchanges something with, and the last; ranks that do the same "
                         "are shown once")  # fmt: skip
    command.add_argument("--wait", type=float, metavar="S", default=DEFAULT_WAIT_S,
                         help="seconds that one of several ranks waits for a key that no other "
                         f"sets ({DEFAULT_WAIT_S:.0f})")  # fmt: skip
    command.add_argument("--network-gbps", metavar="G[xN]",
                         help="another network between hosts, one direction, 1e9 bytes per second: "
                         "N cards of G for each host")  # fmt: skip


def rank_options(options: argparse.Namespace, launched: Launched | None) -> Rank | None:
    """Which process of many, the first where several run side by side; what the command line says
    goes before the launcher's, and that before the variables RANK and WORLD_SIZE. OptionError,
    TopologyError."""
    index, _ = read_ranks(options.rank)
    if launched is None or options.world_size is not None:
        system = forecast_options(options.gpu[0], topology=options.topology).system
        return stated_rank(
            index=index,
            world_size=options.world_size,
            gpus_per_node=options.gpus_per_node,
            system=system,
        )
    rank = launched.rank
    return Rank(
        rank.index if index is None else index,
        rank.world_size,
        options.gpus_per_node or rank.gpus_per_node,
    )


def file_options(options: argparse.Namespace) -> ProgramOptions:
    """What these say of a program, and whether it is quiet and guarded; OptionError."""
    checked_keep_folder(options.keep_writes, allow_writes=options.allow_writes)
    return ProgramOptions(
        quiet=options.quiet,
        allow_writes=options.allow_writes,
        keep_writes=options.keep_writes,
        is_guarded=is_guarded(
            is_command_line=options.is_command_line, allow_writes=options.allow_writes
        ),
    )
