"""Records a program in a process of its own, which the kernel keeps away from the user's files.

The script runs in a forked child with a copy-on-write view of the file system. Where the kernel
refuses that, the child may write only where no user's files are, and this process makes new files
for it while it waits. This process alone prices, prints and writes what the user asked for.
"""

from __future__ import annotations

import gc
import os
import select
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, Generic, TypeVar

from neusight.exit_codes import ExitCode
from neusight.fake_cuda.overlay.python_functions import install_retries
from neusight.fake_cuda.patching import Patches
from neusight.fake_cuda.store.changes import is_of_no_account, summary_of
from neusight.fake_cuda.store.changes import keep as keep_changes
from neusight.fake_cuda.store.leftovers import remove_leftovers
from neusight.fake_cuda.store.store import Store
from neusight.integrations.program.guard.forking import (
    end_after,
    fork,
    ignore_interrupts,
    refusal_of,
    text_of_end,
)
from neusight.integrations.program.guard.landlock import (
    is_available,
    restrict_writes,
    why_no_landlock,
)
from neusight.integrations.program.guard.layers import changes_in
from neusight.integrations.program.guard.results import decoded, encoded, encoded_error
from neusight.integrations.program.guard.supervisor import Supervisor, why_unsupervised
from neusight.integrations.program.guard.view import enter_view, reopen_inherited
from neusight.integrations.program.guard.writable_folders import (
    allowed_folders,
    caches_of_packages,
)
from neusight.interrupts import (
    ENDING_SIGNALS,
    RELAY,
    handled_by,
    raises_from_here,
    signals_held,
)
from neusight.predictors.errors import OptionError

T = TypeVar("T")

#: What ends a process from outside: `kill`, and a terminal that is closed.
_ENDING_SIGNALS = ENDING_SIGNALS[1:]
#: Says `overlay` where no copy-on-write view is to be tried.
FILES_VARIABLE = "NEUSIGHT_FILES"
_VIEW_WORDS = "a copy-on-write view by the kernel, for the script and all that it starts"
_OVERLAY_ALONE = "guarded by the overlay alone"
_FALLBACK_WORDS = "guarded by the overlay, and by the kernel behind it (Landlock)"
#: Where shared memory is: a store lies there where the temporary folder cannot be an upper layer,
#: as on a container's own overlay.
_MEMORY = "/dev/shm"
_PARENTS = (None, _MEMORY)
#: Folder in the store, and file in it, for the child's result.
_ANSWER = "answer"
#: File in the store that says why the child has no view.
_REFUSAL = "refusal"
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
#: Said where a limit on files (ulimit -f) or a full disk stops it.
_TOO_LARGE = "what was recorded could not be written to the temporary folder"
#: Milliseconds after which a call that waits for another process is tried again.
_AGAIN_MS = 10
#: Folder in the store that the script takes for the system's temporary one.
_TEMPORARY = "tmp"
#: Bytes of its path at most: 107, less "/pymp-12345678/listener-12345678" of multiprocessing.
_LONGEST_TEMPORARY = 107 - 32
#: Where a link gives it a shorter name.
_SHORT_PARENT = "/tmp"


class Terminated(BaseException):
    """SIGTERM came: everything is closed on the way out, as for Ctrl-C."""


@dataclass(frozen=True)
class ProcessEnd(Generic[T]):
    """How a guarded process ended: with an answer, or with `failure` in words and `exit_code`;
    `files` says what it wrote, in a view of its own if it `has_view`, `refused` what it was kept
    from without one."""

    answer: T | None
    failure: str = ""
    exit_code: int = 0
    files: str = ""
    refused: str = ""
    has_view: bool = True


def is_guarded(*, is_command_line: bool, allow_writes: bool) -> bool:
    """Whether a program is to run in a process of its own: from the command line, unless it may
    write where it wants."""
    return is_command_line and not allow_writes and sys.platform == "linux"


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
    work: Callable[[Store | None], T], words: Iterable[str], *, keep: str | None = None
) -> ProcessEnd[T]:
    """What `work` returned in a process of its own; what it raises is raised here. `words` may name
    files of the user's, whose folders stay closed. What the program writes is collected into
    `keep`, then removed.

    The process has a copy-on-write view of the file system, or this one does for it what changes
    files, and `work` gets None; where the kernel refuses both, the store by which an overlay keeps
    the user's files as they are.
    """
    with _loaded():
        raises_from_here()
        interrupt = signal.getsignal(signal.SIGINT)
        with signals_held():  # but while the process runs: nothing is left half made, or half gone
            return _in_guarded_process(work, words, keep, interrupt)


def _in_guarded_process(
    work: Callable[[Store | None], T], words: Iterable[str], keep: str | None, interrupt: Any
) -> ProcessEnd[T]:
    try:
        temporary = tempfile.gettempdir()
    except FileNotFoundError:
        raise OptionError(
            "what the script writes goes to a temporary folder, and this machine has none that can "
            "be written; set TMPDIR to one, or use --allow-writes"
        ) from None
    for folder in {temporary, _SHORT_PARENT, _MEMORY}:
        remove_leftovers(folder)
    if keep is not None:
        Path(keep).mkdir(parents=True, exist_ok=True)  # so that it is none of the script's
    with caches_of_packages(words) as caches:
        for parent in () if os.environ.get(FILES_VARIABLE) == "overlay" else _PARENTS:
            with _store(parent, keep) as store:
                status = _run_in_view(work, store.folder, caches, interrupt)
                if status is not None:
                    return _ended(status, store.folder, files=summary_of(changes_in(store.folder)))
        with _store(None, keep) as store:
            return _run_in_overlay(work, store, allowed_folders(caches), interrupt)


@contextmanager
def _store(parent: str | None, keep: str | None) -> Iterator[Store]:
    """A store for one process; at its end the files in it that are to be kept are."""
    store = Store.create(parent=parent)
    try:
        (Path(store.folder) / _ANSWER).mkdir()
        try:
            yield store
        finally:
            if keep is not None:
                store.not_kept += keep_changes(changes_in(store.folder), keep, store=store.folder)
    finally:
        store.close(keep=keep)
        for text in store.not_kept:
            print(f"neusight: --keep-writes {keep} could not keep {text}", file=sys.stderr)


def _ended(status: int, folder: str, **said: Any) -> ProcessEnd[Any]:
    """What came of a process: its answer in a tuple, the exception that was raised, why there is
    neither in words, or nothing."""
    try:
        answer = decoded(Path(folder, _ANSWER, _ANSWER).read_bytes())
    except FileNotFoundError:
        failure, exit_code = text_of_end(os.waitstatus_to_exitcode(status))
        return ProcessEnd(None, failure=failure, exit_code=exit_code, **said)
    if isinstance(answer, BaseException):
        raise answer
    if isinstance(answer, str):
        return ProcessEnd(None, failure=answer, exit_code=ExitCode.JUDGED, **said)
    return ProcessEnd(answer[0], **said)


def files_text(mode: str, *, is_guarded: bool) -> str:
    """What keeps the user's files as they are where what a program wrote was kept away by `mode`,
    a value of the recording's option."""
    if mode == "view":
        return _VIEW_WORDS
    if not is_guarded:
        return f"{_OVERLAY_ALONE}: the kernel helps the command `neusight` only"
    refusal, why = why_no_fallback(), why_no_view()
    words = f"{_OVERLAY_ALONE}: {refusal}" if refusal else _FALLBACK_WORDS
    return f"{words}; no copy-on-write view: {why}" if why else words


def why_no_fallback() -> str:
    """Why the kernel does not help where it gives no view; empty where it does."""
    why = why_unsupervised()
    unsupervised = f"the kernel lets no process supervise another: {why}" if why else ""
    return why_no_landlock() or unsupervised


def why_no_view() -> str:
    """Why a program gets no copy-on-write view of the file system here; empty where it does."""
    if os.environ.get(FILES_VARIABLE) == "overlay":
        return f"{FILES_VARIABLE} says so"
    refusals = []
    for parent in _PARENTS:
        with _store(parent, None) as store:
            refusals.append(refusal_of(partial(enter_view, store.folder, [])))
        if not refusals[-1]:
            return ""
    return refusals[0]


def _run_in_view(
    work: Callable[[Store | None], object], folder: str, caches: list[str], interrupt: Any
) -> int | None:
    """Status of the process; None where it could not have a view of its own."""
    refusal = Path(folder, _REFUSAL)

    def run() -> None:
        with refusal.open("w") as file:  # before the view: it is read outside
            try:
                enter_view(folder, [f"{folder}/{_ANSWER}", *caches])
            except OSError as error:
                file.write(error.strerror or str(error))
                return
        _answer(lambda: work(None), folder)

    status = _run_child(run, interrupt)
    return None if refusal.exists() and refusal.stat().st_size else status


def _run_in_overlay(
    work: Callable[[Store | None], object], store: Store, allowed: list[str], interrupt: Any
) -> ProcessEnd[Any]:
    """Its end where the kernel keeps the process from writing and this one does it instead, or,
    where it can be asked to do neither, an overlay in the process alone."""
    folder = store.folder
    with _temporary_folder(folder) as temporary:
        supervisor = Supervisor(folder, [temporary, *allowed])

        def run() -> None:
            tempfile.tempdir = os.environ["TMPDIR"] = temporary
            own = None
            if is_available() and supervisor.begin():
                restrict_writes([folder, *allowed])
                reopen_inherited(folder)
                install_retries(Patches())
            else:
                own = Store(folder)
            _answer(lambda: work(own), folder)

        status = _run_child(run, interrupt, supervisor)
        found = (one for one in store.changes() if not is_of_no_account(one.path))
        files = summary_of(found) if supervisor.listener is not None else ""
        refused = supervisor.summary_line()
        return _ended(status, folder, files=files, refused=refused, has_view=False)


@contextmanager
def _temporary_folder(store: str) -> Iterator[str]:
    """A folder in the store that the script takes for the system's temporary one, by a short name:
    multiprocessing makes sockets in it, whose paths have 108 bytes at most."""
    folder, link = Path(store) / _TEMPORARY, Path(_SHORT_PARENT) / Path(store).name
    folder.mkdir()
    shortest = folder
    if len(str(folder)) > _LONGEST_TEMPORARY:
        with suppress(OSError):
            link.symlink_to(folder)
            shortest = link
    try:
        yield str(shortest)
    finally:
        if shortest is link:
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


# -- the parent ----------------------------------------------------------------------------------


def _run_child(
    work: Callable[[], None], interrupt: Any, supervisor: Supervisor | None = None
) -> int:
    """Forks, and supervises the child until it has ended; its status."""
    for stream in filter(None, (sys.stdout, sys.stderr)):
        stream.flush()
    signals = _Signals(is_supervised=supervisor is not None)
    # Ctrl-C is the child's alone (the terminal signals both).
    handlers = {
        **dict.fromkeys(ENDING_SIGNALS, signals.terminate),
        signal.SIGINT: signals.interrupt,
    }
    with handled_by(handlers):
        parent = os.getpid()
        # What comes before the child has handlers of its own comes to it afterwards.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, [*ENDING_SIGNALS, RELAY])
        child = fork()
        if child == 0:
            ends = [one for one in _ENDING_SIGNALS if signal.getsignal(one) is not signal.SIG_IGN]
            own = {**dict.fromkeys(ends, signal.SIG_DFL), signal.SIGINT: interrupt}
            end_after(work, parent=parent, handlers=own, mask=mask)
        signals.child = child
        status: int | None = None
        try:
            signals.send_interrupt(child)
            signals.send_termination()
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            if supervisor is not None:
                _serve_until_end(supervisor, signals)
            _, status = os.waitpid(child, 0)
        finally:
            signals.child = 0
            if status is None:
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
    if signals.num_terminations:
        raise Terminated
    return status


def _serve_until_end(supervisor: Supervisor, signals: _Signals) -> None:
    poll, ended = select.poll(), os.pidfd_open(signals.child)
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    try:
        poll.register(ended, select.POLLIN)
        supervisor.connect()
        if supervisor.listener is not None:
            poll.register(supervisor.listener, select.POLLIN)
        while True:
            is_waiting = bool(supervisor.waiting) or signals.is_interrupted
            events = poll.poll(_AGAIN_MS if is_waiting else None)
            # A signal would end an answer half-way, and the call would return nonsense.
            signal.pthread_sigmask(signal.SIG_BLOCK, [*ENDING_SIGNALS, RELAY])
            supervisor.serve_waiting()
            if not events:
                signals.send_interrupt(signals.child)
            for number, event in events:
                if number == ended:
                    return
                if event & select.POLLIN:
                    supervisor.serve(signals.send_interrupt)
                else:  # all processes that it held for have ended
                    poll.unregister(number)
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        os.close(ended)
        supervisor.close()


@dataclass
class _Signals:
    """What came while the child ran, and is passed on. The terminal interrupts the child too, a
    program may have interrupted this process alone: the child knows which."""

    child: int = 0
    is_supervised: bool = False
    is_interrupted: bool = False
    num_terminations: int = 0

    def interrupt(self, number: int, frame: FrameType | None) -> None:
        """Signals the child, or has it signalled when it is answered."""
        self.is_interrupted = True
        if not self.is_supervised:
            self.send_interrupt(self.child)

    def send_interrupt(self, process: int) -> None:
        """Where the child waits for an answer, it gets an interrupt after that: before the
        call was received, it would end the call (EINTR), which no program expects of a file."""
        if self.is_interrupted and self.child and process == self.child:
            self.is_interrupted = False
            self._send(RELAY)

    def terminate(self, number: int, frame: FrameType | None) -> None:
        """Signals the child, which may clean up; the second time it is ended at once."""
        self.num_terminations += 1
        self.send_termination()

    def send_termination(self) -> None:
        """What came of that."""
        if self.child and self.num_terminations:
            self._send(signal.SIGTERM if self.num_terminations == 1 else signal.SIGKILL)

    def _send(self, number: int) -> None:
        with suppress(ProcessLookupError):
            os.kill(self.child, number)


@contextmanager
def ending_on_sigterm() -> Iterator[None]:
    """While open, SIGTERM ends the processes that were started, then raises `Terminated`, so that
    nothing is left behind. For a command line's main thread."""

    is_ending = False

    def end(number: int, frame: FrameType | None) -> None:
        nonlocal is_ending
        if _would_be_lost(frame):
            threading.Timer(_AGAIN_MS / 1e3, os.kill, (os.getpid(), number)).start()
            return
        for child in _children():
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGTERM)
        if not is_ending:  # else it is on its way out
            is_ending = True
            raise Terminated

    with handled_by(dict.fromkeys(_ENDING_SIGNALS, end)):
        yield


def _would_be_lost(frame: FrameType | None) -> bool:
    """Whether Python would make something else of what is raised here: in a destructor, where a
    class gets its attributes (a RuntimeError until Python 3.12), and in a ZipFile of which the
    constructor is left (its destructor then lacks attributes)."""
    while frame is not None:
        is_special = frame.f_code.co_name in ("__del__", "__set_name__")
        if is_special or frame.f_globals.get("__name__") == "zipfile":
            return True
        frame = frame.f_back
    return False


def _children() -> list[int]:
    """The processes that this one started and that are still there."""
    found: list[int] = []
    for path in Path("/proc/self/task").glob("*/children"):
        with suppress(OSError):
            found += map(int, path.read_text().split())
    return found


# -- the child -----------------------------------------------------------------------------------


def _answer(work: Callable[[], object], folder: str) -> None:
    """Works, and passes on what came of it. What a script forked off and let run to the end has
    nothing to report."""
    own, opened, renamed = os.getpid(), os.open, os.rename  # the true functions
    try:
        data = encoded((work(),))
        ignore_interrupts()
    except BaseException as error:
        ignore_interrupts()
        if os.getpid() != own:
            raise
        data = encoded_error(error)
    if os.getpid() != own:
        return
    gc.collect()  # files that the script left open are written to their ends
    place = f"{folder}/{_ANSWER}/{_ANSWER}"

    def write(data: bytes) -> None:
        with os.fdopen(opened(f"{place}.part", _NEW_FILE, 0o600), "wb") as file:
            file.write(data)

    try:
        write(data)
    except OSError as error:
        write(encoded(f"{_TOO_LARGE}: {error.strerror}"))
    renamed(f"{place}.part", place)
