"""Which ranks consume samples of their own."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
from ranks import Block, join
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel

import neusight
from neusight.output.replicas import Replicas, replicas_together

SEQUENCES, LENGTH, WORLD = 2, 16, 8


class Words(nn.Module):
    """Token ids through a block."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.block = nn.Embedding(100, 64), Block()

    def forward(self, tokens: Tensor) -> Tensor:
        found: Tensor = self.block(self.embedding(tokens))
        return found


def split(mesh_name: str) -> nn.Module:
    """Two replicas of four ranks; those of the dimension `mesh_name` split the block."""
    mesh = init_device_mesh("cuda", (2, 4), mesh_dim_names=("data", "tensor"))
    model = Words().cuda()
    parallelize_module(
        model.block, mesh[mesh_name], {"up": ColwiseParallel(), "down": RowwiseParallel()}
    )
    return model


def sharded() -> nn.Module:
    model = Words().cuda()
    fully_shard(model.block)
    fully_shard(model)
    return model


MODELS = {
    "replicated": lambda: DistributedDataParallel(Words().cuda()),
    "sharded": sharded,
    "two replicas": lambda: split("tensor"),
    "four replicas": lambda: split("data"),
}


def forecast(
    model: str, after_forward: Callable[[Tensor], object] = lambda found: None
) -> neusight.Forecast:
    with neusight.forecast_on("H100", world_size=WORLD) as made:
        join()
        net = MODELS[model]()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1, foreach=False)
        for _ in range(3):
            found = net(torch.zeros(SEQUENCES, LENGTH, dtype=torch.long, device="cuda"))
            after_forward(found.detach())
            found.mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        dist.destroy_process_group()
    return made


@pytest.mark.parametrize(
    ("model", "count"),
    [("replicated", 8), ("sharded", 8), ("two replicas", 2), ("four replicas", 4)],
)
def test_ranks_that_split_a_layer_share_their_samples(model: str, count: int) -> None:
    made = forecast(model)

    assert made.verdict.replicas == Replicas(WORLD, count, split=WORLD // count)
    assert made.verdict.whole_batch.tokens == count * SEQUENCES * LENGTH


def test_a_loss_that_is_averaged_splits_nothing() -> None:
    made = forecast("replicated", lambda found: dist.all_reduce(found.mean()))

    assert made.verdict.replicas == Replicas(WORLD, 8)


def test_the_summary_says_what_this_rank_and_all_ranks_take_in() -> None:
    made = forecast("two replicas")

    lines = made.summary().splitlines()

    assert lines[0].endswith("tokens/s on 2 replicas of 4 ranks")
    assert "  batch     2 samples, 32 tokens a step" in made.summary()
    assert "            x 2 replicas of 4 ranks = 4 samples, 64 tokens, all ranks" in lines
    everyone = made.to_json()["all_ranks"]
    assert (everyone["world_size"], everyone["num_replicas"]) == (8, 2)
    assert everyone["tokens_per_second"] == pytest.approx(64e6 / made.step_latency_us.median)


def test_a_program_of_one_rank_is_one_replica() -> None:
    with neusight.forecast_on("H100") as made:
        nn.Embedding(10, 8).cuda()(torch.zeros(2, 4, dtype=torch.long, device="cuda"))

    assert made.verdict.replicas == Replicas()
    assert " ranks" not in made.summary()
    assert made.to_json()["all_ranks"]["tokens_per_step"] == 8


def test_gradients_that_a_program_sums_itself_leave_each_rank_its_samples() -> None:
    with neusight.forecast_on("H100", world_size=WORLD) as made:
        join()
        model = nn.Linear(8, 8).cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            model(torch.zeros(SEQUENCES, 8, device="cuda")).mean().backward()
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad)
            optimizer.step()
            for parameter in model.parameters():
                dist.all_reduce(parameter.data)
        dist.destroy_process_group()

    assert made.verdict.replicas == Replicas(WORLD, WORLD)
    assert made.to_json()["all_ranks"]["samples_per_step"] == SEQUENCES * WORLD


def test_a_stage_of_a_pipeline_states_nothing() -> None:
    made = forecast("sharded", lambda found: dist.send(found, 1))

    assert made.verdict.replicas == Replicas(WORLD, None)
    assert made.to_json()["all_ranks"]["tokens_per_second"] is None
    assert "one stage does not show the samples of all ranks" in made.summary()


def stage(rank: int) -> neusight.Forecast:
    """One of two stages, four replicas of them."""
    with neusight.forecast_on("H100", world_size=WORLD, rank=rank) as made:
        join()
        net = Words().cuda()
        for _ in range(3):
            hidden = net(torch.zeros(SEQUENCES, LENGTH, dtype=torch.long, device="cuda"))
            if rank < 4:
                dist.send(hidden.detach(), rank + 4)
            else:
                dist.recv(hidden.detach().clone(), rank - 4)
            hidden.mean().backward()
        dist.destroy_process_group()
    return made


def test_stages_that_were_run_together_are_one_replica() -> None:
    stages = [stage(0), stage(4)]
    alone = [made.verdict.replicas for made in stages]

    found = replicas_together([made.recording for made in stages], alone)

    assert [item.count for item in alone] == [None, None]
    assert found == Replicas(WORLD, 4)


def test_ranks_without_transfers_are_what_the_first_says() -> None:
    made = forecast("replicated")
    alone = made.verdict.replicas

    assert replicas_together([made.recording] * 2, [alone] * 2) == alone
