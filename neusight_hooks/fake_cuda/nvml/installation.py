"""A forecast's programs find `nvidia-smi` on their PATH, and pynvml finds its library."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from neusight.fake_cuda.import_hooks import when_imported
from neusight.fake_cuda.nvml.library import NVML
from neusight.fake_cuda.nvml.readings import GPUReadings
from neusight.fake_cuda.nvml.smi import READINGS_VARIABLE
from neusight.fake_cuda.patching import Patches
from neusight.predictors.gpu import GPU

_PROGRAMS = str(Path(__file__).parent / "programs")
_LIBRARY = "nvidia-ml"

#: The variable that names the Python that answers.
_PYTHON_VARIABLE = "NEUSIGHT_PYTHON"


def install_nvml(patches: Patches, gpu: GPU, num_gpus: Callable[[], int]) -> Callable[[], None]:
    """Until `patches.restore()`, on a machine with NVIDIA's GPUs. What is returned renews what
    other programs read, before one is started."""
    if gpu.vendor != "nvidia":
        return lambda: None

    def read() -> GPUReadings:
        reserved = torch.cuda.memory_reserved()
        used = reserved + gpu.context_bytes if reserved else 0
        return GPUReadings.of(gpu, num_gpus(), torch.version.cuda, used, os.getpid())

    def renew() -> None:
        os.environ[READINGS_VARIABLE] = read().to_json()

    patches.on_restore(_leave_environment)
    path = os.environ.get("PATH", os.defpath)
    if _PROGRAMS not in path.split(os.pathsep):
        os.environ["PATH"] = f"{_PROGRAMS}{os.pathsep}{path}"
    os.environ[_PYTHON_VARIABLE] = sys.executable
    renew()

    def patch(pynvml: Any) -> None:
        library = pynvml.CDLL

        def load(name: Any, *args: Any, **named: Any) -> Any:
            return NVML(read) if _LIBRARY in str(name) else library(name, *args, **named)

        patches.set(pynvml, "CDLL", load)
        patches.set(pynvml, "nvmlLib", None)
        patches.set(pynvml, "_nvmlGetFunctionPointer_cache", {})

    when_imported(patches, "pynvml", patch)
    return renew


def _leave_environment() -> None:
    """The variables are as before, but for what the program changed."""
    paths = os.environ.get("PATH", "").split(os.pathsep)
    os.environ["PATH"] = os.pathsep.join(path for path in paths if path != _PROGRAMS)
    for name in (READINGS_VARIABLE, _PYTHON_VARIABLE):
        os.environ.pop(name, None)
