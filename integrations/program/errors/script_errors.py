"""A program's own error as on a GPU: only the program's lines are in its traceback."""

from __future__ import annotations

import traceback
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from traceback import FrameSummary, TracebackException
from types import CodeType, TracebackType

from neusight.predictors.errors import NeusightError

#: Files of Python that start a script or import a module, or wrap a function that is to go.
_STARTERS = ("runpy", "<frozen ", "/typing_extensions.py")

#: Errors that a call with the script's own wrong arguments ends in, wherever it was noticed.
_OF_ARGUMENTS = (RuntimeError, ValueError, TypeError, OSError, NeusightError)


@cache
def own_folders() -> tuple[str, ...]:
    """The folders of neusight, its predictors and its integrations."""
    found = (
        find_spec(name) for name in ("neusight", "neusight.predictors", "neusight.integrations")
    )
    return tuple(f"{Path(spec.origin).parent}/" for spec in found if spec and spec.origin)


@cache
def _torch_folder() -> str:
    spec = find_spec("torch")
    return f"{Path(spec.origin).parent}/" if spec and spec.origin else ""


def script_traceback(error: BaseException) -> str:
    """The traceback as Python prints it, without the frames of torch and neusight."""
    shown = TracebackException.from_exception(error)
    _keep_script_frames(shown)
    return "".join(shown.format())


def error_line(error: BaseException) -> str:
    """The error in one line, with the innermost line of the script that led to it."""
    first = str(error).strip().partition("\n")[0]
    words = f"{type(error).__name__}: {first}" if first else type(error).__name__
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if _is_script(frame)]
    return f"{words} ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else words


def is_fault_of_neusight(error: BaseException, start: CodeType) -> bool:
    """Whether neusight itself failed: outside of the script, which `start` runs, or in its depths
    in a way that no wrong argument explains."""
    codes = [frame.f_code for frame, _ in traceback.walk_tb(error.__traceback__)]
    return start not in codes or (codes[-1] is not start and is_of_the_depths(error))


def is_of_the_depths(error: BaseException) -> bool:
    """Whether it comes from neusight's own code and was not raised on purpose."""
    frames = traceback.extract_tb(error.__traceback__)
    if not frames or not frames[-1].filename.startswith(own_folders()):
        return False
    is_meant = (frames[-1].line or "").startswith("raise")
    return not is_meant and not isinstance(error, _OF_ARGUMENTS)


def without_own_frames(shown: TracebackType | None) -> TracebackType | None:
    """The traceback without the frames of neusight, and those of torch below them."""
    kept: list[TracebackType] = []
    is_below = False
    while shown is not None:
        filename = shown.tb_frame.f_code.co_filename
        is_own = filename.startswith(own_folders())
        is_below = is_own or (is_below and filename.startswith(_torch_folder()))
        if not is_below:
            kept.append(shown)
        shown = shown.tb_next
    rebuilt: TracebackType | None = None
    for item in reversed(kept):
        rebuilt = TracebackType(rebuilt, item.tb_frame, item.tb_lasti, item.tb_lineno)
    return rebuilt


def _keep_script_frames(shown: TracebackException) -> None:
    """Python has made a tree of it: no error is in it twice."""
    context = shown.__context__
    is_internal = context is not None and not any(map(_is_script, context.stack))
    if shown.__suppress_context__ or is_internal:  # raised and caught again below the script
        shown.__context__ = None
    frames = [frame for frame in shown.stack if _is_script(frame)]
    shown.stack = traceback.StackSummary.from_list(frames)
    linked = [shown.__cause__, shown.__context__, *(getattr(shown, "exceptions", None) or ())]
    for other in linked:
        if other is not None:
            _keep_script_frames(other)


def _is_script(frame: FrameSummary) -> bool:
    if frame.filename == "<string>" and frame.name != "<module>":  # a function of torch's, answered
        return False
    foreign = (*own_folders(), _torch_folder())
    is_starter = any(name in frame.filename for name in _STARTERS)
    return not is_starter and not frame.filename.startswith(tuple(filter(None, foreign)))
