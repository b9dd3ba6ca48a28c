"""Kernels of bitsandbytes."""

from __future__ import annotations

import pytest

from neusight.predictors.kernel import KernelClass
from op_calls import call, kernels, spec

PACKED, SCALES = spec(64 * 128 // 2, 1, dtype="uint8"), spec(64 * 128 // 64)


@pytest.mark.parametrize(
    ("name", "variant"), [("gemm_4bit", "packed_tiles"), ("gemv_4bit", "packed_rows")]
)
def test_few_rows_read_four_bits_of_each_weight(name: str, variant: str) -> None:
    """4 rows of 128 by a weight of 64 x 128, a scale for 64 elements."""
    rows, out = spec(4, 128, dtype="bfloat16"), spec(4, 64, dtype="bfloat16")
    given = {"A": rows, "B": PACKED, "shapeB": (64, 128), "absmax": SCALES, "blocksize": 64}

    [product] = kernels(call(f"bitsandbytes::{name}", out, **given))

    assert (product.flops, product.variant) == (2 * 4 * 128 * 64, variant)
    assert product.bytes_read == 4 * 128 * 2 + 64 * 128 // 2 + 128 * 4


@pytest.mark.parametrize(("rows", "blocksize"), [(1024, 64), (4, 96)])
def test_many_rows_or_odd_blocks_unpack_the_weight_first(rows: int, blocksize: int) -> None:
    given = {"A": spec(rows, 128, dtype="bfloat16"), "B": PACKED, "shapeB": (64, 128)}
    out = spec(rows, 64, dtype="bfloat16")

    unpack, product = kernels(
        call("bitsandbytes::gemm_4bit", out, **given, absmax=SCALES, blocksize=blocksize)
    )

    assert unpack.bytes_written == 64 * 128 * 2
    assert product.kernel_class is KernelClass.GEMM
    assert product.flops == 2 * rows * 128 * 64


def test_a_product_of_eight_bits_is_scaled_cast_and_given_its_bias() -> None:
    out = spec(2, 8, 64, dtype="bfloat16")
    given = {"A": spec(2, 8, 128, dtype="int8"), "B": spec(64, 128, dtype="int8")}
    stats = {"row_stats": spec(16), "col_stats": spec(64), "bias": spec(64, dtype="bfloat16")}

    product, scale, *rest = kernels(call("bitsandbytes::int8_scaled_mm", out, **given, **stats))

    assert (product.dtype, product.flops) == ("int8", 2 * 16 * 128 * 64)
    assert (scale.bytes_read, scale.bytes_written) == (16 * 64 * 4 + 80 * 4, 16 * 64 * 2)
    assert len(rest) == 2


def test_columns_left_in_full_precision_are_a_product_of_their_own() -> None:
    out = spec(16, 64, dtype="float16")
    given = {
        "A": spec(16, 128, dtype="float16"), "CA": spec(16, 128, dtype="int8"),
        "CB": spec(64, 128, dtype="int8"), "SCA": spec(16), "SCB": spec(64),
    }  # fmt: skip
    few = spec(3, dtype="int64")

    without = kernels(call("bitsandbytes::int8_mixed_scaled_mm", out, **given))
    found = kernels(call("bitsandbytes::int8_mixed_scaled_mm", out, **given, outlier_cols=few))

    assert found[: len(without)] == without
    assert found[-1].flops == 2 * 16 * 3 * 64


def test_an_optimizer_of_eight_bits_moves_a_byte_a_state() -> None:
    """8192 parameters: gradient and parameter of 4 bytes, two states of one, scales of 256."""
    states = {"state1": spec(8192, dtype="uint8"), "state2": spec(8192, dtype="uint8")}
    scales = {"absmax1": spec(32), "absmax2": spec(32)}
    given = {"g": spec(8192), "p": spec(8192), **states, **scales, "qmap1": spec(256)}

    [step] = kernels(call("bitsandbytes::optimizer_update_8bit_blockwise", **given))

    assert step.bytes_read == 8192 * (4 + 4 + 1 + 1) + 2 * 32 * 4
    assert step.bytes_written == 8192 * (4 + 1 + 1) + 2 * 32 * 4


def test_clipping_by_the_updates_norm_reads_before() -> None:
    given = {"g": spec(64), "p": spec(64), "state1": spec(64), "max_unorm": 1.0}

    norm, step = kernels(call("bitsandbytes::optimizer_update_32bit", **given))

    assert (norm.bytes_read, step.bytes_written) == (2 * 64 * 4, 2 * 64 * 4)


def test_quanto_unpacks_values_into_a_byte_each() -> None:
    [kernel] = kernels(call("quanto::unpack", spec(512, 64, dtype="uint8"),
                            self=spec(256, 64, dtype="uint8"), bits=4))  # fmt: skip

    assert (kernel.bytes_read, kernel.bytes_written) == (256 * 64, 512 * 64)
