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
