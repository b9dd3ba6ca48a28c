"""`neusight carry`: a profile of a GPU that you own, carried over to others."""

from __future__ import annotations

import argparse

from neusight.integrations.cli.arguments import add_options
from neusight.integrations.cli.files import report_problems, tried, write_json, write_traces
from neusight.integrations.report.side_by_side import lay_side_by_side, parse_prices
from neusight.predictors.errors import UnsupportedKernelError
from neusight.predictors.registry import require_predictor
from neusight.predictors.terminal_text import printable_text

HELP = "project a profile onto another GPU"
DESCRIPTION = (
    "Read a trace of torch.profiler (best with record_shapes=True) and say what its program does "
    "on other GPUs: each kernel takes what is forecast there, with a share of what it deviated "
    "from the forecast of its own GPU, and the host goes on as it did in the profile."
)


def add_arguments(carry: argparse.ArgumentParser) -> None:
    """The options of `neusight carry`."""
    carry.add_argument("profile", metavar="PROFILE", help="a trace file of torch.profiler")
    carry.add_argument("--to", action="append", required=True, metavar="GPU",
                       help="the GPU to carry it to, also several")  # fmt: skip
    carry.add_argument("--from", dest="source", metavar="GPU",
                       help="the GPU of the profile, where it does not state it")  # fmt: skip
    add_options(carry, "--price")
    carry.add_argument("--predictor", metavar="NAME", help="predictor used (tiled)")
    carry.add_argument("--trace", metavar="DIR", help="write a trace for TensorBoard there")
    add_options(carry, "--json")


def run(options: argparse.Namespace) -> int:
    """Prints the forecasts, side by side where there are several; the exit code."""
    from neusight.integrations.profiles.carrying.carried import carry
    from neusight.integrations.profiles.reading.reading import read_profile
    from neusight.predictors.gpu import find_gpu

    names = list(
        dict.fromkeys(find_gpu(name).name for text in options.to for name in text.split(","))
    )
    require_predictor(options.predictor)
    prices = parse_prices(options.price, gpus=names)
    profile = read_profile(options.profile, keep_arguments=True)
    forecasts, left_out = [], {}
    for name in names:
        try:
            forecasts.append(
                carry(profile, name, source=options.source, predictor=options.predictor)
            )
        except UnsupportedKernelError as error:
            if len(names) == 1:
                raise
            left_out[name] = str(error)
    if not forecasts:
        raise UnsupportedKernelError(f"{', '.join(left_out)}: {next(iter(left_out.values()))}")
    lines = [forecasts[0].summary()] if len(forecasts) == 1 else []
    compared = lay_side_by_side(forecasts, prices)
    if len(names) > 1 or prices:
        lines += [compared.table(), *([compared.words()] if compared.words() else [])]
    if len(forecasts) > 1:
        stated = dict.fromkeys(text for one in forecasts for text in one.recording.warnings)
        lines += [f"  note      {text}" for text in stated]
    lines += [f"  left out  {name}: {why}" for name, why in left_out.items()]
    print(printable_text("\n".join(["", *lines])))
    problems: list[str] = []
    if options.trace:
        problems += write_traces(options.trace, forecasts)
    if options.json:
        document = {
            "forecasts": [forecast.to_json() for forecast in forecasts],
            "side_by_side": compared.to_json(),
            "left_out": left_out,
        }
        problems += tried(lambda: write_json(options.json, document), options.json)
    return report_problems(problems)
