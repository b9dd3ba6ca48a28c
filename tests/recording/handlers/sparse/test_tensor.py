"""A sparse tensor of a forecast claims to be what a GPU's is."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from sparse_metas import coo, csr

import neusight

#: torch warns once of checks that are off, and that compressed layouts are in beta.
pytestmark = pytest.mark.filterwarnings("ignore:Sparse")


def test_it_says_of_itself_what_a_gpus_tensor_says() -> None:
    with neusight.forecast_on("H100"):
        sparse, rows = coo("cuda"), csr("cuda")
        assert (sparse.is_sparse, sparse.is_cuda, sparse.device.type) == (True, True, "cuda")
        assert (rows.is_sparse_csr, rows.layout) == (True, torch.sparse_csr)
        assert "nnz=4" in repr(sparse)


def test_it_is_copied_and_saved(tmp_path: Path) -> None:
    with neusight.forecast_on("H100"):
        sparse = coo("cuda").coalesce()
        assert copy.deepcopy(sparse)._nnz() == 3
        torch.save({"graph": sparse}, tmp_path / "graph.pt")
        again = torch.load(tmp_path / "graph.pt")["graph"]
        assert again._nnz() == 3


def test_it_may_be_a_buffer_of_a_module() -> None:
    with neusight.forecast_on("H100"):
        layer = torch.nn.Linear(3, 3)
        layer.register_buffer("graph", coo("cpu"))
        layer = layer.cuda()
        graph = layer.get_buffer("graph")
        assert graph.is_cuda
        assert (graph @ layer.weight).shape == (2, 3)
