"""A language model of one's own, to be served: any module that keeps a cache will do.

neusight serve examples/serve_own_model.py --gpu L4 --rate 5,20,80 --slo ttft=200ms,tpot=10ms
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

WIDTH, HEADS, KV_HEADS, LAYERS, WORDS = 1024, 16, 4, 12, 32_000
HEAD = WIDTH // HEADS

Cache = list[tuple[torch.Tensor, torch.Tensor]]


class Block(nn.Module):
    """Attention over the cache, then a gated layer."""

    def __init__(self) -> None:
        super().__init__()
        self.query = nn.Linear(WIDTH, HEADS * HEAD, bias=False)
        self.key = nn.Linear(WIDTH, KV_HEADS * HEAD, bias=False)
        self.value = nn.Linear(WIDTH, KV_HEADS * HEAD, bias=False)
        self.out = nn.Linear(HEADS * HEAD, WIDTH, bias=False)
        self.gate_up = nn.Linear(WIDTH, 2 * 3 * WIDTH, bias=False)
        self.down = nn.Linear(3 * WIDTH, WIDTH, bias=False)
        self.norm, self.norm2 = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)

    def forward(
        self, x: torch.Tensor, past: tuple[torch.Tensor, torch.Tensor] | None
    ) -> tuple[torch.Tensor, tuple[torch.Tensor, torch.Tensor]]:
        normed = self.norm(x)
        query, key, value = (
            projected.unflatten(-1, (-1, HEAD)).transpose(1, 2)
            for projected in (self.query(normed), self.key(normed), self.value(normed))
        )
        if past is not None:
            key, value = torch.cat((past[0], key), 2), torch.cat((past[1], value), 2)
        seen = F.scaled_dot_product_attention(query, key, value, enable_gqa=True)
        x = x + self.out(seen.transpose(1, 2).flatten(2))
        gate, up = self.gate_up(self.norm2(x)).chunk(2, dim=-1)
        return x + self.down(F.silu(gate) * up), (key, value)


class Language(nn.Module):
    """Token ids and a cache (None at first) in, the last token's logits and the cache out."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm = nn.RMSNorm(WIDTH)
        self.head = nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, ids: torch.Tensor, cache: Cache | None) -> tuple[torch.Tensor, Cache]:
        x, grown = self.words(ids), []
        for at, block in enumerate(self.blocks):
            x, kept = block(x, cache[at] if cache else None)
            grown.append(kept)
        return self.head(self.norm(x[:, -1:])), grown


def build() -> nn.Module:
    """What `neusight serve` asks for."""
    return Language().to("cuda", torch.bfloat16).eval()
