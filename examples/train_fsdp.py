"""Trains a Llama sharded over all GPUs (FSDP2 on a mesh), its layers split over some if asked.

neusight run --gpu H100 --world-size 64 examples/train_fsdp.py --checkpoint
neusight run --gpu H100 --world-size 512 examples/train_fsdp.py --size 405b --tp 8 --checkpoint
torchrun --nproc-per-node 8 examples/train_fsdp.py --size tiny --seq 256

Parameters are made without data and filled on the GPU, a shard a rank. They are gathered in bf16
and gradients are reduced in FP32; `--replicas` keeps several copies, each sharded (HSDP).
"""

from __future__ import annotations

import argparse
import os
from contextlib import nullcontext
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)
from torch.utils.checkpoint import checkpoint

ROPE_THETA = 500_000.0


@dataclass(frozen=True)
class Shape:
    """A Llama's sizes."""

    width: int
    hidden: int
    layers: int
    heads: int
    key_heads: int
    words: int = 128256


#: Llama 3, as published (Grattafiori et al. 2024, table 3), and one for a try.
SHAPES = {
    "tiny": Shape(256, 512, 4, 8, 8, 1024),
    "8b": Shape(4096, 14336, 32, 32, 8),
    "70b": Shape(8192, 28672, 80, 64, 8),
    "405b": Shape(16384, 53248, 126, 128, 8),
}


def angles(seq: int, head_size: int) -> tuple[Tensor, Tensor]:
    """Cosines and sines by which positions turn pairs of numbers."""
    frequencies = 1.0 / ROPE_THETA ** (torch.arange(0, head_size, 2).float() / head_size)
    turns = torch.outer(torch.arange(seq).float(), frequencies)
    return turns.cos().cuda(), turns.sin().cuda()


def turned(x: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    """Heads (batch, seq, heads, head size), each position turned by its angle."""
    first, second = x.float().chunk(2, dim=-1)
    cosines, sines = cosines[:, None, :], sines[:, None, :]
    both = (first * cosines - second * sines, first * sines + second * cosines)
    return torch.cat(both, dim=-1).type_as(x)


class Attention(nn.Module):
    """Grouped-query attention."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.head_size = shape.width // shape.heads
        key_width = shape.key_heads * self.head_size
        self.query = nn.Linear(shape.width, shape.width, bias=False)
        self.key = nn.Linear(shape.width, key_width, bias=False)
        self.value = nn.Linear(shape.width, key_width, bias=False)
        self.out = nn.Linear(shape.width, shape.width, bias=False)

    def forward(self, x: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
        batch, seq, _ = x.shape
        query, key, value = (
            project(x).view(batch, seq, -1, self.head_size)
            for project in (self.query, self.key, self.value)
        )
        query, key = turned(query, cosines, sines), turned(key, cosines, sines)
        heads = F.scaled_dot_product_attention(
            query.transpose(1, 2),
            key.transpose(1, 2),
            value.transpose(1, 2),
            is_causal=True,
            enable_gqa=True,
        )
        y: Tensor = self.out(heads.transpose(1, 2).reshape(batch, seq, -1))
        return y


class FeedForward(nn.Module):
    """SwiGLU."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.gate = nn.Linear(shape.width, shape.hidden, bias=False)
        self.up = nn.Linear(shape.width, shape.hidden, bias=False)
        self.down = nn.Linear(shape.hidden, shape.width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.down(F.silu(self.gate(x)) * self.up(x))
        return y


class Block(nn.Module):
    """Attention and feed-forward, each behind a norm and with a residual."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(shape.width)
        self.attention = Attention(shape)
        self.forward_norm = nn.RMSNorm(shape.width)
        self.feed_forward = FeedForward(shape)

    def forward(self, x: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x), cosines, sines)
        y: Tensor = x + self.feed_forward(self.forward_norm(x))
        return y


class Llama(nn.Module):
    """Words in, scores of the next word out."""

    def __init__(self, shape: Shape, *, recomputes: bool = False) -> None:
        super().__init__()
        self.recomputes = recomputes
        self.embedding = nn.Embedding(shape.words, shape.width)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.norm = nn.RMSNorm(shape.width)
        self.head = nn.Linear(shape.width, shape.words, bias=False)

    def forward(self, tokens: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for block in self.blocks:
            if self.recomputes:
                x = checkpoint(block, x, cosines, sines, use_reentrant=False)
            else:
                x = block(x, cosines, sines)
        scores: Tensor = self.head(self.norm(x))
        return scores


def split_block(block: nn.Module, mesh: DeviceMesh) -> None:
    """Tensor parallelism with the sequence split where nothing else is (Korthikanti 2022)."""
    whole = PrepareModuleInput(
        input_layouts=(Shard(1), None, None), desired_input_layouts=(Replicate(), None, None)
    )
    plan = {
        "attention_norm": SequenceParallel(),
        "attention": whole,
        "attention.query": ColwiseParallel(),
        "attention.key": ColwiseParallel(),
        "attention.value": ColwiseParallel(),
        "attention.out": RowwiseParallel(output_layouts=Shard(1)),
        "forward_norm": SequenceParallel(),
        "feed_forward": PrepareModuleInput(
            input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),)
        ),
        "feed_forward.gate": ColwiseParallel(),
        "feed_forward.up": ColwiseParallel(),
        "feed_forward.down": RowwiseParallel(output_layouts=Shard(1)),
    }
    parallelize_module(block, mesh, plan)


def split(model: Llama, mesh: DeviceMesh) -> None:
    """Splits all layers over the ranks of the mesh."""
    ends = {
        "embedding": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
        "norm": SequenceParallel(),
        "head": ColwiseParallel(
            input_layouts=Shard(1), output_layouts=Shard(-1), use_local_output=False
        ),
    }
    parallelize_module(model, mesh, ends)
    for block in model.blocks:
        split_block(block, mesh)


def shard(model: Llama, mesh: DeviceMesh) -> None:
    """Shards each block, and what is left as one."""
    precision = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for block in model.blocks:
        fully_shard(block, mesh=mesh, mp_policy=precision)
    fully_shard(model, mesh=mesh, mp_policy=precision)


@torch.no_grad()
def fill(model: nn.Module) -> None:
    """Parameters on the GPU, with values."""
    model.to_empty(device="cuda")
    for parameter in model.parameters():
        if parameter.dim() > 1:
            nn.init.normal_(parameter, std=0.02)
        else:
            nn.init.ones_(parameter)


def build(arguments: argparse.Namespace) -> Llama:
    """The model, on a mesh of all ranks."""
    ranks = dist.get_world_size()
    tp, replicas = arguments.tp, arguments.replicas
    if ranks % (tp * replicas):
        raise SystemExit(f"{ranks} ranks are no multiple of --tp {tp} times --replicas {replicas}")
    names = ("replicate", "shard", "tp")
    mesh = init_device_mesh("cuda", (replicas, ranks // (tp * replicas), tp), mesh_dim_names=names)
    with torch.device("meta"):
        model = Llama(SHAPES[arguments.size], recomputes=arguments.checkpoint)
    if tp > 1:
        split(model, mesh["tp"])
    shard(model, mesh["replicate", "shard"] if replicas > 1 else mesh["shard"])
    fill(model)
    return model


def train(model: Llama, arguments: argparse.Namespace) -> None:
    shape = SHAPES[arguments.size]
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, weight_decay=0.1, fused=True)
    turns = angles(arguments.seq, shape.width // shape.heads)
    for step in range(arguments.steps):
        tokens = torch.randint(shape.words, (arguments.batch, arguments.seq + 1)).cuda()
        with loss_parallel() if arguments.tp > 1 else nullcontext():
            scores = model(tokens[:, :-1], *turns)
            loss = F.cross_entropy(scores.flatten(0, 1).float(), tokens[:, 1:].flatten())
            loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if dist.get_rank() == 0 and step % 10 == 0:
            print(f"step {step}: {loss.item():.4f}")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="A Llama, sharded.")
    parser.add_argument("--size", choices=SHAPES, default="8b")
    parser.add_argument("--seq", type=int, default=8192)
    parser.add_argument("--batch", type=int, default=1, help="sequences a rank, or a group of --tp")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--tp", type=int, default=1, help="ranks that split each layer")
    parser.add_argument("--replicas", type=int, default=1, help="copies, each sharded")
    parser.add_argument("--checkpoint", action="store_true", help="recompute each block")
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    dist.init_process_group("nccl")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    train(build(arguments), arguments)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
