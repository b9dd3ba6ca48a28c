"""Fused attention, worked by hand."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils.flop_counter import flop_registry

from neusight.ops import kernels_of
from neusight.predictors.kernel import Kernel, KernelClass
from neusight.recording.recording import OpSignature
from op_calls import MATH, call, kernels, names, signature, spec


def attention(op: str, kv_heads: int = 8, **more: Any) -> OpSignature:
    """2 sequences of 128, 8 heads of 64, in bf16."""
    query = spec(2, 8, 128, 64, dtype="bfloat16")
    key = spec(2, kv_heads, 128, 64, dtype="bfloat16")
    return call(op, query, query=query, key=key, value=key, is_causal=True, **more)


def test_flash_attention_is_one_kernel() -> None:
    (kernel,) = kernels(attention("_scaled_dot_product_flash_attention"))

    assert kernel == Kernel.attention(2, 8, 8, 128, 128, 64, causal=True, dtype="bfloat16")


def test_flash_backward_prepares_and_converts_and_sums_grouped_heads() -> None:
    op = "_scaled_dot_product_flash_attention_backward"

    plain = ["attention_delta", "flash_attention_backward", "attention_convert_dq"]
    assert names(attention(op)) == plain
    assert names(attention(op, kv_heads=2)) == [*plain, "sum", "sum"]


def test_packed_sequences_are_taken_as_equally_long() -> None:
    packed = spec(256, 8, 64, dtype="bfloat16")
    signature = call(
        "_flash_attention_forward",
        packed,
        query=packed,
        key=packed,
        value=packed,
        cum_seq_q=spec(5, dtype="int32"),
        cum_seq_k=spec(5, dtype="int32"),
        max_q=100,
        max_k=100,
        is_causal=False,
    )

    (kernel,) = kernels(signature)
    assert kernel == Kernel.attention(4, 8, 8, 64, 64, 64, causal=False, dtype="bfloat16")


def test_a_bias_is_read_by_efficient_attention() -> None:
    op = "_scaled_dot_product_efficient_attention"
    bias = spec(1, 1, 128, 128, dtype="bfloat16")

    with_bias, without = kernels(attention(op, attn_bias=bias)), kernels(attention(op))

    assert with_bias[0].bytes_read - without[0].bytes_read == bias.num_bytes


@pytest.mark.parametrize("kind", ["flash", "efficient"])
def test_flops_of_attention_are_those_of_torch(kind: str) -> None:
    query = torch.empty(2, 4, 32, 16, device="meta", dtype=torch.bfloat16)
    key = torch.empty(2, 4, 48, 16, device="meta", dtype=torch.bfloat16)
    op = getattr(torch.ops.aten, f"_scaled_dot_product_{kind}_attention")
    backward = getattr(torch.ops.aten, f"_scaled_dot_product_{kind}_attention_backward")
    out = torch.empty_like(query)
    statistics = torch.empty(2, 4, 32, device="meta")
    if kind == "flash":
        forward_args: tuple[Any, ...] = (query, key, key)
        backward_args: tuple[Any, ...] = (
            out, query, key, key, out, statistics, None, None, 32, 48, 0.0, False,
        )  # fmt: skip
        grads = (query, key, key)
    else:
        forward_args = (query, key, key, None, True)
        mask = [True, True, True, False]
        backward_args = (out, query, key, key, None, out, statistics, None, None, 0.0, mask, False)
        grads = (query, key, key)

    for packet, args, result in ((op, forward_args, (out,)), (backward, backward_args, grads)):
        call = signature(packet.default, args, {}, result)
        (ours,) = [
            k.flops for k in kernels_of(call, MATH) if k.kernel_class is KernelClass.ATTENTION
        ]
        assert ours == flop_registry[packet](*args, out_val=result), call.op
