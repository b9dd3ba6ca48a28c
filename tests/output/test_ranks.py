"""The figures of ranks side by side, of two of which the second computes for longer."""

from __future__ import annotations

from dataclasses import replace

import pytest
from unequal_ranks import COLLECTIVE_US, NUM_COLLECTIVES, PRODUCT_US, unequal_ranks

from neusight.memory.placement import memory_of
from neusight.output.ranks import RankRow, rank_lines, rank_row, ranks_json, slowest


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
    assert "slowest: rank 1, " in rank_lines([fast, slow], 2)[0]
    assert slowest([row, replace(row, rank=1)]) is row
    assert slowest([row, replace(row, rank=1, step_us=row.step_us + 1)]).rank == 1


def test_each_rank_has_a_line_up_to_sixteen() -> None:
    row = replace(rows()[0], step_us=8210.0, bubble=0.31, waited_us=1200.0)

    two = rank_lines([row, replace(row, rank=3, memory_verdict="does not fit")], 8)
    many = rank_lines([replace(row, rank=rank) for rank in range(20)], 64)

    assert two[0] == "  ranks     2 of 8 side by side; equally fast, 8.21 ms a step"
    assert [line.split()[:4] for line in two[2:]] == [
        ["0", "8.21", "ms", "31.0%"],
        ["3", "8.21", "ms", "31.0%"],
    ]
    assert two[-1].endswith("  does not fit")
    assert many[-1] == "    and 4 more"
    assert rank_lines([], 1) == []


def test_json_has_every_figure() -> None:
    [first, _] = ranks_json(rows())

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
