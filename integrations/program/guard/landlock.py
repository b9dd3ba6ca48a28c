"""The kernel's own guard over files: a process gives up writing anywhere but in named folders.

Landlock (Linux 5.13; https://docs.kernel.org/userspace-api/landlock.html) needs no rights to use,
holds for everything the process starts, and cannot be taken back. It judges when a file is opened:
what is open already stays writable. It does not hear chmod, chown and utime.
"""

from __future__ import annotations

import ctypes
import os
import stat
import sys
from collections.abc import Iterable
from functools import cache

__all__ = ["LEAST_ABI", "guard_text", "is_available", "landlock_abi", "restrict_writes"]

# System calls, the same number on every architecture (Linux, include/uapi/asm-generic/unistd.h).
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
# Linux, include/uapi/linux/landlock.h and prctl.h.
_VERSION_FLAG = 1
_PATH_BENEATH = 1
_PR_SET_NO_NEW_PRIVS = 38

_WRITE_FILE, _REMOVE_DIR, _REMOVE_FILE = 1 << 1, 1 << 4, 1 << 5
_MAKE = sum(1 << bit for bit in range(6, 13))  # devices, folders, files, sockets, pipes, links
_REFER, _TRUNCATE = 1 << 13, 1 << 14

#: The first version that lets files move between folders (Linux 5.19). Before it every such move is
#: refused, also within what is allowed, so that programs would fail that do no harm.
LEAST_ABI = 2
#: The first version that hears truncate(2) (Linux 6.2).
_ABI_OF_TRUNCATE = 3


class _RulesetAttribute(ctypes.Structure):
    _fields_ = (("handled_access_fs", ctypes.c_uint64),)


class _PathBeneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = (("allowed_access", ctypes.c_uint64), ("parent_fd", ctypes.c_int32))


@cache
def landlock_abi() -> int:
    """The version of Landlock that this kernel has; 0 where it has none, or has it switched off."""
    if not sys.platform.startswith("linux"):
        return 0
    try:
        return max(0, _call(_CREATE_RULESET, None, 0, _VERSION_FLAG))
    except OSError:
        return 0


def is_available() -> bool:
    """Whether `restrict_writes` works here."""
    return landlock_abi() >= LEAST_ABI


def guard_text(*, is_guarded: bool = True) -> str:
    """What stops a write past the overlay under `neusight run`, or why nothing does; outside of it
    (`is_guarded=False`) nothing does."""
    abi = landlock_abi()
    if abi < LEAST_ABI:
        why = f"its Landlock is ABI {abi}" if abi else "this kernel has no Landlock, or it is off"
        return f"guarded by the overlay alone: {why} (Linux 5.19 or later has what it takes)"
    if not is_guarded:
        return "guarded by the overlay alone: the kernel helps the command `neusight` only"
    return f"guarded by the overlay, and by the kernel behind it (Landlock ABI {abi})"


def restrict_writes(allowed: Iterable[str]) -> None:
    """From now on this thread, and what it starts, writes only in these folders and files, and
    nowhere else creates, moves or removes any; those that are not there are left out.

    OSError where the kernel refuses.
    """
    rights = _rights()
    ruleset = _RulesetAttribute(rights)
    descriptor = _call(_CREATE_RULESET, ctypes.byref(ruleset), ctypes.sizeof(ruleset), 0)
    try:
        for path in allowed:
            _allow(descriptor, path, rights)
        _require_no_new_privileges()
        _call(_RESTRICT_SELF, descriptor, 0)
    finally:
        os.close(descriptor)


def _rights() -> int:
    rights = _WRITE_FILE | _REMOVE_DIR | _REMOVE_FILE | _MAKE | _REFER
    return rights | (_TRUNCATE if landlock_abi() >= _ABI_OF_TRUNCATE else 0)


def _allow(ruleset: int, path: str, rights: int) -> None:
    try:
        place = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return
    try:
        if not stat.S_ISDIR(os.fstat(place).st_mode):
            rights &= _WRITE_FILE | _TRUNCATE
        rule = _PathBeneath(rights, place)
        _call(_ADD_RULE, ruleset, _PATH_BENEATH, ctypes.byref(rule), 0)
    finally:
        os.close(place)


def _require_no_new_privileges() -> None:
    """What a process without special rights has to promise first: `sudo` gives it none later."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
        raise _error()


def _call(number: int, *arguments: object) -> int:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.syscall.restype = ctypes.c_long
    converted = [
        ctypes.c_long(argument) if isinstance(argument, int) else argument for argument in arguments
    ]
    result = int(libc.syscall(ctypes.c_long(number), *converted))
    if result < 0:
        raise _error()
    return result


def _error() -> OSError:
    number = ctypes.get_errno()
    return OSError(number, os.strerror(number))
