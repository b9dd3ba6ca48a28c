"""GPT of 22 billion parameters as Megatron-LM trains it: tensor and sequence parallel.

Korthikanti et al. (2205.05198), Table 5: fp16 with fp32 master weights, attention before flash
attention. `--recompute full`: whole layers again, tensor parallelism alone. "selective": the
attention's core again, and sequence parallelism between the layers. Megatron fuses the masked
softmax by a kernel of its own, and bias, GELU, dropout and the residual by nvFuser; here
torch.compile fuses the same.
"""

from __future__ import annotations

import argparse
import math
import os
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from split_layers import Gathered, Scattered, Shared, Summed, split_cross_entropy
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

VOCABULARY = 51200


@torch.compile
def masked_softmax(scores: Tensor, mask: Tensor) -> Tensor:
    return torch.softmax(scores.masked_fill(mask, -10000.0), dim=-1)


@torch.compile
def gelu_of_sum(x: Tensor, bias: Tensor) -> Tensor:
    return F.gelu(x + bias, approximate="tanh")


@torch.compile
def dropped_onto(residual: Tensor, x: Tensor, bias: Tensor) -> Tensor:
    return residual + F.dropout(x + bias, 0.1)


class Block(nn.Module):
    """A layer's part; tensors are [sequence, batch, width]."""

    def __init__(self, options: argparse.Namespace, ranks: int) -> None:
        super().__init__()
        width, self.heads = options.width, options.heads // ranks
        self.is_selective = options.recompute == "selective"
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width // ranks)
        self.out = nn.Linear(width // ranks, width, bias=False)
        self.up = nn.Linear(width, 4 * width // ranks, bias=False)
        self.down = nn.Linear(4 * width // ranks, width, bias=False)
        self.bias_1, self.bias_2 = (nn.Parameter(torch.zeros(width)) for _ in range(2))
        self.bias_up = nn.Parameter(torch.zeros(4 * width // ranks))

    def into(self, x: Tensor) -> Tensor:
        return (Gathered if self.is_selective else Shared).apply(x, None)

    def out_of(self, x: Tensor) -> Tensor:
        return (Scattered if self.is_selective else Summed).apply(x, None)

    def core(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
        """Softmax attention over [batch x heads, sequence, width of a head]."""
        empty = torch.empty(query.shape[0], query.shape[1], key.shape[1], dtype=query.dtype,
                            device=query.device)  # fmt: skip
        scale = 1 / math.sqrt(query.shape[-1])
        scores = torch.baddbmm(empty, query, key.transpose(1, 2), beta=0.0, alpha=scale)
        return torch.bmm(F.dropout(masked_softmax(scores, mask), 0.1), value)

    def attend(self, x: Tensor, mask: Tensor) -> Tensor:
        length, batch, _ = x.shape
        parts = self.qkv(x).view(length, batch * self.heads, -1).chunk(3, dim=-1)
        query, key, value = (part.transpose(0, 1) for part in parts)
        if self.is_selective:
            mixed = checkpoint(self.core, query, key, value, mask, use_reentrant=False)
        else:
            mixed = self.core(query, key, value, mask)
        return self.out(mixed.transpose(0, 1).reshape(length, batch, -1))

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        mixed = self.out_of(self.attend(self.into(self.norm_1(x)), mask))
        x = dropped_onto(x, mixed, self.bias_1)
        hidden = gelu_of_sum(self.up(self.into(self.norm_2(x))), self.bias_up)
        return dropped_onto(x, self.out_of(self.down(hidden)), self.bias_2)


class GPT(nn.Module):
    """The embedding and the head split by vocabulary."""

    def __init__(self, options: argparse.Namespace, ranks: int) -> None:
        super().__init__()
        self.recompute, self.ranks = options.recompute, ranks
        self.tokens = nn.Embedding(VOCABULARY // ranks, options.width)
        self.places = nn.Embedding(options.seq, options.width)
        self.blocks = nn.ModuleList(Block(options, ranks) for _ in range(options.layers))
        self.norm = nn.LayerNorm(options.width)

    def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
        is_selective = self.recompute == "selective"
        places = self.places(torch.arange(tokens.shape[0], device=tokens.device))
        x = Summed.apply(self.tokens(tokens), None) + places[:, None]
        if is_selective:
            x = x.chunk(self.ranks)[0].contiguous()
        for block in self.blocks:
            if self.recompute == "full":
                x = checkpoint(block, x, mask, use_reentrant=False)
            else:
                x = block(x, mask)
        x = (Gathered if is_selective else Shared).apply(self.norm(x), None)
        return split_cross_entropy(F.linear(x, self.tokens.weight).float(), None)


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=__doc__)
    made.add_argument("--width", type=int, default=6144)
    made.add_argument("--layers", type=int, default=48)
    made.add_argument("--heads", type=int, default=64)
    made.add_argument("--batch", type=int, default=4)
    made.add_argument("--seq", type=int, default=2048)
    made.add_argument("--recompute", choices=("selective", "full"), default="selective")
    made.add_argument("--steps", type=int, default=5)
    return made


def update(model: nn.Module, masters: list[Tensor], optimizer: torch.optim.Optimizer) -> None:
    """Adam on fp32 copies (apex's fused one), then back to fp16."""
    weights: list[Any] = list(model.parameters())
    for master, weight in zip(masters, weights, strict=True):
        master.grad = weight.grad.float()
        weight.grad = None
    nn.utils.clip_grad_norm_(masters, 1.0)
    optimizer.step()
    with torch.no_grad():
        torch._foreach_copy_(weights, masters)


def main() -> None:
    options = parser().parse_args()
    dist.init_process_group("nccl")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    with torch.device("cuda"):
        model = GPT(options, dist.get_world_size()).half()
        mask = torch.ones(options.seq, options.seq, dtype=torch.bool).triu(1)
    masters: list[Tensor] = [weight.detach().float() for weight in model.parameters()]
    optimizer = torch.optim.Adam(masters, lr=1e-4, fused=True)
    for _ in range(options.steps):
        shape = (options.seq, options.batch)
        tokens = torch.randint(VOCABULARY // model.ranks, shape, device="cuda")
        model(tokens, mask).backward()
        update(model, masters, optimizer)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
