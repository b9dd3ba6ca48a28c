"""Ops of the program's own."""

from __future__ import annotations

import pytest
import torch

import neusight
from neusight.predictors.errors import UnmappedOpError


def test_a_size_that_depends_on_values_is_half_of_the_most_and_reported() -> None:
    @torch.library.custom_op("own_code::chosen", mutates_args=(), device_types="cuda")
    def chosen(boxes: torch.Tensor, most: int) -> torch.Tensor:
        raise NotImplementedError

    @chosen.register_fake
    def _(boxes: torch.Tensor, most: int) -> torch.Tensor:
        limits = {"min": 3, "max": most} if most else {}
        number = torch.library.get_ctx().new_dynamic_size(**limits)
        return boxes.new_empty(number, dtype=torch.long)

    with neusight.forecast_on("H100") as forecast:
        boxes = torch.rand(1000, 4, device="cuda")
        assert chosen(boxes, 0).shape == (500,)  # as many as there are rows, at most
        assert chosen(boxes, 100).shape == (50,)
        assert chosen(boxes, 4).shape == (3,)

    assert any("own_code::chosen returns as much as values say" in w for w in forecast.warnings)


def test_an_op_without_a_fake_kernel_is_reported_with_the_lines_that_register_one() -> None:
    @torch.library.custom_op("own_code::unknown", mutates_args=())
    def unknown(x: torch.Tensor, by: float) -> torch.Tensor:
        return x * by

    library = torch.library.Library("own_code_library", "DEF")
    library.define("other(int n, Tensor weight) -> Tensor")

    with neusight.forecast_on("H100"):
        x = torch.ones(4, device="cuda")
        with pytest.raises(UnmappedOpError) as first:
            unknown(x, 2.0)
        with pytest.raises(UnmappedOpError) as second:
            torch.ops.own_code_library.other(3, x)

    assert "own_code::unknown at test_custom_ops.py:" in str(first.value)
    assert str(first.value).splitlines()[1:] == [
        '    @torch.library.register_fake("own_code::unknown")',
        "    def _(x, by):",
        "        return torch.empty_like(x)  # the shape, dtype and device of what it returns",
    ]
    assert "    def _(n, weight):\n        return torch.empty_like(weight)" in str(second.value)
