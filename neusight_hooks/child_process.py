"""A Python that a recorded program starts: it has the same GPU, and reports what it records."""

from __future__ import annotations

import atexit
import os
import pickle
import sys
from types import TracebackType
from typing import TYPE_CHECKING, Any

from neusight.fake_cuda.import_hooks import when_imported
from neusight.fake_cuda.patching import Patches
from neusight.fake_cuda.processes.processes import Processes, own_process
from neusight.fake_cuda.processes.starting import install_processes

if TYPE_CHECKING:
    from neusight.session import Session

#: Parts of the commands of processes that serve multiprocessing and joblib and run no program.
_SERVERS = ("resource_tracker", "semaphore_tracker")
#: What begins the command of a process that forks those that do the work.
_FORK_SERVER = "forkserver"


def join() -> None:
    """This process takes part in the forecast that it was started in, if it was in one."""
    found = own_process()
    words = sys.orig_argv[1:]
    if found is None or _is_neusight(words) or any(name in " ".join(words) for name in _SERVERS):
        return
    folder, process = found
    processes = Processes(folder)
    options, store = pickle.loads(folder.session())
    child = _Child(processes, options, store)
    child.begin()
    if not any(_FORK_SERVER in word for word in words):
        processes.become(process)
        _report_at_end(processes, child)


def _is_neusight(words: list[str]) -> bool:
    """Whether the command is neusight's own, which opens forecasts itself."""
    return "neusight" in (*words[1:2], os.path.basename(words[0] if words else ""))  # noqa: PTH119


class _Child:
    """What this process does to take part, from its start to its end."""

    def __init__(self, processes: Processes, options: Any, store: str | None) -> None:
        self._processes, self._options, self._store = processes, options, store
        self._files = Patches()
        self._session: Session | None = None

    def begin(self) -> None:
        """Uses the files of the run at once, and the GPU as soon as torch is imported."""
        if self._store is not None:
            from neusight.fake_cuda.overlay.spawned import attach

            self._files = attach(self._store)
        install_processes(Patches(), self._processes)
        when_imported(Patches(), "torch", lambda torch: self._open())

    def _open(self) -> None:
        from neusight.fake_cuda.store.store import Store
        from neusight.session import Session

        self._files.restore()  # those of the session take their place
        store = None if self._store is None else Store(self._store)
        self._session = Session(
            self._options, store=store, caller=join.__code__, processes=self._processes
        )
        self._session.open()

    def end(self) -> None:
        """Reports what was recorded, and leaves the forecast."""
        self._processes.report()
        if self._session is not None:
            self._session.close()


def _report_at_end(processes: Processes, child: _Child) -> None:
    """For a program of its own; multiprocessing ends the processes that it starts itself."""
    shown = sys.excepthook

    def show_and_report(
        kind: type[BaseException], error: BaseException, traceback: TracebackType | None
    ) -> None:
        from neusight.failure import failure_text

        processes.fail(failure_text(error) or kind.__name__)
        shown(kind, error, traceback)

    sys.excepthook = show_and_report
    atexit.register(child.end)
