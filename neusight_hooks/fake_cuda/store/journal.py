"""Lines that several processes of one run append to a file, each reading what the others wrote."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import threading
from collections.abc import Callable, Iterator
from typing import Any

__all__ = ["Journal"]

_NAME, _LOCK = "journal", "lock"


class Journal:
    """A file of JSON lines in a folder; `apply` gets each line, in the same order everywhere. One
    that never `waits` raises BlockingIOError where another process holds it."""

    def __init__(
        self, folder: str, apply: Callable[[dict[str, Any]], None], *, waits: bool = True
    ) -> None:
        self._waiting = 0 if waits else fcntl.LOCK_NB
        self._open = os.open  # as it is now: the overlay exchanges it
        self._lock_path = os.path.join(folder, _LOCK)
        self._file = self._open(
            os.path.join(folder, _NAME),
            os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC,
            0o600,
        )
        self._apply = apply
        self._read_bytes = 0
        self._lock = threading.RLock()
        self._depth = 0

    @property
    def is_removed(self) -> bool:
        """Whether the folder is gone, as it is when the run is over."""
        try:
            return os.fstat(self._file).st_nlink == 0
        except OSError:  # closed
            return True

    def refresh(self) -> None:
        """Applies what was written since; one fstat where there is nothing."""
        if os.fstat(self._file).st_size == self._read_bytes:
            return
        with self._lock:
            size = os.fstat(self._file).st_size
            data = os.pread(self._file, size - self._read_bytes, self._read_bytes)
            end = data.rfind(b"\n") + 1  # another process may be half-way through a line
            self._read_bytes += end
            for line in data[:end].splitlines():
                self._apply(json.loads(line))

    def write(self, line: dict[str, Any]) -> None:
        """Appends a line and applies it."""
        os.write(self._file, (json.dumps(line) + "\n").encode())
        self.refresh()

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """While open, no other process or thread of the run is in such a block."""
        with self._lock:
            if self._depth:
                yield
                return
            # Opened again each time: forked processes share the lock of one descriptor.
            lock = self._open(self._lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | self._waiting)
                self._depth = 1
                os.pwrite(lock, b"%10d" % threading.get_native_id(), 0)
                self.refresh()
                yield
            finally:
                self._depth = 0
                os.close(lock)

    def holder(self) -> int:
        """The number of the thread that held it last; 0 where none did."""
        with contextlib.suppress(OSError, ValueError), open(self._lock_path, "rb") as file:
            return int(file.read())
        return 0

    def close(self) -> None:
        with contextlib.suppress(OSError):
            os.close(self._file)
