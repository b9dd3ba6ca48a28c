"""A program that starts its ranks itself."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

import neusight
from neusight.predictors.errors import OptionError


def work(rank: int, world_size: int, found: list[int]) -> None:
    dist.init_process_group("nccl", rank=rank, world_size=world_size)
    torch.cuda.set_device(rank)
    x = torch.ones(8, device=rank)
    dist.all_reduce(x)
    found.append(rank)
    dist.destroy_process_group()


@pytest.mark.parametrize("rank", [0, 3])
def test_the_function_runs_once_as_the_rank(rank: int) -> None:
    found: list[int] = []
    spawn: Any = mp.spawn  # type: ignore[attr-defined, unused-ignore]
    with neusight.forecast_on("H100", world_size=4, rank=rank) as forecast:
        mp.spawn(work, args=(4, found), nprocs=4)  # type: ignore[attr-defined, unused-ignore]

    assert found == [rank]
    assert any(step.entries for step in forecast.recording.steps)
    assert mp.spawn is spawn  # type: ignore[attr-defined, unused-ignore]


def test_without_a_number_of_processes_it_is_one() -> None:
    found: list[int] = []
    with neusight.forecast_on("H100", world_size=2, rank=1):
        torch.ones(1, device="cuda")
        mp.spawn(found.append)  # type: ignore[attr-defined, unused-ignore]

    assert found == [0]


def test_who_does_not_wait_gets_something_to_wait_for() -> None:
    found: list[int] = []
    with neusight.forecast_on("H100", world_size=2):
        start: Any = mp.start_processes  # type: ignore[attr-defined, unused-ignore]
        context = start(work, args=(2, found), nprocs=2, join=False, start_method="fork")
        assert context.join()

    assert found == [0]


@pytest.mark.parametrize("is_named", [True, False])
@pytest.mark.parametrize("rank", [0, 3])
def test_a_loop_of_processes_runs_the_one_that_is_recorded(rank: int, is_named: bool) -> None:
    found: list[int] = []
    before: Any = mp.Process
    with neusight.forecast_on("H100", world_size=4, rank=rank):
        processes = [
            mp.Process(target=work, args=(index, 4, found))
            if is_named
            else mp.Process(None, work, args=(index, 4, found))
            for index in range(4)
        ]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
        ended = {(process.exitcode, process.pid, process.is_alive()) for process in processes}

    assert (found, ended) == ([rank], {(0, 0, False)})
    assert mp.Process is before


@pytest.mark.parametrize(
    ("args", "target", "is_rank"),
    [
        ((0, 4), work, True), ((3, 4), work, True), ((4, 4), work, False), ((-1, 4), work, False),
        ((True, 4), work, False), (("0", 4), work, False), ((), work, False), ((0, 4), None, False),
        ((0, 4), torch.zeros, True), ((0, 4), mp.spawn, False),  # type: ignore[attr-defined, unused-ignore]
    ],
)  # fmt: skip
def test_a_process_whose_first_argument_numbers_a_rank_of_the_host_is_one(
    args: tuple[Any, ...], target: Any, is_rank: bool
) -> None:
    real: Any = mp.Process
    with neusight.forecast_on("H100", world_size=4, rank=3):
        torch.ones(1, device="cuda")
        made = mp.Process(target=target, args=args)

    assert isinstance(made, real) is not is_rank


def test_an_elastic_launch_runs_the_function_once() -> None:
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    config = LaunchConfig(min_nodes=1, max_nodes=1, nproc_per_node=4)
    found: list[int] = []
    with neusight.forecast_on("H100", world_size=4, rank=2):
        results = elastic_launch(config, work)(2, 4, found)
        with pytest.raises(OptionError, match=r"test_spawning.py:\d+ starts train.py by torchrun"):
            elastic_launch(config, "train.py")("--steps", "3")

    assert (found, results) == ([2], {2: None})
