"""What servers of a small model launch, cost and reach, as tables; NEUSIGHT_UPDATE_GOLDEN=1
rewrites them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import astuple, replace
from functools import cache
from itertools import product
from typing import Any

import torch
import torch.nn.functional as F
from default_values import numbers_by_default
from priced_kernels import described
from torch import nn

import neusight
from neusight.inference.states import RecurrentLayer
from neusight.predictors.gpu import find_gpu
from neusight.predictors.tiled import Tiled
from neusight.serving.capacity import capacity_of
from neusight.serving.figures import Slo, serving_figures
from neusight.serving.fusion import engine_launches, with_attention
from neusight.serving.launches import RecordedPoint, launches_of, with_scans
from neusight.serving.load import InferenceRequest, Lengths, Load, RequestClass
from neusight.serving.parallel import tensor_parallel
from neusight.serving.prices import (
    Engine,
    PipelinePrices,
    StepPrices,
    pipeline_programs,
)
from neusight.serving.quantization import Adapters, adapted, quantized
from neusight.serving.scheduler import Chunk, SchedulerOptions, StepBatch, StepCost, simulate
from neusight.serving.static_batching import simulate_static
from neusight.timeline.host import PLAIN
from places import require_golden

HIDDEN, HEADS, KV_HEADS, DIM, WORDS = 512, 8, 2, 64, 1000
#: Sequences, their tokens and what they hold already.
BATCHES = ((1, 64, 256), (1, 128, 256), (1, 64, 512), (1, 128, 512), (2, 64, 256))
GPU = find_gpu("H100")


class Layer(nn.Module):
    """A decoder layer over a cache, with rotary embeddings and a gated MLP."""

    def __init__(self) -> None:
        super().__init__()
        sizes = {"q": HEADS * DIM, "k": KV_HEADS * DIM, "v": KV_HEADS * DIM, "o": HIDDEN}
        for name, size in {**sizes, "gate": 1024, "up": 1024}.items():
            self.add_module(name, nn.Linear(HIDDEN, size, bias=False))
        self.gate: nn.Linear
        self.up: nn.Linear
        self.o: nn.Linear
        self.down = nn.Linear(1024, HIDDEN, bias=False)
        self.first, self.second = nn.RMSNorm(HIDDEN), nn.RMSNorm(HIDDEN)

    def forward(self, x: Any, cos: Any, past: int) -> Any:
        y = self.first(x)
        q, k, v = (self._heads(getattr(self, name)(y)) for name in "qkv")
        q, k = (t * cos + torch.cat((-t[..., 32:], t[..., :32]), -1) * cos for t in (q, k))
        cached = torch.empty(x.shape[0], KV_HEADS, past, DIM, dtype=x.dtype, device="cuda")
        k, v = torch.cat((cached, k), 2), torch.cat((cached, v), 2)
        k, v = (t.repeat_interleave(HEADS // KV_HEADS, 1) for t in (k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=False)
        x = x + self.o(y.transpose(1, 2).reshape(x.shape))
        y = self.second(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))

    @staticmethod
    def _heads(x: Any) -> Any:
        return x.view(*x.shape[:2], -1, DIM).transpose(1, 2)


class Written(nn.Module):
    """A layer whose attention and norms are written in ops, with a plain MLP."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.o = nn.Linear(HIDDEN, 3 * HIDDEN), nn.Linear(HIDDEN, HIDDEN)
        self.up, self.down = nn.Linear(HIDDEN, 1024), nn.Linear(1024, HIDDEN)
        self.first, self.second = Norm(), Norm()

    def forward(self, x: Any, _cos: Any, past: int) -> Any:
        q, k, v = (Layer._heads(part) for part in self.qkv(self.first(x)).chunk(3, -1))
        cached = torch.empty(x.shape[0], HEADS, past, DIM, dtype=x.dtype, device="cuda")
        k, v = torch.cat((cached, k), 2), torch.cat((cached, v), 2)
        y = (q @ k.mT / 8).float().softmax(-1).to(x.dtype) @ v
        x = x + self.o(y.transpose(1, 2).reshape(x.shape))
        return x + self.down(F.gelu(self.up(self.second(x))))


class Norm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(HIDDEN))

    def forward(self, x: Any) -> Any:
        y = x.float()
        return self.weight * (y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype)


class Decoder(nn.Module):
    def __init__(self, *layers: type[nn.Module]) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, HIDDEN)
        self.layers = nn.ModuleList([layer() for layer in layers])
        self.norm, self.head = nn.RMSNorm(HIDDEN), nn.Linear(HIDDEN, WORDS, bias=False)

    def forward(self, ids: Any, past: int) -> Any:
        x = self.embed(ids)
        positions = torch.arange(past, past + ids.shape[1], device="cuda")[:, None]
        cos = torch.cos(positions * torch.ones(DIM, device="cuda")).to(x.dtype)
        for layer in self.layers:
            x = layer(x, cos, past)
        return self.head(self.norm(x)[:, -1:])


@cache
def points(*layers: type[nn.Module]) -> tuple[RecordedPoint, ...]:
    with torch.no_grad(), neusight.forecast_on("H100") as forecast:
        model = Decoder(*layers).to("cuda", torch.bfloat16)
        for sequences, tokens, past in BATCHES:
            ids = torch.zeros(sequences, tokens, dtype=torch.long, device="cuda")
            forecast.step()
            model(ids, past)
            forecast.step()
    steps = [step.entries for step in forecast.recording.steps for _ in range(step.count)]
    forwards = [entries for entries in map(launches_of, steps) if len(entries) > 10]
    return tuple(
        RecordedPoint(*batch, launches)
        for batch, launches in zip(BATCHES, forwards[-len(BATCHES) :], strict=True)
    )


#: What is done to the launches of a forward, by what a line of the table begins with.
CHANGES = {
    "eager": lambda found: with_attention(found, sequences=1),
    "vllm": lambda found: found,
    "tp": lambda found: tensor_parallel(found, 2),
    "int4": lambda found: quantized(found, "int4"),
    "int8": lambda found: quantized(found, "int8"),
    "fp8": lambda found: quantized(found, "fp8"),
    "adapters": lambda found: adapted(found, Adapters(4, 16)),
    "tp int4 adapters": lambda found: adapted(
        tensor_parallel(quantized(found, "int4"), 2), Adapters(4, 16)
    ),
}


def test_engines_launch_the_kernels_of_the_golden_table() -> None:
    """Of a prompt of 64 tokens behind 256; of the changed ones only what was not there before."""
    lines: list[str] = []
    for layer, (name, change) in product((Layer, Written), CHANGES.items()):
        recorded = points(layer, layer)[0].launches
        fused = engine_launches(recorded, tokens=64)
        found = change(recorded if name == "eager" else fused)
        new = [item for item in found if name in ("eager", "vllm") or item not in fused]
        lines += [f"{layer.__name__} {name}", *described(item.kernel for item in new)]

    require_golden("serving_launches.txt", lines)


MAMBA = {
    f"Decoder.layers.{at}": RecurrentLayer(8, 64, 128, 768, 4, "bfloat16", "float32")
    for at in range(2)
}
MAMBA_1 = {"Decoder.layers.0": RecurrentLayer(1024, 1, 16, 1024, 4, "bfloat16", "float32")}
#: Servers by what a line of the table begins with.
SERVERS: dict[str, tuple[Engine, dict[str, Any]]] = {
    "vllm": (Engine(), {}),
    "vllm, nothing overlaps": (Engine(overlaps=False), {"kv_dtype": "float8_e4m3fn"}),
    "compiled": (Engine("compiled"), {"quantization": "int4"}),
    "eager": (Engine("eager"), {"host_us": 900.0, "windows": (100, 0)}),
    "vllm tp 2": (Engine(), {"ranks": 2, "adapters": Adapters(4, 16), "windows": (1000, 300)}),
    "compiled, two stages": (Engine("compiled"), {"stages": 2, "host_us": 300.0}),
    "vllm, two stages": (Engine(), {"stages": 2, "quantization": "fp8"}),
    "mamba 2": (Engine(), {"recurrences": MAMBA, "ranks": 2}),
    "mamba 1": (Engine("compiled"), {"recurrences": MAMBA_1}),
    "written, vllm": (Engine(), {"layers": (Written, Written)}),
    "mixed, eager": (Engine("eager"), {"layers": (Layer, Written), "quantization": "int8"}),
    "written, eager": (Engine("eager"), {"layers": (Written, Written), "ranks": 4}),
}
BATCHES_PRICED = (
    StepBatch(1, 700, (), 1),
    StepBatch(37, 37 * 900, (), 37),
    StepBatch(600, 600 * 300, (), 600),
    StepBatch(0, 0, (Chunk(300, 300),), 1),
    StepBatch(0, 0, (Chunk(1, 9), Chunk(2000, 5000)), 2),
    StepBatch(20, 20 * 3000, (Chunk(64, 64), Chunk(200, 900)), 22),
    StepBatch(16, 16 * 700, (), 16, queries=4),
)


def test_steps_cost_what_the_golden_table_says() -> None:
    """A server's capacity, and of each batch the µs of a step, of the GPU and of each stage, and
    the bound."""
    lines = []
    for at, (name, (engine, options)) in enumerate(SERVERS.items()):
        gpu = ("H100", "RTX-4090")[at % 2]
        layers = options.get("layers", (Layer, Layer))
        found, recurrent = points(*layers), options.get("recurrences", {})
        recorded = [replace(p, launches=with_scans(p.launches, recurrent)) for p in found]
        options = {key: value for key, value in options.items() if key != "layers"}
        programs = pipeline_programs(recorded, engine=engine, parameter_bytes=10**8, **options)
        host = replace(PLAIN, name="gaps", kernel_gap_us=1.5)
        prices = [StepPrices(one, find_gpu(gpu), Tiled(), host, engine) for one in programs]
        for one in programs:
            limits = {"utilization": 0.9, "max_tokens": 2048, "max_seqs": 256, "block_size": 16}
            capacity = capacity_of(one, find_gpu(gpu), **limits)  # type: ignore[arg-type]
            figures = (one.num_launches, one.window, one.widest, f"{one.window_share:.4f}")
            room = (capacity.num_blocks, capacity.num_tokens, capacity.state_blocks)
            lines.append(" ".join(map(str, (name, gpu, *figures, *astuple(capacity), *room))))
        price = prices[0] if len(prices) == 1 else PipelinePrices(tuple(prices))
        for batch in BATCHES_PRICED:
            cost = price(batch)
            stages = " ".join(f"{us:.3f}" for us in cost.stages_us)
            share = prices[0].unmatched_share(batch)
            words = f"{cost.latency_us:.3f} {cost.gpu_us:.3f} {cost.bound} {share:.4f} {stages}"
            lines.append(f"  {words.rstrip()}")

    require_golden("serving_prices.txt", lines)


def price(batch: StepBatch) -> StepCost:
    """Of round numbers: bound by memory, and by arithmetic where a prompt is long."""
    gpu_us = 4000.0 + 11.0 * batch.tokens + 0.01 * batch.context
    return StepCost(gpu_us + 500.0, 0 if batch.tokens > 300 else 1, gpu_us)


SHORT = RequestClass(Lengths("uniform", 20, 400), Lengths("uniform", 5, 120), 0.7)
LONG = RequestClass(Lengths("lognormal", 900, 0.8), Lengths("fixed", 40), 0.3, 1, "long")
LOADS = {
    "poisson": Load((SHORT, LONG), 60, rate=12.0),
    "gamma": Load((SHORT,), 60, "gamma", rate=30.0, burstiness=2.5, seed=1),
    "uniform, turns": Load((SHORT,), 30, "uniform", rate=8.0, turns=3, hit_rate=0.6, think_s=0.2),
    "closed": Load((SHORT, LONG), 40, "closed", users=7, think_s=0.05, hit_rate=0.3),
}
SCHEDULERS: dict[str, dict[str, Any]] = {
    "plain": {},
    "few blocks": {"num_blocks": 190},
    "no chunks": {"chunked_prefill": False, "max_num_batched_tokens": 2100},
    "priority": {"policy": "priority", "num_blocks": 260, "keeps_prefixes": False},
    "drafts": {"drafts": 3, "acceptance": 0.7, "num_blocks": 300},
    "window": {"window": 128, "window_share": 0.5, "num_blocks": 170, "reserves_input": False},
    "stages": {"stages": 2, "state_blocks": 3},
    "static": {},
}


def test_servers_reach_the_figures_of_the_golden_table() -> None:
    lines = []
    for (load_name, load), (name, changed) in product(LOADS.items(), SCHEDULERS.items()):
        requests = load.requests(most_tokens=2000)
        options = SchedulerOptions(
            **{"num_blocks": 900, "max_num_seqs": 16, "max_num_batched_tokens": 512,
               "max_model_len": 2000, **changed}
        )  # fmt: skip
        run = (simulate_static if name == "static" else simulate)(requests, options, price)
        slo = Slo(ttft_s=0.5, tpot_s=0.02, e2e_s=3.0)
        found = serving_figures([run, run], GPU, num_gpus=2, slo=slo, price=3.0).to_json()
        lines += [f"{load_name}, {name}", f"  {' '.join(_figures(found.values()))}"]
    nothing = serving_figures([simulate([], SchedulerOptions(9), price)], GPU, num_gpus=1)
    lines += ["nothing", f"  {' '.join(_figures(nothing.to_json().values()))}"]
    for name, load in (*LOADS.items(), ("long", Load((LONG, SHORT), 20, turns=4, seed=3))):
        lines.append(f"{name}: {load.classes[0].input}")
        for one in load.requests(most_tokens=700)[:4]:
            lines.append(f"  {_request(one)}")

    require_golden("serving_figures.txt", lines)


def _figures(values: Any) -> Iterator[str]:
    for value in values:
        if isinstance(value, dict):
            yield from _figures(value.values())
        else:
            yield f"{value:.6g}" if isinstance(value, float) else str(value)


def _request(one: InferenceRequest) -> str:
    turn = f" then {_request(one.next_turn)}" if one.next_turn else ""
    figures = (one.input_tokens, one.output_tokens, one.cached_tokens, one.priority, one.think_s)
    return f"{one.arrival_s:.6g} {' '.join(map(str, figures))}{turn}"


def test_what_is_not_stated_is_as_the_golden_table_has_it() -> None:
    """The numbers of functions and values by default."""
    require_golden("defaults_serving.txt", numbers_by_default("neusight.serving"))
