"""Values that are known come through collectives as if all ranks held the same."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from ranks import join

import neusight


def found(rank: int, program: Any) -> Any:
    with neusight.forecast_on("H100", world_size=4, rank=rank):
        join()
        return program()


@pytest.mark.parametrize(
    ("reduction", "expected"),
    [("SUM", 12), ("PRODUCT", 81), ("AVG", 3), ("MAX", 3), ("MIN", 3)],
)
def test_a_reduction_of_equal_values(reduction: str, expected: int) -> None:
    def program() -> list[int]:
        x = torch.tensor([3], device="cuda")
        everyone: Any = dist.group.WORLD
        y = functional.all_reduce(x, reduction.lower(), everyone)
        dist.all_reduce(x, op=getattr(dist.ReduceOp, reduction))
        return [int(x.item()), int(y.item())]

    assert found(0, program) == [expected] * 2


@pytest.mark.parametrize("rank", [0, 3])
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_each_rank_gets_its_part_of_what_all_give(rank: int) -> None:
    def program() -> list[Any]:
        counts = torch.arange(8, device="cuda")
        gathered = torch.empty(8, dtype=torch.int64, device="cuda")
        dist.all_gather_into_tensor(gathered, counts[:2].clone())
        exchanged = torch.empty_like(counts)
        dist.all_to_all_single(exchanged, counts)
        scattered = torch.empty(2, dtype=torch.int64, device="cuda")
        dist.reduce_scatter_tensor(scattered, counts)
        parts = [torch.empty_like(scattered) for _ in range(4)]
        dist.all_gather(parts, scattered)
        received = [torch.empty_like(scattered) for _ in range(4)]
        dist.all_to_all(received, [*counts.chunk(4)])
        return [
            gathered.tolist(), exchanged.tolist(), scattered.tolist(), parts[3].tolist(),
            torch.cat(received).tolist(),
        ]  # fmt: skip

    own = [2 * rank, 2 * rank + 1]
    fourfold = [4 * one for one in own]
    assert found(rank, program) == [[0, 1] * 4, own * 4, fourfold, fourfold, own * 4]


def test_what_others_send_by_unequal_shares_is_not_known() -> None:
    def program() -> list[int]:
        received = torch.arange(6, device="cuda")
        dist.all_to_all_single(received, torch.arange(6, device="cuda"), [1, 2, 2, 1], [2, 1, 1, 2])
        return [int(one) for one in received.tolist()]

    assert len(set(found(0, program))) == 1


def test_split_sizes_of_experts_are_even_and_that_is_said_once() -> None:
    with neusight.forecast_on("H100", world_size=8, rank=7) as forecast:
        join()
        tokens = torch.randn(512, 16, device="cuda")
        for _ in range(2):
            chosen = torch.randn(512, 32, device="cuda").topk(2).indices
            counts = torch.bincount(chosen.flatten(), minlength=32)
            theirs = torch.empty_like(counts)
            dist.all_to_all_single(theirs, counts)
            sent = counts.view(8, 4).sum(1).tolist()
            received = theirs.view(8, 4).sum(1).tolist()
            copies = tokens.repeat(2, 1)
            shares = copies.new_empty(sum(received), 16)
            dist.all_to_all_single(shares, copies, received, sent)

    assert sent == received == [128] * 8
    assert sum("equal share" in text for text in forecast.recording.warnings) == 1
