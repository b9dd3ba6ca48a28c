"""Processes that a program starts learn whose forecast they belong to."""

from __future__ import annotations

import multiprocessing.process
import os
import signal
import subprocess
import sys
from pathlib import PurePath
from typing import Any

from neusight.failure import failure_text
from neusight.fake_cuda.patching import Patches
from neusight.fake_cuda.processes.processes import Processes, without_variables
from neusight.fake_cuda.processes.run_folder import StartedProcess
from neusight.interrupts import runs_the_program
from neusight.predictors.errors import HangError
from neusight.recording.call_stack import call_site

#: Programs that run Python, and so may use a GPU.
_STARTERS = ("python", "torchrun", "accelerate", "deepspeed", "ray", "mpirun", "srun")

#: Where a process keeps which one it is.
_OWN = "_neusight_process"

#: Signals by which programs end processes that they no longer need.
_ENDS_ON_PURPOSE = (signal.SIGTERM, signal.SIGKILL, signal.SIGINT, signal.SIGHUP)

#: Workers of a pool that fail alike until the pool counts as one that none can serve: it starts
#: another for each, forever.
_MOST_FAILURES = 16


def install_processes(patches: Patches, processes: Processes) -> None:
    """Processes that are started from now on take part."""
    _install_multiprocessing(patches, processes)
    _install_programs(patches, processes)


def _install_multiprocessing(patches: Patches, processes: Processes) -> None:
    classes: Any = multiprocessing.process.BaseProcess
    start, bootstrap = classes.start, classes._bootstrap

    def start_as_part(self: Any) -> None:
        target = getattr(self, "_target", None)
        if getattr(target, "__module__", "") == "multiprocessing.pool":
            _require_workers(processes)
        name = self.name if _is_of_library(target) else getattr(target, "__name__", "")
        setattr(self, _OWN, processes.started(name or type(self).__name__, call_site()))
        start(self)

    def bootstrap_as_part(self: Any, *args: Any, **named: Any) -> Any:
        own: StartedProcess | None = getattr(self, _OWN, None)
        current = processes.process
        if own is not None and (current is None or current.number != own.number):
            processes.become(own)
        run = self.run

        def run_as_part() -> None:
            try:
                run()
            except BaseException as error:
                text = failure_text(error)
                if text:
                    processes.fail(text)
                raise
            finally:
                processes.report()

        self.run = run_as_part
        return bootstrap(self, *args, **named)

    patches.set(classes, "start", start_as_part)
    patches.set(classes, "_bootstrap", bootstrap_as_part)


def _is_of_library(target: Any) -> bool:
    """Whether a library's function runs in the process, whose name says little."""
    module = str(getattr(target, "__module__", None) or "multiprocessing")
    return module.partition(".")[0] in ("multiprocessing", "concurrent", "joblib", "torch", "loky")


def _require_workers(processes: Processes) -> None:
    """HangError in the program, once, where one worker of a pool after the other fails as it
    begins. (Raised here, in a thread of the pool's, it would leave the pool unable to end.)"""
    failures = [] if processes.folder is None else processes.folder.failures()
    is_many = len(failures) >= _MOST_FAILURES and len({text for _, text in failures}) == 1
    if not is_many or processes.is_hanging:
        return
    processes.is_hanging = True
    error = HangError(
        f"{len(failures)} workers of a multiprocessing pool failed as they began, each by "
        f"{failures[0][1]}; the pool would start another for each, forever"
    )
    processes.end(error)


# -- other programs ------------------------------------------------------------------------------


def _install_programs(patches: Patches, processes: Processes) -> None:
    opened: Any = subprocess.Popen.__init__
    poll, wait, system = subprocess.Popen.poll, subprocess.Popen.wait, os.system

    def init(self: Any, args: Any, *others: Any, **named: Any) -> None:
        if _is_inner():
            if not others and named.get("env") is None:
                named["env"] = without_variables(os.environ)
            opened(self, args, *others, **named)
            return
        program = _program_of(args)
        process = processes.started(_title_of(args), call_site())
        if named.get("env") is not None:
            named["env"] = {**named["env"], **processes.variables(process, named["env"])}
        opened(self, args, *others, **named)
        if program.startswith(_STARTERS) and processes.folder is not None:
            processes.folder.record_started(process)
            setattr(self, _OWN, process)

    def counted(self: Any, code: int | None) -> int | None:
        process: StartedProcess | None = getattr(self, _OWN, None)
        if process is not None and code and -code not in _ENDS_ON_PURPOSE and processes.folder:
            processes.folder.put_failure(process, f"it ended with status {code}")
        return code

    def poll_and_record(self: Any) -> int | None:
        return counted(self, poll(self))

    @runs_the_program
    def wait_and_record(self: Any, *args: Any, **named: Any) -> int | None:
        return counted(self, wait(self, *args, **named))

    @runs_the_program
    def system_as_part(command: Any) -> int:
        processes.started(_title_of(command), call_site())
        return system(command)

    patches.set(subprocess.Popen, "__init__", init)
    patches.set(subprocess.Popen, "poll", poll_and_record)
    patches.set(subprocess.Popen, "wait", wait_and_record)
    patches.set(os, "system", system_as_part)


#: Modules that start a process on behalf of their caller.
_BETWEEN = ("subprocess", "multiprocessing", "concurrent", "threading", __name__)


def _is_inner() -> bool:
    """Whether torch or neusight starts the process for itself, as Inductor its workers."""
    frame = sys._getframe(1)
    while frame.f_back is not None and str(frame.f_globals.get("__name__")).startswith(_BETWEEN):
        frame = frame.f_back
    return str(frame.f_globals.get("__name__")).startswith(("torch.", "triton.", "neusight."))


def _program_of(args: Any) -> str:
    """The name of the program that a command starts.

    >>> _program_of(["/usr/bin/python3", "-c", "pass"]), _program_of("torchrun a.py")
    ('python3', 'torchrun')
    """
    words = _source_words(args)
    return PurePath(words[0]).name if words else ""


def _title_of(args: Any) -> str:
    """The script or module that a command runs by Python, else its program.

    >>> _title_of(["python", "-u", "tools/a.py", "3"]), _title_of("python -m b"), _title_of(["ls"])
    ('a.py', 'b', 'ls')
    """
    program, *words = (*_source_words(args), "")
    if PurePath(program).name.startswith("python"):
        while words and words[0].startswith("-") and words[0] not in ("-c", "-m"):
            words.pop(0)
        if words[:1] == ["-m"]:
            return words[1]
        if words and words[0] not in ("", "-c"):
            return PurePath(words[0]).name
    return PurePath(program).name


def _source_words(args: Any) -> list[str]:
    if isinstance(args, (str, bytes, os.PathLike)):
        return os.fsdecode(args).split()
    return [os.fsdecode(word) for word in args]
