"""Shards are those that torch itself would cut."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from ranks import join
from torch.distributed.fsdp._fully_shard import _fsdp_param

import neusight


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
