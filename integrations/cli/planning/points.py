"""What is known of a candidate on a GPU: its step, its rate and cost, its memory, or why not."""

from __future__ import annotations

import io
import os
import sys
import tempfile
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TextIO

from neusight.integrations.cli.hints import no_cuda_hint
from neusight.integrations.cli.planning.candidates import Candidate
from neusight.integrations.cli.planning.processes import LostWorker, in_processes, on_ray
from neusight.integrations.program.forecasting import ProgramForecast, forecast_program
from neusight.integrations.program.guard.guarded_process import is_guarded
from neusight.integrations.program.options import ProgramOptions
from neusight.integrations.program.runner import hide_gpus
from neusight.integrations.report.side_by_side import SideBySideRow, lay_side_by_side
from neusight.predictors.errors import NeusightError
from neusight.predictors.formatting import bytes_text
from neusight.predictors.gpu import GPU
from neusight.timeline.steady import steady_step_of

if TYPE_CHECKING:
    from neusight.forecast import Forecast

_US_PER_HOUR = 3600e6
_NS_PER_US = 1000
#: How the problem of a program begins that failed.
_FAILED = "failed: "


@dataclass(frozen=True)
class PlanRequest:
    """What is asked of each candidate: on which GPUs, recorded and priced how, at what prices an
    hour; `ranks` run side by side (None: one alone)."""

    gpus: tuple[GPU, ...]
    options: ProgramOptions
    prices: Mapping[str, float]
    ranks: tuple[int, ...] | None = None


@dataclass(frozen=True)
class PlanPoint:
    """A candidate on a GPU: a steady step of one rank, and the batch of all ranks and cost;
    `problem` says in a line why it is out, where it is."""

    candidate: Candidate
    gpu: str = ""
    row: SideBySideRow | None = None
    exposed_communication_us: float = 0.0
    problem: str = ""

    @property
    def title(self) -> str:
        """What was chosen, and for which GPU where that is known."""
        return f"{self.candidate.title} on {self.gpu}" if self.gpu else self.candidate.title

    @property
    def failure(self) -> str:
        """Why nothing is known of it; "" where it was forecast, whether it fits or not."""
        return "" if self.row is not None else self.problem.removeprefix(_FAILED)

    @property
    def gpu_hours(self) -> float | None:
        """GPU-hours of a step, all ranks."""
        row = self.row
        return None if row is None else row.world_size * row.latency_us / _US_PER_HOUR

    def to_json(self) -> dict[str, Any]:
        """The point as plain values."""
        return {
            "settings": dict(self.candidate.settings),
            "arguments": list(self.candidate.program.arguments),
            "gpu": self.gpu or None,
            "problem": self.problem or None,
            **({} if self.row is None else asdict(self.row)),
            "exposed_communication_us": None if self.row is None else self.exposed_communication_us,
            "gpu_hours_per_step": self.gpu_hours,
        }


def evaluated_in_turn(
    request: PlanRequest,
    candidates: Sequence[Candidate],
    *,
    at_once: int,
    ray: str | None = None,
    while_waiting: Callable[[], object],
) -> Generator[tuple[int, list[PlanPoint]], None, None]:
    """(position, points) of each candidate as it ends, so many at once, or on a Ray cluster."""
    work = partial(evaluated, request)
    if ray is not None:
        done = on_ray(work, candidates, address=ray, while_waiting=while_waiting)
    else:
        # What each candidate needs is there when their processes are forked.
        hide_gpus()
        import neusight.fake_cuda.session
        import neusight.session  # noqa: F401

        done = in_processes(work, candidates, at_once=at_once, while_waiting=while_waiting)
    for position, found in done:
        if isinstance(found, LostWorker):
            problem = f"{_FAILED}{found.failure}"
            yield position, [PlanPoint(candidates[position], problem=problem)]
        else:
            yield position, found


def evaluated(request: PlanRequest, candidate: Candidate) -> list[PlanPoint]:
    """A point for each GPU; one without a GPU where the program failed."""
    try:
        options = replace(
            request.options,
            quiet=True,
            rank=candidate.rank,
            ranks=request.ranks,
            is_guarded=is_guarded(is_command_line=True, allow_writes=request.options.allow_writes),
        )
        with _output_kept() as errors:
            first = forecast_program(candidate.program, request.gpus[0], options, is_apart=True)
            problem = _problem_of(first, errors, request)
        if problem:
            return [PlanPoint(candidate, problem=_first_line(problem))]
        others = [first.on(gpu).forecast for gpu in request.gpus[1:]]
        return _points(candidate, [first.forecast, *others], request.prices)
    except NeusightError as error:
        return [PlanPoint(candidate, problem=_first_line(str(error)))]


def _points(
    candidate: Candidate, forecasts: Sequence[Forecast], prices: Mapping[str, float]
) -> list[PlanPoint]:
    rows = lay_side_by_side(forecasts, prices).rows
    points = []
    for forecast, row in zip(forecasts, rows, strict=True):
        step = steady_step_of(forecast.timeline)
        exposed_ns = 0 if step is None else step.exposed_communication_ns
        problem = ""
        if row.memory_verdict == "does not fit":
            used, capacity = bytes_text(row.used_bytes or 0), bytes_text(row.capacity_bytes)
            problem = f"does not fit: {used} of {capacity}"
        points.append(PlanPoint(candidate, row.gpu, row, exposed_ns / _NS_PER_US, problem))
    return points


def _problem_of(first: ProgramForecast, errors: IO[bytes], request: PlanRequest) -> str:
    """Why there is nothing to compare; empty where there is."""
    outcome = first.outcome
    if outcome.failure:
        stated = _last_line(errors) if outcome.exit_code > 1 else ""
        return f"{_FAILED}{stated or outcome.failure}"
    if not first.forecast.recording.num_ops:
        own = ["run", *(word for gpu in request.gpus for word in ("--gpu", gpu.name))]
        return f"{_FAILED}{no_cuda_hint(first.program, own)}"
    return ""


# -- what the program prints -----------------------------------------------------------------------


@contextmanager
def _output_kept() -> Iterator[IO[bytes]]:
    """While open, what this process and those that it starts print is not shown; what they write to
    standard error is in the file."""
    with ExitStack() as undo:
        errors = undo.enter_context(tempfile.TemporaryFile())
        nowhere = undo.enter_context(Path(os.devnull).open("wb"))
        for number, place in ((1, nowhere), (2, errors)):
            _lead(number, place, undo)
        # Python's own streams need not be these two.
        undo.enter_context(redirect_stdout(_text_to(nowhere)))
        undo.enter_context(redirect_stderr(_text_to(errors)))
        yield errors


def _lead(number: int, place: IO[bytes], undo: ExitStack) -> None:
    """Leads a descriptor to the file until `undo`."""
    _flush()
    before = os.dup(number)
    undo.callback(os.close, before)
    os.dup2(place.fileno(), number)
    undo.callback(os.dup2, before, number)
    undo.callback(_flush)


def _text_to(place: IO[bytes]) -> TextIO:
    return io.TextIOWrapper(io.FileIO(place.fileno(), "w", closefd=False), write_through=True)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()


def _last_line(errors: IO[bytes]) -> str:
    errors.seek(0)
    lines = errors.read().decode(errors="replace").strip().splitlines()
    return lines[-1].strip().removeprefix("neusight: ") if lines else ""


def _first_line(text: str) -> str:
    return text.strip().partition("\n")[0]
