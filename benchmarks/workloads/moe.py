"""A mixture of experts: each token goes to two of eight; experts take equal shares of tokens."""

from __future__ import annotations

import argparse

import torch
import torch.nn.functional as F
from loop import Step, loss_of_tokens, options, run, step_of
from torch import Tensor, nn
from transformer import Attention, layers

VOCABULARY = 32000
NUM_EXPERTS, CHOSEN = 8, 2


class Experts(nn.Module):
    """Tokens sorted by expert, equal shares multiplied in a batch, added up where they came from.

    Equal shares keep every shape known; what does not fit its expert's share goes to the next.
    """

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.router = nn.Linear(width, NUM_EXPERTS, bias=False)
        self.up = nn.Parameter(torch.randn(NUM_EXPERTS, width, hidden) * 0.02)
        self.down = nn.Parameter(torch.randn(NUM_EXPERTS, hidden, width) * 0.02)

    def forward(self, x: Tensor) -> Tensor:
        flat = x.reshape(-1, x.shape[-1])
        weights, experts = self.router(flat).softmax(-1).topk(CHOSEN, dim=-1)
        order = experts.flatten().argsort()
        sources = order // CHOSEN
        shares = flat[sources].view(NUM_EXPERTS, -1, flat.shape[-1])
        made = torch.bmm(F.silu(torch.bmm(shares, self.up)), self.down)
        scaled = made.flatten(0, 1) * weights.flatten()[order].unsqueeze(-1)
        return torch.zeros_like(flat).index_add(0, sources, scaled.to(flat.dtype)).view(x.shape)


class Block(nn.Module):
    """Attention, then experts."""

    def __init__(self, width: int, num_heads: int, *, eager: bool) -> None:
        super().__init__()
        self.attention = Attention(width, num_heads, causal=True, eager=eager)
        self.first_norm, self.second_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.experts = Experts(width, 4 * width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.first_norm(x))
        return x + self.experts(self.second_norm(x))


class MixtureOfExperts(nn.Module):
    """A decoder whose MLPs are experts."""

    def __init__(self, settings: argparse.Namespace) -> None:
        super().__init__()
        width = settings.width
        eager = settings.attention == "eager"
        self.tokens = nn.Embedding(VOCABULARY, width)
        self.blocks = layers(
            [Block(width, width // 64, eager=eager) for _ in range(settings.layers)],
            recompute=settings.checkpoint,
        )
        self.norm = nn.LayerNorm(width)
        self.output = nn.Linear(width, VOCABULARY, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.output(self.norm(self.blocks.through(self.tokens(tokens))))


def parser() -> argparse.ArgumentParser:
    made = options(__doc__, batch=4)
    made.add_argument("--seq", type=int, default=1024)
    made.add_argument("--width", type=int, default=1024)
    made.add_argument("--layers", type=int, default=8)
    return made


def build(settings: argparse.Namespace) -> Step:
    tokens = torch.randint(VOCABULARY, (settings.batch, settings.seq))
    with torch.device("cuda"):
        model = MixtureOfExperts(settings)
    return step_of(settings, model, (tokens, tokens.roll(-1, 1)), loss_of_tokens)


if __name__ == "__main__":
    run(build, parser())
