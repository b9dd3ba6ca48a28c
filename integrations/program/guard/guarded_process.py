"""Records a program in a process of its own, which the kernel keeps away from the user's files.

The script runs in a forked child that may write only where no user's files are. What the overlay
has to do at real paths, this process does for it while it waits; and it alone prices, prints and
writes what the user asked for.
"""

from __future__ import annotations

import gc
import os
import pickle
import select
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Generic, NoReturn, TypeVar

from neusight.exit_codes import ExitCode
from neusight.integrations.program.guard.forking import (
    end_with_parent,
    fork,
    ignore_interrupts,
    leave_exit_to_parent,
    pickled_error,
    words_of_end,
)
from neusight.integrations.program.guard.landlock import is_available, restrict_writes
from neusight.integrations.program.guard.writable_folders import allowed_folders
from neusight.interrupts import RELAY, raises_from_here, take_relayed
from neusight.predictors.errors import OptionError

if TYPE_CHECKING:
    from neusight.fake_cuda.store.hands import HandsServer
    from neusight.fake_cuda.store.store import Store

__all__ = [
    "Ended",
    "Terminated",
    "checked_keep_folder",
    "ending_on_sigterm",
    "in_guarded_process",
    "is_guarded",
]

T = TypeVar("T")

#: What ends a process from outside: `kill`, and a terminal that is closed.
_ENDING_SIGNALS = (signal.SIGTERM, signal.SIGHUP)
#: Folder in the store that the script takes for the system's temporary one.
_TEMPORARY = "tmp"
#: Bytes of its path at most: 107, less "/pymp-12345678/listener-12345678" of multiprocessing.
_LONGEST_TEMPORARY = 107 - 32
#: Where a link gives it a shorter name.
_SHORT_PARENT = "/tmp"


class Terminated(BaseException):
    """SIGTERM came: everything is closed on the way out, as for Ctrl-C."""


@dataclass(frozen=True)
class Ended(Generic[T]):
    """How a guarded process ended: with an answer, or with `failure` in words and `exit_code`."""

    answer: T | None
    failure: str = ""
    exit_code: int = 0


def is_guarded(*, is_command_line: bool, allow_writes: bool) -> bool:
    """Whether a program is to run in a process of its own: from the command line, unless it may
    write where it wants, where the kernel can guard it."""
    return is_command_line and not allow_writes and is_available()


def checked_keep_folder(folder: str | None, *, allow_writes: bool = False) -> None:
    """OptionError where what is kept would mix with what is there already, or nothing is kept."""
    if folder is None:
        return
    if allow_writes:
        raise OptionError(
            "--allow-writes lets the script write where it says, so --keep-writes has nothing to "
            "collect; leave one of them out"
        )
    path = Path(folder)
    if path.exists() and not path.is_dir():
        raise OptionError(f"--keep-writes {folder} is a file; name a folder, a new one or empty")
    if path.is_dir() and any(path.iterdir()):
        raise OptionError(
            f"--keep-writes {folder} is not empty; name a new folder, so that what this run writes "
            "does not mix with what is there"
        )


def in_guarded_process(
    work: Callable[[Store], T], words: Iterable[str], *, keep: str | None = None
) -> Ended[T]:
    """What `work` returned in a process of its own, given the store for the program's files; what
    it raises is raised here. `words` may name files of the user's, whose folders stay closed.
    Copies and new files are collected into `keep`, then removed."""
    with _loaded():
        return _in_guarded_process(work, words, keep=keep)


def _in_guarded_process(
    work: Callable[[Store], T], words: Iterable[str], *, keep: str | None
) -> Ended[T]:
    raises_from_here()
    from neusight.fake_cuda.store.hands import HandsServer
    from neusight.fake_cuda.store.leftovers import remove_leftovers
    from neusight.fake_cuda.store.store import Store

    for folder in {tempfile.gettempdir(), _SHORT_PARENT}:
        remove_leftovers(folder)
    store = Store.create()
    if keep is not None:
        Path(keep).mkdir(parents=True, exist_ok=True)  # so that it is none of the script's
    try:
        server = HandsServer(store.folder)
        try:
            with (
                allowed_folders(words) as writable,
                _temporary_folder(store.folder) as temporary,
            ):
                allowed = [store.folder, *writable]
                status = _run_child(lambda: _answer(work, store.folder, allowed, temporary), server)
            answer = _taken(server)
        finally:
            server.close()
    finally:
        store.close(keep=keep)
        for text in store.not_kept:
            print(f"neusight: --keep-writes {keep} could not keep {text}", file=sys.stderr)
    if answer is None:
        return Ended(None, *words_of_end(os.waitstatus_to_exitcode(status)))
    if isinstance(answer, BaseException):
        raise answer
    return Ended(answer[0])


@contextmanager
def _temporary_folder(store: str) -> Iterator[str]:
    """A folder in the store that the script takes for the system's temporary one, by a short name:
    multiprocessing makes sockets in it, whose paths have 108 bytes at most."""
    folder = Path(store) / _TEMPORARY
    folder.mkdir()
    link = Path(_SHORT_PARENT) / Path(store).name
    if len(str(folder)) <= _LONGEST_TEMPORARY:
        yield str(folder)
        return
    try:
        link.symlink_to(folder)
    except OSError:
        yield str(folder)
        return
    try:
        yield str(link)
    finally:
        link.unlink(missing_ok=True)


@contextmanager
def _loaded() -> Iterator[None]:
    """What takes long is loaded here, once, for this process and the child. While open, Python
    looks for garbage only in what came later: no search finds any in modules, nor marks (and so
    copies) what both processes share."""
    is_collecting = gc.isenabled()
    gc.disable()
    try:
        _load()
    finally:
        if is_collecting:
            gc.enable()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def _load() -> None:
    from neusight.fake_cuda.core import self_check

    self_check()  # first: another torch may lack names that the others import
    import neusight.fake_cuda.session
    import neusight.session  # noqa: F401


def _taken(server: HandsServer) -> Any:
    """The answer in a tuple, the exception that was raised, or None where there is neither."""
    if server.taken is None:
        return None
    with os.fdopen(server.taken, "rb") as file:
        file.seek(0)
        return pickle.load(file)


# -- the parent ----------------------------------------------------------------------------------


def _run_child(work: Callable[[], None], server: HandsServer) -> int:
    """Forks, does the child's work at real paths until it has ended; its status."""
    for stream in filter(None, (sys.stdout, sys.stderr)):
        stream.flush()
    with _signals_left_to_child() as signals:
        parent = os.getpid()
        child = fork()
        if child == 0:
            _be_child(work, server, parent, signals.interrupt)
        signals.child = child
        status: int | None = None
        try:
            if signals.num_terminations:  # it came before the child could be told
                os.kill(child, signal.SIGTERM)
            _serve_until_end(server, child)
            _, status = os.waitpid(child, 0)
        finally:
            signals.child = 0
            if status is None:
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
    if signals.num_terminations:
        raise Terminated
    return status


def _serve_until_end(server: HandsServer, child: int) -> None:
    ended = os.pidfd_open(child)
    try:
        while True:
            waiting = {one.fileno(): one for one in server.sockets}
            poll = select.poll()
            for number in (ended, *waiting):
                poll.register(number, select.POLLIN)
            ready = [number for number, _ in poll.poll()]
            for number in ready:
                if number != ended:
                    server.serve(waiting[number])
            if ready == [ended]:
                return
    finally:
        os.close(ended)


@dataclass
class _Signals:
    """What came while the child ran."""

    interrupt: Any
    child: int = 0
    num_terminations: int = 0

    def pass_interrupt_on(self, number: int, frame: FrameType | None) -> None:
        """The terminal tells the child too, a program may have told this process alone: the child
        knows which."""
        if self.child:
            with suppress(ProcessLookupError):
                os.kill(self.child, RELAY)

    def terminate(self, number: int, frame: FrameType | None) -> None:
        """Tells the child, which may clean up; the second time it is ended at once."""
        self.num_terminations += 1
        if self.child:
            wanted = signal.SIGTERM if self.num_terminations == 1 else signal.SIGKILL
            with suppress(ProcessLookupError):
                os.kill(self.child, wanted)


@contextmanager
def _signals_left_to_child() -> Iterator[_Signals]:
    """While open, Ctrl-C is the child's alone (the terminal tells both), SIGTERM is passed on."""
    if threading.current_thread() is not threading.main_thread():
        yield _Signals(signal.SIG_DFL)
        return
    signals = _Signals(signal.getsignal(signal.SIGINT))
    signal.signal(signal.SIGINT, signals.pass_interrupt_on)
    # Else one that comes before the child has its handler would kill it.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, [RELAY])
    terminate = {
        number: signal.signal(number, signals.terminate)
        for number in _ENDING_SIGNALS
        if signal.getsignal(number) is not signal.SIG_IGN  # as under nohup
    }
    try:
        yield signals
    finally:
        for number, handler in terminate.items():
            signal.signal(number, handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        signal.signal(signal.SIGINT, signals.interrupt)


@contextmanager
def ending_on_sigterm() -> Iterator[None]:
    """While open, SIGTERM ends the processes that were started, then raises `Terminated`, so that
    nothing is left behind. For a command line's main thread."""

    def end(number: int, frame: FrameType | None) -> NoReturn:
        for child in _children():
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGTERM)
        raise Terminated

    before = {
        number: signal.signal(number, end)
        for number in _ENDING_SIGNALS
        if signal.getsignal(number) is not signal.SIG_IGN  # as under nohup
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _children() -> list[int]:
    """The processes that this one started and that are still there."""
    found: list[int] = []
    for path in Path("/proc/self/task").glob("*/children"):
        with suppress(OSError):
            found += map(int, path.read_text().split())
    return found


# -- the child -----------------------------------------------------------------------------------


def _be_child(
    work: Callable[[], None], server: HandsServer, parent: int, interrupt: Any
) -> NoReturn:
    """Does the work and ends the process, past everything that the parent has still to do."""
    own, status = os.getpid(), 0
    try:
        end_with_parent(parent)
        server.close()
        for number in _ENDING_SIGNALS:
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, interrupt)
        signal.signal(RELAY, take_relayed)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [RELAY])
        leave_exit_to_parent()
        work()
    except KeyboardInterrupt:
        status = ExitCode.INTERRUPTED
    except BaseException:  # there is nobody above to tell
        if os.getpid() == own:
            sys.excepthook(*sys.exc_info())
    finally:
        for stream in (sys.stdout, sys.stderr):
            with suppress(Exception):
                stream.flush()
        os._exit(status)


def _answer(work: Callable[[Store], Any], folder: str, allowed: list[str], temporary: str) -> None:
    """Works behind the guard, and passes on what came of it. What a script forked off and let run
    to the end has nothing to tell."""
    from neusight.fake_cuda.store.hands import RemoteHands
    from neusight.fake_cuda.store.store import Store

    own = os.getpid()
    hands = RemoteHands(folder)  # it keeps the true functions
    try:
        tempfile.tempdir = os.environ["TMPDIR"] = temporary
        restrict_writes(allowed)
        done = work(Store(folder))
        ignore_interrupts()
        data = pickle.dumps((done,), pickle.HIGHEST_PROTOCOL)
    except BaseException as error:
        ignore_interrupts()
        if os.getpid() != own:
            raise
        data = pickled_error(error)
    if os.getpid() != own:
        return
    gc.collect()  # files that the script left open are written to their ends
    descriptor = os.memfd_create("neusight answer")
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
        file.flush()
        hands.give(descriptor)
