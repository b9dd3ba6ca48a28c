"""Trains Hugging Face's BERT-large on masked tokens on one CUDA GPU; nothing is downloaded."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from transformers import BertConfig, BertForMaskedLM

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
SIZES = {
    "base": BertConfig(),
    "large": BertConfig(
        hidden_size=1024, num_hidden_layers=24, num_attention_heads=16, intermediate_size=4096
    ),
}
MASK_TOKEN = 103
IGNORED = -100


def synthetic_sentences(
    batch: int, seq: int, vocabulary: int, steps: int
) -> Iterator[dict[str, Tensor]]:
    """Random sentences of different lengths, padded, with 15 % of their tokens masked."""
    generator = torch.Generator().manual_seed(0)
    for _ in range(steps):
        tokens = torch.randint(1000, vocabulary, (batch, seq), generator=generator)
        lengths = torch.randint(seq // 2, seq + 1, (batch, 1), generator=generator)
        attention_mask = (torch.arange(seq) < lengths).long()
        is_masked = (torch.rand(batch, seq, generator=generator) < 0.15) & attention_mask.bool()
        yield {
            "input_ids": tokens.masked_fill(is_masked, MASK_TOKEN),
            "attention_mask": attention_mask,
            "labels": tokens.masked_fill(~is_masked, IGNORED),
        }


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", choices=sorted(SIZES), default="large")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--seq", type=int, default=512)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--dtype", choices=sorted(DTYPES), default="bf16")
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    torch.manual_seed(0)
    config = SIZES[arguments.size]
    model: nn.Module = BertForMaskedLM(config)
    model.cuda().train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.01)
    warmup = torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=0.1, total_iters=1000)
    autocast_dtype = DTYPES[arguments.dtype]
    scaler = torch.amp.GradScaler("cuda", enabled=autocast_dtype == torch.float16)
    num_parameters = sum(p.numel() for p in model.parameters())
    print(f"BERT {arguments.size}: {num_parameters / 1e6:.1f} M parameters, {arguments.dtype}")

    sentences = synthetic_sentences(
        arguments.batch, arguments.seq, config.vocab_size, arguments.steps
    )
    for step, batch in enumerate(sentences):
        torch.cuda.synchronize()
        start = time.perf_counter()
        on_gpu = {name: tensor.to("cuda", non_blocking=True) for name, tensor in batch.items()}
        with torch.autocast("cuda", dtype=autocast_dtype, enabled=autocast_dtype != torch.float32):
            loss = model(**on_gpu).loss
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        warmup.step()
        optimizer.zero_grad(set_to_none=True)
        torch.cuda.synchronize()
        seconds = time.perf_counter() - start
        rate = arguments.batch / seconds
        print(
            f"step {step}: loss {loss.item():.4f}, {seconds * 1e3:.2f} ms, {rate:,.1f} sentences/s"
        )


if __name__ == "__main__":
    main()
