"""A step as tasks: whoever lets each begin as early as it may has the timeline again."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import pytest
import torch
from torch import nn
from unequal_ranks import NUM_COLLECTIVES, unequal_ranks

import neusight
from neusight.output.chakra.tasks import Task, tasks_of
from neusight.predictors.kernel import Kernel, KernelClass
from neusight.predictors.predictor import Estimate
from neusight.recording.recording import (
    Entry,
    EventRecord,
    EventWait,
    Mark,
    OpCall,
    Recording,
    Step,
    Synchronize,
)
from neusight.timeline.host import PLAIN
from neusight.timeline.scheduler import GRAPH_LAUNCH
from neusight.timeline.spans import StepSpan, Timeline
from neusight.timeline.steady import steady_step_of
from neusight.timeline.steps import schedule
from neusight.timeline.streams import LAUNCH_QUEUE_DEPTH
from timelines import RELU
from timelines import op as named_op


def replayed(ranks: Sequence[Sequence[Task]]) -> list[list[int]]:
    """When each task ends, if all begin as early as they may and collectives of ranks together."""
    ends: list[dict[int, int]] = [{} for _ in ranks]
    exchanges = [
        [place for place, task in enumerate(tasks) if task.kind == "collective"] for tasks in ranks
    ]

    def ready(rank: int, place: int) -> int:
        return max((end(rank, other) for other in ranks[rank][place].after), default=0)

    def end(rank: int, place: int) -> int:
        if place not in ends[rank]:
            begin, task = ready(rank, place), ranks[rank][place]
            if task.kind == "collective":
                number = exchanges[rank].index(place)
                begin = max(ready(other, own[number]) for other, own in enumerate(exchanges))
            ends[rank][place] = begin + task.duration_ns
        return ends[rank][place]

    return [[end(rank, place) for place in range(len(tasks))] for rank, tasks in enumerate(ranks)]


def steady(timeline: Timeline) -> StepSpan:
    step = steady_step_of(timeline)
    assert step is not None
    return step


def steady_tasks(timeline: Timeline) -> list[Task]:
    return tasks_of(timeline, steady(timeline))


def step_ns(timeline: Timeline) -> int:
    step = steady(timeline)
    return step.done_ns - step.start_ns


def train() -> None:
    net = nn.Sequential(nn.Linear(256, 512), nn.GELU(), nn.Linear(512, 256)).cuda()
    side = torch.cuda.Stream()
    optimizer = torch.optim.AdamW(net.parameters())
    for _ in range(3):
        inputs = torch.randn(64, 256).cuda()
        with torch.cuda.stream(side):
            other = torch.mm(inputs, inputs.t())
        loss = net(inputs).square().mean()
        torch.cuda.current_stream().wait_stream(side)
        (loss + other.sum()).backward()
        loss.item()
        optimizer.step()
        optimizer.zero_grad()
        torch.cuda.synchronize()


@pytest.fixture(scope="module")
def forecast() -> neusight.Forecast:
    with neusight.forecast_on("H100") as forecast:
        train()
    return forecast


def test_a_program_that_copies_synchronizes_and_uses_streams_ends_when_it_does(
    forecast: neusight.Forecast,
) -> None:
    tasks = steady_tasks(forecast.timeline)

    (ends,) = replayed([tasks])
    assert max(ends) == step_ns(forecast.timeline)
    assert [task.end_ns for task in tasks] == ends


def test_every_kernel_is_there_and_launched_by_the_host(forecast: neusight.Forecast) -> None:
    tasks = steady_tasks(forecast.timeline)
    step = steady(forecast.timeline)

    kernels = [task for task in tasks if task.kind == "kernel"]
    given = forecast.timeline.kernels[step.first_kernel : step.last_kernel]
    assert [task.kernel for task in kernels] == [span.kernel for span in given]
    assert all(tasks[task.launch].kind == "host" for task in kernels)
    assert all(task.launch in task.after for task in kernels)
    assert len({task.lane for task in kernels}) == 2


def test_tasks_wait_only_for_those_before_them(forecast: neusight.Forecast) -> None:
    for place, task in enumerate(steady_tasks(forecast.timeline)):
        assert all(other < place for other in task.after)


def test_what_the_step_before_left_running_is_no_part_of_it() -> None:
    """A host that runs ahead: its step begins long before the GPU comes to it."""
    with neusight.forecast_on("H100") as forecast:
        x = torch.ones(4096, 4096, device="cuda")
        for _ in range(6):
            for _ in range(400):
                x = torch.mm(x, x)
            forecast.step()
    step = steady(forecast.timeline)
    given = forecast.timeline.kernels[step.first_kernel : step.last_kernel]
    assert given[0].start_ns > step.end_ns

    tasks = steady_tasks(forecast.timeline)

    (ends,) = replayed([tasks])
    kernels_ns = sum(task.duration_ns for task in tasks if task.kind == "kernel")
    assert kernels_ns == pytest.approx(sum(span.duration_ns for span in given), rel=0.01)
    assert max(ends) == pytest.approx(step.latency_ns, rel=0.02)
    host_ns = sum(task.duration_ns for task in tasks if task.kind == "host")
    assert host_ns < step.latency_ns / 10


def test_ranks_that_wait_for_each_other_end_together() -> None:
    ranks = unequal_ranks()

    tasks = [steady_tasks(rank.timeline) for rank in ranks]
    ends = replayed(tasks)

    # Gaps between queued kernels lie before collectives, and belong to nobody.
    gaps_ns = NUM_COLLECTIVES * 2000
    for own, rank in zip(ends, ranks, strict=True):
        assert max(own) == pytest.approx(step_ns(rank.timeline), abs=gaps_ns)
    exchanges: dict[int, set[int]] = defaultdict(set)
    for own, of_rank in zip(ends, tasks, strict=True):
        collectives = [end for end, task in zip(own, of_rank, strict=True) if task.messages]
        for number, end in enumerate(collectives):
            exchanges[number].add(end)
    assert all(len(found) == 1 for found in exchanges.values())
    assert len(exchanges) == NUM_COLLECTIVES


def test_what_a_rank_waits_for_others_is_not_the_time_of_its_collective() -> None:
    fast, slow = [steady_tasks(rank.timeline) for rank in unequal_ranks()]

    for early, late in zip(fast, slow, strict=True):
        if early.messages:
            assert early.duration_ns == late.duration_ns == 50_000


def test_a_step_without_kernels_is_the_host_alone() -> None:
    recording = Recording((Step("eval", (EventRecord(1, 0),)),), "H100", "2.13")

    (task,) = steady_tasks(schedule(recording, lambda call: (), PLAIN))

    assert (task.kind, task.after) == ("host", ())


def staged(entries: tuple[Entry, ...], *kernels: Kernel, us: float = 30.0) -> Timeline:
    """Two such steps, of which each op launches these."""
    recording = Recording((Step("eval", entries, 2),), "H100", "2.13")
    estimate = Estimate(us, us, us, "memory", "physics", "test")
    return schedule(recording, lambda call: tuple((one, estimate) for one in kernels), PLAIN)


COPY = Kernel.rows(
    KernelClass.COPY, "memcpy_h2d", 1, 2**20, dtype="float32", bytes_read=2**22,
    bytes_written=2**22,
)  # fmt: skip


@pytest.mark.parametrize(
    ("entries", "kernel"),
    [
        ((named_op(), EventRecord(1, 0), named_op(), Synchronize("event", event=1), named_op(),
          Synchronize("synchronize")), RELU),
        ((named_op(), Synchronize("event", event=0), named_op(), Synchronize("stream", stream=0)),
         RELU),
        ((named_op(), named_op(), Synchronize("synchronize")), COPY),
        ((*(named_op() for _ in range(LAUNCH_QUEUE_DEPTH + 200)), Synchronize("synchronize")),
         RELU),
    ],
    ids=["event", "earlier event", "pageable copy", "full queue"],
)  # fmt: skip
def test_the_host_waits_for_what_the_program_waits_for(
    entries: tuple[Entry, ...], kernel: Kernel
) -> None:
    timeline = staged(entries, kernel)

    tasks = steady_tasks(timeline)

    (ends,) = replayed([tasks])
    assert max(ends) == step_ns(timeline)
    assert [task.end_ns for task in tasks] == ends


def test_the_kernels_of_a_graph_have_one_launch_and_wait_as_they_were_captured() -> None:
    def op(stream: int) -> OpCall:
        return OpCall(named_op().signature, named_op().math, stream=stream)

    entries: tuple[Entry, ...] = (
        Mark("graph_begin", GRAPH_LAUNCH),
        op(0),
        EventRecord(1, 0),
        EventWait(1, 5),
        op(5),
        op(0),
        EventRecord(2, 5),
        EventWait(2, 0),
        op(0),
        Mark("graph_end", GRAPH_LAUNCH),
        op(0),
        Synchronize("synchronize"),
    )
    timeline = staged(entries, RELU)

    tasks = steady_tasks(timeline)

    kernels = [place for place, task in enumerate(tasks) if task.kind == "kernel"]
    first, side, second, joined, alone = kernels
    assert len({tasks[place].launch for place in (first, side, second, joined)}) == 1
    assert tasks[alone].launch != tasks[first].launch
    assert first in tasks[side].after and side not in tasks[second].after
    assert {side, second} <= set(tasks[joined].after)
    (ends,) = replayed([tasks])
    assert max(ends) == step_ns(timeline)
