"""`neusight check`: forecasts programs and judges them by a baseline; needs no GPU."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from neusight.exit_codes import ExitCode
from neusight.integrations.check.baseline import Case, figures_text, read_baseline
from neusight.integrations.check.figures.tolerance import parse_tolerances
from neusight.integrations.check.observation import Observation, observe
from neusight.integrations.check.outputs.documents import benchmark_json, report_json
from neusight.integrations.check.outputs.github import github_annotations
from neusight.integrations.check.outputs.junit import junit_xml
from neusight.integrations.check.outputs.markdown import markdown_report
from neusight.integrations.check.outputs.terminal import text_of
from neusight.integrations.check.plan import CheckRequest, Plan, plans_of
from neusight.integrations.check.result import CaseResult, removed_result, result_of, updated
from neusight.integrations.check.settings import DEFAULT_BASELINE, read_settings
from neusight.integrations.cli.arguments import (
    OF_FILES,
    OF_RANKS,
    add_options,
    file_options,
)
from neusight.integrations.cli.files import (
    report_problems,
    tried,
    write_and_name,
    write_json,
    write_text,
)
from neusight.integrations.program.forecasting import ProgramForecast, forecast_program
from neusight.integrations.program.options import STATED
from neusight.integrations.program.program import Program
from neusight.predictors.errors import ForecastStateError, OptionError
from neusight.predictors.terminal_text import fitted

HELP = "judge a script's forecast by a baseline"
USAGE = "neusight check [--gpu GPU] [options] [SCRIPT.py|-m MODULE [args…]]"
DESCRIPTION = (
    "Forecast a script, or all cases of the project, and compare with the baseline under version "
    "control. Exit codes: 0 ok, 1 a regression, 2 wrong use, 3 the script itself failed."
)


def add_arguments(check: argparse.ArgumentParser) -> None:
    """The options of `neusight check`; what they do not say, [tool.neusight] may."""
    add_options(check, "--gpu", default=[])
    check.add_argument("--baseline", metavar="FILE",
                       help=f"where the figures to judge by are ({DEFAULT_BASELINE})")  # fmt: skip
    check.add_argument("--update", action="store_true", help="write today's figures there")
    check.add_argument("--case", metavar="NAME",
                       help="name of the case (the command); without a script: check only this "
                       "one of the project's cases")  # fmt: skip
    check.add_argument("--tolerance", action="append", default=[], metavar="FIGURE=AMOUNT",
                       help='how much worse is no regression, such as step_latency="1 %%" or '
                       'peak_memory="1 MiB"')  # fmt: skip
    add_options(check, "--steps")
    add_options(check, "--samples",
                help="samples that enter a step of each rank, instead of those found in the "
                "program: of another batch, a sample is judged")  # fmt: skip
    add_options(check, "--tokens", "--predictor")
    add_options(check, "--calibration", type=str)  # a path as a baseline keeps it
    add_options(check, "--torch", "--host")
    check.add_argument("--operators", action="store_true",
                       help="keep the kernel time in operators (aten::linear), too")  # fmt: skip
    check.add_argument("--quiet", action="store_true", help="a line for each case")
    add_options(check, "--world-size", *OF_RANKS, *OF_FILES)
    check.add_argument("--json", metavar="FILE", help="write all there")
    check.add_argument("--markdown", metavar="FILE",
                       help="write a report there (GitHub's summary gets it anyway)")  # fmt: skip
    check.add_argument("--junit", metavar="FILE", help="write JUnit XML there")
    check.add_argument("--benchmark-json", metavar="FILE",
                       help="write figures for github-action-benchmark there")  # fmt: skip


def run(options: argparse.Namespace, program: Program | None) -> int:
    """Checks the program, or all of the project's cases; the exit code."""
    request, settings = _requested(options, program), read_settings(Path.cwd())
    tolerances = parse_tolerances({**settings.tolerance, **_stated_tolerances(options.tolerance)})
    path = Path(options.baseline or settings.baseline)
    baseline = read_baseline(path) if path.exists() or not options.update else {}
    # Operators are recorded where they are requested, or the baseline has them.
    with_operators = options.operators or any(case.operators for case in baseline.values())
    request = replace(request, options=replace(request.options, with_operators=with_operators))
    results: list[CaseResult] = []
    plans = plans_of(request, settings, baseline)
    for plan in plans:
        try:
            seen = _seen(plan, baseline, is_apart=len(plans) > 1)
        except KeyboardInterrupt:
            return _interrupted(options, path, results, len(plans))
        for name, target in zip(plan.names, plan.gpus, strict=True):
            results.append(result_of(name, seen[target.name], baseline.get(name), tolerances))
    known = {result.name for result in results}
    removed = sorted(set(baseline) - known) if request.is_of_everything else []
    if options.update:
        results = updated(path, results, removed)
    else:
        results += [removed_result(name, baseline[name], results) for name in removed]
    return _report(options, path, results)


def _interrupted(
    options: argparse.Namespace, baseline: Path, results: list[CaseResult], num_plans: int
) -> int:
    """Shows what is known by now; a baseline stays as it was."""
    if results:
        _report(options, baseline, results)
    print(
        f"neusight: interrupted; {len(results)} results, of {num_plans} programs to check",
        file=sys.stderr,
    )
    return ExitCode.INTERRUPTED


# -- what is asked for ---------------------------------------------------------------------------


def _requested(options: argparse.Namespace, program: Program | None) -> CheckRequest:
    return CheckRequest(
        program=program,
        gpu_names=tuple(options.gpu),
        case=options.case,
        stated={
            **{name: getattr(options, name) for name in STATED},
            "gpus_per_node": _text(options.gpus_per_node),
            "ranks": options.rank,
            "samples": _text(options.samples),
            "tokens": _text(options.tokens),
            "world_size": _text(options.world_size),
        },
        options=replace(
            file_options(options),
            with_stack=True,
            wait_s=options.wait,
            topology=options.topology,
            network_gbps=options.network_gbps,
        ),
    )


def _text(number: int | None) -> str | None:
    return None if number is None else str(number)


def _stated_tolerances(texts: Iterable[str]) -> dict[str, object]:
    found: dict[str, object] = {}
    for text in texts:
        name, equals, amount = text.partition("=")
        if not equals:
            raise OptionError(f'--tolerance is {text!r}; it must be like step_latency="1 %".')
        found[name.strip()] = amount
    return found


# -- running -------------------------------------------------------------------------------------


def _seen(
    plan: Plan, baseline: Mapping[str, Case], *, is_apart: bool
) -> dict[str, Observation | str]:
    """What the program does on each GPU, or why that is unknown. Several programs run in a process
    each, so that none finds what another left behind. KeyboardInterrupt where it was interrupted.
    """
    first = forecast_program(plan.program, plan.gpus[0], plan.options, is_apart=is_apart)
    if first.outcome.is_interrupted:
        if first.forecast.recording.num_ops:
            print(first.forecast.summary())
        raise KeyboardInterrupt
    if first.outcome.failure:
        return dict.fromkeys((target.name for target in plan.gpus), first.outcome.failure)
    known = frozenset(
        row[:2] for name in plan.names if name in baseline for row in baseline[name].waits
    )
    found: dict[str, Observation | str] = {}
    for target in plan.gpus:
        try:
            there = first if target is plan.gpus[0] else first.on(target)
        except ForecastStateError as error:
            found[target.name] = str(error)
            continue
        found[target.name] = there.outcome.failure or _observed(there, known)
    return found


def _observed(found: ProgramForecast, known: frozenset[tuple[str, str]]) -> Observation:
    options = found.options
    settings = {"steps": options.steps_text, **options.stated_ranks, **options.stated_batch}
    if options.calibration is not None and found.forecast.calibration is not None:
        settings["calibration"] = options.calibration
    return observe(
        found.forecast,
        program=found.program.words,
        settings=settings,
        files=found.files,
        known_waits=known,
        with_operators=options.with_operators,
    )


# -- what is reported ----------------------------------------------------------------------------


def _report(options: argparse.Namespace, baseline: Path, results: list[CaseResult]) -> int:
    """Prints the report and writes what was asked for, all of it, before it reports problems."""
    folder = Path.cwd()
    for result in results:
        print(fitted(text_of(result, folder, quiet=options.quiet), sys.stdout))
    pasted = [result.case for result in results if result.kind == "regression" and result.case]
    if pasted and not options.quiet:
        print(f"If this is meant, run it again with --update, or paste into {baseline}:")
        print("\n".join(figures_text(case) for case in pasted))
    problems = write_and_name(
        [
            (options.json, lambda path: write_json(path, report_json(results))),
            (options.benchmark_json, lambda path: write_json(path, benchmark_json(results))),
            (options.junit, lambda path: write_text(path, junit_xml(results))),
            (options.markdown, lambda path: write_text(path, markdown_report(results, folder))),
        ]
    )
    code = report_problems(problems + _report_to_github(results, folder))
    return max([code, *(result.exit_code for result in results)])


def _report_to_github(results: list[CaseResult], folder: Path) -> list[str]:
    """In GitHub Actions: notes at the lines of the pull request, and the summary of the step."""
    if os.environ.get("GITHUB_ACTIONS") == "true":
        root = Path(os.environ.get("GITHUB_WORKSPACE") or folder)
        for line in github_annotations(results, folder, root):
            print(line)
    summary = os.environ.get("GITHUB_STEP_SUMMARY")
    if not summary:
        return []

    def append() -> None:
        with Path(summary).open("a", encoding="utf-8") as file:
            file.write(markdown_report(results, folder) + "\n")

    return tried(append, summary)
