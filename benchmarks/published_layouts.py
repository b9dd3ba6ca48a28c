"""Layouts in the configurations of a package beside those that `neusight plan --model` finds.

    pip install --no-deps --target DIR torchtitan
    python benchmarks/published_layouts.py --package DIR
    python benchmarks/published_layouts.py --package DIR --csv TABLE.csv

For each of torchtitan's configurations of Llama 3 the step that it makes (its sequences of each
rank, on the GPUs that it is a preset for) is laid out, and the place of its own layout among all
that fit is shown: ranks that split layers, the rest sharded, no pipeline, its sequences at once;
and its place among the ways to share a model, which differ in more than what is worked on at once
or kept. Throughputs are not compared. The choice of what is recomputed is not of the search: a
configuration with selective recomputation counts as either.
"""

from __future__ import annotations

import argparse
import ast
import json
import tempfile
from dataclasses import dataclass
from pathlib import Path

from tables import write_table

from neusight.integrations.cli.planning.processes import in_processes, num_cores
from neusight.integrations.layouts.block import model_shape
from neusight.integrations.layouts.layout import Layout, StepLoad
from neusight.integrations.layouts.search import SearchRequest, find_layouts
from neusight.predictors.gpu import find_gpu
from neusight.predictors.registry import find_predictor

#: The GPUs that the files are presets for, as the comments of their TOML form said
#: (torchtitan/models/llama3/train_configs), and the model: width, blocks, heads, width of an MLP
#: (Llama 3's report, table 3); 8 heads of keys, 128,256 tokens. H100 are those of its reports.
MODELS = {
    "llama3_8b": ("A100", 64, (4096, 32, 32, 14336)),
    "llama3_70b": ("A100", 64, (8192, 80, 64, 28672)),
    "llama3_405b": ("H100-SXM5-96GB-HBM2E", 128, (16384, 126, 128, 53248)),
}
_REGISTRY = "torchtitan/models/llama3/config_registry.py"
_PER_NODE = 8


@dataclass(frozen=True)
class Configuration:
    """What a configuration says: ranks that split a layer, sequences of a rank at once, their
    length, and which activations are computed again ("Full", "Selective", "")."""

    name: str
    tensor: int
    batch: int
    sequence: int
    recompute: str


def configurations(registry: Path) -> list[Configuration]:
    """Those of the models, read from the source."""
    tree = ast.parse(registry.read_text(encoding="utf-8"))
    return [
        _configuration(node)
        for node in tree.body
        if isinstance(node, ast.FunctionDef) and node.name in MODELS
    ]


def _configuration(function: ast.FunctionDef) -> Configuration:
    values: dict[str, int] = {}
    recompute = ""
    for node in ast.walk(function):
        if isinstance(node, ast.keyword) and isinstance(node.value, ast.Constant):
            values.setdefault(node.arg or "", node.value.value)
        if isinstance(node, ast.keyword) and node.arg == "activation_checkpoint":
            recompute = ast.unparse(node.value).partition("AC")[0]
    return Configuration(
        function.name,
        values.get("tensor_parallel_degree", 1),
        values["local_batch_size"],
        values["seq_len"],
        recompute,
    )


def row_of(found: Configuration, folder: Path, jobs: int) -> list[object]:
    """The place of its layout, of how many, how much longer it takes, and the best ones."""
    gpu, world_size, (width, blocks, heads, inner) = MODELS[found.name]
    config = folder / "config.json"
    config.write_text(
        json.dumps(
            {"model_type": "llama", "hidden_size": width, "num_hidden_layers": blocks,
             "num_attention_heads": heads, "num_key_value_heads": 8, "intermediate_size": inner,
             "vocab_size": 128_256, "max_position_embeddings": found.sequence}
        )
    )  # fmt: skip
    work = StepLoad(world_size // found.tensor * found.batch * found.sequence, found.sequence)
    request = SearchRequest(
        str(config), model_shape(str(config)), work, (find_gpu(gpu),), (world_size,),
        find_predictor(None), _PER_NODE, 2.0, jobs,
    )  # fmt: skip
    prices = find_layouts(request, in_processes).prices
    own = [place for place, price in enumerate(prices, 1) if _is_of(price.layout, found)]
    best = [price.layout.title for price in prices[:3]]
    ways = list(dict.fromkeys(_way(price.layout) for price in prices))
    way = ways.index(_way(prices[own[0] - 1].layout)) + 1 if own else ""
    more = prices[own[0] - 1].step_us / prices[0].step_us - 1.0 if own else None
    return [
        found.name, gpu, world_size, work.tokens, found.tensor, found.batch, found.recompute,
        own[0] if own else "", len(prices), way, len(ways),
        "" if more is None else f"{100 * more:.1f}", *best,
    ]  # fmt: skip


def _way(layout: Layout) -> tuple[int, ...]:
    """How ranks share the model, whatever they work on at once and keep: a way is as good as the
    best of its layouts."""
    return layout.tensor, layout.context, layout.pipeline, layout.shard, layout.replicate


def _is_of(layout: Layout, found: Configuration) -> bool:
    is_again = found.recompute == "Selective" or layout.checkpoint == (found.recompute == "Full")
    return (
        (layout.tensor, layout.pipeline, layout.micro_batch) == (found.tensor, 1, found.batch)
        and layout.replicate == layout.context == 1
        and not layout.offload
        and is_again
    )


_COLUMNS = ("configuration", "gpu", "gpus", "tokens", "tensor", "batch", "recompute", "place",
            "layouts", "place_of_way", "ways", "percent_longer", "best", "second",
            "third")  # fmt: skip


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--package", type=Path, required=True, help="the folder torchtitan is in")
    parser.add_argument("--jobs", type=int, default=num_cores(), help="records at once")
    parser.add_argument("--csv", type=Path, help="write the table there")
    options = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for found in configurations(options.package / _REGISTRY):
            row = row_of(found, Path(folder), options.jobs)
            print(*row, sep=" | ", flush=True)
            rows.append(row)
    if options.csv:
        write_table(options.csv, _COLUMNS, rows)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
