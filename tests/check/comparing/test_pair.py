"""Two forecasts compared: what makes them hard to compare is said first, nothing is judged."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

import neusight
from check_results import BEFORE
from neusight.forecast import Forecast
from neusight.integrations.check.baseline import OpRow
from neusight.integrations.check.comparing.pair import Pair, Side, _warnings, pair_of
from neusight.integrations.check.comparing.pair_text import pair_lines, pair_markdown
from neusight.integrations.check.figures.change import MetricChange


def trained(width: int = 512, batch: int = 8) -> Forecast:
    with neusight.forecast_on("H100", with_stack=True) as forecast:
        model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Flatten(), nn.Linear(8 * 30 * 30, width))
        model = model.cuda()
        optimizer = torch.optim.SGD(model.parameters())
        for _ in range(3):
            model(torch.ones(batch, 3, 32, 32, device="cuda")).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    return forecast


def multiplied() -> Forecast:
    with neusight.forecast_on("H100", with_stack=True) as forecast:
        for _ in range(3):
            torch.ones(512, 512, device="cuda") @ torch.ones(512, 512, device="cuda")
    return forecast


@pytest.fixture(scope="module")
def before() -> Forecast:
    return trained()


def compared(first: Forecast, second: Forecast) -> Pair:
    return pair_of(Side("a", first, Path.cwd()), Side("b", second, Path.cwd()))


def test_equal_forecasts_are_the_same_without_a_reason(before: Forecast) -> None:
    pair = compared(before, before)

    lines = pair_lines(pair)

    assert pair.warnings == ()
    assert pair.judgement.is_unchanged
    assert lines[2].endswith(" a step, the same")
    assert not any("WORSE" in line or "tolerated" in line for line in lines)


def test_another_torch_is_reported_first(before: Forecast) -> None:
    older = before.of(replace(before.recording, torch_version="2.4.0+cu121"))

    assert compared(older, before).warnings[0].startswith("not the same torch: 2.4.0, 2.")


def test_what_grew_is_named_with_its_line(before: Forecast) -> None:
    lines = pair_lines(compared(before, trained(width=8192)))

    assert "more time" in lines[2]
    assert any("Sequential.2: aten::mm" in line for line in lines)
    assert any("made at" in line and "nn.Linear" in line for line in lines)


def test_another_batch_is_compared_by_the_sample(before: Forecast) -> None:
    pair = compared(before, trained(batch=32))

    assert pair_lines(pair)[2].startswith("batch 8 → 32, so compared per sample: ")
    document = pair.to_json()
    assert (document["schema_version"], document["batch"]) == (
        1, {"unit": "sample", "before": 8, "now": 32}
    )  # fmt: skip


def test_different_programs_are_reported_first(before: Forecast) -> None:
    pair = compared(before, multiplied())

    assert pair_lines(pair)[0] == pair.warnings[0]
    assert pair.warnings[0].startswith("not the same program: ")
    assert "of the kernel time is in modules and ops that both have" in pair.warnings[0]


def test_different_gpus_and_hosts_are_reported_first_and_prices_with_them(before: Forecast) -> None:
    pair = compared(before, before.on("A100", host="cloud"))
    lines = pair_lines(pair)

    assert lines[0] == "not the same GPU: H100-SXM5-80GB, A100-SXM4-80GB"
    assert lines[1] == "not the same host: plain, cloud"
    assert any("called as before, priced otherwise: " in line for line in lines)
    assert pair.to_json()["second"]["gpu"] == "A100-SXM4-80GB"
    assert lines[0] in pair_markdown(pair)


def latency(before_us: float, after_us: float, per: str = "", batch: int = 1) -> MetricChange:
    return MetricChange(
        "step_latency_us", "step latency", "us", before_us, after_us, 0.0, 0.0, "0 %", "within",
        per=per, counts=(1, batch),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("change", "verdict"),
    [
        (latency(1000.0, 1100.0), "1 ms → 1.1 ms a step: B takes 10.0% more time"),
        (latency(1000.0, 750.0), "1 ms → 750 µs a step: B takes 25.0% less time"),
        (latency(1000.0, 1000.0), "1 ms → 1 ms a step, the same"),
        (latency(100.0, 300.0, "sample", 2), "100 µs → 150 µs a sample: B takes 50.0% more time"),
    ],
)  # fmt: skip
def test_the_verdict_is_about_the_step_or_what_it_is_judged_of(
    before: Forecast, change: MetricChange, verdict: str
) -> None:
    pair = compared(before, before)
    others = tuple(item for item in pair.judgement.metrics if item.name != change.name)
    judgement = replace(pair.judgement, metrics=(*others, change))

    assert pair_lines(replace(pair, judgement=judgement))[2] == verdict


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ((("mm", 0.25), ("add", -0.5)), "mm +25.0%, add -50.0%"),
        ((("a", 0.1), ("b", 0.1), ("c", 0.1)), "a +10.0%, b +10.0%, c +10.0%"),
        ((("a", 0.1), ("b", 0.1), ("c", 1), ("d", 1)), "a +10.0%, b +10.0%, c +100.0% and 1 more"),
    ],
)  # fmt: skip
def test_the_three_ops_whose_price_changed_most_are_named(
    before: Forecast, changes: tuple[tuple[str, float], ...], line: str
) -> None:
    pair = compared(before, before)
    judgement = replace(pair.judgement, price_changes=changes)

    lines = pair_lines(replace(pair, judgement=judgement))

    named = [found for found in lines if "priced otherwise" in found]
    assert named == [f"  called as before, priced otherwise: {line}"]


def timed(**kernel_ns: int) -> tuple[OpRow, ...]:
    return tuple(
        OpRow("Net", "forward", op, "work", "s", 1, 1, ns, 1) for op, ns in kernel_ns.items()
    )


@pytest.mark.parametrize(
    ("was", "now", "scripts", "warnings"),
    [
        (timed(mm=10, add=10), timed(mm=10, sum=10), ("a.py", "b.py"), []),
        (timed(mm=9, add=11), timed(mm=10, sum=10), ("a.py", "b.py"), [" (a.py, b.py): 48%"]),
        (timed(mm=40, add=9), timed(mm=1, sum=50), ("a.py", "a.py"), [": 41%"]),
        (timed(mm=1, add=50), timed(mm=40, sum=9), ("", "b.py"), [": 41%"]),
        (timed(mm=1), timed(sum=1), ("a.py", ""), [": 0%"]),
        ((), (), ("a.py", "b.py"), []),
        (timed(mm=0), timed(mm=0), ("a.py", "b.py"), []),
    ],
)
def test_programs_that_share_less_than_half_of_their_time_are_not_the_same(
    before: Forecast,
    was: tuple[OpRow, ...],
    now: tuple[OpRow, ...],
    scripts: tuple[str, str],
    warnings: list[str],
) -> None:
    first, second = (
        Side("x", before.of(replace(before.recording, script=script)), Path.cwd())
        for script in scripts
    )

    found = [*_warnings(first, second, replace(BEFORE, ops=was), replace(BEFORE, ops=now))]

    both = " of the kernel time is in modules and ops that both have"
    assert found == [f"not the same program{words}{both}" for words in warnings]
