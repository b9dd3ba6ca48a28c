"""A small GPT: the model that the checks of this example watch over."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

WIDTH, NUM_HEADS, NUM_LAYERS, VOCABULARY, CONTEXT = 768, 12, 6, 32_000, 1024


class Block(nn.Module):
    """Attention and a two-layer network, each with a residual."""

    def __init__(self) -> None:
        super().__init__()
        self.norm_attention = nn.LayerNorm(WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.project = nn.Linear(WIDTH, WIDTH)
        self.norm_mlp = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 4 * WIDTH)
        self.down = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attend(self.norm_attention(x))
        hidden = F.gelu(self.up(self.norm_mlp(x)))
        out: Tensor = x + self.down(hidden)
        return out

    def attend(self, x: Tensor) -> Tensor:
        batch, seq, width = x.shape
        heads = (batch, seq, NUM_HEADS, width // NUM_HEADS)
        query, key, value = (
            part.view(heads).transpose(1, 2) for part in self.qkv(x).split(width, dim=2)
        )
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        out: Tensor = self.project(mixed.transpose(1, 2).reshape(batch, seq, width))
        return out


class GPT(nn.Module):
    """Blocks between an embedding and a head; activations inside blocks are computed twice."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.positions = nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(NUM_LAYERS))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.tokens(tokens) + self.positions(positions)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False)
        logits: Tensor = self.head(self.norm(x))
        return logits
