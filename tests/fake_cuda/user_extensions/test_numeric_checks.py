"""Checks of numbers that a forecast does not have."""

from __future__ import annotations

import pytest
import torch

import neusight


def test_unknown_numbers_pass_and_that_is_reported() -> None:
    with neusight.forecast_on("H100") as forecast:
        x = torch.randn(30, 30, device="cuda", dtype=torch.double, requires_grad=True)
        assert torch.autograd.gradcheck(torch.sin, (x,))
        torch.testing.assert_close(x, x * 1)

    reported = [text.partition(" at ")[0] for text in forecast.warnings if "no numbers" in text]
    assert reported == ["gradcheck", "assert_close"]


def test_what_is_known_is_compared() -> None:
    with neusight.forecast_on("H100"):
        zeros = torch.zeros(3, device="cuda")
        with pytest.raises(AssertionError, match="not close"):
            torch.testing.assert_close(zeros, zeros + 1)
        with pytest.raises(AssertionError, match="device"):
            torch.testing.assert_close(zeros, torch.zeros(3))
        with pytest.raises(AssertionError, match="shape"):
            torch.testing.assert_close(torch.randn(3, device="cuda"), torch.randn(4, device="cuda"))
        on_cpu = torch.randn(3, dtype=torch.double, requires_grad=True)
        assert torch.autograd.gradcheck(torch.sin, (on_cpu,))
