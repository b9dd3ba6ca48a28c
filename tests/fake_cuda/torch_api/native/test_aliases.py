"""Names of the C++ core for what torch.cuda answers."""

from __future__ import annotations

from typing import Any

import torch

import neusight


def test_the_core_says_what_torch_cuda_says() -> None:
    core: Any = torch._C
    with neusight.forecast_on("H100"):
        torch.ones(8, device="cuda").relu_()
        assert (core._cuda_getDevice(), core._cuda_getDeviceCount()) == (0, 1)
        assert core._cuda_getCurrentStream(0)[0] == torch.cuda.current_stream().stream_id
        nested = torch.cuda.memory_stats_as_nested_dict()
        flat = torch.cuda.memory_stats()
        assert nested["allocated_bytes"]["all"]["peak"] == flat["allocated_bytes.all.peak"]
        external = torch.cuda.get_stream_from_external(1234)
        assert external.cuda_stream == 1234
        assert torch.cuda.nccl.version() >= (2, 0, 0)
