"""Layers of language models, run eagerly in FP16, against measured ones: data/llm_layers.

    python benchmarks/llm_layers.py                       a table by GPU, layer and tokens
    python benchmarks/llm_layers.py --gpu H100 --op rope  some of it
    python benchmarks/llm_layers.py --sustained           at the clocks of long runs
    python benchmarks/llm_layers.py --update              stores the scores (ratchet.py)

What the authors measured is the time of all kernels of one module of transformers, called on one
sequence, with torch 2.6. The same ops are recorded here, and priced as that version's kernels in a
short burst. A sample of the lengths is run, as many of each octave. Fitted to some of it are the
constants of RTX A6000 (half of the shapes of its products, SiLU) and FlashAttention-2 on H100, and
on RTX A6000 up to 128 tokens (32 heads): "fitted on" in the table; "kept back" is the rest of that.
"""

from __future__ import annotations

import argparse
import sys
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import ratchet
import torch
import torch.nn.functional as F

import neusight
from neusight.recording.recording import OpCall

DATA = Path(__file__).resolve().parents[2] / "shared" / "data" / "llm_layers"

#: What was measured: a table, by which version of torch.
TABLE = "eager_layers_fp16.parquet"
TORCH = "2.6"

#: Lengths of each shape that are run, one an octave from 1 to 2048 tokens.
OCTAVES = 12

#: Entries of the vocabulary, which do not matter to a gather.
VOCABULARY = 32_000

#: Heads of the attention that its constants were fitted to.
FITTED_HEADS = 32

GPUS = {"H100": "H100", "RTX A6000": "RTX-A6000"}


@dataclass(frozen=True)
class Case:
    """A measured layer. Of `n` to `head_dim` those are 0 that it does not have."""

    gpu: str
    op: str
    tokens: int
    n: int
    k: int
    width: int
    heads: int
    kv_heads: int
    head_dim: int
    measured_us: float

    @property
    def half(self) -> int:
        """Of which half of the shapes it is."""
        shape = (self.op, self.n, self.k, self.width, self.heads, self.kv_heads)
        return zlib.crc32(str(shape).encode()) % 2

    @property
    def part(self) -> str:
        """Its lengths, and whether constants were fitted to it."""
        lengths = "1 to 15" if self.tokens < 16 else "16 to 255" if self.tokens < 256 else "256 up"
        if self.op == "sdpa":
            is_fitted = self.heads == FITTED_HEADS
        elif self.gpu == "RTX A6000" and self.op == "linear":
            is_fitted = self.half == 1
        else:
            return f"{lengths} tokens"
        return f"{lengths} tokens, {'fitted on' if is_fitted else 'kept back'}"

    @property
    def group(self) -> str:
        """What errors are grouped by."""
        return f"{self.gpu} {self.op} {self.part}"


def cases() -> Iterator[Case]:
    """A sample of the rows: for each shape and octave of lengths the median of its rows there of
    one length."""
    import pandas as pd

    table = pd.read_parquet(DATA / TABLE).fillna(0)
    shape = ["gpu", "op", "n", "k", "width", "heads", "kv_heads", "head_dim"]
    table = table[table.op.isin(list(LAYERS))]
    for key, rows in table.groupby(shape, sort=True):
        place = zlib.crc32(str(key[1:]).encode())
        for octave in range(OCTAVES):
            low = 1 << octave
            tokens = min(2048, low + place % low)
            times = rows[rows.tokens == tokens].latency_us
            if len(times):
                gpu, op, *sizes = key
                yield Case(gpu, op, tokens, *map(int, sizes), float(times.median()))


# -- the layers, as transformers 4.57 has them ----------------------------------------------------

Layer = Callable[[], object]
Forecasts = Iterator[tuple[Case, float]]


def half(*shape: int) -> torch.Tensor:
    """A tensor in FP16."""
    return torch.empty(*shape, dtype=torch.float16, device="cuda")


def _linear(case: Case) -> Layer:
    weight, x = half(case.n, case.k), half(1, case.tokens, case.k)
    return lambda: F.linear(x, weight)


def _embedding(case: Case) -> Layer:
    weight = half(VOCABULARY, case.width)
    ids = torch.zeros(1, case.tokens, dtype=torch.long, device="cuda")
    return lambda: F.embedding(ids, weight)


def _rms_norm(case: Case) -> Layer:
    x, weight = half(1, case.tokens, case.width), half(case.width)

    def run() -> torch.Tensor:
        y = x.to(torch.float32)
        y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-5)
        return weight * y.to(torch.float16)

    return run


def _silu_mul(case: Case) -> Layer:
    gate, up = half(1, case.tokens, case.width), half(1, case.tokens, case.width)
    return lambda: F.silu(gate) * up


def _rope(case: Case) -> Layer:
    def rotated(x: torch.Tensor) -> torch.Tensor:
        middle = x.shape[-1] // 2
        return torch.cat((-x[..., middle:], x[..., :middle]), dim=-1)

    query = half(1, case.tokens, case.heads, case.head_dim).transpose(1, 2)
    key = half(1, case.tokens, case.kv_heads, case.head_dim).transpose(1, 2)
    cos = sin = half(1, 1, case.tokens, case.head_dim)
    return lambda: (query * cos + rotated(query) * sin, key * cos + rotated(key) * sin)


def _sdpa(case: Case) -> Layer:
    query = half(1, case.tokens, case.heads, case.head_dim).transpose(1, 2)
    key = half(1, case.tokens, case.kv_heads, case.head_dim).transpose(1, 2)
    value = half(1, case.tokens, case.kv_heads, case.head_dim).transpose(1, 2)
    is_causal = case.tokens > 1
    return lambda: F.scaled_dot_product_attention(
        query, key, value, is_causal=is_causal, enable_gqa=case.heads != case.kv_heads
    )


LAYERS: dict[str, Callable[[Case], Layer]] = {
    "linear": _linear,
    "embedding": _embedding,
    "rms_norm": _rms_norm,
    "silu_mul": _silu_mul,
    "rope": _rope,
    "sdpa": _sdpa,
}


# -- forecasts ------------------------------------------------------------------------------------


def forecast_us(chosen: list[Case], gpu: str, predictor: str) -> list[float]:
    """The time of the kernels of each layer, µs."""
    with torch.no_grad(), neusight.forecast_on(GPUS[gpu]) as forecast:
        for case in chosen:
            layer = LAYERS[case.op](case)
            forecast.step()
            layer()
            forecast.step()
    priced = forecast.of(forecast.recording.as_torch(TORCH)).on(forecast.gpu, predictor=predictor)
    timeline = priced.timeline
    times = []
    for step in timeline.steps:
        spans = timeline.kernels[step.first_kernel : step.last_kernel]
        has_work = any(isinstance(entry, OpCall) for entry in step.replay.step.entries)
        times.append(sum(span.duration_ns for span in spans) / 1e3 if has_work else 0.0)
    return [time for at, time in enumerate(times[: 2 * len(chosen)]) if at % 2]


def forecasts(gpu: str = "", op: str = "", predictor: str = "tiled_burst") -> Forecasts:
    """Each case of the GPUs with `gpu` in their names, beside its forecast, µs."""
    found = [case for case in cases() if op in ("", case.op)]
    for name in GPUS:
        chosen = [case for case in found if case.gpu == name and gpu in name]
        if chosen:
            yield from zip(chosen, forecast_us(chosen, name, predictor), strict=True)


def rows() -> Iterator[ratchet.Row]:
    """What the ratchet holds."""
    return map(_row, forecasts()) if DATA.exists() else iter(())


def _row(pair: tuple[Case, float]) -> ratchet.Row:
    case, time_us = pair
    return ratchet.Row(
        case.op, case.gpu, "fp16", mode=case.part, error=time_us / case.measured_us - 1.0
    )


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gpu", default="", help="only GPUs with this in their name")
    parser.add_argument("--op", default="", help="only this layer")
    parser.add_argument("--sustained", action="store_true", help="at the clocks of long runs")
    parser.add_argument("--list", action="store_true", help="a line for each case")
    options = ratchet.parsed(parser, DATA, "measured layers")
    groups: dict[str, list[ratchet.Row]] = {}
    predictor = "tiled" if options.sustained else "tiled_burst"
    for case, time_us in forecasts(options.gpu, options.op, predictor):
        groups.setdefault(case.group, []).append(_row((case, time_us)))
        if options.list:
            print(case, f"{time_us:.2f} {time_us / case.measured_us - 1:+.0%}")
    if not groups:
        print("no such case")
        return 2
    all_rows = [row for group in groups.values() for row in group]
    print(ratchet.summary({**dict(sorted(groups.items())), "all": all_rows}))
    is_whole = not (options.sustained or options.gpu or options.op)
    return ratchet.judged("llm_layers", all_rows, options) if is_whole else 0


if __name__ == "__main__":
    sys.exit(main())
