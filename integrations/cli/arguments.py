"""Arguments that several commands take, and where they become values."""

from __future__ import annotations

import argparse
import os

from neusight.integrations.program.guard.guarded_process import checked_keep_folder, is_guarded
from neusight.integrations.program.options import ProgramOptions

__all__ = ["add_file_arguments", "file_options"]


def add_file_arguments(command: argparse.ArgumentParser) -> None:
    """The options of whoever runs a script: what becomes of the files that it writes."""
    command.add_argument("--keep-writes", metavar="DIR", type=os.path.abspath,
                         help="collect there what the script writes: files that are new, and the "
                         "copies that it wrote instead of yours")  # fmt: skip
    command.add_argument("--allow-writes", action="store_true",
                         help="let the script write, move and remove your files")  # fmt: skip


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
