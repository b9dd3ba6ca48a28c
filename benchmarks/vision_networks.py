"""Steps of torchvision's CNNs against measured ones: data/torchvision_cnn.

    python benchmarks/vision_networks.py                    a table by GPU, mode and dtype
    python benchmarks/vision_networks.py --gpu V100 --list  a line for each case
    python benchmarks/vision_networks.py --update           stores the scores (ratchet.py)
    python benchmarks/vision_networks.py --torchvision DIR  where a wheel of torchvision is unpacked

A step is what the authors timed between two synchronisations: the copy of the batch, forward, and
in training the loss and backward, without an optimizer; `cudnn.benchmark` is set. Before torch 2.0
`zero_grad` filled the gradients with zeros and backward added to them (half a GB in VGG): hosts
whose CUDA is older run so. Each program is recorded once and kept under `--recordings`, and priced
on every GPU. Rows of several GPUs are of nn.DataParallel and are not run. Where the host binds, the
machine decides: those rows are counted apart. Nothing is fitted to these figures but the launches
of the host under WSL 2, to half of its models, and which of other cards' convolutions price a
Radeon's (predictors/learned/radeon.py).
"""

from __future__ import annotations

import argparse
import importlib
import importlib.machinery
import sys
import tempfile
import types
import warnings
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import ratchet
import torch
from tables import read_table

import neusight
from neusight.forecast import Forecast

FOLDER = Path(__file__).resolve().parents[2] / "shared" / "data" / "torchvision_cnn"
DATA = FOLDER / "times.csv"
HOSTS = FOLDER / "hosts.csv"
RECORDINGS = Path(tempfile.gettempdir()) / "neusight-vision-recordings"

#: Steps that are recorded; the one before the last is compared: the copy of a batch belongs to the
#: step before it.
STEPS = 4


@dataclass(frozen=True)
class Case:
    """A measured step."""

    gpu: str
    host: str
    model: str
    mode: str
    dtype: str
    batch: int
    measured_us: float
    #: Whether `zero_grad` fills gradients with zeros instead of dropping them.
    keeps_gradients: bool = False
    is_wsl: bool = False

    @property
    def program(self) -> str:
        """What was run, whatever it ran on."""
        kept = ".kept_gradients" if self.keeps_gradients else ""
        return f"{self.model}.{self.mode}.{self.dtype}.{self.batch}{kept}"


@dataclass(frozen=True)
class Result:
    """A case and what is forecast of it."""

    case: Case
    forecast_us: float
    low_us: float
    high_us: float
    bound: str

    @property
    def error(self) -> float:
        """The signed error, a share."""
        return self.forecast_us / self.case.measured_us - 1.0


def cases() -> Iterator[Case]:
    """Every measured step of one GPU."""
    older, wsl = set(_older_hosts()), set(_wsl_hosts())
    for row in read_table(DATA):
        if row["num_gpus"] == "1":
            yield Case(
                row["gpu"], row["host"], row["model"], row["mode"], row["dtype"],
                int(row["batch_per_gpu"]), float(row["median_ms"]) * 1e3,
                row["mode"] == "training" and row["host"] in older, row["host"] in wsl,
            )  # fmt: skip


def _wsl_hosts() -> Iterator[str]:
    return (row["host"] for row in read_table(HOSTS) if "WSL" in row["kernel"])


#: The oldest CUDA that torch 2.0 was built for.
_CUDA_OF_TORCH_2 = (11, 7)


def _older_hosts() -> Iterator[str]:
    """Hosts whose torch is older than 2.0, by their CUDA; where it is not known, the rows are of
    2018 and 2019 (the data's README). "None" is ROCm, of 2024."""
    for row in read_table(HOSTS):
        version = tuple(int(part) for part in row["cuda"].split(".")[:2] if part.isdigit())
        if row["cuda"] != "None" and version < _CUDA_OF_TORCH_2:
            yield row["host"]


#: Modules that the models import and do not need, and the names that they take from them.
_LEFT_OUT: dict[str, dict[str, object]] = {
    "torchvision.transforms": {},
    "torchvision.transforms._presets": {"ImageClassification": dict, "InterpolationMode": object},
    "torchvision.utils": {
        "_log_api_usage_once": lambda item: None,
        "_make_ntuple": lambda value, count: (value,) * count,
    },
}


def find_torchvision(folder: Path | None) -> None:
    """Makes its models importable: the package where it is installed, else those of an unpacked
    wheel, whose compiled part wants a CUDA build of torch and is left out."""
    if folder is None:
        importlib.import_module("torchvision")
        return
    for name in ("torchvision", "torchvision.models", "torchvision.ops"):
        module = types.ModuleType(name)
        module.__path__ = [str(folder.joinpath(*name.split(".")))]
        module.__spec__ = importlib.machinery.ModuleSpec(name, None, is_package=True)
        sys.modules[name] = module
    for name, values in _LEFT_OUT.items():
        sys.modules[name] = types.ModuleType(name)
        vars(sys.modules[name]).update(values)


#: Where models whose names do not state are defined.
_FAMILIES = ("resnet", "densenet", "squeezenet", "vgg", "mobilenetv3", "mobilenetv2", "mnasnet",
             "shufflenetv2")  # fmt: skip


def model_of(name: str) -> torch.nn.Module:
    """torchvision's model of that name, with random weights."""
    for family in _FAMILIES:
        module = importlib.import_module(f"torchvision.models.{family}")
        if hasattr(module, name):
            built: torch.nn.Module = getattr(module, name)()
            return built
    raise LookupError(f"torchvision has no {name}")


def run(case: Case) -> None:
    """The authors' steps."""
    torch.backends.cudnn.benchmark = True
    model = model_of(case.model).cuda()
    images = torch.rand(case.batch, 3, 224, 224)
    if case.dtype == "fp16":
        model, images = model.half(), images.half()
    labels = torch.randint(1000, (case.batch,), device="cuda")
    criterion = torch.nn.CrossEntropyLoss().cuda()
    model.train(case.mode == "training")
    for _ in range(STEPS):
        torch.cuda.synchronize()
        if case.mode == "training":
            model.zero_grad(set_to_none=not case.keeps_gradients)
            criterion(model(images.to("cuda")), labels).backward()
        else:
            with torch.no_grad():
                model(images.to("cuda"))
        torch.cuda.synchronize()


def recorded(case: Case, folder: Path) -> Forecast:
    """The program's forecast on the case's GPU, recorded where it is not kept yet."""
    path = folder / f"{case.program}.json"
    if not path.exists():
        before = torch.backends.cudnn.benchmark
        with warnings.catch_warnings(), neusight.forecast_on("V100-PCIE-32GB") as found:
            warnings.simplefilter("ignore")
            run(case)
        torch.backends.cudnn.benchmark = before
        path.parent.mkdir(parents=True, exist_ok=True)
        found.save(path)
    return _on(path, case.gpu, "wsl" if case.is_wsl else None)


@lru_cache(maxsize=1)
def _kept(path: Path) -> Forecast:
    return Forecast.load(path)


@lru_cache(maxsize=64)
def _on(path: Path, gpu: str, host: str | None) -> Forecast:
    """What was kept, priced on a GPU, of which several hosts have one."""
    return _kept(path).on(gpu, host=host)


def result_of(case: Case, folder: Path) -> Result:
    """Forecasts one case."""
    found = recorded(case, folder)
    steps = found.timeline.steps
    time_us = (steps[-2].done_ns - steps[-3].done_ns) / 1e3
    latency = found.step_latency_us
    scale = time_us / latency.median
    return Result(case, time_us, latency.low * scale, latency.high * scale, found.bound)


def table(found: list[ratchet.Row]) -> str:
    """Errors by group, of all that the GPU binds, and of all."""
    groups: dict[str, list[ratchet.Row]] = defaultdict(list)
    for row in sorted(found, key=lambda row: (row.gpu, row.mode, row.dtype, row.what)):
        groups[f"{row.gpu} {row.mode} {row.dtype}, {row.what}"].append(row)
    bound = [row for row in found if row.what == "GPU binds"]
    totals = {"where the GPU binds": bound} if bound else {}
    return ratchet.summary({**groups, **totals, "all": found})


def rows() -> list[ratchet.Row]:
    """What the ratchet holds."""
    if not DATA.exists():
        return []
    find_torchvision(None)
    return rows_of(result_of(case, RECORDINGS) for case in cases())


def rows_of(results: Iterable[Result]) -> list[ratchet.Row]:
    """The results as the ratchet takes them."""
    return [
        ratchet.Row(
            "host binds" if result.bound == "host" else "GPU binds", result.case.gpu,
            result.case.dtype, "NCHW", result.case.mode, result.error,
            result.low_us <= result.case.measured_us <= result.high_us,
        )
        for result in results
    ]  # fmt: skip


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gpu", default="", help="only GPUs with this in their name")
    parser.add_argument("--only", default="", help="only programs with this in their name")
    parser.add_argument("--list", action="store_true", help="a line for each case")
    parser.add_argument("--torchvision", type=Path, help="folder of an unpacked wheel")
    parser.add_argument("--recordings", type=Path, default=RECORDINGS)
    options = ratchet.parsed(parser, DATA, "measured steps")
    find_torchvision(options.torchvision)
    results = []
    for case in sorted(cases(), key=lambda case: (case.program, case.gpu)):
        if options.gpu.lower() in case.gpu.lower() and options.only in case.program:
            result = result_of(case, options.recordings)
            results.append(result)
            if options.list:
                print(
                    f"{case.host:<34} {case.program:<44} {case.measured_us:>10.0f}"
                    f" {result.forecast_us:>10.0f} {result.error:>+7.1%} {result.bound}",
                    flush=True,
                )
    if not results:
        print("no such case")
        return 2
    found = rows_of(results)
    print(table(found))
    if options.gpu or options.only:
        return 0
    return ratchet.judged("torchvision_cnn", found, options)


if __name__ == "__main__":
    sys.exit(main())
