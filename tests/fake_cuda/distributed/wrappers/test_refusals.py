"""What needs other processes says so at once."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from ranks import join

import neusight
from neusight.predictors.errors import UnansweredRankError

pytestmark = pytest.mark.filterwarnings("ignore::neusight.session.NoCudaWorkWarning")


def test_remote_calls_are_refused_where_they_begin() -> None:
    with (
        pytest.raises(UnansweredRankError, match=r"rpc.init_rpc at test_refusals.py:\d+ calls"),
        neusight.forecast_on("H100", world_size=8),
    ):
        import torch.distributed.rpc as rpc

        rpc.init_rpc("worker0", rank=0, world_size=8)


def test_memory_of_other_gpus_is_refused() -> None:
    import torch.distributed._symmetric_memory as symmetric

    empty: Any = symmetric.empty
    with (
        pytest.raises(UnansweredRankError, match="memory of other GPUs"),
        neusight.forecast_on("H100", world_size=8),
    ):
        join()
        on_query: Any = symmetric.empty
        on_query(8, device="cuda")

    assert symmetric.empty is empty
    assert torch.distributed.is_available()
