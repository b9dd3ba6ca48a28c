"""Inductor's code is written for the forecast's GPU, and stays in memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from compiled_net import ops, torch_compile

import neusight


def test_constants_are_folded_without_a_device() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return x * torch.full((4,), 0.5, device=x.device) + torch.ones(4, device=x.device)

    with neusight.forecast_on("H100") as forecast:
        run: Any = torch.compile(function)
        run(torch.ones(8, 4, device="cuda"))
    [kernel] = [kernel for kernel, _ in forecast.kernels if kernel.name.startswith("triton")]

    assert (kernel.bytes_read, kernel.bytes_written) == (128, 128)


def test_nothing_is_written_to_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "cache"))

    with neusight.forecast_on("H100", allow_writes=True) as forecast:
        run: Any = torch_compile(lambda x: torch.relu(x) * 3)
        run(torch.ones(8, 4, device="cuda"))

    assert any("triton" in name for name in ops(*forecast.recording.steps))
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_convolutions_are_laid_out_as_inductor_chose() -> None:
    with neusight.forecast_on("H100") as forecast, torch.no_grad():
        net = torch.nn.Sequential(
            torch.nn.Conv2d(8, 64, 3), torch.nn.ReLU(), torch.nn.Conv2d(64, 64, 3)
        )
        run: Any = torch.compile(net.cuda().eval())
        run(torch.randn(8, 8, 32, 32, device="cuda"))
    layouts = {k.layout for k, _ in forecast.kernels if k.name == "convolution_forward"}

    assert layouts == {"channels_last"}
