"""What training and inference scripts do beside layers and losses, each as a small program.

A program runs inside a forecast, in a process forked for it alone; what it asserts holds on a GPU.
It fails by any exception. Packages that are absent skip it; an error of neusight's own is a limit.
"""

from __future__ import annotations

import importlib
import json
import os
import tempfile
import traceback
import warnings
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import torch

import neusight
from covered.cases import CannotTry, Case, Outcome, outcome_of, plain
from covered.habit_programs.habit import HABITS, Habit

#: The modules of `habit_programs` that hold habits.
_MODULES = (
    "compiling",
    "data",
    "devices",
    "distributed",
    "ecosystem",
    "functional",
    "models",
    "tensors",
    "tools",
    "training",
)

_LIMIT_S = 150.0


def cases() -> Iterator[Case]:
    """A case for each habit."""
    for name in _MODULES:
        importlib.import_module(f"covered.habit_programs.{name}")
    for habit in HABITS.values():
        yield Case(habit.name, lambda habit=habit: run(habit), False, _LIMIT_S, habit.is_sampled)


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
