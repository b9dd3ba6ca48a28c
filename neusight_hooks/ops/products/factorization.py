"""Factorizations and solves: cuSOLVER's and MAGMA's blocked algorithms, panel by panel."""

from __future__ import annotations

from math import prod

from neusight.ops.operands import (
    itemsize,
    kernel_name,
    pointwise_kernel,
    written_tensors,
)
from neusight.ops.products.gemm import compute_for_matmul
from neusight.ops.registry import register_op
from neusight.predictors.kernel import Kernel, KernelClass
from neusight.recording.recording import MathMode, OpSignature, TensorSpec

#: Width of a panel in the blocked factorizations of cuSOLVER and MAGMA (a typical block size).
_PANEL = 128

#: How often the whole matrix is passed through, by op, in units of a Cholesky factorization's
#: n^3/3 products (Golub and Van Loan, Matrix Computations, 4th ed.: LU 2n^3/3, QR 4n^3/3,
#: inverse 2n^3, symmetric eigenproblem about 9n^3, SVD and eigenproblem about 20n^3).
_CHOLESKY_UNITS = {
    "linalg_cholesky_ex": 1,
    "cholesky": 1,
    "_cholesky_solve_helper": 2,
    "cholesky_solve": 2,
    "cholesky_inverse": 2,
    "_linalg_solve_ex": 2,
    "linalg_solve_triangular": 1,
    "triangular_solve": 1,
    "linalg_lu_factor_ex": 2,
    "linalg_lu_solve": 2,
    "linalg_lu": 2,
    "linalg_ldl_factor_ex": 1,
    "linalg_ldl_solve": 2,
    "_linalg_det": 2,
    "_linalg_slogdet": 2,
    "linalg_inv_ex": 6,
    "linalg_qr": 4,
    "geqrf": 4,
    "ormqr": 4,
    "linalg_householder_product": 4,
    "linalg_lstsq": 6,
    "_linalg_eigh": 27,
    "_linalg_svd": 60,
    "linalg_eig": 60,
    "linalg_eigvals": 60,
    "_linalg_eigvals": 60,
    "linalg_pinv": 60,
    "linalg_matrix_exp": 42,
}


@register_op(*(f"aten::{name}" for name in _CHOLESKY_UNITS))
def factorize(call: OpSignature, math: MathMode) -> list[Kernel]:
    """A dense factorization or solve, roughly: panels on their own, then products for the rest."""
    matrix = max(
        (spec for spec in call.input_tensors if len(spec.shape) >= 2),
        key=lambda spec: spec.numel,
    )
    batch, n, height = prod(matrix.shape[:-2]), min(matrix.shape[-2:]), max(matrix.shape[-2:])
    units = _CHOLESKY_UNITS[call.op.removeprefix("aten::").rstrip("_")]
    if batch * n == 0:
        return []
    kernels: list[Kernel] = []
    for start in range(0, n, _PANEL):
        width = min(_PANEL, n - start)
        below = height - start
        kernels.append(
            _panel(f"{kernel_name(call)}_panel", matrix.dtype, batch, width, below, units)
        )
        kernels += _trailing_products(matrix.dtype, batch, width, below, n - start, math) * units
    return kernels


def _panel(name: str, dtype: str, batch: int, width: int, height: int, units: int) -> Kernel:
    """A panel of columns, factored on its own."""
    moved = batch * height * width * itemsize(dtype)
    return Kernel.rows(
        KernelClass.REDUCTION,
        name,
        batch * width,
        height,
        dtype=dtype,
        bytes_read=moved,
        bytes_written=moved,
        flops=units * batch * width * width * height,
    )


def _trailing_products(
    dtype: str, batch: int, width: int, height: int, columns: int, math: MathMode
) -> list[Kernel]:
    """The update of what is right of a panel, if there is anything."""
    if columns == width:
        return []
    return [
        Kernel.gemm(
            height - width,
            columns - width,
            width,
            batch=batch,
            dtype=dtype,
            compute=compute_for_matmul(dtype, math),
            layout="nt",
        )
    ]


@register_op("aten::lu_unpack")
def lu_unpack(call: OpSignature, *, LU_data: TensorSpec, LU_pivots: TensorSpec) -> list[Kernel]:
    """Two triangles and a permutation."""
    results = written_tensors(call)
    return [k for result in results for k in pointwise_kernel("triu", (LU_data,), (result,))]
