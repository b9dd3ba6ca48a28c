"""The files that commands write; failures to write are reported after all other output."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from neusight.exit_codes import ExitCode

if TYPE_CHECKING:
    from neusight.advice.advice import Advice
    from neusight.forecast import Forecast


def tried(write: Callable[[], object], path: str) -> list[str]:
    """Writes a file; returns the text of the problem if that fails."""
    try:
        write()
    except OSError as error:
        return [f"{path} cannot be written: {error.strerror or error}"]
    return []


def write_files(
    files: Iterable[tuple[str | None, Callable[[str], object]]],
) -> tuple[list[str], list[str]]:
    """Writes those that have a path; the paths written, and the problems with the others."""
    written: list[str] = []
    problems: list[str] = []
    for path, write in files:
        if path:
            found = tried(partial(write, path), path)
            problems += found
            written += [] if found else [path]
    return written, problems


def write_and_name(files: Iterable[tuple[str | None, Callable[[str], object]]]) -> list[str]:
    """As `write_files`, and prints the paths; the problems."""
    written, problems = write_files(files)
    for path in written:
        print(f"written to {path}")
    return problems


def write_json(path: str, document: Any) -> None:
    """Writes atomically, with sorted keys, so that equal values give equal bytes."""
    write_text(path, json.dumps(document, indent=1, sort_keys=True, allow_nan=False) + "\n")


def write_text(path: str, text: str) -> None:
    """Writes atomically."""
    from neusight.predictors.files import write_atomically

    write_atomically(Path(path), text.encode())


def write_traces(
    folder: str, forecasts: Sequence[Forecast], advice: Sequence[Sequence[Advice]] = ()
) -> list[str]:
    """Writes traces for TensorBoard, of several GPUs a folder each, with the advice on each of them
    as text; what could not be written."""
    from neusight.integrations.frameworks.tensorboard import trace_handler

    reported = {id(forecast): found for forecast, found in zip(forecasts, advice, strict=False)}

    def write(place: Path, forecast: Forecast) -> None:
        trace_handler(place, advice=reported.get(id(forecast), ()))(forecast)

    return _written(folder, forecasts, write)


def write_chakra_traces(folder: str, forecasts: Sequence[Forecast]) -> list[str]:
    """Writes Chakra's traces likewise, and says why some ranks have none; what could not be
    written."""

    def write(place: Path, forecast: Forecast) -> None:
        missing = forecast.export_chakra(place)
        report_problems([missing] if missing else [])

    return _written(folder, forecasts, write)


def _written(
    folder: str, forecasts: Sequence[Forecast], write: Callable[[Path, Forecast], object]
) -> list[str]:
    from neusight.predictors.errors import TraceError

    problems: list[str] = []
    for forecast in forecasts:
        place = Path(folder) if len(forecasts) == 1 else Path(folder) / forecast.gpu.name
        try:
            write(place, forecast)
        except TraceError as error:
            problems.append(str(error))
    return problems


def print_progress(text: str) -> None:
    """Shows the progress of a command on a terminal."""
    if sys.stderr.isatty():
        print(f"neusight: {text}", file=sys.stderr, flush=True)


def report_problems(problems: Sequence[str]) -> ExitCode:
    """Prints the problems to standard error; the exit code of a command that ends with them."""
    for problem in problems:
        print(f"neusight: {problem}", file=sys.stderr)
    return ExitCode.WRONG_USE if problems else ExitCode.OK
