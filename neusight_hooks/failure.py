"""How a program failed inside a forecast, if it did: what was recorded then is not all of it."""

from __future__ import annotations

from neusight.recording.recording import Recording
from neusight.recording.tape import RunawayLoop

#: Names in `Recording.options`: what ended the program, and whether that was the GPU's memory.
FAILURE_OPTION, OUT_OF_MEMORY_OPTION = "failure", "out_of_memory"


def failure_options(error: BaseException | None) -> dict[str, str]:
    """What a recording keeps of the exception that left the block; nothing where the program was
    ended on purpose, or by the user."""
    text = failure_text(error)
    if not text:
        return {}
    return {FAILURE_OPTION: text, **({OUT_OF_MEMORY_OPTION: "yes"} if _is_of_memory(error) else {})}


def failure_text(error: BaseException | None) -> str:
    """The failure in words, or nothing where it is none.

    >>> failure_text(ValueError("no such layer")), failure_text(SystemExit(0))
    ('ValueError: no such layer', '')
    """
    if isinstance(error, SystemExit):
        if error.code is None or error.code == 0:
            return ""
        if isinstance(error.code, int):
            return f"it exited with status {error.code}"
        return f"it exited with status 1: {error.code}"
    if isinstance(error, RecursionError):
        return (
            f"RecursionError: {error}. Modules nest, or functions call each other, deeper than "
            "Python allows, with a GPU too; sys.setrecursionlimit allows more"
        )
    if isinstance(error, RunawayLoop):
        return str(error)
    return f"{type(error).__name__}: {error}" if isinstance(error, Exception) else ""


def failure_of(recording: Recording) -> str:
    """The error that ended the program early, as a message; empty where there was none."""
    return recording.options.get(FAILURE_OPTION, "")


def ran_out(recording: Recording) -> bool:
    """Whether the program ended because the GPU ran out of memory."""
    return OUT_OF_MEMORY_OPTION in recording.options


def _is_of_memory(error: BaseException | None) -> bool:
    from torch import OutOfMemoryError

    while error is not None and not isinstance(error, OutOfMemoryError):
        error = error.__cause__
    return error is not None
