"""The processes of one forecast, as one of them sees them: what it starts, and what it reports."""

from __future__ import annotations

import _thread
import contextlib
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import neusight
from neusight.fake_cuda.processes.run_folder import (
    Number,
    ProcessResult,
    RunFolder,
    StartedProcess,
)
from neusight.recording.tape import EnoughSteps

if TYPE_CHECKING:
    from types import FrameType

    from neusight.recording.recorder import Recorder
    from neusight.recording.recording import Recording

#: What asks a process to report what it recorded, and to go on.
_REPORT = getattr(signal, "SIGRTMIN", signal.SIGTERM) + 1

#: Variables of the environment by which a process takes part.
_FOLDER, _PROCESS, _PREFIX = "NEUSIGHT_RUN", "NEUSIGHT_PROCESS", "NEUSIGHT_PREFIX"
#: What Python finds first there is a folder of ours.
_PATHS = "PYTHONPATH"
_STARTUP = str(Path(neusight.__file__).parent / "startup")

#: Processes of a kind that are named.
_SHOWN = 3
_LOST = " was not forecast: it was killed before it could report what it recorded"
_NO_PART = (
    " was not forecast: what it does on a GPU is in no figure; forecast its program by itself, or "
    "call it in this process"
)

#: Seconds that a process gets to report what it recorded: it may be inside a C library.
_REPORT_S = 10.0
_POLL_S = 0.02
#: How often the program's own process looks whether another one's steps are steady.
_WATCH_S = 0.05

# The true ones: a program's clock shows the forecast.
_sleep, _monotonic = time.sleep, time.monotonic


class Processes:
    """The processes of a forecast. The program's own makes the folder that they share when it
    starts another one, and collects what they recorded; each of the others reports to it."""

    def __init__(self, folder: RunFolder | None = None, process: StartedProcess | None = None):
        self.folder = folder
        #: This one; None in a server that forks others and in the program's own.
        self.process: StartedProcess | None = process
        self.recorder: Recorder | None = None
        #: What failed of those that this one collected from, and what they recorded.
        self.failures: list[tuple[StartedProcess, str]] = []
        self.results: list[ProcessResult] = []
        self.others: list[StartedProcess] = []
        self.lost: list[StartedProcess] = []
        self._owner = os.getpid() if folder is None else 0
        self._recording: Callable[[], Recording] | None = None
        self._session: Callable[[], bytes] = bytes
        #: Whether it was reported that a pool of the program's hangs.
        self.is_hanging = False
        self._parent_folder: str | None = None
        #: Raises an error in the program; where no session is open, what starts a process does.
        self.end: Callable[[BaseException], None] = lambda error: None
        #: Called before another process is started.
        self.before_start: Callable[[], None] = lambda: None
        self._ends_early = False
        #: Whether the program was ended since the steps of another process are steady.
        self.is_stopped = False
        self._steady_since: dict[Number, float] = {}
        self._num_started = self._opened_in = 0
        self._is_reported = self._is_reporting = False
        self._began = _monotonic()

    def open(
        self,
        recorder: Recorder,
        recording: Callable[[], Recording],
        session: Callable[[], bytes],
        parent_folder: str | None,
        *,
        end: Callable[[BaseException], None],
        ends_early: bool,
    ) -> None:
        """The session of this process is open: it records by `recorder`, and others open theirs
        with what `session` returns. The folder is made in `parent_folder`. `end` raises an error
        in the program, which with `ends_early` is ended where the steps of another are steady."""
        self.recorder, self._recording, self._session = recorder, recording, session
        self._parent_folder, self.end, self._ends_early = parent_folder, end, ends_early
        self._opened_in = os.getpid()
        if self.process is not None:
            recorder.cutter.on_enough.subscribe(self._report_steady)

    # -- starting others --------------------------------------------------------------------------

    def started(self, name: str, line: str) -> StartedProcess:
        """The next process that this one starts; from now on the environment names it."""
        self._make_folder()
        self.before_start()
        number = (0,) if self.process is None else self.process.number
        found = StartedProcess((*number, self._num_started), name, line)
        self._num_started += 1
        os.environ.update(self.variables(found, os.environ))
        return found

    def _make_folder(self) -> None:
        if self.folder is None:
            path = tempfile.mkdtemp(prefix="neusight-run-", dir=self._parent_folder)
            self.folder = RunFolder(path)
            self.folder.put_session(self._session())
            if self._ends_early:
                _thread.start_new_thread(self._watch, (self.folder,))

    def _watch(self, folder: RunFolder) -> None:
        """Ends the program, and what it started, once enough is recorded of one of those."""
        with contextlib.suppress(FileNotFoundError):  # the folder goes with the session
            while folder.is_there:
                _sleep(_WATCH_S)
                if self.is_stopped or self._is_enough(folder):
                    self.is_stopped = True
                    folder.stop()
                    self.end(EnoughSteps())
                    _sleep(_WATCH_S)
                    for _, pid in folder.living():
                        with contextlib.suppress(ProcessLookupError):
                            os.kill(pid, signal.SIGKILL)

    def _is_enough(self, folder: RunFolder) -> bool:
        """Whether the first process that is steady does more than this one, and those that were
        started before it had as long."""
        for number, (num_ops, seconds) in folder.steady().items():
            since = self._steady_since.setdefault(number, _monotonic())
            earlier = [one for one, _ in folder.living() if one < number[: len(one)]]
            is_late = _monotonic() - since > max(seconds, _REPORT_S)
            if num_ops >= self._num_ops and (is_late or not earlier):
                return True
            folder.let_go_on(number)
        return False

    def variables(self, process: StartedProcess, environment: Mapping[str, str]) -> dict[str, str]:
        """What is to be set in the environment of a process."""
        assert self.folder is not None
        others = _other_paths(environment)
        return {
            _FOLDER: self.folder.path,
            _PROCESS: process.as_text,
            _PREFIX: sys.prefix,
            _PATHS: f"{_STARTUP}{os.pathsep}{others}" if others else _STARTUP,
        }

    # -- being one --------------------------------------------------------------------------------

    def become(self, process: StartedProcess) -> None:
        """This process takes part as that one from now on, and reports when it is asked to."""
        assert self.folder is not None
        if self.folder.is_stopped:
            os._exit(0)
        try:
            self.process, _ = self.folder.begin(process)
        except FileNotFoundError:  # the forecast is over
            return
        self._is_reported = self._is_reporting = False
        self._num_started, self._began = 0, _monotonic()
        if self.recorder is not None:
            devices = self.recorder.devices
            if devices.is_used and os.getpid() != self._opened_in:
                devices.is_forked = True
                self.recorder.before_op.subscribe(lambda *call: devices.start())
            self.recorder.cutter.on_enough.subscribe(self._report_steady)
        if threading.current_thread() is threading.main_thread():
            signal.signal(_REPORT, self._on_report_signal)
            if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
                signal.signal(signal.SIGTERM, self._on_report_signal)

    @property
    def _num_ops(self) -> int:
        if self.recorder is None or self.recorder.devices.is_forked:
            return 0
        return self.recorder.tape.gpu_ops

    def _on_report_signal(self, number: int, frame: FrameType | None) -> None:
        """The handler of _REPORT, and of SIGTERM, which ends this process then."""
        is_inside = self.recorder is not None and self.recorder.mode.is_inside
        if is_inside or self._is_reporting:
            _thread.start_new_thread(_again, (number,))
            return
        with contextlib.suppress(Exception):
            self.report()
        if number == signal.SIGTERM:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)

    def _report_steady(self) -> None:
        """Waits until the program's own process has ended it, or needs what it does."""
        self.report(is_steady=True)
        end = _monotonic() + _REPORT_S
        while self.folder is not None and self.process is not None and _monotonic() < end:
            if self.folder.may_go_on(self.process.number):
                return
            _sleep(_POLL_S)

    def report(self, *, is_steady: bool = False) -> None:
        """Puts what this process recorded, once: where its steps are steady, the forecast ends, or
        it ends itself."""
        if self.process is None or self.folder is None or self._is_reported:
            return
        self._is_reporting = True
        try:
            self._put_result(self.folder, self.process, is_steady)
            self._is_reported = True
        finally:
            self._is_reporting = False

    def _put_result(self, folder: RunFolder, process: StartedProcess, is_steady: bool) -> None:
        result = ProcessResult(
            process,
            num_ops=self._num_ops,
            is_steady=is_steady,
            seconds=_monotonic() - self._began,
        )
        if result.num_ops:
            assert self._recording is not None and self.recorder is not None
            if not is_steady:
                self.recorder.cutter.finish()
            result = replace(result, recording=self._recording())
        folder.put(result)

    def fail(self, text: str) -> None:
        if self.process is not None and self.folder is not None:
            self.folder.put_failure(self.process, text)

    # -- what became of them ----------------------------------------------------------------------

    def collect(self) -> None:
        """What the others recorded until now; for the program's own process, where it ends."""
        if self.folder is None or self._owner != os.getpid():
            return
        if not self.folder.is_stopped:
            self._await_reports(self.folder)
        self.results = [result for result in self.folder.results() if result.num_ops]
        self.failures = self.folder.failures()
        self.others, self.lost = self.folder.others(), self.folder.lost()
        kept = without_variables(os.environ)
        for name in set(os.environ) - set(kept):
            del os.environ[name]
        os.environ.update(kept)
        shutil.rmtree(self.folder.path, ignore_errors=True)

    def chosen(self, num_own_ops: int, *, ended_early: bool) -> ProcessResult | None:
        """The process that is forecast: the one with most ops on the GPU, the first of equals;
        where the program was ended as steps were steady, the first whose steps are. None where that
        is the program's own, which had these ops."""
        found = [result for result in self.results if result.recording is not None]
        if self.is_stopped:
            return next((result for result in found if result.is_steady), None)
        if ended_early and num_own_ops:
            return None
        best = max(found, key=lambda result: result.num_ops, default=None)
        return None if best is None or best.num_ops <= num_own_ops else best

    @property
    def failure(self) -> str:
        """How the first process that failed did, in words; "" where none failed."""
        return next((f"{process.text} failed: {why}" for process, why in self.failures), "")

    def notes(self, num_own_ops: int, chosen: ProcessResult | None) -> list[str]:
        """What the user should know of the other processes."""
        found = [f"{process.text} failed: {why}" for process, why in self.failures[:_SHOWN]]
        if chosen is not None:
            found.insert(0, f"the figures are those of {chosen.process.text[:-1]}")
        used = [one.process for one in self.results if one is not chosen]
        if used:
            count = "" if len(used) == 1 else f" and {len(used) - 1} more"
            found.append(
                f"{used[0].text} used the GPU as well{count}: what that takes is in no figure"
            )
        if self.is_stopped:
            return found
        if num_own_ops == 0 and not self.results:
            found += [process.text + _LOST for process in self.lost[:_SHOWN]]
        return found + [process.text + _NO_PART for process in self.others[:_SHOWN]]

    def _await_reports(self, folder: RunFolder) -> None:
        """Those that go on report what they recorded by now."""
        pending = {}
        for number, pid in folder.living():
            before = folder.result_time(number)
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, _REPORT)
                pending[number] = before
        end = _monotonic() + _REPORT_S
        while pending and _monotonic() < end:
            living = dict(folder.living())
            pending = {
                number: before
                for number, before in pending.items()
                if number in living and folder.result_time(number) == before
            }
            _sleep(_POLL_S if pending else 0.0)


def own_process() -> tuple[RunFolder, StartedProcess] | None:
    """The folder and the process that this one is started as; None where it is not forecast."""
    path, text = os.environ.get(_FOLDER), os.environ.get(_PROCESS)
    if path is None or text is None:
        return None
    folder = RunFolder(path)
    return (folder, StartedProcess.from_text(text)) if folder.is_there else None


def without_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment of a process that is to take no part."""
    kept = dict(environment)
    for name in (_FOLDER, _PROCESS, _PREFIX):
        kept.pop(name, None)
    if _STARTUP in kept.get(_PATHS, "").split(os.pathsep):
        kept[_PATHS] = _other_paths(environment)
        if not kept[_PATHS]:
            del kept[_PATHS]
    return kept


def _other_paths(environment: Mapping[str, str]) -> str:
    paths = environment.get(_PATHS, "").split(os.pathsep)
    return os.pathsep.join(path for path in paths if path != _STARTUP)


def _again(number: int) -> None:
    """Sends this process the signal once more, a moment later."""
    _sleep(_POLL_S)
    os.kill(os.getpid(), number)
