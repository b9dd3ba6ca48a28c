"""Who does at the script's own paths what the overlay needs done: this process, or one that may."""

# Paths are strings here: pathlib asks os.stat, which asks the overlay.

from __future__ import annotations

import array
import errno
import fcntl
import json
import os
import socket
import stat
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Protocol

__all__ = ["SOCKET", "Hands", "HandsServer", "OwnHands", "RemoteHands", "hands_of"]

#: Name of the socket in a store's folder where another process does the work, if one does.
SOCKET = "hands"

#: Bytes of a message at most: two paths (PATH_MAX, 4,096 bytes each), each byte of which may take
#: six in JSON, and some words.
_MESSAGE_BYTES = 2**16
#: Calls that wait to be taken on by the server; workers of a data loader call at the same moment.
_BACKLOG = 128
_DESCRIPTOR_BYTES = array.array("i").itemsize


class Hands(Protocol):
    """Changes at real paths, as `os` makes them; all raise OSError as `os` does. Mode and times are
    not among them: no guard keeps a process from changing those itself.

    Paths are absolute and, but for their last part, free of symbolic links.
    """

    def open(self, path: str, flags: int, mode: int = 0o777) -> int:
        """A descriptor, as os.open gives it; it is inherited by no other program."""

    def mkdir(self, path: str, mode: int = 0o777) -> None: ...

    def rmdir(self, path: str) -> None: ...

    def unlink(self, path: str) -> None: ...

    def rename(self, source: str, target: str) -> None: ...

    def symlink(self, points_to: str, path: str) -> None: ...

    def link(self, source: str, path: str) -> None: ...


class OwnHands:
    """This process does it. Made before anything is patched: it keeps the true functions."""

    def __init__(self) -> None:
        self.open = os.open
        self.mkdir = os.mkdir
        self.rmdir = os.rmdir
        self.unlink = os.unlink
        self.rename = os.rename
        self.symlink = os.symlink
        self.link = os.link


def hands_of(folder: str) -> Hands:
    """Those of the process that listens in a store's folder, else one's own."""
    path = os.path.join(folder, SOCKET)
    try:
        is_listening = stat.S_ISSOCK(os.stat(path).st_mode)
    except OSError:
        is_listening = False
    return RemoteHands(folder) if is_listening else OwnHands()


# -- another process does it ---------------------------------------------------------------------

# A request and its answer are a packet each (SOCK_SEQPACKET), in JSON; the descriptor of `open`
# comes beside the answer (SCM_RIGHTS).


@dataclass
class _Line:
    """The connection of one process; a process forked off has to open its own."""

    pid: int
    socket: socket.socket | None = None
    lock: Any = field(default_factory=threading.Lock)


class RemoteHands:
    """The process that listens in a store's folder does it. Made before anything is patched."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._open, self._close, self._getpid, self._read = os.open, os.close, os.getpid, os.read
        self._line = _Line(os.getpid())

    def open(self, path: str, flags: int, mode: int = 0o777) -> int:
        """A descriptor, as os.open gives it; it is inherited by no other program."""
        mode = self._masked(mode) if flags & os.O_CREAT else mode
        descriptor = self._ask("open", path, flags, mode)
        if descriptor is None:
            raise OSError(errno.EIO, "No descriptor came back", path)
        return descriptor

    def mkdir(self, path: str, mode: int = 0o777) -> None:
        self._ask("mkdir", path, self._masked(mode))

    def rmdir(self, path: str) -> None:
        self._ask("rmdir", path)

    def unlink(self, path: str) -> None:
        self._ask("unlink", path)

    def rename(self, source: str, target: str) -> None:
        self._ask("rename", source, target)

    def symlink(self, points_to: str, path: str) -> None:
        self._ask("symlink", points_to, path)

    def link(self, source: str, path: str) -> None:
        self._ask("link", source, path)

    def give(self, descriptor: int) -> None:
        """Passes the server the descriptor of a file: what this process has to tell at its end."""
        self._ask("take", descriptors=(descriptor,))

    def close(self) -> None:
        """Ends this process's connection; the next call opens another."""
        line = self._line
        if line.socket is not None and line.pid == self._getpid():
            line.socket.close()
            line.socket = None

    __del__ = close

    def _masked(self, mode: int) -> int:
        """What is left of a mode by this process's umask. It is read: asking os.umask sets it."""
        descriptor = self._open("/proc/self/status", os.O_RDONLY | os.O_CLOEXEC)
        try:
            text = self._read(descriptor, _MESSAGE_BYTES)
        finally:
            self._close(descriptor)
        found = text.partition(b"\nUmask:")[2].split(maxsplit=1)
        return mode & ~int(found[0], 8) if found else mode

    def _ask(self, *request: Any, descriptors: tuple[int, ...] = ()) -> int | None:
        """The descriptor that came with the answer, if one did; OSError as the server got it."""
        line = self._line
        if line.pid != self._getpid():
            if line.socket is not None:
                line.socket.detach()  # it is the other process's
            line = self._line = _Line(self._getpid())
        message = json.dumps(request).encode()
        with line.lock:
            try:
                connection = self._sent(line, message, descriptors)
                answer, descriptor = _received(connection)
            except BaseException:  # an answer still under way must not be taken for the next
                self.close()
                raise
        if answer:
            raise OSError(*answer)
        return descriptor

    def _sent(self, line: _Line, message: bytes, descriptors: tuple[int, ...]) -> socket.socket:
        """The connection on which the message went out; a new one where a script closed it."""
        if line.socket is not None:
            try:
                _send(line.socket, message, descriptors)
                return line.socket
            except OSError:
                line.socket.detach()  # the number may be another file's by now
        line.socket = self._connected()
        _send(line.socket, message, descriptors)
        return line.socket

    def _connected(self) -> socket.socket:
        """A connection; the folder is opened first, for a socket's path has 108 bytes at most."""
        folder = self._open(self._folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            try:
                connection.connect(f"/proc/self/fd/{folder}/{SOCKET}")
            except OSError:
                connection.close()
                raise
        finally:
            self._close(folder)
        return connection


def _send(connection: socket.socket, message: bytes, descriptors: tuple[int, ...]) -> None:
    rights = array.array("i", descriptors)
    beside = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)] if descriptors else []
    connection.sendmsg([message], beside, socket.MSG_NOSIGNAL)


def _received(connection: socket.socket) -> tuple[Any, int | None]:
    """The message, and the descriptor beside it; ConnectionResetError where nobody is there."""
    message, beside, _, _ = connection.recvmsg(
        _MESSAGE_BYTES, socket.CMSG_SPACE(_DESCRIPTOR_BYTES), socket.MSG_CMSG_CLOEXEC
    )
    if not message:
        raise ConnectionResetError(errno.ECONNRESET, "The process that writes for us has ended")
    descriptors = array.array("i")
    for level, kind, data in beside:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            descriptors.frombytes(data[: len(data) - len(data) % _DESCRIPTOR_BYTES])
    return json.loads(message), descriptors[0] if descriptors else None


class HandsServer:
    """Listens in a store's folder and does what its clients ask, in one thread.

    `sockets` are those to wait for; `serve` takes one that is readable.
    """

    def __init__(self, folder: str) -> None:
        #: The descriptor of what the guarded process had to tell, once it did.
        self.taken: int | None = None
        self._own = OwnHands()
        self._operations: dict[str, Callable[..., int | None]] = {
            "link": self._own.link,
            "mkdir": self._own.mkdir,
            "open": self._opened,
            "rename": self._own.rename,
            "rmdir": self._own.rmdir,
            "symlink": self._own.symlink,
            "unlink": self._own.unlink,
        }
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._connections: set[socket.socket] = set()
        descriptor = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            self._listener.bind(f"/proc/self/fd/{descriptor}/{SOCKET}")
        finally:
            os.close(descriptor)
        self._listener.listen(_BACKLOG)

    @property
    def sockets(self) -> list[socket.socket]:
        """The listener, and a connection for each process that called."""
        return [self._listener, *self._connections]

    def serve(self, ready: socket.socket) -> None:
        """Answers a socket that is readable."""
        if ready is self._listener:
            self._connections.add(self._listener.accept()[0])
            return
        try:
            request, descriptor = _received(ready)
            self._answer(ready, request, descriptor)
        except (OSError, ValueError, LookupError, TypeError):  # gone, or none of ours
            self._connections.discard(ready)
            ready.close()

    def close(self) -> None:
        """Ends every connection; a descriptor that was taken is the caller's."""
        for connection in self.sockets:
            connection.close()
        self._connections.clear()

    def _answer(self, client: socket.socket, request: list[Any], descriptor: int | None) -> None:
        if request[0] == "take":
            self.taken = descriptor
            _send(client, b"[]", ())
            return
        opened: int | None = None
        # The client has taken its own umask off already.
        umask = os.umask(0)
        try:
            opened = self._operations[request[0]](*request[1:])
            answer: list[Any] = []
        except OSError as error:
            answer = [error.errno, error.strerror, error.filename]
            if error.filename2 is not None:
                answer += [None, error.filename2]
        finally:
            os.umask(umask)
        try:
            _send(client, json.dumps(answer).encode(), () if opened is None else (opened,))
        finally:
            if opened is not None:
                os.close(opened)

    def _opened(self, path: str, flags: int, mode: int) -> int:
        """A pipe with a name would make everybody wait for who reads it: it is refused instead."""
        opened = self._own.open(path, flags | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY, mode)
        if not flags & os.O_NONBLOCK:
            with suppress(OSError):
                current = fcntl.fcntl(opened, fcntl.F_GETFL)
                fcntl.fcntl(opened, fcntl.F_SETFL, current & ~os.O_NONBLOCK)
        return opened
