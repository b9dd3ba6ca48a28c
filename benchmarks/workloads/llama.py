"""A Llama-like decoder: RMS norms, rotary positions, grouped heads, SwiGLU; also decoding."""

from __future__ import annotations

import argparse

import torch
import torch.nn.functional as F
from loop import Step, options, run, step_of
from torch import Tensor, nn
from transformer import attend, layers

VOCABULARY = 32000
#: Layers, heads, key/value heads, width, hidden width.
SIZES = {
    "160m": (12, 12, 4, 768, 2048),
    "1b": (16, 32, 8, 2048, 8192),
    "3b": (28, 24, 8, 3072, 8192),
}


class RMSNorm(nn.Module):
    """Root mean square norm, in fp32 as the published model computes it."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        normed = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5)
        return self.weight * normed.to(x.dtype)


def rotated(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Rotary positions, halves rotated against each other."""
    first, second = x.chunk(2, dim=-1)
    return x * cosine + torch.cat((-second, first), dim=-1) * sine


class Layer(nn.Module):
    """Attention with grouped heads, then SwiGLU."""

    def __init__(self, size: tuple[int, ...], *, eager: bool) -> None:
        super().__init__()
        _, self.heads, self.kv_heads, width, hidden = size
        self.dim = width // self.heads
        self.eager = eager
        self.query = nn.Linear(width, width, bias=False)
        self.key = nn.Linear(width, self.kv_heads * self.dim, bias=False)
        self.value = nn.Linear(width, self.kv_heads * self.dim, bias=False)
        self.project = nn.Linear(width, width, bias=False)
        self.gate = nn.Linear(width, hidden, bias=False)
        self.up = nn.Linear(width, hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)
        self.first_norm, self.second_norm = RMSNorm(width), RMSNorm(width)
        self.past: tuple[Tensor, Tensor] | None = None

    def forward(self, x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
        batch, seq, width = x.shape
        normed = self.first_norm(x)

        def heads(projected: Tensor) -> Tensor:
            return projected.view(batch, seq, -1, self.dim).transpose(1, 2)

        query, key, value = (heads(part(normed)) for part in (self.query, self.key, self.value))
        query, key = rotated(query, cosine, sine), rotated(key, cosine, sine)
        if self.past is not None:
            key = torch.cat((self.past[0], key), dim=2)
            value = torch.cat((self.past[1], value), dim=2)
        mixed = attend(query, key, value, causal=self.past is None, eager=self.eager)
        x = x + self.project(mixed.transpose(1, 2).reshape(batch, seq, width))
        normed = self.second_norm(x)
        return x + self.down(F.silu(self.gate(normed)) * self.up(normed))


class Llama(nn.Module):
    """The decoder; with `--decode` it makes one token after a prompt whose keys are kept."""

    def __init__(self, settings: argparse.Namespace) -> None:
        super().__init__()
        size = SIZES[settings.size]
        num_layers, num_heads, _, width, _ = size
        self.start = settings.seq if settings.decode else 0
        self.dim = width // num_heads
        self.tokens = nn.Embedding(VOCABULARY, width)
        self.layers = layers(
            [Layer(size, eager=settings.attention == "eager") for _ in range(num_layers)],
            recompute=settings.checkpoint,
        )
        self.norm = RMSNorm(width)
        self.output = nn.Linear(width, VOCABULARY, bias=False)
        half = torch.arange(0, self.dim, 2).float() / self.dim
        self.register_buffer("frequencies", 500000.0**-half, persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens)
        places = torch.arange(self.start, self.start + tokens.shape[1], device=tokens.device)
        angles = torch.outer(places.float(), self.frequencies.float()).repeat(1, 2)
        x = self.layers.through(x, angles.cos().to(x.dtype), angles.sin().to(x.dtype))
        return self.output(self.norm(x))


def loss(logits: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(logits.view(-1, VOCABULARY).float(), targets.view(-1))


def parser() -> argparse.ArgumentParser:
    made = options(__doc__, batch=1)
    made.add_argument("--size", choices=sorted(SIZES), default="1b")
    made.add_argument("--seq", type=int, default=2048)
    made.add_argument("--decode", action="store_true", help="one token after a prompt of --seq")
    return made


def build(settings: argparse.Namespace) -> Step:
    with torch.device("cuda"):
        model = Llama(settings)
    tokens = torch.randint(VOCABULARY, (settings.batch, 1 if settings.decode else settings.seq))
    step = step_of(settings, model, (tokens, tokens.roll(-1, 1)), loss)
    if settings.decode:
        for layer in model.layers:
            shape = (settings.batch, layer.kv_heads, settings.seq, layer.dim)
            kind = layer.key.weight.dtype
            layer.past = (
                torch.randn(shape, device="cuda", dtype=kind),
                torch.randn(shape, device="cuda", dtype=kind),
            )
    return step


if __name__ == "__main__":
    run(build, parser())
