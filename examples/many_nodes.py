"""How far a pipeline over nodes carries: eight GPUs split each layer, a node is a stage.

python examples/many_nodes.py
python examples/many_nodes.py --nodes 1,8,64 --oversubscription 1,8 --layers-per-node 1

From one node to 3,840, with a model that grows with them. For each number of nodes the stage in the
middle is recorded once, with what its neighbours send it and it sends them, and priced for each fat
tree: nodes share a leaf switch, leaves share a spine that is as narrow as said. A step of N stages
and M micro-batches that each take t in the slowest stage lasts (M + N - 1) t, in GPipe and 1F1B
alike. Left out: the embedding and the head, transfers that hide behind compute, the optimizer, and
stragglers. `neusight run --rank all-distinct` places few stages in time exactly.
"""

from __future__ import annotations

import argparse
from dataclasses import replace

import torch
import torch.distributed as dist
from plan_parallelism import Block, split_layers
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh

import neusight
from neusight.predictors.clusters.topology import Level, Topology

GPUS_PER_NODE = 8
#: Nodes below a leaf switch of 64 ports, half of which lead upwards.
NODES_PER_LEAF = 32
#: NVLink 4 of a GPU, and a card of 400 Gb/s for each GPU: one direction, 1e9 bytes per second.
NVLINK_GBPS, CARD_GBPS = 450.0, 50.0
#: Crossing a leaf, and crossing leaf, spine and leaf, microseconds: the prior of a hop, and twice.
LEAF_HOP_US, SPINE_HOP_US = 5.0, 10.0


class Stage(nn.Module):
    """The layers of one node."""

    def __init__(self, width: int, num_layers: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(width, checkpoints=False) for _ in range(num_layers))

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return x


def fat_tree(oversubscription: float) -> Topology:
    """Leaves of 32 nodes, and a spine over all of them."""
    cards = Level("network", CARD_GBPS, nics_per_node=GPUS_PER_NODE)
    return Topology(
        name=f"fat tree, {oversubscription:g}:1",
        gpus_per_node=GPUS_PER_NODE,
        levels=(
            Level("switch", NVLINK_GBPS, ranks=GPUS_PER_NODE),
            replace(cards, ranks=NODES_PER_LEAF * GPUS_PER_NODE, hop_us=LEAF_HOP_US),
            replace(cards, hop_us=SPINE_HOP_US, oversubscription=oversubscription),
        ),
    )


def micro_batch(stage: Stage, shape: tuple[int, ...], node: int, num_nodes: int) -> None:
    """Forward and backward of one stage; its ranks meet those of the same number next door."""
    here, last = dist.get_rank(), num_nodes - 1
    x = torch.empty(shape, dtype=torch.bfloat16, device="cuda")
    if node > 0:
        dist.recv(x, here - GPUS_PER_NODE)
    x.requires_grad_()
    output = stage(x)
    gradient = torch.empty_like(output)
    if node < last:
        dist.send(output.detach(), here + GPUS_PER_NODE)
        dist.recv(gradient, here + GPUS_PER_NODE)
    output.backward(gradient)
    if node > 0 and x.grad is not None:
        dist.send(x.grad, here - GPUS_PER_NODE)


def recorded(options: argparse.Namespace, num_nodes: int, topology: Topology) -> neusight.Forecast:
    """A few micro-batches of the stage in the middle: the first behind a spine, where there is
    one."""
    node = num_nodes // 2
    world_size = num_nodes * GPUS_PER_NODE
    shape = (options.micro_batch, options.seq, options.width)
    with neusight.forecast_on(
        options.gpu, world_size=world_size, gpus_per_node=GPUS_PER_NODE,
        rank=node * GPUS_PER_NODE, topology=topology,
    ) as forecast:  # fmt: skip
        dist.init_process_group("nccl")
        mesh = init_device_mesh(
            "cuda", (num_nodes, GPUS_PER_NODE), mesh_dim_names=("stages", "tensor")
        )
        with torch.device("meta"):
            stage = Stage(options.width, options.layers_per_node).bfloat16()
        split_layers(stage, mesh["tensor"])
        stage.to_empty(device="cuda")
        for _ in range(3):
            micro_batch(stage, shape, node, num_nodes)
            forecast.step()
        dist.destroy_process_group()
    return forecast


def numbers(text: str) -> list[int]:
    return [int(word) for word in text.split(",")]


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gpu", default="H100")
    parser.add_argument("--nodes", type=numbers, default=[1, 8, 64, 512, 3840])
    parser.add_argument("--oversubscription", type=numbers, default=[1, 4])
    parser.add_argument("--layers-per-node", type=int, default=2)
    parser.add_argument("--width", type=int, default=12288, help="that of GPT-3")
    parser.add_argument("--seq", type=int, default=2048)
    parser.add_argument("--micro-batch", type=int, default=1, help="sequences")
    parser.add_argument("--per-stage", type=int, default=4, help="micro-batches for each stage")
    return parser.parse_args()


def main() -> None:
    options = parse_arguments()
    trees = [fat_tree(ratio) for ratio in options.oversubscription]
    print(
        "nodes    GPUs  10^9 parameters  bubble  network          ms a stage      a step     MFU"
        "   tokens/s"
    )
    for num_nodes in options.nodes:
        first = recorded(options, num_nodes, trees[0])
        parameters = 12 * options.width**2 * options.layers_per_node * num_nodes
        count = options.per_stage * num_nodes
        bubble = (num_nodes - 1) / (count + num_nodes - 1)
        for tree in trees:
            forecast = first if tree is trees[0] else first.on(options.gpu, topology=tree)
            stage_s = forecast.step_latency_us.median / 1e6
            step_s = (count + num_nodes - 1) * stage_s
            tokens = count * options.micro_batch * options.seq
            print(
                f"{num_nodes:>5} {num_nodes * GPUS_PER_NODE:>7} {parameters / 1e9:>16,.0f} "
                f"{bubble:>7.1%}  {tree.name:<14} {stage_s * 1e3:>12.2f} {step_s:>9.3g} s "
                f"{forecast.mfu * (1 - bubble):>7.1%} {tokens / step_s:>10,.0f}"
            )


if __name__ == "__main__":
    main()
