"""`neusight fit`: fits the trained predictors to measured kernels."""

from __future__ import annotations

import argparse

from neusight.exit_codes import ExitCode
from neusight.integrations.cli.files import print_progress
from neusight.predictors.errors import OptionError
from neusight.predictors.registry import DEFAULT_PREDICTOR

HELP = "fit the trained predictors to measured kernels"
DESCRIPTION = (
    "Fit a predictor to tables of measured kernels and write its weights. The default predictor is "
    "fitted to all tables; the published ones (neusight, habitat, linear) are fitted to the FP32 "
    "tables, `kernels` and `conv_kernels`."
)

#: Predictors that can be fitted, the default one first.
PREDICTORS = (DEFAULT_PREDICTOR, "neusight", "habitat", "linear")


def add_arguments(fit: argparse.ArgumentParser) -> None:
    """The options of `neusight fit`."""
    fit.add_argument("data", metavar="DATA", nargs="+", help="folders with the tables")
    fit.add_argument("--predictor", choices=PREDICTORS, default=DEFAULT_PREDICTOR,
                     help=f"which predictor to fit ({DEFAULT_PREDICTOR})")  # fmt: skip
    fit.add_argument("--out", required=True, metavar="DIR", help="folder for the weights")
    fit.add_argument("--date", default="", help="date to note in the weights")
    fit.add_argument("--width", type=int, default=128, metavar="N",
                     help="width of the layers (128; published: 512 and 1024)")  # fmt: skip
    fit.add_argument("--without", action="append", default=[], metavar="GPU",
                     help="leave a GPU's rows out (of a published predictor)")  # fmt: skip
    fit.add_argument("--seed", type=int, default=0, metavar="N", help="seed of the fit (0)")


def run(options: argparse.Namespace) -> int:
    """Writes the weights and prints what they miss on held-out shapes; the exit code."""
    if options.width < 1:
        raise OptionError(f"--width {options.width}: it must be 1 or more.")
    if options.without and options.predictor == DEFAULT_PREDICTOR:
        raise OptionError("--without works with the published predictors: --predictor neusight.")
    if options.predictor != DEFAULT_PREDICTOR:
        for folder in options.data:
            _fit_published(options, folder)
        return ExitCode.OK
    from neusight.predictors.training.fit import fit_folders

    networks = fit_folders(options.data, options.out, date=options.date, seed=options.seed)
    for family, network in networks.items():
        print(f"{family}: {network.provenance['num_rows']} rows of {', '.join(network.gpus)}")
        for name, error in network.provenance["mape"].items():
            print(f"  {name:<40} {error:6.1%} on held-out shapes")
    return ExitCode.OK


def _fit_published(options: argparse.Namespace, folder: str) -> None:
    """Fits one published predictor, and prints its progress: some take minutes."""
    if options.predictor == "linear":
        from neusight.predictors.training.published.linear_fit import fit_linear

        for (vendor, kind), item in fit_linear(
            folder, options.out, without=options.without
        ).items():
            print(f"{vendor} {kind}: lines of {', '.join(item.lines)}")
        return
    from neusight.predictors.training.published.habitat_fit import fit_habitat
    from neusight.predictors.training.published.neusight_fit import fit_neusight

    fit = fit_neusight if options.predictor == "neusight" else fit_habitat
    effort = {"seed": options.seed, "width": options.width, "without": options.without}
    scores = fit(folder, options.out, **effort, progress=print_progress)
    for kind, errors in scores.items():
        print(f"{kind}:")
        for gpu, error in errors.items():
            print(f"  {gpu:<40} {error:6.1%} on held-out shapes")
