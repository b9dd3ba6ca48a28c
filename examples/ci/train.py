"""Trains the small GPT on synthetic tokens; knows nothing of neusight."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from model import CONTEXT, GPT, VOCABULARY
from torch import Tensor, nn

BATCH, NUM_STEPS, REPORT_EVERY = 8, 100, 50


def training_step(model: nn.Module, optimizer: torch.optim.Optimizer, tokens: Tensor) -> Tensor:
    """One step in mixed precision; its loss."""
    with torch.autocast("cuda", dtype=torch.bfloat16):
        logits = model(tokens)
        loss = F.cross_entropy(logits.view(-1, VOCABULARY), tokens.view(-1))
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.detach()


def main(num_steps: int = NUM_STEPS) -> None:
    """Trains for some steps; reads the loss now and then, as each read waits for the GPU."""
    model = GPT().cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    total = torch.zeros((), device="cuda")
    for step in range(1, num_steps + 1):
        tokens = torch.randint(VOCABULARY, (BATCH, CONTEXT)).cuda()
        total += training_step(model, optimizer, tokens)
        if step % REPORT_EVERY == 0:
            print(f"step {step}: loss {total.item() / step:.3f}")


if __name__ == "__main__":
    main()
