"""Trains GPT-2 with torch.compile on one CUDA GPU; `--mode eager` leaves it uncompiled."""

from __future__ import annotations

import argparse
from typing import Any

import torch
import torch.nn.functional as F
from train_gpt2 import GPT2, SIZES, Config, make_optimizer, synthetic_tokens

MODES = ("default", "reduce-overhead", "eager")
TINY = Config(num_layers=2, num_heads=2, width=128, vocabulary=1000)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", choices=sorted({*SIZES, "tiny"}), default="small")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--seq", type=int, default=1024)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--mode", choices=MODES, default="default")
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    config = TINY if arguments.size == "tiny" else SIZES[arguments.size]
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    model = GPT2(config).cuda().train()
    optimizer = make_optimizer(model, learning_rate=6e-4)
    forward: Any = model if arguments.mode == "eager" else torch.compile(model, mode=arguments.mode)

    batches = synthetic_tokens(arguments.batch, arguments.seq, config.vocabulary, arguments.steps)
    for step, (inputs, targets) in enumerate(batches):
        inputs, targets = inputs.cuda(non_blocking=True), targets.cuda(non_blocking=True)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            logits = forward(inputs)
            loss = F.cross_entropy(logits.view(-1, logits.shape[-1]), targets.view(-1))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if step % 10 == 0:
            print(f"step {step}: loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
