"""Fused attention, worked by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import flop_registry

from neusight.ops import kernels_of
from neusight.predictors.kernel import Kernel, KernelClass
from neusight.recording.recording import Argument, MathMode, OpSignature, TensorSpec
from op_calls import MATH, call, kernels, names, signature, spec


def attention(op: str, kv_heads: int = 8, **more: Any) -> OpSignature:
    """2 sequences of 128, 8 heads of 64, in bf16."""
    query = spec(2, 8, 128, 64, dtype="bfloat16")
    key = spec(2, kv_heads, 128, 64, dtype="bfloat16")
    return call(op, query, query=query, key=key, value=key, is_causal=True, **more)


def test_flash_attention_is_one_kernel() -> None:
    (kernel,) = kernels(attention("_scaled_dot_product_flash_attention"))

    expected = Kernel.attention(2, 8, 8, 128, 128, 64, causal=True, dtype="bfloat16")
    assert kernel == replace(expected, layout="contiguous")


def test_before_torch_2_11_flash_ran_where_today_cudnn_does() -> None:
    forward, backward = "_scaled_dot_product_cudnn_attention", "_cudnn_attention_backward"
    bias = spec(2, 8, 128, 128, dtype="bfloat16")
    older, newer = replace(MATH, torch=(2, 10)), replace(MATH, torch=(2, 11))

    def variants(signature: OpSignature, math: MathMode) -> set[str]:
        return {str(kernel.variant) for kernel in kernels(signature, math)} - {""}

    for op in (forward, backward):
        assert variants(attention(op), older) == {"flash_attention"}
        assert variants(attention(op), newer) == {"cudnn_attention"}
        assert variants(attention(op, attn_bias=bias), older) == {"efficient_attention"}


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


def test_attention_counts_scores_and_values_and_a_causal_one_those_up_to_the_diagonal() -> None:
    """2 x 8 heads, 128 queries by 128 keys, 64 wide: two products of 2 operations each; the
    gradient has five products. Of 128 x 128 scores 128 x 129 / 2 are on or below the diagonal."""
    query = spec(2, 8, 128, 64, dtype="bfloat16")
    op = "_scaled_dot_product_flash_attention"
    plain = call(op, query, query=query, key=query, value=query, is_causal=False)

    (forward,) = kernels(plain)
    (causal,) = kernels(attention(op))
    backward = kernels(attention(f"{op}_backward"))[1]

    assert forward.flops == 2 * 2 * 16 * 64 * 128 * 128
    assert causal.flops == 2 * 2 * 16 * 64 * 128 * 129 // 2
    assert backward.flops == 5 * 2 * 16 * 64 * 128 * 129 // 2


def test_the_efficient_kernel_adds_up_nothing_but_a_wanted_bias_gradient() -> None:
    op = "_scaled_dot_product_efficient_attention_backward"
    bias = spec(1, 1, 128, 128, dtype="bfloat16")
    plain = ["attention_delta", "efficient_attention_backward"]

    def launched(*mask: bool) -> list[str]:
        return names(attention(op, attn_bias=bias, grad_input_mask=mask))

    assert launched(True, True, True, False) == plain
    assert launched(True, True, True, True) == [*plain, "sum"]


def test_arguments_are_taken_by_name_whatever_their_order() -> None:
    """torch 2.13 has cuDNN's bias first where the op is called by its own name."""
    query, key = spec(2, 8, 128, 64, dtype="float16"), spec(2, 8, 256, 64, dtype="float16")
    turned = call(
        "_scaled_dot_product_cudnn_attention", query, is_causal=False, value=key, key=key,
        attn_bias=None, query=query,
    )  # fmt: skip

    (kernel,) = kernels(turned)
    assert kernel == Kernel.attention(
        2, 8, 8, 128, 256, 64, causal=False, dtype="float16", name="cudnn_attention"
    )


def test_no_queries_launch_nothing() -> None:
    empty, key = spec(2, 8, 0, 64), spec(2, 8, 128, 64)

    assert (
        kernels(call("_scaled_dot_product_flash_attention", empty, query=empty, key=key, value=key))
        == ()
    )


def flex_kernel(attention: tuple[int, ...], **tensors: TensorSpec) -> Kernel:
    sizes: dict[str, Argument] = {"numels": (1,), "bytes_read": 1, "bytes_written": 1}
    arguments = {**tensors, **sizes, "kind": "template", "attention": attention}
    [kernel] = kernels(
        OpSignature(
            "inductor::triton_tem_fused_flex_attention_1", "default", tuple(arguments.items()), ()
        )
    )
    return kernel


def test_flex_attention_has_the_type_of_its_queries_where_the_sums_of_its_parts_are_larger() -> (
    None
):
    q = spec(1, 1, 32, 128, dtype="bfloat16")
    sums = spec(1, 26, 32, 1, 128, dtype="float32")

    step = flex_kernel((1, 32, 8, 1, 16, 128, 128, 1, 1, 0), arg_Q=q, out_ptr0=sums)

    assert (step.dtype, step.compute) == ("bfloat16", "bf16")
    assert step.bytes_read == q.num_bytes + 2 * 16 * 8 * 128 * 2


def test_flex_attention_computes_what_its_mask_keeps() -> None:
    """Half of 1024 keys for each of 256 queries: K and V are read whole all the same."""
    q = spec(1, 2, 256, 64, dtype="bfloat16")

    backward = flex_kernel((1, 2, 2, 256, 1024, 64, 64, 8, 16, 1), arg_Q=q)

    keys_and_values = 2 * 2 * 1024 * 64 * 2

    assert backward.name == "triton_tem_fused_flex_attention_1"
    assert backward.flops == 5 * 2 * 2 * 256 * 512 * 64
    assert backward.bytes_written == q.num_bytes + keys_and_values


@pytest.mark.parametrize(
    ("queries", "window", "is_causal", "keys"),
    [
        pytest.param(1024, (127, 0), True, 128, id="the last 128"),
        pytest.param(1024, (127, 64), True, 128, id="none after a query"),
        pytest.param(1024, (127, None), True, 128, id="right side not given"),
        pytest.param(1024, (1023, 0), True, None, id="as long as the triangle is wide"),
        pytest.param(1024, (64, 63), False, 128, id="both sides"),
        pytest.param(1024, (127, 0), False, 128, id="left alone"),
        pytest.param(1024, (-1, 0), False, 513, id="all on the left: a triangle"),
        pytest.param(1024, (0, -1), False, 513, id="all on the right"),
        pytest.param(1024, (-1, -1), False, None, id="all"),
        pytest.param(1024, (1023, 1023), False, None, id="wider than the keys"),
        pytest.param(1, (127, -1), False, 128, id="of the last key"),
        pytest.param(4096, (-1, 0), False, 1, id="most queries before the first key"),
    ],
)
def test_a_window_is_priced_as_so_many_keys_for_every_query(
    queries: int, window: tuple[int | None, int | None], is_causal: bool, keys: int | None
) -> None:
    """Of 1024 keys; where the window hides none, nothing changes."""
    query, cache = (spec(1, length, 2, 64, dtype="bfloat16") for length in (queries, 1024))
    given = {"query": query, "key": cache, "value": cache, "is_causal": is_causal}
    left, right = window
    sides = {"window_size_left": left, "window_size_right": right}

    [whole] = kernels(call("_flash_attention_forward", query, **given))
    [within] = kernels(call("_flash_attention_forward", query, **given, **sides))

    if keys is None:
        assert within == whole
    else:
        assert within.flops == 4 * 64 * 2 * queries * keys


def test_a_step_of_decoding_reads_the_keys_that_are_there() -> None:
    cache = spec(2, 4096, 1, 64, dtype="bfloat16")
    query = spec(2, 1, 4, 64, dtype="bfloat16")

    [kernel] = kernels(
        call(
            "flash_attn::with_kvcache",
            query=query,
            key_cache=cache,
            value_cache=cache,
            length=1024,
            is_causal=True,
            window_size_left=-1,
            window_size_right=-1,
        )
    )

    assert kernel.flops == 4 * 64 * 2 * 4 * 1024
    assert kernel.variant == "flash_attention"
