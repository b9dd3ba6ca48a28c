"""xFormers: attention with its biases and SwiGLU return, launch and keep what they should."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
from stub_calls import Case, assert_as_before, cuda

import neusight
from neusight.recording.recording import TensorSpec
from recorded_programs import calls, named


def ops() -> Any:
    return importlib.import_module("xformers.ops")


def attend(*shape: int, dtype: torch.dtype = torch.bfloat16, **options: Any) -> Callable[[], Any]:
    heads = [cuda(*shape, dtype=dtype) for _ in range(3)]
    return lambda: ops().memory_efficient_attention(*heads, **options)


def function(name: str, *args: Any) -> Callable[[], Any]:
    return lambda: getattr(ops(), name)(*args)


def swiglu() -> Callable[[], Any]:
    module = ops().SwiGLU(512, 1024).cuda().bfloat16()
    rows = cuda(128, 512)
    return lambda: module(rows)


CASES: dict[str, Case] = {
    "ops.memory_efficient_attention": lambda: attend(2, 256, 4, 64),
    "ops.memory_efficient_attention, causal": lambda: attend(
        2, 256, 4, 64, attn_bias=ops().LowerTriangularMask()
    ),
    "ops.memory_efficient_attention, float32": lambda: attend(2, 256, 4, 64, dtype=torch.float32),
    "ops.memory_efficient_attention, tensor bias": lambda: attend(
        2, 256, 4, 64, attn_bias=cuda(2, 4, 256, 256, grad=False)
    ),
    "ops.memory_efficient_attention, without heads": lambda: attend(8, 256, 64),
    "ops.memory_efficient_attention, groups of heads": lambda: attend(2, 256, 2, 4, 64),
    "ops.memory_efficient_attention, a bias of each batch and head": lambda: attend(
        2, 256, 4, 64, attn_bias=cuda(8, 256, 256, grad=False)
    ),
    "ops.memory_efficient_attention, blocks": lambda: attend(
        1, 512, 4, 64, attn_bias=ops().fmha.BlockDiagonalMask.from_seqlens([256, 256])
    ),
    "ops.memory_efficient_attention, causal blocks": lambda: attend(
        1,
        512,
        4,
        64,
        attn_bias=ops().fmha.BlockDiagonalMask.from_seqlens([256, 256]).make_causal(),
    ),
    "ops.memory_efficient_attention, causal and a tensor bias": lambda: attend(
        2, 256, 4, 64, attn_bias=ops().LowerTriangularMask().add_bias(cuda(2, 4, 256, 256))
    ),
    "ops.SwiGLU": swiglu,
    "ops.swiglu": lambda: function(
        "swiglu",
        *(cuda(128, 512), cuda(1024, 512), None, cuda(1024, 512), None, cuda(512, 1024), None),
    ),
    "ops.unbind": lambda: function("unbind", cuda(2, 3, 4), 1),
}


def test_each_function_is_as_in_the_table() -> None:
    assert_as_before("xformers", CASES)


def test_a_bias_and_a_scale_go_together() -> None:
    with neusight.forecast_on("H100"):
        heads = [cuda(2, 64, 4, 32) for _ in range(3)]
        bias = cuda(2, 4, 64, 64)

        attended = ops().memory_efficient_attention(*heads, attn_bias=bias, scale=0.3)
        attended.sum().backward()

        assert [tensor.grad.shape for tensor in (*heads, bias) if tensor.grad is not None] == [
            *[heads[0].shape] * 3,
            bias.shape,
        ]


@pytest.mark.parametrize(
    ("gpu", "width", "name"),
    [
        ("T4", 64, "efficient_attention"),
        ("A100", 256, "flash_attention"),
        ("A100", 264, "efficient_attention"),
    ],
)
def test_an_older_gpu_and_a_larger_head_take_its_own_kernels(
    gpu: str, width: int, name: str
) -> None:
    with neusight.forecast_on(gpu) as forecast:
        attend(2, 256, 4, width, dtype=torch.float16)()

    assert [kernel.name for kernel, _ in forecast.kernels][-1] == name


@pytest.mark.parametrize(
    ("name", "expected"),
    [("LowerTriangularMask", 1), ("LowerTriangularFromBottomRightMask", 2)],
)
def test_a_causal_mask_states_the_corner_it_begins_in(name: str, expected: int) -> None:
    """sdp::CustomMaskType."""

    def program() -> None:
        torch.ones(1, device="cuda")
        attend(2, 256, 4, 64, dtype=torch.float32, attn_bias=getattr(ops().fmha, name)())()

    (call,) = named(calls(program), "_efficient_attention_forward")
    assert call.signature.by_name["custom_mask_type"] == expected


def test_tensors_of_several_lengths_are_joined_and_split_again() -> None:
    with neusight.forecast_on("H100"):
        mask, joined = ops().fmha.BlockDiagonalMask.from_tensor_list([cuda(2, 3, 4), cuda(1, 5, 4)])
        first, second = mask.split(joined)

    assert (joined.shape, first.shape, second.shape) == ((1, 11, 4), (2, 3, 4), (1, 5, 4))


def test_sequences_begin_where_the_ones_before_end() -> None:
    with neusight.forecast_on("H100"):
        mask = ops().fmha.BlockDiagonalMask.from_seqlens([3, 5, 2], [4, 4, 4])
        pieces = mask.split(cuda(1, 10, 4))
        bounds = mask.q_seqinfo.bounds(torch.device("cpu")).tolist()
        shapes = [tuple(piece.shape) for piece in pieces]

    assert (bounds, mask.k_seqinfo.max_seqlen) == ([0, 3, 8, 10], 4)
    assert shapes == [(1, 3, 4), (1, 5, 4), (1, 2, 4)]


@pytest.mark.parametrize("shape", [(8, 256, 256), (2, 4, 256, 256)])
def test_a_bias_is_handed_over_by_batch_and_head(shape: tuple[int, ...]) -> None:
    def program() -> None:
        attend(2, 256, 4, 64, attn_bias=cuda(*shape, grad=False))()

    (call,) = named(calls(program), "_efficient_attention_forward")

    bias = call.signature.by_name["bias"]
    assert isinstance(bias, TensorSpec)
    assert bias.shape == (2, 4, 256, 256)


def test_a_bias_nobody_stands_in_for_is_named() -> None:
    with neusight.forecast_on("H100"):
        call = attend(1, 16, 1, 64, attn_bias=ops().AttentionBias())
        with pytest.raises(NotImplementedError, match="AttentionBias has no stub"):
            call()
