"""Flex attention: compiled, what its mask keeps; eager, all scores."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from compiled_net import ops
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

import neusight
from neusight.fake_cuda.compiling.rules.flex_attention import visible_blocks

LENGTH, HEADS, HEAD_DIM = 512, 2, 32

#: FLOPs of all scores: two products.
ALL_FLOPS = 2 * 2 * HEADS * LENGTH**2 * HEAD_DIM


def attend(mask_of: Callable[..., Any], *, backward: bool = False) -> neusight.Forecast:
    """One call compiled, in blocks of 128 x 128."""
    with neusight.forecast_on("H100") as forecast:
        mask = create_block_mask(mask_of(), None, None, LENGTH, LENGTH, device="cuda")
        compiled: Any = torch.compile(flex_attention)
        shape = (1, HEADS, LENGTH, HEAD_DIM)
        q, k, v = (
            torch.randn(shape, device="cuda", dtype=torch.bfloat16, requires_grad=backward)
            for _ in range(3)
        )
        out = compiled(q, k, v, block_mask=mask)
        if backward:
            out.sum().backward()
    return forecast


def flops(forecast: neusight.Forecast) -> dict[str, int]:
    return {
        kernel.name: kernel.flops for kernel, _ in forecast.kernels if "triton_tem" in kernel.name
    }


def test_compiled_it_computes_the_blocks_that_its_mask_keeps() -> None:
    found = flops(attend(lambda: lambda b, h, q, k: q >= k, backward=True))

    assert found == {
        "triton_tem_fused_flex_attention_0": ALL_FLOPS * 10 // 16,
        "triton_tem_fused_flex_attention_backward_1": ALL_FLOPS * 10 // 16 * 5 // 2,
    }


@pytest.mark.parametrize("key", [126, 127])
def test_a_score_counts_for_its_block_only(key: int) -> None:
    def one(b: Any, h: Any, q: Any, k: Any) -> Any:
        return (q == 0) & (k == key)

    assert visible_blocks(one, (1, 1, 256, 256), (128, 128)) == (1, 4)


def test_a_mask_by_documents_is_known_where_their_values_are() -> None:
    def by_document() -> Any:
        document = torch.arange(4).repeat_interleave(LENGTH // 4).cuda()
        return lambda b, h, q, k: document[q] == document[k]

    forecast = attend(by_document)

    assert flops(forecast) == {"triton_tem_fused_flex_attention_0": ALL_FLOPS * 4 // 16}
    assert forecast.warnings == []


def test_a_mask_of_unknown_values_keeps_half_and_is_named() -> None:
    def by_score() -> Any:
        score = torch.randn(LENGTH, device="cuda")
        return lambda b, h, q, k: score[q] > score[k]

    forecast = attend(by_score)

    assert flops(forecast) == {"triton_tem_fused_flex_attention_0": ALL_FLOPS // 2}
    assert any("mask reads tensors" in line for line in forecast.warnings)


@pytest.mark.filterwarnings("ignore")
def test_eager_it_computes_all_scores() -> None:
    with neusight.forecast_on("H100") as forecast:
        q = torch.randn(1, HEADS, LENGTH, HEAD_DIM, device="cuda")
        flex_attention(q, q, q)

    assert ops(*forecast.recording.steps)["aten::bmm"] == 2
    assert forecast.peak_memory_bytes >= HEADS * LENGTH**2 * 4


def test_a_large_mask_is_sampled_in_each_block() -> None:
    def window(b: Any, h: Any, q: Any, k: Any) -> Any:
        return (q >= k) & (q - k < 4096)

    visible, blocks = visible_blocks(window, (1, 1, 2**14, 2**14), (128, 128))

    assert blocks == 128**2
    assert visible == sum(min(row + 1, 33) for row in range(128))


def test_scores_of_all_batches_and_heads_count_for_how_large_a_mask_is() -> None:
    """2^26 scores: of each block every second row is looked at, from the first on, and the last."""

    def second(b: torch.Tensor, h: torch.Tensor, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        return (q % 128 == 1) & (k >= 0) & (b >= 0) & (h >= 0)

    assert visible_blocks(second, (4, 4, 2**11, 2**11), (128, 128)) == (0, 16 * 16**2)


def test_of_a_large_mask_as_few_places_are_left_out_as_time_allows() -> None:
    """Of 2^26 scores every fourth: a place in the middle of each block is among them."""

    def middle(b: torch.Tensor, h: torch.Tensor, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        return (q % 128 == 64) & (k % 128 == 64) & (q >= k)

    assert visible_blocks(middle, (1, 1, 2**13, 2**13), (128, 128)) == (64 * 65 // 2, 64 * 64)
