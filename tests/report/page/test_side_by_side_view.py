"""Several forecasts on one page: what they are called, what differs, on one scale."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import neusight
from neusight.forecast import Forecast
from neusight.integrations.report.html import html_report
from neusight.integrations.report.page.html_tables import Detail
from neusight.integrations.report.page.side_by_side_view import (
    _bar,
    _times_by_kind,
    labels_of,
    view_of_several,
)
from neusight.output.figures import Row, StepLatency


def named(forecast: Forecast, script: str) -> Forecast:
    return forecast.of(replace(forecast.recording, script=script))


def test_labels_say_what_states_forecasts_apart(forecast: Forecast) -> None:
    one, other, slow = named(forecast, "a.py"), named(forecast, "b.py"), forecast.on("T4")

    assert labels_of([one, slow]) == ["H100-SXM5-80GB", "T4"]
    assert labels_of([one, other]) == ["a.py", "b.py"]
    assert labels_of([one, other, one.on("T4")]) == [
        "a.py on H100-SXM5-80GB", "b.py on H100-SXM5-80GB", "a.py on T4",
    ]  # fmt: skip
    assert labels_of([one, one])[1] == "2: a.py on H100-SXM5-80GB"


def test_names_that_are_given_stand_in_their_place(forecast: Forecast) -> None:
    page = html_report([forecast, forecast.on("T4")], labels=["before <b>", "after"])

    assert "<h2>before &lt;b&gt;</h2>" in page and "<h2>after</h2>" in page
    assert "<th scope=col>after</th>" in page


def test_bars_are_on_one_scale_and_as_long_as_the_steps(forecast: Forecast) -> None:
    slow = forecast.on("T4")
    page = html_report([forecast, slow])

    bars = re.findall(r'<li><span class="name">.*?</svg>', page)
    ends = []
    for bar in bars:
        assert '<svg viewBox="0 0 1000 20" preserveAspectRatio="none"' in bar
        rects = re.findall(r'class="c-[^"]*" x="([\d.]+)" y="0" width="([\d.]+)"', bar)
        ends.append(max(float(x) + float(width) for x, width in rects))
    expected = forecast.step_latency_us.median / slow.step_latency_us.median
    assert ends[0] / ends[1] == pytest.approx(expected, rel=0.01)


def test_timelines_begin_together_and_end_where_their_steps_do(forecast: Forecast) -> None:
    slow = forecast.on("T4")
    found = re.search(r'id="timeline-all">(.*?)</script>', html_report([forecast, slow]))

    assert found is not None
    data = json.loads(found[1])
    assert data["start_us"] == 0
    assert data["boundaries"][1:] == pytest.approx(
        sorted(one.step_latency_us.median for one in (forecast, slow)), abs=0.01
    )
    assert [lane["name"].partition(":")[0] for lane in data["lanes"]] == [
        "H100-SXM5-80GB", "H100-SXM5-80GB", "T4", "T4",
    ]  # fmt: skip


def shape(kind: str, x: float, width: float, y: int = 0, height: int = 14) -> str:
    return f'<rect class="{kind}" x="{x:.1f}" y="{y}" width="{width:.1f}" height="{height}"/>'


def test_a_bar_has_its_kernels_by_kind_what_is_idle_and_the_range_below() -> None:
    """60 of 100 µs; copies and products take 80 by themselves, but overlap."""
    rows = [Row("copy", 1, 20.0, 0.25), Row("gemm", 3, 60.0, 0.75)]
    verdict = SimpleNamespace(
        by_kernel_class=rows, gpu_busy_us=60.0, step_latency=StepLatency(100.0, 80.0, 125.0)
    )
    one: Any = SimpleNamespace(verdict=verdict)
    nothing: Any = SimpleNamespace(
        verdict=SimpleNamespace(
            by_kernel_class=[], gpu_busy_us=0.0, step_latency=StepLatency(5.0, 4.0, 6.0)
        )
    )

    kinds = [kind for kind, _ in _times_by_kind(one)]
    lengths = [{"gemm": 225.0, "copy": 75.0}[kind] for kind in kinds]
    assert re.findall("<rect[^>]*>", _bar(one, 200.0)) == [
        shape(f"c-{kinds[0]}", 0.0, lengths[0]),
        shape(f"c-{kinds[1]}", lengths[0], lengths[1]),
        shape("c-idle", 300.0, 200.0),
        shape("range", 400.0, 225.0, 16, 2),
    ]
    assert re.findall("<rect[^>]*>", _bar(nothing, 10.0)) == [
        shape("c-idle", 0.0, 500.0), shape("range", 400.0, 200.0, 16, 2)
    ]  # fmt: skip


def test_modules_are_shown_two_rows_deep() -> None:
    class Outer(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = torch.nn.Sequential(torch.nn.Sequential(torch.nn.Linear(64, 64)))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            found: torch.Tensor = self.body(x)
            return found

    with neusight.forecast_on("H100") as deep:
        net = Outer().cuda()
        for _ in range(2):
            net(torch.ones(8, 64, device="cuda"))
    found = re.search(r'id="timeline-all">(.*?)</script>', html_report([deep, deep.on("T4")]))

    assert found is not None
    lanes = json.loads(found[1])["lanes"]
    assert [lane["num_rows"] for lane in lanes if "modules" in lane["name"]] == [2, 2]


def test_two_have_a_difference_and_more_have_none(forecast: Forecast) -> None:
    slow = forecast.on("T4")

    assert "<th scope=col>difference</th>" in html_report([forecast, slow])
    assert "<th scope=col>difference</th>" not in html_report([forecast, slow, slow])
    same = html_report([forecast, forecast])
    assert "+0.0 µs" in same and "+0%" in same


def test_a_kernel_that_one_does_not_have_is_no_change_in_percent(forecast: Forecast) -> None:
    with neusight.forecast_on("H100") as other:
        for _ in range(3):
            torch.softmax(torch.randn(64, 64, device="cuda"), -1)
            other.step()
    page = html_report([forecast, other])

    [row] = re.findall(r"<tr><td>softmax</td>.*?</tr>", page)[:1]
    assert '<td data-v="0">-</td>' in row and "<td>-</td>" in row


def test_rows_that_have_no_place_are_added_up(forecast: Forecast) -> None:
    """The second has no kernel of the classes that are left, and takes no time in them."""
    with neusight.forecast_on("H100") as other:
        for _ in range(3):
            torch.randn(64, 512, device="cuda") @ torch.randn(512, 512, device="cuda")
            other.step()
    _, _, *left = forecast.verdict.by_kernel_class
    detail = Detail(num_spans=60, num_rows=2, num_instances=0)

    page = view_of_several([forecast, other], ["first", "second"], {}, detail)

    [foot] = re.findall(r"<tfoot><tr><td>2 more kernel class.*?</tfoot>", page)
    times = [float(text) for text in re.findall('data-v="([^"]*)"', foot)]
    total = sum(row.time_us for row in left)
    assert times[:3] == pytest.approx([total, 0.0, -total], abs=0.01)


def test_what_differs_in_what_ran_is_said(forecast: Forecast) -> None:
    older = forecast.of(replace(forecast.recording, torch_version="2.11.0"))

    assert "forecasts of different releases of torch" in html_report([forecast, older])
    assert "forecasts of different" not in html_report([forecast, forecast.on("T4")])


def test_a_bar_shows_busy_and_idle_time_and_the_range_below(forecast: Forecast) -> None:
    slow = forecast.on("T4")
    detail = Detail(num_spans=60, num_rows=2, num_instances=0)
    page = view_of_several([forecast, slow], ["first", "second"], {}, detail)

    scale = 1000 / slow.step_latency_us.high
    bars = re.findall(r'<li><span class="name">.*?</svg>', page)
    for one, bar in zip((forecast, slow), bars, strict=True):
        found = re.findall(r'<rect class="([^"]*)" x="(.*?)" y="(.*?)" width="(.*?)" height', bar)
        rects = [(kind, float(x), y, float(width)) for kind, x, y, width in found]
        busy = [width for kind, _, y, width in rects if kind.startswith("c-")]
        latency = one.step_latency_us
        assert rects[0][1:3] == (0.0, "0")
        assert sum(busy[:-1]) == pytest.approx(one.gpu_busy_us * scale, abs=0.2)
        assert sum(busy) == pytest.approx(latency.median * scale, abs=0.2)
        spread = (latency.high - latency.low) * scale
        kind, x, y, width = rects[-1]
        assert (kind, y) == ("range", "16")
        assert (x, width) == pytest.approx((latency.low * scale, spread), abs=0.1)


def test_six_have_columns_and_timelines_of_two_rows_of_modules(forecast: Forecast) -> None:
    def data_of(count: int) -> tuple[str, list[dict[str, Any]]]:
        detail = Detail(num_spans=600, num_rows=2, num_instances=0)
        page = view_of_several([forecast] * count, [f"f{n}" for n in range(count)], {}, detail)
        found = page.partition('id="timeline-all">')[2].partition("</script>")[0]
        return page, json.loads(found)["lanes"]

    (page, lanes), (few, _) = data_of(8), data_of(6)

    assert len(lanes) == 12
    assert {lane["num_rows"] for lane in lanes if "modules" in lane["name"]} == {2}
    assert "The first 6 of 8." in page and "The first" not in few
    assert "<th scope=col>f5</th>" in page and "<th scope=col>f6</th>" not in page
