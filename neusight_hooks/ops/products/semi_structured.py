"""Products whose sparse side keeps two of four elements (2:4), and what packs such a side."""

from __future__ import annotations

from dataclasses import replace
from math import prod

from neusight.ops.operands import (
    ceil_div,
    copy_kernel,
    kernel_name,
    memory_kernel,
    num_bytes,
    output,
    read_tensors,
    written_tensors,
)
from neusight.ops.products.gemm import matrix
from neusight.ops.registry import register_op
from neusight.predictors.kernel import Kernel, KernelClass
from neusight.recording.recording import Argument, MathMode, OpSignature, TensorSpec


@register_op("aten::_sparse_semi_structured_linear")
def semi_structured_linear(
    call: OpSignature,
    *,
    input: TensorSpec,
    weight: TensorSpec,
    meta: TensorSpec,
    bias: TensorSpec | None = None,
) -> list[Kernel]:
    """A Linear with a 2:4 sparse weight."""
    return _sparse_product(weight, (input, weight, meta, bias), output(call))


@register_op("aten::_sparse_semi_structured_mm", "aten::_sparse_semi_structured_addmm")
def semi_structured_mm(
    call: OpSignature,
    *,
    input: TensorSpec | None = None,
    mat1: TensorSpec,
    mat1_meta: TensorSpec,
    mat2: TensorSpec,
) -> list[Kernel]:
    """A product whose left side is 2:4 sparse; `input` is a bias."""
    return _sparse_product(mat1, (input, mat1, mat1_meta, mat2), output(call))


@register_op("aten::_cslt_sparse_mm")
def cslt_sparse_mm(
    call: OpSignature,
    *,
    compressed_A: TensorSpec,
    dense_B: TensorSpec,
    bias: TensorSpec | None = None,
    alpha: TensorSpec | None = None,
) -> list[Kernel]:
    """A product by cuSPARSELt (cuda/cuSPARSELtOps.cpp); the compressed side is a flat buffer of
    values and metadata."""
    k, n = dense_B.shape
    result = output(call)
    stored = matrix(result.numel // max(1, n), k // 2, compressed_A)
    return _sparse_product(stored, (compressed_A, dense_B, bias, alpha), result)


@register_op("semi_structured::cutlass_mm", "semi_structured::cusparselt_mm")
def semi_structured_product(
    call: OpSignature,
    *,
    dense: TensorSpec,
    packed: TensorSpec,
    meta: TensorSpec | None = None,
    bias: TensorSpec | None = None,
    out_features: int,
    min_rows: int,
    min_cols: int,
    should_transpose_dense: bool = False,
    fuse_transpose: bool = False,
) -> list[Kernel]:
    """What torch.sparse.semi_structured makes of a product: the dense side padded to whole tiles,
    the product, and the result turned (or cut) in a copy, but where cuSPARSELt turns it itself."""
    rows, columns = (
        ceil_div(size, least) * least
        for size, least in zip(dense.shape, (min_rows, min_cols), strict=True)
    )
    padded = matrix(rows, columns, dense)
    result = output(call)
    inner, width = (columns, rows) if should_transpose_dense else (rows, columns)
    is_padded = padded.shape != dense.shape
    turns = should_transpose_dense and not fuse_transpose
    kernels = copy_kernel(dense, padded, "constant_pad_nd") if is_padded else []
    kernels += _sparse_product(
        matrix(out_features, inner // 2, packed),
        (packed, meta, padded, bias),
        matrix(out_features, width, result),
    )
    if turns:
        turned = result._replace(stride=(1, result.shape[0]))
        return kernels + copy_kernel(turned, result)
    return kernels + (copy_kernel(result, result) if is_padded else [])


def _sparse_product(
    sparse: TensorSpec, reads: tuple[TensorSpec | None, ...], result: TensorSpec
) -> list[Kernel]:
    """A product with a 2:4 sparse operand, priced as the dense product of its stored half."""
    m, n, k = prod(result.shape[:-1]), result.shape[-1], sparse.shape[-1]
    if m * n * k == 0:
        return []
    gemm = Kernel.gemm(m, n, k, dtype=sparse.dtype, layout="nt", name="sparse_gemm")
    return [replace(gemm, bytes_read=num_bytes(reads))]


@register_op(
    "aten::_convert_weight_to_int4pack",
    "aten::_cslt_compress",
    "aten::_to_sparse_semi_structured",
    "aten::_sparse_semi_structured_tile",
    "aten::_sparse_semi_structured_apply",
    "aten::_sparse_semi_structured_apply_dense",
)
def packed(call: OpSignature, math: MathMode, **others: Argument) -> list[Kernel]:
    """One pass over a matrix that prunes, packs or masks it."""
    reads, writes = read_tensors(call), written_tensors(call)
    return [
        memory_kernel(
            KernelClass.COPY,
            kernel_name(call),
            reads=reads,
            writes=writes,
            width=max(1, reads[0].numel),
        )
    ]
