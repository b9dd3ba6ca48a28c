"""The figures of ranks side by side, of two of which the second computes for longer."""

from __future__ import annotations

from dataclasses import asdict, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from unequal_ranks import COLLECTIVE_US, NUM_COLLECTIVES, PRODUCT_US, unequal_ranks

from neusight.memory.placement import memory_of
from neusight.output.ranks import (
    RUN_OPTION,
    RankRow,
    rank_lines,
    rank_row,
    ranks_run,
    run_as_text,
    slowest,
)
from neusight.predictors.clusters.placement import ranges_text, ranks_from
from neusight.recording.recording import Recording


def of(world_size: int, run: str | None = None) -> Recording:
    options = {} if run is None else {RUN_OPTION: run}
    return Recording((), "H100", "2.13", world_size=world_size, options=options)


def rows() -> list[RankRow]:
    return [
        rank_row(rank.recording, rank.timeline, memory_of(rank.recording))
        for rank in unequal_ranks()
    ]


def test_the_faster_rank_waits_in_its_collectives_for_the_slower_one() -> None:
    fast, slow = rows()

    assert fast.step_us == pytest.approx(slow.step_us, rel=0.01)
    assert (fast.waited_us > 0, slow.waited_us) == (True, 0.0)


def test_the_bubble_is_what_no_product_fills() -> None:
    fast, slow = rows()

    busy = [NUM_COLLECTIVES * us for us in PRODUCT_US]
    assert fast.bubble == pytest.approx(1 - busy[0] / fast.step_us, abs=1e-3)
    assert slow.bubble == pytest.approx(1 - busy[1] / slow.step_us, abs=1e-3)
    assert slow.step_us >= busy[1] + COLLECTIVE_US


def test_of_equally_long_steps_the_slowest_rank_is_the_one_that_waits_least() -> None:
    fast, slow = rows()
    row = replace(fast, waited_us=0.0)

    assert slowest([fast, slow]) is slow
    assert "slowest: rank 1, " in rank_lines([fast, slow], of(2))[0]
    assert slowest([row, replace(row, rank=1)]) is row
    assert slowest([row, replace(row, rank=1, step_us=row.step_us + 1)]).rank == 1


def test_each_rank_has_a_line_up_to_sixteen() -> None:
    row = replace(rows()[0], step_us=8210.0, bubble=0.31, waited_us=1200.0)

    two = rank_lines([row, replace(row, rank=3, memory_verdict="does not fit")], of(8))
    many = rank_lines([replace(row, rank=rank) for rank in range(20)], of(64))

    assert two[0] == "  ranks     2 of 8 side by side; equally fast, 8.21 ms a step"
    assert [line.split()[:4] for line in two[2:]] == [
        ["0", "8.21", "ms", "31.0%"],
        ["3", "8.21", "ms", "31.0%"],
    ]
    assert two[-1].endswith("  does not fit")
    assert many[-1] == "    and 4 more"
    assert rank_lines([], of(1)) == []


def test_json_has_every_figure() -> None:
    first = asdict(rows()[0])

    assert first["rank"] == 0
    assert set(first) == {
        "rank",
        "step_us",
        "bubble",
        "waited_us",
        "peak_memory_bytes",
        "peak_reserved_bytes",
        "memory_verdict",
    }


def test_it_is_said_which_ranks_do_the_same_and_which_were_not_run() -> None:
    row = rows()[0]

    assert run_as_text(of(4), [0]) == ""
    assert run_as_text(of(4, "0..3"), [0]) == "ranks 1..3 do the same"
    assert run_as_text(of(2, "0,1"), [0]) == "rank 1 does the same"
    assert run_as_text(of(2, "0,1"), [0, 1]) == ""
    assert run_as_text(of(32, "0,31"), [0]) == "rank 31 does the same; 30 ranks not run: 1..30"
    assert rank_lines([row], of(4, "0..3"))[-1] == "    ranks 1..3 do the same"
    assert ranks_run(of(4, "0..2,3")) == (0, 1, 2, 3)
    assert ranks_run(of(4)) == ()


@given(st.sets(st.integers(0, 40), min_size=1))
def test_ranks_as_ranges_are_read_back(ranks: set[int]) -> None:
    assert ranks_from(ranges_text(ranks)) == tuple(sorted(ranks))
