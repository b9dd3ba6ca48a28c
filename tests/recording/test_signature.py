"""An op call becomes plain values, on any device."""

from __future__ import annotations

import torch

import neusight
from neusight.recording.recording import TensorSpec
from neusight.recording.signature import math_mode, signature_of, spec_of


def test_a_signature_holds_every_argument_by_name_with_defaults() -> None:
    x = torch.ones(2, 3, dtype=torch.float16)
    out = torch.ones(2, 3)

    signature = signature_of(torch.ops.aten.add.Tensor, (x, 1.5), {}, out)

    assert (signature.op, signature.overload) == ("aten::add", "Tensor")
    assert signature.arguments == (
        ("self", TensorSpec((2, 3), (3, 1), "float16", "cpu")), ("other", 1.5), ("alpha", 1)
    )  # fmt: skip
    assert signature.outputs == (TensorSpec((2, 3), (3, 1), "float32", "cpu"),)


def test_an_argument_says_that_it_is_the_one_before_and_counts_no_bytes_again() -> None:
    x, grads = torch.ones(2, 3), [torch.ones(4), torch.ones(5)]
    addcmul = torch.ops.aten._foreach_addcmul_.Scalar

    square = signature_of(torch.ops.aten.mul.Tensor, (x, x), {}, x)
    other = signature_of(torch.ops.aten.mul.Tensor, (x, x.clone()), {}, x)
    moments = signature_of(addcmul, (list(grads), grads, list(grads), 0.1), {}, None)

    assert [spec.num_bytes for spec in square.input_tensors] == [24, 0]
    assert [spec.num_bytes for spec in other.input_tensors] == [24, 24]
    assert [spec.is_repeated for spec in moments.input_tensors] == [False, False, *[True] * 4]


def test_strides_are_those_of_the_tensor() -> None:
    with neusight.forecast_on("H100"):
        x = torch.empty(2, 3, 4, 5, device="cuda").to(memory_format=torch.channels_last)
        spec = spec_of(x)

    assert spec == TensorSpec((2, 3, 4, 5), (60, 1, 15, 3), "float32", "cuda")
    assert spec.is_channels_last


def test_the_switches_of_torch_are_those_of_now() -> None:
    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("high")
        with torch.backends.cudnn.flags(enabled=True, benchmark=True, allow_tf32=False):
            found = math_mode()
    finally:
        torch.set_float32_matmul_precision(before)

    assert (found.matmul_tf32, found.cudnn_benchmark, found.cudnn_tf32) == (True, True, False)
