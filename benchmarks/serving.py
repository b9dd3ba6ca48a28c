"""A served model against a measured run of vLLM, request by request: data/llm_serving.

    python benchmarks/serving.py             medians, throughput, and the course of the run
    python benchmarks/serving.py --seconds   the course second by second
    python benchmarks/serving.py --own-cache with the KV cache that is forecast, not the stated one

The engine's settings are the run's own; the load is its requests with the time at which the engine
had them. Nothing is fitted to it. The prompts are unknown, so the prefix cache finds nothing but
what a preempted request left.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median

from tables import read_table

from neusight.forecast import forecast_options
from neusight.integrations.serving.model import ServedModel, recorded_model
from neusight.integrations.serving.service import Deployment, LoadPoint, Server, ServerSettings
from neusight.predictors.gpu import find_gpu
from neusight.serving.figures import Slo
from neusight.serving.load import InferenceRequest
from neusight.serving.prices import Engine

DATA = Path(__file__).resolve().parents[2] / "shared" / "data" / "llm_serving"

#: Public configs of the models (Hugging Face Hub), those values that shapes follow from.
CONFIGS = {
    "Llama-3.1-8B": {
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 4096,
        "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32,
        "num_key_value_heads": 8, "vocab_size": 128256, "max_position_embeddings": 131072,
        "torch_dtype": "bfloat16", "tie_word_embeddings": False,
    },
}  # fmt: skip


@dataclass(frozen=True)
class Measured:
    """A run: the engine's settings, its requests, and each second of it."""

    gpu: str
    model: str
    engine: dict[str, object]
    requests: list[dict[str, float]]
    seconds: list[dict[str, float]]


def runs() -> Iterator[Measured]:
    """Every run there is."""
    for path in sorted(DATA.glob("*__engine.json")):
        gpu, model, _ = path.name.split("__")
        stem = path.name.removesuffix("engine.json")
        yield Measured(
            gpu.replace("_", " "), model, json.loads(path.read_text()),
            _rows(DATA / f"{stem}requests.csv"), _rows(DATA / f"{stem}timeseries.csv"),
        )  # fmt: skip


def _rows(path: Path) -> list[dict[str, float]]:
    return [{key: float(value) for key, value in row.items()} for row in read_table(path)]


def served(run: Measured, *, has_own_cache: bool) -> LoadPoint:
    """The forecast of a run."""
    gpu = find_gpu(run.gpu)
    arguments = run.engine["engine_kwargs"]
    cache = run.engine["kv_cache"]
    scheduler = run.engine["scheduler_config"]
    assert isinstance(arguments, dict) and isinstance(cache, dict) and isinstance(scheduler, dict)
    settings = ServerSettings(
        engine=Engine("vllm", overlaps=bool(scheduler["async_scheduling"])),
        max_num_seqs=arguments["max_num_seqs"],
        max_num_batched_tokens=arguments["max_num_batched_tokens"],
        max_model_len=arguments["max_model_len"],
        block_size=cache["block_size"],
        num_blocks=None if has_own_cache else cache["num_gpu_blocks"],
        utilization=cache["gpu_memory_utilization"],
        keeps_prefixes=cache["enable_prefix_caching"],
    )
    deployment = Deployment(gpu, arguments["tensor_parallel_size"])
    server = Server(_model(run), deployment, settings, forecast_options(gpu))
    load = [
        InferenceRequest(at, row["queued_s"], int(row["input_tokens"]), int(row["output_tokens"]))
        for at, row in enumerate(run.requests)
    ]
    load.sort(key=lambda one: one.arrival_s)
    return server.under(load, label="the run's", rate=None, slo=Slo())


def _model(run: Measured) -> ServedModel:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "config.json"
        path.write_text(json.dumps(CONFIGS[run.model]))
        return recorded_model(str(path), find_gpu(run.gpu))


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", action="store_true", help="the course second by second")
    parser.add_argument("--own-cache", action="store_true", help="with the forecast KV cache")
    options = parser.parse_args()
    if not DATA.exists():
        print(f"skipped: there are no measured runs at {DATA}")
        return 0
    for run in runs():
        point = served(run, has_own_cache=options.own_cache)
        tokens = point.server.capacity.num_tokens
        print(f"{run.gpu}, {run.model}: {len(run.requests)} requests, {tokens:,} tokens of cache")
        for name, forecast, measured in figures(run, point):
            error = forecast / measured - 1.0
            print(f"  {name:<34} {forecast:>10.2f} {measured:>10.2f} {error:>+8.1%}")
        for line in course(run, point, each_second=options.seconds):
            print(line)
    return 0


def figures(run: Measured, point: LoadPoint) -> Iterator[tuple[str, float, float]]:
    """Name, forecast, measured."""
    requests = [one for one in run.requests if one["output_tokens"] > 1]
    found = point.figures
    last = max(one["last_token_s"] for one in run.requests)
    tokens = sum(one["output_tokens"] for one in run.requests)
    served_of = {one.request.index: one for item in point.runs for one in item.served}
    yield "TTFT, median, s", found.ttft_s.p50, median(one["ttft_s"] for one in run.requests)
    yield "TTFT, mean, s", found.ttft_s.mean, mean(one["ttft_s"] for one in run.requests)
    yield "TTFT, 90th percentile, s", found.ttft_s.p90, _at(run, "ttft_s", 0.9)
    yield "TPOT, median, ms", 1e3 * found.tpot_s.p50, median(one["tpot_ms"] for one in requests)
    yield "TPOT, mean, ms", 1e3 * found.tpot_s.mean, mean(one["tpot_ms"] for one in requests)
    yield "TPOT, 90th percentile, ms", 1e3 * found.tpot_s.p90, _at(run, "tpot_ms", 0.9)
    yield "tokens out a second", found.output_tokens_per_s, tokens / last
    yield "until the last token, s", found.duration_s, last
    errors = [
        abs(served_of[at].ttft_s / one["ttft_s"] - 1.0) for at, one in enumerate(run.requests)
    ]
    yield "TTFT, 1 + median error of a request", 1.0 + median(errors), 1.0
    errors = [
        abs(1e3 * (served_of[at].tpot_s or 0.0) / one["tpot_ms"] - 1.0)
        for at, one in enumerate(run.requests)
        if one["output_tokens"] > 1
    ]
    yield "TPOT, 1 + median error of a request", 1.0 + median(errors), 1.0


def _at(run: Measured, name: str, share: float) -> float:
    values = sorted(one[name] for one in run.requests)
    return values[min(len(values) - 1, int(share * len(values)))]


#: What is compared over time, and by what share of its highest value it is off on average.
_COURSE = ("running", "waiting", "kv_cache_pct")


def course(run: Measured, point: LoadPoint, *, each_second: bool) -> Iterator[str]:
    """Running, waiting and cache use at the end of each second."""
    steps = point.runs[0].steps
    blocks = point.runs[0].num_blocks
    at = 0
    errors: dict[str, list[float]] = {name: [] for name in _COURSE}
    if each_second:
        yield "  second   running         waiting         KV %"
    for row in run.seconds:
        while at + 1 < len(steps) and steps[at + 1].start_s <= row["t_s"]:
            at += 1
        step = steps[at]
        is_over = row["t_s"] > point.runs[0].end_s
        found = {
            "running": 0 if is_over else step.running,
            "waiting": 0 if is_over else step.waiting,
            "kv_cache_pct": 0.0 if is_over else 100.0 * step.used_blocks / blocks,
        }
        for name in _COURSE:
            errors[name].append(found[name] - row[name])
        if each_second:
            cells = "".join(f"{found[name]:>7.0f} {row[name]:>7.0f} " for name in _COURSE)
            yield f"  {row['t_s']:>6.0f} {cells}"
    for name in _COURSE:
        most = max(row[name] for row in run.seconds) or 1.0
        off = mean(map(abs, errors[name])) / most
        yield f"  {name + ' over time':<34} off by {off:.1%} of its highest, {most:.0f}, on average"


if __name__ == "__main__":
    sys.exit(main())
