"""Processes forked off to run a program: how one begins, and what it passes on at its end."""

from __future__ import annotations

import multiprocessing.process
import os
import signal
import sys
import threading
import warnings
import weakref
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any, NoReturn

from neusight.exit_codes import ExitCode
from neusight.integrations.program.guard.system_calls import system_call
from neusight.interrupts import RELAY, take_relayed

# Linux, include/uapi/linux/prctl.h.
_PR_SET_PDEATHSIG = 1
#: What mostly stands behind a signal.
_OFTEN = {
    signal.SIGKILL.value: " (mostly the kernel, out of memory)",
    signal.SIGSEGV.value: " inside a C library",
}


def fork() -> int:
    """As os.fork, without Python's warning where there are threads: those of OpenBLAS, which stops
    them itself before a fork and starts them again after it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


def refusal_of(action: Callable[[], object]) -> str:
    """Why the kernel refuses something, tried in a process of its own; empty where it does not."""
    reading, writing = os.pipe()
    child = fork()
    if child == 0:
        try:
            action()
        except OSError as error:
            os.write(writing, (error.strerror or str(error)).encode())
        finally:
            os._exit(0)
    os.close(writing)
    os.waitpid(child, 0)
    with os.fdopen(reading, "rb") as file:
        return file.read().decode()


def end_after(
    work: Callable[[], object], *, parent: int, handlers: Mapping[int, Any], mask: Iterable[int]
) -> NoReturn:
    """In a forked process: does the work and ends the process, past everything that the parent has
    still to do; it is killed when the parent ends. Signals have these handlers and this mask."""
    own, status = os.getpid(), 0
    try:
        system_call("prctl", _PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:
            os._exit(1)
        for number, handler in {**handlers, RELAY: take_relayed}.items():
            signal.signal(number, handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        # What the parent would remove at its end (temporary folders) is not this process's to, nor
        # are the processes that it would wait for: as forks of multiprocessing do.
        multiprocessing.process._children.clear()  # type: ignore[attr-defined]
        for finalizer in list(weakref.finalize._registry):  # type: ignore[attr-defined]
            finalizer.atexit = False
        work()
    except KeyboardInterrupt:
        status = ExitCode.INTERRUPTED
    except BaseException:  # nothing above would report it
        if os.getpid() == own:
            sys.excepthook(*sys.exc_info())
    finally:
        for stream in (sys.stdout, sys.stderr):
            with suppress(Exception):
                stream.flush()
        os._exit(status)


def ignore_interrupts() -> None:
    """Nothing is left to interrupt, and all of it to lose."""
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, RELAY):
            signal.signal(number, signal.SIG_IGN)


def text_of_end(code: int) -> tuple[str, int]:
    """A failure and an exit code for a process that ended without an answer; `code` is as Python's
    subprocesses have it, minus the number of a signal."""
    if code in (ExitCode.INTERRUPTED, -signal.SIGINT):
        return "interrupted", ExitCode.INTERRUPTED
    if code >= 0:
        return f"it ended its process at once, with status {code} (os._exit)", max(code, 1)
    try:
        name = signal.Signals(-code).name
    except ValueError:  # a real-time signal has no name
        name = f"signal {-code}"
    return f"its process was killed by {name}{_OFTEN.get(-code, '')}", 128 - code
