"""Operators of real profiles beside those of forecasts, by name and by place in the call tree.

    python benchmarks/operator_names.py [--measured DIR ...] [--traces DIR] [--update] [NAME ...]

DIR of --measured has workloads that `benchmarks/measure.py` profiled on a GPU (torch 2.11), and
small_programs where there are such profiles; that of --traces public profiles of older releases.
Each is forecast by its own script and paired with its profile; what a data loader calls is left
out on both sides, as the public profile of ResNet-50 reads files that are not there. Results:
results/operator_names.csv, a row a profile.
Models of torchvision or transformers are left out where these are not installed.
The profiles of an H200 are of transformers 5.17: other versions call other operators.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from runpy import run_path

import torch
from tables import read_table, write_table
from torch import nn

import neusight
from neusight.forecast import Forecast
from neusight.integrations.profiles.comparison.operator_pairs import (
    OperatorPairs,
    paired_operators,
)
from neusight.integrations.profiles.reading.profile import Profile
from neusight.integrations.profiles.reading.reading import read_profile, read_profile_events
from neusight.integrations.profiles.workloads import loaded
from neusight.output.trace.file import trace_events

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results" / "operator_names.csv"
STEPS = 4
PROFILE = ".pt.trace.json.gz"


def forecast_of_workload(figures: Path) -> Forecast:
    """The forecast of a measured step by its script, on the GPU that it was measured on."""
    found = json.loads(figures.read_text())
    name, *arguments = found["command"]
    script = HERE / "workloads" / Path(name).name
    with neusight.forecast_on(found["environment"]["gpu"]) as forecast, loaded(script) as module:
        torch.manual_seed(0)
        step = module.build(module.parser().parse_args(arguments))
        for _ in range(STEPS):
            step()
            forecast.step()
    return forecast


def toy_step() -> Forecast:
    """The smallest of the public profiles: a linear layer, ReLU and SGD on an MI250."""
    with neusight.forecast_on("MI250") as forecast:
        model = nn.Sequential(nn.Linear(4, 4), nn.ReLU()).cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for _ in range(STEPS):
            images, targets = torch.randn(8, 4).cuda(), torch.randn(8, 4).cuda()
            nn.functional.mse_loss(model(images), targets).backward()
            optimizer.step()
            forecast.step()
    return forecast


def public(name: str) -> Forecast:
    """One that examples/compare_with_profile.py forecasts."""
    sys.path.insert(0, str(HERE.parent / "examples"))
    from compare_with_profile import forecast_of

    found: Forecast = forecast_of(name)
    return found


#: Name here and how the profile's file name begins.
PUBLIC: dict[str, tuple[str, Callable[[], Forecast]]] = {
    "bert-small (torch 2.6)": ("h100__gaunernst_bert-small", lambda: public("bert-small")),
    "vit-base (torch 2.6)": ("h100__Falconsai", lambda: public("vit-base")),
    "toy (ROCm 6.2)": ("amd_trace__mi250", toy_step),
    "resnet50 (torch 1.9)": ("v100__resnet50_train", lambda: public("resnet50")),
}


def forecast_of_small_program(profile: Path) -> Forecast:
    """The forecast of a program of programs.py beside its profile."""
    gpu = json.loads((profile.parents[1] / "environment.json").read_text())["gpu"]
    programs = run_path(str(profile.with_name("programs.py")))["PROGRAMS"]
    with neusight.forecast_on(gpu) as forecast:
        torch.manual_seed(0)
        step = programs[profile.name.removesuffix(PROFILE)]()
        for _ in range(STEPS):
            step()
            forecast.step()
    return forecast


def cases(
    measured: Sequence[Path], traces: Path | None
) -> Iterator[tuple[str, Path, Callable[[], Forecast]]]:
    """Name, profile and forecast of each."""
    for folder in measured:
        for figures in sorted(folder.glob("workloads/*.json")):
            profile = figures.with_suffix(PROFILE)
            if profile.is_file():
                name = f"{folder.name} {figures.stem}"
                yield name, profile, lambda figures=figures: forecast_of_workload(figures)
        for profile in sorted(folder.glob(f"small_programs/*{PROFILE}")):
            name = f"{folder.name} {profile.name.removesuffix(PROFILE)}"
            yield name, profile, lambda profile=profile: forecast_of_small_program(profile)
    for name, (prefix, forecast) in PUBLIC.items() if traces else ():
        for profile in sorted(traces.glob(f"{prefix}*")) if traces else ():
            yield name, profile, forecast


def without_loader(profile: Profile) -> Profile:
    """A profile without what its steps begin with while a data loader runs."""
    loading = [(step.start_ns, step.start_ns + step.loader_ns) for step in profile.steps]
    kept = (op for op in profile.ops if not any(low <= op.start_ns < high for low, high in loading))
    return replace(profile, ops=tuple(kept))


def pairs_of(profile: Path, forecast: Forecast) -> OperatorPairs:
    """A step of a profile beside one of a forecast."""
    real = without_loader(read_profile(profile))
    trace = trace_events(forecast.timeline, forecast.memory, forecast.gpu)
    ours = without_loader(read_profile_events(trace, source="the forecast"))
    real_step, our_step = real.median_step(), ours.median_step()
    assert real_step is not None and our_step is not None
    return paired_operators(real, real_step, ours, our_step)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--measured", type=Path, nargs="*", default=[])
    parser.add_argument("--traces", type=Path)
    parser.add_argument("--update", action="store_true", help="write the table of results")
    parser.add_argument("names", nargs="*")
    arguments = parser.parse_args()
    found: dict[str, OperatorPairs] = {}
    for name, profile, forecast in cases(arguments.measured, arguments.traces):
        if arguments.names and name not in arguments.names:
            continue
        try:
            pairs = found[name] = pairs_of(profile, forecast())
        except ModuleNotFoundError as error:
            print(f"{name}: left out, {error}")
            continue
        print(
            f"{name}: {pairs.num_measured:,} operators, {pairs.name_share:.1%} by name, "
            f"{pairs.shared_name_share:.1%} of those of both versions, {pairs.place_share:.1%} in "
            f"place, {pairs.explained():,} without for a known reason"
        )
    total = sum(pairs.num_measured for pairs in found.values())
    if total:
        by_name = sum(pairs.num_by_name for pairs in found.values()) / total
        in_place = sum(pairs.num_in_place for pairs in found.values()) / total
        shared = total - sum(pairs.num_excused for pairs in found.values())
        print(
            f"All: {total:,} operators, {by_name:.1%} by name, {by_name * total / shared:.1%} of "
            f"those of both versions, {in_place:.1%} in place"
        )
    if arguments.update:
        update(found)


def update(found: dict[str, OperatorPairs]) -> None:
    """Writes the table; profiles that were left out keep their rows."""
    rows = [
        [name, pairs.num_measured, pairs.num_forecast, pairs.num_by_name, pairs.num_in_place,
         pairs.explained(), pairs.num_excused]
        for name, pairs in found.items()
    ]  # fmt: skip
    kept = [list(row.values()) for row in read_table(RESULTS) if row["profile"] not in found]
    columns = ("profile", "measured", "forecast", "by_name", "in_place", "explained", "excused")
    write_table(RESULTS, columns, sorted([*kept, *rows], key=lambda row: str(row[0])))


if __name__ == "__main__":
    main()
