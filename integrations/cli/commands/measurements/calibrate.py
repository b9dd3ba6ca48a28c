"""`neusight calibrate`: learns a GPU's calibration from profiles and folders of measurements, or a
cluster's topology from nccl-tests."""

from __future__ import annotations

import argparse
from collections.abc import Callable

from neusight.integrations.cli.files import report_problems, tried
from neusight.predictors.errors import OptionError
from neusight.predictors.measuring.nccl_tests import is_nccl_output
from neusight.predictors.registry import require_predictor
from neusight.predictors.terminal_text import printable

HELP = "fit a calibration to a real GPU's profile or measurements"
DESCRIPTION = (
    "Fit the constants of a GPU, corrections by kernel class and dtype, and the costs of its "
    "host. A correction is kept only where it makes measurements come out nearer that were left "
    "out of its fit. From what nccl-tests print (all_reduce_perf -b 64K -e 1G -f 4 and the like, "
    "on the groups that you use) a topology is made, for --topology."
)


def add_arguments(calibrate: argparse.ArgumentParser) -> None:
    """The options of `neusight calibrate`."""
    calibrate.add_argument("source", metavar="FILE|DIR", nargs="+",
                           help="a trace of torch.profiler with shapes, a folder of traces, or one "
                           "of `neusight measure`; also several of one GPU; or outputs of "
                           "nccl-tests")  # fmt: skip
    calibrate.add_argument("--gpu", metavar="NAME", help="the GPU, if the source does not state it")
    calibrate.add_argument("--out", required=True, metavar="FILE", help="calibration file to write")
    calibrate.add_argument("--topology", metavar="NAME|FILE.json",
                           help="of nccl-tests: what is known of the cluster (the GPU's reference "
                           "system)")  # fmt: skip
    calibrate.add_argument("--predictor", metavar="NAME", help="whom to correct (tiled)")


def run(options: argparse.Namespace) -> int:
    """Prints what was fitted and what it gains, and writes the file."""
    if any(map(is_nccl_output, options.source)):
        return _calibrate_cluster(options)
    from neusight.integrations.profiles.calibration import calibrate

    if options.topology is not None:
        raise OptionError("--topology is for outputs of nccl-tests; none of these files is one")
    require_predictor(options.predictor)
    made = calibrate(options.source, options.gpu, predictor=options.predictor)
    print(made.table())
    for note in made.source.get("notes", ()):
        print(printable(f"  note        {note}"))
    if made.source.get("left_out"):
        print(printable(f"  note        left out: {made.source['left_out']}"))
    return _saved(made.save, options.out, "--calibration")


def _calibrate_cluster(options: argparse.Namespace) -> int:
    """Prints what nccl-tests say of a cluster, and writes its topology."""
    from neusight.integrations.profiles.clusters import calibrate_cluster

    others = [source for source in options.source if not is_nccl_output(source)]
    if others:
        raise OptionError(f"{others[0]} is no output of nccl-tests; calibrate those apart")
    if not options.out.endswith(".json"):
        raise OptionError(f"--out is {options.out!r}; a topology's name ends in .json")
    made = calibrate_cluster(options.source, options.gpu, options.topology)
    print(made.table())
    return _saved(made.topology.save, options.out, "--topology")


def _saved(save: Callable[[str], object], path: str, option: str) -> int:
    problems = tried(lambda: save(path), path)
    if not problems:
        print(f"  written to  {path}: neusight run {option} {path} …")
    return report_problems(problems)
