"""A replacement of Triton's driver, which would load libcuda: it answers as torch.cuda does."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import torch

#: Bytes that Triton's benchmark writes before each run, to empty the L2 (triton/testing.py).
_EMPTYING_BYTES = 256 * 2**20


class TargetDriver:
    """What `triton.runtime.driver.active` is while a forecast is open."""

    def __init__(self) -> None:
        self.utils = self

    @staticmethod
    def is_active() -> bool:
        return True

    def get_device_properties(self, device: int) -> dict[str, int]:
        """The target's, by Triton's names; clocks in kHz."""
        found: Any = torch.cuda.get_device_properties(device)
        return {
            "max_shared_mem": found.shared_memory_per_block_optin,
            "max_num_regs": found.regs_per_multiprocessor,
            "multiprocessor_count": found.multi_processor_count,
            "warpSize": found.warp_size,
            "sm_clock_rate": getattr(found, "clock_rate", 0),
            "mem_clock_rate": getattr(found, "memory_clock_rate", 0),
            "mem_bus_width": getattr(found, "memory_bus_width", 0),
        }

    def get_current_target(self) -> Any:
        """Its backend, warp size and capability (90) or, on AMD, instruction set ("gfx942")."""
        compiler: Any = import_module("triton.backends.compiler")
        properties: Any = torch.cuda.get_device_properties(0)
        if torch.version.hip is not None:
            architecture = properties.gcnArchName.partition(":")[0]
            return compiler.GPUTarget("hip", architecture, properties.warp_size)
        major, minor = torch.cuda.get_device_capability()
        return compiler.GPUTarget("cuda", major * 10 + minor, properties.warp_size)

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cuda", torch.cuda.current_device())

    def get_device_interface(self) -> Any:
        return torch.cuda

    def get_current_device(self) -> int:
        return torch.cuda.current_device()

    def set_current_device(self, device: int) -> None:
        torch.cuda.set_device(device)

    def get_current_stream(self, device: int | None = None) -> int:
        return int(torch.cuda.current_stream(device).cuda_stream)

    def get_benchmarker(self) -> Any:
        testing: Any = import_module("triton.testing")
        return testing.do_bench

    def get_empty_cache_for_benchmark(self) -> torch.Tensor:
        return torch.empty(_EMPTYING_BYTES // 4, dtype=torch.int, device="cuda")

    def clear_cache(self, cache: torch.Tensor) -> None:
        cache.zero_()
