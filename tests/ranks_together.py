"""Functions as programs of ranks that run side by side, a forked process each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch.distributed as dist

from neusight.fake_cuda.distributed.peers.link import Link
from neusight.fake_cuda.distributed.rank import Rank
from neusight.forecast import forecast_options
from neusight.integrations.program.ranks.rank_process import RankEnd
from neusight.integrations.program.ranks.side_by_side import run_side_by_side
from neusight.session import Session, SessionOptions


def run_together(program: Callable[[], Any], world_size: int) -> list[Any]:
    """What the program returned on each rank; what it raised on one is raised here."""
    options = forecast_options("H100")

    def work(index: int, link: Link) -> tuple[RankEnd, Any]:
        rank = Rank(index, world_size)
        session = Session(SessionOptions(options, rank=rank, link=link, allow_writes=True))
        with session:
            dist.init_process_group("cpu:gloo,cuda:nccl")
            return "well", program()

    ranks = run_side_by_side(work, ranks=range(world_size), wait_s=600)
    found = [process.done for process in ranks.processes.values()]
    for done in found:
        if done is not None and done.error is not None:
            raise done.error
    return [None if done is None else done.answer for done in found]
