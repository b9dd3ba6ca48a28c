"""How the optimizer changed, in the words of who wrote the program."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import nn

import neusight
from check_results import BEFORE
from neusight.integrations.check.baseline import Case
from neusight.integrations.check.observation import observe
from neusight.integrations.check.optimizer import optimizer_change

Make = Callable[..., torch.optim.Optimizer]


def case(make: Make) -> Case:
    with neusight.forecast_on("H100") as forecast:
        model = nn.Linear(64, 64).cuda()
        optimizer = make(model.parameters())
        for _ in range(3):
            model(torch.ones(8, 64, device="cuda")).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    return observe(forecast).case


@pytest.fixture(scope="module")
def fused() -> Case:
    return case(partial(torch.optim.AdamW, fused=True))


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (partial(torch.optim.AdamW, fused=True), ""),
        (partial(torch.optim.AdamW, fused=True, lr=0.5), ""),
        (torch.optim.AdamW, "the optimizer, AdamW: fused=True was removed"),
        (
            partial(torch.optim.AdamW, foreach=False),
            "the optimizer, AdamW: fused=True was removed, and foreach is off too",
        ),
        (partial(torch.optim.SGD, fused=True), "the optimizer, SGD: it was AdamW before"),
    ],
    ids=["same", "learning rate", "not fused", "one by one", "another"],
)
def test_a_changed_optimizer_is_named(fused: Case, make: Make, expected: str) -> None:
    assert optimizer_change(fused, case(make)) == expected


def test_what_was_added_is_named_too(fused: Case) -> None:
    plain, single = case(torch.optim.AdamW), case(partial(torch.optim.AdamW, foreach=False))

    assert optimizer_change(plain, fused) == "the optimizer, AdamW: fused=True was added"
    assert "one by one (foreach=False or fused=False)" in optimizer_change(plain, single)


def test_an_older_baseline_that_names_none_states_the_way_alone(fused: Case) -> None:
    older = replace(fused, optimizer="")

    assert optimizer_change(older, fused) == ""
    assert optimizer_change(BEFORE, BEFORE) == ""
