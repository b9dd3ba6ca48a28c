"""Numbers of non-zeros are exact where indices are known, else bounded and said."""

from __future__ import annotations

import pytest
import torch

import neusight
from neusight.recording.recording import Synchronize
from recorded_programs import entries_of

#: torch warns once of checks that are off, and that compressed layouts are in beta.
pytestmark = pytest.mark.filterwarnings("ignore:Sparse")


def test_coalescing_counts_what_is_known() -> None:
    edges = torch.randint(0, 50, (2, 4000))
    number = torch.unique(edges, dim=1).shape[1]

    with neusight.forecast_on("H100") as forecast:
        graph = torch.sparse_coo_tensor(edges, torch.ones(4000), (50, 50)).to("cuda").coalesce()
        assert graph._nnz() == number

    assert not any("non-zeros" in line for line in forecast.warnings)


def test_what_is_not_known_is_taken_to_stay_apart() -> None:
    with neusight.forecast_on("H100") as forecast:
        edges = (torch.rand(2, 4000, device="cuda") * 50).long()
        graph = torch.sparse_coo_tensor(edges, torch.ones(4000, device="cuda"), (50, 50))
        assert graph.coalesce()._nnz() == 4000

    assert any("coalescing is taken to merge none" in line for line in forecast.warnings)


def test_coalescing_waits_for_the_number() -> None:
    with neusight.forecast_on("H100") as forecast:
        edges = torch.tensor([[0, 0]], device="cuda")
        torch.sparse_coo_tensor(edges, torch.ones(2, device="cuda"), (3,)).coalesce()

    waits = [entry.reason for entry in entries_of(forecast, Synchronize)]
    assert waits[-1] == "coalesce"
