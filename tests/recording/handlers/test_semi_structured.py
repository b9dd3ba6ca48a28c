"""Matrices that keep two of four elements multiply, are pruned and train as on a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.sparse import (
    SparseSemiStructuredTensor,
    SparseSemiStructuredTensorCUSPARSELT,
    SparseSemiStructuredTensorCUTLASS,
    to_sparse_semi_structured,
)

import neusight

#: torch warns once that the format is a prototype.
pytestmark = pytest.mark.filterwarnings("ignore:The PyTorch API of SparseSemiStructured")

BACKENDS = [SparseSemiStructuredTensorCUTLASS, SparseSemiStructuredTensorCUSPARSELT]


@pytest.fixture(autouse=True)
def _backend_stays() -> Iterator[None]:
    before = SparseSemiStructuredTensor._FORCE_CUTLASS
    yield
    SparseSemiStructuredTensor._FORCE_CUTLASS = before


def half_full(rows: int, columns: int, dtype: torch.dtype = torch.float16) -> torch.Tensor:
    return torch.tensor([0, 0, 1, 1]).tile((rows, columns // 4)).to(dtype).cuda()


@pytest.mark.parametrize("force_cutlass", [True, False])
def test_a_linear_with_a_sparse_weight_has_half_the_products(force_cutlass: bool) -> None:
    SparseSemiStructuredTensor._FORCE_CUTLASS = force_cutlass

    with neusight.forecast_on("H100") as forecast, torch.no_grad():
        layer = torch.nn.Linear(4096, 2048, device="cuda", dtype=torch.float16)
        layer.weight = torch.nn.Parameter(to_sparse_semi_structured(half_full(2048, 4096)))
        out = layer(torch.ones(1000, 4096, device="cuda", dtype=torch.float16))
        assert (out.shape, out.dtype) == ((1000, 2048), torch.float16)
        # Before 2.13 torch returns the product as CUTLASS lays it out.
        assert out.is_contiguous() or torch.__version__ < "2.13"

    (product,) = [kernel for kernel, _ in forecast.kernels if kernel.name == "sparse_gemm"]
    assert product.flops == 2 * 1000 * 2048 * 4096 // 2
    assert forecast.unmapped == []


def test_both_backends_take_about_as_long_and_less_than_dense() -> None:
    def time_of(make: Any) -> float:
        with neusight.forecast_on("H100") as forecast, torch.no_grad():
            weight = make(torch.ones(8192, 8192, device="cuda", dtype=torch.bfloat16))
            right = torch.ones(8192, 8192, device="cuda", dtype=torch.bfloat16)
            assert torch.mm(weight, right).shape == (8192, 8192)
        return sum(e.latency_us for k, e in forecast.kernels if "gemm" in k.name)

    dense = time_of(lambda matrix: matrix)
    times = [time_of(backend.from_dense) for backend in BACKENDS]

    assert times[0] == pytest.approx(times[1], rel=0.1)
    assert 0.4 * dense < min(times) < 0.9 * dense


@pytest.mark.parametrize("backend", BACKENDS)
def test_pruned_matrices_are_packed_both_ways(backend: Any) -> None:
    with neusight.forecast_on("H100") as forecast:
        pruned = backend.prune_dense_static_sort(
            torch.ones(256, 512, device="cuda", dtype=torch.bfloat16)
        )
        assert pruned.compressed_swizzled_bitmask.shape == (32, 64, 8)
        if backend is SparseSemiStructuredTensorCUTLASS:
            assert pruned.packed.shape == (256, 256)
            assert pruned.meta.shape == (256, 2, 16)
            assert pruned.packed_t.shape == (512, 128)
        else:
            assert pruned.packed.numel() == 256 * 512 * 9 // 16
        if torch.__version__ < "2.12":
            return  # its own check refuses metadata of CUTLASS packed both ways
        other = torch.ones(512, 64, device="cuda", dtype=torch.bfloat16)
        assert torch.mm(pruned, other).shape == (256, 64)
        assert torch.mm(pruned.t(), other[:256]).shape == (512, 64)

    assert forecast.unmapped == []


def test_sizes_that_cusparselt_refuses_are_refused() -> None:
    with neusight.forecast_on("H100"), pytest.raises(RuntimeError, match="multiples of 128"):
        SparseSemiStructuredTensorCUSPARSELT.prune_dense_static_sort(
            torch.ones(96, 64, device="cuda", dtype=torch.float16)
        )


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.int8])
def test_metadata_is_as_large_as_torchs_own_packing_makes_it(dtype: torch.dtype) -> None:
    from torch.sparse._semi_structured_conversions import (
        sparse_semi_structured_from_dense_cutlass,
    )

    dense = torch.tensor([0, 0, 1, 1]).tile((128, 64)).to(dtype)
    expected = [(t.shape, t.dtype) for t in sparse_semi_structured_from_dense_cutlass(dense)]

    with neusight.forecast_on("H100"):
        found = [(t.shape, t.dtype) for t in torch._to_sparse_semi_structured(dense.cuda())]

    assert found == expected


def test_masks_are_applied() -> None:
    with neusight.forecast_on("H100") as forecast:
        dense = torch.ones(64, 128, device="cuda", dtype=torch.float16)
        *_, mask = torch._sparse_semi_structured_tile(dense)
        packed = torch._sparse_semi_structured_apply(dense, mask)
        assert [tuple(part.shape) for part in packed] == [(64, 64), (128, 32)]
        assert torch._sparse_semi_structured_apply_dense(dense, mask).shape == (64, 128)

    assert forecast.unmapped == []


@pytest.mark.parametrize(
    ("columns", "dtype", "words"),
    [
        (64, torch.float32, "expected a matrix of float16 or bfloat16, but got torch.float32"),
        (40, torch.float16, "Number of cols should be multiple of 32"),
    ],
)
def test_what_has_no_tiles_is_refused(columns: int, dtype: torch.dtype, words: str) -> None:
    with neusight.forecast_on("H100"), pytest.raises(RuntimeError, match=words):
        torch._sparse_semi_structured_tile(torch.ones(64, columns, device="cuda", dtype=dtype))
