"""Whole models against published end-to-end latencies: the tables of data/paper_fp32.

    python benchmarks/end_to_end.py                      forecasts every case, a line each
    python benchmarks/end_to_end.py --gpu H100           those of one GPU
    python benchmarks/end_to_end.py --markdown FILE      the table by GPU, for ACCURACY.md

FP32, eager attention, Hugging Face models built from their configurations: inference is one forward
(the first token), training forward and backward without an optimizer. Compiled and distributed
cases are left out. Needs the extras `[test]` and `[data]`.
"""

from __future__ import annotations

import argparse
import csv
import json
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median
from typing import Any

DATA = Path(__file__).parents[2] / "shared" / "data" / "paper_fp32"

#: Steps of a case: the first builds the caches.
STEPS = 3


@dataclass(frozen=True)
class Case:
    """A measured case: what ran on which GPU, and how long a step took, ms."""

    gpu: str
    model: str
    mode: str
    seq_len: int
    batch: int
    step_ms: float


@dataclass(frozen=True)
class Result:
    """A case and its forecast, ms; `low_ms` to `high_ms` is the 80 % interval."""

    case: Case
    forecast_ms: float
    low_ms: float
    high_ms: float
    unmapped: tuple[str, ...]

    @property
    def error(self) -> float:
        """The signed error, a share."""
        return self.forecast_ms / self.case.step_ms - 1.0

    @property
    def is_inside(self) -> bool:
        """Whether the measurement lies in the interval."""
        return self.low_ms <= self.case.step_ms <= self.high_ms


def cases(folder: Path = DATA) -> list[Case]:
    """The cases that one GPU runs eagerly."""
    with (folder / "e2e_labels.csv").open(newline="", encoding="utf-8") as stream:
        rows = [row for row in csv.DictReader(stream) if not row["option"]]
    return [
        Case(
            row["gpu"],
            row["model"],
            row["mode"],
            int(row["seq_len"]),
            int(row["batch"]),
            float(row["step_ms"]),
        )
        for row in rows
    ]


def forecast(case: Case, folder: Path = DATA) -> Result:
    """Runs the model's steps without a GPU."""
    import torch
    import transformers

    import neusight

    settings = json.loads((folder / "model_configs.json").read_text())[case.model]
    model_class = getattr(transformers, settings["architectures"][0])
    config: Any = model_class.config_class(
        **{key: value for key, value in settings.items() if key not in _NOT_OF_THE_MODEL}
    )
    config._attn_implementation, config.use_cache = "eager", False
    with neusight.forecast_on(case.gpu) as found:
        with torch.device("cuda"):
            model = model_class(config)
        tokens = torch.zeros(case.batch, case.seq_len, dtype=torch.long, device="cuda")
        inputs = {"input_ids": tokens}
        if config.is_encoder_decoder:
            inputs["decoder_input_ids"] = tokens
        model.train(case.mode == "train")
        for _ in range(STEPS):
            with torch.set_grad_enabled(case.mode == "train"):
                logits = model(**inputs).logits
            if case.mode == "train":
                logits.sum().backward()
                model.zero_grad()
            found.step()
    latency = found.step_latency_us
    return Result(
        case, latency.median / 1e3, latency.low / 1e3, latency.high / 1e3, tuple(found.unmapped)
    )


_NOT_OF_THE_MODEL = ("architectures", "transformers_version", "torch_dtype", "model_type")


def markdown(results: list[Result]) -> str:
    """A section for ACCURACY.md."""
    lines = [_HEAD]
    for gpu in sorted({result.case.gpu for result in results}):
        own = [result for result in results if result.case.gpu == gpu]
        errors = [abs(result.error) for result in own]
        inside = fmean(result.is_inside for result in own)
        total = sum(result.forecast_ms for result in own) / sum(r.case.step_ms for r in own) - 1.0
        lines.append(
            f"| {gpu} | {len(own)} | {fmean(errors):.1%} | {median(errors):.1%} |"
            f" {max(errors):.1%} | {total:+.1%} | {inside:.0%} |".replace("%", "")
        )
    return "\n".join(lines) + "\n"


_HEAD = """## Whole models in FP32

`python benchmarks/end_to_end.py`: BERT-large, GPT-2-large, GPT-3-XL and 2.7B, OPT-1.3B,
Switch-XL-4, forward or forward and backward, against the NeuSight paper's latencies. Nothing was
fitted to them; single kernels of these GPUs were seen in training, but for the H100.

| GPU | cases | mean | median | worst | sum | in 80 % |
|---|---:|---:|---:|---:|---:|---:|"""


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gpu", default="", help="only GPUs with this in their name")
    parser.add_argument("--markdown", type=Path)
    options = parser.parse_args()
    if not DATA.exists():
        print(f"skipped: there are no measured latencies at {DATA}")
        return 0
    results = []
    for case in cases():
        if options.gpu.lower() not in case.gpu.lower():
            continue
        result = forecast(case)
        results.append(result)
        print(
            f"{case.gpu:<24} {case.model:<11} {case.mode:<6} {case.seq_len:>5} x {case.batch:<3}"
            f" measured {case.step_ms:8.1f} ms, forecast {result.forecast_ms:8.1f}"
            f" [{result.low_ms:.1f}, {result.high_ms:.1f}], {result.error:+.1%}"
            f" {' '.join(result.unmapped)}",
            flush=True,
        )
    print(f"mean error {fmean(abs(result.error) for result in results):.1%}")
    if options.markdown:
        options.markdown.write_text(markdown(results), encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
