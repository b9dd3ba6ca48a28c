"""What the GPU does for sparse tensors, worked out by hand."""

from __future__ import annotations

import pytest

from neusight.ops import map_op
from neusight.predictors.gpu import find_gpu
from neusight.predictors.kernel import Kernel, RowsSize
from neusight.predictors.registry import find_predictor
from neusight.recording.recording import Argument, MathMode, OpSignature, TensorSpec
from op_calls import spec


def kernels_of(op: str, outputs: tuple[Argument, ...], **arguments: Argument) -> list[Kernel]:
    mapped = map_op(
        OpSignature(f"aten::{op}", "sparse", tuple(arguments.items()), outputs), MathMode()
    )
    assert mapped.is_mapped, mapped.reason
    return list(mapped.kernels)


def index(*shape: int) -> TensorSpec:
    return spec(*shape, dtype="int64")


def product(num_nonzeros: int, width: int = 32) -> list[Kernel]:
    return kernels_of(
        "mm",
        (spec(1000, width),),
        pointers=index(1001),
        plain=index(num_nonzeros),
        values=spec(num_nonzeros),
        dense=spec(500, width),
    )


def test_a_product_fetches_a_row_for_each_element() -> None:
    """8,000 elements by rows of 32 floats, of which there are 500."""
    (kernel,) = product(8000)

    assert (kernel.name, kernel.flops) == ("spmm", 2 * 8000 * 32)
    assert kernel.size == RowsSize(8000, 32)
    assert kernel.bytes_read == 1001 * 8 + 8000 * 8 + 8000 * 4 + 500 * 32 * 4
    assert kernel.bytes_read_again == (8000 - 500) * 32 * 4
    assert kernel.bytes_written == 1000 * 32 * 4


def test_more_elements_take_longer_and_never_less_than_the_roofline() -> None:
    gpu, predictor = find_gpu("H100"), find_predictor("tiled")
    counts = [10**3, 10**4, 10**5, 10**6, 10**7]

    estimates = predictor.predict([product(n)[0] for n in counts], gpu)

    times = [estimate.latency_us for estimate in estimates]
    assert times == sorted(times)
    for kernel, time in zip((product(n)[0] for n in counts), times, strict=True):
        assert time >= kernel.flops / gpu.peak_flops("fp32") * 1e6


def test_an_empty_matrix_fills_with_zeros() -> None:
    (kernel,) = product(0)

    assert kernel.bytes_written == 1000 * 32 * 4


PAIR = {"plain": index(4), "values": spec(4), "other_plain": index(6), "other_values": spec(6)}
COO = {"indices": index(2, 4), "values": spec(4)}
SDDMM = {"plain": index(5), "pointers": index(4), "mat1": spec(3, 8), "mat2": spec(8, 3)}
CASES: dict[str, tuple[tuple[Argument, ...], dict[str, Argument]]] = {
    "bmm": (
        (spec(2, 3, 5),),
        {"plain": index(3, 9), "values": spec(9), "dense": spec(2, 4, 5), "rows": 3},
    ),
    "_sparse_sparse_matmul": ((index(4), index(7), spec(7)), {**PAIR, "num_products": 8}),
    "sparse_sampled_addmm": ((spec(5),), {**SDDMM, "added": spec(5)}),
    "_convert_indices_from_coo_to_csr": ((index(4),), {"rows": index(9)}),
    "_convert_indices_from_csr_to_coo": (
        (index(2, 9),),
        {"pointers": index(4), "plain": index(9)},
    ),
    "_to_dense": ((spec(3, 3),), {"plain": index(2, 4), "values": spec(4)}),
    "_to_sparse": ((index(2, 4), spec(4)), {"self": spec(3, 3)}),
    "sparse_mask": ((spec(4),), {"self": spec(3, 3), "indices": index(2, 4)}),
    "_sparse_mask_projection": ((spec(4),), {**COO, "mask": index(2, 4)}),
    "mul": ((index(2, 3), spec(3)), {**COO, "other_indices": index(2, 6), "other_values": spec(6)}),
    "add": ((index(4), index(8), spec(8)), dict(PAIR)),
    "_sparse_softmax": ((spec(4),), dict(COO)),
    "_sparse_softmax_backward_data": ((spec(4),), {**COO, "grad": spec(4)}),
}


@pytest.mark.parametrize("op", CASES)
def test_every_op_launches_something_finite(op: str) -> None:
    outputs, arguments = CASES[op]

    kernels = kernels_of(op, outputs, **arguments)

    assert kernels
    estimates = find_predictor("tiled").predict(kernels, find_gpu("A100"))
    assert all(0 < estimate.latency_us < 1e4 for estimate in estimates)
