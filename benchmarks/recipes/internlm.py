"""InternLM-7B as InternEvo trains it: ZeRO-1, bf16 weights with fp32 states, flash attention.

Gradients are summed in buckets over all data-parallel ranks, in the last micro-batch alone; each
rank of a ZeRO group updates its share of the fp32 states, then sends its part of the weights to the
group (`--zero 0`: a group of all ranks). Under `--tp 2` the heads, hidden units and the vocabulary
are split, as Megatron splits them. Its fused norms and rotary positions
(flash-attention's) are plain PyTorch here.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from split_layers import Shared, Summed, split_cross_entropy
from torch import Tensor, nn
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

#: InternLM-7B (configs/7B_sft.py).
VOCABULARY, WIDTH, HIDDEN, LAYERS, HEADS = 103168, 4096, 11008, 32, 32
DIM = WIDTH // HEADS


class Block(nn.Module):
    def __init__(self, tp: int, group: Any) -> None:
        super().__init__()
        self.group = group
        self.norm_1, self.norm_2 = nn.RMSNorm(WIDTH, eps=1e-6), nn.RMSNorm(WIDTH, eps=1e-6)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH // tp)
        self.out = nn.Linear(WIDTH // tp, WIDTH)
        self.gate = nn.Linear(WIDTH, HIDDEN // tp, bias=False)
        self.up = nn.Linear(WIDTH, HIDDEN // tp, bias=False)
        self.down = nn.Linear(HIDDEN // tp, WIDTH, bias=False)

    def into(self, x: Tensor) -> Tensor:
        return x if self.group is None else Shared.apply(x, self.group)

    def out_of(self, x: Tensor) -> Tensor:
        return x if self.group is None else Summed.apply(x, self.group)

    def forward(self, x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
        batch, length, _ = x.shape
        parts = self.qkv(self.into(self.norm_1(x))).view(batch, length, 3, -1, DIM).unbind(2)
        query, key, value = (part.transpose(1, 2) for part in parts)
        query, key = rotated(query, cosine, sine), rotated(key, cosine, sine)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        mixed = mixed.transpose(1, 2).reshape(batch, length, -1)
        x = x + self.out_of(self.out(mixed))
        normed = self.into(self.norm_2(x))
        return x + self.out_of(self.down(F.silu(self.gate(normed)) * self.up(normed)))


def rotated(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cosine - second * sine, first * sine + second * cosine), dim=-1)


class InternLM(nn.Module):
    def __init__(self, options: argparse.Namespace, group: Any) -> None:
        super().__init__()
        self.recomputes = options.recompute
        self.group = group
        self.embedding = nn.Embedding(VOCABULARY // options.tp, WIDTH)
        self.blocks = nn.ModuleList(Block(options.tp, group) for _ in range(LAYERS))
        self.norm = nn.RMSNorm(WIDTH, eps=1e-6)
        self.head = nn.Linear(WIDTH, VOCABULARY // options.tp, bias=False)
        places = torch.outer(torch.arange(options.seq).float(), torch.ones(DIM // 2))
        self.register_buffer("cosine", places.cos(), persistent=False)
        self.register_buffer("sine", places.sin(), persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        if self.group is not None:
            x = Summed.apply(x, self.group)
        for block in self.blocks:
            if self.recomputes:
                x = checkpoint(block, x, self.cosine, self.sine, use_reentrant=False)
            else:
                x = block(x, self.cosine, self.sine)
        x = self.norm(x)
        return self.head(x if self.group is None else Shared.apply(x, self.group))


class MasterAdamW(torch.optim.AdamW):
    """Updates fp32 copies of bf16 weights."""

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        weights = [weight for group in self.param_groups for weight in group["params"]]
        if "inner" not in self.__dict__:
            self.masters = [weight.detach().float() for weight in weights]
            self.inner = torch.optim.AdamW(self.masters, lr=1e-4, fused=True)
        for master, weight in zip(self.masters, weights, strict=True):
            master.grad = None if weight.grad is None else weight.grad.float()
        self.inner.step()
        torch._foreach_copy_(weights, self.masters)


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=__doc__)
    made.add_argument("--batch", type=int, default=2, help="sequences of a micro-batch")
    made.add_argument("--seq", type=int, default=2048)
    made.add_argument("--accumulate", type=int, default=4)
    made.add_argument("--tp", type=int, default=1)
    made.add_argument("--zero", type=int, default=0, help="ranks that share the states (0: all)")
    made.add_argument("--recompute", action="store_true")
    made.add_argument("--steps", type=int, default=5)
    return made


def groups(options: argparse.Namespace) -> tuple[Any, Any, Any]:
    """The groups that split a layer (None: no rank does), sum gradients, and share states."""
    world_size, rank = dist.get_world_size(), dist.get_rank()
    tp = options.tp
    split = [list(range(first, first + tp)) for first in range(0, world_size, tp)]
    data = [list(range(first, world_size, tp)) for first in range(tp)]
    share = options.zero or world_size // tp
    states = [row[i : i + share] for row in data for i in range(0, len(row), share)]

    def mine(all_ranks: list[list[int]]) -> Any:
        made = [(ranks, dist.new_group(ranks)) for ranks in all_ranks if rank in ranks]
        return made[0][1]

    return mine(split) if tp > 1 else None, mine(data), mine(states)


def main() -> None:
    options = parser().parse_args()
    dist.init_process_group("nccl")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    split, data, states = groups(options)
    with torch.device("cuda"):
        model = InternLM(options, split).bfloat16()
    run = DistributedDataParallel(
        model, process_group=data, bucket_cap_mb=512, gradient_as_bucket_view=True
    )
    optimizer = ZeroRedundancyOptimizer(
        model.parameters(), MasterAdamW, process_group=states, parameters_as_bucket_view=True,
        lr=1e-4,
    )  # fmt: skip
    for _ in range(options.steps):
        for number in range(options.accumulate):
            shape = (options.batch, options.seq)
            tokens = torch.randint(VOCABULARY // options.tp, shape, device="cuda")
            run.require_backward_grad_sync = number == options.accumulate - 1
            logits = run(tokens).flatten(0, 1).float()
            if split is None:
                loss = F.cross_entropy(logits, tokens.roll(-1, 1).flatten())
            else:
                loss = split_cross_entropy(logits, split)
            (loss / options.accumulate).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
