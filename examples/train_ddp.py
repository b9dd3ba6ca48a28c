"""Trains blocks on many GPUs, replicated (DDP) or sharded (FSDP2), as torchrun starts it.

neusight run --gpu H100 torchrun --nnodes 2 --nproc-per-node 8 examples/train_ddp.py
neusight run --gpu H100 --world-size 64 examples/train_ddp.py --shard
"""

from __future__ import annotations

import argparse
import os

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel


class Block(nn.Module):
    """Norm, up, down, with a residual."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        hidden: Tensor = self.down(torch.relu(self.up(self.norm(x))))
        return x + hidden


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--width", type=int, default=2048)
    parser.add_argument("--batch", type=int, default=8192, help="rows a GPU")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--shard", action="store_true", help="shard parameters and their states")
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    dist.init_process_group("nccl")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    blocks = [Block(arguments.width) for _ in range(arguments.layers)]
    model: nn.Module = nn.Sequential(*blocks).cuda()
    if arguments.shard:
        for block in blocks:
            fully_shard(block)
        fully_shard(model)
    else:
        model = DistributedDataParallel(model, device_ids=[torch.cuda.current_device()])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

    for step in range(arguments.steps):
        x = torch.randn(arguments.batch, arguments.width, device="cuda")
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if dist.get_rank() == 0 and step % 5 == 0:
            print(f"step {step}: {loss.item():.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
