"""The recording that a baseline keeps, so that a later version of the tool can price it again."""

from __future__ import annotations

import base64
import binascii
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from neusight.predictors.errors import RecordingError
from neusight.recording.recording import Entry, Recording, Step
from neusight.recording.saving import load_recording, save_recording

#: Text of a recording above which none is kept: a baseline is a file under version control.
_MOST_CHARACTERS = 1_000_000
_FILE = "recording.json.gz"


def text_of_recording(recording: Recording) -> str:
    """The recording without its call stacks and operators, compressed; "" where that is too long to
    commit."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, _FILE)
        try:
            save_recording(_without_stacks(recording), path)
        except RecordingError:
            return ""
        text = base64.b64encode(path.read_bytes()).decode()
    return text if len(text) <= _MOST_CHARACTERS else ""


def recording_of(text: str) -> Recording:
    """What `text_of_recording` wrote; RecordingError where this version cannot read it."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, _FILE)
        try:
            path.write_bytes(base64.b64decode(text, validate=True))
        except binascii.Error as error:
            raise RecordingError(f"The baseline's recording is damaged: {error}.") from error
        return load_recording(path)[0]


def _without_stacks(recording: Recording) -> Recording:
    """Equal entries stay one object, so that they are written once."""
    known: dict[int, Entry] = {}

    def plain(entry: Any) -> Entry:
        if id(entry) not in known:
            has_stack = bool(getattr(entry, "stack", ()))
            known[id(entry)] = replace(entry, stack=()) if has_stack else entry
        return known[id(entry)]

    def plain_step(step: Step) -> Step:
        return replace(step, entries=tuple(map(plain, step.entries)), operators=())

    return replace(
        recording, steps=tuple(map(plain_step, recording.steps)), made={}, warnings=(), script=""
    )
