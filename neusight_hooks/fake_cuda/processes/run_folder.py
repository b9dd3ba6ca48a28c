"""The folder that the processes of one forecast share: who takes part, and what each recorded."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pickle
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from neusight.recording.recording import Recording

#: Which process it is: those that lead to it, each by how many its parent started before it. The
#: program's own is (0,), the first that it starts (0, 0).
Number = tuple[int, ...]

_STARTED, _TAKES_PART, _RESULT, _FAILURE = "started", "process", "result", "failure"
_STEADY, _GOES_ON = "steady", "goes-on"
_SESSION, _STOPPED = "session", "stopped"


@dataclass(frozen=True)
class StartedProcess:
    """A process as the one that starts it names it: `name` is its function or program, `line` the
    program's line that starts it ("" where that is not known)."""

    number: Number
    name: str
    line: str = ""

    @property
    def text(self) -> str:
        """It, in a sentence.

        >>> StartedProcess((0, 0), "train", "main.py:8").text
        'train, a process that main.py:8 starts,'
        """
        origin = f"a process that {self.line} starts" if self.line else "a process of the program"
        return f"{self.name}, {origin},"

    @property
    def as_text(self) -> str:
        return json.dumps([self.number, self.name, self.line])

    @classmethod
    def from_text(cls, text: str) -> StartedProcess:
        number, name, line = json.loads(text)
        return cls(tuple(number), name, line)


@dataclass(frozen=True)
class ProcessResult:
    """What a process recorded, and its ops on the GPU; no recording where it ran none. `is_steady`
    where its steps are, and `seconds` is how long they took to be."""

    process: StartedProcess
    recording: Recording | None = None
    num_ops: int = 0
    is_steady: bool = False
    seconds: float = 0.0


class RunFolder:
    """One folder, named to each process by the one that starts it."""

    def __init__(self, path: str) -> None:
        self.path = path

    @property
    def is_there(self) -> bool:
        """Whether the forecast is still open."""
        return Path(self.path).is_dir()

    def _file(self, name: str) -> Path:
        return Path(self.path, name)

    def _of(self, number: Number, kind: str) -> Path:
        return self._file(f"{'.'.join(map(str, number))}-{kind}")

    def _all(self, kind: str) -> dict[Number, Path]:
        """The files of a kind, by the processes' numbers, in their order."""
        found = {
            tuple(map(int, path.name.partition("-")[0].split("."))): path
            for path in Path(self.path).glob(f"*-{kind}")
        }
        return dict(sorted(found.items()))

    def _write(self, path: Path, value: object) -> None:
        """Whole or not at all: others read it meanwhile."""
        new = path.with_name(f"new-{os.getpid()}")
        new.write_bytes(pickle.dumps(value, pickle.HIGHEST_PROTOCOL))
        new.replace(path)

    # -- how to take part -------------------------------------------------------------------------

    def put_session(self, data: bytes) -> None:
        """With what a process opens its own session."""
        self._file(_SESSION).write_bytes(data)

    def session(self) -> bytes:
        return self._file(_SESSION).read_bytes()

    def record_started(self, process: StartedProcess) -> None:
        """Another program was started that may be a Python."""
        self._write(self._of(process.number, _STARTED), process)

    def begin(self, process: StartedProcess) -> tuple[StartedProcess, int]:
        """This process takes part until the descriptor is closed, by its end at the latest. What
        was started as one process may be a shell that starts several: each gets a number."""
        number, taken = process.number, 0
        while True:
            with contextlib.suppress(FileExistsError):
                descriptor = os.open(
                    self._of(number, _TAKES_PART),
                    os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC,
                    0o600,
                )
                break
            number, taken = (*process.number, taken), taken + 1
        fcntl.lockf(descriptor, fcntl.LOCK_EX)
        begun = StartedProcess(number, process.name, process.line)
        os.write(descriptor, json.dumps([os.getpid(), begun.name, begun.line]).encode())
        return begun, descriptor

    # -- what became of them ----------------------------------------------------------------------

    def put(self, result: ProcessResult) -> None:
        """What this process recorded so far; nothing where the forecast is over."""
        number = result.process.number
        with contextlib.suppress(FileNotFoundError):
            self._write(self._of(number, _RESULT), result)
            if result.is_steady:
                self._write(self._of(number, _STEADY), (result.num_ops, result.seconds))

    def steady(self) -> dict[Number, tuple[int, float]]:
        """The processes whose steps are steady: their ops on the GPU, and the seconds that they
        took to be."""
        return {n: pickle.loads(path.read_bytes()) for n, path in self._all(_STEADY).items()}

    def results(self) -> list[ProcessResult]:
        """What is known by now, in the order of the processes' numbers."""
        return [pickle.loads(path.read_bytes()) for path in self._all(_RESULT).values()]

    def result_time(self, number: Number) -> int:
        """When the process put its result, in nanoseconds of its file; 0 where there is none."""
        try:
            return self._of(number, _RESULT).stat().st_mtime_ns
        except FileNotFoundError:
            return 0

    def let_go_on(self, number: Number) -> None:
        """A process whose steps are steady is still needed."""
        self._of(number, _GOES_ON).touch()

    def may_go_on(self, number: Number) -> bool:
        """Whether it is, or the forecast is over."""
        return self._of(number, _GOES_ON).exists() or not self.is_there

    def put_failure(self, process: StartedProcess, text: str) -> None:
        """How a process failed, in words. What is known of it first says most."""
        path = self._of(process.number, _FAILURE)
        with contextlib.suppress(FileNotFoundError):
            if not path.exists():
                self._write(path, (process, text))

    def failures(self) -> list[tuple[StartedProcess, str]]:
        """The processes that failed, and how, in the order of their numbers."""
        return [pickle.loads(path.read_bytes()) for path in self._all(_FAILURE).values()]

    def others(self) -> list[StartedProcess]:
        """Programs that were started and never took part, nor anything that they started."""
        present = list(self._all(_TAKES_PART))
        return [
            pickle.loads(path.read_bytes())
            for number, path in self._all(_STARTED).items()
            if not any(other[: len(number)] == number for other in present)
        ]

    def lost(self) -> list[StartedProcess]:
        """Those that took part, have ended, and reported nothing."""
        living = dict(self.living())
        reported = {*self._all(_RESULT), *self._all(_FAILURE)}
        found = []
        for number, path in self._all(_TAKES_PART).items():
            if number not in living and number not in reported:
                _, name, line = json.loads(path.read_text())
                found.append(StartedProcess(number, name, line))
        return found

    def living(self) -> Iterator[tuple[Number, int]]:
        """Those that take part and have not ended, and their process ids."""
        for number, path in self._all(_TAKES_PART).items():
            pid = _holder(path)
            if pid:
                yield number, pid

    # -- the end ----------------------------------------------------------------------------------

    def stop(self) -> None:
        """Enough is recorded: processes that begin from now on end at once."""
        self._file(_STOPPED).touch()

    @property
    def is_stopped(self) -> bool:
        return self._file(_STOPPED).exists()


def _holder(path: Path) -> int:
    """The id of the process that has locked a file; 0 where none has."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return 0
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        text = os.pread(descriptor, 2**12, 0)
        return int(json.loads(text)[0]) if text else 0
    finally:
        os.close(descriptor)
    return 0
