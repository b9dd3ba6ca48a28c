"""Factorizations: panels and the products between them."""

from __future__ import annotations

import pytest
from priced_kernels import described

from neusight.ops.registry import formulas
from op_calls import call, kernels, spec
from places import require_golden


def test_a_matrix_of_one_panel_is_one_kernel() -> None:
    """Cholesky of 128 x 128 floats: 128^3 operations in a panel, read and written once."""
    x = spec(128, 128)

    (panel,) = kernels(call("linalg_cholesky_ex", x, spec(dtype="int32"), self=x))

    assert panel.name == "linalg_cholesky_ex_panel"
    assert (panel.flops, panel.bytes_read, panel.bytes_written) == (128**3, 65536, 65536)


@pytest.mark.parametrize(
    ("op", "units"),
    [
        ("linalg_lu_factor_ex", 2), ("linalg_inv_ex", 6), ("linalg_qr", 4), ("geqrf", 4),
        ("ormqr", 4), ("_linalg_eigh", 27), ("_linalg_svd", 60),
    ],
)  # fmt: skip
def test_others_take_as_many_times_its_operations_as_textbooks_count(op: str, units: int) -> None:
    x = spec(128, 128)

    assert sum(kernel.flops for kernel in kernels(call(op, x, A=x, self=x))) == units * 128**3


def test_what_is_right_of_a_panel_is_updated_by_products() -> None:
    """300 columns are panels of 128, 128 and 44; below and right of them 172 and 44 are left. LU
    passes twice as often as Cholesky."""
    x = spec(300, 300)

    launched = kernels(call("linalg_lu_factor_ex", x, spec(300, dtype="int32"), A=x))

    assert [kernel.size for kernel in launched if kernel.name == "gemm"] == [
        *[(1, 172, 172, 128)] * 2,
        *[(1, 44, 44, 128)] * 2,
    ]
    panels = [kernel for kernel in launched if kernel.name != "gemm"]
    assert [kernel.size for kernel in panels] == [(128, 300), (128, 172), (44, 44)]
    assert panels[1].flops == 2 * 128 * 128 * 172


def test_unpacking_writes_both_triangles_and_the_permutation() -> None:
    x = spec(8, 8)
    launched = kernels(call("lu_unpack", x, x, x, LU_data=x, LU_pivots=spec(8, dtype="int32")))

    assert [(kernel.name, kernel.bytes_written) for kernel in launched] == [("triu", 256)] * 3


def test_an_empty_matrix_launches_nothing() -> None:
    assert kernels(call("linalg_qr", spec(0, 0), spec(0, 0), A=spec(0, 0))) == ()


@pytest.mark.parametrize(
    ("op", "shape", "steps"),
    [
        ("linalg_cholesky_ex", (1, 512, 512), 48),  # three for each 32 columns
        ("linalg_lu_factor_ex", (1, 512, 512), 512),
        ("linalg_qr", (1, 512, 512), 1024),
        ("linalg_qr", (8, 512, 512), 8 * 1024),  # one matrix after the other
        ("linalg_qr", (64, 64, 64), 128),  # by cuBLAS, all at once
        ("_linalg_svd", (1024, 32, 32), 24 * 32),
        ("_linalg_svd", (64, 64, 64), 64 * 24 * 64),
    ],
)
def test_each_column_is_a_step_that_waits_for_the_one_before(
    op: str, shape: tuple[int, ...], steps: int
) -> None:
    x = spec(*shape)

    launched = kernels(call(op, x, x, A=x))

    assert sum(kernel.num_steps for kernel in launched) == steps


def test_factorizations_take_the_panels_of_the_golden_table() -> None:
    """By op and matrices; NEUSIGHT_UPDATE_GOLDEN=1 rewrites it."""
    lines = []
    names = [op for op, formula in formulas().items() if formula.__name__ == "factorize"]
    for op in names:
        for shape in ((3, 300, 200), (20, 256, 32), (1, 33, 33)):
            signature = call(op, spec(*shape), self=spec(*shape))
            lines += [f"{op} {shape}", *described(kernels(signature))]

    require_golden("factorizations.txt", lines)
