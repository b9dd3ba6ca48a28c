"""Limits on figures by name."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from neusight.integrations.serving.requirements import parse_requirements
from neusight.integrations.serving.service import LoadPoint
from neusight.serving.figures import Percentiles


@pytest.mark.parametrize(
    ("text", "stated"),
    [
        ("ttft_p50<=1s", None),
        ("ttft_p50<=999ms", "ttft_p50 is 1.00 s, required is ttft_p50<=999ms"),
        ("e2e_p90>=4s", "e2e_p90 is 3.00 s, required is e2e_p90>=4s"),
        ("tpot_mean <= 1us", "tpot_mean is 500.00 ms, required is tpot_mean <= 1us"),
        ("itl_p99>=4s", None),
        ("preemptions>=3", None),
        ("preemptions<=2", "preemptions is 3, required is preemptions<=2"),
        ("goodput>=1", "goodput is not known, required is goodput>=1"),
    ],
)
def test_a_figure_on_the_wrong_side_of_its_limit_is_named(text: str, stated: str | None) -> None:
    times = Percentiles(0.5, 1.0, 3.0, 4.0)
    figures = SimpleNamespace(
        ttft_s=times, tpot_s=times, itl_s=times, e2e_s=times, preemptions=3, goodput=None
    )
    server = SimpleNamespace(deployment=SimpleNamespace(label="H100"))
    point: Any = SimpleNamespace(server=server, label="1 requests/s", figures=figures)

    [requirement] = parse_requirements(text)
    found = list(requirement.failures([cast(LoadPoint, point)]))

    assert found == ([] if stated is None else [f"H100, 1 requests/s: {stated}"])
