"""T5: an encoder and a decoder with relative positions, on random tokens."""

from __future__ import annotations

import argparse

import torch
import torch.nn.functional as F
from loop import Step, loss_of_tokens, options, run, step_of
from torch import Tensor, nn
from transformer import attend

VOCABULARY = 32128
#: Layers of encoder and decoder, heads, width, head width, hidden width.
SIZES = {"small": (6, 8, 512, 64, 2048), "base": (12, 12, 768, 64, 3072)}
NUM_BUCKETS, MAX_DISTANCE = 32, 128


class RMSNorm(nn.Module):
    """T5's layer norm: no mean, no bias."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        variance = x.float().pow(2).mean(-1, keepdim=True)
        return self.weight * (x * torch.rsqrt(variance + 1e-6)).to(x.dtype)


class Attention(nn.Module):
    """Attention to itself or to the encoder's output, with a bias by relative position."""

    def __init__(self, size: tuple[int, ...], *, eager: bool) -> None:
        super().__init__()
        _, self.heads, width, self.dim, _ = size
        self.eager = eager
        inner = self.heads * self.dim
        self.query, self.key, self.value = (nn.Linear(width, inner, bias=False) for _ in range(3))
        self.project = nn.Linear(inner, width, bias=False)

    def forward(self, x: Tensor, source: Tensor, bias: Tensor | None) -> Tensor:
        def heads(projected: Tensor) -> Tensor:
            batch, seq, _ = projected.shape
            return projected.view(batch, seq, self.heads, self.dim).transpose(1, 2)

        query, key, value = (
            heads(self.query(x)), heads(self.key(source)), heads(self.value(source))
        )  # fmt: skip
        bias = None if bias is None else bias.to(query.dtype)
        mixed = attend(query, key, value, bias=bias, eager=self.eager, scale=1.0)
        return self.project(mixed.transpose(1, 2).flatten(2))


class Layer(nn.Module):
    """Self-attention, in the decoder attention to the encoder, and an MLP; norms before."""

    def __init__(self, size: tuple[int, ...], *, decoder: bool, eager: bool) -> None:
        super().__init__()
        _, _, width, _, hidden = size
        self.attention = Attention(size, eager=eager)
        self.cross = Attention(size, eager=eager) if decoder else None
        self.norms = nn.ModuleList(RMSNorm(width) for _ in range(3))
        self.up, self.down = (
            nn.Linear(width, hidden, bias=False), nn.Linear(hidden, width, bias=False)
        )  # fmt: skip
        self.dropout = nn.Dropout(0.1)

    def forward(self, x: Tensor, bias: Tensor, encoded: Tensor | None) -> Tensor:
        normed = self.norms[0](x)
        x = x + self.dropout(self.attention(normed, normed, bias))
        if self.cross is not None and encoded is not None:
            x = x + self.dropout(self.cross(self.norms[1](x), encoded, None))
        return x + self.dropout(self.down(F.relu(self.up(self.norms[2](x)))))


def buckets(seq: int, device: torch.device, *, both_ways: bool) -> Tensor:
    """The bucket of each distance: near ones apart, far ones by their logarithm."""
    places = torch.arange(seq, device=device)
    distance = places[None, :] - places[:, None]
    count = NUM_BUCKETS // 2 if both_ways else NUM_BUCKETS
    offset = (distance > 0).long() * count if both_ways else torch.zeros_like(distance)
    distance = distance.abs() if both_ways else (-distance).clamp(min=0)
    near = count // 2
    ratio = torch.log(distance.float().clamp(min=1) / near) / torch.log(
        torch.tensor(MAX_DISTANCE / near)
    )
    far = (near + (ratio * (count - near)).long()).clamp(max=count - 1)
    return offset + torch.where(distance < near, distance, far)


class Stack(nn.Module):
    """All layers of encoder or decoder."""

    def __init__(self, settings: argparse.Namespace, *, decoder: bool) -> None:
        super().__init__()
        size = SIZES[settings.size]
        eager = settings.attention == "eager"
        self.decoder = decoder
        self.bias = nn.Embedding(NUM_BUCKETS, size[1])
        self.layers = nn.ModuleList(
            Layer(size, decoder=decoder, eager=eager) for _ in range(size[0])
        )
        self.norm = RMSNorm(size[2])

    def forward(self, x: Tensor, encoded: Tensor | None = None) -> Tensor:
        seq = x.shape[1]
        found = buckets(seq, x.device, both_ways=not self.decoder)
        bias = self.bias(found).permute(2, 0, 1)[None]
        if self.decoder:
            future = torch.ones(seq, seq, dtype=torch.bool, device=x.device).triu(1)
            bias = bias.masked_fill(future, torch.finfo(bias.dtype).min / 2)
        for layer in self.layers:
            x = layer(x, bias, encoded)
        return self.norm(x)


class T5(nn.Module):
    """Encoder, decoder and the tied output layer."""

    def __init__(self, settings: argparse.Namespace) -> None:
        super().__init__()
        width = SIZES[settings.size][2]
        self.tokens = nn.Embedding(VOCABULARY, width)
        self.encoder = Stack(settings, decoder=False)
        self.decoder = Stack(settings, decoder=True)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        encoded = self.encoder(self.tokens(source))
        decoded = self.decoder(self.tokens(target), encoded)
        scale = self.tokens.weight.shape[1] ** -0.5
        return F.linear(decoded * scale, self.tokens.weight)


def parser() -> argparse.ArgumentParser:
    made = options(__doc__, batch=16)
    made.add_argument("--size", choices=sorted(SIZES), default="base")
    made.add_argument("--seq", type=int, default=512)
    return made


def build(settings: argparse.Namespace) -> Step:
    source = torch.randint(VOCABULARY, (settings.batch, settings.seq))
    target = torch.randint(VOCABULARY, (settings.batch, settings.seq // 4))
    with torch.device("cuda"):
        model = T5(settings)
    return step_of(settings, model, (source, target, target.roll(-1, 1)), loss_of_tokens)


if __name__ == "__main__":
    run(build, parser())
