"""Memory on a page: the curve from the first allocation on, and blocks that repeat in one row."""

from __future__ import annotations

import re

import pytest
import torch
from torch import nn

import neusight
from neusight.forecast import Forecast
from neusight.integrations.report.page.html_tables import Detail
from neusight.integrations.report.page.memory_view import view_of_memory
from neusight.predictors.formatting import bytes_text
from neusight.recording.recording import Recording

DETAIL = Detail(num_spans=100, num_rows=50, num_instances=100)


@pytest.fixture(scope="module")
def forecast() -> Forecast:
    with neusight.forecast_on("H100") as forecast:
        model = nn.Sequential(*(nn.Linear(256, 256) for _ in range(12))).cuda()
        for _ in range(3):
            model(torch.randn(64, 256, device="cuda")).sum().backward()
            forecast.step()
    return forecast


def test_the_curve_fills_the_drawing_and_reaches_the_peak(forecast: Forecast) -> None:
    text = view_of_memory(forecast, DETAIL)

    [line] = re.findall(r'class="allocated" points="([^"]*)"', text)
    points = [tuple(map(float, point.split(","))) for point in line.split()]
    assert len(points) <= DETAIL.num_spans
    assert points[0][0] == 0 and points == sorted(points, key=lambda point: point[0])
    top = max(1.0, forecast.memory.peak_reserved * 1.1)
    assert min(y for _, y in points) == pytest.approx(
        200 * (1 - forecast.peak_memory_bytes / top), abs=0.1
    )
    assert text.count('class="grid"') >= 3 + 3  # levels, steps


def test_the_levels_beside_the_curve_lead_from_its_top_to_nothing(forecast: Forecast) -> None:
    [levels] = re.findall(r'class="levels">(.*?)</div>', view_of_memory(forecast, DETAIL))

    top = forecast.memory.peak_reserved * 1.1
    expected = [bytes_text(round(level)) for level in (top, top / 2, 0)]
    assert re.findall(r"<span>([^<]*)</span>", levels) == expected


def test_a_curve_that_need_not_be_thinned_has_every_event(forecast: Forecast) -> None:
    text = view_of_memory(forecast, Detail(num_spans=10**6, num_rows=50, num_instances=100))

    [line] = re.findall(r'class="allocated" points="([^"]*)"', text)
    assert len(line.split()) == len(forecast.memory.events)


def test_layers_that_repeat_are_one_row_and_all_rows_are_the_peak(forecast: Forecast) -> None:
    text = view_of_memory(forecast, DETAIL)

    named = re.findall(r"<tr><td>(Sequential[^/]*)</td>", text)
    assert named and set(named) <= {"Sequential", "Sequential.*"}
    sizes = re.findall(r'<tr><td>[^/]*</td><td data-v="(\d+)"', text)
    assert sum(map(int, sizes)) == sum(row.num_bytes for row in forecast.memory.alive)


def test_what_does_not_fit_on_the_page_is_summed_up(forecast: Forecast) -> None:
    few = view_of_memory(forecast, Detail(100, 1, 0))

    [size] = re.findall(r'more rows?</td><td data-v="(\d+)"', few)
    [first] = re.findall(r'<tbody>\n<tr><td>[^/]*</td><td data-v="(\d+)"', few)
    total = sum(row.num_bytes for row in forecast.memory.alive)
    assert int(first) + int(size) == total


def test_a_program_that_allocates_nothing_is_reported_so(forecast: Forecast) -> None:
    nothing = forecast.of(Recording((), gpu="H100", torch_version="2.13"))

    assert "Nothing was allocated" in view_of_memory(nothing, DETAIL)
