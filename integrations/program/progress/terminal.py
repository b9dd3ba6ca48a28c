"""The terminal that a program and neusight write to: a line at its foot is cleared for the rest."""

from __future__ import annotations

import mmap
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

#: Bytes of the state: whether the line is shown, and whether other text ends in mid-line.
_IS_SHOWN, _IS_IN_MID_LINE = 0, 1

#: Back to the first column, and nothing is left of what stood from there on (ECMA-48, EL).
_CLEARED = b"\r\x1b[K"

#: Columns of a terminal that does not state.
_USUAL_COLUMNS = 80

_write = os.write  # the true one: while a script runs, writes to files are others


class Terminal:
    """A line at the foot of the terminal behind standard error, and what this process and those
    forked from it know of what else is there.

    The line is shown only where nothing else ends in mid-line, and leaves the cursor in the first
    column: what writes past `written` (C code, another program) begins there.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._state = mmap.mmap(-1, 2)  # shared with the processes forked from this one
        self._own_lock = threading.RLock()
        self._owner = os.getpid()
        self._num_pauses = 0

    @property
    def _lock(self) -> threading.RLock:
        """That of this process: another thread may hold it at the moment of a fork."""
        if self._owner != os.getpid():
            self._owner, self._own_lock = os.getpid(), threading.RLock()
        return self._own_lock

    def show(self, text: str) -> None:
        """Writes the line, cut to the width of the terminal, in place of the one before."""
        cut = text[: self.columns - 1].encode("ascii", "replace")
        with self._lock:
            if not self._num_pauses and not self._state[_IS_IN_MID_LINE]:
                self._state[_IS_SHOWN] = 1
                _write(self._descriptor, b"\r" + cut + b"\x1b[K\r")

    def clear(self) -> None:
        """Takes the line away."""
        with self._lock:
            if self._state[_IS_SHOWN]:
                self._state[_IS_SHOWN] = 0
                _write(self._descriptor, _CLEARED)

    def written(self, write: Callable[[bytes], int | None], data: bytes) -> int | None:
        """Lets anything else be written there, which finds the place empty."""
        with self._lock:
            self.clear()
            count = write(data)
            written = data if count is None else data[:count]
            if written:
                self._state[_IS_IN_MID_LINE] = not written.endswith(b"\n")
            return count

    @contextmanager
    def paused(self) -> Iterator[None]:
        """While open, there is no line: the user types."""
        self._num_pauses += 1
        self.clear()
        try:
            yield
        finally:
            self._num_pauses -= 1

    @property
    def columns(self) -> int:
        """How wide it is: what COLUMNS says, else what it says itself."""
        stated = os.environ.get("COLUMNS", "")
        if stated.isdecimal() and int(stated) > 1:
            return int(stated)
        try:
            return os.get_terminal_size(self._descriptor).columns or _USUAL_COLUMNS
        except OSError:
            return _USUAL_COLUMNS


def terminal_of(stream: object) -> Terminal | None:
    """The terminal behind a standard stream that was settled; None where it leads elsewhere, to one
    that cannot rewrite a line, or was not settled: what else is written there is unknown.

    >>> terminal_of(None) is None
    True
    """
    raw = getattr(stream, "buffer", None)
    found = getattr(getattr(raw, "raw", raw), "terminal", None)
    return found if isinstance(found, Terminal) else None
