"""Ops of packages are torch's own as far as shapes, gradients and compilation go."""

from __future__ import annotations

from collections.abc import Sequence
from inspect import signature
from typing import Any

import pytest
import torch

import neusight
from neusight.ops import register_op, unregister_op
from neusight.predictors.kernel import Kernel
from neusight.recording.recording import TensorSpec
from neusight.stubs.stub_ops import counted, differentiable, make_op, names, stub, used_functions


def test_an_op_has_shapes_gradients_and_kernels() -> None:
    doubled = make_op("own_op_test::doubled(Tensor x) -> Tensor", torch.empty_like)

    def backward(saved: Sequence[torch.Tensor], given: Sequence[Any], grad: torch.Tensor) -> Any:
        return grad * saved[0]

    differentiable(doubled, backward, saves=lambda inputs, out: inputs)

    @register_op("own_op_test::doubled")
    def formula(call: Any, math: Any, *, x: TensorSpec) -> list[Kernel]:
        return [Kernel.elementwise("doubled", x.numel, dtype=x.dtype)]

    try:
        with neusight.forecast_on("H100") as forecast:
            x = torch.ones(8, device="cuda", requires_grad=True)
            doubled(x).backward(torch.ones(8, device="cuda"))
        launched = [kernel.name for kernel, _ in forecast.kernels]
    finally:
        unregister_op("own_op_test::doubled")

    assert x.grad is not None
    assert [name for name in launched if name in ("doubled", "mul")] == ["doubled", "mul"]


def test_functions_are_recorded_once_by_their_package() -> None:
    used_functions()

    @counted("some_package")
    def first() -> int:
        return 1

    @counted("some_package", "Second")
    def second() -> int:
        return 2

    assert (first(), second(), first()) == (1, 2, 1)
    used = used_functions()
    assert [name.rpartition(".")[2] for name in used["some_package"]] == ["first", "Second"]
    assert used_functions() == {}


def test_a_stub_has_the_parameters_of_the_package_and_gets_those_that_it_names() -> None:
    used_functions()

    @stub("some_package", "q, k, causal=False, *, scale=None")
    def attend(q: int, causal: bool) -> Any:
        return q, causal

    @stub("some_package", "q, causal=False, scale=2, **others", "Scaled")
    def scaled(q: int, **settings: Any) -> Any:
        return q, settings

    assert attend(1, 2, True) == (1, True)
    assert attend(1, k=2, scale=0.5) == (1, False)
    assert scaled(1, scale=3, unknown=4) == (1, {"causal": False, "scale": 3})
    assert list(signature(attend).parameters) == ["q", "k", "causal", "scale"]
    with pytest.raises(TypeError, match="k"):
        attend(1)
    assert [name.rpartition(".")[2] for name in used_functions()["some_package"]] == [
        "attend",
        "Scaled",
    ]


def test_names_are_those_of_the_objects_or_given() -> None:
    assert names(len, other=3) == {"len": len, "other": 3}
