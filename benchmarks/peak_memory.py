"""Compares the forecast's peak memory with torch's MemTracker over the same two training steps.

    python benchmarks/peak_memory.py            # all models
    python benchmarks/peak_memory.py gpt2 bert  # some

MemTracker (torch.distributed._tools) is a dispatch mode of its own that follows storages; it runs
around the forecast, on the same tensors, and shares none of its accounting. It sees no workspaces
of cuBLAS, cuDNN and attention, which the caching allocator holds beside the tensors: the forecast
is compared without them, and what they add to the peak is told.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch.distributed._tools.mem_tracker import MemTracker

import neusight
from neusight.memory.placement import memory_of

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))

Parts = tuple[torch.nn.Module, torch.optim.Optimizer, Callable[[], torch.Tensor]]


def gpt2() -> Parts:
    """GPT-2 small, the example's own."""
    script: Any = importlib.import_module("train_gpt2")
    model = script.GPT2(script.SIZES["small"]).cuda().train()
    tokens = torch.randint(50257, (8, 1024))

    def loss() -> torch.Tensor:
        data = tokens.cuda()
        with torch.autocast("cuda", dtype=torch.bfloat16):
            return F.cross_entropy(model(data).view(-1, 50257), data.view(-1))

    return model, script.make_optimizer(model, 1e-4), loss


def _language_model(model: torch.nn.Module, vocabulary: int, batch: int, seq: int) -> Parts:
    model = model.cuda().train()
    tokens = torch.randint(vocabulary, (batch, seq))

    def loss() -> torch.Tensor:
        data = tokens.cuda()
        with torch.autocast("cuda", dtype=torch.bfloat16):
            result: torch.Tensor = model(input_ids=data, labels=data).loss
            return result

    return model, torch.optim.AdamW(model.parameters()), loss


def gpt2_large() -> Parts:
    """Hugging Face GPT-2 large."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(n_layer=36, n_head=20, n_embd=1280, use_cache=False)
    return _language_model(GPT2LMHeadModel(config), 50257, 2, 1024)


def bert() -> Parts:
    """Hugging Face BERT large."""
    from transformers import BertConfig, BertForMaskedLM

    config = BertConfig(
        hidden_size=1024, num_hidden_layers=24, num_attention_heads=16, intermediate_size=4096
    )
    return _language_model(BertForMaskedLM(config), 30522, 8, 512)


def llama() -> Parts:
    """Llama 3 8B, all 32 layers, in bf16."""
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
    return _language_model(LlamaForCausalLM(config).to(torch.bfloat16), 128256, 1, 1024)


def resnet50() -> Parts:
    """ResNet-50, the example's own."""
    script: Any = importlib.import_module("train_resnet50")
    model = script.ResNet50().cuda().train()
    images, labels = torch.randn(32, 3, 224, 224), torch.randint(1000, (32,))

    def loss() -> torch.Tensor:
        return F.cross_entropy(model(images.cuda()), labels.cuda())

    return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), loss


def lstm() -> Parts:
    """A four-layer LSTM language model."""
    model = torch.nn.ModuleList(
        [
            torch.nn.Embedding(32000, 1024),
            torch.nn.LSTM(1024, 1024, 4),
            torch.nn.Linear(1024, 32000),
        ]
    ).cuda()
    tokens = torch.randint(32000, (64, 32))

    def loss() -> torch.Tensor:
        data = tokens.cuda()
        hidden, _ = model[1](model[0](data))
        return F.cross_entropy(model[2](hidden).view(-1, 32000), data.view(-1))

    return model, torch.optim.Adam(model.parameters()), loss


MODELS = {m.__name__: m for m in (gpt2, gpt2_large, bert, llama, resnet50, lstm)}


def measure(make: Callable[[], Parts]) -> tuple[int, int, int]:
    """Peak bytes after MemTracker, after the forecast without workspaces, and with them."""
    with neusight.forecast_on("B300", predictor="roofline") as forecast:
        model, optimizer, loss_of = make()
        tracker = MemTracker()
        tracker.track_external(model, optimizer)
        with tracker:
            for step in range(2):
                if step:
                    tracker.reset_mod_stats()
                loss_of().backward()
                optimizer.step()
                optimizer.zero_grad()
        snapshot = tracker.get_tracker_snapshot("peak")
    tracked = next(
        sum(parts.values()) - parts.get("Total", 0)
        for device, parts in snapshot.items()
        if device.type == "cuda"
    )
    tensors = memory_of(forecast.recording).peak_allocated
    return tracked, tensors, forecast.peak_memory_bytes


def main() -> None:
    """Prints one row a model."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", help=", ".join(MODELS))
    print(f"{'model':<12} {'MemTracker':>16} {'tensors':>16} {'difference':>11} {'workspaces':>14}")
    for name in parser.parse_args().models or MODELS:
        tracked, tensors, peak = measure(MODELS[name])
        print(
            f"{name:<12} {tracked:>16,} {tensors:>16,} {tensors / tracked - 1:>+10.2%} "
            f"{peak - tensors:>+14,}"
        )


if __name__ == "__main__":
    main()
