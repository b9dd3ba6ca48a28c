"""Sparse tensors on the GPU are made, moved and converted as those of the CPU are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from sparse_metas import bsr, coo, csr, hybrid, on_both

import neusight

#: torch warns once of checks that are off, and that compressed layouts are in beta.
pytestmark = pytest.mark.filterwarnings("ignore:Sparse")


#: torch's stubs know neither a size alone nor lists.
sparse_coo: Any = torch.sparse_coo_tensor


def eye(device: str) -> torch.Tensor:
    return torch.eye(4, device=device)


CASES: dict[str, Callable[[str], Any]] = {
    "given parts": lambda d: [coo(d), coo(d).shape, coo(d)._nnz(), coo(d).is_sparse],
    "coalesced": lambda d: [coo(d).coalesce(), coo(d).coalesce().indices().shape],
    "of size alone": lambda d: sparse_coo((2, 3), device=d),
    "size from indices": lambda d: sparse_coo([[0, 1], [2, 0]], [1.0, 2.0], device=d),
    "hybrid": lambda d: sparse_coo([[0, 1]], torch.ones(2, 4), (3, 4), device=d),
    "moved": lambda d: coo("cpu").to(d),
    "moved and coalesced": lambda d: coo("cpu").to(d).coalesce(),
    "to float64": lambda d: coo(d).double(),
    "copied": lambda d: [coo(d).clone(), coo(d).detach(), csr(d).clone()],
    "dense": lambda d: [coo(d).to_dense(), csr(d).to_dense()],
    "of dense": lambda d: [eye(d).to_sparse(), eye(d).to_sparse(1)],
    "compressed": lambda d: [csr(d), csr("cpu").to(d), csr(d).to_sparse(), csr(d).double()],
    "every layout": lambda d: [
        eye(d).to_sparse_csr(), eye(d).to_sparse_csc(),
        eye(d).to_sparse_bsr((2, 2)), eye(d).to_sparse_bsc((2, 2)),
    ],
    "and back": lambda d: [
        eye(d).to_sparse_csc().to_dense(), eye(d).to_sparse_bsr((2, 2)).to_dense(),
    ],
    "blocks": lambda d: [bsr(d), bsr(d).to_dense(), bsr(d).dense_dim()],
    "size from rows": lambda d: torch.sparse_csr_tensor(
        torch.tensor([0, 1, 3], device=d), torch.tensor([2, 0, 4], device=d),
        torch.ones(3, device=d),
    ),
    "size from columns": lambda d: torch.sparse_csc_tensor(
        torch.tensor([0, 1, 3], device=d), torch.tensor([2, 0, 4], device=d),
        torch.ones(3, device=d),
    ),
    "dimensions": lambda d: [
        [one.sparse_dim(), one.dense_dim(), one.dim()] for one in (coo(d), hybrid(d), csr(d))
    ],
    "blocks to coordinates": lambda d: [
        bsr(d).to_sparse(), bsr(d).to_sparse().is_coalesced(), bsr(d).to_sparse()._indices(),
        eye(d).to_sparse_bsc((2, 2)).to_sparse(), eye(d).to_sparse_bsr((1, 2)).to_sparse(),
        eye(d).to_sparse_bsr((1, 2)).to_sparse().is_coalesced(),
    ],
    "coordinates compressed": lambda d: [coo(d).to_sparse_csr(), coo(d).to_sparse_csc()],
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_they_have_the_parts_that_the_cpus_have(name: str) -> None:
    expected, found, _ = on_both(CASES[name])

    assert found == expected


def test_they_come_back_to_the_cpu_with_what_is_known() -> None:
    with neusight.forecast_on("H100"):
        back = coo("cuda").coalesce().cpu()

    assert back.indices().tolist() == coo("cpu").coalesce().indices().tolist()


def test_elements_of_an_unknown_dense_tensor_are_half_of_it_and_said() -> None:
    with neusight.forecast_on("H100") as forecast:
        sparse = torch.randn(100, 100, device="cuda").to_sparse()
        assert sparse._nnz() == 5000

    assert any("number of non-zeros is not known" in line for line in forecast.warnings)


def test_each_element_of_a_block_of_unknown_values_becomes_one() -> None:
    with neusight.forecast_on("H100"):
        blocks = torch.randn(100, 100, device="cuda").to_sparse_bsr((10, 5))
        values, elements = blocks.values(), blocks.to_sparse()

        assert elements._nnz() == values.numel()
        assert elements._indices().shape == (2, values.numel())


def test_parts_of_what_is_not_coalesced_are_refused_as_on_a_gpu() -> None:
    with neusight.forecast_on("H100"), pytest.raises(RuntimeError, match="uncoalesced tensor"):
        coo("cuda").indices()


def test_their_memory_is_that_of_their_parts() -> None:
    with neusight.forecast_on("H100") as forecast:
        indices = torch.zeros(2, 2**20, dtype=torch.int64).to("cuda")
        kept = torch.sparse_coo_tensor(indices, torch.ones(2**20).to("cuda"), (2**20, 2**20))
        del indices
        held = torch.cuda.memory_allocated()
        del kept

    assert held == 2**20 * (16 + 4)
    assert forecast.unmapped == []
