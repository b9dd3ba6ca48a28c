"""The kernel's own guard over files: a process gives up writing anywhere but in named folders.

Landlock (Linux 5.13; https://docs.kernel.org/userspace-api/landlock.html) needs no rights to use,
holds for everything the process starts, and cannot be taken back. It judges when a file is opened:
what is open already stays writable. It does not cover chmod, chown and utime.
"""

from __future__ import annotations

import os
import stat
import struct
import sys
from collections.abc import Iterable
from contextlib import suppress
from functools import cache

from neusight.integrations.program.guard.system_calls import (
    promise_no_new_privileges,
    system_call,
)

# Linux, include/uapi/linux/landlock.h.
_VERSION_FLAG = 1
_PATH_BENEATH = 1

_WRITE_FILE, _REMOVE_DIR, _REMOVE_FILE = 1 << 1, 1 << 4, 1 << 5
_MAKE = sum(1 << bit for bit in range(6, 13))  # devices, folders, files, sockets, pipes, links
_REFER, _TRUNCATE = 1 << 13, 1 << 14

#: The first version that lets files move between folders (Linux 5.19). Before it every such move is
#: refused, also within what is allowed, so that programs would fail that do no harm.
LEAST_ABI = 2
#: The first version that covers truncate(2) (Linux 6.2).
_ABI_OF_TRUNCATE = 3


@cache
def landlock_abi() -> int:
    """The version of Landlock that this kernel has; 0 where it has none, or has it switched off."""
    if not sys.platform.startswith("linux"):
        return 0
    try:
        return system_call("landlock_create_ruleset", None, 0, _VERSION_FLAG)
    except OSError:
        return 0


def is_available() -> bool:
    """Whether `restrict_writes` works here."""
    return landlock_abi() >= LEAST_ABI


def why_no_landlock() -> str:
    """Why `restrict_writes` does not work here; empty where it does."""
    if is_available():
        return ""
    abi = landlock_abi()
    why = f"its Landlock is ABI {abi}" if abi else "this kernel has no Landlock, or it is off"
    return f"{why} (Linux 5.19 or later has what it takes)"


def restrict_writes(allowed: Iterable[str]) -> None:
    """From now on this thread, and what it starts, writes only in these folders and files, and
    nowhere else creates, moves or removes any; those that are not there are left out.

    OSError where the kernel refuses.
    """
    rights = _WRITE_FILE | _REMOVE_DIR | _REMOVE_FILE | _MAKE | _REFER
    if landlock_abi() >= _ABI_OF_TRUNCATE:
        rights |= _TRUNCATE
    handled = struct.pack("=Q", rights)  # struct landlock_ruleset_attr
    ruleset = system_call("landlock_create_ruleset", handled, len(handled), 0)
    try:
        for path in allowed:
            with suppress(OSError):
                _allow(ruleset, path, rights)
        promise_no_new_privileges()
        system_call("landlock_restrict_self", ruleset, 0)
    finally:
        os.close(ruleset)


def _allow(ruleset: int, path: str, rights: int) -> None:
    place = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        if not stat.S_ISDIR(os.fstat(place).st_mode):
            rights &= _WRITE_FILE | _TRUNCATE
        rule = struct.pack("=Qi", rights, place)  # struct landlock_path_beneath_attr
        system_call("landlock_add_rule", ruleset, _PATH_BENEATH, rule, 0)
    finally:
        os.close(place)
