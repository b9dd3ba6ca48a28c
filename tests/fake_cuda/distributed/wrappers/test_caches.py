"""Meshes of one forecast are forgotten in the next."""

from __future__ import annotations

import pytest
import torch
from ranks import join
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

import neusight


@pytest.mark.filterwarnings("ignore")
def test_another_rank_lays_the_same_tensor_out_in_its_own_way() -> None:
    shapes = []
    for rank in (0, 7, 0):
        with neusight.forecast_on("H100", world_size=8, rank=rank):
            join()
            mesh = init_device_mesh("cuda", (2, 4), mesh_dim_names=("a", "b"))
            x = distribute_tensor(torch.randn(63, 8, device="cuda"), mesh, [Shard(0), Shard(0)])
            half = x.redistribute(mesh, [Shard(0), Replicate()])
            shapes.append((x.to_local().shape[0], half.to_local().shape[0], len(x.full_tensor())))

    assert shapes == [(8, 32, 63), (7, 31, 63), (8, 32, 63)]


@pytest.mark.filterwarnings("ignore")
def test_another_rank_does_not_meet_the_device_of_the_one_before() -> None:
    for rank, num_ids in ((0, 4), (7, 6)):
        with neusight.forecast_on("H100", world_size=8, rank=rank):
            join()
            mesh = init_device_mesh("cuda", (8,))
            table = distribute_tensor(torch.randn(64, 16, device="cuda"), mesh, [Shard(0)])
            ids = torch.zeros(1, num_ids, dtype=torch.int64, device="cuda")
            ids = distribute_tensor(ids, mesh, [Replicate()])

            assert torch.nn.functional.embedding(ids, table).shape == (1, num_ids, 16)
