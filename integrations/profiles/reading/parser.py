"""Takes a trace apart, event after event, as its bytes come; damage is passed over."""

from __future__ import annotations

import codecs
import json
import re
import zlib
from collections.abc import Iterator
from typing import BinaryIO

from neusight.integrations.profiles.reading.notes import Notes

#: Bytes taken from the file at once.
_CHUNK = 1 << 20

#: The same of a gzip file: what a damaged piece would have given is lost, so they are small.
_PACKED_CHUNK = 1 << 12

#: A single event longer than this is damage, not data (the longest real one: 60 kB of stack).
_MAX_EVENT_CHARS = 1 << 24

#: Characters that are read in vain, all damaged places together; a damaged place counts as this
#: many at least, and what lies before it in memory as one in so many (2 to the power of).
_MOST_TRIED_CHARS = 1 << 26

_LEAST_TRIED_CHARS = 1 << 12

_LINES_SHIFT = 8


def text_of(file: BinaryIO, max_bytes: int, notes: Notes) -> Iterator[str]:
    """The file's text in pieces, unpacked, at most `max_bytes` of it."""
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    total = 0
    for data in _unpacked(file, notes):
        room = max_bytes - total
        total += len(data)
        yield decoder.decode(data[:room])
        if total > max_bytes:
            notes.cut(
                f"the trace unpacks to more than {max_bytes / 2**20:,.0f} MiB; only that much was "
                "read. Profile fewer steps, or without stacks."
            )
            return
    yield decoder.decode(b"", final=True)


def _unpacked(file: BinaryIO, notes: Notes) -> Iterator[bytes]:
    head = file.read(2)
    file.seek(0)
    if head != b"\x1f\x8b":
        while data := file.read(_CHUNK):
            yield data
        return
    unpacker = zlib.decompressobj(wbits=31)
    rest = b""
    try:
        while data := rest or file.read(_PACKED_CHUNK):
            yield unpacker.decompress(data, _CHUNK)
            rest = unpacker.unconsumed_tail
            if unpacker.eof:  # gzip files may follow one another
                rest = unpacker.unused_data
                if not rest.strip(b"\0"):
                    return
                unpacker = zlib.decompressobj(wbits=31)
    except zlib.error as error:
        notes.cut(f"the gzip data is damaged ({error}); what lies before that was read")
        return
    yield unpacker.flush()
    notes.cut("the gzip file is cut off; what could be unpacked was read")


class Parser:
    """Takes a trace apart as it comes: an object with "traceEvents", or a bare list of events."""

    def __init__(self, pieces: Iterator[str], notes: Notes) -> None:
        self.metadata: dict[str, object] = {}
        self.found_events = False
        self._pieces = pieces
        self._notes = notes
        self._text = ""
        self._at = 0
        self._decoder = json.JSONDecoder(strict=False)
        self._unreadable = 0
        self._tried_chars = 0
        self._is_too_deep = False

    def events(self) -> Iterator[object]:
        """Every event; the other keys of the file go to `metadata`."""
        first = self._next_char()
        if first == "[":
            self._at += 1
            yield from self._list()
        elif first == "{":
            self._at += 1
            yield from self._object()
        if self._unreadable:
            self._notes.add(f"{self._unreadable} damaged events were left out")

    def _object(self) -> Iterator[object]:
        while True:
            char = self._next_char()
            if char == ",":
                self._at += 1
                continue
            if char == "}":
                return
            key = self._value()
            if char != '"' or not isinstance(key, str) or self._next_char() != ":":
                if self.found_events:
                    self._notes.cut("the trace is cut off after its events")
                return
            self._at += 1
            if key == "traceEvents" and self._next_char() == "[":
                self._at += 1
                yield from self._list()
                continue
            value = self._value()
            if value is _NOTHING:
                if self.found_events:
                    self._notes.cut(f"the trace is cut off in its key {key!r}")
                return
            self.metadata[key] = value

    def _list(self) -> Iterator[object]:
        self.found_events = True
        while True:
            char = self._next_char()
            if char == ",":
                self._at += 1
                continue
            if char == "]":
                self._at += 1
                return
            if not char:
                self._notes.cut("the trace is cut off within its events; what lies before was read")
                return
            value = self._value()
            if value is not _NOTHING:
                yield value
            elif not self._skip():
                self._notes.cut("the trace is cut off within an event; what lies before was read")
                return

    def _past_nesting(self) -> bool:
        """Goes on behind a value that is nested too deep; False where its end is not there."""
        self._more(_MAX_EVENT_CHARS)
        depth, is_text = 0, False
        for token in _TOKENS.finditer(self._text, self._at):
            sign = token[0]
            if sign == '"':
                is_text = not is_text
            elif len(sign) == 1 and not is_text:
                depth += 1 if sign in "{[" else -1
                if depth == 0:
                    self._at = token.end()
                    self._unreadable += 1
                    return True
        return False

    def _skip(self) -> bool:
        """Goes on at the next event after a damaged one; False where there is none, or where so
        much was tried in vain that the file is no trace any more."""
        if self._is_too_deep:
            return self._past_nesting()
        while self._tried_chars < _MOST_TRIED_CHARS:
            found = self._text.find("{", self._at + 1)
            if found < 0:
                self._at = max(self._at, len(self._text) - 1)
                if not self._more():
                    return False
                continue
            self._at = found
            value = self._value()
            if isinstance(value, dict) and "ph" in value:
                self._at = found
                self._unreadable += 1
                return True
            self._at = found
        return False

    def _value(self) -> object:
        """The JSON value here, or _NOTHING; reads on while it might only be incomplete."""
        self._next_char()
        self._is_too_deep = False
        wanted = _CHUNK
        while True:
            try:
                value, end = self._decoder.raw_decode(self._text, self._at)
            except json.JSONDecodeError as error:
                # Incomplete, not wrong: the error lies at the end, or in a string that runs there.
                open_string = error.msg.startswith("Unterminated string")
                if not open_string and error.pos < len(self._text) - 8:
                    return self._nothing(error.pos)
            except RecursionError:
                self._is_too_deep = True
                return self._nothing(self._at)
            except ValueError:  # a number of thousands of digits
                return self._nothing(self._at)
            else:
                if end < len(self._text) or not self._more():
                    self._at = end
                    return value
                continue
            if len(self._text) - self._at > _MAX_EVENT_CHARS or not self._more(wanted):
                return self._nothing(len(self._text))
            wanted *= 2  # so that a long value is not parsed again for every chunk

    def _nothing(self, end: int) -> object:
        """Counts what was tried in vain, up to `end`. A failure costs more than its characters:
        Python counts the lines before it."""
        self._tried_chars += end - self._at + (self._at >> _LINES_SHIFT) + _LEAST_TRIED_CHARS
        return _NOTHING

    def _next_char(self) -> str:
        while True:
            space = _SPACE.match(self._text, self._at)
            self._at = space.end() if space is not None else self._at
            if self._at < len(self._text):
                return self._text[self._at]
            if not self._more():
                return ""

    def _more(self, wanted: int = 1) -> bool:
        """Reads on; what was used is dropped."""
        parts = [self._text[self._at :]]
        got = 0
        for piece in self._pieces:
            parts.append(piece)
            got += len(piece)
            if got >= wanted:
                break
        self._text, self._at = "".join(parts), 0
        return got > 0


_NOTHING = object()

#: What opens and closes values and texts; a backslash takes what follows with it.
_TOKENS = re.compile(r'\\.|["{}\[\]]', re.DOTALL)

_SPACE = re.compile("[ \t\r\n\ufeff]*")
