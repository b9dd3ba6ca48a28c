"""`neusight plan`: forecasts a script for every combination of its arguments, best first."""

from __future__ import annotations

import argparse
import sys
import time
from contextlib import closing
from dataclasses import replace

from neusight.exit_codes import ExitCode
from neusight.integrations.cli.arguments import (
    OF_FILES,
    OF_RANKS,
    add_options,
    file_options,
    rank_options,
    stated_of_pricing,
)
from neusight.integrations.cli.commands.layouts import (
    add_model_arguments,
    plan_layouts,
    token_count,
)
from neusight.integrations.cli.files import report_problems, write_and_name, write_json
from neusight.integrations.cli.launchers import launched
from neusight.integrations.cli.planning.candidates import Candidate, candidates_of
from neusight.integrations.cli.planning.points import PlanPoint, PlanRequest, evaluated_in_turn
from neusight.integrations.cli.planning.processes import num_cores
from neusight.integrations.cli.planning.ranking import Ranking, interim_text
from neusight.integrations.cli.screen import coloured
from neusight.integrations.cli.sweep import parse_sweep
from neusight.integrations.program.options import (
    checked_calibration,
    read_ranks,
    stated_options,
)
from neusight.integrations.program.program import Program
from neusight.integrations.program.progress.reporting import reporting_work, seconds_as_text
from neusight.integrations.report.side_by_side import parse_prices
from neusight.interrupts import raises_from_here
from neusight.predictors.errors import OptionError
from neusight.predictors.gpu import find_gpu

HELP = "choose a script's arguments: parallelism, batch, checkpoints"
USAGE = (
    "neusight plan --gpu GPU[,GPU…] [--world-size N[,N…]] [--sweep ARGUMENT=V1,V2,… …] [options] "
    "SCRIPT.py|-m MODULE [args…]"
)
DESCRIPTION = (
    "Forecast a script for every combination of the arguments named by --sweep, of numbers of "
    "ranks and of GPUs, and rank those that fit. Exit codes: 0 ok, 2 wrong use, 3 every candidate "
    "failed, 130 interrupted: what was done is shown."
)

#: Steady steps of a candidate: all steps of a plan's script are mostly alike.
DEFAULT_STEPS = 1


def add_arguments(plan: argparse.ArgumentParser) -> None:
    """The options of `neusight plan`."""
    plan.add_argument("--serve", metavar="MODEL",
                      help="instead of a script: the cheapest deployment that serves MODEL "
                      "(options as in `neusight serve`)")  # fmt: skip
    add_options(plan, "--gpu", required=True, metavar="NAME[,NAME…]")
    plan.add_argument("--sweep", action="append", default=[], metavar="ARGUMENT[=V1,V2,…]",
                      help="an argument of the script's own and its values, or a flag, left out "
                      "and given; several: every combination")  # fmt: skip
    add_options(plan, "--world-size", type=str, metavar="N[,N…]")
    add_options(plan, *OF_RANKS)
    add_options(plan, "--price", help="price of a GPU an hour; costs are GPU-hours without it")
    plan.add_argument("--by", choices=("time", "cost"), default="time",
                      help="what they are ranked by (time)")  # fmt: skip
    plan.add_argument("--jobs", type=int, default=0, metavar="N",
                      help="candidates at once (as many as there are cores)")  # fmt: skip
    plan.add_argument("--ray", metavar="ADDRESS",
                      help="run them on a Ray cluster (extra `ray`); auto: the one of this "
                      "machine. The script lies at the same path on each machine")  # fmt: skip
    add_options(plan, "--json")
    plan.add_argument("--quiet", action="store_true", help="say nothing until the end")
    add_options(plan, "--steps", default=str(DEFAULT_STEPS),
                help=f"steady steps until a script is ended ({DEFAULT_STEPS})")  # fmt: skip
    add_options(plan, "--samples")
    add_options(plan, "--tokens", type=str,
                help="the same for tokens; with --model those of all ranks")  # fmt: skip
    add_options(plan, "--predictor", "--clock", "--calibration", "--torch", "--host", "--max-ops")
    add_options(plan, *OF_FILES)
    add_model_arguments(plan)


def progress_line(done: int, total: int, found: list[PlanPoint], *, elapsed_s: float) -> str:
    """What a candidate came to, and the time that the others take at the pace so far."""
    left = total - done
    eta = f"; about {seconds_as_text(elapsed_s / done * left)} left" if left else ""
    return f"neusight: [{done}/{total}] {interim_text(found)}{eta}"


def run(options: argparse.Namespace, program: Program | None) -> int:
    """Forecasts every candidate, ranks them; the exit code."""
    if options.model is not None:
        if program is not None:
            raise OptionError("give a script or --model, not both")
        return plan_layouts(options, _gpu_names(options))
    candidates, request = _planned(options, program)
    raises_from_here()
    points: dict[int, list[PlanPoint]] = {}
    is_interrupted = False
    total = len(candidates)
    begin_s = time.monotonic()
    try:
        with (
            reporting_work(lambda: f"{len(points)} of {total} done", quiet=options.quiet) as show,
            closing(
                evaluated_in_turn(
                    request,
                    candidates,
                    at_once=options.jobs or num_cores(),
                    ray=options.ray,
                    while_waiting=show,
                )
            ) as done,
        ):
            for position, found in done:
                points[position] = found
                if not options.quiet:
                    elapsed_s = time.monotonic() - begin_s
                    line = progress_line(len(points), total, found, elapsed_s=elapsed_s)
                    print(line, file=sys.stderr, flush=True)
    except KeyboardInterrupt:
        is_interrupted = True
    in_order = tuple(point for position in sorted(points) for point in points[position])
    ranking = Ranking(candidates, in_order, options.by)
    print(coloured(ranking.text(), sys.stdout))
    code = report_problems(
        write_and_name([(options.json, lambda path: write_json(path, ranking.to_json()))])
    )
    if is_interrupted:
        return ExitCode.INTERRUPTED
    if all(point.row is None for point in in_order):
        return ExitCode.SCRIPT_FAILED
    return code


# -- what is asked for -----------------------------------------------------------------------------


def _planned(
    options: argparse.Namespace, program: Program | None
) -> tuple[tuple[Candidate, ...], PlanRequest]:
    """What is to be tried, and how; OptionError or UnknownGPUError for what cannot be planned."""
    if options.train_tokens is not None or options.mtbf is not None:
        raise OptionError("--train-tokens and --mtbf are for --model")
    assert program is not None  # what lacks one was refused before it was parsed
    start = launched(program)
    program = program if start is None else start.program
    program.require_script()
    if options.jobs < 0:
        raise OptionError(f"--jobs is {options.jobs}; it must be above 0")
    sweeps = [parse_sweep(text, takes_flags=True) for text in options.sweep]
    sizes = [None] if options.world_size is None else _numbers(options.world_size)
    given = {**vars(options), "gpu": _gpu_names(options)}
    ranks = [rank_options(argparse.Namespace(**{**given, "world_size": n}), start) for n in sizes]
    return tuple(candidates_of(program, sweeps, ranks)), _request(options)


def _numbers(text: str) -> list[int | None]:
    words = list(dict.fromkeys(word.strip() for word in text.split(",")))
    if not all(word.isdecimal() for word in words):
        raise OptionError(f"--world-size is {text!r}; it must be a number, or several: 8,16,32")
    return [int(word) for word in words]


def _request(options: argparse.Namespace) -> PlanRequest:
    others = replace(
        file_options(options),
        quiet=True,
        max_ops=options.max_ops,
        samples=options.samples,
        tokens=None if options.tokens is None else token_count(options.tokens),
        topology=options.topology,
        network_gbps=options.network_gbps,
        wait_s=options.wait,
    )
    program_options = stated_options(stated_of_pricing(options), others)
    gpus = [find_gpu(name) for name in _gpu_names(options)]
    checked_calibration(program_options, gpus)
    prices = parse_prices(options.price, gpus=[gpu.name for gpu in gpus])
    return PlanRequest(tuple(gpus), program_options, prices, read_ranks(options.rank)[1])


def _gpu_names(options: argparse.Namespace) -> list[str]:
    """As they were given, each once, several behind one --gpu too."""
    names = (name.strip() for text in options.gpu for name in text.split(","))
    return list(dict.fromkeys(name for name in names if name))
