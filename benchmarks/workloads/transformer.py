"""Attention and blocks that several workloads are made of, plain PyTorch."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    causal: bool = False,
    bias: Tensor | None = None,
    eager: bool = False,
    scale: float | None = None,
) -> Tensor:
    """Attention over [batch, heads, sequence, head_dim]; key and value may have fewer heads."""
    groups = query.shape[1] // key.shape[1]
    if not eager:
        return F.scaled_dot_product_attention(
            query, key, value, attn_mask=bias, is_causal=causal, enable_gqa=groups > 1, scale=scale
        )
    if groups > 1:
        key, value = (part.repeat_interleave(groups, dim=1) for part in (key, value))
    factor = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    scores = query @ key.transpose(-2, -1) * factor
    if bias is not None:
        scores = scores + bias
    if causal:
        mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
        scores = scores.masked_fill(~mask, float("-inf"))
    return F.softmax(scores.float(), dim=-1).to(value.dtype) @ value


class Attention(nn.Module):
    """Multi-head attention with one projection for query, key and value."""

    def __init__(self, width: int, num_heads: int, *, causal: bool, eager: bool) -> None:
        super().__init__()
        self.num_heads, self.causal, self.eager = num_heads, causal, eager
        self.qkv = nn.Linear(width, 3 * width)
        self.project = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, seq, width = x.shape
        heads = (batch, seq, self.num_heads, width // self.num_heads)
        query, key, value = (
            part.view(heads).transpose(1, 2) for part in self.qkv(x).chunk(3, dim=-1)
        )
        mixed = attend(query, key, value, causal=self.causal, eager=self.eager)
        return self.project(mixed.transpose(1, 2).reshape(batch, seq, width))


class Block(nn.Module):
    """A transformer layer with the norm before (GPT-2, ViT) or after (BERT) each half."""

    def __init__(
        self,
        width: int,
        num_heads: int,
        *,
        causal: bool = False,
        norm_first: bool = True,
        dropout: float = 0.0,
        approximate: str = "none",
        eager: bool = False,
    ) -> None:
        super().__init__()
        self.norm_first = norm_first
        self.attention = Attention(width, num_heads, causal=causal, eager=eager)
        self.first_norm, self.second_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width),
            nn.GELU(approximate=approximate),
            nn.Linear(4 * width, width),
        )
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        if self.norm_first:
            x = x + self.dropout(self.attention(self.first_norm(x)))
            return x + self.dropout(self.mlp(self.second_norm(x)))
        x = self.first_norm(x + self.dropout(self.attention(x)))
        return self.second_norm(x + self.dropout(self.mlp(x)))


class Layers(nn.ModuleList):
    """Layers one after the other, recomputed in the backward pass where asked for."""

    recompute = False

    def through(self, x: Tensor, *more: Tensor) -> Tensor:
        """The output of the last layer; each layer gets `more` too."""
        for layer in self:
            if self.recompute and self.training:
                x = checkpoint(layer, x, *more, use_reentrant=False)
            else:
                x = layer(x, *more)
        return x


def layers(modules: list[nn.Module], *, recompute: bool) -> Layers:
    """Layers, to be recomputed or not."""
    made = Layers(modules)
    made.recompute = recompute
    return made
