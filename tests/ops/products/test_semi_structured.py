"""Products of matrices that keep two of four elements, worked out by hand."""

from __future__ import annotations

from neusight.ops import map_op
from neusight.predictors.kernel import Kernel
from neusight.recording.recording import Argument, MathMode, OpSignature, TensorSpec
from op_calls import spec


def half(*shape: int) -> TensorSpec:
    return spec(*shape, dtype="float16")


def kernels(op: str, result: TensorSpec, **arguments: Argument) -> list[Kernel]:
    mapped = map_op(OpSignature(op, "default", tuple(arguments.items()), (result,)), MathMode())
    assert mapped.is_mapped, mapped.reason
    return list(mapped.kernels)


def linear(tokens: int, backend: str, **more: Argument) -> list[Kernel]:
    return kernels(
        f"semi_structured::{backend}",
        half(tokens, 256),
        dense=half(tokens, 512),
        packed=half(256, 256),
        out_features=256,
        min_rows=32,
        min_cols=64,
        should_transpose_dense=True,
        **more,
    )


def test_cutlass_turns_its_result_in_a_copy() -> None:
    product, copy = linear(64, "cutlass_mm", meta=spec(256, 32, dtype="int16"))

    assert (product.name, product.flops) == ("sparse_gemm", 2 * 256 * 64 * 256)
    assert copy.bytes_written == 64 * 256 * 2


def test_cusparselt_turns_it_itself() -> None:
    (product,) = linear(64, "cusparselt_mm", fuse_transpose=True)

    assert product.bytes_written == 64 * 256 * 2


def test_few_tokens_are_padded_to_whole_tiles() -> None:
    pad, product, _ = linear(5, "cutlass_mm", meta=spec(256, 32, dtype="int16"))

    assert pad.bytes_written == 32 * 512 * 2
    assert product.flops == 2 * 256 * 32 * 256


def test_packing_goes_once_through_the_matrix() -> None:
    (kernel,) = kernels("aten::_cslt_compress", half(256, 288), input=half(256, 512))

    assert (kernel.bytes_read, kernel.bytes_written) == (256 * 512 * 2, 256 * 288 * 2)
