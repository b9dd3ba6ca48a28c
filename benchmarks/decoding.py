"""Tokens a second of one sequence, against gpt-fast's and torchao's published figures.

    python benchmarks/decoding.py --programs DIR              every row that a recipe reaches
    python benchmarks/decoding.py --programs DIR --only 7b    those with this in their name
    python benchmarks/decoding.py --programs DIR --csv benchmarks/results/decoding.csv

`--programs` is a folder with a checkout of gpt-fast (`gpt-fast/model.py`). Each row is
`recipes/gpt_fast.py` forecast on the GPU that its source names, under torch.compile and CUDA
graphs; nothing is fitted to these figures. Recordings are kept under `--results`, and priced again
(delete the folder after a change of what is recorded). A row takes a minute of CPU or more.

The published rates are of 200 tokens. Of the few that are recorded the median counts, as the first
ones wait for the host, which is late from the prompt.

Left out are Mixtral (a folder of its own beside gpt-fast's model.py) and torchao's int8 with
dynamic activations, which gpt-fast does not quantize to.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from recordings import kept_recording
from tables import read_table, write_table

import neusight

PUBLISHED = Path(__file__).parents[2] / "shared" / "data" / "e2e_published_dev.csv"
RECIPE = Path(__file__).parent / "recipes" / "gpt_fast.py"
RESULTS = Path(tempfile.gettempdir()) / "neusight-decoding"

#: GPUs in the words of the sources.
_GPUS = {
    "A100-SXM-80GB power-limited 330W": "A100-SXM4-80GB@330W",
    "A100 (80GB SXM assumed; README: single A100)": "A100-SXM4-80GB",
}
#: Models in the words of gpt-fast's model.py. Its mixture of experts is a folder of its own.
_MODELS = {"Llama-2-7B": "7B", "Llama-2-70B": "70B", "Llama-3.1-8B": "llama-3.1-8b"}
_WEIGHTS = {
    "bf16": "bf16",
    "int8 weight-only": "int8",
    "int4 g32": "int4-32",
    "int4wo-64": "int4-64",
}


@dataclass(frozen=True)
class Row:
    """A published figure and the command that forecasts it."""

    name: str
    weights: str
    num_gpus: int
    tokens_per_s: float
    words: tuple[str, ...]


def rows(programs: Path) -> Iterator[Row]:
    """The rows that the recipe reaches."""
    for row in read_table(PUBLISHED):
        model, weights = _MODELS.get(row["model"]), _WEIGHTS.get(row["dtype"])
        is_decode = row["mode"] == "inf (decode)" and row["metric"] == "tokens/s"
        if not (is_decode and model and weights and row["gpu"] in _GPUS):
            continue
        ranks = ("--world-size", row["n_gpus"]) if row["n_gpus"] != "1" else ()
        words = (
            "--gpu", _GPUS[row["gpu"]], *ranks, str(RECIPE), "--programs",
            str(programs), "--model", model, "--weights", weights,
        )  # fmt: skip
        yield Row(row["case_id"], weights, int(row["n_gpus"]), float(row["value"]), words)


def forecast(folder: Path, row: Row) -> float:
    """Tokens a second; RuntimeError where it failed."""
    texts = (repr(row.words), RECIPE.read_text(encoding="utf-8"))
    # gpt-fast's README starts several ranks so
    path = kept_recording(folder, ".json.gz", texts, row.words, ENABLE_INTRA_NODE_COMM="1")
    phases = neusight.Forecast.load(path).phases
    if phases is None:
        raise RuntimeError(f"{path} decodes nothing")
    found = phases.generation
    return found.samples * 1e6 / median(call.latency_us for call in found.decodes)


def write_errors(errors: dict[Row, float], path: Path) -> None:
    """A row for each figure: the error, a share, and that of the gain over bf16 where the same
    model ran in bf16 on as many of the same GPUs."""
    rows = []
    plain = {_without_weights(row): error for row, error in errors.items() if row.weights == "bf16"}
    for row, error in errors.items():
        base = plain.get(_without_weights(row)) if row.weights != "bf16" else None
        gain = "" if base is None else f"{(1 + error) / (1 + base) - 1:.4f}"
        rows.append((row.name, row.num_gpus, row.weights, f"{error:.4f}", gain))
    write_table(path, ("case", "num_gpus", "weights", "error", "gain_error"), rows)


def _without_weights(row: Row) -> tuple[str, ...]:
    return row.words[:-1]


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--programs", type=Path, required=True)
    parser.add_argument("--only", default="", help="only names with this in them")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--csv", type=Path, help="write the errors there")
    options = parser.parse_args()
    if not PUBLISHED.exists():
        print(f"skipped: there are no published figures at {PUBLISHED}")
        return 0
    errors: dict[Row, float] = {}
    for row in rows(options.programs.resolve()):
        if options.only not in row.name:
            continue
        try:
            found = forecast(options.results, row)
        except RuntimeError as failure:
            print(f"failed   {row.name}: {failure}", flush=True)
            continue
        errors[row] = found / row.tokens_per_s - 1
        figures = f"{row.tokens_per_s:>8.1f} {found:>8.1f} {errors[row]:>+7.1%}"
        print(f"{row.name:<44} {figures}", flush=True)
    if errors:
        print(f"median {median(map(abs, errors.values())):.1%} of {len(errors)} rows")
    if options.csv:
        write_errors(errors, options.csv)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
