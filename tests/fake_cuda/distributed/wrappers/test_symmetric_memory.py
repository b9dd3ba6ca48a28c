"""Products in parts beside the exchange of their operands: torch's asynchronous tensor parallel."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory  # its ops
from ranks import join

import neusight
from neusight.predictors.kernel import PEER_COPY, GemmSize, KernelClass

RANKS, ROWS, WIDTH, SPLIT = 4, 2**17, 8192, 2048


def forecast(name: str) -> neusight.Forecast:
    with neusight.forecast_on("H100", world_size=RANKS) as found:
        join()
        assert dist.group.WORLD is not None
        group = dist.group.WORLD.group_name
        if name == "fused_all_gather_matmul":
            own = torch.randn(ROWS // RANKS, WIDTH, device="cuda", dtype=torch.bfloat16)
            weight = torch.randn(WIDTH, SPLIT, device="cuda", dtype=torch.bfloat16)
            _, [out] = torch.ops.symm_mem.fused_all_gather_matmul(own, [weight], 0, group)
            assert out.shape == (ROWS, SPLIT)
        else:
            x = torch.randn(ROWS, SPLIT, device="cuda", dtype=torch.bfloat16)
            weight = torch.randn(SPLIT, WIDTH, device="cuda", dtype=torch.bfloat16)
            out = torch.ops.symm_mem.fused_matmul_reduce_scatter(x, weight, "sum", 0, group)
            assert out.shape == (ROWS // RANKS, WIDTH)
    return found


@pytest.mark.parametrize("name", ["fused_all_gather_matmul", "fused_matmul_reduce_scatter"])
def test_each_rank_multiplies_its_part_and_copies_those_of_the_others(name: str) -> None:
    kernels = [span.kernel for span in forecast(name).timeline.kernels]

    products = [one.size for one in kernels if one.kernel_class is KernelClass.GEMM]
    assert [(size.m, size.n * size.k) for size in products if isinstance(size, GemmSize)] == [
        (ROWS // RANKS, WIDTH * SPLIT)
    ] * RANKS
    moved = Counter(one.bytes_written for one in kernels if one.name == PEER_COPY)
    assert moved == {ROWS // RANKS * WIDTH * 2: RANKS - 1}


def test_copies_lie_beside_products_on_two_streams() -> None:
    spans = forecast("fused_all_gather_matmul").timeline.kernels

    copies = [span for span in spans if span.kernel.name == PEER_COPY]
    products = [span for span in spans if span.kernel.kernel_class is KernelClass.GEMM]
    assert len({span.stream for span in copies}) == len({span.stream for span in products}) == 2
    assert any(
        copy.start_ns < product.end_ns and product.start_ns < copy.end_ns
        for copy in copies
        for product in products
        if copy.stream != product.stream
    )


def test_a_workspace_grows_and_lends_parts_of_each_ranks_memory() -> None:
    symmetric: Any = torch.distributed._symmetric_memory
    with neusight.forecast_on("H100", world_size=2, rank=1) as found:
        join()
        assert dist.group.WORLD is not None
        group = dist.group.WORLD.group_name
        sizes = [symmetric.get_symm_mem_workspace(group, size).num_bytes for size in (64, 16, 128)]
        workspace = symmetric.get_symm_mem_workspace(group, 128)
        own = workspace.get_buffer(1, (4, 2), torch.float16, storage_offset=8)
        shape, offset = tuple(own.shape), own.storage_offset()
        other = workspace.get_buffer(0, (4, 2), torch.float16)
        torch.empty(4, 2, dtype=torch.float16, device="cuda").copy_(other)
        workspace.barrier()

    assert sizes == [64, 64, 128]
    assert (shape, offset, other.numel()) == ((4, 2), 8, 8)
    copy, signal = [kernel for kernel, _ in found.kernels][-2:]
    assert (copy.name, copy.bytes_written) == (PEER_COPY, 4 * 2 * 2)
    assert (signal.name, signal.bytes_written) == ("fill", 4)
