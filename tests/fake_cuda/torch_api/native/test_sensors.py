"""What NVML measures is not known, and that is said."""

from __future__ import annotations

import torch

import neusight


def test_the_summary_says_what_was_assumed_of_sensors() -> None:
    with neusight.forecast_on("H100") as forecast:
        x = torch.ones(2**20, device="cuda")
        free, total = torch.cuda.mem_get_info()
        assert torch.cuda.device_memory_used() == total - free > x.nbytes
        assert "GPU:0" in torch.cuda.list_gpu_processes()
        assert torch.cuda.power_draw() == 700_000
        assert torch.cuda.utilization() == 100
        assert (torch.cuda.memory_usage(), torch.cuda.temperature()) == (0, 0)
        assert torch.cuda.clock_rate() == 1830

    assert sum("measured by NVML" in text for text in forecast.warnings) == 5
