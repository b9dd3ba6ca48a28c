"""Two forecasts compared: what makes them hard to compare is said first, nothing is judged."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

import neusight
from neusight.forecast import Forecast
from neusight.integrations.check.comparing.pair import Pair, Side, pair_of
from neusight.integrations.check.comparing.pair_text import pair_lines, pair_markdown


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
    assert pair.to_json()["batch"] == {"unit": "sample", "before": 8, "now": 32}


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
