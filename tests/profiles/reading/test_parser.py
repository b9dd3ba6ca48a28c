"""A trace is read as it comes: the same events however its text is cut into pieces."""

from __future__ import annotations

import gzip
import io
import json
from collections.abc import Iterator

import pytest

from neusight.integrations.profiles.reading.notes import Notes
from neusight.integrations.profiles.reading.parser import Parser, text_of

EVENTS = [{"ph": "X", "name": 'a"b{', "ts": 1.5}, {"ph": "i", "args": {"x": [1, {"y": -2}]}}]
TEXT = json.dumps({"schemaVersion": 1, "traceEvents": EVENTS, "distributedInfo": {"rank": 3}})


def parsed(pieces: Iterator[str]) -> tuple[list[object], dict[str, object], list[str]]:
    notes = Notes()
    parser = Parser(pieces, notes)
    return list(parser.events()), parser.metadata, list(notes.texts)


def pieces(text: str, size: int) -> Iterator[str]:
    return (text[at : at + size] for at in range(0, len(text), size))


@pytest.mark.parametrize("size", [1, 2, 3, 7, 50, 1000])
def test_the_events_are_the_same_however_the_text_is_cut(size: int) -> None:
    assert parsed(pieces(TEXT, size)) == (
        EVENTS,
        {"schemaVersion": 1, "distributedInfo": {"rank": 3}},
        [],
    )
    assert parsed(pieces(json.dumps(EVENTS), size))[0] == EVENTS


@pytest.mark.parametrize("size", [1, 5, 1000])
@pytest.mark.parametrize(
    ("text", "num_events", "note"),
    [
        ('[{"ph": 1}, {"ph": }, {"ph": 2}, {"ph": ?}, {"ph": 3}]', 3, "2 damaged events were"),
        ('[{"ph": 1}, {"ph": 2', 1, "the trace is cut off within an event"),
        ('[{"ph": 1},', 1, "the trace is cut off within its events"),
        ('{"traceEvents": [{"ph": 1}], "a": ', 1, "the trace is cut off in its key 'a'"),
        ('{"traceEvents": [{"ph": 1}], "a"', 1, "the trace is cut off after its events"),
        ('[{"ph": 1}, ' + '{"a":' * 5000 + "1" + "}" * 5000 + ', {"ph": 2}]', 2, "1 damaged event"),
    ],
)  # fmt: skip
def test_damage_is_passed_over_and_reported(
    text: str, num_events: int, note: str, size: int
) -> None:
    found, _, notes = parsed(pieces(text, size if len(text) < 100 else 10**6))

    assert len(found) == num_events
    assert [line[: len(note)] for line in notes] == [note]


def test_gzip_files_that_follow_one_another_are_one_text() -> None:
    def text(data: bytes, most: int = 10**6) -> tuple[str, bool]:
        notes = Notes()
        found = "".join(text_of(io.BytesIO(data), most, notes))
        return found, bool(notes.texts)

    packed = gzip.compress(b"one ") + gzip.compress("zwei ü".encode())
    assert text(packed) == ("one zwei ü", False)
    assert text(packed + bytes(8)) == ("one zwei ü", False)
    assert text(b"plain") == ("plain", False)
    assert text(b"plain", most=5) == ("plain", False)
    assert text(b"plain", most=4) == ("plai", True)
    assert text(packed[:-9])[1]
