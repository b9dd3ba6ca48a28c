"""Trains, or runs, Llama 3 8B in bf16 from its configuration on one CUDA GPU; no download."""

from __future__ import annotations

import argparse
import time
from typing import Any, cast

import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

VOCABULARY = 128256


def llama3_8b(num_layers: int) -> LlamaConfig:
    """The published shape of Llama 3 8B, with as many layers as asked for."""
    return LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=4096,
        intermediate_size=14336,
        num_hidden_layers=num_layers,
        num_attention_heads=32,
        num_key_value_heads=8,
        max_position_embeddings=8192,
        rms_norm_eps=1e-5,
        rope_parameters={"rope_type": "default", "rope_theta": 500000.0},
    )


def build(config: LlamaConfig, *, recompute: bool) -> nn.Module:
    """The model in bf16, made on the GPU so that the host's memory never holds it."""
    torch.set_default_dtype(torch.bfloat16)
    try:
        with torch.device("cuda"):
            model: Any = LlamaForCausalLM(config)  # much of its interface has no types
    finally:
        torch.set_default_dtype(torch.float32)
    if recompute:
        model.gradient_checkpointing_enable()
    return cast(nn.Module, model)


def train(model: nn.Module, *, batch: int, seq: int, steps: int) -> None:
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
    for step in range(steps):
        tokens = torch.randint(VOCABULARY, (batch, seq))
        torch.cuda.synchronize()
        start = time.perf_counter()
        tokens = tokens.cuda()
        loss = model(input_ids=tokens, labels=tokens, use_cache=False).loss
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        torch.cuda.synchronize()
        seconds = time.perf_counter() - start
        rate = batch * seq / seconds
        print(f"step {step}: loss {loss.item():.4f}, {seconds * 1e3:.2f} ms, {rate:,.0f} tokens/s")


@torch.inference_mode()
def infer(model: nn.Module, *, batch: int, seq: int, steps: int) -> None:
    model.eval()
    for step in range(steps):
        tokens = torch.randint(VOCABULARY, (batch, seq))
        torch.cuda.synchronize()
        start = time.perf_counter()
        logits = model(input_ids=tokens.cuda(), use_cache=False, logits_to_keep=1).logits
        next_token = logits[0, -1].argmax()
        torch.cuda.synchronize()
        seconds = time.perf_counter() - start
        rate = batch * seq / seconds
        print(
            f"step {step}: token {next_token.item()}, {seconds * 1e3:.2f} ms, {rate:,.0f} tokens/s"
        )


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--seq", type=int, default=2048)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--inference", action="store_true", help="forward only")
    parser.add_argument("--recompute", action="store_true", help="gradient checkpointing")
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    torch.manual_seed(0)
    model = build(llama3_8b(arguments.layers), recompute=arguments.recompute)
    num_parameters = sum(p.numel() for p in model.parameters())
    print(f"Llama 3 8B, {arguments.layers} layers: {num_parameters / 1e9:.2f} G parameters, bf16")
    run = infer if arguments.inference else train
    run(model, batch=arguments.batch, seq=arguments.seq, steps=arguments.steps)


if __name__ == "__main__":
    main()
