"""Shards are those that torch itself would cut."""

from __future__ import annotations

import importlib
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from ranks import join
from torch.distributed.fsdp._fully_shard import _fsdp_param

import neusight
from neusight.fake_cuda.distributed.wrappers.shards import strided_shard

placement_types: Any = importlib.import_module("torch.distributed.tensor.placement_types")


@pytest.mark.parametrize(("rows", "ranks"), [(8, 4), (7, 4), (3, 8), (0, 2), (9, 8), (1, 1)])
def test_shards_are_torchs(rows: int, ranks: int) -> None:
    x = torch.arange(rows * 2).reshape(rows, 2)
    cut: Any = vars(_fsdp_param)["_chunk_with_empty"]
    expected = [chunk.tolist() for chunk in cut(x, ranks, dim=0)]
    with neusight.forecast_on("H100", world_size=max(2, ranks)):
        join()
        torch.ones(1, device="cuda")
        lazily: Any = vars(_fsdp_param)["_chunk_with_empty"]
        found = [chunk.tolist() for chunk in lazily(x, ranks, dim=0)]

    assert found == expected
    assert lazily is not cut
    assert vars(_fsdp_param)["_chunk_with_empty"] is cut


@given(st.integers(0, 40), st.integers(1, 9), st.integers(1, 6), st.data())
@settings(max_examples=60)
def test_shards_split_from_right_to_left_are_torchs(
    size: int, ranks: int, split_factor: int, data: st.DataObject
) -> None:
    rank = data.draw(st.integers(0, ranks - 1))
    placement: Any = placement_types._StridedShard(0, split_factor=split_factor)
    for mode in placement_types._StridedShardOffsetMode:
        expected = placement.local_shard_size_and_offset(size, ranks, rank, mode)

        assert strided_shard(size, ranks, rank, split_factor, mode.name) == expected


def test_a_forecast_finds_such_shards_without_cutting() -> None:
    strided: Any = placement_types._StridedShard
    original = strided.local_shard_size_and_offset
    with neusight.forecast_on("H100", world_size=2):
        join()
        torch.ones(1, device="cuda")
        assert strided.local_shard_size_and_offset is not original
        assert strided(0, split_factor=2).local_shard_size_and_offset(8, 2, 1) == (4, 2)

    assert strided.local_shard_size_and_offset is original


def test_shards_that_a_state_gives_are_parameters_in_memory() -> None:
    """As accelerate loads them, rank 0 alone having the whole."""
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import DTensor, distribute_tensor

    with neusight.forecast_on("H100", world_size=4) as forecast:
        join()
        with torch.device("meta"):
            net = torch.nn.Linear(64, 1024, bias=False)
        fully_shard(net)
        weight: DTensor = net.weight  # type: ignore[assignment]
        whole = torch.zeros(1024, 64, device="cuda")
        made = distribute_tensor(whole, weight.device_mesh, weight.placements)
        net.load_state_dict({"weight": made}, assign=True)
        del whole, made
        for _ in range(3):
            net(torch.ones(8, 64, device="cuda")).sum().backward()

    kinds = {alive["kind"]: alive["num_bytes"] for alive in forecast.to_json()["memory"]["alive"]}
    assert kinds["parameter"] >= 64 * 1024 * 4 / 4
