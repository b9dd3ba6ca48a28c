"""The timeline of memory that a program's own profiler exports."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.profiler import profile

from neusight import forecast_on


@pytest.mark.filterwarnings("ignore:.export_memory_timeline. is deprecated:FutureWarning")
def test_its_timeline_of_memory_is_that_of_the_window_by_category(tmp_path: Path) -> None:
    with forecast_on("H100", allow_writes=True):
        model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8)).cuda()
        optimizer = torch.optim.Adam(model.parameters())

        def step() -> None:
            model(torch.randn(32, 64, device="cuda")).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()

        step()
        with profile(with_stack=True, record_shapes=True, profile_memory=True) as profiler:
            step()
        profiler.export_memory_timeline(str(tmp_path / "raw.json.gz"))
    profiler.export_memory_timeline(str(tmp_path / "memory.json"))

    times, sizes = json.loads((tmp_path / "memory.json").read_text())
    most = dict(zip(_CATEGORIES, map(max, zip(*sizes, strict=True)), strict=True))
    parameters = sum(-(-4 * one.numel() // 512) * 512 for one in model.parameters())
    assert times == sorted(times)
    assert most["PARAMETER"] == most["GRADIENT"] == parameters
    assert most["OPTIMIZER_STATE"] == 2 * parameters
    assert most["INPUT"] == 4 * 32 * 64
    assert most["ACTIVATION"] >= 2 * 4 * 32 * 64
    assert sizes[0][5:] == [0, 0, 0, 0]
    assert most["none"] == 0  # the workspace of cuBLAS was there before
    raw = json.loads(gzip.decompress((tmp_path / "raw.json.gz").read_bytes()))
    assert {action for _, action, _, _ in raw} == {1, 2, 4}  # there, made, destroyed
    held = sum(num_bytes for _, _, num_bytes, _ in raw)
    assert held == sum(sizes[-1])


_CATEGORIES = (
    "", "PARAMETER", "OPTIMIZER_STATE", "INPUT", "TEMPORARY", "ACTIVATION", "GRADIENT",
    "AUTOGRAD_DETAIL", "none",
)  # fmt: skip


def test_its_timeline_of_memory_needs_what_torch_asks_for() -> None:
    with forecast_on("H100"):
        with profile(profile_memory=True) as profiler:
            torch.ones(8, device="cuda")
        with (
            pytest.warns(FutureWarning, match="deprecated"),
            pytest.raises(ValueError, match="record_shapes=True, with_stack=True required"),
        ):
            profiler.export_memory_timeline("memory.json")
