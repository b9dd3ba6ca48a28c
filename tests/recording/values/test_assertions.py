"""Truths not known let a program's own checks pass.

PYTEST_DONT_REWRITE: the assertions are those that a program has.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import neusight
from neusight.recording.values.assertions import passing_truth


def unknown() -> torch.Tensor:
    return torch.randint(0, 10, (64,), device="cuda") * torch.ones(64, device="cuda").long()


def both(x: torch.Tensor) -> None:
    assert x.max() < 5 and x.min() >= 3, f"got {x}"


def negated(x: torch.Tensor) -> None:
    assert not (x.max() < 5)
    assert not torch.any(x == 3).item()


def either(x: torch.Tensor) -> None:
    assert x.max() < 5 or x.max() > 7


def raised(x: torch.Tensor) -> None:
    if (x < 3).any():
        raise ValueError("three numbers" if len(x) == 3 else f"{x.shape} holds one below three")
    if not (x > 20).all():
        raise ValueError("a number is not above twenty")


def raised_for_two_reasons(x: torch.Tensor) -> None:
    if (x < 3).any() or not (x == 4).all():
        raise ValueError
    if x.sum() != 0:
        return
    raise ValueError("they add up to nothing")


def compared(x: torch.Tensor) -> None:
    assert torch.equal(x, x * 2)
    assert not torch.equal(x, x * 2)
    assert not torch.allclose(x.float(), x * 2.0)
    assert torch.allclose(x.float(), x * 2.0)


CHECKS = [both, negated, either, raised, raised_for_two_reasons, compared]


@pytest.mark.parametrize("check", CHECKS, ids=[check.__name__ for check in CHECKS])
def test_a_programs_checks_of_what_nobody_knows_pass(check: Callable[[torch.Tensor], None]) -> None:
    with neusight.forecast_on("H100") as forecast:
        check(unknown())

    assert forecast.recording.steps


def test_what_is_known_fails_its_checks() -> None:
    with neusight.forecast_on("H100"), pytest.raises(AssertionError):
        assert torch.zeros(3, device="cuda").any()


def test_tensors_of_two_shapes_are_never_equal() -> None:
    with neusight.forecast_on("H100"), pytest.raises(AssertionError):
        assert torch.equal(unknown(), unknown()[:3])


def test_a_branch_that_raises_nothing_keeps_the_usual_guess() -> None:
    with neusight.forecast_on("H100"):
        found = [bool(torch.isnan(unknown().float()).any())]
        if torch.isfinite(unknown().float()).all():
            found.append(True)

    assert found == [False, True]
    assert passing_truth() is None
