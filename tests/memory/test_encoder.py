"""What attention modules and encoder layers hold for themselves, worked out by hand."""

from __future__ import annotations

from typing import Any

import pytest

from neusight.memory.encoder import encoder_temporaries
from op_calls import call, spec

WEIGHTS = {"qkv_weight": spec(48, 16), "proj_weight": spec(16, 16)}
PLAIN = {"need_weights": False}


@pytest.mark.parametrize(
    ("length", "returned", "given", "num_bytes"),
    [
        (12, 0, PLAIN, 5 * 768 - 768),  # fused
        # Written out, 6 tensors, 5 and the scores, or 3 and twice the scores:
        (4, 0, PLAIN | {"mask": spec(1, 4)}, 6 * 256 - 256),
        (12, 0, PLAIN | {"mask": spec(1, 12)}, 5 * 768 + 1152 - 768),
        (32, 0, PLAIN | {"mask": spec(1, 32)}, 3 * 2048 + 2 * 8192 - 2048),
        # With the scores, as their mean over two heads or whole:
        (12, 1, {"need_weights": True}, 5 * 768 + 1152 + 576 - 768 - 576),
        (12, 1, {}, 5 * 768 + 1152 + 576 - 768 - 576),
        (12, 2, {"average_attn_weights": False}, 5 * 768 + 1152 - 768 - 1152),
    ],
)
def test_attention_holds_projections_and_scores(
    length: int, returned: int, given: dict[str, Any], num_bytes: int
) -> None:
    """A sequence by 16 in two heads."""
    x = spec(1, length, 16)
    outputs = (x, spec(returned, length, length))

    signature = call(
        "_native_multi_head_attention", *outputs, query=x, num_head=2, **WEIGHTS, **given
    )

    assert encoder_temporaries(signature) == (num_bytes,)


@pytest.mark.parametrize(("hidden", "num_bytes"), [(8, 5 * 768), (64, 2 * 768 + 12 * 64 * 4)])
def test_a_layer_holds_its_attention_or_its_first_linear(hidden: int, num_bytes: int) -> None:
    x = spec(1, 12, 16)

    signature = call(
        "_transformer_encoder_layer_fwd", x,
        src=x, num_heads=2, ffn_weight_1=spec(hidden, 16), ffn_weight_2=spec(16, hidden), **WEIGHTS,
    )  # fmt: skip

    assert encoder_temporaries(signature) == (num_bytes - 768,)


def test_scores_of_a_nested_batch_are_padded_to_the_longest() -> None:
    x = spec(15, 16)

    signature = call(
        "_native_multi_head_attention", x, query=x, num_head=2, mask=spec(2, 12), lengths=(3, 12),
        **WEIGHTS, **PLAIN,
    )  # fmt: skip

    assert encoder_temporaries(signature) == (3 * 960 + 2 * 2304 - 960,)


def test_what_returns_all_that_it_holds_has_nothing_of_its_own() -> None:
    x = spec(1, 12, 16)

    signature = call(
        "_native_multi_head_attention", x, x, x, x, x, query=x, num_head=2, **WEIGHTS, **PLAIN
    )

    assert encoder_temporaries(signature) == ()
