"""`neusight evaluate`: scores predictors on measured kernels."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING

from neusight.exit_codes import ExitCode
from neusight.integrations.cli.files import tell_problems, tried, write_json
from neusight.predictors.registry import DEFAULT_PREDICTOR, require_predictor
from neusight.predictors.terminal_text import printable, printable_lines

if TYPE_CHECKING:
    from neusight.predictors.training.evaluate import Report

__all__ = ["DESCRIPTION", "HELP", "add_arguments", "run"]

HELP = "score predictors on measured kernels"
DESCRIPTION = ""


def add_arguments(evaluate: argparse.ArgumentParser) -> None:
    """The options of `neusight evaluate`."""
    evaluate.add_argument("--data", required=True, metavar="DIR", help="folder with the tables")
    evaluate.add_argument("--predictor", action="append", metavar="NAME",
                          help="who prices the kernels, also several (tiled)")  # fmt: skip
    evaluate.add_argument("--json", metavar="FILE", help="write all scores there")
    evaluate.add_argument("--sizes", action="store_true", help="show every size class")


def run(options: argparse.Namespace) -> int:
    """Prints the scores and writes them where asked; the exit code."""
    from neusight.integrations.profiles.profiled_kernels import is_profiled
    from neusight.predictors.training.evaluate import score_folder, table_of

    names = options.predictor or [DEFAULT_PREDICTOR]
    for name in names:
        require_predictor(name)
    if is_profiled(options.data):
        report = _score_programs(options.data, names)
    else:
        report = score_folder(options.data, predictors=names)
    print(table_of(report.rows, every_size=options.sizes))
    for reason in report.left_out:
        print(printable(f"left out: {reason}"))
    problems: list[str] = []
    if options.json:
        problems = tried(lambda: write_json(options.json, report.to_json()), options.json)
    tell_problems(problems)
    return ExitCode.WRONG_USE if problems else ExitCode.OK


def _score_programs(folder: str, names: Sequence[str]) -> Report:
    """Scores by operator of profiled programs, whose totals are printed first. They ran for a few
    steps, so at burst clocks."""
    from neusight.integrations.profiles.profiled_kernels import (
        profiled_dataset,
        read_profiled,
        totals_table,
    )
    from neusight.predictors.training.evaluate import in_regime, score_dataset

    calls, _ = read_profiled(folder)
    for name in names:
        print(f"Kernel time of whole programs, {name}:")
        print(printable_lines(totals_table(calls, in_regime(name, sustained=False)).splitlines()))
    return score_dataset(profiled_dataset(folder), predictors=names)
