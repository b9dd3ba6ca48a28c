"""A program joins others that are not there, and afterwards everything is as before."""

from __future__ import annotations

import os
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from ranks import join

import neusight
from neusight.predictors.errors import OptionError, UnansweredRankError


def test_a_program_finds_its_place() -> None:
    with neusight.forecast_on("H100", world_size=16, rank=11):
        join()
        found = (
            dist.get_rank(),
            dist.get_world_size(),
            dist.get_backend(),
            os.environ["LOCAL_RANK"],
            torch.cuda.device_count(),
            torch.cuda.current_device(),
            torch.ones(1, device="cuda").device.index,
            dist.is_nccl_available(),
        )

    assert found == (11, 16, "nccl", "3", 8, 3, 3, True)


def test_a_group_of_nccl_gives_up_after_ten_minutes_as_torchs_does() -> None:
    with neusight.forecast_on("H100", world_size=4):
        torch.ones(1, device="cuda")
        found = dist.distributed_c10d._get_default_timeout(dist.Backend("nccl"))

    assert found == timedelta(minutes=10)


@pytest.mark.parametrize("backend", ["nccl", "gloo", "cpu:gloo,cuda:nccl", None])
def test_any_backend_is_there(backend: str | None) -> None:
    with neusight.forecast_on("H100", world_size=4):
        dist.init_process_group(backend)
        found = dist.get_backend()
        dist.all_reduce(torch.ones(1, device="cuda"))

    assert found == ("gloo" if backend == "gloo" else "nccl")


def test_afterwards_nothing_is_left() -> None:
    before = dict(os.environ)
    names = ("init_process_group", "get_backend", "TCPStore", "is_nccl_available")
    attributes = [getattr(dist, name) for name in names]
    for _ in range(2):
        with neusight.forecast_on("H100", world_size=8, rank=5):
            join()
            torch.ones(1, device="cuda")

        assert not dist.is_initialized()
        assert dict(os.environ) == before
        assert [getattr(dist, name) for name in names] == attributes


def test_a_group_that_was_open_stays_usable(tmp_path: object) -> None:
    store = vars(dist)["FileStore"](f"{tmp_path}/store", 1)
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        with neusight.forecast_on("H100"):
            pair = dist.new_group([0])
            dist.all_reduce(torch.ones(8, device="cuda"), group=pair)
        x = torch.ones(2)
        dist.all_reduce(x)
        assert x.tolist() == [1.0, 1.0]
        assert dist.get_backend() == "gloo"
    finally:
        dist.destroy_process_group()


@pytest.mark.parametrize("world_size", [4, 12])
def test_a_group_of_any_size_may_be_open(world_size: int) -> None:
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=1, world_size=world_size)
    try:
        with neusight.forecast_on("H100") as forecast:
            dist.all_reduce(torch.ones(8, device="cuda"))
        assert forecast.recording.options["rank"].startswith(f"rank 1 of {world_size}")
    finally:
        dist.destroy_process_group()


def test_a_script_alone_is_refused_with_what_to_say(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RANK", raising=False)
    with (
        pytest.raises(OptionError, match=r"test_process_groups.py:\d+ .*--world-size"),
        neusight.forecast_on("H100"),
    ):
        dist.init_process_group("nccl")


def test_a_script_alone_may_say_that_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RANK", raising=False)
    with neusight.forecast_on("H100"):
        torch.ones(1, device="cuda")
        dist.init_process_group("nccl", init_method="tcp://here:1", rank=0, world_size=1)
        assert (dist.get_rank(), dist.get_world_size()) == (0, 1)
        dist.destroy_process_group()


@pytest.mark.parametrize("stated", [None, 8])
def test_another_world_than_the_scripts_is_refused(stated: int | None) -> None:
    with (
        pytest.raises(OptionError, match="say --world-size 4"),
        neusight.forecast_on("H100", world_size=stated),
    ):
        dist.init_process_group("nccl", init_method="env://", rank=0, world_size=4)


def test_a_key_that_nobody_will_set_is_named() -> None:
    with (
        pytest.raises(UnansweredRankError, match='waits for the key "ready"'),
        neusight.forecast_on("H100", world_size=2),
    ):
        store = vars(dist)["TCPStore"]("localhost", 29500, 2, False)
        store.set("own", "1")
        assert store.get("own") == b"1"
        store.get("ready")


def test_a_mesh_takes_the_gpu_of_its_local_rank_where_none_was_used() -> None:
    from torch.distributed.device_mesh import init_device_mesh

    with neusight.forecast_on("H100", world_size=4, rank=3):
        init_device_mesh("cuda", (4,))
        assert torch.ones(1, device="cuda").device.index == 3
    with neusight.forecast_on("H100", world_size=4, rank=3):
        torch.cuda.set_device(1)
        init_device_mesh("cuda", (4,))
        assert torch.ones(1, device="cuda").device.index == 1


def test_nccl_is_that_of_a_cuda_build() -> None:
    with neusight.forecast_on("H100", world_size=2):
        torch.ones(1, device="cuda").add_(1)
        assert torch.cuda.nccl.version() == (2, 27, 7)
