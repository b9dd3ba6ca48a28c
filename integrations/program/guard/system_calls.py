"""Linux's system calls that Python has no function for."""

from __future__ import annotations

import ctypes
import os

_IS_X86 = os.uname().machine == "x86_64"
#: Name -> number on x86-64 and on arm64 (arch/x86/entry/syscalls/syscall_64.tbl and
#: include/uapi/asm-generic/unistd.h of Linux).
_NUMBERS = {
    "capset": (126, 91),
    "landlock_add_rule": (445, 445),
    "landlock_create_ruleset": (444, 444),
    "landlock_restrict_self": (446, 446),
    "mount": (165, 40),
    "pivot_root": (155, 41),
    "prctl": (157, 167),
    "seccomp": (317, 277),
    "umount2": (166, 39),
    "unshare": (272, 97),
}
#: Linux, include/uapi/linux/prctl.h.
_PR_SET_NO_NEW_PRIVS = 38


def system_call(call: str | int, *arguments: object) -> int:
    """What the call of a name or number returns; OSError where it fails."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.syscall.restype = ctypes.c_long
    number = _NUMBERS[call][not _IS_X86] if isinstance(call, str) else call
    words = [ctypes.c_long(one) if isinstance(one, int) else one for one in (number, *arguments)]
    result = int(libc.syscall(*words))
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
    return result


def promise_no_new_privileges() -> None:
    """What a process without special rights has to promise first: `sudo` gives it none later."""
    system_call("prctl", _PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
