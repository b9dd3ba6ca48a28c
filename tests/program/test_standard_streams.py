"""Standard output takes any text, and its reader may go."""

from __future__ import annotations

import io
import os
import sys

import pytest

from neusight.integrations.program.standard_streams import (
    flush_standard_streams,
    settle_standard_streams,
)


def written(text: str, encoding: str, monkeypatch: pytest.MonkeyPatch) -> bytes:
    held = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(held, encoding=encoding))
    settle_standard_streams()
    print(text, end="")
    flush_standard_streams()
    return held.getvalue()


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("12 µs … 3 \xd7 4", b"12 us ... 3 x 4"),
        ("日", b"\\u65e5"),
        ("a \udcff b", b"a \xff b"),  # a file's name that is not UTF-8
        ("plain", b"plain"),
    ],
)
def test_what_ascii_lacks_is_written_in_other_text(
    text: str, shown: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert written(text, "ascii", monkeypatch) == shown


def test_utf_8_is_written_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    assert written("12 µs 日", "utf-8", monkeypatch) == "12 µs 日".encode()


@pytest.mark.parametrize("is_buffered", [True, False])
def test_a_reader_that_has_gone_is_no_error(
    is_buffered: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, write = os.pipe()
    raw = io.FileIO(write, "w")
    buffer = io.BufferedWriter(raw) if is_buffered else raw
    with io.TextIOWrapper(buffer, write_through=not is_buffered) as stream:
        monkeypatch.setattr(sys, "stdout", stream)
        settle_standard_streams()
        os.close(read)

        print("into the void")
        flush_standard_streams()
        print("and more")
        flush_standard_streams()


def test_a_full_disk_is_an_error_once(monkeypatch: pytest.MonkeyPatch) -> None:
    with open("/dev/full", "w") as stream:  # noqa: PTH123  (a stream as Python opens it)
        monkeypatch.setattr(sys, "stdout", stream)
        settle_standard_streams()
        print("too much")

        with pytest.raises(OSError, match="No space left"):
            flush_standard_streams()
        flush_standard_streams()


def test_a_closed_stream_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", None)

    settle_standard_streams()
    flush_standard_streams()

    assert sys.stdout is None
