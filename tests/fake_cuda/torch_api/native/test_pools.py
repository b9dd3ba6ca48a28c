"""Memory that a program asks of the allocator itself."""

from __future__ import annotations

import pytest
import torch

import neusight
from neusight.recording.recording import Alloc

MIB = 2**20


def test_raw_memory_counts_until_it_is_given_back() -> None:
    with neusight.forecast_on("H100"):
        before = torch.cuda.memory_allocated()
        address = torch.cuda.caching_allocator_alloc(3 * MIB)
        assert torch.cuda.memory_allocated() == before + 3 * MIB
        torch.cuda.caching_allocator_delete(address)
        assert torch.cuda.memory_allocated() == before


def test_what_is_made_in_a_pool_lies_in_segments_of_its_own() -> None:
    with neusight.forecast_on("H100") as forecast:
        pool = torch.cuda.MemPool()
        with torch.cuda.use_mem_pool(pool):
            inside = torch.ones(MIB, device="cuda")
        outside = torch.ones(MIB, device="cuda")
        assert pool.use_count() == 1
        del inside, outside

    pools = [
        entry.pool for s in forecast.recording.steps for entry in s.entries
        if isinstance(entry, Alloc)
    ]  # fmt: skip
    assert pools == [pool.id[1], 0]


@pytest.mark.skipif(not hasattr(torch.accelerator, "empty_host_cache"), reason="torch before 2.12")
def test_pinned_memory_is_counted_as_its_allocator_does() -> None:
    with neusight.forecast_on("H100"):
        torch.ones(8, device="cuda")
        first = torch.empty(300, pin_memory=True)
        found = torch.cuda.host_memory_stats()
        assert found["active_bytes.current"] == 2048  # the next power of two
        del first
        second = torch.empty(300).pin_memory()
        found = torch.cuda.host_memory_stats()
        assert (found["allocations.allocated"], found["active_requests.allocated"]) == (1, 2)
        del second
        torch.accelerator.empty_host_cache()
        assert torch.cuda.host_memory_stats()["allocated_bytes.current"] == 0


@pytest.mark.skipif(
    not hasattr(torch.backends.cuda, "cublas_workspace_size"), reason="torch before 2.12"
)
def test_a_workspace_of_another_size_takes_that_memory() -> None:
    peaks = []
    for size in (None, 1 * MIB):
        with neusight.forecast_on("H100") as forecast:
            x = torch.ones(64, 64, device="cuda")
            if size:
                assert torch.backends.cuda.cublas_workspace_size(size) == size
            else:
                assert torch.backends.cuda.cublas_workspace_size() == 32 * MIB
            x @ x
        peaks.append(forecast.peak_memory_bytes)

    assert peaks[0] - peaks[1] == 31 * MIB
