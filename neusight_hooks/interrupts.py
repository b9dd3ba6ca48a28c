"""Ctrl-C around a forecast: never lost, and never in the middle of what must be done whole."""

from __future__ import annotations

import _thread
import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from neusight.exit_codes import ExitCode

if TYPE_CHECKING:
    from neusight.recording.recorder import Recorder

#: Seconds after which an interrupt that could not be raised where it came is tried again.
_REMIND_S = 0.002

#: How often, _REMIND_S apart, a reminder that is on its way is waited for; it takes microseconds.
_MAX_WAITS = 500

#: Functions in these files are called by C code that drops what they raise: weak references that
#: died, and the locks of imports.
_DROPPING_FILES = ("weakref.py", "_weakrefset.py", "<frozen importlib._bootstrap>")

#: C++ calls functions in these folders where no exception may pass: it would end the process
#: (torch 2.13, find_torch_dispatch_rule).
_ENDING_FOLDERS = ("/torch/_library/",)

#: The signal with which a process passes an interrupt on to one that it started. Systems without
#: it (macOS, Windows) read recordings and forecast nothing.
RELAY = getattr(signal, "SIGRTMIN", signal.SIGTERM)

#: What ends a process from outside: Ctrl-C, `kill`, a terminal that is closed.
ENDING_SIGNALS = (signal.SIGINT, signal.SIGTERM, getattr(signal, "SIGHUP", signal.SIGTERM))

#: Seconds within which what is passed on is what came here too: a process group gets it twice.
_SAME_PRESS_S = 0.3

_monotonic = time.monotonic  # the true one: a script's clock shows the forecast

F = TypeVar("F", bound=Callable[..., Any])

_runs_the_program: set[CodeType] = set()


def runs_the_program(function: F) -> F:
    """Marks a function of neusight that calls the user's program: what it calls is the user's."""
    _runs_the_program.add(function.__code__)
    return function


@contextlib.contextmanager
def handled_by(handlers: Mapping[int, Callable[[int, FrameType | None], object]]) -> Iterator[None]:
    """While open, these are the handlers of signals that are not ignored (as under nohup). Only the
    main thread may set any: in others nothing changes."""
    before: dict[int, Any] = {}
    try:
        if threading.current_thread() is threading.main_thread():
            for number, handler in handlers.items():
                former = signal.getsignal(number)
                if former not in (None, signal.SIG_IGN):
                    before[number] = former
                    signal.signal(number, handler)
        yield
    finally:
        for number, former in before.items():
            signal.signal(number, former)


@contextlib.contextmanager
def signals_held() -> Iterator[None]:
    """While open, what ends a process from outside waits; then it comes. By handlers, not by the
    mask of signals: other threads would take them. Only the main thread is notified."""
    came: list[int] = []
    try:
        with handled_by(dict.fromkeys(ENDING_SIGNALS, lambda number, frame: came.append(number))):
            yield
    finally:
        for number in dict.fromkeys(came):
            signal.raise_signal(number)


def end_at_once(number: int, frame: FrameType | None) -> NoReturn:
    """A handler for as long as there is nothing to lose: torch, half imported, drops exceptions."""
    os.write(2, b"neusight: interrupted\n")
    os._exit(ExitCode.INTERRUPTED)


def raises_from_here() -> None:
    """From now on Ctrl-C raises KeyboardInterrupt, where `end_at_once` stood before."""
    if signal.getsignal(signal.SIGINT) is end_at_once:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def take_relayed(number: int, frame: FrameType | None) -> None:
    """The handler of RELAY: raises the interrupt here that the process above got, unless it came
    here too. Where the program has a handler of its own, a terminal's always did."""
    is_own = isinstance(signal.getsignal(signal.SIGINT), Interrupts)
    came = _monotonic() - Interrupts.last_s < _SAME_PRESS_S if is_own else _is_in_foreground()
    if not came:
        signal.raise_signal(signal.SIGINT)
        Interrupts.last_s = float("-inf")


def _is_in_foreground() -> bool:
    try:
        return os.tcgetpgrp(0) == os.getpgrp()
    except OSError:  # standard input is no terminal
        return False


class Interrupts:
    """Stands before the handler of SIGINT that was there, from `hold` to `put_back`.

    While held, an interrupt is only recorded. Else it is passed on at once where the user's code
    runs; inside neusight or where C code drops exceptions, it waits for the next op or a moment
    without these. In other threads than the main one, which no signal reaches, all of it does
    nothing. A handler that the program sets itself takes the place of this one.
    """

    #: When an interrupt came last, on a clock that no script changes.
    last_s = float("-inf")

    def __init__(self) -> None:
        #: How often Ctrl-C was pressed.
        self.count = 0
        #: Called instead when it comes again before the block has ended.
        self.on_second: Callable[[], None] | None = None
        self.recorder: Recorder | None = None
        # What stood before this one, and what is to stand after it: a program may set its own.
        self._outside: Any = None
        self._standing: Any = None
        self._outside_hook: Any = None
        self._hook = self._dropped
        self._is_held = False
        self._is_over = False
        self._is_due = False
        #: What is raised instead of passing an interrupt on.
        self._error: BaseException | None = None
        self._lock = threading.Lock()
        self._is_reminding = False
        self._reminder_on_its_way = False

    @property
    def _is_installed(self) -> bool:
        return signal.getsignal(signal.SIGINT) is self

    def hold(self) -> None:
        """From here on an interrupt is recorded, and raises nothing."""
        if threading.current_thread() is not threading.main_thread():
            return
        self._is_held = True
        handler = signal.getsignal(signal.SIGINT)
        if handler is not self and handler not in (None, signal.SIG_IGN):
            self._standing = handler
            if self._outside is None:
                self._outside = handler
            signal.signal(signal.SIGINT, self)
        if sys.unraisablehook is not self._hook:
            self._outside_hook = sys.unraisablehook
            sys.unraisablehook = self._hook

    def release(self) -> None:
        """The block is open; what was recorded meanwhile is passed on."""
        self._is_over = self._is_held = False
        if self._is_due:
            self._pass_on(None, self._outside)

    def end(self, error: BaseException) -> None:
        """Raises an error in the main thread, where an interrupt would be raised; for any thread.
        A program with a handler of its own goes on."""
        main = threading.main_thread().ident
        with self._lock:
            if main is None or self._is_over or not self._is_installed:
                return
            self._error, self._is_due, self._reminder_on_its_way = error, True, True
            signal.pthread_kill(main, signal.SIGINT)  # it also ends a wait in C code

    def put_back(self) -> None:
        """The block has ended: the handler of before is back, and is called for what was
        recorded."""
        with self._lock:  # no reminder from here on
            self._is_held = self._is_over = True
            if self._error is not None:
                self._error, self._is_due = None, False
        if sys.unraisablehook is self._hook:
            sys.unraisablehook = self._outside_hook
        is_main = threading.current_thread() is threading.main_thread()
        if is_main and self._is_installed:
            self._await_reminder()
            signal.signal(signal.SIGINT, self._standing)
        self._is_held = False
        if self._is_due and is_main:
            self._pass_on(None, self._standing)

    def __call__(self, number: int, frame: FrameType | None) -> None:
        """The handler."""
        if self._reminder_on_its_way:
            self._reminder_on_its_way = False
            if not self._is_due:
                return
        else:
            self.count += 1
            Interrupts.last_s = _monotonic()
        self._is_due = True
        if self._is_held:
            return
        if self.count > 1 and self.on_second is not None and not self._is_over:
            self.on_second()
        if self._is_over or _may_raise(frame):
            self._pass_on(frame, self._outside)
        else:
            self._wait()

    def _pass_on(self, frame: FrameType | None, handler: Any) -> None:
        self._is_due = False
        if self.recorder is not None:
            self.recorder.interrupted = None
        error, self._error = self._error, None
        if error is not None:
            raise error
        if callable(handler):
            handler(signal.SIGINT, frame)
        elif handler is not None:
            signal.signal(signal.SIGINT, handler)
            signal.raise_signal(signal.SIGINT)

    def _wait(self) -> None:
        """It is tried again at the next op, and every moment until then: none may come."""
        if self.recorder is not None:
            self.recorder.interrupted = self._at_an_op
        if not self._is_reminding:
            self._is_reminding = True
            # Not threading.Thread: this is a signal handler, and must take no lock.
            with contextlib.suppress(RuntimeError):  # no thread can start: the next op will do
                _thread.start_new_thread(self._remind, ())

    def _at_an_op(self) -> None:
        is_main = threading.current_thread() is threading.main_thread()
        frame = sys._getframe(1)
        if is_main and self._is_due and not self._is_held and not _drops_what_is_raised(frame):
            self._pass_on(frame, self._outside)

    def _remind(self, sleep: Callable[[float], None] = time.sleep) -> None:
        main = threading.main_thread().ident
        while main is not None:
            sleep(_REMIND_S)
            with self._lock:
                if not self._is_due or self._is_held or not self._is_installed:
                    break
                if not self._reminder_on_its_way:
                    self._reminder_on_its_way = True
                    signal.pthread_kill(main, signal.SIGINT)  # it also ends a wait in C code
        self._is_reminding = False

    def _await_reminder(self) -> None:
        """One that is on its way must not reach the handler that was there before."""
        for _ in range(_MAX_WAITS):
            if not self._reminder_on_its_way:
                return
            time.sleep(_REMIND_S)

    def _dropped(self, unraisable: Any) -> None:
        """Python reports here what C code drops: what was raised is due again."""
        if unraisable.exc_type is KeyboardInterrupt and self.count and not self._is_over:
            self._is_due = True
            self._wait()
        elif self._outside_hook is not None:
            self._outside_hook(unraisable)


def _may_raise(frame: FrameType | None) -> bool:
    """Whether an exception raised there ends the user's program, and nothing else."""
    if _drops_what_is_raised(frame):
        return False
    while frame is not None and frame.f_code not in _runs_the_program:
        if str(frame.f_globals.get("__name__")).partition(".")[0] == "neusight":
            return False
        frame = frame.f_back
    return True


def _drops_what_is_raised(frame: FrameType | None) -> bool:
    while frame is not None and frame.f_code not in _runs_the_program:
        code = frame.f_code
        if code.co_name == "__del__" or code.co_filename.endswith(_DROPPING_FILES):
            return True
        if any(folder in code.co_filename for folder in _ENDING_FOLDERS):
            return True
        frame = frame.f_back
    return False
