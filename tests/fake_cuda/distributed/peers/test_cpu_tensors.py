"""Tensors on the CPU travel between ranks that run, and a rank alone stands for the others."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from ranks_together import run_together

import neusight

pytestmark = [
    pytest.mark.filterwarnings("ignore::neusight.session.NoCudaWorkWarning"),
    pytest.mark.filterwarnings("ignore:.*deprecated:FutureWarning"),
]

WORLD = 3
BASE = torch.arange(4.0)


def _all_collectives() -> dict[str, Any]:
    rank = dist.get_rank()
    own = BASE + rank
    found: dict[str, Any] = {}
    for name, kind in {"sum": dist.ReduceOp.SUM, "max": dist.ReduceOp.MAX}.items():
        found[name] = own.clone()
        dist.all_reduce(found[name], op=kind)
    found["broadcast"] = own.clone()
    dist.broadcast(found["broadcast"], WORLD - 1)
    found["reduce"] = own.clone()
    dist.reduce(found["reduce"], 0)
    found["all_gather"] = [torch.empty(4) for _ in range(WORLD)]
    dist.all_gather(found["all_gather"], own)
    found["all_gather_into"] = torch.empty(4 * WORLD)
    dist.all_gather_into_tensor(found["all_gather_into"], own)
    found["numbers"] = torch.empty(WORLD)
    dist.all_gather_into_tensor(found["numbers"], torch.tensor(float(rank)))
    found["gather"] = [torch.empty(4) for _ in range(WORLD)] if rank == 0 else None
    dist.gather(own, found["gather"], 0)
    found["scatter"] = torch.empty(4)
    dist.scatter(found["scatter"], [BASE * i for i in range(WORLD)] if rank == 0 else None, 0)
    found["reduce_scatter"] = torch.empty(4)
    dist.reduce_scatter_tensor(found["reduce_scatter"], torch.arange(4.0 * WORLD) + rank)
    found["all_to_all"] = torch.empty(WORLD * (rank + 1))
    splits = [place + 1 for place in range(WORLD)]
    given = torch.full((sum(splits),), float(rank))
    dist.all_to_all_single(found["all_to_all"], given, [rank + 1] * WORLD, splits)
    world = dist.group.WORLD
    assert world is not None
    found["functional"] = functional.all_reduce(own, "sum", world) + 0
    found["bfloat16"] = own.to(torch.bfloat16)
    dist.all_reduce(found["bfloat16"])
    found["number"] = torch.tensor(rank)
    dist.all_reduce(found["number"])
    return found


def test_each_rank_gets_what_all_of_them_put_in() -> None:
    answers = run_together(_all_collectives, WORLD)

    each = [BASE + rank for rank in range(WORLD)]
    total = BASE * WORLD + 3
    for rank, found in enumerate(answers):
        expected = {
            "sum": total,
            "max": each[-1],
            "broadcast": each[-1],
            "reduce": total if rank == 0 else each[rank],
            "all_gather": each,
            "all_gather_into": torch.cat(each),
            "numbers": torch.arange(float(WORLD)),
            "gather": each if rank == 0 else None,
            "scatter": BASE * rank,
            "reduce_scatter": (torch.arange(4.0) + 4 * rank) * WORLD + 3,
            "all_to_all": torch.arange(float(WORLD)).repeat_interleave(rank + 1),
            "functional": total,
            "bfloat16": total.to(torch.bfloat16),
            "number": torch.tensor(3),
        }
        torch.testing.assert_close(found, expected, rtol=0, atol=0)


def _all_transfers() -> list[Any]:
    rank, size = dist.get_rank(), dist.get_world_size()
    own, found = BASE + rank, [torch.empty(4) for _ in range(4)]
    if rank == 0:
        dist.send(own, 1, tag=3)
        dist.send(own * 2, 1, tag=4)
    elif rank == 1:
        dist.recv(found[1], 0, tag=4)
        assert dist.recv(found[0], tag=3) == 0
    works = [dist.irecv(found[2], (rank - 1) % size), dist.isend(own, (rank + 1) % size)]
    batch = [
        dist.P2POp(dist.irecv, found[3], (rank + 1) % size),
        dist.P2POp(dist.isend, own, (rank - 1) % size),
    ]
    for work in [*works, *dist.batch_isend_irecv(batch)]:
        assert work is not None
        work.wait()
    return found if rank == 1 else found[2:]


def test_transfers_arrive_by_sender_and_tag_alone_and_in_batches() -> None:
    first, second = run_together(_all_transfers, 2)

    torch.testing.assert_close(first, [BASE + 1, BASE + 1])
    torch.testing.assert_close(second, [BASE, BASE * 2, BASE, BASE])


def test_what_others_would_put_in_is_what_a_rank_alone_has() -> None:
    with neusight.forecast_on("H100", world_size=WORLD):
        dist.init_process_group("cpu:gloo,cuda:nccl")
        found = _all_collectives()
        dist.send(BASE, 1)

    expected = {
        "sum": BASE * WORLD,
        "max": BASE,
        "broadcast": BASE,
        "reduce": BASE * WORLD,
        "all_gather": [BASE] * WORLD,
        "all_gather_into": BASE.repeat(WORLD),
        "numbers": torch.zeros(WORLD),
        "gather": [BASE] * WORLD,
        "scatter": BASE * 0,
        "reduce_scatter": BASE * WORLD,
        "all_to_all": torch.zeros(WORLD),
        "functional": BASE * WORLD,
        "bfloat16": (BASE * WORLD).to(torch.bfloat16),
        "number": torch.tensor(0),
    }
    torch.testing.assert_close(found, expected, rtol=0, atol=0)
