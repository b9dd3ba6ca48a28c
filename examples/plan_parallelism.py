"""Trains a Llama-like model; arguments say how the ranks share the work, for `neusight plan`.

neusight plan --gpu H100 --world-size 16 --sweep tp=1,2,4 --sweep micro-batch=1,2 \
    --sweep checkpoint examples/plan_parallelism.py
neusight plan --gpu H100 --world-size 16 --rank all-distinct --sweep pp=1,2,4 --sweep tp=1,2 \
    examples/plan_parallelism.py

Of the ranks, `--pp` hold some of the layers each (a pipeline, 1F1B), `--tp` split each layer
(tensor parallel), `--replicas` hold a copy each and sum their gradients, and the others shard what
a copy holds (FSDP2). Whatever is chosen, a step takes in `--global-batch` sequences, in
micro-batches.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    parallelize_module,
)
from torch.utils.checkpoint import checkpoint

HEAD_WIDTH = 128


class Attention(nn.Module):
    """Causal attention over the heads that this rank has."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.query = nn.Linear(width, width, bias=False)
        self.key = nn.Linear(width, width, bias=False)
        self.value = nn.Linear(width, width, bias=False)
        self.out = nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        batch, length = x.shape[:2]
        query, key, value = (
            layer(x).view(batch, length, -1, HEAD_WIDTH).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )
        found = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        result: Tensor = self.out(found.transpose(1, 2).reshape(batch, length, -1))
        return result


class FeedForward(nn.Module):
    """SwiGLU, as in Llama."""

    def __init__(self, width: int) -> None:
        super().__init__()
        hidden = width * 8 // 3 // 256 * 256
        self.gate = nn.Linear(width, hidden, bias=False)
        self.up = nn.Linear(width, hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.down(F.silu(self.gate(x)) * self.up(x))
        return result


class Block(nn.Module):
    """Attention and feed-forward, each behind a norm, with residuals."""

    def __init__(self, width: int, *, checkpoints: bool) -> None:
        super().__init__()
        self.norm, self.attention = nn.RMSNorm(width), Attention(width)
        self.second_norm, self.feed_forward = nn.RMSNorm(width), FeedForward(width)
        self.checkpoints = checkpoints

    def forward(self, x: Tensor) -> Tensor:
        if not self.checkpoints:
            return self.work(x)
        result: Tensor = checkpoint(self.work, x, use_reentrant=False)
        return result

    def work(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm(x))
        result: Tensor = x + self.feed_forward(self.second_norm(x))
        return result


class Stage(nn.Module):
    """The layers of one stage: the first takes in token ids, the last gives logits."""

    def __init__(self, arguments: argparse.Namespace, number: int) -> None:
        super().__init__()
        width, own = arguments.width, arguments.layers // arguments.pp
        is_last = number == arguments.pp - 1
        self.embedding = nn.Embedding(arguments.vocabulary, width) if number == 0 else None
        self.blocks = nn.ModuleList(
            Block(width, checkpoints=arguments.checkpoint) for _ in range(own)
        )
        self.norm = nn.RMSNorm(width) if is_last else None
        self.head = nn.Linear(width, arguments.vocabulary, bias=False) if is_last else None

    def forward(self, x: Tensor) -> Tensor:
        if self.embedding is not None:
            x = self.embedding(x)
        for block in self.blocks:
            x = block(x)
        if self.norm is not None and self.head is not None:
            x = self.head(self.norm(x))
        return x


def blocks_of(model: nn.Module) -> list[Block]:
    return [module for module in model.modules() if isinstance(module, Block)]


def split_layers(model: nn.Module, mesh: DeviceMesh) -> None:
    """Tensor parallel: two all-reduces a block forward, and two backward."""
    for block in blocks_of(model):
        parallelize_module(
            block,
            mesh,
            {
                "attention": PrepareModuleInput(
                    input_layouts=(Replicate(),), desired_input_layouts=(Replicate(),)
                ),
                "attention.query": ColwiseParallel(),
                "attention.key": ColwiseParallel(),
                "attention.value": ColwiseParallel(),
                "attention.out": RowwiseParallel(),
                "feed_forward": PrepareModuleInput(
                    input_layouts=(Replicate(),), desired_input_layouts=(Replicate(),)
                ),
                "feed_forward.gate": ColwiseParallel(),
                "feed_forward.up": ColwiseParallel(),
                "feed_forward.down": RowwiseParallel(),
            },
        )


def shard(model: nn.Module, mesh: DeviceMesh) -> None:
    """FSDP2: parameters, gradients and states of a replica over its ranks."""
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for block in blocks_of(model):
        fully_shard(block, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--width", type=int, default=4096)
    parser.add_argument("--vocabulary", type=int, default=32000)
    parser.add_argument("--seq", type=int, default=4096)
    parser.add_argument("--global-batch", type=int, default=32, help="sequences a step, all ranks")
    parser.add_argument("--micro-batch", type=int, default=1, help="sequences at once")
    parser.add_argument("--pp", type=int, default=1, help="stages that the layers are cut into")
    parser.add_argument("--tp", type=int, default=1, help="ranks that split each layer")
    parser.add_argument("--replicas", type=int, default=1, help="copies of the model")
    parser.add_argument("--checkpoint", action="store_true", help="compute activations again")
    parser.add_argument("--steps", type=int, default=5)
    return parser.parse_args()


def num_micro_batches(arguments: argparse.Namespace, world_size: int) -> int:
    """How often a rank accumulates; SystemExit for what cannot be shared out."""
    shares = arguments.pp * arguments.tp * arguments.replicas
    if world_size % shares:
        raise SystemExit(f"{world_size} ranks cannot be shared by pp x tp x replicas = {shares}")
    if arguments.layers % arguments.pp:
        raise SystemExit(f"{arguments.layers} layers do not make {arguments.pp} equal stages")
    at_once = arguments.micro_batch * world_size // (arguments.pp * arguments.tp)
    if arguments.global_batch % at_once:
        raise SystemExit(f"{at_once} sequences at once do not divide {arguments.global_batch}")
    return int(arguments.global_batch // at_once)


def loss_of(logits: Tensor, tokens: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1).float(), tokens.flatten())


def step_of(
    stage: Stage, number: int, arguments: argparse.Namespace, group: dist.ProcessGroup, times: int
) -> Callable[[], None]:
    """One step's forwards and backwards: in turn, or as a stage of a pipeline."""
    device = torch.device("cuda", torch.cuda.current_device())
    shape = (arguments.micro_batch, arguments.seq)
    whole = (arguments.micro_batch * times, arguments.seq)

    def accumulate() -> None:
        for turn in range(times):
            stage.set_requires_gradient_sync(turn == times - 1)  # type: ignore[operator]  # FSDP's
            tokens = torch.randint(arguments.vocabulary, shape, device="cuda")
            (loss_of(stage(tokens), tokens) / times).backward()

    if arguments.pp == 1:
        return accumulate
    schedule = Schedule1F1B(
        PipelineStage(stage, number, arguments.pp, device, group=group), times, loss_fn=loss_of
    )

    def pipelined() -> None:
        tokens = torch.randint(arguments.vocabulary, whole, device="cuda")
        inputs = (tokens,) if number == 0 else ()
        is_last = number == arguments.pp - 1
        schedule.step(*inputs, target=tokens if is_last else None)

    return pipelined


def main() -> None:
    arguments = parse_arguments()
    dist.init_process_group("nccl")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    world_size = dist.get_world_size()
    pp, tp, replicas = arguments.pp, arguments.tp, arguments.replicas
    times = num_micro_batches(arguments, world_size)
    mesh = init_device_mesh(
        "cuda",
        (pp, replicas, world_size // (pp * tp * replicas), tp),
        mesh_dim_names=("stages", "replicate", "shard", "tp"),
    )
    number = mesh["stages"].get_local_rank()
    with torch.device("meta"):
        stage = Stage(arguments, number)
    if tp > 1:
        split_layers(stage, mesh["tp"])
    shard(stage, mesh["replicate", "shard"] if replicas > 1 else mesh["shard"])
    stage.to_empty(device="cuda")
    optimizer = torch.optim.AdamW(stage.parameters(), lr=1e-4, fused=True)
    step = step_of(stage, number, arguments, mesh["stages"].get_group(), times)
    for _ in range(arguments.steps):
        step()
        optimizer.step()
        optimizer.zero_grad()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
