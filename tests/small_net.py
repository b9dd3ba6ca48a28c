"""A small network of blocks, trained inside a forecast, and what its memory peaks at."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

import neusight
from neusight.memory.placement import memory_on
from neusight.predictors.gpu import find_gpu
from neusight.recording.recording import Recording

GIB = 2**30
BLOCKS = frozenset(f"Net.blocks.{number}" for number in range(6))


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, data: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = data + F.dropout(self.down(F.gelu(self.up(self.norm(data)))))
        return result


class Net(nn.Module):
    def __init__(self, width: int, recompute: bool) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(1000, width), nn.Linear(width, 1000)
        self.blocks = nn.ModuleList(Block(width) for _ in BLOCKS)
        self.recompute = recompute

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        data = self.embedding(tokens)
        for block in self.blocks:
            data = checkpoint(block, data, use_reentrant=False) if self.recompute else block(data)
        result: torch.Tensor = self.head(data)
        return result


def train(
    *,
    batch: int = 16,
    recompute: bool = False,
    half: bool = False,
    optimizer: type[torch.optim.Optimizer] = torch.optim.AdamW,
    **options: Any,
) -> neusight.Forecast:
    with neusight.forecast_on("A100", with_stack=True) as forecast:
        model = Net(256, recompute).cuda()
        chosen = optimizer(model.parameters(), **options)
        for _ in range(3):
            tokens = torch.randint(1000, (batch, 128)).cuda()
            with torch.autocast("cuda", torch.bfloat16, enabled=half):
                loss = F.cross_entropy(model(tokens).view(-1, 1000), tokens.view(-1))
            loss.backward()
            chosen.step()
            chosen.zero_grad()
            del loss, tokens
    return forecast


def peak(recording: Recording) -> int:
    return memory_on(recording, find_gpu("A100")).peak_allocated
