"""`neusight compare`: two forecasts, a forecast and a profile, or two revisions of a script."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from neusight.exit_codes import ExitCode
from neusight.integrations.cli.arguments import add_options
from neusight.integrations.cli.files import (
    print_progress,
    report_problems,
    write_files,
    write_json,
    write_text,
)
from neusight.integrations.program.program import Program
from neusight.predictors.errors import OptionError
from neusight.predictors.terminal_text import fitted

if TYPE_CHECKING:
    from neusight.forecast import Forecast
    from neusight.integrations.check.comparing.pair import Pair

HELP = "compare two forecasts, a forecast and a real profile, or two revisions"
USAGE = (
    "neusight compare [options] A B\n"
    "       neusight compare --git A..B --gpu GPU [options] SCRIPT.py|-m MODULE [args…]"
)
DESCRIPTION = (
    "A and B are recordings of `neusight run --save` (or Forecast.save), or A is a forecast and B "
    "a trace of torch.profiler. With --git a script is forecast as it is in two revisions. Says "
    "what differs and why; judges nothing: the exit code is 0."
)
#: What a recording's file begins with.
_RECORDING = '{"neusight_recording"'


def add_arguments(compare: argparse.ArgumentParser) -> None:
    """The options of `neusight compare`."""
    compare.add_argument("first", metavar="A", nargs="?",
                         help="what `neusight run` wrote by --save or --trace")  # fmt: skip
    compare.add_argument("second", metavar="B", nargs="?",
                         help="the same of another run, or a trace of torch.profiler")  # fmt: skip
    compare.add_argument("--git", metavar="A..B",
                         help="revisions: A..B, A...B (from where B left A), or A against the "
                         "working tree")  # fmt: skip
    compare.add_argument("--gpu", metavar="NAME",
                         help="the GPU; recordings are both priced on it")  # fmt: skip
    compare.add_argument("--link", action="append", default=[], metavar="PATH",
                         help="with --git: files that git does not keep, such as data, to be "
                         "found in both trees")  # fmt: skip
    add_options(compare, "--steps")
    add_options(compare, "--samples",
                help="samples that enter a step, instead of those found in the "
                "program")  # fmt: skip
    add_options(compare, "--tokens", "--predictor")
    add_options(compare, "--torch",
                help="price the kernels of that version of torch, as 2.4 (default: that of each "
                "recording)")  # fmt: skip
    add_options(compare, "--host", "--json")
    compare.add_argument("--markdown", metavar="FILE", help="write the tables there")
    compare.add_argument("--html", metavar="FILE",
                         help="write both forecasts there, side by side, for browsers")  # fmt: skip
    compare.set_defaults(own_words=())


def run(options: argparse.Namespace, program: Program | None) -> int:
    """Prints what differs and writes what was asked for; the exit code."""
    if options.html:
        from neusight.integrations.report.html import report_date

        report_date()  # what is wrong with it is said before anything is run
    if options.git is not None:
        return _run_revisions(options, program)
    if options.first is None or options.second is None:
        raise OptionError(
            "compare takes two files: neusight compare before.json.gz after.json.gz (of `neusight "
            "run --save`), or FORECAST REAL; or --git main..HEAD --gpu H100 train.py"
        )
    if options.link:
        raise OptionError("--link is for revisions: --git A..B")
    if _is_recording(options.second):
        from neusight.integrations.check.comparing.pair import Side, pair_of

        _require_recording(options.first, options.second)
        first, second = (
            Side(path, _loaded(path, options), Path.cwd())
            for path in (options.first, options.second)
        )
        return _print_pair(options, pair_of(first, second))
    return _run_profile(options)


# -- a forecast and a profile --------------------------------------------------------------------


def _run_profile(options: argparse.Namespace) -> int:
    if options.html:
        raise OptionError(
            "--html is for two forecasts: compare what `neusight run --save` writes of each; "
            "beside a profile --markdown has the tables"
        )
    from neusight.integrations.profiles.comparison.comparison import compare

    forecast: Forecast | str = options.first
    if _is_recording(options.first):
        forecast = _loaded(options.first, options)
    comparison = compare(forecast, options.second)
    return _written(options, comparison.table(), comparison.to_json(), comparison.to_markdown)


def _print_pair(options: argparse.Namespace, pair: Pair, program: Program | None = None) -> int:
    from neusight.integrations.check.comparing.pair_text import pair_lines, pair_markdown

    words = ["neusight", *options.own_words, *(program.words if program else ())]
    return _written(
        options,
        "\n".join(pair_lines(pair)),
        pair.to_json(),
        lambda: pair_markdown(pair),
        lambda path: _write_html(path, pair, shlex.join(words)),
    )


def _write_html(path: str, pair: Pair, command: str) -> None:
    from neusight.integrations.report.html import html_report, report_date

    sides = (pair.first, pair.second)
    page = html_report(
        [side.forecast for side in sides],
        labels=[side.title for side in sides],
        unlike=[f"These are {warning}" for warning in pair.warnings],
        command=command,
        date=report_date(),
    )
    write_text(path, page)


def _written(
    options: argparse.Namespace,
    text: str,
    document: Any,
    markdown: Callable[[], str],
    write_html: Callable[[str], None] | None = None,
) -> int:
    """Writes what was asked for, then prints: a pipe that is closed loses no file."""
    written, problems = write_files(
        [
            (options.json, lambda path: write_json(path, document)),
            (options.markdown, lambda path: write_text(path, markdown())),
            *([(options.html, write_html)] if write_html else []),
        ]
    )
    lines = [text, *(f"written to  {path}" for path in written)]
    print(fitted("\n".join(lines), sys.stdout))
    return report_problems(problems)


# -- two recordings ------------------------------------------------------------------------------


def _is_recording(path: str) -> bool:
    """Whether `Forecast.save` wrote it; what cannot be read, its reader reports."""
    import gzip

    try:
        with Path(path).open("rb") as file:
            is_zipped = file.read(2) == b"\x1f\x8b"
        with gzip.open(path) if is_zipped else Path(path).open("rb") as file:
            return file.read(len(_RECORDING)).decode(errors="replace") == _RECORDING
    except (OSError, EOFError):
        return False


def _require_recording(first: str, second: str) -> None:
    if not Path(first).exists():
        raise OptionError(f"{first}: there is no such file")
    if not _is_recording(first):
        raise OptionError(
            f"{second} is a recording and {first} is none. A trace can stand second only, beside "
            f"a forecast: neusight compare {second} {first}; two forecasts are compared by what "
            "`neusight run --save` writes of each."
        )


def _loaded(path: str, options: argparse.Namespace) -> Forecast:
    from neusight.forecast import Forecast
    from neusight.integrations.program.options import ProgramOptions

    checked = ProgramOptions(torch=options.torch, host=options.host)
    found = Forecast.load(path)
    if checked.torch is not None:
        found = found.as_torch(checked.torch)
    stated = {"predictor": options.predictor, "host": checked.host_beside_torch}
    if options.gpu is None and not any(stated.values()):
        return found
    return found.on(options.gpu or found.gpu, **stated)


# -- two revisions -------------------------------------------------------------------------------


def _run_revisions(options: argparse.Namespace, program: Program | None) -> int:
    from neusight.integrations.check.comparing.revisions import RevisionRequest, pair_of_revisions
    from neusight.integrations.program.options import ProgramOptions, stated_options

    if program is None:
        raise OptionError(
            "give the script to compare: neusight compare --git main..HEAD --gpu H100 train.py"
        )
    others = ProgramOptions(
        quiet=True, with_stack=True, samples=options.samples, tokens=options.tokens
    )
    stated = {name: getattr(options, name) for name in ("host", "predictor", "steps", "torch")}
    request = RevisionRequest(options.git, program, options.gpu, stated_options(stated, others),
                              tuple(options.link))  # fmt: skip
    with pair_of_revisions(request, report_progress=print_progress) as pair:
        if isinstance(pair, str):
            print(f"neusight: {pair}", file=sys.stderr)
            return ExitCode.SCRIPT_FAILED
        return _print_pair(options, pair, program)
