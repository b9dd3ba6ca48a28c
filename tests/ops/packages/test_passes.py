"""Kernels of packages that pass over their tensors once."""

from __future__ import annotations

from neusight.predictors.kernel import KernelClass
from op_calls import call, kernels, spec


def test_a_rotation_in_place_touches_only_what_it_rotates() -> None:
    """Heads of 64, of which 2 x 8 elements are rotated."""
    x, angles = spec(2, 128, 4, 64, dtype="bfloat16"), spec(128, 8, dtype="bfloat16")
    given = {"x": x, "cos": angles, "sin": angles}

    [whole] = kernels(call("flash_attn::rotary", x, **given))
    [part] = kernels(call("flash_attn::rotary_inplace", **given))

    assert whole.bytes_written == 2 * 128 * 4 * 64 * 2
    assert part.bytes_written == 2 * 128 * 4 * 16 * 2


def test_a_loss_reads_the_scores_and_writes_a_number_a_row() -> None:
    scores, labels = spec(64, 1000, dtype="bfloat16"), spec(64, dtype="int64")

    [kernel] = kernels(
        call("flash_attn::cross_entropy", spec(64), spec(64), logits=scores, labels=labels)
    )

    assert kernel.kernel_class is KernelClass.SOFTMAX
    assert (kernel.bytes_read, kernel.bytes_written) == (64 * 1000 * 2 + 64 * 8, 2 * 64 * 4)


def test_nothing_is_launched_for_nothing() -> None:
    empty = spec(0, 8)

    assert kernels(call("flash_attn::swiglu", empty, x=empty, y=empty)) == ()


def test_packing_to_four_bits_writes_a_quarter_and_a_scale_a_block() -> None:
    weight, packed = spec(256, 256, dtype="bfloat16"), spec(32768, 1, dtype="uint8")

    [kernel] = kernels(call("bitsandbytes::quantize_4bit", packed, spec(1024), A=weight))

    assert (kernel.bytes_read, kernel.bytes_written) == (65536 * 2, 32768 + 1024 * 4)
