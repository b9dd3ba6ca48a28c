"""Whole models against published figures of one GPU: data/e2e_published_dev.csv.

    python benchmarks/published.py                    forecasts every eager case, a line each
    python benchmarks/published.py --mode compiled    the compiled ones instead
    python benchmarks/published.py --only vgg         those with this in their names
    python benchmarks/published.py --update           stores better scores; worse with --worse

timm models need `pip install timm`, others transformers (extra `[test]`); what cannot be built is
listed with its reason. Compiled cases are kept under `--recordings` and priced again (delete the
folder after a change of recording). Nothing is fitted to these figures: they come from other
people's hosts, clocks and versions of torch, and say what a user may expect.
"""

from __future__ import annotations

import argparse
import csv
import json
import tempfile
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch

import neusight
from neusight.forecast import Forecast

DATA = Path(__file__).parents[2] / "shared" / "data" / "e2e_published_dev.csv"
STORED = Path(__file__).with_name("published_scores.json")
RECORDINGS = Path(tempfile.gettempdir()) / "neusight-published-recordings"

#: Steps of a case: the first builds caches and states.
STEPS = 4

#: What a group's median error may grow by before it counts as worse.
TOLERANCE = 0.003

_GPUS = {
    "A100-SXM-80G": "A100-SXM4-80GB",
    "A100-UNKNOWN": "A100-PCIE-40GB",
    "V100-SXM-16G": "V100-SXM2-16GB",
    "V100-UNKNOWN": "V100-PCIE-16GB",
}
_GEFORCE = "RTX"
_EAGER = ("no", "no (nvFuser/TorchScript used by repo)")

#: How compiled cases call torch.compile, by the table's word.
_COMPILE_MODES = {"inductor": "default", "inductor default": "default",
                  "max-autotune": "max-autotune"}  # fmt: skip


@dataclass(frozen=True)
class Case:
    """A published figure as the time of one step of `batch` samples, ms."""

    name: str
    gpu: str
    model: str
    batch: int
    size: int
    dtype: str
    mode: str
    notes: str
    step_ms: float
    compile: str = ""

    @property
    def group(self) -> str:
        """What scores are kept by."""
        kind = "GeForce" if self.gpu.startswith(_GEFORCE) else "data centre"
        return f"{kind} {self.mode}{' compiled' if self.compile else ''}"


def cases(mode: str = "eager", path: Path = DATA) -> list[Case]:
    """The eager or the compiled figures of one GPU that say a time."""
    wanted = _EAGER if mode == "eager" else _COMPILE_MODES
    with path.open(newline="", encoding="utf-8") as stream:
        rows = [row for row in csv.DictReader(stream) if row["n_gpus"] == "1"]
    found = []
    for row in rows:
        if row["compile"] not in wanted or "memory" in row["metric"]:
            continue
        batch, value = int(row["batch"]), float(row["value"])
        step_ms = value if row["metric"].startswith(("ms/", "latency")) else 1e3 * batch / value
        if "iterations/s" in row["metric"]:
            step_ms = 1e3 / value
        found.append(
            Case(
                row["case_id"],
                _GPUS.get(row["gpu_key"], row["gpu_key"]),
                row["model"],
                batch,
                int(row["seq_or_res"].split()[0]),
                row["dtype"],
                row["mode"],
                row["notes"],
                step_ms,
                _COMPILE_MODES.get(row["compile"], ""),
            )
        )
    return found


class CannotBuild(Exception):
    """The text says what is missing."""


Step = Callable[[], object]


def step_of(case: Case) -> Step:
    """One step of the case as its source ran it; CannotBuild where that is not possible here."""
    for prefix, build in _BUILDERS.items():
        if case.name.startswith(prefix):
            return build(case)
    raise CannotBuild(f"{case.model}: no builder")


def _timm(case: Case) -> Step:
    try:
        import timm
    except ImportError as error:
        raise CannotBuild("timm is not installed") from error
    model = timm.create_model(_TIMM_NAMES.get(case.model, case.model)).cuda()
    layout = torch.channels_last if "nhwc" in case.notes else torch.contiguous_format
    model = model.to(memory_format=layout)
    images = torch.randn(case.batch, 3, case.size, case.size, device="cuda")
    images = images.contiguous(memory_format=layout)
    run = _compiled(case, model)
    return _stepping(case, model, lambda: run(images))


def _compiled(case: Case, model: Callable[..., Any]) -> Callable[..., Any]:
    """The model, compiled where the case is."""
    return torch.compile(model, mode=case.compile) if case.compile else model


#: NVIDIA's names of the models that timm has too.
_TIMM_NAMES = {
    "resnext101-32x4d": "resnext101_32x4d",
    "se-resnext101-32x4d": "seresnext101_32x4d",
}


def _vision_transformers(case: Case) -> Step:
    import transformers

    name = next(name for name in _HF_VISION if name in case.model)
    config, model_class = _HF_VISION[name](transformers)
    model = model_class(config).cuda().eval()
    images = torch.randn(case.batch, 3, case.size, case.size, device="cuda")
    run = _compiled(case, model)
    return _stepping(case, model, lambda: run(pixel_values=images).logits)


_HF_VISION: dict[str, Callable[[Any], tuple[Any, Any]]] = {
    "beit-base": lambda hf: (hf.BeitConfig(num_labels=21841), hf.BeitForImageClassification),
    "vit-base": lambda hf: (hf.ViTConfig(num_labels=1000), hf.ViTForImageClassification),
    "convnext-large": lambda hf: (
        hf.ConvNextConfig(hidden_sizes=[192, 384, 768, 1536], depths=[3, 3, 27, 3]),
        hf.ConvNextForImageClassification,
    ),
}


def _another_program(case: Case) -> Step:
    raise CannotBuild("its source runs fused kernels, and logits of masked positions alone")


def _no_diffusers(case: Case) -> Step:
    raise CannotBuild("Stable Diffusion is not built here")


def _segment_anything(case: Case) -> Step:
    import transformers

    vision = transformers.SamVisionConfig(
        hidden_size=1280,
        num_hidden_layers=32,
        num_attention_heads=16,
        mlp_dim=5120,
        global_attn_indexes=[7, 15, 23, 31],
    )
    config = transformers.SamConfig(vision_config=vision.to_dict())
    dtype = torch.bfloat16 if case.dtype == "bf16" else torch.float32
    model = transformers.SamModel(config).to("cuda", dtype).eval()
    model.vision_encoder.forward = _compiled(case, model.vision_encoder.forward)
    images = torch.randn(case.batch, 3, case.size, case.size, device="cuda", dtype=dtype)
    points = torch.zeros(case.batch, 1, 1, 2, device="cuda", dtype=dtype)
    return _stepping(case, model, lambda: model(pixel_values=images, input_points=points))


_BUILDERS: dict[str, Callable[[Case], Step]] = {
    "timm-": _timm,
    "dle-train-resnext": _timm,
    "dle-inf-": _timm,
    "dle-bertlarge": _another_program,
    "diffusers-": _no_diffusers,
    "hfcompile-": _vision_transformers,
    "samfast-": _segment_anything,
}


def _stepping(case: Case, model: torch.nn.Module, forward: Step) -> Step:
    """Inference, or a training step by SGD."""
    is_mixed = "amp" in case.dtype
    torch.backends.cuda.matmul.allow_tf32 = case.dtype == "tf32"
    context = (
        (lambda: torch.autocast("cuda", dtype=torch.float16)) if is_mixed else lambda: nullcontext()
    )
    if case.mode == "inf":
        model.eval()

        def infer() -> object:
            with torch.no_grad(), context():
                return forward()

        return infer
    model.train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def train() -> object:
        with context():
            found: Any = forward()
        found.float().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        return found

    return train


def forecast(case: Case, recordings: Path) -> tuple[float, float, float]:
    """The step's forecast and the ends of its 80 % interval, ms."""
    path = recordings / f"{case.name}.json"
    if not case.compile:
        found = _recorded(case)
    elif path.exists():
        found = Forecast.load(path)
    else:
        found = _recorded(case)
        path.parent.mkdir(parents=True, exist_ok=True)
        found.save(path)
    latency = found.step_latency_us
    return latency.median / 1e3, latency.low / 1e3, latency.high / 1e3


def _recorded(case: Case) -> Forecast:
    was = torch.backends.cuda.matmul.allow_tf32
    try:
        with warnings.catch_warnings(), neusight.forecast_on(case.gpu) as found:
            warnings.simplefilter("ignore")
            step = step_of(case)
            for _ in range(STEPS):
                step()
                if case.mode == "inf":
                    torch.cuda.synchronize()
                found.step()
    finally:
        torch.backends.cuda.matmul.allow_tf32 = was
    return found


def markdown(errors: dict[str, list[float]], inside: list[bool], mode: str = "eager") -> str:
    """A section for ACCURACY.md."""
    lines = [_MARKDOWN if mode == "eager" else _COMPILED_MARKDOWN]
    for name, values in sorted(errors.items()):
        lines.append(f"| {name} | {len(values)} | {median(values) * 100:.1f} |")
    share = sum(inside) / len(inside)
    return "\n".join(lines) + f"\n\n{share:.0%} lie inside the 80 % interval.\n"


_MARKDOWN = """## Published models

`python benchmarks/published.py`: eager ResNets, VGG, DenseNet, ConvNeXt, ViT, BEiT and SAM on one
GPU beside figures that others published (timm, Hugging Face, NVIDIA). Nothing was fitted to them.

| | cases | median |
|---|---:|---:|"""

_COMPILED_MARKDOWN = """## Published models, compiled

`python benchmarks/published.py --mode compiled`: the same under `torch.compile`, published with
torch 2.0 to 2.9, fused here by the torch of this machine. Nothing was fitted to them.

| | cases | median |
|---|---:|---:|"""


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mode", choices=("eager", "compiled"), default="eager")
    parser.add_argument("--only", default="", help="only cases with this in their names")
    parser.add_argument("--recordings", type=Path, default=RECORDINGS)
    parser.add_argument("--markdown", type=Path, help="write a section for ACCURACY.md")
    parser.add_argument("--update", action="store_true", help="store the scores")
    parser.add_argument("--worse", action="store_true", help="store worse ones too")
    options = parser.parse_args()
    if not DATA.exists():
        print(f"skipped: there are no published figures at {DATA}")
        return 0
    errors: dict[str, list[float]] = {}
    inside: list[bool] = []
    reasons: set[str] = set()
    for case in cases(options.mode):
        if options.only not in case.name:
            continue
        try:
            ms, low, high = forecast(case, options.recordings)
        except (CannotBuild, ImportError) as error:
            reasons.add(f"{case.name}: {error}")
            continue
        error_share = ms / case.step_ms - 1.0
        errors.setdefault(case.group, []).append(abs(error_share))
        inside.append(low <= case.step_ms <= high)
        print(
            f"{case.gpu:<16} {case.name:<66} {case.step_ms:>9.2f} {ms:>9.2f}"
            f" [{low:.1f}, {high:.1f}] {error_share:>+7.1%}",
            flush=True,
        )
    return _report(errors, inside, reasons, options)


def _report(
    errors: dict[str, list[float]],
    inside: list[bool],
    reasons: set[str],
    options: argparse.Namespace,
) -> int:
    now = {name: round(median(values), 4) for name, values in sorted(errors.items())}
    for name, error in now.items():
        print(f"{name:<20} {len(errors[name]):>3} cases, median error {error:.1%}")
    if inside:
        print(f"inside the 80 % interval: {sum(inside) / len(inside):.0%}")
    for reason in sorted(reasons):
        print(f"not forecast: {reason}")
    if options.markdown:
        options.markdown.write_text(markdown(errors, inside, options.mode), encoding="utf-8")
    if options.only:
        return 0
    stored = json.loads(STORED.read_text()) if STORED.exists() else {}
    lines = [
        f"{name}: {stored[name]:.1%} -> {error:.1%}"
        for name, error in now.items()
        if name in stored and error > stored[name] + TOLERANCE
    ]
    print("\n".join(["worse:", *lines]) if lines else "nothing got worse")
    if options.update and (not lines or options.worse):
        STORED.write_text(json.dumps({**stored, **now}, indent=1, sort_keys=True) + "\n")
        return 0
    return 1 if lines else 0


if __name__ == "__main__":
    raise SystemExit(main())
