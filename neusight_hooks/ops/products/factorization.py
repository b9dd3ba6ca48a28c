"""Factorizations and solves: cuSOLVER's and MAGMA's blocked algorithms, panel by panel."""

from __future__ import annotations

from collections.abc import Callable
from math import ceil, prod

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

#: Steps of an algorithm that each need the one before, for a column; elsewhere `_BLOCKED_STEPS`.
#: Each is a kernel in LAPACK's order of work. LU: the pivot's search. QR (geqr2): a reflector, then
#: its application. Symmetric eigenproblem (sytd2: reflector, symv, dot, axpy, syr2), and as many
#: for the tridiagonal one and the way back. SVD by cuSOLVER's gesvdj: a round of rotations for each
#: column (dots, columns, V) in some 8 sweeps. Eigenproblem: Hessenberg form, then as an SVD.
#: Priors: none was measured.
_STEPS = {
    "linalg_lu_factor_ex": 1.0,
    "linalg_lu": 1.0,
    "_linalg_solve_ex": 1.0,
    "_linalg_det": 1.0,
    "_linalg_slogdet": 1.0,
    "linalg_inv_ex": 1.0,
    "linalg_qr": 2.0,
    "geqrf": 2.0,
    "linalg_lstsq": 2.0,
    "_linalg_eigh": 10.0,
    "_linalg_svd": 24.0,
    "linalg_pinv": 24.0,
    "linalg_eig": 30.0,
    "linalg_eigvals": 30.0,
    "_linalg_eigvals": 30.0,
}
#: Diagonal block, solve and update for every 32 columns.
_BLOCKED_STEPS = 3 / 32

#: Algorithms that torch runs for one matrix after the other, and for which of a batch of m x n
#: (ATen/native/cuda/linalg: gesvdjBatched takes up to 32 columns; geqrf of cuBLAS is chosen up to
#: 256 rows in a batch of at least a 16th of them).
_IS_LOOPED: dict[str, Callable[[int, int, int], bool]] = {
    "_linalg_svd": lambda batch, m, n: n > 32,
    "linalg_qr": lambda batch, m, n: m > 256 or batch < max(2, m / 16),
    "geqrf": lambda batch, m, n: m > 256 or batch < max(2, m / 16),
    "linalg_eig": lambda batch, m, n: True,
    "linalg_eigvals": lambda batch, m, n: True,
    "_linalg_eigvals": lambda batch, m, n: True,
}


@register_op(*(f"aten::{name}" for name in _CHOLESKY_UNITS))
def factorize(call: OpSignature, math: MathMode) -> list[Kernel]:
    """A dense factorization or solve, roughly: panels on their own, then products for the rest."""
    matrix = max(
        (spec for spec in call.input_tensors if len(spec.shape) >= 2),
        key=lambda spec: spec.numel,
    )
    batch, n, height = prod(matrix.shape[:-2]), min(matrix.shape[-2:]), max(matrix.shape[-2:])
    name = call.op.removeprefix("aten::").rstrip("_")
    units, steps = _CHOLESKY_UNITS[name], _STEPS.get(name, _BLOCKED_STEPS)
    if batch * n == 0:
        return []
    if name in _IS_LOOPED and _IS_LOOPED[name](batch, height, n):
        steps *= batch
    panel = f"{kernel_name(call)}_panel"
    kernels: list[Kernel] = []
    for start in range(0, n, _PANEL):
        width = min(_PANEL, n - start)
        below = height - start
        num_steps = ceil(steps * width)
        kernels.append(_panel(panel, matrix.dtype, batch, width, below, units, num_steps))
        kernels += _trailing_products(matrix.dtype, batch, width, below, n - start, math) * units
    return kernels


def _panel(
    name: str, dtype: str, batch: int, width: int, height: int, units: int, steps: int
) -> Kernel:
    """A panel of columns that is factored in so many sequential steps."""
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
        num_steps=steps,
    )


def _trailing_products(
    dtype: str, batch: int, width: int, height: int, columns: int, math: MathMode
) -> list[Kernel]:
    """The update of the columns right of a panel, if there are any."""
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
