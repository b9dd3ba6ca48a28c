"""Runs an unmodified script inside a forecast, as Python would run it."""

from __future__ import annotations

import builtins
import os
import runpy
import signal
import sys
import tempfile
import threading
import traceback
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from neusight.exit_codes import ExitCode
from neusight.failure import failure_text
from neusight.integrations.program.errors.internal_failure import is_debugging
from neusight.integrations.program.errors.script_errors import (
    error_line,
    is_fault_of_neusight,
    own_folders,
    script_traceback,
)
from neusight.integrations.program.exit_handlers import collecting_exit_handlers
from neusight.integrations.program.program import Program
from neusight.interrupts import end_at_once, raises_from_here, runs_the_program
from neusight.predictors.errors import HangError, UnansweredRankError

if TYPE_CHECKING:
    from neusight.session import Session

#: Errors of ranks that wait, whose text says where each of them does.
_NAMES_ITS_LINES = (HangError, UnansweredRankError)

#: Experiment trackers write nothing outside the machine, loading stays in the recording thread.
_OFFLINE = {
    "WANDB_MODE": "offline",
    "WANDB_ERROR_REPORTING": "false",
    "COMET_START_ONLINE": "0",
    # MLflow 3 refuses folders else; every other store of it is a database or a server.
    "MLFLOW_ALLOW_FILE_STORE": "true",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "HF_DEACTIVATE_ASYNC_LOAD": "1",
}


@dataclass(frozen=True)
class Outcome:
    """How the program ended: `failure` is empty where it ended well or was stopped. `is_lost` where
    its process was ended, and all that was recorded with it; `traceback` of its own error, as
    Python would print it."""

    failure: str = ""
    stopped_early: bool = False
    exit_code: int = 0
    is_lost: bool = False
    traceback: str = field(default="", compare=False)

    @property
    def is_interrupted(self) -> bool:
        """Whether Ctrl-C ended it."""
        return self.exit_code == ExitCode.INTERRUPTED

    @property
    def is_failed(self) -> bool:
        """Whether it ended by an error of its own."""
        return bool(self.failure) and not self.is_interrupted


_INTERRUPTED = Outcome(failure="interrupted", exit_code=ExitCode.INTERRUPTED)


def hide_gpus() -> None:
    """Hides real GPUs from torch. Call it before torch is imported. The
    program reads in `os.environ` what its user set: DeepSpeed takes the variable apart."""
    os.putenv("CUDA_VISIBLE_DEVICES", "")


def run_program(program: Program, session: Session, *, is_last: bool = False) -> Outcome:
    """Runs the program inside the session, its exit handlers too; raises what is the fault of
    neusight alone. `is_last` says that this process is the program's and ends with it.

    What keeps the session from opening is raised, and a second Ctrl-C ends the command: by
    KeyboardInterrupt where the program has ended, else there and then.
    """
    from neusight.recording.tape import EnoughSteps, RunawayLoop

    raises_from_here()
    with _handler_kept():
        session.open()
        try:
            _run_inside(program, session, is_last=is_last)
        except EnoughSteps:
            return Outcome(stopped_early=True)
        except RunawayLoop as error:
            return Outcome(failure=str(error), exit_code=1)
        except (SystemExit, Exception) as error:
            if session.is_ended_early:  # as what it waited for was ended
                return Outcome(stopped_early=True)
            failure = failure_text(error)
            if not failure:  # sys.exit()
                return Outcome()
            if session.interrupts.count:  # the script, or a library, made something else of it
                return _INTERRUPTED
            if not isinstance(error, SystemExit):
                return _outcome_of_error(error)
            return Outcome(failure, exit_code=error.code if isinstance(error.code, int) else 1)
        except KeyboardInterrupt:
            if session.interrupts.count > 1:
                raise
            return _INTERRUPTED
        return Outcome(stopped_early=session.is_ended_early)


def _run_inside(program: Program, session: Session, *, is_last: bool) -> None:
    with ExitStack() as undo:
        undo.callback(session.close)
        session.interrupts.on_second = partial(_end_at_once, undo)
        undo.enter_context(_as_main(program))
        undo.push(lambda kind, error, traceback: session.record_failure(error))
        _execute_to_the_end(program, is_last=is_last)


def _end_at_once(undo: ExitStack) -> None:
    """Ctrl-C again, and the script has still not ended: nothing is left behind, nothing said."""
    signal.signal(signal.SIGINT, end_at_once)
    try:
        undo.close()
    finally:
        end_at_once(signal.SIGINT, None)


@contextmanager
def _handler_kept() -> Iterator[None]:
    """Removes the script's own handler of Ctrl-C when the script ends."""
    is_main = threading.current_thread() is threading.main_thread()
    handler = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        if is_main and handler is not None and signal.getsignal(signal.SIGINT) is not handler:
            signal.signal(signal.SIGINT, handler)


def _outcome_of_error(error: Exception) -> Outcome:
    from neusight.fake_cuda.packages import cuda_only_package

    package = cuda_only_package(error) if isinstance(error, ImportError) else None
    if package is None:
        return _failed(error)
    return Outcome(failure=f"{_line_of(error)} {_missing(package, str(error))}", exit_code=1)


def _missing(package: str, reported: str) -> str:
    """The part of the package that is missing, and what to do."""
    from neusight.stubs.catalogue import CATALOGUE

    remedy = "Make the import optional, or put a module of your own in its place, whose ops are "
    remedy += "registered with neusight.register_op (examples/custom_op.py)."
    if package not in CATALOGUE:
        return f"imports {package}, which is not installed here and has no stub. {remedy}"
    what = reported.partition(" (")[0]  # behind it stands where the stub lies
    version = CATALOGUE[package].version
    return f"uses more of {package} than its stub has (as of {version}): {what}. {remedy}"


def _failed(error: Exception) -> Outcome:
    """The script's own error; one of neusight is passed on."""
    if is_fault_of_neusight(error, _execute.__code__):
        raise error
    shown = ""
    if is_debugging():
        shown = "".join(traceback.format_exception(error))
    elif not isinstance(error, _NAMES_ITS_LINES):
        shown = script_traceback(error)
    return Outcome(failure=error_line(error), exit_code=1, traceback=shown)


#: Sources of compiled modules, which name themselves without a folder.
_CYTHON = (".pyx", ".pxi", ".pxd")


def _line_of(error: Exception) -> str:
    """The innermost line of the user's own that led to the error."""
    found = ""
    foreign = ("importlib", "site-packages", "runpy", *own_folders())
    for frame in traceback.extract_tb(error.__traceback__):
        if frame.filename.endswith(_CYTHON):
            continue
        if not any(part in frame.filename for part in foreign):
            found = f"{Path(frame.filename).name}:{frame.lineno}"
    return found or "the script"


def _execute_to_the_end(program: Program, *, is_last: bool) -> None:
    """The program, and what it left to be done at the exit of its process."""
    with collecting_exit_handlers() as handlers:
        ended_well = False
        try:
            _execute(program)
            ended_well = True
        except SystemExit:
            ended_well = True
            raise
        finally:
            if is_last:
                handlers.wait_for_threads(ended_well=ended_well)
            handlers.run()
            if is_last:
                handlers.end_process(ended_well=ended_well)


@runs_the_program
def _execute(program: Program) -> None:
    if program.is_module:
        runpy.run_module(program.target, run_name="__main__", alter_sys=True)
        return
    path = sys.modules["__main__"].__file__
    assert path is not None
    code = compile(Path(path).read_bytes(), path, "exec", dont_inherit=True)
    exec(code, sys.modules["__main__"].__dict__)


@contextmanager
def _as_main(program: Program) -> Iterator[None]:
    """sys.argv, sys.path[0], `__main__` and the environment as the program expects them."""
    saved_argv, saved_path = sys.argv, list(sys.path)
    saved_main = sys.modules["__main__"]
    saved_environment = dict(os.environ)
    sys.argv = [program.target, *program.arguments]
    with tempfile.TemporaryDirectory(prefix="neusight-") as folder:
        # MLflow makes its first experiment with the folder: one that is not there yet.
        os.environ.update({**_OFFLINE, "MLFLOW_TRACKING_URI": f"file:{folder}/mlruns"})
        if program.is_module:
            sys.path[0] = str(Path.cwd())
        else:
            sys.path[0] = str(Path(program.target).resolve().parent)
            main = ModuleType("__main__")
            main.__dict__.update(
                __file__=os.path.abspath(program.target),  # noqa: PTH100  (as Python: no link followed)
                __builtins__=builtins,
                __spec__=None,
                __cached__=None,
            )
            sys.modules["__main__"] = main
        try:
            yield
        finally:
            sys.argv = saved_argv
            sys.path[:] = saved_path
            sys.modules["__main__"] = saved_main
            os.environ.clear()
            os.environ.update(saved_environment)
