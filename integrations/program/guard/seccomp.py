"""System calls that a process leaves to another one to decide: seccomp's user notifications.

The filter holds for everything the process starts. Each call of the table, all that name files,
waits until the supervisor lets it go on, answers it, or puts a descriptor in its place
(seccomp_unotify(2); Linux 5.19 for calls that no signal interrupts).
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import struct
from contextlib import suppress
from typing import NamedTuple

from neusight.integrations.program.guard.system_calls import (
    promise_no_new_privileges,
    system_call,
)

_IS_X86 = os.uname().machine == "x86_64"
# Linux, include/uapi/linux/seccomp.h, audit.h, bpf_common.h.
_ARCHITECTURE = 0xC000003E if _IS_X86 else 0xC00000B7
_SET_MODE_FILTER, _NEW_LISTENER, _WAIT_KILLABLE = 1, 1 << 3, 1 << 5
_ALLOW, _NOTIFY = 0x7FFF0000, 0x7FC00000
_LOAD, _JUMP_IF_EQUAL, _JUMP_IF_SET, _RETURN = 0x20, 0x15, 0x45, 0x06
_RECEIVE, _SEND, _IS_VALID, _ADD_DESCRIPTOR = 0xC0502100, 0xC0182101, 0x40082102, 0x40182103
_CONTINUE, _ADD_AND_SEND = 1, 2

# struct seccomp_data; of an argument the lower half comes first (both are little-endian).
_NUMBER_AT, _ARCHITECTURE_AT, _ARGUMENTS_AT, _ARGUMENT_BYTES = 0, 4, 16, 8


#: Flags of calls on paths (include/uapi/linux/fcntl.h).
NO_FOLLOW, REMOVE_FOLDER, FOLLOW, EMPTY_PATH = 0x100, 0x200, 0x400, 0x1000


class Call(NamedTuple):
    """A system call: what it does, and at which arguments it takes what (-1: nowhere)."""

    does: str
    path: int
    #: Of the descriptor of the folder that the path starts at, or of the file where there is none.
    folder: int = -1
    #: Or, from NO_FOLLOW on, the flags that the call stands for.
    flags: int = -1
    #: Or a length.
    mode: int = -1
    #: Of the address that a status or a text goes to.
    result: int = -1
    second_path: int = -1
    second_folder: int = -1

    def flags_of(self, arguments: tuple[int, ...]) -> int:
        """Its flags where it has these arguments."""
        if 0 <= self.flags < NO_FOLLOW:
            return arguments[self.flags] & 0xFFFFFFFF
        return max(self.flags, 0)


#: Numbers on x86-64 and on arm64 (0: not there) -> call.
_TABLE = {
    (2, 0): Call("open", 0, flags=1, mode=2),
    (85, 0): Call("open", 0, flags=os.O_CREAT | os.O_WRONLY | os.O_TRUNC, mode=1),  # creat
    (257, 56): Call("open", 1, 0, flags=2, mode=3),
    (437, 437): Call("openat2", 1, 0),
    (4, 0): Call("stat", 0, result=1),
    (6, 0): Call("stat", 0, flags=NO_FOLLOW, result=1),
    (262, 79): Call("stat", 1, 0, flags=3, result=2),
    (332, 291): Call("stat", 1, 0, flags=2, result=4),
    (21, 0): Call("access", 0, mode=1),
    (269, 48): Call("access", 1, 0, mode=2),
    (439, 439): Call("access", 1, 0, mode=2, flags=3),
    (89, 0): Call("readlink", 0, result=1),
    (267, 78): Call("readlink", 1, 0, result=2),
    (80, 49): Call("chdir", 0),
    (76, 45): Call("truncate", 0, mode=1),
    (83, 0): Call("mkdir", 0, mode=1),
    (258, 34): Call("mkdir", 1, 0, mode=2),
    (133, 0): Call("mknod", 0, mode=1),
    (259, 33): Call("mknod", 1, 0, mode=2),
    (84, 0): Call("unlink", 0, flags=REMOVE_FOLDER),
    (87, 0): Call("unlink", 0),
    (263, 35): Call("unlink", 1, 0, flags=2),
    (82, 0): Call("rename", 0, second_path=1),
    (264, 38): Call("rename", 1, 0, second_path=3, second_folder=2),
    (316, 276): Call("rename", 1, 0, flags=4, second_path=3, second_folder=2),
    (86, 0): Call("link", 0, second_path=1),
    (265, 37): Call("link", 1, 0, flags=4, second_path=3, second_folder=2),
    (88, 0): Call("symlink", 1, second_path=0),
    (266, 36): Call("symlink", 2, 1, second_path=0),
    (90, 0): Call("chmod", 0, mode=1),
    (268, 53): Call("chmod", 1, 0, mode=2),
    (452, 452): Call("chmod", 1, 0, mode=2, flags=3),
    (91, 52): Call("chmod", -1, 0, mode=1),
    (92, 0): Call("chown", 0),
    (94, 0): Call("chown", 0, flags=NO_FOLLOW),
    (260, 54): Call("chown", 1, 0, flags=4),
    (93, 55): Call("change", -1, 0),
    (132, 0): Call("change", 0),  # utime
    (235, 0): Call("change", 0),
    (261, 0): Call("change", 1, 0),
    (280, 88): Call("utime", 1, 0, flags=3),
    (188, 5): Call("change", 0),  # setxattr, removexattr
    (189, 6): Call("change", 0, flags=NO_FOLLOW),
    (190, 7): Call("change", -1, 0),
    (197, 14): Call("change", 0),
    (198, 15): Call("change", 0, flags=NO_FOLLOW),
    (199, 16): Call("change", -1, 0),
}
CALLS = {pair[not _IS_X86]: call for pair, call in _TABLE.items() if pair[not _IS_X86]}


def install_filter() -> int:
    """From now on this thread, and what it starts, leaves these calls to who reads the descriptor
    that is returned. OSError where the kernel refuses, as where another filter does so already."""
    program = b"".join(struct.pack("HBBI", *line) for line in _instructions())
    buffer = ctypes.create_string_buffer(program)
    header = ctypes.create_string_buffer(
        struct.pack("HxxxxxxQ", len(program) // 8, ctypes.addressof(buffer))
    )
    promise_no_new_privileges()
    return system_call("seccomp", _SET_MODE_FILTER, _NEW_LISTENER | _WAIT_KILLABLE, header)


def _instructions() -> list[tuple[int, int, int, int]]:
    """Code, jumps if true and false, and operand; the last two lines are the two ends. What only
    looks at an open file goes on at once: C libraries try it no second time after a signal."""
    lines = [
        (_LOAD, 0, 0, _ARCHITECTURE_AT),
        (_JUMP_IF_EQUAL, 1, 0, _ARCHITECTURE),
        (_RETURN, 0, 0, _ALLOW),
    ]
    for number, call in CALLS.items():
        if call.does == "stat" and call.folder >= 0:
            lines += [
                (_LOAD, 0, 0, _NUMBER_AT),
                (_JUMP_IF_EQUAL, 0, 3, number),
                (_LOAD, 0, 0, _ARGUMENTS_AT + _ARGUMENT_BYTES * call.flags),
                (_JUMP_IF_SET, 0, 1, EMPTY_PATH),
                (_RETURN, 0, 0, _ALLOW),
            ]
    lines.append((_LOAD, 0, 0, _NUMBER_AT))
    lines += [(_JUMP_IF_EQUAL, len(CALLS) - index, 0, number) for index, number in enumerate(CALLS)]
    return [*lines, (_RETURN, 0, 0, _ALLOW), (_RETURN, 0, 0, _NOTIFY)]


class Request(NamedTuple):
    """A call that waits for an answer."""

    listener: int
    identity: int
    process: int
    number: int
    arguments: tuple[int, ...]

    @property
    def is_waiting(self) -> bool:
        """Whether it still waits: else its process number may be another's by now."""
        try:
            fcntl.ioctl(self.listener, _IS_VALID, struct.pack("Q", self.identity))
        except OSError:
            return False
        return True

    def go_on(self) -> None:
        """The kernel does the call."""
        self._send(flags=_CONTINUE)

    def answer(self, error: int = 0, *, value: int = 0) -> None:
        """The call is done and returns `value`, or has failed."""
        self._send(error=-error, value=value)

    def _send(self, *, value: int = 0, error: int = 0, flags: int = 0) -> None:
        response = bytearray(struct.pack("QqiI", self.identity, value, error, flags))
        with suppress(FileNotFoundError):  # its process has gone meanwhile
            fcntl.ioctl(self.listener, _SEND, response)

    def answer_with(self, descriptor: int, flags: int) -> None:
        """The call returns a copy of a descriptor of this process."""
        added = struct.pack(
            "QIIII", self.identity, _ADD_AND_SEND, descriptor, 0, flags & os.O_CLOEXEC
        )
        try:
            fcntl.ioctl(self.listener, _ADD_DESCRIPTOR, added)
        except OSError as problem:
            self.answer(problem.errno or errno.EIO)


def receive(listener: int) -> Request | None:
    """The next call that waits; none where its process has gone meanwhile."""
    data = bytearray(80)
    try:
        fcntl.ioctl(listener, _RECEIVE, data)
    except (FileNotFoundError, InterruptedError):
        return None
    identity, process, _, number, _, _, *arguments = struct.unpack("QIIiIQ6Q", data)
    return Request(listener, identity, process, number, tuple(arguments))
