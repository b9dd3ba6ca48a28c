"""Pipelines of torch.distributed.pipelining on four ranks that run side by side."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from neusight.fake_cuda.distributed.peers.link import Link
from neusight.fake_cuda.distributed.rank import Rank
from neusight.forecast import forecast_options
from neusight.integrations.program.forecasting import ProgramForecast, forecast_program
from neusight.integrations.program.options import ProgramOptions
from neusight.integrations.program.program import Program
from neusight.integrations.program.ranks.rank_process import RankEnd
from neusight.integrations.program.ranks.side_by_side import run_side_by_side
from neusight.predictors.gpu import find_gpu
from neusight.recording.recording import OpCall, Recording
from neusight.session import Session, SessionOptions
from neusight.timeline.ranks.groups import parts_of

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::neusight.session.NoCudaWorkWarning"),
]

STAGES, MICROBATCHES, WIDTH = 4, 8, 32

#: Schedules with the stages that each rank holds: one, every fourth, or the v of the first half and
#: the second in turn.
SCHEDULES = {
    "ScheduleGPipe": lambda rank: (rank,),
    "Schedule1F1B": lambda rank: (rank,),
    "ScheduleInterleaved1F1B": lambda rank: (rank, rank + STAGES),
    "ScheduleLoopedBFS": lambda rank: (rank, rank + STAGES),
    "ScheduleInterleavedZeroBubble": lambda rank: (rank, rank + STAGES),
    "ScheduleZBVZeroBubble": lambda rank: (rank, 2 * STAGES - 1 - rank),
}


def transfers_by_theory(name: str) -> list[int]:
    """Activations go over each border between stages on different ranks, and gradients come back,
    once a micro-batch."""
    rank_of = {stage: rank for rank in range(STAGES) for stage in SCHEDULES[name](rank)}
    ends = Counter[int]()
    for stage in range(len(rank_of) - 1):
        here, there = rank_of[stage], rank_of[stage + 1]
        if here != there:
            ends.update((here, there))
    return [2 * MICROBATCHES * ends[rank] for rank in range(STAGES)]


def transfers(recording: Recording) -> int:
    """Those of the last training step."""
    step = [step for step in recording.steps if step.kind == "train"][-1]
    parts = [
        part
        for entry in step.entries
        if isinstance(entry, OpCall)
        for part in parts_of(entry, recording.rank)
    ]
    return sum(" to " in part.key[-1] for part in parts)


def pipeline(name: str, rank: int) -> None:
    """Two training steps."""
    import torch.distributed.pipelining as pipelining

    dist.init_process_group("nccl")
    torch.cuda.set_device(rank)
    device = torch.device("cuda")
    held = SCHEDULES[name](rank)
    modules = [nn.Linear(WIDTH, WIDTH).cuda() for _ in held]
    num_stages = STAGES * len(held)
    stages = [
        pipelining.PipelineStage(module, stage, num_stages, device)
        for stage, module in zip(held, modules, strict=True)
    ]
    schedule: Any = getattr(pipelining, name)(
        stages[0] if len(held) == 1 else stages, MICROBATCHES, loss_fn=nn.MSELoss()
    )
    optimizer = torch.optim.SGD(nn.ModuleList(modules).parameters(), lr=0.1)
    batch = torch.randn(4 * MICROBATCHES, WIDTH, device=device)
    for _ in range(2):
        optimizer.zero_grad()
        inputs = (batch,) if 0 in held else ()
        target = batch if num_stages - 1 in held else None
        schedule.step(*inputs, target=target, losses=[])
        optimizer.step()


def test_six_schedules_send_and_receive_as_often_as_theory_has_it() -> None:
    options = forecast_options("H100")

    def work(rank: int, link: Link) -> tuple[RankEnd, Any]:
        found = []
        for name in SCHEDULES:
            session = Session(
                SessionOptions(options, rank=Rank(rank, STAGES), link=link, allow_writes=True)
            )
            with session as forecast:
                pipeline(name, rank)
            found.append(transfers(forecast.recording))
        return "well", found

    ranks = run_side_by_side(work, ranks=range(STAGES), wait_s=600)

    done = [process.done for process in ranks.processes.values()]
    assert [one.error for one in done if one is not None] == [None] * STAGES
    for number, name in enumerate(SCHEDULES):
        counted = [None if one is None else one.answer[number] for one in done]
        assert counted == transfers_by_theory(name), name


PIPELINE = """
import os, sys, torch, torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

dist.init_process_group("nccl")
rank, size = dist.get_rank(), dist.get_world_size()
torch.cuda.set_device(rank)
device = torch.device("cuda")
module = nn.Sequential(*[nn.Linear(4096, 4096, bias=False) for _ in range(2)]).cuda()
stage = PipelineStage(module, rank, size, device)
schedule = globals()[sys.argv[1]](stage, n_microbatches=8, loss_fn=nn.MSELoss())
optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
batch = torch.randn(8 * 2048, 4096, device=device)
for _ in range(10):
    optimizer.zero_grad()
    if rank == 0:
        schedule.step(batch)
    elif rank == size - 1:
        schedule.step(target=batch, losses=[])
    else:
        schedule.step()
    optimizer.step()
"""


def forecast(folder: Path, text: str, *arguments: str, world_size: int = 4) -> ProgramForecast:
    script = folder / "train.py"
    script.write_text(text)
    options = ProgramOptions(quiet=True, steps=2, rank=Rank(0, world_size), ranks=())
    return forecast_program(Program(str(script), arguments), find_gpu("H100"), options)


def test_of_four_stages_and_eight_micro_batches_three_elevenths_are_bubble(tmp_path: Path) -> None:
    found = {
        name: forecast(tmp_path, PIPELINE, name).forecast
        for name in ("ScheduleGPipe", "Schedule1F1B")
    }

    theory = (STAGES - 1) / (MICROBATCHES + STAGES - 1)
    for name, one in found.items():
        assert [rank.recording.rank for rank in one.ranks] == [0, 1, 2, 3], name
        for rank in one.ranks[1:]:  # the first needs no gradient of its input
            assert rank.row.bubble == pytest.approx(theory, abs=0.03), name
    gpipe, one_f_one_b = found.values()
    assert one_f_one_b.peak_memory_bytes < gpipe.peak_memory_bytes


LOGS = """
import torch, torch.distributed as dist
dist.init_process_group("nccl")
rank = dist.get_rank()
torch.cuda.set_device(rank)
shared = [{"width": 64}] if rank == 0 else [None]
dist.broadcast_object_list(shared, src=0)
model = torch.nn.Linear(shared[0]["width"], 64).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
splits = [None] * dist.get_world_size()
for step in range(9):
    dist.all_gather_object(splits, [rank + 1] * len(splits))
    own = splits[rank]
    rows = [each[rank] for each in splits]
    inputs = torch.randn(sum(own), 64, device="cuda")
    outputs = torch.empty(sum(rows), 64, device="cuda")
    dist.all_to_all_single(outputs, inputs, rows, own)
    model(outputs).sum().backward()
    optimizer.step()
    if rank == 0:
        print("step", step)
"""


def test_splits_of_experts_travel_as_objects_and_set_what_each_rank_computes(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    found = forecast(tmp_path, LOGS, world_size=4)

    assert found.outcome.failure == ""
    # Rank r has r + 1 rows for each of the four: no rank does the work of another.
    assert [rank.recording.rank for rank in found.forecast.ranks] == [0, 1, 2, 3]
    assert [_rows_sent(rank.recording) for rank in found.forecast.ranks] == [4, 8, 12, 16]
    assert "step 0\n" in capfd.readouterr().out


def _rows_sent(recording: Recording) -> int:
    step = [step for step in recording.steps if step.kind == "train"][-1]
    [call] = [
        entry
        for entry in step.entries
        if isinstance(entry, OpCall) and "alltoall" in entry.signature.op
    ]
    return call.signature.tensor("input").shape[0]
