"""Sparse tensors are turned, joined and cut as those of the CPU are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from sparse_metas import coo, csr, hybrid, on_both

import neusight

#: torch warns once of checks that are off, and that compressed layouts are in beta.
pytestmark = pytest.mark.filterwarnings("ignore:Sparse")


CASES: dict[str, Callable[[str], Any]] = {
    "turned": lambda d: [coo(d).t(), coo(d).transpose(0, 1), csr(d).t(), coo(d).permute(1, 0)],
    "widened": lambda d: coo(d).unsqueeze(0),
    "as it was": lambda d: [coo(d).permute(0, 1), torch.ones(3, device=d).to_sparse().t()],
    "with dense parts": lambda d: [
        hybrid(d).unsqueeze(3),
        hybrid(d).unsqueeze(0),
        hybrid(d).unsqueeze(-2),
        hybrid(d).select(2, 1),
        hybrid(d).select(0, 1).coalesce(),
        hybrid(d).index_select(2, torch.tensor([3, 0, 1], device=d)),
        hybrid(d).permute(1, 0, 2),
    ],
    "of one dimension": lambda d: [
        torch.sparse_coo_tensor(
            torch.tensor([[0, 2]], device=d), torch.ones(2, device=d), (3,)
        ).coalesce()[2],
    ],
    "narrowed": lambda d: [coo(d).coalesce().narrow_copy(1, 1, 2).coalesce()],
    "joined thrice": lambda d: torch.cat([coo(d), coo(d), coo(d)], -1),
    "joined": lambda d: [torch.cat([coo(d), coo(d)]), torch.cat([coo(d), coo(d)], 1)],
    "stacked": lambda d: torch.stack([coo(d), coo(d)]),
    "one row": lambda d: coo(d).coalesce()[1],
    "some rows": lambda d: [
        coo(d).coalesce().index_select(0, torch.tensor([1], device=d)).coalesce(),
        coo(d).coalesce().index_select(0, torch.tensor([1, 0, 1], device=d)).coalesce(),
    ],
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_they_give_what_the_cpu_gives(name: str) -> None:
    expected, found, _ = on_both(CASES[name])

    assert found == expected


def test_rows_of_an_unknown_pattern_are_equally_full() -> None:
    with neusight.forecast_on("H100") as forecast:
        edges = (torch.rand(2, 3000, device="cuda") * 100).long()
        graph = torch.sparse_coo_tensor(edges, torch.ones(3000, device="cuda"), (100, 100))
        assert graph.index_select(0, torch.arange(10, device="cuda"))._nnz() == 300

    assert any("equally full" in line for line in forecast.warnings)
