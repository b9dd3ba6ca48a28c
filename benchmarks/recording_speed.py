"""Times a training step as it is recorded, first and repeated, beside plain meta tensors.

    python benchmarks/recording_speed.py [gpt2_large] [llama_8b] [--json FILE]

Reports seconds a step (first, median of the repeated), the same step on meta tensors without
neusight, their ratio, the seconds from the end of the block to its figures, and the peak resident
memory of the process. Aims: GPT-2 large under 1.0 s first and 0.5 s repeated, Llama 8B under 2.5 s
and 2 GB, on two cores.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

STEPS = 6


def gpt2_large() -> tuple[nn.Module, int]:
    """Hugging Face GPT-2 large and its vocabulary."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(n_layer=36, n_head=20, n_embd=1280, use_cache=False)
    return GPT2LMHeadModel(config), config.vocab_size


def llama_8b() -> tuple[nn.Module, int]:
    """Llama 3 8B in bf16 and its vocabulary."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=128256,
        hidden_size=4096,
        intermediate_size=14336,
        num_hidden_layers=32,
        num_attention_heads=32,
        num_key_value_heads=8,
        use_cache=False,
    )
    return LlamaForCausalLM(config).to(torch.bfloat16), config.vocab_size


MODELS = {"gpt2_large": gpt2_large, "llama_8b": llama_8b}


def train(model: nn.Module, vocabulary: int, device: str) -> list[float]:
    """Seconds of each step."""
    optimizer = torch.optim.AdamW(model.parameters())
    tokens = torch.randint(vocabulary, (1, 1024), device=device)
    seconds = []
    for _ in range(STEPS):
        start = time.perf_counter()
        model(input_ids=tokens, labels=tokens).loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        seconds.append(time.perf_counter() - start)
    return seconds


def on_meta(make: Callable[[], tuple[nn.Module, int]]) -> list[float]:
    """The same steps on meta tensors, without neusight."""
    from transformers import masking_utils

    # It looks at the values of position_ids, which meta tensors do not have.
    masking_utils.find_packed_sequence_indices = lambda position_ids: None
    with torch.device("meta"):
        model, vocabulary = make()
    return train(model, vocabulary, "meta")


def in_forecast(make: Callable[[], tuple[nn.Module, int]]) -> tuple[list[float], float]:
    """The steps inside a forecast, and the seconds to its figures afterwards."""
    import neusight

    with neusight.forecast_on("B300") as forecast:
        model, vocabulary = make()
        seconds = train(model.cuda(), vocabulary, "cuda")
    start = time.perf_counter()
    forecast.to_json()
    return seconds, time.perf_counter() - start


def measure(name: str) -> dict[str, float]:
    """One row, in this process."""
    recorded, figures = in_forecast(MODELS[name])
    resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    plain = on_meta(MODELS[name])
    repeated, meta = statistics.median(recorded[1:]), statistics.median(plain[1:])
    return {
        "first_s": round(recorded[0], 3),
        "repeated_s": round(repeated, 3),
        "meta_s": round(meta, 3),
        "ratio_to_meta": round(repeated / meta, 2),
        "figures_s": round(figures, 3),
        "peak_resident_gib": round(resident, 2),
    }


def main() -> None:
    """Each model in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", help=", ".join(MODELS))
    parser.add_argument("--json", type=Path)
    parser.add_argument("--one", choices=MODELS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measure(options.one)))
        return
    rows: dict[str, dict[str, float]] = {}
    for name in options.models or MODELS:
        command = [sys.executable, __file__, "--one", name]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        rows[name] = json.loads(done.stdout.splitlines()[-1])
        print(name, rows[name])
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
