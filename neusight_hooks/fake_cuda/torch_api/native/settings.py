"""Settings of a CUDA build that programs write and read."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch

from neusight.fake_cuda.patching import Patches
from neusight.recording.tape import Listeners

#: The settings: what reads and what writes each in torch._C, and its value before it is set
#: (aten/src/ATen/Context.h and aten/src/ATen/cuda/tunable/Tunable.h, torch 2.13).
_SETTINGS: dict[str, tuple[str, str, object]] = {
    "metadata": ("_cuda_getMemoryMetadata", "_cuda_setMemoryMetadata", ""),
    "benchmark_limit": (
        "_cuda_get_cudnn_benchmark_limit", "_cuda_set_cudnn_benchmark_limit", 10,
    ),
    "benchmark_empty_cache": (
        "_cuda_get_conv_benchmark_empty_cache", "_cudnn_set_conv_benchmark_empty_cache", True,
    ),
    "tunable": ("_cuda_tunableop_is_enabled", "_cuda_tunableop_enable", False),
    "tuning": ("_cuda_tunableop_tuning_is_enabled", "_cuda_tunableop_tuning_enable", True),
    "untuned": ("_cuda_record_untuned_is_enabled", "_cuda_record_untuned_enable", False),
    "tuning_duration": (
        "_cuda_tunableop_get_max_tuning_duration", "_cuda_tunableop_set_max_tuning_duration", 30,
    ),
    "tuning_iterations": (
        "_cuda_tunableop_get_max_tuning_iterations", "_cuda_tunableop_set_max_tuning_iterations",
        100,
    ),
    "tuning_file": (
        "_cuda_tunableop_get_filename", "_cuda_tunableop_set_filename",
        "tunableop_results0.csv",
    ),
    "rotating_buffer": (
        "_cuda_tunableop_get_rotating_buffer_size", "_cuda_tunableop_set_rotating_buffer_size", 0,
    ),
    "tolerances": (
        "_cuda_tunableop_get_numerical_check_tolerances",
        "_cuda_tunableop_set_numerical_check_tolerances", None,
    ),
}  # fmt: skip

#: Plans that torch keeps of FFTs (CUFFT_MAX_PLAN_NUM, aten/src/ATen/native/cuda/CuFFTPlanCache.h).
_FFT_PLANS = 4096

_NO_TUNING = (
    "torch.cuda.tunable was enabled: it would time the kernels of each product and keep the "
    "fastest; a forecast takes cuBLAS' own choice"
)


def install_switches(
    patches: Patches,
    num_gpus: int,
    on_wait: Listeners[[str]],
    warn: Callable[[str], None],
) -> None:
    """Installs them until `patches.restore()`."""
    core: Any = torch._C
    values = {key: first for key, (_, _, first) in _SETTINGS.items()}
    for key, (getter, setter, _) in _SETTINGS.items():
        patches.set(core, getter, _reading(values, key))
        patches.set(core, setter, _writing(values, key, warn))
    patches.set(core, "_cuda_tunableop_get_results", lambda: ())
    patches.set(core, "_cuda_tunableop_get_validators", lambda: ())
    patches.set(core, "_cuda_tunableop_read_file", lambda filename=None: False)
    _install_benchmark_limit(patches)
    _install_sync_mode(patches, on_wait)
    _install_fft_plans(patches, num_gpus)
    _install_linalg_library(patches)


def _reading(values: dict[str, object], key: str) -> Any:
    return lambda: values[key]


def _writing(values: dict[str, object], key: str, warn: Callable[[str], None]) -> Any:
    def write(value: object, *others: object) -> None:
        values[key] = value
        if key == "tunable" and value:
            warn(_NO_TUNING)

    return write


_WARN, _RAISE = 1, 2


def _install_sync_mode(patches: Patches, on_wait: Listeners[[str]]) -> None:
    """torch.cuda.set_sync_debug_mode: a wait of the host warns, or is an error."""
    core: Any = torch._C
    mode = [0]

    def waits(reason: str) -> None:
        if mode[0] == _WARN:
            warnings.warn("called a synchronizing CUDA operation", UserWarning, stacklevel=2)
        elif mode[0] == _RAISE:
            raise RuntimeError("called a synchronizing CUDA operation")

    def choose(value: int) -> None:
        mode[0] = int(value)

    patches.on_restore(on_wait.subscribe(waits))
    patches.set(core, "_cuda_get_sync_debug_mode", lambda: mode[0])
    patches.set(core, "_cuda_set_sync_debug_mode", choose)


def _install_benchmark_limit(patches: Patches) -> None:
    """torch.backends.cudnn.benchmark_limit: where torch finds no cuDNN it is no property."""
    backends: Any = torch.backends
    core: Any = torch._C
    getter, setter, _ = _SETTINGS["benchmark_limit"]
    limit = backends.ContextProp(getattr(core, getter), getattr(core, setter))
    patches.set(type(backends.cudnn), "benchmark_limit", limit)


def _install_fft_plans(patches: Patches, num_gpus: int) -> None:
    """torch.backends.cuda.cufft_plan_cache: its limits, and no plan inside."""
    limits = dict.fromkeys(range(num_gpus), _FFT_PLANS)
    kind: Any = torch.backends.cuda.cuFFTPlanCache
    patches.set(kind, "size", property(lambda cache: 0))
    patches.set(
        kind,
        "max_size",
        property(
            lambda cache: limits[cache.device_index],
            lambda cache, value: limits.update({cache.device_index: value}),
        ),
    )
    patches.set(kind, "clear", lambda cache: None)
    patches.on_restore(torch.backends.cuda.cufft_plan_cache.caches.clear)


def _install_linalg_library(patches: Patches) -> None:
    """torch.backends.cuda.preferred_linalg_library: a CPU build lacks MAGMA, CUDA wheels do not."""
    core: Any = torch._C
    chosen = [core._get_linalg_preferred_backend()]
    patches.set(core, "_get_linalg_preferred_backend", lambda: chosen[-1])
    patches.set(core, "_set_linalg_preferred_backend", chosen.append)
