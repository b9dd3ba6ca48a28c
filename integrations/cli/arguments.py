"""Arguments that several commands take, and where they become values."""

from __future__ import annotations

import argparse
import os
from typing import Any

from neusight.fake_cuda.distributed.rank import GPUS_PER_NODE, Rank, stated_rank
from neusight.forecast import forecast_options
from neusight.integrations.cli.launchers import Launched
from neusight.integrations.program.guard.guarded_process import checked_keep_folder, is_guarded
from neusight.integrations.program.options import (
    DEFAULT_MAX_OPS,
    DEFAULT_STEPS,
    DEFAULT_WAIT_S,
    STATED,
    ProgramOptions,
    read_ranks,
)
from neusight.predictors.registry import predictor_at
from neusight.timeline.host import HOST_HELP

#: Options that several commands have, by name, as argparse declares them.
_OPTIONS: dict[str, dict[str, Any]] = {
    "--allow-writes": {"action": "store_true",
        "help": "let the script write, move and remove your files"},
    "--calibration": {"metavar": "FILE", "type": os.path.abspath,
        "help": "calibration of the GPU and its host (`neusight calibrate`)"},
    "--clock": {"choices": ("burst", "sustained"),
        "help": "clocks of the GPU: sustained, those that its power limit allows a long load "
        "(default), or burst, of its first milliseconds"},
    "--gpu": {"action": "append", "metavar": "NAME",
        "help": "target GPU, also several (`neusight gpus` lists all)"},
    "--gpus-per-node": {"type": int, "metavar": "N",
        "help": f"how many of them share a host (up to {GPUS_PER_NODE})"},
    "--host": {"metavar": "NAME[,ghz=…]", "help": HOST_HELP},
    "--json": {"metavar": "FILE", "help": "write all figures there"},
    "--keep-writes": {"metavar": "DIR", "type": os.path.abspath,
        "help": "collect there what the script writes: files that are new, and the copies that it "
        "wrote instead of yours"},
    "--max-ops": {"type": int, "default": DEFAULT_MAX_OPS, "metavar": "N",
        "help": "end a loop that waits for an invented value after N ops"},
    "--network-gbps": {"metavar": "G[xN][:ecmp]",
        "help": "another network between hosts, one direction, 1e9 bytes per second: N cards of G "
        "for each host; :ecmp: Ethernet whose switches choose paths by a hash"},
    "--predictor": {"metavar": "NAME", "help": "who prices the kernels"},
    "--price": {"action": "append", "default": [], "metavar": "GPU=PRICE,…",
        "help": "price of a GPU an hour, for the cost of steps and tokens"},
    "--rank": {"metavar": "K[,K…]|K..L|all-distinct",
        "help": "which of them (0); several run side by side and exchange what they send each "
        "other. all-distinct: all of up to 16; of more rank 0 and those that it sends to or "
        "receives from, and the others for a few steps; ranks that do the same are shown once"},
    "--samples": {"type": int, "metavar": "N",
        "help": "samples that enter a step of each rank, instead of those found in the program"},
    "--steps": {"metavar": "N|all",
        "help": f"steady steps until the script ends ({DEFAULT_STEPS})"},
    "--tokens": {"type": int, "metavar": "N", "help": "the same for tokens"},
    "--topology": {"metavar": "NAME|FILE.json",
        "help": "how GPUs and hosts are joined (default: as in the GPU's reference system; "
        "`neusight gpus --topologies` lists all)"},
    "--torch": {"metavar": "VERSION",
        "help": "price the kernels of that version of torch, as 2.4 (default: the installed one)"},
    "--wait": {"type": float, "metavar": "S", "default": DEFAULT_WAIT_S,
        "help": "seconds that one of several ranks waits for a key that no other sets "
        f"({DEFAULT_WAIT_S:.0f})"},
    "--world-size": {"type": int, "metavar": "N",
        "help": "run it as one of N processes, each with a GPU of its own; a script behind "
        "torchrun or accelerate launch says it there"},
}  # fmt: skip

#: What becomes of the files that a script writes.
OF_FILES = ("--keep-writes", "--allow-writes")

#: A script as one process of many, without how many there are.
OF_RANKS = ("--gpus-per-node", "--topology", "--rank", "--wait", "--network-gbps")


def add_options(command: argparse.ArgumentParser, *names: str, **changes: Any) -> None:
    """Declares options that several commands have; `changes` are this command's own words."""
    for name in names:
        command.add_argument(name, **{**_OPTIONS[name], **changes})


def stated_of_pricing(options: argparse.Namespace) -> dict[str, str | None]:
    """What a command line says of `STATED`, the predictor at its clock; OptionError."""
    stated: dict[str, str | None] = {name: getattr(options, name) for name in STATED}
    return {**stated, "predictor": predictor_at(options.clock, options.predictor)}


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
    """What these say of a program, and whether it is quiet and guarded; OptionError. Commands show
    no operators, unless they say so."""
    checked_keep_folder(options.keep_writes, allow_writes=options.allow_writes)
    return ProgramOptions(
        quiet=options.quiet,
        allow_writes=options.allow_writes,
        keep_writes=options.keep_writes,
        with_operators=False,
        is_guarded=is_guarded(
            is_command_line=options.is_command_line, allow_writes=options.allow_writes
        ),
    )
