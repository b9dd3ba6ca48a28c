"""The curves of a sweep on a page."""

from __future__ import annotations

import re
from dataclasses import replace

from neusight.integrations.cli.sweep import Sweep, SweepPoint
from neusight.integrations.cli.sweep_page import sweep_html

SWEEP = Sweep("batch", ("1", "2", "4"))


def point(value: str, *, gpu: str = "H100") -> SweepPoint:
    return SweepPoint(
        value, gpu, latency_us=100.0 * int(value), fits=True, used_bytes=2**30 * int(value),
        capacity_bytes=80 * 2**30, samples_per_second=1e4, memory_verdict="fits",
    )  # fmt: skip


def test_throughput_latency_and_memory_are_drawn_and_the_knee_is_named() -> None:
    page = sweep_html(SWEEP, [point(value) for value in SWEEP.values], command="neusight run")

    assert [page.count(f"<figcaption>{name}") for name in ("Throughput", "Latency", "Memory")] == [
        1,
        1,
        1,
    ]
    assert "knee: batch 1" in page
    assert "<script" not in page


def test_a_model_that_generates_has_curves_of_its_tokens() -> None:
    points = [replace(point(value), ttft_us=5e3, tpot_us=1e3) for value in SWEEP.values]

    assert "<figcaption>ms to the first token" in sweep_html(SWEEP, points)
    assert "<figcaption>ms to the first token" not in sweep_html(
        SWEEP, [point(value) for value in SWEEP.values]
    )


def test_each_gpu_has_a_curve() -> None:
    points = [point(value, gpu=gpu) for value in SWEEP.values for gpu in ("H100", "A<100>")]

    page = sweep_html(SWEEP, points)

    assert page.count('class="legend"') == 3
    assert "A&lt;100&gt;" in page
    assert "A<100>" not in page


def test_failed_values_are_named_and_not_drawn() -> None:
    page = sweep_html(SWEEP, [SweepPoint("1", gpu="", failure="OSError: no data")])

    assert "no data" in page
    assert "<svg" not in page


def test_points_state_samples_a_second_milliseconds_and_gibibytes() -> None:
    points = [replace(point(value), latency_us=2500.0 * int(value)) for value in SWEEP.values]

    page = sweep_html(SWEEP, [replace(one, ttft_us=5e3, tpot_us=1e3) for one in points])

    titles = re.findall("<title>H100: ([^<]*)</title>", page)
    assert titles == [
        "10,000 at 1", "10,000 at 2", "10,000 at 4", "2.5 at 1", "5 at 2", "10 at 4",
        "1 at 1", "2 at 2", "4 at 4", "5 at 1", "5 at 2", "5 at 4", "1 at 1", "1 at 2", "1 at 4",
    ]  # fmt: skip
