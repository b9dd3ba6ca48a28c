"""Memory on a page: the curve from the first allocation on, and blocks that repeat in one row."""

from __future__ import annotations

import re
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import neusight
from neusight.forecast import Forecast
from neusight.integrations.report.page.html_tables import Detail
from neusight.integrations.report.page.memory_view import view_of_memory
from neusight.memory.allocator_settings import AllocatorSettings
from neusight.memory.placement import MemoryEvent, MemoryTimeline
from neusight.predictors.formatting import bytes_text
from neusight.recording.recording import Alloc, Recording, StorageKind
from neusight.timeline.spans import Timeline
from timelines import ROUND_GPU, step_span

MIB, GIB = 2**20, 2**30
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


def literal_forecast(
    *peaks: int, times: tuple[int, ...] | None = None, steps: int = 2, gib: int = 10
) -> Any:
    """Allocations of so many MiB in all, one a microsecond on a GPU of `gib`, 1 of them the
    context's; what is reserved is twice as much."""
    own = Alloc(0, 0, "Net.0", "aten::mm")
    events = [
        MemoryEvent(at, 0, 0, 0, peak * MIB, 2 * peak * MIB, own) for at, peak in enumerate(peaks)
    ]
    kinds: tuple[StorageKind, ...] = ("activation", "parameter", "gradient", "buffer")
    memory = MemoryTimeline(
        events=tuple(events),
        steps=(),
        peak_allocated=max(peaks) * MIB,
        peak_reserved=2 * max(peaks) * MIB,
        peak_event=events[0],
        alive_at_peak=tuple(
            Alloc(at, size * MIB, f"Net.{at}", kind=kind)
            for at, (size, kind) in enumerate(zip((40, 30, 20, 10), kinds, strict=True))
        ),
        capacity_bytes=None,
        context_bytes=GIB,
        settings=AllocatorSettings(),
    )
    spans = [replace(step_span(), start_ns=1000 * (at + 1)) for at in range(steps)]
    memory_ns = tuple(1000 * (at + 1) for at in range(len(peaks))) if times is None else times
    return SimpleNamespace(
        memory=memory,
        gpu=replace(ROUND_GPU, memory_bytes=gib * GIB),
        context_bytes=GIB,
        timeline=Timeline((), (), tuple(spans), 0, memory_ns),
    )


def shapes(forecast: Any, num_spans: int = 100) -> list[str]:
    """Each shape's kind and places, and the words beside them."""
    text = view_of_memory(forecast, Detail(num_spans, 50, 0))
    drawn = re.findall(r'<(?:line|polyline|polygon) class="(\w+)"([^/]*)/>', text)
    ends = re.findall(r"<span>([^<]*)</span>", text[: text.index("</div></div>")])
    lines = [" ".join([kind, *re.findall(r'"([^"]*)"', at)]) for kind, at in drawn]
    return [*lines, ", ".join(ends)]


def test_the_curve_stands_between_its_first_and_last_allocation() -> None:
    assert shapes(literal_forecast(1024, 2048, 1536, 2560)) == [
        "grid 0.0 0 0.0 200",
        "grid 333.3 0 333.3 200",
        "reserved 0.0,200.0 0.0,127.3 333.3,54.5 666.7,90.9 1000.0,18.2 1000.0,200.0",
        "allocated 0.0,163.6 333.3,127.3 666.7,145.5 1000.0,109.1",
        "grid 0 200.0 1000 200.0",
        "grid 0 100.0 1000 100.0",
        "grid 0 0.0 1000 0.0",
        "5.50 GiB, 2.75 GiB, 0.0 MiB, 1.0 µs, 4.0 µs",
    ]


def test_a_capacity_near_the_peak_is_drawn() -> None:
    near, far = shapes(literal_forecast(1024, 2560, gib=8)), shapes(literal_forecast(2560, gib=10))
    assert "capacity 0 18.2 1000 18.2" in near
    assert near[-1].startswith("7.70 GiB, ")
    assert not any(line.startswith("capacity") for line in far)
    dashed = "Dashed: the 7.00 GiB that the GPU has beside the context."
    assert dashed in view_of_memory(literal_forecast(1024, 2560, gib=8), DETAIL)
    assert "Dashed" not in view_of_memory(literal_forecast(2560, gib=10), DETAIL)


def test_an_allocation_at_no_known_time_is_at_that_of_the_one_before() -> None:
    drawn = shapes(literal_forecast(512, 1024, 1024, times=(7000, 9000)))

    assert "allocated 0.0,154.5 1000.0,109.1 1000.0,109.1" in drawn
    assert shapes(literal_forecast(512, times=()))[-1].endswith(" 0.0 µs, 0.0 µs")


@pytest.mark.parametrize(("steps", "grids"), [(40, 43), (41, 3)])
def test_forty_steps_are_marked_at_most(steps: int, grids: int) -> None:
    found = shapes(literal_forecast(512, 1024, steps=steps))

    assert sum(line.startswith("grid") for line in found) == grids


def test_of_each_stretch_of_a_long_curve_the_highest_stays() -> None:
    lines = shapes(literal_forecast(*(at % 3 for at in range(2500)), 2), 10**6)
    [allocated] = [line.split()[1:] for line in lines if line.startswith("allocated")]

    assert len(allocated) == 834
    assert {place.partition(",")[2] for place in allocated} == {"109.1"}


def test_rows_of_what_is_alive_state_their_share_and_the_rest_is_added_up() -> None:
    text = view_of_memory(literal_forecast(1024), Detail(100, 1, 0))

    assert re.findall(r">([^<>]+)</td>", text.replace("<wbr>", "")) == [
        "Net.*", "40.0 MiB", "40.0%", "1", "forward", "activation",
        "3 more rows", "60.0 MiB", "60.0%", "3",
    ]  # fmt: skip
    assert re.findall(r'class="(bar|words)"[^>]*>([^<]+)<', text) == [
        ("bar", "share"), ("words", "phase"), ("words", "kind"),
        ("bar", "40.0%"), ("words", "forward"), ("words", "activation"), ("bar", "60.0%"),
    ]  # fmt: skip
