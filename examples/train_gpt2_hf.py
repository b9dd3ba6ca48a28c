"""Trains Hugging Face's GPT-2 from its configuration on one CUDA GPU; nothing is downloaded."""

from __future__ import annotations

import argparse
import time

import torch
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
SIZES = {
    "small": GPT2Config(n_layer=12, n_head=12, n_embd=768, use_cache=False),
    "medium": GPT2Config(n_layer=24, n_head=16, n_embd=1024, use_cache=False),
    "large": GPT2Config(n_layer=36, n_head=20, n_embd=1280, use_cache=False),
}


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", choices=sorted(SIZES), default="small")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--seq", type=int, default=1024)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--dtype", choices=sorted(DTYPES), default="bf16")
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    torch.manual_seed(0)
    config = SIZES[arguments.size]
    model: nn.Module = GPT2LMHeadModel(config)
    model.cuda().train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, weight_decay=0.1)
    autocast_dtype = DTYPES[arguments.dtype]
    scaler = torch.amp.GradScaler("cuda", enabled=autocast_dtype == torch.float16)
    num_parameters = sum(p.numel() for p in model.parameters())
    print(f"GPT-2 {arguments.size}: {num_parameters / 1e6:.1f} M parameters, {arguments.dtype}")

    for step in range(arguments.steps):
        tokens = torch.randint(config.vocab_size, (arguments.batch, arguments.seq))
        torch.cuda.synchronize()
        start = time.perf_counter()
        tokens = tokens.cuda()
        with torch.autocast("cuda", dtype=autocast_dtype, enabled=autocast_dtype != torch.float32):
            loss = model(input_ids=tokens, labels=tokens).loss
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)
        torch.cuda.synchronize()
        seconds = time.perf_counter() - start
        rate = arguments.batch * arguments.seq / seconds
        print(f"step {step}: loss {loss.item():.4f}, {seconds * 1e3:.2f} ms, {rate:,.0f} tokens/s")


if __name__ == "__main__":
    main()
