"""Standard output and error that accept any text, also after their reader has ended."""

from __future__ import annotations

import codecs
import io
import os
import sys
from typing import TextIO

from neusight.integrations.program.progress.terminal import Terminal

#: Name under which Python knows how text is written where the encoding lacks a character.
_PLAIN_WORDS = "neusight.plain_words"

#: What our own texts use beyond ASCII, in ASCII; as numbers those that look like another one.
_IN_ASCII = {
    "µ": "u", "\xd7": "x", "\u2013": "-", "—": "-", "\u2212": "-", "…": "...", "≥": ">=",
    "≤": "<=", "→": "->", "±": "+-", "·": "*", "²": "^2", "«": '"', "»": '"', "“": '"', "”": '"',
    "\u2018": "'", "\u2019": "'", "█": "#", "│": "|", "─": "-", "├": "|", "└": "`",
}  # fmt: skip

#: Bytes of a file's name that were not UTF-8, as os.fsdecode shows them (PEP 383).
_ESCAPED_BYTE = range(0xDC80, 0xDD00)


def settle_standard_streams() -> None:
    """From here on text that the encoding lacks is replaced, and the output need not be read
    to the end: a pipe that was closed (`| head`) takes what follows and drops it."""
    codecs.register_error(_PLAIN_WORDS, _as_plain_text)
    terminal = Terminal(sys.stderr.fileno()) if _can_rewrite(sys.stderr) else None
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if isinstance(stream, io.TextIOWrapper):
            setattr(sys, name, _settled(stream, terminal if stream.isatty() else None))


def flush_standard_streams() -> None:
    """Writes what is still held back; OSError where it cannot be written (a full disk)."""
    for stream in (sys.stdout, sys.stderr):
        if stream is None:  # closed by the shell: >&-
            continue
        try:
            stream.flush()
        except OSError:
            # Else Python writes it again when it ends, and fails again.
            _point_nowhere(stream.fileno())
            stream.flush()
            raise


class _RetryingFile(io.FileIO):
    """A descriptor whose reader may go: what is written after that is dropped. Where it leads to a
    terminal, a line at its foot is cleared."""

    terminal: Terminal | None = None

    def write(self, data: object) -> int:
        try:
            if self.terminal is not None:
                whole = bytes(data)  # type: ignore[call-overload]
                return self.terminal.written(super().write, whole)  # type: ignore[return-value]
            return super().write(data)  # type: ignore[arg-type]
        except BrokenPipeError:
            _point_nowhere(self.fileno())
            return memoryview(data).nbytes  # type: ignore[arg-type]


def _can_rewrite(stream: TextIO | None) -> bool:
    """Whether it is a terminal on which a line can be rewritten."""
    is_terminal = stream is not None and not stream.closed and stream.isatty()
    return is_terminal and os.environ.get("TERM") not in ("dumb", None)


def _settled(stream: io.TextIOWrapper, terminal: Terminal | None) -> TextIO:
    stream.reconfigure(errors=_PLAIN_WORDS)
    is_buffered = isinstance(stream.buffer, io.BufferedWriter)
    raw = stream.buffer.raw if isinstance(stream.buffer, io.BufferedWriter) else stream.buffer
    if type(raw) is not io.FileIO:  # a test's, or settled already
        return stream
    stream.flush()
    patient = _RetryingFile(raw.fileno(), "w", closefd=False)
    patient.terminal = terminal
    return io.TextIOWrapper(
        io.BufferedWriter(patient) if is_buffered else patient,  # python -u has no buffer
        encoding=stream.encoding,
        errors=_PLAIN_WORDS,
        line_buffering=stream.line_buffering,
        write_through=stream.write_through,
    )


def _point_nowhere(descriptor: int) -> None:
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, descriptor)
    os.close(nowhere)


def _as_plain_text(error: UnicodeError) -> tuple[str | bytes, int]:
    assert isinstance(error, UnicodeEncodeError)  # of streams that are only written to
    character = error.object[error.start]
    if ord(character) in _ESCAPED_BYTE:
        return bytes([ord(character) - 0xDC00]), error.start + 1
    escaped = character.encode("ascii", "backslashreplace").decode("ascii")
    return _IN_ASCII.get(character, escaped), error.start + 1
