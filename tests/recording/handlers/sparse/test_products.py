"""Products with sparse matrices have the shapes and gradients that those of the CPU have."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from sparse_metas import coo, csr, on_both

import neusight

#: torch warns once of checks that are off, and that compressed layouts are in beta.
pytestmark = pytest.mark.filterwarnings("ignore:Sparse")


def ones(device: str, *shape: int) -> torch.Tensor:
    return torch.ones(shape, device=device)


def gradients(make: Callable[..., torch.Tensor]) -> Callable[[str], Any]:
    def run(device: str) -> Any:
        left, right = make(device, requires_grad=True), ones(device, 3, 4).requires_grad_()
        out = torch.sparse.mm(left, right)
        out.sum().backward()
        return [out, right.grad, left.grad]

    return run


def batch(device: str) -> Any:
    return torch.bmm(ones(device, 2, 3, 4).to_sparse(), ones(device, 2, 4, 5))


CASES: dict[str, Callable[[str], Any]] = {
    "of coordinates": lambda d: [coo(d) @ ones(d, 3, 4), torch.spmm(coo(d), ones(d, 3, 4))],
    "of rows": lambda d: [csr(d) @ ones(d, 3, 4), torch.mv(csr(d), ones(d, 3))],
    "added": lambda d: [
        torch.sparse.addmm(ones(d, 2, 4), coo(d), ones(d, 3, 4)),
        torch.addmm(ones(d, 2, 4), csr(d), ones(d, 3, 4)),
    ],
    "added in part": lambda d: [
        torch.sparse.addmm(ones(d, 2, 4), coo(d), ones(d, 3, 4), beta=0),
        torch.sparse.addmm(ones(d, 2, 4), coo(d), ones(d, 3, 4), beta=2, alpha=3),
        torch.addmv(ones(d, 2), csr(d), ones(d, 3)),
        torch.addmv(ones(d, 2), csr(d), ones(d, 3), beta=0),
    ],
    "by a vector from either side": lambda d: [
        torch.matmul(coo(d), ones(d, 3)), torch.matmul(coo(d), ones(d, 3, 4)),
    ],
    "of a vector": lambda d: [torch.mv(coo(d), ones(d, 3)), coo(d) @ ones(d, 3)],
    "transposed": lambda d: coo(d).t() @ ones(d, 2, 4),
    "in batches": batch,
    "of two": lambda d: [torch.sparse.mm(coo(d), coo(d).t()).coalesce()],
    "only some": lambda d: torch.sparse.sampled_addmm(csr(d), ones(d, 2, 4), ones(d, 4, 3)),
    "gradients of coordinates": gradients(coo),
    "gradients of rows": gradients(csr),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_they_give_what_the_cpu_gives(name: str) -> None:
    expected, found, _ = on_both(CASES[name])

    assert found == expected


def test_a_graph_network_is_priced_by_its_edges() -> None:
    def kernels_with(num_edges: int) -> list[Any]:
        edges = torch.randint(0, 1000, (2, num_edges))
        graph = torch.sparse_coo_tensor(edges, torch.ones(num_edges), (1000, 1000)).coalesce()
        with neusight.forecast_on("H100") as forecast:
            weight = torch.randn(64, 32, device="cuda", requires_grad=True)
            out = torch.sparse.mm(graph.to("cuda"), torch.randn(1000, 64, device="cuda") @ weight)
            out.relu().sum().backward()
        return [(k, e) for k, e in forecast.kernels if k.name == "spmm"]

    few, many = kernels_with(5000), kernels_with(400_000)

    assert len(few) == len(many) == 2  # forward, and the transposed graph backward
    assert many[0][0].flops > 40 * few[0][0].flops
    assert many[0][1].latency_us > few[0][1].latency_us


def test_what_cuda_has_no_kernel_for_is_refused_as_on_a_gpu() -> None:
    with neusight.forecast_on("H100"), pytest.raises(NotImplementedError, match="SparseCsrCUDA"):
        torch.sparse.mm(csr("cuda"), ones("cuda", 3, 4), "mean")


def test_shapes_that_do_not_fit_are_refused() -> None:
    with neusight.forecast_on("H100"), pytest.raises(RuntimeError, match="cannot be multiplied"):
        torch.mm(coo("cuda"), ones("cuda", 4, 4))


def test_a_product_of_unknown_patterns_is_that_of_random_ones() -> None:
    with neusight.forecast_on("H100") as forecast:
        edges = (torch.rand(2, 3000, device="cuda") * 1000).long()
        graph = torch.sparse_coo_tensor(edges, torch.ones(3000, device="cuda"), (1000, 1000))
        product = torch.sparse.mm(graph, graph)
        assert 8000 < product._nnz() < 9000  # 3000 * 3 products, few of which meet

    assert any("is that of random ones" in line for line in forecast.warnings)
