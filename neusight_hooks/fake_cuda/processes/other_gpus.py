"""Records one block of a program on several GPUs at once: the process is forked for each."""

from __future__ import annotations

import os
import sys
import tempfile
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import IO, NoReturn

from neusight.predictors.errors import RecordingError
from neusight.predictors.gpu import GPU
from neusight.recording.recording import Recording
from neusight.recording.saving import load_recording, recording_bytes


@dataclass(frozen=True)
class _ForkedRun:
    gpu: GPU
    process: int
    file: IO[bytes]


class OtherGPUs:
    """Forked processes that run the rest of a block as if another GPU were there, without output,
    and leave what they record. They end where the block does."""

    def __init__(self) -> None:
        self._children: list[_ForkedRun] = []
        self._file: IO[bytes] | None = None

    def start(self, gpus: Sequence[GPU]) -> GPU | None:
        """Forks a process for each; in such a process, returns the GPU that it is for, else None.
        Torch is imported and its threads are at rest."""
        for gpu in gpus:
            file = tempfile.TemporaryFile()  # noqa: SIM115  (open until it was read)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)  # of threads; see below
                process = os.fork()
            if process == 0:
                self._children, self._file = [], file
                _be_quiet()
                return gpu
            self._children.append(_ForkedRun(gpu, process, file))
        return None

    @property
    def is_child(self) -> bool:
        return self._file is not None

    def report(self, recording: Recording) -> NoReturn:
        """Ends such a process, which has left the block."""
        assert self._file is not None
        status = 1
        try:
            self._file.write(recording_bytes(recording))
            self._file.flush()
            status = 0
        finally:
            os._exit(status)

    def give_up(self) -> None:
        """The block cannot be entered: such a process ends here."""
        if self.is_child:
            os._exit(1)

    def collect(self) -> tuple[list[tuple[GPU, Recording]], list[str]]:
        """Waits for the processes: what they recorded by GPU, and a warning for each that
        left nothing."""
        found: list[tuple[GPU, Recording]] = []
        missing: list[str] = []
        children, self._children = self._children, []
        for child in children:
            _, status = os.waitpid(child.process, 0)
            code = os.waitstatus_to_exitcode(status)
            try:
                recording, _ = load_recording(f"/dev/fd/{child.file.fileno()}")
                found.append((child.gpu, recording))
            except RecordingError:
                end = f"signal {-code}" if code < 0 else f"exit code {code}"
                missing.append(
                    f"the block was not recorded on {child.gpu.name}: its process ended with {end}"
                )
            finally:
                child.file.close()
        return found, missing


def _be_quiet() -> None:
    """What the program prints, the process above prints; threads of a pool are not forked."""
    import torch

    torch.set_num_threads(1)
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.dup2(null, 2)
    sys.stdout = sys.stderr = os.fdopen(null, "w", encoding="utf-8")
