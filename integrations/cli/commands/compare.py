"""`neusight compare`: lays a forecast's trace beside a real profile."""

from __future__ import annotations

import argparse

from neusight.exit_codes import ExitCode
from neusight.integrations.cli.files import tell_problems, tried, write_json, write_text

__all__ = ["DESCRIPTION", "HELP", "add_arguments", "run"]

HELP = "lay a forecast beside a real profile"
DESCRIPTION = "Compare the trace of a forecast with the trace that torch.profiler wrote."


def add_arguments(compare: argparse.ArgumentParser) -> None:
    """The options of `neusight compare`."""
    compare.add_argument("forecast", metavar="FORECAST", help="trace of `neusight run --trace`")
    compare.add_argument("real", metavar="REAL", help="trace of torch.profiler, also gzipped")
    compare.add_argument("--json", metavar="FILE", help="write all figures there")
    compare.add_argument("--markdown", metavar="FILE", help="write the tables there")


def run(options: argparse.Namespace) -> int:
    """Prints the tables and writes what was asked for; the exit code."""
    from neusight.integrations.profiles.comparison.comparison import compare

    comparison = compare(options.forecast, options.real)
    problems: list[str] = []
    if options.json:
        path = options.json
        problems += tried(lambda: write_json(path, comparison.to_json()), path)
    if options.markdown:
        place = options.markdown
        problems += tried(lambda: write_text(place, comparison.to_markdown()), place)
    print(comparison.table())
    tell_problems(problems)
    return ExitCode.WRONG_USE if problems else ExitCode.OK
