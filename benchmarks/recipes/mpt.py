"""MPT under FSDP1, as llm-foundry's `scripts/train` benchmarks it.

Composer's FSDP: a unit a block, bf16 parameters and reduction ("DEFAULT", "PURE"), prefetched
backward, gradients clipped, and reduced in each micro-batch; its DecoupledAdamW, a loop over the
parameters; layer norms in bf16 without biases, tied embeddings. Attention is what its benchmarks
asked for: "triton", the first FlashAttention in Triton, or "flash", FlashAttention-2.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from flash_attn import flash_attn_func, flash_attn_triton
from torch import Tensor, nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecision, ShardingStrategy
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

VOCABULARY = 50368
#: Width, layers, heads (llm-foundry, scripts/train/yamls/pretrain).
SIZES = {
    "125m": (768, 12, 12),
    "350m": (1024, 24, 16),
    "760m": (1536, 24, 12),
    "1b": (2048, 24, 16),
    "3b": (2560, 32, 20),
    "7b": (4096, 32, 32),
}


class Block(nn.Module):
    def __init__(self, width: int, heads: int, attention: str) -> None:
        super().__init__()
        self.heads, self.attention = heads, attention
        self.norm_1, self.norm_2 = (nn.LayerNorm(width, bias=False) for _ in range(2))
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.up = nn.Linear(width, 4 * width, bias=False)
        self.down = nn.Linear(4 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        parts = self.qkv(self.norm_1(x)).chunk(3, dim=-1)
        query, key, value = (part.view(batch, length, self.heads, -1) for part in parts)
        if self.attention == "triton":
            mixed = flash_attn_triton.flash_attn_func(query, key, value, None, True)
        else:
            mixed = flash_attn_func(query, key, value, causal=True)
        x = x + self.out(mixed.reshape(batch, length, width))
        return x + self.down(F.gelu(self.up(self.norm_2(x))))


class MPT(nn.Module):
    def __init__(self, size: str, length: int, attention: str) -> None:
        super().__init__()
        width, num_layers, heads = SIZES[size]
        self.tokens, self.places = nn.Embedding(VOCABULARY, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, heads, attention) for _ in range(num_layers))
        self.norm = nn.LayerNorm(width, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        places = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.tokens(tokens) + self.places(places)
        for block in self.blocks:
            x = block(x)
        return F.linear(self.norm(x), self.tokens.weight)


class DecoupledAdamW(torch.optim.AdamW):
    """Composer's: a loop over the parameters, whose decay does not follow the learning rate."""

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is not None and weight.numel():
                    self._update(weight, group)

    def _update(self, weight: Tensor, group: dict[str, Any]) -> None:
        state = self.state[weight]
        if not state:
            state["mean"], state["square"] = torch.zeros_like(weight), torch.zeros_like(weight)
        (first, second), grad = group["betas"], weight.grad
        weight.mul_(1 - group["weight_decay"])
        state["mean"].mul_(first).add_(grad, alpha=1 - first)
        state["square"].mul_(second).addcmul_(grad, grad, value=1 - second)
        root = (state["square"].sqrt() / 0.3).add_(group["eps"])
        weight.addcdiv_(state["mean"], root, value=-group["lr"])


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=__doc__)
    made.add_argument("--size", choices=sorted(SIZES), default="3b")
    made.add_argument("--batch", type=int, default=8, help="sequences of a micro-batch")
    made.add_argument("--seq", type=int, default=2048)
    made.add_argument("--accumulate", type=int, default=1)
    made.add_argument("--recompute", choices=("none", "full"), default="none")
    made.add_argument("--strategy", choices=("FULL_SHARD", "SHARD_GRAD_OP"), default="FULL_SHARD")
    made.add_argument("--attention", choices=("triton", "flash"), default="triton")
    made.add_argument("--steps", type=int, default=6)
    return made


def main() -> None:
    options = parser().parse_args()
    dist.init_process_group("nccl")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    with torch.device("meta"):
        model = MPT(options.size, options.seq, options.attention)
    if options.recompute == "full":
        for number, block in enumerate(model.blocks):
            model.blocks[number] = checkpoint_wrapper(block)
    half = torch.bfloat16
    sharded = FullyShardedDataParallel(
        model,
        sharding_strategy=ShardingStrategy[options.strategy],
        auto_wrap_policy=ModuleWrapPolicy({Block}),
        mixed_precision=MixedPrecision(param_dtype=half, reduce_dtype=half, buffer_dtype=half),
        device_id=torch.cuda.current_device(),
        param_init_fn=lambda module: module.to_empty(device="cuda", recurse=False),
        use_orig_params=True,
    )
    optimizer = DecoupledAdamW(sharded.parameters(), lr=2e-4, weight_decay=1e-6)
    shape = (options.batch, options.seq)
    for _ in range(options.steps):
        for _ in range(options.accumulate):
            tokens = torch.randint(VOCABULARY, shape).pin_memory().to("cuda", non_blocking=True)
            with torch.autocast("cuda", dtype=half):
                logits = sharded(tokens)
                targets = tokens.roll(-1, 1)
                loss = F.cross_entropy(logits.view(-1, VOCABULARY), targets.view(-1))
            (loss / options.accumulate).backward()
        sharded.clip_grad_norm_(1.0)
        optimizer.step()
        optimizer.zero_grad()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
