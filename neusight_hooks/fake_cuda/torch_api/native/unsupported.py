"""Calls that no forecast can answer: an error names each, the program's line and what to do."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import torch

from neusight.fake_cuda.patching import Patches
from neusight.predictors.errors import UnansweredCallError
from neusight.recording.call_stack import call_site

_NCCL = (
    "joins the GPUs of one process; write it with torch.distributed and a process for each GPU, "
    "whose collectives are forecast"
)
_ALLOCATOR = (
    "puts an allocator from a C library in place of PyTorch's, which is the one that a forecast "
    "models; leave it out for the forecast"
)
_GREEN = "gives a part of the GPU's SMs to a stream; forecasts know whole GPUs, so leave it out"
_STORAGE = (
    "reads and writes files past the CPU (GPUDirect Storage), and a forecast has no data to "
    "write; use torch.save and torch.load for the forecast"
)
_TUNING = (
    "times kernels on the GPU, which is not there; leave it out: forecasts take cuBLAS' own choice"
)
#: Names in torch._C of what is refused, and what is said of each.
_REFUSED = {
    "_CUDAGreenContext": _GREEN,
    "_cuda_allocationTraceback": "needs addresses of a GPU; read torch.cuda.memory._snapshot()",
    "_cuda_changeCurrentAllocator": _ALLOCATOR,
    "_cuda_cudaHostAllocator": _ALLOCATOR,
    "_cuda_customAllocator": _ALLOCATOR,
    "_cuda_getAllocator": _ALLOCATOR,
    "_gds_deregister_buffer": _STORAGE,
    "_gds_deregister_handle": _STORAGE,
    "_gds_load_storage": _STORAGE,
    "_gds_register_buffer": _STORAGE,
    "_gds_register_handle": _STORAGE,
    "_gds_save_storage": _STORAGE,
    "_nccl_all_gather": _NCCL,
    "_nccl_all_reduce": _NCCL,
    "_nccl_broadcast": _NCCL,
    "_nccl_init_rank": _NCCL,
    "_nccl_reduce": _NCCL,
    "_nccl_reduce_scatter": _NCCL,
}

#: Public functions and classes that are refused before they look at their arguments.
_REFUSED_PUBLIC = {
    ("torch.cuda.memory", "CUDAPluggableAllocator"): _ALLOCATOR,
    ("torch.cuda.memory", "change_current_allocator"): _ALLOCATOR,
    ("torch.cuda.green_contexts", "GreenContext"): _GREEN,
    ("torch.cuda.gds", "GdsFile"): _STORAGE,
    ("torch.cuda.tunable", "mgpu_tune_gemm_in_file"): _TUNING,
    ("torch.cuda.tunable", "tune_gemm_in_file"): _TUNING,
}

#: Names that only the core of a CUDA build has.
_OF_CUDA_BUILDS = re.compile(r"_(cuda|cudnn|nccl|cudart|cusparse|gds)_|_(CUDA|Cuda)[A-Z]")


def refusing(name: str, words: str) -> Callable[..., Any]:
    def refused(*args: Any, **kwargs: Any) -> Any:
        raise UnansweredCallError(f"{name} at {call_site()} {words}.")

    return refused


def install_refused(patches: Patches) -> None:
    """Each raises UnansweredCallError until `patches.restore()`; so does every other name of a
    CUDA build's core that nothing answers, as the AttributeError that Python expects there."""
    import torch.cuda.gds
    import torch.cuda.green_contexts
    import torch.cuda.tunable

    core: Any = torch._C
    for name, words in _REFUSED.items():
        patches.set(core, name, refusing(f"torch._C.{name}", words))
    for (module_name, name), words in _REFUSED_PUBLIC.items():
        module: Any = torch.get_device_module("cuda")
        for part in module_name.split(".")[2:]:
            module = getattr(module, part)
        thing, stated = getattr(module, name), refusing(f"{module_name}.{name}", words)
        if isinstance(thing, type):
            patches.set(thing, "__init__", stated)
            if hasattr(thing, "__del__"):
                patches.set(thing, "__del__", lambda never_made: None)
        else:
            patches.replace_code(module, name, stated)
    patches.set(core, "__getattr__", _absent)


def _absent(name: str) -> Any:
    text = f"module 'torch._C' has no attribute '{name}'"
    if _OF_CUDA_BUILDS.match(name):
        text += (
            f" in a forecast (asked for at {call_site()}): it is of a CUDA build's core. "
            "torch.cuda's public functions are answered; use those, or guard this call"
        )
    raise AttributeError(text, name=name, obj=torch._C)
