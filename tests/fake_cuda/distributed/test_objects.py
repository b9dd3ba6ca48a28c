"""Objects of other ranks: this rank's own stand for them, or nobody can answer."""

from __future__ import annotations

import pickle
from types import SimpleNamespace
from typing import Any

import pytest
import torch.distributed as dist
from ranks import join
from ranks_together import run_together

import neusight
from neusight.fake_cuda.distributed.objects import Objects
from neusight.predictors.errors import UnansweredRankError

pytestmark = pytest.mark.filterwarnings("ignore::neusight.session.NoCudaWorkWarning")


def test_objects_of_equal_ranks_are_this_ranks_own() -> None:
    gathered: list[object] = [None] * 4
    shared = [{"seed": 1}]
    scattered: list[object] = [None]
    on_first: list[object] = [None] * 4
    with neusight.forecast_on("H100", world_size=4):
        join()
        dist.all_gather_object(gathered, {"loss": 2})
        dist.gather_object({"loss": 3}, on_first)
        dist.gather_object({"loss": 4}, dst=3)
        dist.broadcast_object_list(shared, src=0)
        dist.scatter_object_list(scattered, ["a", "b", "c", "d"], group_src=0)
        dist.send_object_list(["to nobody"], dst=1)
        dist.monitored_barrier()

    assert (gathered, on_first) == ([{"loss": 2}] * 4, [{"loss": 3}] * 4)
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


def _exchange() -> list[object]:
    rank = dist.get_rank()
    shared: list[object] = [{"seed": 7}, 1] if rank == 0 else [None, None]
    dist.broadcast_object_list(shared, src=0)
    gathered: list[object] = [None] * 3
    dist.all_gather_object(gathered, rank)
    on_last: list[object] | None = [None] * 3 if rank == 2 else None
    dist.gather_object(rank * 2, on_last, dst=2)
    scattered: list[object] = [None]
    dist.scatter_object_list(scattered, ["a", "b", "c"] if rank == 1 else None, src=1)
    received: list[object] = [None]
    if rank == 0:
        dist.send_object_list([{"shape": (2, 3)}], dst=1)
    elif rank == 1:
        assert dist.recv_object_list(received) == 0
    pair = dist.new_group([0, 2])
    in_pair: list[object] = [None, None]
    if rank != 1:
        dist.all_gather_object(in_pair, rank, group=pair)
    dist.barrier()
    dist.monitored_barrier()
    dist.new_group(backend="gloo").monitored_barrier()
    return [shared, gathered, on_last, scattered, received, in_pair]


def test_objects_travel_between_ranks_that_run() -> None:
    seed, everybody = [{"seed": 7}, 1], [0, 1, 2]

    assert run_together(_exchange, 3) == [
        [seed, everybody, None, ["a"], [None], [0, 2]],
        [seed, everybody, None, ["b"], [{"shape": (2, 3)}], [None, None]],
        [seed, everybody, [0, 2, 4], ["c"], [None], [0, 2]],
    ]


def test_ranks_that_are_not_run_are_named_where_others_are() -> None:
    warned: list[str] = []
    of_all = SimpleNamespace(text_of=lambda group: "all")
    communication: Any = SimpleNamespace(
        groups=of_all, recorder=SimpleNamespace(warn_once=warned.append)
    )
    link: Any = SimpleNamespace(take=lambda boxes, **options: {1: pickle.dumps("second")})
    with neusight.forecast_on("H100", world_size=4):
        join()
        found = Objects(communication, link).gather("names", "first", None)

    assert found == ["first", "second", "first", "first"]
    assert warned == ["of names by ranks 2,3, which are not run, those of rank 0 stand for theirs"]


def test_a_broadcast_of_a_rank_that_is_not_run_leaves_what_this_one_has() -> None:
    shared = [{"seed": 1}]
    with neusight.forecast_on("H100", world_size=4, rank=2):
        join()
        dist.broadcast_object_list(shared, src=0)

    assert shared == [{"seed": 1}]
