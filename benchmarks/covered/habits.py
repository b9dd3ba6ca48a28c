"""What training and inference scripts do beside layers and losses, each as a small program.

The programs stand in `habit_programs/*.txt`: what all of a file need, and below each heading
(`== name (sampled; needs PACKAGE, ...)`) one of them, as a user would write it; what `habit_parts`
has is there. A program runs inside a forecast, in a process forked for it alone; what it asserts
holds on a GPU. It fails by any exception. Packages that are absent skip it; an error of neusight's
own is a limit.
"""

from __future__ import annotations

import ast
import json
import os
import re
import tempfile
import traceback
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

import neusight
from covered import habit_parts
from covered.cases import CannotTry, Case, Outcome, outcome_of, plain

PROGRAMS = Path(__file__).with_name("habit_programs")

_HEADING = re.compile(r"^== (\w+)(?: \((.*)\))?$", re.MULTILINE)

_LIMIT_S = 150.0


@dataclass(frozen=True)
class Habit:
    """A program, and the packages that it needs beside torch."""

    name: str
    run: Callable[[], object]
    needs: tuple[str, ...] = ()
    is_sampled: bool = False


def habits_of(path: Path) -> Iterator[Habit]:
    """The programs of a file."""
    text = path.read_text(encoding="utf-8")
    headings = list(_HEADING.finditer(text))
    shared: dict[str, Any] = {**vars(habit_parts), "__name__": path.stem, "__file__": str(path)}
    exec(compile(text[: headings[0].start()], path, "exec"), shared)
    for heading, following in zip(headings, [*headings[1:], None], strict=True):
        name, tags = heading[1], heading[2] or ""
        body = text[heading.end() : following.start() if following else None]
        needs = tuple(re.split(", ", tags.partition("needs ")[2])) if "needs " in tags else ()
        run = _function(name, body, path, text.count("\n", 0, heading.end()), shared)
        yield Habit(name, run, needs, "sampled" in tags)


def _function(
    name: str, body: str, path: Path, num_lines: int, shared: dict[str, Any]
) -> Callable[[], object]:
    """A function of that body, whose lines are those of the file."""
    tree = ast.parse(f"def {name}() -> None:\n    pass")
    made = tree.body[0]
    assert isinstance(made, ast.FunctionDef)
    made.body = ast.increment_lineno(ast.parse(body), num_lines).body
    made.lineno = made.end_lineno = num_lines + 1
    exec(compile(tree, path, "exec", dont_inherit=True), shared)
    run: Callable[[], object] = shared[name]
    return run


def cases() -> Iterator[Case]:
    """A case for each habit."""
    for path in sorted(PROGRAMS.glob("*.txt")):
        for habit in habits_of(path):
            yield Case(habit.name, partial(run, habit), False, _LIMIT_S, habit.is_sampled)


def run(habit: Habit) -> Outcome:
    """The outcome of a habit, from a process of its own."""
    _warm_up()
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        outcome = _outcome(habit)
        os.write(writer, json.dumps(asdict(outcome)).encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as answers:
        answer = answers.read()
    _, status = os.waitpid(child, 0)
    if not answer:
        return Outcome("failed", f"its process ended with status {status}", torch.__version__)
    return Outcome(**json.loads(answer))


def _warm_up() -> None:
    """What each forecast imports is imported once, before processes are forked."""
    with neusight.forecast_on("H100") as forecast:
        torch.ones(8, device="cuda").relu_()
    forecast.summary()


def _outcome(habit: Habit) -> Outcome:
    version = torch.__version__
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            warnings.simplefilter("ignore")
            with neusight.forecast_on("H100") as forecast:
                habit.run()
            forecast.summary()
        except BaseException as error:
            if package := _missing_package(habit, error):
                return outcome_of(CannotTry(f"{package} is not there"), version=version)
            if not isinstance(error, ImportError):
                traceback.print_exc()
            return _with_line(outcome_of(error, version=version), error)
    return Outcome("ok", "", version)


def _missing_package(habit: Habit, error: BaseException) -> str:
    """What the habit needs and is not there; libraries say so in errors of their own, too."""
    while not isinstance(error, ImportError):
        if error.__cause__ is None:
            return ""
        error = error.__cause__
    package = (error.name or "").partition(".")[0]
    if package in habit.needs:
        return package
    # What it needs may need another one.
    return next((name for name in habit.needs if name in str(error)), "")


def _with_line(outcome: Outcome, error: BaseException) -> Outcome:
    """A failure without words of its own says where it was."""
    if str(error) or outcome.status != "failed":
        return outcome
    last = traceback.extract_tb(error.__traceback__)[-1]
    where = f"{outcome.reason} at {Path(last.filename).name}:{last.lineno}: {last.line}"
    return Outcome("failed", plain(where), outcome.version)
