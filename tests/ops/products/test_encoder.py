"""The inference path of attention modules and encoder layers, worked out by hand."""

from __future__ import annotations

from typing import Any

import pytest

from neusight.memory.temporaries import temporaries_of
from neusight.recording.recording import OpSignature, TensorSpec
from op_calls import call, kernels, names, spec

BATCH, LENGTH, WIDTH, HEADS, HIDDEN = 4, 128, 256, 8, 1024
SIZE = BATCH * LENGTH * WIDTH
SCORES = BATCH * HEADS * LENGTH * LENGTH
UNFUSED = ["gemm", "transform_bias_rescale_qkv", "gemm", "softmax", "gemm", "copy", "gemm"]


def weights(dtype: str) -> dict[str, TensorSpec]:
    return {
        "qkv_weight": spec(3 * WIDTH, WIDTH, dtype=dtype),
        "proj_weight": spec(WIDTH, WIDTH, dtype=dtype),
    }


def attention(dtype: str = "float32", **more: Any) -> OpSignature:
    x = spec(BATCH, LENGTH, WIDTH, dtype=dtype)
    returned = (spec(BATCH, LENGTH, LENGTH, dtype=dtype),) if more.get("need_weights") else ()
    given = {"query": x, "num_head": HEADS, **weights(dtype), **more}
    return call("_native_multi_head_attention", x, *returned, **given)


def layer(dtype: str = "float32", **more: Any) -> OpSignature:
    x = spec(BATCH, LENGTH, WIDTH, dtype=dtype)
    up, down = spec(HIDDEN, WIDTH, dtype=dtype), spec(WIDTH, HIDDEN, dtype=dtype)
    given = {"src": x, "num_heads": HEADS, "ffn_weight_1": up, "ffn_weight_2": down}
    return call("_transformer_encoder_layer_fwd", x, **given, **weights(dtype), **more)


@pytest.mark.parametrize(
    ("dtype", "name"), [("float32", "efficient_attention"), ("bfloat16", "flash_attention")]
)
def test_attention_without_weights_is_fused_between_two_linears(dtype: str, name: str) -> None:
    assert names(attention(dtype, need_weights=False)) == ["gemm", name, "gemm"]


def test_weights_that_are_asked_for_are_written_out_and_averaged() -> None:
    found = kernels(attention(need_weights=True))

    assert [kernel.name for kernel in found] == [*UNFUSED, "sum", "div_"]
    assert found[2].flops == found[4].flops == 2 * SIZE * LENGTH
    assert found[3].bytes_written == 4 * SCORES
    assert found[7].bytes_written == 4 * SCORES // HEADS


def test_a_mask_keeps_attention_from_being_fused() -> None:
    mask = spec(BATCH, LENGTH, dtype="bool")

    assert names(attention(need_weights=False, mask=mask)) == [
        "masked_softmax" if name == "softmax" else name for name in UNFUSED
    ]


def test_long_rows_are_filled_before_their_softmax() -> None:
    x = spec(1, 2048, WIDTH)
    given = {"query": x, "num_head": HEADS, "need_weights": False, **weights("float32")}
    masked = call("_native_multi_head_attention", x, mask=spec(1, 2048, dtype="bool"), **given)

    assert names(masked)[3:5] == ["masked_fill", "softmax"]


def test_heads_of_a_width_that_is_no_multiple_of_eight_are_not_fused() -> None:
    x = spec(BATCH, LENGTH, WIDTH)
    given = {"query": x, "num_head": 64, "need_weights": False, **weights("float32")}

    assert names(call("_native_multi_head_attention", x, **given)) == UNFUSED


def test_a_layer_adds_two_norms_and_two_linears_whose_first_holds_the_activation() -> None:
    assert names(layer("bfloat16")) == [
        *("gemm", "flash_attention", "gemm"),
        *("add", "layer_norm", "gemm", "gemm", "add", "layer_norm"),
    ]


def test_sequences_of_a_nested_batch_attend_to_themselves_only() -> None:
    """60² + 80² scores are as many as those of two sequences of 71."""
    x = spec(1, 140, WIDTH, dtype="bfloat16")
    given = {"query": x, "num_head": HEADS, "need_weights": False, **weights("bfloat16")}
    packed = call("_native_multi_head_attention", x, lengths=(60, 80), **given)

    assert kernels(packed)[1].flops == 4 * 2 * HEADS * 71 * 71 * (WIDTH // HEADS)


def test_what_lies_between_is_held_at_the_peak() -> None:
    """Beside what is returned: of a layer its hidden tensor and one of its own size."""
    assert temporaries_of(attention(need_weights=False)) == (4 * 4 * SIZE,)
    assert temporaries_of(layer()) == (4 * (2 * SIZE + BATCH * LENGTH * HIDDEN - SIZE),)
    averaged = SCORES // HEADS
    peak = max(6 * SIZE, 3 * SIZE + 2 * SCORES, 5 * SIZE + SCORES + averaged)
    assert temporaries_of(attention(need_weights=True)) == (4 * (peak - SIZE - averaged),)
