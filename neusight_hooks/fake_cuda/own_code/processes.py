"""Processes that a program starts beside itself: none is forecast, and the summary says so."""

from __future__ import annotations

import multiprocessing.process
import os
import subprocess
import sys
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from neusight.fake_cuda.patching import Patches
from neusight.recording.call_stack import call_site

if TYPE_CHECKING:
    from neusight.recording.recorder import Recorder

__all__ = ["install_processes"]

#: Programs that run Python, and so may use a GPU.
_STARTERS = ("python", "torchrun", "accelerate", "deepspeed", "ray", "mpirun", "srun")

#: Modules whose processes only load and move data, or serve others.
_OF_DATA = (
    "torch.utils.data",
    "torch.multiprocessing",
    "multiprocessing",
    "concurrent.futures",
    "joblib",
    "datasets",
    "torch._inductor",
)


def install_processes(patches: Patches, recorder: Recorder) -> None:
    """A line for each place that starts a process in which a GPU might be used."""
    process: Any = multiprocessing.process.BaseProcess
    start: Any = process.start

    def start_and_tell(self: Any) -> None:
        target = getattr(self, "_target", None)
        module = str(getattr(target, "__module__", None) or type(self).__module__)
        if recorder.tape.is_open and not module.startswith(_OF_DATA):
            _tell(recorder, getattr(target, "__name__", type(self).__name__))
        start(self)

    patches.set(process, "start", start_and_tell)
    opened: Any = subprocess.Popen.__init__

    def init(self: Any, args: Any, *others: Any, **named: Any) -> None:
        program = _program_of(args)
        if recorder.tape.is_open and program.startswith(_STARTERS) and not _is_inner():
            _tell(recorder, program)
        opened(self, args, *others, **named)

    patches.set(subprocess.Popen, "__init__", init)


#: Modules that start a process on behalf of whoever calls them.
_BETWEEN = ("subprocess", "multiprocessing", "concurrent", "threading", __name__)


def _is_inner() -> bool:
    """Whether torch or neusight starts the process for itself, as Inductor its workers."""
    frame = sys._getframe(1)
    while frame.f_back is not None and str(frame.f_globals.get("__name__")).startswith(_BETWEEN):
        frame = frame.f_back
    return str(frame.f_globals.get("__name__")).startswith(("torch.", "triton.", "neusight."))


def _tell(recorder: Recorder, name: str) -> None:
    recorder.warn_once(
        f"{name}, a process that {call_site()} starts, was not forecast: what it does on a GPU is "
        "in no figure; forecast its program by itself, or call it in this process"
    )


def _program_of(args: Any) -> str:
    """The name of the program that a command starts.

    >>> _program_of(["/usr/bin/python3", "-c", "pass"]), _program_of("torchrun a.py")
    ('python3', 'torchrun')
    """
    first = args if isinstance(args, (str, bytes, os.PathLike)) else next(iter(args), "")
    words = os.fsdecode(first).split()
    return PurePath(words[0]).name if words else ""
