"""Forecast tensors behave as the GPU's own, but for their data."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import neusight
from neusight.recording.tensor import ForecastTensor


def inside(program: Any) -> Any:
    with neusight.forecast_on("H100"):
        return program(torch.ones(4, 3, device="cuda"))


def test_a_forecast_tensor_says_that_it_is_on_the_gpu() -> None:
    def facts(x: torch.Tensor) -> tuple[Any, ...]:
        return (
            str(x.device), x.is_cuda, x.is_cpu, x.get_device(), x.dtype, tuple(x.shape), x.stride(),
            x.is_contiguous(), x.is_pinned(), x.numel(), x.element_size(),
            isinstance(x, torch.Tensor), x.type(), x.layout,
        )  # fmt: skip

    assert inside(facts) == (
        "cuda:0", True, False, 0, torch.float32, (4, 3), (3, 1), True, False, 12, 4, True,
        "torch.cuda.FloatTensor", torch.strided,
    )  # fmt: skip


def test_views_share_their_storage_and_its_address() -> None:
    def facts(x: torch.Tensor) -> list[bool]:
        view, other = x[1:], x.clone()
        return [
            view.data_ptr() == x.data_ptr() + 3 * 4,
            view.untyped_storage().data_ptr() == x.untyped_storage().data_ptr(),
            x.view(-1)._base is x,
            other.data_ptr() != x.data_ptr(),
        ]

    assert inside(facts) == [True, True, True, True]


def test_a_tensor_that_stands_twice_is_copied_once_with_its_gradient() -> None:
    def facts(x: torch.Tensor) -> list[Any]:
        parameter = nn.Parameter(x)
        parameter.sum().backward()
        first, second = copy.deepcopy([parameter, parameter])
        gradient = first.grad
        assert gradient is not None
        return [first is second, gradient.shape, gradient is not parameter.grad]

    assert inside(facts) == [True, (4, 3), True]


def test_copies_are_tensors_of_the_same_kind() -> None:
    def facts(x: torch.Tensor) -> list[Any]:
        parameter = nn.Parameter(x)
        deep: Any = copy.deepcopy(parameter)
        shallow: Any = copy.copy(parameter)
        return [
            (
                t.__class__ is ForecastTensor,
                isinstance(t, nn.Parameter),
                t.requires_grad,
                str(t.device),
            )
            for t in (deep, shallow)
        ] + [deep.data_ptr() != parameter.data_ptr(), shallow.data_ptr() == parameter.data_ptr()]

    assert inside(facts) == [(True, True, True, "cuda:0")] * 2 + [True, True]


def test_only_leaves_can_be_copied_deeply() -> None:
    def fail(x: torch.Tensor) -> None:
        with pytest.raises(RuntimeError, match="graph leaves"):
            copy.deepcopy(x.requires_grad_() * 2)

    inside(fail)


def test_arrays_come_from_copies_on_the_cpu_only() -> None:
    def fail(x: torch.Tensor) -> np.ndarray[Any, Any]:
        with pytest.raises(TypeError, match="can't convert cuda:0 device type tensor to numpy"):
            x.numpy()
        with pytest.raises(TypeError, match="can't convert cuda:0 device type tensor to numpy"):
            np.asarray(x)
        return np.asarray(x.cpu(), dtype=np.float64)

    array = inside(fail)
    assert array.dtype == np.float64
    assert array.tolist() == np.ones((4, 3)).tolist()


def test_numbers_are_formatted_and_tensors_shown() -> None:
    def texts(x: torch.Tensor) -> list[str]:
        return [f"{x.sum():.1f}", f"{x.sum()}", repr(x), f"{x}"]

    number, plain, shown, formatted = inside(texts)
    assert (number, plain) == ("12.0", "12.0")
    assert shown == formatted
    assert shown == (
        "tensor(..., device='cuda:0', size=(4, 3), dtype=torch.float32, forecast=True)"
    )


def test_pickles_hold_values_on_the_cpu() -> None:
    loaded = pickle.loads(inside(lambda x: pickle.dumps({"x": x, "p": nn.Parameter(x)})))

    assert type(loaded["x"]) is torch.Tensor
    assert torch.equal(loaded["x"], torch.ones(4, 3))
    assert type(loaded["p"]) is nn.Parameter


def test_gradients_are_forecast_tensors() -> None:
    def facts(x: torch.Tensor) -> tuple[Any, ...]:
        x.requires_grad_()
        (x * 2).sum().backward()
        assert x.grad is not None
        hooked: list[str] = []
        y = (x * 3).sum()
        y.register_hook(lambda gradient: hooked.append(str(gradient.device)))
        y.backward()
        return str(x.grad.device), tuple(x.grad.shape), hooked

    assert inside(facts) == ("cuda:0", (4, 3), ["cuda:0"])


def test_subclasses_and_functions_of_torch_see_it_as_a_tensor() -> None:
    def facts(x: torch.Tensor) -> list[Any]:
        return [
            torch.is_tensor(x), isinstance(x, torch.cuda.FloatTensor),  # type: ignore[attr-defined]
            len(x), x.tolist()[0], {tuple(row.shape) for row in x},
        ]  # fmt: skip

    assert inside(facts) == [True, True, 4, [1, 1, 1], {(3,)}]


def test_contents_are_exchanged_with_their_device() -> None:
    with neusight.forecast_on("H100"):
        layer = torch.nn.Linear(8, 8)
        layer.weight.data = layer.weight.data.cuda()
        layer.bias.data = torch.zeros(8, device="cuda")
        there = layer(torch.ones(8, device="cuda")).device.type
        layer.weight.data = layer.weight.data.cpu()
        layer.bias.data = torch.zeros(8)
        here = layer(torch.ones(8)).device.type

    assert (there, here) == ("cuda", "cpu")


def test_jagged_tensors_run_as_their_values() -> None:
    with neusight.forecast_on("H100") as forecast:
        rows = [torch.randn(3, 8), torch.randn(5, 8)]
        ragged = torch.nested.nested_tensor(rows, layout=torch.jagged, device="cuda")
        model = torch.nn.Linear(8, 4).cuda()
        out = torch.relu(model(ragged))
        out.values().sum().backward()
        assert out.values().shape == (8, 4)
        assert out.shape[1] == ragged.shape[1]
        other = torch.nested.nested_tensor(rows, layout=torch.jagged, device="cuda")
        assert out.shape[1] != other.shape[1]

    assert {"gemm", "relu"} <= {kernel.name for kernel, _ in forecast.kernels}
    assert forecast.unmapped == []


def test_a_parameter_is_made_by_its_type() -> None:
    """As accelerate does where it brings offloaded parameters back."""
    with neusight.forecast_on("H100"):
        old: Any = nn.Linear(4, 4).cuda().weight
        new = type(old)(torch.ones(4, 4), requires_grad=False).to("cuda")
        assert isinstance(type(old)(old.data), nn.Parameter)
        assert (new.device.type, new.requires_grad) == ("cuda", False)
