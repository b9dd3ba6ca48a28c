"""Nested tensors of the strided layout give what those of the CPU give."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import neusight

#: torch says once that the layout is a prototype.
pytestmark = pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")


def nested(device: str, *, width: int = 8, **kwargs: Any) -> Any:
    rows = [torch.ones(3, width), torch.ones(5, width)]
    return torch.nested.nested_tensor(rows, device=device, **kwargs)


def meta(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [meta(item) for item in value]
    if not isinstance(value, torch.Tensor):
        return value
    if value.is_nested:
        return ("nested", value.dtype, [tuple(part.shape) for part in value.unbind()])
    return (tuple(value.shape), value.dtype, value.stride())


def trained(device: str) -> Any:
    given = nested(device, requires_grad=True)
    norm, layer = nn.LayerNorm(8, device=device), nn.Linear(8, 4, device=device)
    out = torch.softmax(F.gelu(layer(norm(given))), -1)
    out.to_padded_tensor(0.0).sum().backward()
    return [out, layer.weight.grad, norm.weight.grad, given.grad]


def self_attention(device: str, **options: Any) -> Any:
    given = nested(device)
    module = nn.MultiheadAttention(8, 2, batch_first=True, device=device).eval()
    with torch.no_grad():
        return module(given, given, given, **options)


def layer(device: str) -> Any:
    made = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, device=device)
    return made.requires_grad_(requires_grad=False)


def weights(device: str) -> Any:
    return torch.nested.nested_tensor([torch.ones(8, 4), torch.ones(8, 4)], device=device)


CASES: dict[str, Callable[[str], Any]] = {
    "made": lambda d: [
        nested(d), nested(d, dtype=torch.float16),
        torch.nested.as_nested_tensor([torch.ones(3, 8, device=d), torch.ones(5, 8, device=d)]),
    ],
    "moved": lambda d: [nested("cpu").to(d), nested(d).to(torch.float16)],
    "padded": lambda d: [
        torch.nested.to_padded_tensor(nested(d), 0.0),
        nested(d).to_padded_tensor(1.0, output_size=(2, 7, 8)),
    ],
    "parts": lambda d: [*nested(d).unbind(), nested(d)[1]],
    "told": lambda d: [
        nested(d).size(0), nested(d).size(2), nested(d).dim(), nested(d).numel(),
        nested(d).is_nested, nested(d).layout is torch.strided, nested(d).is_contiguous(),
        nested(d).transpose(1, 2).is_contiguous(), nested(d).is_floating_point(),
    ],
    "pointwise": lambda d: [
        nested(d) * 2, nested(d) + nested(d), torch.relu(nested(d)), nested(d).half(),
        F.dropout(nested(d), 0.5), -nested(d), nested(d).detach().clone(),
    ],
    "linear": lambda d: nn.Linear(8, 4, device=d)(nested(d)),
    "cut": lambda d: [*nested(d).chunk(2, -1), *nested(d).split([2, 6], -1)],
    "a product with a plain batch": lambda d: torch.bmm(nested(d), torch.ones(2, 8, 4, device=d)),
    "products": lambda d: [nested(d) @ weights(d), torch.bmm(nested(d), weights(d))],
    "heads": lambda d: nested(d).reshape(2, -1, 2, 4).transpose(1, 2),
    "trained": trained,
    "attention": lambda d: [self_attention(d), self_attention(d, need_weights=False)],
    "layer": lambda d: layer(d).eval()(nested(d)),
    "encoder": lambda d: nn.TransformerEncoder(layer(d), 2).eval()(nested(d)),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
@pytest.mark.filterwarnings("ignore:enable_nested_tensor")
def test_they_give_what_the_cpu_gives(name: str) -> None:
    expected = meta(CASES[name]("cpu"))

    with neusight.forecast_on("H100") as forecast:
        found = meta(CASES[name]("cuda"))

    assert found == expected
    assert forecast.unmapped == []


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [(torch.float32, "efficient_attention"), (torch.bfloat16, "flash_attention")],
)
def test_attention_runs_packed_both_ways(dtype: torch.dtype, expected: str) -> None:
    with neusight.forecast_on("H100") as forecast:
        given = nested("cuda", width=16, dtype=dtype, requires_grad=True)
        heads = given.view(2, -1, 2, 8).transpose(1, 2)
        out = F.scaled_dot_product_attention(heads, heads, heads)
        assert [tuple(part.shape) for part in out.unbind()] == [(2, 3, 8), (2, 5, 8)]
        out.transpose(1, 2).reshape(2, -1, 16).to_padded_tensor(0.0).sum().backward()
        assert [tuple(part.shape) for part in given.grad.unbind()] == [(3, 16), (5, 16)]

    names = {kernel.name for kernel, _ in forecast.kernels}
    assert {expected, f"{expected}_backward"} <= names
    assert forecast.unmapped == []


def test_a_linear_is_one_product_of_all_rows() -> None:
    with neusight.forecast_on("H100") as forecast, torch.no_grad():
        nn.Linear(8, 4, device="cuda")(nested("cuda"))

    (product,) = [k for k, _ in forecast.kernels if k.kernel_class.value == "gemm"]
    assert product.flops == 2 * 8 * 8 * 4


def test_a_layer_computes_no_padding() -> None:
    """3 + 5 tokens of width 8: 24 and 8 columns of attention, 16 and 8 of the rest. Heads of 4 are
    too narrow for fused attention, whose scores and context are of two padded rows."""
    with neusight.forecast_on("H100") as forecast:
        layer("cuda").eval()(nested("cuda"))

    products = [k.flops for k, _ in forecast.kernels if k.kernel_class.value == "gemm"]
    joint, out, up, down = (2 * 8 * 8 * columns for columns in (24, 8, 16, 16))
    scores = 2 * (2 * 2) * 5 * 5 * 4
    assert products == [joint, scores, scores, out, up, down]


def test_training_attention_on_them_is_torchs_own_error() -> None:
    with neusight.forecast_on("H100"), pytest.raises(AssertionError, match="training is enabled"):
        nn.MultiheadAttention(8, 2, batch_first=True, device="cuda")(*[nested("cuda")] * 3)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda x: x.cumsum(1), r"cumsum at test_functions\.py:\d+ is not forecast for nested"),
        (lambda x: x @ x.transpose(1, 2), "scaled_dot_product_attention"),
        (lambda x: x.shape, "doesn't support sizes"),
        (lambda x: x.size(), "doesn't support sizes"),
        (lambda x: x.unflatten(-1, (2, 4)), "doesn't support sizes"),
        (lambda x: x.size(1), "irregular"),
        (lambda x: x.sum(-1, keepdim=True), "NestedTensorCUDA"),
        (lambda x: x.split(4, -1), "NestedTensorCUDA"),
        (lambda x: x @ torch.ones(8, 4, device="cuda"), "Expected both to be nested"),
        (lambda x: x + torch.ones(8, device="cuda"), "Expected both self and other to be nested"),
        (lambda x: x + torch.nested.as_nested_tensor([*x.unbind()][::-1]), "same sizes"),
        (lambda x: x.transpose(0, 1), "dimension 0 cannot be transposed"),
        (lambda x: x.view(2, 3, 8), "keeps its batch"),
        (lambda x: x.unbind(1), "along dimension 0, got 1"),
        (lambda x: x[0:1], "layout=torch.jagged takes slices"),
        (lambda x: x.transpose(1, 2).to_padded_tensor(0.0), "only supports contiguous"),
        (lambda x: F.scaled_dot_product_attention(x, x, x), "takes nested tensors of"),
        (lambda x: x.softmax(1), "not regular"),
        (lambda x: F.rms_norm(x, (8,)), "doesn't support sizes"),
        (lambda x: F.log_softmax(x, -1), "NestedTensorCUDA"),
    ],
)
def test_what_is_not_forecast_is_said(call: Callable[[Any], Any], words: str) -> None:
    with (
        neusight.forecast_on("H100"),
        pytest.raises((RuntimeError, NotImplementedError), match=words),
    ):
        call(nested("cuda"))


def test_parts_of_different_inner_sizes_are_refused() -> None:
    with neusight.forecast_on("H100"), pytest.raises(NotImplementedError, match="Pad them"):
        torch.nested.nested_tensor([torch.ones(3, 8), torch.ones(3, 9)], device="cuda")
