"""Pinned memory is ordinary memory that is remembered as pinned."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import neusight
from neusight.recording.recording import OpCall
from recorded_programs import entries_of


def test_copies_know_whether_their_source_is_pinned() -> None:
    with neusight.forecast_on("H100") as forecast:
        plain = torch.ones(8)
        pinned = plain.pin_memory()
        plain.to("cuda")
        pinned.to("cuda", non_blocking=True)
        torch.empty(8, device="cuda").copy_(pinned)

    calls = [entry.signature for entry in entries_of(forecast, OpCall)]
    sources = [spec for call in calls for spec in call.input_tensors if spec.device == "cpu"]
    assert [spec.is_pinned for spec in sources] == [False, True, True]


def test_tensors_made_pinned_are_ordinary_memory_that_is_remembered() -> None:
    with neusight.forecast_on("H100"):
        made = [
            torch.empty(8, pin_memory=True),
            torch.zeros(2, 3, pin_memory=True),
            torch.empty_like(torch.ones(4), pin_memory=True),
            torch.tensor([1.0, 2.0], pin_memory=True, requires_grad=True),
            torch.tensor(3, dtype=torch.float16, pin_memory=True),
        ]
        pinned = [tensor.is_pinned() for tensor in made]
        plain = torch.empty(8).is_pinned()
        made[0].to("cuda")
        there = torch.tensor([1.0], device="cuda", pin_memory=True)
        with pytest.raises(RuntimeError, match="Can't pin tensor constructed from numpy"):
            torch.tensor(np.ones(2), pin_memory=True)

    assert (pinned, plain) == ([True] * 5, False)
    assert made[1].tolist() == [[0.0] * 3] * 2
    assert (made[3].tolist(), made[3].requires_grad) == ([1.0, 2.0], True)
    assert (made[4].item(), made[4].dtype) == (3.0, torch.float16)
    assert (there.device.type, there.is_pinned()) == ("cuda", False)


def test_inference_mode_pins_too() -> None:
    data = torch.ones(4, 3)
    with neusight.forecast_on("H100"), torch.inference_mode():
        pinned = data.pin_memory()
        assert (pinned.is_pinned(), data.is_pinned()) == (True, False)
        assert pinned.pin_memory() is pinned
        batches = list(DataLoader(TensorDataset(data), 2, pin_memory=True))
        assert [batch.is_pinned() for (batch,) in batches] == [True, True]
        with pytest.raises(RuntimeError, match="only dense CPU tensors can be pinned"):
            data.cuda().pin_memory()


def test_blocks_of_pinned_memory_are_counted_by_powers_of_two_and_kept() -> None:
    def counts() -> list[tuple[int, ...]]:
        found: Any = torch.cuda.host_memory_stats_as_nested_dict()
        return [
            tuple(found[name][which] for which in ("current", "peak", "allocated", "freed"))
            for name in ("allocations", "allocated_bytes", "active_requests", "active_bytes")
        ]

    with neusight.forecast_on("H100"):
        torch.ones(1, device="cuda")
        first, second = (torch.ones(size, dtype=torch.uint8).pin_memory() for size in (1000, 1025))
        assert counts() == [(2, 2, 2, 0), (3072, 3072, 3072, 0)] * 2
        del second
        assert counts()[2:] == [(1, 2, 2, 1), (1024, 3072, 3072, 2048)]
        third = torch.ones(2048, dtype=torch.uint8).pin_memory()  # the block that is kept
        assert counts()[:2] == [(2, 2, 2, 0), (3072, 3072, 3072, 0)]
        del first, third
        core: Any = torch._C
        core._accelerator_emptyHostCache()
        torch.cuda.reset_peak_host_memory_stats()
        assert counts() == [(0, 0, 2, 2), (0, 0, 3072, 3072), (0, 0, 3, 3), (0, 0, 5120, 5120)]
        torch.cuda.reset_accumulated_host_memory_stats()
        assert counts() == [(0, 0, 0, 0)] * 4
