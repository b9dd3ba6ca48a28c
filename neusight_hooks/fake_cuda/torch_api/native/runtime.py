"""CUDA's runtime library as torch.cuda.cudart() returns it: what answers without a GPU."""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from typing import Any

import torch

from neusight.fake_cuda.patching import Patches
from neusight.predictors.errors import UnansweredCallError
from neusight.recording.call_stack import call_site

#: Bytes of an NCCL communicator's name (NCCL_UNIQUE_ID_BYTES, nccl.h).
_UNIQUE_ID_BYTES = 128

#: Cycles that last no longer than the kernel that counts them: torch's symmetric memory orders
#: kernels of two streams so.
_NO_SPIN = 1000
_SPINNING = (
    "torch.cuda._sleep keeps a GPU busy for a number of cycles; the forecast leaves that out"
)


class _CudaError(IntEnum):
    """cudaError_t, as far as torch binds it (torch/csrc/cuda/shared/cudart.cpp)."""

    success = 0


class _Runtime:
    """torch._C._cudart."""

    cudaError = _CudaError

    def cudaGetErrorString(self, error: int) -> str:
        return "no error" if error == _CudaError.success else f"error {int(error)}"

    def _succeed(self, *arguments: int) -> int:
        """There is no profiler of NVIDIA's to start, and no driver to register memory with."""
        return _CudaError.success

    cudaProfilerStart = cudaProfilerStop = cudaHostRegister = cudaHostUnregister = _succeed

    def cudaMemGetInfo(self, device: int) -> tuple[int, int]:
        return torch.cuda.mem_get_info(device)

    def __getattr__(self, name: str) -> Any:
        raise UnansweredCallError(
            f"cudart().{name} at {call_site()} is CUDA's runtime library itself, which is not "
            "there; use the functions of torch.cuda."
        )


def install_runtime(patches: Patches, warn: Callable[[str], None]) -> None:
    """torch.cuda.cudart(), handles and the like answer until `patches.restore()`."""
    runtime = _Runtime()
    patches.set(torch.cuda, "_cudart", runtime)
    core: Any = torch._C

    def spin(cycles: int) -> None:
        if cycles > _NO_SPIN:
            warn(_SPINNING)

    answers = {
        "_cuda_sleep": spin,
        # Addresses of objects of cuBLAS and cuSOLVER: programs ask for them to have them made.
        "_cuda_getCurrentBlasHandle": lambda: id(runtime),
        "_cuda_getCurrentSolverHandle": lambda: id(runtime),
        "_cuda_clearCublasWorkspaces": lambda: None,
        "_cuda_hasPrimaryContext": lambda index: True,
        "_cuda_getCompiledVersion": _compiled_version,
        "_cuda_getHipblasltVersion": lambda: 0,
        "_nccl_unique_id": lambda: bytes(_UNIQUE_ID_BYTES),
    }
    for name, answer in answers.items():
        patches.set(core, name, answer)


def _compiled_version() -> int:
    """As CUDART_VERSION: 13000 for CUDA 13.0."""
    major, _, minor = (torch.version.cuda or "0.0").partition(".")
    return int(major) * 1000 + int(minor) * 10
