"""`neusight evaluate`: scores predictors on measured kernels, or on whole programs."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from neusight.exit_codes import ExitCode
from neusight.integrations.cli.files import report_problems, write_files, write_json, write_text
from neusight.integrations.program.options import ProgramOptions
from neusight.predictors.errors import OptionError
from neusight.predictors.registry import (
    DEFAULT_PREDICTOR,
    predictor_at,
    predictor_names,
    require_predictor,
)
from neusight.predictors.terminal_text import fitted, printable, printable_lines
from neusight.timeline.host import HOST_HELP

if TYPE_CHECKING:
    from neusight.integrations.suites.evaluation import SuiteReport
    from neusight.predictors.training.evaluate import Report

HELP = "score predictors on measured kernels, or on whole programs (--suite)"
DESCRIPTION = ""

#: The suites, as `suites/evaluation.py` names them, which needs torch to load, and the files that
#: `--data` holds for each.
_SUITES = {
    "paper": "e2e_labels.csv (gpu, model, mode, seq_len, batch, option, step_ms) and "
    "model_configs.json, as the artifact of the NeuSight paper (arXiv 2407.13853) has them, and "
    "gpus.csv for GPUs that neusight does not know",
    "published": "e2e_published_dev.csv, a row for each published figure (case_id, source, "
    "gpu_key, n_gpus, model, batch, seq_or_res, dtype, mode, compile, optimizer, metric, value, "
    "notes)",
}


def add_arguments(evaluate: argparse.ArgumentParser) -> None:
    """The options of `neusight evaluate`."""
    evaluate.add_argument("--data", metavar="DIR", help="folder with the tables; neusight does "
        "not include others' "
                          "measurements")  # fmt: skip
    evaluate.add_argument("--predictor", action="append", metavar="NAME",
                          help="who prices, also several (tiled; of suites all)")  # fmt: skip
    evaluate.add_argument("--clock", choices=("burst", "sustained"),
                          help="clocks of the GPU in whole programs (rows of tables say their "
                          "own)")  # fmt: skip
    evaluate.add_argument("--json", metavar="FILE", help="write all scores there")
    evaluate.add_argument("--sizes", action="store_true", help="show every size class")
    _add_suites(evaluate.add_argument_group("whole programs that others measured"))


def _add_suites(suites: argparse._ArgumentGroup) -> None:
    suites.add_argument("--suite", metavar="NAME", help=f"run their cases: {', '.join(_SUITES)}")
    suites.add_argument("--only", default="", metavar="TEXT", help="cases with this in their name")
    suites.add_argument("--torch", metavar="VERSION", help="price the kernels of that version of "
                        "torch, as 2.4 (default: the one that each case ran)")  # fmt: skip
    suites.add_argument("--host", metavar="NAME[,ghz=…]", help=HOST_HELP)
    suites.add_argument("--csv", metavar="FILE", help="write the error of every case there")
    suites.add_argument("--markdown", metavar="FILE", help="write the tables there")
    suites.add_argument("--recordings", metavar="DIR", help="keep what was recorded, and price it "
                        "again (delete it after a change of the recorder)")  # fmt: skip


def run(options: argparse.Namespace) -> int:
    """Prints the scores and writes them where asked; the exit code."""
    from neusight.integrations.profiles.profiled_kernels import is_profiled
    from neusight.predictors.training.evaluate import score_folder, table_of

    _require_data(options)
    if options.suite is not None:
        return _run_suite(options)
    for option in ("only", "torch", "host", "csv", "markdown", "recordings"):
        if getattr(options, option):
            raise OptionError(f"--{option} is for cases: name them with --suite NAME.")
    if options.clock is not None:
        raise OptionError("--clock is for cases (--suite NAME): rows of tables say their own.")
    names = options.predictor or [DEFAULT_PREDICTOR]
    for name in names:
        require_predictor(name)
    if is_profiled(options.data):
        report = _score_programs(options.data, names)
    else:
        report = score_folder(options.data, predictors=names)
    left_out = [printable(f"left out: {reason}") for reason in report.left_out]
    _show("\n".join([table_of(report.rows, every_size=options.sizes), *left_out]))
    return report_problems(
        _written((options.json, lambda path: write_json(path, report.to_json())))
    )


def _show(text: str) -> None:
    """On the screen, in lines no longer than it is wide."""
    print(fitted(text, sys.stdout))


def _require_data(options: argparse.Namespace) -> None:
    """OptionError for an unknown suite, or where no folder is named: it says what one holds."""
    if options.suite is not None and options.suite not in _SUITES:
        raise OptionError(f"There is no suite {options.suite!r}; known are {', '.join(_SUITES)}.")
    if options.data is not None:
        return
    if options.suite is not None:
        raise OptionError(
            f"--suite {options.suite} scores others' measurements, which neusight does not "
            f"include: name their folder with --data DIR. It holds {_SUITES[options.suite]}."
        )
    raise OptionError(
        "Name the folder of measured kernels with --data DIR: what `neusight measure` wrote, or "
        "tables with their columns."
    )


def _run_suite(options: argparse.Namespace) -> int:
    """Prints the tables of a suite and writes what was asked; the exit code."""
    from neusight.integrations.suites.evaluation import evaluate_suite
    from neusight.integrations.suites.rendering import left_out_lines, text_table

    ProgramOptions(torch=options.torch, host=options.host)  # refuses what means nothing
    report = evaluate_suite(
        options.suite,
        Path(options.data),
        _suite_predictors(options),
        only=options.only,
        kept=Path(options.recordings) if options.recordings else None,
        torch=options.torch,
        host=options.host,
        progress=lambda text: print(printable(text), file=sys.stderr, flush=True),
    )
    for table in report.tables:
        _show(f"{text_table(table, report.predictors)}\n")
    for line in left_out_lines(report.left_out):
        _show(line)
    code = report_problems(_write_suite(options, report))
    return code if report.results else ExitCode.WRONG_USE


def _suite_predictors(options: argparse.Namespace) -> list[str]:
    """Who prices the cases, at the clock that was asked for."""
    if options.clock is None:
        return list(dict.fromkeys(options.predictor or predictor_names()))
    names = [predictor_at(options.clock, name) for name in options.predictor or [None]]
    return list(dict.fromkeys(name for name in names if name is not None))


def _write_suite(options: argparse.Namespace, report: SuiteReport) -> list[str]:
    """The files that were asked for, which are named; what could not be written."""
    from neusight.integrations.suites.rendering import csv_text, markdown

    tables = "\n".join(markdown(table, report.predictors) for table in report.tables)
    rows = csv_text(report.suite, report.results, report.left_out)
    return _written(
        (options.json, lambda path: write_json(path, report.to_json())),
        (options.csv, lambda path: write_text(path, rows)),
        (options.markdown, lambda path: write_text(path, tables)),
    )


def _written(*files: tuple[str | None, Callable[[str], object]]) -> list[str]:
    """Writes the files that were asked for, and names them; what went wrong."""
    written, problems = write_files(files)
    for path in written:
        _show(f"written to {path}")
    return problems


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
        table = totals_table(calls, in_regime(name, sustained=False))
        _show(f"Kernel time of whole programs, {name}:\n{printable_lines(table.splitlines())}")
    return score_dataset(profiled_dataset(folder), predictors=names)
