"""Objects of other ranks: this rank's own stand for them, or nobody can answer."""

from __future__ import annotations

import pytest
import torch.distributed as dist
from ranks import join

import neusight
from neusight.predictors.errors import UnansweredRankError

pytestmark = pytest.mark.filterwarnings("ignore::neusight.session.NoCudaWorkWarning")


def test_objects_of_equal_ranks_are_this_ranks_own() -> None:
    gathered: list[object] = [None] * 4
    shared = [{"seed": 1}]
    scattered: list[object] = [None]
    with neusight.forecast_on("H100", world_size=4):
        join()
        dist.all_gather_object(gathered, {"loss": 2})
        dist.broadcast_object_list(shared, src=0)
        dist.scatter_object_list(scattered, ["a", "b", "c", "d"], src=0)

    assert gathered == [{"loss": 2}] * 4
    assert (shared, scattered) == ([{"seed": 1}], ["a"])


def test_an_object_of_a_rank_that_is_not_run_is_an_error_that_names_it() -> None:
    with (
        pytest.raises(UnansweredRankError, match=r"rank 0 at test_objects.py:\d+ .* by rank 3"),
        neusight.forecast_on("H100", world_size=4),
    ):
        join()
        dist.recv_object_list([None], src=3)


def test_a_broadcast_that_a_rank_needs_is_an_error() -> None:
    with (
        pytest.raises(UnansweredRankError, match="objects broadcast by rank 0"),
        neusight.forecast_on("H100", world_size=4, rank=2),
    ):
        join()
        dist.broadcast_object_list([None], src=0)
