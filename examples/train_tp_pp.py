"""Trains a Llama with its layers split inside hosts, and its stages spread over hosts.

neusight run --gpu H100 --world-size 16 --rank all-distinct examples/train_tp_pp.py --tp 8
neusight run --gpu H100 --world-size 4 --rank all-distinct examples/train_tp_pp.py --size tiny

Ranks of one stage split its layers (tensor parallelism); stages hand on activations, micro-batch
by micro-batch (1F1B). Stages differ: --rank all-distinct runs all ranks and shows one of each kind.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from train_fsdp import SHAPES, Block, Shape, angles, split_block

SCHEDULES = {"1f1b": Schedule1F1B, "gpipe": ScheduleGPipe}


class Stage(nn.Module):
    """Some of the blocks; the first stage has the embedding, the last one the head."""

    def __init__(self, shape: Shape, seq: int, index: int, stages: int) -> None:
        super().__init__()
        self.seq = seq
        self.head_size = shape.width // shape.heads
        first, end = (shape.layers * place // stages for place in (index, index + 1))
        self.embedding = nn.Embedding(shape.words, shape.width) if index == 0 else None
        self.blocks = nn.ModuleList(Block(shape) for _ in range(first, end))
        is_last = index == stages - 1
        self.norm = nn.RMSNorm(shape.width) if is_last else None
        self.head = nn.Linear(shape.width, shape.words, bias=False) if is_last else None

    def forward(self, x: Tensor) -> Tensor:
        if self.embedding is not None:
            x = self.embedding(x)
        for block in self.blocks:
            x = block(x, self.cosines, self.sines)
        if self.head is not None and self.norm is not None:
            x = self.head(self.norm(x))
        return x

    def place(self) -> None:
        """Parameters in bf16 on the GPU, and the angles of positions."""
        self.to(torch.bfloat16).to_empty(device="cuda")
        self.cosines, self.sines = angles(self.seq, self.head_size)
        for parameter in self.parameters():
            nn.init.normal_(parameter, std=0.02)


def split(stage: Stage, mesh: DeviceMesh) -> None:
    """Splits the layers of a stage, and the sequence between them, over the ranks of the mesh."""
    ends: Mapping[str, ParallelStyle] = {
        "embedding": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
        "norm": SequenceParallel(),
        "head": ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate()),
    }
    parts = {name: how for name, how in ends.items() if getattr(stage, name) is not None}
    parallelize_module(stage, mesh, parts)
    for block in stage.blocks:
        split_block(block, mesh)


def loss_of(scores: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(scores.flatten(0, 1).float(), targets.flatten())


def train(arguments: argparse.Namespace) -> None:
    ranks, tp, shape = dist.get_world_size(), arguments.tp, SHAPES[arguments.size]
    if ranks % tp:
        raise SystemExit(f"{ranks} ranks are no multiple of --tp {tp}")
    if ranks // tp > shape.layers:
        raise SystemExit(f"{ranks // tp} stages for {shape.layers} layers; say a larger --tp")
    mesh = init_device_mesh("cuda", (ranks // tp, tp), mesh_dim_names=("stages", "tp"))
    index, stages = mesh["stages"].get_local_rank(), ranks // tp
    with torch.device("meta"):
        model = Stage(shape, arguments.seq, index, stages)
    if tp > 1:
        split(model, mesh["tp"])
    model.place()
    stage = PipelineStage(
        model, index, stages, torch.device("cuda"), group=mesh["stages"].get_group()
    )
    schedule = SCHEDULES[arguments.schedule](stage, arguments.micro_batches, loss_fn=loss_of)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)
    size = (arguments.micro_batches * arguments.batch, arguments.seq)
    for _ in range(arguments.steps):
        tokens = torch.randint(shape.words, size).cuda()
        given = (tokens,) if index == 0 else ()
        schedule.step(*given, target=tokens if index == stages - 1 else None)
        optimizer.step()
        optimizer.zero_grad()


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="A Llama in stages.")
    parser.add_argument("--size", choices=SHAPES, default="8b")
    parser.add_argument("--seq", type=int, default=4096)
    parser.add_argument("--batch", type=int, default=1, help="sequences of a micro-batch")
    parser.add_argument("--micro-batches", type=int, default=8)
    parser.add_argument("--schedule", choices=SCHEDULES, default="1f1b")
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--tp", type=int, default=1, help="ranks that split each layer")
    return parser.parse_args()


def main() -> None:
    dist.init_process_group("nccl")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    train(parse_arguments())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
