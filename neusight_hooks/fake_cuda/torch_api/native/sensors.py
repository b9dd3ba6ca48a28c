"""What the driver's management library (NVML, AMD SMI) measures on a GPU that is at work."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from neusight.fake_cuda.patching import Patches
from neusight.predictors.gpu import GPU

_NO_SENSORS = (
    "torch.cuda's {name} is measured by {library} on a running GPU; a forecast answers {answer}"
)


def install_sensors(patches: Patches, warn: Callable[[str], None], gpu: GPU) -> None:
    """They answer until `patches.restore()`, and the summary says what was asked."""
    assumed = {
        "utilization": (100, "100 % at any time"),
        "memory_usage": (0, "0 % at any time"),
        "temperature": (0, "0 degrees at any time"),
        "power_draw": (round(gpu.tdp_w * 1000), "the power limit at any time"),
        "clock_rate": (round(gpu.boost_clock_mhz), "the boost clock at any time"),
    }

    library = "AMD SMI" if gpu.vendor == "amd" else "NVML"

    def reporting(name: str, value: int, answer: str) -> Any:
        def read(device: Any = None) -> int:
            warn(_NO_SENSORS.format(name=name, library=library, answer=answer))
            return value

        return read

    for name, (value, answer) in assumed.items():
        patches.replace_code(torch.cuda, name, reporting(name, value, answer))

    def used(device: Any = None) -> int:
        free, total = torch.cuda.mem_get_info()
        return total - free

    patches.replace_code(torch.cuda, "device_memory_used", used)
    patches.replace_code(
        torch.cuda.memory, "list_gpu_processes", lambda device=None: _listed(used())
    )


def _listed(num_bytes: int) -> str:
    """As torch.cuda.list_gpu_processes writes it."""
    import os

    return f"GPU:0\nprocess {os.getpid():>10d} uses {num_bytes / 2**20:>12.3f} MB GPU memory"
