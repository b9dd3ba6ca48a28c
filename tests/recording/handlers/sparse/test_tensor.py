"""A sparse tensor of a forecast claims to be what a GPU's is."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from sparse_metas import coo, csr, hybrid

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


def ones(*sizes: int) -> torch.Tensor:
    return torch.ones(*sizes, device="cuda")


#: What a GPU says of operands that do not go together (ATen/native/sparse/cuda, 2.13), or a
#: forecast of what it does not know.
REFUSED: dict[str, tuple[Callable[[], object], str]] = {
    "rows of columns": (
        lambda: csr("cuda").t().crow_indices(),
        "crow_indices expected sparse row compressed tensor layout but got SparseCsc",
    ),
    "rows of coordinates": (lambda: coo("cuda").col_indices(), "layout but got Sparse$"),
    "a sum with a dense tensor": (lambda: coo("cuda") + ones(2, 3), r"Use add\(dense, sparse\)"),
    "a sum of two sizes": (lambda: coo("cuda") + coo("cuda").t(), r"\(2, 3\) != \(3, 2\)"),
    "a division by a matrix": (lambda: coo("cuda") / ones(2, 3), "zero-dim dense tensor divisor"),
    "a copy of a dense tensor": (
        lambda: coo("cuda").copy_(ones(2, 3)), "Found self type = torch.cuda.sparse.FloatTensor",
    ),
    "a dense product": (lambda: ones(4, 2) @ coo("cuda"), "with a strided mat1 is not supported"),
    "a batch of dense ones": (
        lambda: torch.bmm(ones(1, 3, 2), coo("cuda").unsqueeze(0)), "mat2' must be dense",
    ),
    "two dtypes": (
        lambda: csr("cuda") @ ones(3, 2).double(), "got torch.float32 and torch.float64",
    ),
    "other sizes": (lambda: csr("cuda") @ ones(4, 2), r"cannot be multiplied \(2x3 and 4x2\)"),
    "a pattern of coordinates": (
        lambda: torch.sparse.sampled_addmm(coo("cuda"), ones(2, 4), ones(4, 3)),
        "Expected self to have sparse csr layout",
    ),
    "sparse with dense dimensions": (lambda: hybrid("cuda").transpose(0, 2), "not supported"),
    "joined along dense ones": (lambda: torch.cat([hybrid("cuda")] * 2, 2), "dense dimension"),
    "a dimension dropped": (lambda: coo("cuda").squeeze(0), "is not forecast for"),
    "blocks of coordinates": (lambda: coo("cuda").to_sparse_bsr((1, 1)), "is not forecast for"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_go_together_is_refused(name: str) -> None:
    run, words = REFUSED[name]

    with (
        neusight.forecast_on("H100"),
        pytest.raises((RuntimeError, NotImplementedError), match=words),
    ):
        run()
