"""The exit codes of the commands."""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """How a command of neusight ended."""

    OK = 0
    #: A regression, or it does not fit where that was asked; nothing else is 1.
    JUDGED = 1
    #: The command line, or a file that it names, cannot be used.
    WRONG_USE = 2
    #: The script itself failed.
    SCRIPT_FAILED = 3
    #: neusight itself failed, or cannot work on this machine.
    NEUSIGHT_FAILED = 4
    #: Ctrl-C: what a shell says of a command that SIGINT ended (128 + 2).
    INTERRUPTED = 130
    #: What a shell says of a command that SIGTERM ended (128 + 15).
    TERMINATED = 143
