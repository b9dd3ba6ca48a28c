"""Ops of packages are torch's own as far as shapes, gradients and compilation go."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

import neusight
from neusight.ops import register_op, unregister_op
from neusight.predictors.kernel import Kernel
from neusight.recording.recording import TensorSpec
from neusight.stubs.stub_ops import counted, differentiable, make_op, names, used_functions


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


def test_functions_are_noted_once_by_their_package() -> None:
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


def test_names_are_those_of_the_objects_or_given() -> None:
    assert names(len, other=3) == {"len": len, "other": 3}
