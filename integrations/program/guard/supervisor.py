"""Does what a restricted program, and all that it starts, do to files: by the rules of the overlay.

Landlock keeps a program from writing. Its system calls on paths come here: new files are made where
it wants them, what stood there is copied first, and the copy is what it gets to see.
"""

from __future__ import annotations

import ctypes
import errno
import os
import socket
import stat
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, NoReturn

from neusight.fake_cuda.overlay.overlay import LeftAloneError, Overlay
from neusight.fake_cuda.store.store import Store
from neusight.integrations.program.guard.forking import refusal_of
from neusight.integrations.program.guard.seccomp import (
    CALLS,
    EMPTY_PATH,
    NO_FOLLOW,
    REMOVE_FOLDER,
    Request,
    install_filter,
    receive,
)
from neusight.integrations.program.guard.system_calls import system_call

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
#: Devices and processes: the kernel's own.
_SYSTEM = ("/dev/", "/proc/", "/sys/")
#: Longest path (PATH_MAX, include/uapi/linux/limits.h).
_PATH_BYTES = 4096
# Linux, include/uapi/linux/fs.h.
_NO_REPLACE, _EXCHANGE = 1, 2
#: struct statx, and struct stat of x86-64 and arm64 (include/uapi/asm/stat.h).
_STATX_BYTES, _STAT_BYTES = 256, 144 if os.uname().machine == "x86_64" else 128
#: Two of struct timespec.
_TIMES_BYTES = 32
#: Paths that a note names for one program.
_PATHS_SHOWN = 3


class _GoOn(Exception):
    """Lets the kernel do the call itself, within the limits of Landlock."""


class Supervisor:
    """Acts for a process and its children; in the folders `allowed` they may write themselves."""

    def __init__(self, folder: str, allowed: Iterable[str]) -> None:
        self._overlay = Overlay(Store(folder), left_alone=allowed)
        self._theirs, self._ours = socket.socketpair()
        #: What is readable when a call waits; None where no process is supervised.
        self.listener: int | None = None
        #: Calls that wait for another process, which reads a pipe: to be tried every moment.
        self.waiting: list[Request] = []
        #: Name of a program -> what it was kept from changing.
        self._refused: dict[str, dict[str, None]] = {}

    def begin(self) -> bool:
        """In the process that is to be supervised: whether it is from now on."""
        with self._ours, self._theirs, suppress(OSError):
            descriptor = install_filter()
            socket.send_fds(self._theirs, [b"."], [descriptor])
            os.close(descriptor)
            return True
        return False

    def connect(self) -> None:
        """In this process, once the other runs: gets its calls, if it is supervised."""
        self._theirs.close()
        with self._ours:
            _, received, _, _ = socket.recv_fds(self._ours, 1, 1)
        self.listener = received[0] if received else None

    def close(self) -> None:
        """What still runs of it can make nothing more."""
        if self.listener is not None:
            os.close(self.listener)

    def summary_line(self) -> str:
        """What was refused, by program; empty if nothing was."""
        if not self._refused:
            return ""
        parts = (f"{name} ({_shown(list(paths))})" for name, paths in self._refused.items())
        return (
            f"refused, to keep your files as they are: changes by {', '.join(parts)}; "
            "--allow-writes lets them"
        )

    # -- calls ------------------------------------------------------------------------------------

    def serve_waiting(self) -> None:
        """Retries the calls that wait for another process."""
        waiting, self.waiting = self.waiting, []
        for request in waiting:
            self._serve(request)

    def serve(self, on_receipt: Callable[[int], None]) -> None:
        """Answers the next call; `on_receipt` gets the number of its thread before."""
        assert self.listener is not None
        request = receive(self.listener)
        if request is not None:
            on_receipt(request.process)
            self._serve(request)

    def _serve(self, request: Request) -> None:
        umask = os.umask(0)  # each process has its own, which is taken off already
        try:
            if self._only_looks(request) and self._overlay.store.is_untouched:
                raise _GoOn
            with _memory_of(request) as memory:
                if request.is_waiting:
                    self._answer(_RequestedCall(request, memory.fileno(), self._overlay))
        except (_GoOn, LeftAloneError):
            request.go_on()
        except BlockingIOError:
            self.waiting.append(request)
        except OSError as error:
            request.answer(error.errno or errno.EIO)
        finally:
            os.umask(umask)

    def _only_looks(self, request: Request) -> bool:
        call = CALLS[request.number]
        if call.does == "open":
            return not call.flags_of(request.arguments) & _WRITES
        return call.does in ("stat", "access", "readlink", "chdir")

    def _answer(self, requested: _RequestedCall) -> None:
        """Does a call."""
        does, path = requested.call.does, requested.path()
        if does not in _NOT_COVERED and path.startswith(_SYSTEM) and "/../" not in path:
            raise _GoOn
        operations: dict[str, Callable[[_RequestedCall, str], int | None]] = {
            "open": self._open,
            "stat": self._look,
            "access": self._look,
            "readlink": self._look,
            "chdir": self._enter,
            "truncate": lambda requested, path: self._overlay.truncate(path, requested.mode),
            "mkdir": lambda requested, path: self._overlay.mkdir(path, requested.masked_mode()),
            "mknod": lambda requested, path: self._overlay.mknod(path, requested.masked_mode()),
            "symlink": lambda requested, path: self._overlay.symlink(requested.second_text(), path),
            "unlink": self._unlink,
            "rename": self._rename,
            "link": lambda requested, path: self._overlay.link(path, requested.second()),
            "chmod": self._change,
            "chown": self._change,
            "utime": self._change,
            "change": self._change,
        }
        if does not in operations:  # programs do without calls that older kernels lack
            raise OSError(errno.ENOSYS, path)
        done = operations[does](requested, path) or 0
        if does != "open":
            requested.request.answer(value=done)
            return
        try:
            requested.request.answer_with(done, requested.flags)
        finally:
            os.close(done)

    def _open(self, requested: _RequestedCall, path: str) -> int:
        flags = requested.flags
        if not flags & _WRITES:
            return self._open_to_read(requested, path)
        mode = requested.masked_mode() if flags & os.O_CREAT else 0
        try:
            opened = self._overlay.open(
                path, flags | os.O_CLOEXEC | os.O_NOCTTY | os.O_NONBLOCK, mode
            )
        except OSError as error:
            if (
                error.errno == errno.ENXIO and not flags & os.O_NONBLOCK
            ):  # a pipe without a reader yet
                raise BlockingIOError(errno.EAGAIN, path) from None
            if error.errno in (errno.EFBIG, errno.ENOSPC, errno.EDQUOT):
                self._record_refused(requested, path)
            raise
        if not flags & os.O_NONBLOCK:
            os.set_blocking(opened, True)
        return opened

    def _open_to_read(self, requested: _RequestedCall, path: str) -> int:
        flags = requested.flags
        place = self._place_to_see(requested, path, follow=not flags & os.O_NOFOLLOW)
        mode = os.lstat(place).st_mode
        if stat.S_ISFIFO(mode):
            raise _GoOn
        # The kernel passes no descriptor of O_PATH on; one to read does the same, but of a link,
        # which fchmodat(3) opens to say that its mode cannot be changed.
        if stat.S_ISLNK(mode) and flags & os.O_PATH:
            raise OSError(errno.EOPNOTSUPP, path)
        return os.open(place, flags & ~os.O_PATH | os.O_CLOEXEC)

    def _place_to_see(self, requested: _RequestedCall, path: str, *, follow: bool) -> str:
        """Where to look instead of a path: where that is the same, the kernel may."""
        place, store = str(self._overlay.found(path, follow=follow)), self._overlay.store
        is_ready = requested.call.does != "open" and store.is_within(place)
        if not (store.is_untouched or is_ready or requested.goes_up(place)):
            place = store.listing(self._overlay.visible(path, follow=follow)) or place
        if place == path and not requested.starts_in_store:
            raise _GoOn
        return place

    def _look(self, requested: _RequestedCall, path: str) -> int:
        follow = requested.call.does != "readlink" and not requested.flags & NO_FOLLOW
        return requested.redo(self._place_to_see(requested, path, follow=follow))

    def _enter(self, requested: _RequestedCall, path: str) -> None:
        self._overlay.found(path)  # no folder that was removed
        raise _GoOn

    def _unlink(self, requested: _RequestedCall, path: str) -> None:
        if requested.flags & REMOVE_FOLDER:
            self._overlay.rmdir(path)
        else:
            self._overlay.remove(path)

    def _rename(self, requested: _RequestedCall, path: str) -> None:
        target = requested.second()
        if requested.flags & _NO_REPLACE and self._overlay.exists(target):
            raise FileExistsError(errno.EEXIST, target)
        if requested.flags & _EXCHANGE:
            self._refuse(requested, target)
        self._overlay.rename(path, target)

    def _change(self, requested: _RequestedCall, path: str) -> None:
        """Mode, owner, times and attributes, which Landlock does not cover."""
        store, visible = self._overlay.store, path
        if not requested.is_by_descriptor:
            visible = self._overlay.visible(path, follow=not requested.flags & NO_FOLLOW)
        status, place = store.lstat(visible), store.locate(visible)
        if place is None:
            raise FileNotFoundError(errno.ENOENT, path)
        if status is None or self._overlay.is_left_alone(visible):
            raise _GoOn
        is_own = place.is_private or store.is_made(place.path)
        is_there = place.path == path and not requested.starts_in_store
        if is_own and (requested.is_by_descriptor or is_there):
            raise _GoOn
        if requested.call.does == "change":
            self._refuse(requested, visible)
        requested.redo(place.path if is_own else self._overlay.place_to_change(visible))

    def _refuse(self, requested: _RequestedCall, path: str) -> NoReturn:
        self._record_refused(requested, path)
        raise PermissionError(errno.EACCES, path)

    def _record_refused(self, requested: _RequestedCall, path: str) -> None:
        self._refused.setdefault(requested.program(), {})[path] = None


class _RequestedCall:
    """A request, with access to the memory of its process."""

    def __init__(self, request: Request, memory: int, overlay: Overlay) -> None:
        self.request, self._memory, self._overlay = request, memory, overlay
        #: Whether its path starts at a folder that only shows what is visible at another one.
        self.starts_in_store = False
        self.call = CALLS[request.number]
        self.flags = self.call.flags_of(request.arguments)

    @property
    def mode(self) -> int:
        return self._argument(self.call.mode)

    def masked_mode(self) -> int:
        """The mode of the call under the process's umask."""
        text = _read(f"/proc/{self.request.process}/status")
        umask = int(text.partition(b"\nUmask:")[2].split(maxsplit=1)[0], 8)
        return self.mode & 0xFFFFFFFF & ~umask

    def program(self) -> str:
        """What the user calls it; a fork of this process runs the script."""
        words = [_read(f"/proc/{process}/cmdline") for process in (self.request.process, "self")]
        if words[0] == words[1]:
            return "the script"
        return os.fsdecode(os.path.basename(words[0].split(b"\0")[0]))

    # -- paths ------------------------------------------------------------------------------------

    @property
    def is_by_descriptor(self) -> bool:
        """Whether the call names an open file."""
        at = self.call.path
        return at < 0 or (self.call.does == "utime" and not self._argument(at))

    def path(self) -> str:
        """The path, absolute."""
        if self.is_by_descriptor:
            return self._of_descriptor(self._argument(max(self.call.folder, 0)))
        return self._absolute(self.call.path, self.call.folder)

    def goes_up(self, place: str) -> bool:
        """Whether the call only goes back to the folder that really stands at a place. Who walks a
        tree (fts(3)) insists that it is the folder where it came from: it gets no other one."""
        return not self._overlay.store.is_within(place) and self._text(self.call.path) == ".."

    def second(self) -> str:
        """The second path of a call that has two, absolute."""
        return self._absolute(self.call.second_path, self.call.second_folder)

    def second_text(self) -> str:
        """The target of a symbolic link."""
        return self._text(self.call.second_path)

    def _absolute(self, position: int, folder: int) -> str:
        text = self._text(position)
        for own, place in (("/proc/self/", ""), ("/dev/fd/", "fd/")):
            if text.startswith(own):
                return f"/proc/{self.request.process}/{place}{text.removeprefix(own)}"
        if text.startswith("/"):
            return text
        if not text:
            if self.flags & EMPTY_PATH and self.call.does != "stat" and folder >= 0:
                return self._of_descriptor(self._argument(folder))
            raise _GoOn
        # An int, of which the upper half of the register says nothing.
        number = -1 if folder < 0 else ctypes.c_int(self._argument(folder) & 0xFFFFFFFF).value
        above = self._of_descriptor(number) if number >= 0 else self._link("cwd")
        return os.path.join(above, text)

    def _of_descriptor(self, number: int) -> str:
        path = self._link(f"fd/{number & 0xFFFFFFFF}")
        if not path.startswith("/"):
            raise _GoOn  # a pipe, a socket
        return path

    def _link(self, name: str) -> str:
        place = os.readlink(f"/proc/{self.request.process}/{name}")
        visible = self._overlay.store.visible_of(place)
        self.starts_in_store |= visible != place
        return visible

    # -- memory -----------------------------------------------------------------------------------

    def _argument(self, position: int) -> int:
        return self.request.arguments[position]

    def _text(self, position: int) -> str:
        try:
            data = os.pread(self._memory, _PATH_BYTES, self._argument(position))
        except OSError:  # no address of its memory: the kernel says so
            raise _GoOn from None
        return os.fsdecode(data.partition(b"\0")[0])

    def redo(self, place: str) -> int:
        """Does the call at another path: what it returns. What it fills goes to the process's
        memory."""
        call, arguments = self.call, list[object](self.request.arguments)
        if call.path < 0:
            os.chmod(place, self.mode)
            return 0
        data = {call.path: os.fsencode(place)}  # absolute: the folder's descriptor counts no more
        if call.does == "utime" and self._argument(2):
            data[2] = os.pread(self._memory, _TIMES_BYTES, self._argument(2))
        if call.result >= 0:
            data[call.result] = bytes(_PATH_BYTES)
        buffers = {at: ctypes.create_string_buffer(value) for at, value in data.items()}
        for at, buffer in buffers.items():
            arguments[at] = buffer
        returned = system_call(self.request.number, *arguments)
        if call.result >= 0:
            size = returned or (_STATX_BYTES if call.result == 4 else _STAT_BYTES)
            os.pwrite(self._memory, buffers[call.result].raw[:size], self._argument(call.result))
        return returned


#: Calls that Landlock lets pass.
_NOT_COVERED = ("chmod", "chown", "utime", "change")


def _memory_of(request: Request) -> BinaryIO:
    """The memory of a process that this one may act for: they have one user, and it hides nothing.
    What others do is Landlock's to refuse, or refused here."""
    try:
        memory = open(f"/proc/{request.process}/mem", "r+b", buffering=0)  # noqa: SIM115
        if os.stat(f"/proc/{request.process}").st_uid == os.geteuid():
            return memory
        memory.close()
    except OSError:
        pass
    if CALLS[request.number].does in _NOT_COVERED:
        raise PermissionError(errno.EACCES, "not ours")
    raise _GoOn


def why_unsupervised() -> str:
    """Why no process can be supervised here; empty where one can."""
    return refusal_of(install_filter)


def _shown(paths: list[str]) -> str:
    here = os.getcwd().rstrip("/") + "/"
    shown = [f"{path}/".removeprefix(here).rstrip("/") for path in paths[:_PATHS_SHOWN]]
    return ", ".join(one or "." for one in shown) + (", …" if len(paths) > _PATHS_SHOWN else "")


def _read(path: str) -> bytes:
    return Path(path).read_bytes()
