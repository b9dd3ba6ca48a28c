"""Shows the progress of a recording, from a thread that the program does not see."""

from __future__ import annotations

import _thread
import builtins
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple, Protocol

from neusight.integrations.program.progress.terminal import Terminal, terminal_of

if TYPE_CHECKING:
    from neusight.session import Session

#: Seconds that a thread which has nothing left to do may take to end.
_END_TIMEOUT_S = 5.0
_MINUTE_S = 60.0

_monotonic = time.monotonic  # the true one: a script's clock shows the forecast


class ReportInterval(NamedTuple):
    """Seconds until the first report, which a quicker program never gets, and between reports."""

    first_s: float
    then_s: float


#: On a terminal, where a line is rewritten, and where each stays.
REWRITTEN, KEPT = ReportInterval(1.0, 0.5), ReportInterval(_MINUTE_S, _MINUTE_S)


class ProgressPlace(Protocol):
    """Where progress is shown."""

    def show(self, text: str) -> None:
        """Shows the line; on a terminal it replaces the one before."""

    def clear(self) -> None:
        """Removes the line from a terminal."""


class _Log:
    """A stream that is not a terminal: each line stays."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._write = os.write

    def show(self, text: str) -> None:
        self._write(self._descriptor, f"{text}\n".encode("ascii", "replace"))

    def clear(self) -> None:
        """Does nothing: lines stay."""


@contextmanager
def reporting_progress(session: Session, *, quiet: bool = False) -> Iterator[None]:
    """While open, a long recording says how far it is: in a line on a terminal, which is gone at
    the end, else in one a minute."""
    place = None if quiet else _place()
    if place is None:
        yield
        return
    pace = REWRITTEN if isinstance(place, Terminal) else KEPT
    with (
        _reporting_undisturbed(place),
        report_progress(place, lambda s: progress_text(session, s), pace),
    ):
        yield


def _place() -> ProgressPlace | None:
    """The place of standard error; None if it is captured (by a test or a notebook)."""
    terminal = terminal_of(sys.stderr)
    if terminal is not None:
        return terminal
    try:
        return _Log(sys.stderr.fileno())
    except (AttributeError, OSError, ValueError):
        return None


def progress_text(session: Session, seconds: float) -> str:
    """How far it is, in a line of less than sixty columns.

    What takes long besides, such as compiling, is shown in its own words.
    """
    num_ops, num_steps = session.progress
    if session.doing:
        reported = session.doing
    elif num_ops:
        reported = f"step {num_steps + 1}, {num_ops:,} ops"
    else:
        reported = "the script has not reached the GPU yet"
    return f"neusight: {reported}, {seconds_as_text(seconds)}"


def seconds_as_text(seconds: float) -> str:
    """How long it has been.

    >>> seconds_as_text(12.3), seconds_as_text(125)
    ('12 s', '2 min 5 s')
    """
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


@contextmanager
def report_progress(
    place: ProgressPlace, words: Callable[[float], str], pace: ReportInterval
) -> Iterator[None]:
    """While open, shows there what `words` makes of the seconds that have passed.

    The thread is none of `threading`'s: a program that counts its threads finds its own.
    """
    began, own = _monotonic(), os.getpid()
    ended, gone = _thread.allocate_lock(), _thread.allocate_lock()
    ended.acquire()
    gone.acquire()

    def show() -> None:
        wait_s = pace.first_s
        try:
            # The lock's timeout is the system's: the script's virtual clock does not touch it.
            while not ended.acquire(timeout=wait_s):
                place.show(words(_monotonic() - began))
                wait_s = pace.then_s
        except OSError:  # the terminal is gone
            pass
        finally:
            gone.release()

    _thread.start_new_thread(show, ())
    try:
        yield
    finally:
        ended.release()
        if os.getpid() == own:  # a process that the program forked has no such thread
            gone.acquire(timeout=_END_TIMEOUT_S)
            place.clear()


@contextmanager
def reporting_work(
    words: Callable[[], str], *, quiet: bool = False
) -> Iterator[Callable[[], None]]:
    """While open, work that is done in other processes says how far it is; what is given is to be
    called every moment. There is no thread, so that processes can be forked meanwhile."""
    place = None if quiet else _place()
    if place is None:
        yield lambda: None
        return
    pace = REWRITTEN if isinstance(place, Terminal) else KEPT
    began = _monotonic()
    due_s = pace.first_s

    def show() -> None:
        nonlocal due_s
        seconds = _monotonic() - began
        if seconds >= due_s:
            due_s = seconds + pace.then_s
            place.show(f"neusight: {words()}, {seconds_as_text(seconds)}")

    try:
        yield show
    finally:
        place.clear()


@contextmanager
def _reporting_undisturbed(place: ProgressPlace) -> Iterator[None]:
    """While open, `input`, and so a debugger, has the terminal for itself."""
    ask = builtins.input
    if not isinstance(place, Terminal):
        yield
        return

    def undisturbed(prompt: object = "", /) -> str:
        with place.paused():
            return ask(prompt)

    builtins.input = undisturbed
    try:
        yield
    finally:
        if builtins.input is undisturbed:
            builtins.input = ask
