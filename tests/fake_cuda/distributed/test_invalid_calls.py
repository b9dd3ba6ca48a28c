"""Calls that NCCL refuses are refused, with the sizes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from ranks import join

import neusight

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")


def empty(size: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.empty(size, device="cuda", dtype=dtype)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: dist.all_gather_into_tensor(empty(10), empty(3)), "10 elements are not 4 times 3"),
        (lambda: dist.reduce_scatter_tensor(empty(3), empty(10)), "10 elements are not 4 times 3"),
        (lambda: dist.all_to_all_single(empty(8), empty(10)), "input has 10 rows for 4 ranks"),
        (
            lambda: dist.all_to_all_single(empty(4), empty(4), [1, 1, 1, 1], [1, 1, 1]),
            "3 input splits, 4 ranks",
        ),
        (
            lambda: dist.all_to_all_single(empty(4), empty(4), [1, 1, 1, 2], [1, 1, 1, 1]),
            "output splits add up to 5, the tensor has 4 rows",
        ),
        (lambda: dist.all_gather([empty(1)] * 3, empty(1)), "list of 3 tensors .* 4 ranks"),
        (
            lambda: dist.all_gather_into_tensor(empty(4, torch.int64), empty(1)),
            "same type|torch.int64",
        ),
        (lambda: dist.send(empty(1), 9), "no rank 9 in a group of 4"),
    ],
)
def test_what_does_not_fit_the_group_is_refused(call: Any, words: str) -> None:
    with (
        pytest.raises((ValueError, RuntimeError, TypeError), match=words),
        neusight.forecast_on("H100", world_size=4),
    ):
        join()
        call()


def test_a_tensor_of_another_gpu_than_the_groups_is_refused() -> None:
    words = "it is on cuda:1, and device_id is cuda:0"
    with neusight.forecast_on("H100", world_size=2):
        dist.init_process_group("nccl", device_id=torch.device("cuda", 0))
        dist.all_reduce(torch.ones(8, device="cuda"))
        with pytest.raises(dist.DistBackendError, match=words):
            dist.all_reduce(torch.ones(8, device="cuda:1"))
