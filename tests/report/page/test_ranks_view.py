"""Ranks side by side on a page."""

from __future__ import annotations

import json
import re

import pytest
import torch
import torch.distributed as dist

import neusight
from neusight.forecast import Forecast
from neusight.integrations.report.html import html_report
from neusight.integrations.report.page.html_tables import Detail
from neusight.integrations.report.page.ranks_view import view_of_ranks
from neusight.predictors.formatting import time_text
from neusight.timeline.steady import kernels_of, steady_step_of


@pytest.fixture(scope="module")
def two_ranks() -> Forecast:
    """The second computes more, so that the first waits for it."""
    recordings = []
    for rank, width in enumerate((64, 4096)):
        with neusight.forecast_on("H100", world_size=2, rank=rank) as alone:
            dist.init_process_group("nccl")
            weight = torch.randn(width, width, device="cuda")
            for _ in range(3):
                torch.mm(weight, weight)
                dist.all_reduce(torch.ones(2**20, device="cuda"))
                alone.step()
            dist.destroy_process_group()
        recordings.append(alone.recording)
    return Forecast(recordings[0], alone.options, ranks=recordings)


def test_each_rank_has_a_row_and_lanes_on_the_common_clock(two_ranks: Forecast) -> None:
    page = html_report([two_ranks])

    assert "<h3>2 ranks side by side</h3>" in page
    assert "Slowest: rank" in page
    found = re.search(r'id="ranks-0">(.*?)</script>', page)
    assert found is not None
    data = json.loads(found[1])
    assert [lane["name"] for lane in data["lanes"]] == ["rank 0", "rank 1"]
    assert [lane["num_rows"] for lane in data["lanes"]] == [2, 2]  # computes, exchanges
    exchanges = [
        [(start, start + length) for start, length, row, *_ in lane["spans"] if row == 1]
        for lane in data["lanes"]
    ]
    ends = [[end for _, end in lane] for lane in exchanges]
    assert ends[0] == pytest.approx(ends[1])  # together, however early one began
    assert exchanges[0][0][0] < exchanges[1][0][0]


def test_the_memory_is_that_of_the_rank_that_needs_most(two_ranks: Forecast) -> None:
    page = html_report([two_ranks])

    assert two_ranks.needs_most.recording.rank == 1
    assert "<h3>Memory, rank 1</h3>" in page
    assert "<h3>Memory</h3>" in html_report([two_ranks.ranks[0]])


def test_sixteen_ranks_are_drawn_and_a_page_has_as_many_rows_as_fit(two_ranks: Forecast) -> None:
    page = view_of_ranks(two_ranks.ranks * 9, "many", Detail(500, num_rows=7, num_instances=0))

    [foot] = re.findall(r"<tfoot>(.*?)</tfoot>", page)
    assert re.findall(r">([^<>]*)</td>", foot) == ["11 more ranks", *5 * [""]]
    data = json.loads(page.partition('id="many">')[2].partition("</script>")[0])
    assert len(data["lanes"]) == 16
    assert "The first 16 of 18." in page


def test_the_clock_begins_with_the_first_step_and_ends_with_the_last(two_ranks: Forecast) -> None:
    page = view_of_ranks(two_ranks.ranks, "two", Detail(500, num_rows=7, num_instances=0))

    data = json.loads(page.partition('id="two">')[2].partition("</script>")[0])
    steps = [step for rank in two_ranks.ranks if (step := steady_step_of(rank.timeline))]
    begin_ns = min(step.done_ns - step.latency_ns for step in steps)
    end_us = (max(step.done_ns for step in steps) - begin_ns) / 1000
    assert (data["start_us"], data["end_us"], data["boundaries"]) == (0, end_us, [0, end_us])
    waits = [text for text in data["texts"] if text.startswith("waits ")]
    waited_ns = kernels_of(steps[0], two_ranks.ranks[0].timeline)[-1].waited_ns
    assert waits == [f"waits {time_text(waited_ns / 1000)} for others"]
    assert "The first" not in page
