"""What a ROCm build of torch answers where a CUDA build says something else."""

from __future__ import annotations

import os
from typing import Any

import torch

from neusight.fake_cuda.patching import Patches
from neusight.memory.workspaces import HIPBLASLT_ARCHITECTURES
from neusight.predictors.gpu import GPU

#: HIP and ROCm that the forecast claims: those of torch's wheels for ROCm 7.2. torch leaves the
#: hash behind HIP's version out (torch.version.hip, pull request 168097 of pytorch).
HIP_VERSION, ROCM_VERSION = "7.2.26015", "7.2.0"

#: MIOpen of ROCm 7.2 as torch.backends.cudnn.version() counts it: 1,000,000 a major and 1,000 a
#: minor version (torch/csrc/cuda/shared/cudnn.cpp).
MIOPEN_VERSION = 3_005_001

#: What torch's wheels for ROCm are built for, without the features behind the name.
ROCM_ARCHITECTURES = (
    "gfx900", "gfx906", "gfx908", "gfx90a", "gfx942", "gfx950", "gfx1030", "gfx1100", "gfx1101",
    "gfx1102", "gfx1150", "gfx1151", "gfx1200", "gfx1201",
)  # fmt: skip

#: Bytes of L2 that HIP names, by architecture: that of one die, where a GPU has several (`rocminfo`
#: of these chips; 4 MB of an MI300X whose eight dies have 32: ROCm's issue 4203 on torch).
_L2_BYTES = {"gfx908": 8 << 20, "gfx90a": 8 << 20, "gfx942": 4 << 20, "gfx950": 4 << 20}

#: hipBLASLt as torch says it: 100,000 a major and 100 a minor version (1.2 in ROCm 7.2).
_HIPBLASLT_VERSION = 100_200


def architecture(gpu: GPU) -> str:
    """The name of its instruction set, without features: gfx942."""
    return gpu.gcn_arch_name.partition(":")[0]


def l2_of_a_die(gpu: GPU) -> int:
    """The bytes of L2 that HIP reports; those of the GPU where it is not known."""
    return _L2_BYTES.get(architecture(gpu), gpu.l2_bytes)


def install_rocm(patches: Patches, gpu: GPU) -> None:
    """On an AMD GPU torch answers as a ROCm build until `patches.restore()`."""
    if gpu.vendor != "amd":
        return
    core: Any = torch._C
    patches.set(torch.version, "hip", HIP_VERSION)
    patches.set(torch.version, "rocm", ROCM_VERSION)
    patches.set(core, "_cuda_getHipblasltVersion", lambda: _HIPBLASLT_VERSION)
    patches.set(core, "_cuda_getCompiledVersion", _compiled_version)
    patches.set(core, "_show_config", _build_options)
    if os.environ.get("PYTORCH_MIOPEN_SUGGEST_NHWC", "0") != "1":  # results are NCHW (ConvUtils.h)
        patches.set(
            core, "_conv_determine_backend_memory_format", lambda *_: torch.contiguous_format
        )
    patches.replace_code(torch.cuda, "get_gencode_flags", lambda: "")  # those of NVCC
    _install_blas_library(patches, gpu)


def _compiled_version() -> int:
    """As HIP_VERSION of its headers: 70226015 for 7.2.26015."""
    major, minor, patch = map(int, HIP_VERSION.split("."))
    return major * 10_000_000 + minor * 100_000 + patch


def _build_options() -> str:
    """What `torch.__config__.show()` says first."""
    major, rest = divmod(MIOPEN_VERSION, 1_000_000)
    minor, patch = divmod(rest, 1_000)
    return (
        f"PyTorch built with:\n  - HIP Runtime {HIP_VERSION}\n  - ROCm {ROCM_VERSION}\n"
        f"  - MIOpen {major}.{minor}.{patch}\n  - CPU capability usage: "
        f"{torch.backends.cpu.get_cpu_capability()}\n  - Build settings: TORCH_VERSION="
        f"{torch.__version__}, USE_CUDA=OFF, USE_ROCM=ON, USE_NCCL=ON\n"
    )


def _install_blas_library(patches: Patches, gpu: GPU) -> None:
    """torch.backends.cuda.preferred_blas_library: hipBLASLt where torch prefers it."""
    core: Any = torch._C
    prefers = architecture(gpu) in HIPBLASLT_ARCHITECTURES
    chosen = [core._BlasBackend.Cublaslt if prefers else core._BlasBackend.Cublas]
    patches.set(core, "_get_blas_preferred_backend", lambda: chosen[-1])
    patches.set(core, "_set_blas_preferred_backend", chosen.append)
