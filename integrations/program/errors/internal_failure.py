"""What is said where neusight itself fails, and the switch that shows all of it."""

from __future__ import annotations

import os
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

DEBUG_OPTION = "--debug"
#: The same as an environment variable, which reaches the processes that a command starts.
DEBUG_VARIABLE = "NEUSIGHT_DEBUG"


def is_debugging() -> bool:
    """Whether errors are shown with every frame."""
    return os.environ.get(DEBUG_VARIABLE, "") not in ("", "0")


@contextmanager
def debugging(*, on: bool) -> Iterator[None]:
    """While open, errors are shown with every frame if `on`; else as the environment says."""
    before = os.environ.get(DEBUG_VARIABLE)
    if on:
        os.environ[DEBUG_VARIABLE] = "1"
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(DEBUG_VARIABLE, None)
        else:
            os.environ[DEBUG_VARIABLE] = before


def internal_failure_text(error: BaseException) -> str:
    """An unexpected error, in a line; with its traceback while debugging."""
    what = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""
    words = f"neusight itself failed: {what}{place}"
    if is_debugging():
        return "".join([*traceback.format_exception(error), words])
    return (
        f"{words}. This is no error of the script: {DEBUG_OPTION} before it, or "
        f"{DEBUG_VARIABLE}=1, shows the traceback for a report."
    )
