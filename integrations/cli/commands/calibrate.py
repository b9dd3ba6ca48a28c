"""`neusight calibrate`: learns a GPU's calibration from profiles and folders of measurements."""

from __future__ import annotations

import argparse

from neusight.exit_codes import ExitCode
from neusight.integrations.cli.files import tell_problems, tried
from neusight.predictors.registry import require_predictor
from neusight.predictors.terminal_text import printable

__all__ = ["DESCRIPTION", "HELP", "add_arguments", "run"]

HELP = "learn from a real GPU's profile or measurements"
DESCRIPTION = (
    "Learn the constants of a GPU, corrections by kernel class and dtype, and the costs of its "
    "host. A correction is kept only where it makes measurements come out nearer that were left "
    "out of its fit."
)


def add_arguments(calibrate: argparse.ArgumentParser) -> None:
    """The options of `neusight calibrate`."""
    calibrate.add_argument("source", metavar="FILE|DIR", nargs="+",
                           help="a trace of torch.profiler with shapes, a folder of traces, or one "
                           "of `neusight measure`; also several of one GPU")  # fmt: skip
    calibrate.add_argument("--gpu", metavar="NAME", help="the GPU, if the source does not tell")
    calibrate.add_argument("--out", required=True, metavar="FILE", help="file for what was learnt")
    calibrate.add_argument("--predictor", metavar="NAME", help="whom to correct (tiled)")


def run(options: argparse.Namespace) -> int:
    """Prints what was learnt and what it gains, and writes the file."""
    from neusight.integrations.profiles.calibration import calibrate

    require_predictor(options.predictor)
    made = calibrate(options.source, options.gpu, predictor=options.predictor)
    print(made.table())
    for note in made.source.get("notes", ()):
        print(printable(f"  note        {note}"))
    if made.source.get("left_out"):
        print(printable(f"  note        left out: {made.source['left_out']}"))
    problems = tried(lambda: made.save(options.out), options.out)
    if not problems:
        print(f"  written to  {options.out}: neusight run --calibration {options.out} …")
    tell_problems(problems)
    return ExitCode.WRONG_USE if problems else ExitCode.OK
