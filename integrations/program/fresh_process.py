"""Records a program in a fresh process, isolated from this one."""

from __future__ import annotations

import pickle
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from neusight.exit_codes import ExitCode
from neusight.integrations.program.guard.forking import text_of_end
from neusight.integrations.program.guard.guarded_process import (
    Terminated,
    ending_on_sigterm,
    is_guarded,
)
from neusight.integrations.program.guard.results import decoded, encoded, encoded_error
from neusight.integrations.program.options import ProgramOptions
from neusight.integrations.program.program import Program
from neusight.integrations.program.progress.reporting import reporting_work
from neusight.integrations.program.recorded import Recorded
from neusight.integrations.program.recording import recorded
from neusight.integrations.program.runner import Outcome
from neusight.integrations.program.standard_streams import settle_standard_streams
from neusight.interrupts import end_at_once, raises_from_here

if TYPE_CHECKING:
    from neusight.predictors.gpu import GPU

#: What the fresh process runs, with the folder of request and answer as its argument.
_START = "from neusight.integrations.program.fresh_process import main; raise SystemExit(main())"

#: Seconds that a process gets to clean up when it is no longer wanted.
_END_TIMEOUT_S = 5.0

#: Seconds after which a wait looks up.
_MOMENT_S = 0.5


class FreshProcess:
    """A process that has begun to record a program; as a context manager it is gone at the end.

    `folder` is where it works (default: here), `environment` what it finds there (default: this
    one's). What the program prints is shown, or kept from view.
    """

    def __init__(
        self,
        program: Program,
        gpu: GPU,
        options: ProgramOptions,
        *,
        folder: Path | None = None,
        environment: Mapping[str, str] | None = None,
        is_shown: bool = False,
    ) -> None:
        self._undo = ExitStack()
        place = self._undo.enter_context(tempfile.TemporaryDirectory(prefix="neusight-"))
        self._answer, self._errors = Path(place, "answer"), Path(place, "errors")
        Path(place, "request").write_bytes(pickle.dumps((program, gpu, options)))
        output: dict[str, Any] = {}
        if not is_shown:
            errors = self._undo.enter_context(self._errors.open("wb"))
            output = {"stdout": subprocess.DEVNULL, "stderr": errors}
        self._process = subprocess.Popen(
            [sys.executable, "-c", _START, place], cwd=folder, env=environment, **output
        )
        self._undo.callback(self._end)

    def __enter__(self) -> FreshProcess:
        return self

    def __exit__(self, *error: object) -> None:
        self._undo.close()

    @property
    def has_ended(self) -> bool:
        """Whether the process has ended."""
        return self._process.poll() is not None

    def await_end(self, while_waiting: Callable[[], object]) -> None:
        """Waits for the process to end, and calls `while_waiting` meanwhile."""
        raises_from_here()
        while not self.has_ended:
            while_waiting()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(_MOMENT_S)

    def result(self, *, timeout_s: float | None = None) -> Recorded:
        """What it recorded, when it has; what it raised is raised here. A process that ends without
        a word, or not within the time, is an outcome that is lost."""
        raises_from_here()
        try:
            code = self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            late = f"it did not end within {timeout_s:.0f} s"
            return Recorded(Outcome(failure=late, exit_code=1, is_lost=True))
        if not self._answer.exists():
            failure, exit_code = text_of_end(code)
            failure = self._last_output() or failure
            return Recorded(Outcome(failure=failure, exit_code=exit_code, is_lost=True))
        answer = decoded(self._answer.read_bytes())
        if isinstance(answer, BaseException):
            raise answer
        assert isinstance(answer, Recorded)
        if not answer.outcome.failure:
            return answer
        stated = self._last_output() or answer.outcome.failure
        return replace(answer, outcome=replace(answer.outcome, failure=stated))

    def _last_output(self) -> str:
        """The last line that the program wrote to standard error, where that is kept from view."""
        if not self._errors.exists():
            return ""
        lines = self._errors.read_text(errors="replace").strip().splitlines()
        return lines[-1].strip().removeprefix("neusight: ") if lines else ""

    def _end(self) -> None:
        if self.has_ended:
            return
        self._process.terminate()
        try:
            self._process.wait(_END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def recorded_apart(
    program: Program,
    gpu: GPU,
    options: ProgramOptions,
    *,
    folder: Path | None = None,
    is_shown: bool = False,
    timeout_s: float | None = None,
    doing: str = "",
) -> Recorded:
    """As `recorded`, in a fresh process: it finds nothing that another program left behind. What it
    is for, in words, standard error is reported while it takes long."""
    with FreshProcess(program, gpu, options, folder=folder, is_shown=is_shown) as process:
        if doing:
            with reporting_work(lambda: doing) as show:
                process.await_end(show)
        return process.result(timeout_s=timeout_s)


def main() -> int:
    """What the fresh process does: reads the request, and writes the answer beside it."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, end_at_once)
    settle_standard_streams()
    place = Path(sys.argv[1])
    program, gpu, options = pickle.loads((place / "request").read_bytes())
    options = replace(
        options,
        is_guarded=is_guarded(is_command_line=True, allow_writes=options.allow_writes),
    )
    try:
        with ending_on_sigterm():
            answer = encoded(recorded(program, gpu, options))
    except Terminated:
        return ExitCode.TERMINATED
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED
    except Exception as error:
        answer = encoded_error(error)
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # nothing is left to interrupt
    (place / "answer").write_bytes(answer)
    return ExitCode.OK
