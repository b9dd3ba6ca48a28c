"""Reading a number is a wait, and a check of arguments is none of the script's reads."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.distributions as D
import torch.nn.functional as F
from torch import nn

import neusight
from neusight.recording.recording import Synchronize
from recorded_programs import entries_of, invented, values_of


@pytest.fixture(autouse=True)
def arguments_of_distributions_are_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    """As torch does it; the first compile in a process turns it off, also one of another test."""
    monkeypatch.setattr(D.Distribution, "_validate_args", True)


def test_the_scale_of_a_gradient_scaler_is_its_own() -> None:
    def program() -> tuple[float, float]:
        model = nn.Linear(4, 4).cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cuda", init_scale=1024.0)
        first = scaler.get_scale()
        scaler.scale(model(torch.ones(1, 4, device="cuda")).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
        return first, scaler.get_scale()

    assert values_of(program) == (1024.0, 1024.0)


def test_every_read_waits_for_the_gpu() -> None:
    with neusight.forecast_on("H100") as forecast:
        x = torch.randn(8, device="cuda")
        x.sum().item()
        x.cpu()
        x.to("cpu", non_blocking=True)
        x.nonzero()
        bool((x > 0).all())

    waits = [entry.reason for entry in entries_of(forecast, Synchronize)]
    assert waits == ["item", "copy", "nonzero", "item"]


def _policies(size: int) -> dict[str, Any]:
    """Distributions as reinforcement learning makes them, of `size` environments."""

    def mean() -> Any:
        return torch.randn(size, 6, device="cuda")

    def logits() -> Any:
        return torch.randn(size, 18, device="cuda")

    def scale() -> Any:
        return F.softplus(mean())

    return {
        "normal": lambda: D.Normal(mean(), mean().exp()),
        "normal of softplus": lambda: D.Normal(mean(), scale()),
        "independent": lambda: D.Independent(D.Normal(mean(), mean().exp()), 1),
        "categorical": lambda: D.Categorical(logits=logits()),
        "categorical of probabilities": lambda: D.Categorical(probs=logits().softmax(-1)),
        "bernoulli": lambda: D.Bernoulli(logits=logits()),
        "bernoulli of probabilities": lambda: D.Bernoulli(probs=logits().sigmoid()),
        "multivariate": lambda: D.MultivariateNormal(mean(), torch.diag_embed(scale())),
        "triangular": lambda: D.MultivariateNormal(mean(), scale_tril=torch.diag_embed(scale())),
        "beta": lambda: D.Beta(scale(), scale()),
        "gamma": lambda: D.Gamma(scale(), scale()),
    }


@pytest.mark.parametrize("size", [2, 64])  # small tensors are followed, large ones are not
def test_distributions_take_values_that_nobody_knows_for_valid(size: int) -> None:
    with neusight.forecast_on("H100") as forecast:
        for make in _policies(size).values():
            policy = make()
            action = policy.sample()
            (policy.log_prob(action).mean() + policy.entropy().mean()).item()
            if not isinstance(policy, D.Gamma):
                D.kl_divergence(policy, make()).mean()

    reads = [entry.reason for entry in entries_of(forecast, Synchronize)]
    assert reads.count("item") > 3 * len(_policies(size))  # each check waits, as on a GPU
    assert forecast.unmapped == []


def test_arguments_that_are_known_are_still_checked() -> None:
    def program() -> None:
        with pytest.raises(ValueError, match="Expected parameter scale"):
            D.Normal(torch.zeros(3, device="cuda"), -torch.ones(3, device="cuda"))
        with pytest.raises(ValueError, match="Expected parameter loc"):
            D.Normal(torch.full((3,), math.nan, device="cuda"), torch.ones(3, device="cuda"))
        with pytest.raises(ValueError, match="Expected value argument"):
            categorical = D.Categorical(logits=torch.zeros(2, device="cuda"))
            categorical.log_prob(torch.tensor(2, device="cuda"))

    values_of(program)


def test_checks_of_arguments_are_not_reported_as_invented() -> None:
    with neusight.forecast_on("H100") as forecast:
        D.Normal(torch.randn(4, device="cuda"), torch.randn(4, device="cuda").exp())

    assert invented(forecast) == ""
