"""Pointwise ops and sums of sparse tensors give what those of the CPU give."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest
import torch
from sparse_metas import coo, csr, hybrid, meta, on_both

import neusight

#: torch warns once of checks that are off, and that compressed layouts are in beta.
pytestmark = pytest.mark.filterwarnings("ignore:Sparse")


def nothing(device: str) -> torch.Tensor:
    """Without elements, by a call that torch's stubs lack."""
    make: Any = torch.sparse_coo_tensor
    return cast(torch.Tensor, make(size=(2, 3), device=device))


def softmax_gradient(device: str) -> Any:
    given = coo(device).coalesce().requires_grad_()
    out = torch.sparse.log_softmax(given, 1)
    out.to_dense().sum().backward()
    return [out, given.grad]


def sum_gradient(device: str) -> Any:
    given = coo(device).coalesce().requires_grad_()
    out = torch.sparse.sum(given, 1)
    out.to_dense().sum().backward()
    return [out, given.grad]


CASES: dict[str, Callable[[str], Any]] = {
    "by a number": lambda d: [coo(d) * 2, coo(d) / 2, coo(d).pow(2), csr(d) * 2],
    "of each element": lambda d: [
        coo(d).abs(), torch.sqrt(coo(d)), torch.relu(coo(d)), csr(d).neg(), csr(d).sin(),
    ],
    "by a dense one": lambda d: coo(d).coalesce() * torch.ones(2, 3, device=d),
    "by a sparse one": lambda d: coo(d).coalesce() * coo(d).coalesce(),
    "of compressed ones": lambda d: [csr(d) + csr(d), csr(d) * csr(d)],
    "to a dense one": lambda d: torch.ones(2, 3, device=d) + coo(d),
    "masked": lambda d: torch.ones(2, 3, device=d).sparse_mask(coo(d).coalesce()),
    "sums": lambda d: [torch.sparse.sum(coo(d)), torch.sparse.sum(coo(d), 0), csr(d).sum()],
    "sums with dense parts": lambda d: [
        torch.sparse.sum(hybrid(d), (0, 1)), torch.sparse.sum(hybrid(d), 2),
        torch.sparse.sum(hybrid(d), (1, 2)), torch.sparse.sum(hybrid(d), (0, 1, 2)),
        torch.sparse.sum(hybrid(d), -1, dtype=torch.float64),
    ],
    "with nothing": lambda d: [
        coo(d) + nothing(d), nothing(d) + coo(d), torch.sub(nothing(d), coo(d), alpha=2),
    ],
    "norm": lambda d: [coo(d).norm(), torch.norm(coo(d), 2)],
    "zeros": lambda d: [torch.zeros_like(coo(d)), coo(d).zero_()],
    "softmax": softmax_gradient,
    "gradient of a sum": sum_gradient,
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_they_give_what_the_cpu_gives(name: str) -> None:
    expected, found, _ = on_both(CASES[name])

    assert found == expected


def test_sums_of_two_stay_one_behind_the_other_as_cuda_leaves_them() -> None:
    """On the CPU they are merged (add_out_sparse_cuda says why CUDA does not)."""
    with neusight.forecast_on("H100"):
        both = coo("cuda").coalesce() + coo("cuda").coalesce()
        assert (both._nnz(), both.is_coalesced()) == (6, False)
        assert both.coalesce()._nnz() == 3


def test_an_op_that_nobody_forecasts_names_itself_and_what_to_do() -> None:
    with neusight.forecast_on("H100"), pytest.raises(RuntimeError) as caught:
        coo("cuda").cumsum(0)

    assert "aten::cumsum at test_arithmetic.py" in str(caught.value)
    assert "to_dense()" in str(caught.value)


@pytest.mark.parametrize("optimizer", ["SGD", "SparseAdam", "Adagrad"])
def test_an_embedding_with_sparse_gradients_trains(optimizer: str) -> None:
    def train(device: str) -> Any:
        layer = torch.nn.Embedding(100, 8, sparse=True, device=device)
        steps = getattr(torch.optim, optimizer)(list(layer.parameters()), 0.1)
        ids = torch.tensor([[3, 7, 3], [7, 9, 3]], device=device)
        for _ in range(2):
            steps.zero_grad()
            layer(ids).sum().backward()
            steps.step()
        gradient: Any = layer.weight.grad
        return [gradient, gradient.coalesce()]

    expected, found, forecast = on_both(train)

    assert found == expected
    assert "sparse_add_to_dense" in {kernel.name for kernel, _ in forecast.kernels}


def test_bags_of_embeddings_have_sparse_gradients() -> None:
    def train(device: str) -> Any:
        layer = torch.nn.EmbeddingBag(100, 8, sparse=True, mode="sum").to(device)
        ids = torch.arange(20, device=device)
        layer(ids, torch.tensor([0, 5, 9], device=device)).sum().backward()
        return layer.weight.grad

    expected, found, _ = on_both(train)

    assert found == expected


def test_gradients_of_a_second_pass_are_added() -> None:
    with neusight.forecast_on("H100"):
        layer = torch.nn.Embedding(100, 8, sparse=True, device="cuda")
        for _ in range(2):
            layer(torch.arange(5, device="cuda")).sum().backward()
        gradient: Any = layer.weight.grad
        assert meta(gradient)[0] == (100, 8)
        assert gradient._nnz() == 10


def test_a_compressed_tensor_is_filled_where_it_has_values() -> None:
    with neusight.forecast_on("H100"):
        rows = torch.eye(4).to_sparse_csr().cuda()
        ones, twos = torch.ones_like(rows), torch.full_like(rows, 2.0, dtype=torch.bfloat16)

        assert (ones.layout, ones.values().shape) == (torch.sparse_csr, (4,))
        assert (twos.layout, twos.dtype) == (torch.sparse_csr, torch.bfloat16)
        with pytest.raises(RuntimeError, match=r"layout torch\.sparse_coo"):
            torch.ones_like(torch.eye(4).to_sparse().cuda())


def test_what_is_added_to_nothing_is_copied_and_multiplied_only_by_what_changes_it() -> None:
    def kernels(alpha: int) -> list[str]:
        with neusight.forecast_on("H100") as forecast:
            nothing = torch.sparse_coo_tensor(size=(2, 3), device="cuda")
            given = coo("cuda").coalesce()
            torch.add(nothing, given, alpha=alpha)
        return sorted(kernel.name for kernel, _ in forecast.kernels)

    assert kernels(2) == sorted([*kernels(1), "mul"])
