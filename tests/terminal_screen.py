"""A terminal to write to, and what a user sees on it."""

from __future__ import annotations

import codecs
import fcntl
import io
import os
import pty
import re
import struct
import sys
import termios
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from neusight.integrations.program.standard_streams import settle_standard_streams

#: A character, or what a terminal does at once: EL, SGR (ECMA-48).
_PARTS = re.compile(r"\x1b\[\d*K|\x1b\[[\d;]*m|.", re.DOTALL)

#: What ends what is written. The other end's close does not: what was written just before it may
#: still be on its way when reading fails (EIO).
_END = b"\0"


def screen_of(written: str) -> list[str]:
    """The lines that are seen when all of that was written to an empty terminal."""
    lines, column = [""], 0
    for part in _PARTS.findall(written):
        if part == "\r":
            column = 0
        elif part == "\n":
            lines.append("")
        elif part.endswith("K") and len(part) > 1:
            lines[-1] = lines[-1][:column]
        elif len(part) == 1:
            lines[-1] = lines[-1][:column].ljust(column) + part + lines[-1][column + 1 :]
            column += 1
    return lines


class Screen:
    """The reader of a terminal: what was written to it so far."""

    def __init__(self, descriptor: int) -> None:
        self.written = ""
        self.was_written = threading.Event()
        self._descriptor = descriptor
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        decoder = codecs.getincrementaldecoder("utf-8")()
        while True:
            try:
                data = os.read(self._descriptor, 4096)
            except OSError:  # nobody has the other end any more
                return
            self.written += decoder.decode(data.removesuffix(_END))
            self.was_written.set()
            if not data or data.endswith(_END):
                return

    def wait_to_the_end(self) -> None:
        """Until nobody writes any more."""
        self._thread.join()

    @property
    def lines(self) -> list[str]:
        """What is seen."""
        return screen_of(self.written)


@contextmanager
def settled_terminal(monkeypatch: pytest.MonkeyPatch, *, columns: int = 60) -> Iterator[Screen]:
    """While open, standard output and error are a terminal of that width, settled as the command
    line settles them."""
    reading, writing = pty.openpty()
    fcntl.ioctl(writing, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("COLUMNS", raising=False)
    streams = [os.fdopen(os.dup(writing), "w", buffering=1) for _ in range(2)]
    for name, stream in zip(("stdout", "stderr"), streams, strict=True):
        assert isinstance(stream, io.TextIOWrapper)
        monkeypatch.setattr(sys, name, stream)
    settle_standard_streams()
    screen = Screen(reading)
    try:
        yield screen
    finally:
        sys.stdout.flush()
        for stream in streams:
            stream.close()
        os.write(writing, _END)
        screen.wait_to_the_end()
        os.close(writing)
        os.close(reading)
