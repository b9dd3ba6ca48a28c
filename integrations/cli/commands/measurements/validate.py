"""`neusight validate`: forecasts measured workloads on a machine without a GPU and scores them."""

from __future__ import annotations

import argparse

from neusight.integrations.cli.files import (
    print_progress,
    report_problems,
    write_files,
    write_json,
)
from neusight.predictors.registry import require_predictor

HELP = "forecast measured workloads, and score the forecasts"
DESCRIPTION = (
    "Forecast every workload that was measured on a real GPU, on this machine without one, and "
    "print how near each came: step time, memory, kernels, and the operators that cost most of the "
    "error."
)


def add_arguments(validate: argparse.ArgumentParser) -> None:
    """The options of `neusight validate`."""
    validate.add_argument("folder", metavar="WORKLOADS_DIR",
                          help="a folder of `neusight measure`, or profiler traces with the script "
                          "of the same name beside each")  # fmt: skip
    validate.add_argument("--only", action="append", default=[], metavar="NAME",
                          help="this workload, also several")  # fmt: skip
    validate.add_argument("--gpu", metavar="NAME", help="the GPU, if the folder does not state it")
    validate.add_argument("--scripts", metavar="DIR", help="folder of the workloads' scripts")
    validate.add_argument("--predictor", metavar="NAME", help="who prices the kernels (tiled)")
    validate.add_argument(
        "--calibration", metavar="FILE", help="calibration (`neusight calibrate`)"
    )
    validate.add_argument("--json", metavar="FILE", help="write all figures there")


def run(options: argparse.Namespace) -> int:
    """Prints the scores; 0, or 2 where nothing could be judged or written."""
    from neusight.integrations.profiles.validation import validate
    from neusight.predictors.gpu import find_gpu

    require_predictor(options.predictor)
    if options.gpu is not None:
        find_gpu(options.gpu)
    found = validate(
        options.folder,
        gpu=options.gpu,
        scripts=options.scripts,
        predictor=options.predictor,
        calibration=options.calibration,
        only=options.only,
        progress=print_progress,
    )
    print(found.table())
    _, problems = write_files([(options.json, lambda path: write_json(path, found.to_json()))])
    return report_problems(problems)
