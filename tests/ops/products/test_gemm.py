"""Matrix products: their kernels, FLOPs and bytes worked by hand."""

from __future__ import annotations

import pytest
import torch

from neusight.predictors.kernel import GemmSize
from neusight.recording.recording import MathMode, TensorSpec
from op_calls import call, check_flops, kernels, names, spec, transposed


def test_layouts_follow_from_strides() -> None:
    def layout(left: TensorSpec, right: TensorSpec) -> str:
        (kernel,) = kernels(call("mm", spec(8, 4), self=left, mat2=right))
        return kernel.layout

    assert layout(spec(8, 2), spec(2, 4)) == "nn"
    assert layout(spec(8, 2), transposed(spec(4, 2))) == "nt"
    assert layout(transposed(spec(2, 8)), spec(2, 4)) == "tn"
    assert layout(transposed(spec(2, 8)), transposed(spec(4, 2))) == "tt"


def test_a_matrix_with_gaps_both_ways_is_copied_for_cublas() -> None:
    gaps = TensorSpec((8, 2), (8, 2), "float32")

    assert names(call("mm", spec(8, 4), self=gaps, mat2=spec(2, 4))) == ["copy", "gemm"]


def test_tf32_products_are_float32_where_the_program_allows_it() -> None:
    signature = call("mm", spec(8, 4), self=spec(8, 2), mat2=spec(2, 4))

    assert kernels(signature)[0].compute == "fp32"
    assert kernels(signature, MathMode(matmul_tf32=True))[0].compute == "tf32"


def test_an_expanded_batch_needs_no_copy() -> None:
    shared = TensorSpec((16, 2, 4), (0, 4, 1), "float32")

    (kernel,) = kernels(call("bmm", spec(16, 8, 4), self=spec(16, 8, 2), mat2=shared))

    assert kernel.flops == 2 * 16 * 8 * 4 * 2


def test_grouped_products_count_every_row_once() -> None:
    half = "bfloat16"
    signature = call(
        "_grouped_mm",
        spec(100, 32, dtype=half),
        self=spec(100, 64, dtype=half),
        mat2=spec(8, 64, 32, dtype=half),
        offs=spec(8, dtype="int32"),
        bias=None,
        out_dtype=None,
    )

    setup, gemm = kernels(signature)
    assert setup.name == "grouped_gemm_setup"
    assert gemm.flops == 2 * 100 * 64 * 32


def test_grouped_products_read_the_matrices_of_groups_that_get_rows() -> None:
    """3 rows of 8 groups, as a token's experts."""
    half = "bfloat16"
    token, weights = spec(3, 64, dtype=half), spec(8, 64, 32, dtype=half)
    signature = call("_grouped_mm", spec(3, 32, dtype=half), self=token, mat2=weights,
                     offs=spec(8, dtype="int32"), bias=None, out_dtype=None)  # fmt: skip

    _, gemm = kernels(signature)

    assert gemm.size == GemmSize(3, 1, 32, 64)
    assert gemm.bytes_read == token.num_bytes + weights.num_bytes * 3 // 8


def test_packed_four_bit_operands_count_two_elements_a_byte() -> None:
    signature = call(
        "_scaled_mm",
        spec(16, 32, dtype="bfloat16"),
        self=spec(16, 8, dtype="float4_e2m1fn_x2"),
        mat2=transposed(spec(32, 8, dtype="float4_e2m1fn_x2")),
        scale_a=spec(1),
        scale_b=spec(1),
        bias=None,
        out_dtype="bfloat16",
    )

    (kernel,) = kernels(signature)
    assert kernel.flops == 2 * 16 * 32 * 16
    assert kernel.bytes_read == 16 * 8 + 32 * 8 + 8
    assert kernel.compute == "fp8"


@pytest.mark.parametrize(
    ("rows", "release", "name"),
    [
        (1, (2, 11), "scaled_gemm"),
        (16, (2, 10), "scaled_gemm_by_row"),
        (16, (2, 11), "scaled_gemm_outer"),
    ],
)
def test_a_scale_a_row_is_another_librarys_product(
    rows: int, release: tuple[int, int], name: str
) -> None:
    signature = call(
        "_scaled_mm",
        spec(16, 32, dtype="bfloat16"),
        self=spec(16, 64, dtype="float8_e4m3fn"),
        mat2=transposed(spec(32, 64, dtype="float8_e4m3fn")),
        scale_a=spec(rows, 1),
        scale_b=spec(1, 1 if rows == 1 else 32),
        bias=None,
        out_dtype="bfloat16",
    )

    (kernel,) = kernels(signature, MathMode(torch=release))
    assert kernel.name == name


def test_flops_of_products_are_those_of_torch() -> None:
    def program() -> None:
        x, w, b = torch.empty(8, 16), torch.empty(16, 32), torch.empty(32)
        torch.mm(x, w)
        torch.addmm(b, x, w)
        torch.bmm(torch.empty(4, 8, 16), torch.empty(4, 16, 32))
        torch.baddbmm(torch.empty(4, 8, 32), torch.empty(4, 8, 16), torch.empty(4, 16, 32))

    check_flops(program, 4)


def test_a_sparse_product_counts_the_stored_half_whichever_side_and_with_a_bias() -> None:
    """64 x 128 by 128 x 32: of the sparse operand every other pair is stored, 64 of 128 columns,
    and 2 bits of metadata for each, here as 64 x 4 of int16 or 32 x 4."""
    half = "float16"
    product = call(
        "_sparse_semi_structured_mm",
        spec(64, 32, dtype=half),
        mat1=spec(64, 64, dtype=half),
        mat1_meta=spec(64, 4, dtype="int16"),
        mat2=spec(128, 32, dtype=half),
    )
    added = call(
        "_sparse_semi_structured_addmm",
        spec(64, 32, dtype=half),
        input_=spec(64, dtype=half),
        mat1=spec(64, 64, dtype=half),
        mat1_meta=spec(64, 4, dtype="int16"),
        mat2=spec(128, 32, dtype=half),
    )
    linear = call(
        "_sparse_semi_structured_linear",
        spec(64, 32, dtype=half),
        input_=spec(64, 128, dtype=half),
        weight=spec(32, 64, dtype=half),
        meta=spec(32, 4, dtype="int16"),
        bias=None,
    )

    (mm,), (addmm,), (layer,) = kernels(product), kernels(added), kernels(linear)
    assert mm.flops == addmm.flops == layer.flops == 2 * 64 * 32 * 64
    assert mm.bytes_read == 2 * (64 * 64 + 64 * 4 + 128 * 32)
    assert addmm.bytes_read == mm.bytes_read + 2 * 64
    assert layer.bytes_read == 2 * (64 * 128 + 32 * 64 + 32 * 4)
    assert mm.bytes_written == addmm.bytes_written == layer.bytes_written == 2 * 64 * 32


def test_without_beta_nothing_is_added() -> None:
    assert names(
        call("baddbmm", spec(4, 8, 4), self=spec(4, 8, 4), batch1=spec(4, 8, 2),
             batch2=spec(4, 2, 4), beta=0, alpha=1)
    ) == ["gemm"]  # fmt: skip


def test_complex_products_are_four_real_ones() -> None:
    left, right = spec(8, 2, dtype="complex64"), spec(2, 4, dtype="complex64")

    (kernel,) = kernels(call("mm", spec(8, 4, dtype="complex64"), self=left, mat2=right))

    assert kernel.flops == 4 * 2 * 8 * 4 * 2


def test_integers_of_four_bits_are_unpacked_for_sixteen_rows_at_once() -> None:
    """8 rows of 64 bf16 by 64 x 32 halves of bytes, packed in tiles, and 2 numbers a group."""
    half = "bfloat16"
    (kernel,) = kernels(
        call("_weight_int4pack_mm", spec(8, 32, dtype=half), self=spec(8, 64, dtype=half),
             mat2=spec(4, 1, 32, 2, dtype="int32"), qScaleAndZeros=spec(2, 32, 2, dtype=half))
    )  # fmt: skip

    assert (kernel.variant, kernel.out_dtype) == ("packed_16_rows", half)
    assert kernel.bytes_read == 8 * 64 * 2 + 64 * 32 // 2 + 2 * 32 * 2 * 2
    assert kernel.bytes_written == 8 * 32 * 2


def test_a_bilinear_layer_is_unrolled_over_its_outputs() -> None:
    """4 rows, 3 and 5 features in, 7 out: 7 slices of 4 x 3 x 5 floats."""
    launched = kernels(
        call("_trilinear", spec(4, 7), i1=spec(4, 3), i2=spec(7, 3, 5), i3=spec(4, 5),
             expand1=(1, 3), expand2=(0,), expand3=(1, 2), sumdim=(2, 3), unroll_dim=1)
    )  # fmt: skip

    assert [kernel.name for kernel in launched] == ["fill", *["mul", "mul", "sum", "add"] * 7]
    assert launched[1].bytes_written == launched[3].bytes_read == 4 * 60


def test_a_compressed_side_holds_half_the_columns_and_their_metadata() -> None:
    """64 x 128 halves by 128 x 32: 9/16 of the left side is stored, in one piece."""
    (kernel,) = kernels(
        call("_cslt_sparse_mm", spec(64, 32, dtype="float16"),
             compressed_A=spec(64 * 128 * 9 // 16, dtype="float16"),
             dense_B=spec(128, 32, dtype="float16"), bias=None, alpha=None)
    )  # fmt: skip

    assert kernel.flops == 2 * 64 * 32 * 64
    assert (kernel.bytes_read, kernel.bytes_written) == (2 * (4608 + 4096), 4096)
