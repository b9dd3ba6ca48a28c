"""Ranks in time together: cases worked by hand, pipelines with the bubble of theory, hangs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from meeting_ranks import (
    FREE,
    batch,
    free_transfers,
    gather,
    price,
    program,
    receive,
    reduce,
    send,
    work,
)

from neusight.predictors.errors import HangError, MismatchError
from neusight.recording.recording import Entry, EventRecord, Recording, Synchronize
from neusight.timeline.host import PLAIN
from neusight.timeline.ranks.together import schedule_together
from neusight.timeline.spans import Timeline
from neusight.timeline.steps import schedule


def together(*programs: Recording) -> tuple[Timeline, ...]:
    return schedule_together(programs, price, FREE)


def busy_us(timeline: Timeline) -> float:
    """What the rank computes."""
    spans = [k for k in timeline.kernels if k.call.signature.op == "test::work"]
    return sum(k.duration_ns for k in spans) / 1000


def test_the_early_rank_waits_inside_its_collective() -> None:
    early, late = together(program(0, [work(5.0), reduce()]), program(1, [work(30.0), reduce()]))

    assert [(k.start_ns, k.end_ns, k.waited_ns) for k in early.kernels] == [
        (0, 5_000, 0),
        (5_000, 40_000, 25_000),
    ]
    assert [(k.start_ns, k.end_ns, k.waited_ns) for k in late.kernels][1] == (30_000, 40_000, 0)
    assert early.end_ns == late.end_ns == 40_000


@given(st.permutations(range(4)))
@settings(max_examples=10)
def test_the_order_of_the_ranks_changes_nothing(order: list[int]) -> None:
    programs = [
        program(rank, [work(3.0 * rank + 1), reduce("0..3"), work(20.0 - rank), reduce("0..3")])
        for rank in range(4)
    ]
    straight = together(*programs)

    turned = together(*(programs[rank] for rank in order))

    assert [turned[order.index(rank)] for rank in range(4)] == list(straight)


def test_ranks_that_are_equal_take_as_long_as_one_alone() -> None:
    entries: list[Entry] = [
        work(7.0),
        reduce(),
        work(2.0, stream=5),
        Synchronize("synchronize"),
        reduce(),
    ]
    programs = [program(rank, entries, count=9) for rank in (0, 1)]

    timelines = schedule_together(programs, price, PLAIN)

    assert all(found == schedule(programs[0], price, PLAIN) for found in timelines)


def test_a_rank_that_is_not_run_is_not_waited_for() -> None:
    alone = together(program(0, [work(5.0), reduce("0..7"), receive(3, own=0)]))

    assert alone[0].end_ns == 25_000


def test_transfers_of_one_batch_do_not_wait_for_each_other() -> None:
    ring = [
        program(rank, [batch(rank, ("isend", 1 - rank), ("irecv", 1 - rank))]) for rank in (0, 1)
    ]

    assert [timeline.end_ns for timeline in together(*ring)] == [10_000, 10_000]


def gpipe(stage: int, stages: int, batches: int) -> list[Entry]:
    """Forward of all micro-batches, then backward, each of 10 µs."""
    entries: list[Entry] = []
    for before, after in ((stage - 1, stage + 1), (stage + 1, stage - 1)):
        for _ in range(batches):
            entries += _stage_work(stage, stages, before, after)
    return entries


def one_forward_one_backward(stage: int, stages: int, batches: int) -> list[Entry]:
    """As Megatron-LM has it: what goes to a neighbour and what comes from it is one batch."""
    before, after = stage - 1, stage + 1
    warm = min(batches, stages - stage - 1)
    entries: list[Entry] = []
    for _ in range(warm):
        entries += _stage_work(stage, stages, before, after)
    entries += _batch(stage, stages, ("irecv", before))
    for number in range(batches - warm):
        is_last = number == batches - warm - 1
        entries += [work(10.0), *_batch(stage, stages, ("isend", after), ("irecv", after))]
        next_one = () if is_last else (("irecv", before),)
        entries += [work(10.0), *_batch(stage, stages, ("isend", before), *next_one)]
    for _ in range(warm):
        entries += _stage_work(stage, stages, after, before)
    return entries


def _batch(stage: int, stages: int, *transfers: tuple[str, int]) -> list[Entry]:
    there = [transfer for transfer in transfers if 0 <= transfer[1] < stages]
    return [batch(stage, *there)] if there else []


def _stage_work(stage: int, stages: int, before: int, after: int) -> list[Entry]:
    """One micro-batch through a stage; transfers have streams of their own, as in NCCL."""
    entries: list[Entry] = []
    if 0 <= before < stages:
        entries.append(receive(before, own=stage))
    entries.append(work(10.0))
    if 0 <= after < stages:
        entries.append(send(after, own=stage))
    return entries


@pytest.mark.parametrize("schedule_of", [gpipe, one_forward_one_backward])
@pytest.mark.parametrize("stages", [2, 4])
@pytest.mark.parametrize("batches", [4, 8])
def test_the_bubble_of_a_pipeline_is_that_of_theory(
    schedule_of: Callable[[int, int, int], list[Entry]], stages: int, batches: int
) -> None:
    programs = [program(stage, schedule_of(stage, stages, batches)) for stage in range(stages)]

    timelines = schedule_together(programs, free_transfers, FREE)

    end_us = max(timeline.end_ns for timeline in timelines) / 1000
    theory = (stages - 1) / (batches + stages - 1)
    for timeline in timelines:  # a transfer that takes no time lasts a nanosecond
        assert 1 - busy_us(timeline) / end_us == pytest.approx(theory, rel=1e-2)


def test_one_forward_one_backward_with_lone_transfers_hangs() -> None:
    """On one stream each would wait for its receiver: why such pipelines send in batches."""
    first: list[Entry] = [work(1.0), send(1, own=0), work(1.0), send(1, own=0), receive(1, own=0)]
    second: list[Entry] = [receive(0, own=1), work(2.0), send(0, own=1), receive(0, own=1)]

    with pytest.raises(HangError, match="rank 0 waits in send to rank 1"):
        together(program(0, first), program(1, second))


def test_a_mismatch_names_ranks_calls_and_both_lines() -> None:
    with pytest.raises(MismatchError) as caught:
        together(program(0, [reduce(line=88)]), program(1, [gather(line=91)]))

    assert "rank 0 calls all_reduce of 8 float32 at train.py:88" in str(caught.value)
    assert "rank 1 calls all_gather_into_tensor of 8 float32 at train.py:91" in str(caught.value)


@pytest.mark.parametrize(
    ("programs", "words"),
    [
        (
            ([send(1, own=0, line=4)], [send(0, own=1, line=6)]),
            [
                "rank 0 waits in send to rank 1 of 8 float32 at train.py:4",
                "rank 1 waits in send to rank 0 of 8 float32 at train.py:6",
            ],
        ),
        (
            ([reduce(line=4), reduce(line=5)], [reduce(line=4)]),
            [
                "rank 0 waits in all_reduce of 8 float32 at train.py:5",
                "for rank 1",
                "rank 1 has ended",
            ],
        ),
        (
            ([reduce(line=4)], [work(1.0)]),
            ["(process group '0', call 1) for rank 1"],
        ),
    ],
)
def test_a_hang_names_who_waits_for_whom_and_where(
    programs: Sequence[Sequence[Entry]], words: list[str]
) -> None:
    with pytest.raises(HangError, match="a cluster would hang") as caught:
        together(*(program(rank, entries) for rank, entries in enumerate(programs)))

    assert [word for word in words if word not in str(caught.value)] == []


def test_a_host_that_waits_for_its_gpu_is_named_too() -> None:
    first: list[Entry] = [receive(1, own=0), Synchronize("synchronize", "train.py:9")]
    second: list[Entry] = [work(1.0)]

    with pytest.raises(HangError, match=r"receive from rank 1 .* for rank 1; rank 1 has ended"):
        together(program(0, first), program(1, second))


def test_a_host_waits_for_an_event_behind_a_collective() -> None:
    def entries(us: float) -> list[Entry]:
        wait = Synchronize("event", event=1)
        return [work(us), reduce(), EventRecord(1, 0), wait, work(1.0)]

    early, late = together(program(0, entries(5.0)), program(1, entries(30.0)))

    assert early.kernels[-1].start_ns == late.kernels[-1].start_ns == 40_000
    assert early.host[-1].start_ns == 40_000


def test_a_mismatch_in_a_folded_step_is_found_at_its_own_step() -> None:
    """Rank 1 makes another call in its fifth step only, which rank 0 has folded away."""
    first = program(0, [reduce(line=3)], count=9)
    plain: list[list[Entry]] = [[reduce(line=3)]] * 4
    steps: list[list[Entry]] = [*plain, [gather(line=5)], *plain]
    second = program(1, *steps)

    with pytest.raises(MismatchError, match="call 5: rank 0 calls all_reduce"):
        together(first, second)


def test_a_collective_of_an_earlier_step_is_waited_for_across_steps() -> None:
    entries: Callable[[float], list[Entry]] = lambda us: [work(us), reduce()]  # noqa: E731
    fast, slow = together(program(0, entries(1.0), count=5), program(1, entries(21.0), count=5))

    assert [step.latency_ns for step in fast.steps] == [31_000] * 3
    assert [step.latency_ns for step in slow.steps] == [31_000] * 3
    assert sum(k.waited_ns for k in fast.kernels) == 60_000


def test_what_kernels_take_beyond_their_estimates_delays_the_others() -> None:
    programs = (program(0, [work(5.0), reduce()]), program(1, [work(5.0), reduce()]))

    first, second = schedule_together(programs, price, FREE, stretch_ns=((0, 0), (4_000, 0)))

    assert first.end_ns == second.end_ns == 19_000
    assert first.kernels[1].waited_ns == 4_000
