"""Names that only the C++ core of a CUDA build has, and that packages use."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch

from neusight.fake_cuda.inlined import legacy_type_taker
from neusight.fake_cuda.patching import Patches
from neusight.fake_cuda.torch_api.cuda_module import TENSOR_TYPES, legacy_tensor
from neusight.fake_cuda.torch_api.native.aliases import install_same_names
from neusight.fake_cuda.torch_api.native.attention_queries import install_attention_queries
from neusight.fake_cuda.torch_api.native.legacy_types import install_legacy_types
from neusight.fake_cuda.torch_api.native.pools import install_pools
from neusight.fake_cuda.torch_api.native.rocm import install_rocm
from neusight.fake_cuda.torch_api.native.runtime import install_runtime
from neusight.fake_cuda.torch_api.native.sensors import install_sensors
from neusight.fake_cuda.torch_api.native.settings import install_switches
from neusight.fake_cuda.torch_api.native.unsupported import install_refused
from neusight.predictors.gpu import GPU
from neusight.recording.recorder import Recorder


def install_native_names(
    patches: Patches, recorder: Recorder, gpu: GPU, on_query: Callable[[str, object], None]
) -> None:
    """Answers them until `patches.restore()`; torch.cuda must answer already."""
    install_refused(patches)
    install_same_names(patches, recorder)
    install_switches(patches, recorder.devices.count, recorder.on_wait, recorder.warn_once)
    install_sensors(patches, recorder.warn_once, gpu)
    install_legacy_types(patches)
    install_attention_queries(patches, gpu, on_query)
    install_pools(patches, recorder)
    install_runtime(patches, recorder.warn_once)
    core: Any = torch._C
    for function in (_broadcast, _broadcast_coalesced, _gather, _scatter):
        patches.set(core, function.__name__, function)
    patches.set(core, "_cuda_getCurrentRawStream", lambda device: recorder.current_stream)
    patches.set(core, "_show_config", lambda: _build_options(torch.version.cuda))
    if not hasattr(core, "_cuda_CUDAAllocator_AllocatorState"):
        # What torch._inductor.cudagraph_trees imports where torch says that it was built for CUDA.
        patches.set(core, "_cuda_CUDAAllocator_AllocatorState", type("AllocatorState", (), {}))
    _install_default_type(patches)
    install_rocm(patches, gpu)
    patches.set(torch.Tensor, "type", legacy_type_taker(torch.Tensor.type, TENSOR_TYPES))


def _build_options(cuda: str | None) -> str:
    """What `torch.__config__.show()` says first. torch itself would ask CUDA's libraries."""
    return (
        f"PyTorch built with:\n  - CUDA Runtime {cuda}\n  - CPU capability usage: "
        f"{torch.backends.cpu.get_cpu_capability()}\n  - Build settings: TORCH_VERSION="
        f"{torch.__version__}, USE_CUDA=ON, USE_CUDNN=ON, USE_NCCL=ON\n"
    )


# -- what DataParallel moves between GPUs ---------------------------------------------------------


def _scatter(
    tensor: torch.Tensor,
    devices: Sequence[int],
    chunk_sizes: Sequence[int] | None,
    dim: int,
    streams: object,
) -> tuple[torch.Tensor, ...]:
    split: Any = torch.split  # has no annotations
    parts = (
        tensor.chunk(len(devices), dim)
        if chunk_sizes is None
        else split(tensor, list(chunk_sizes), dim)
    )
    return tuple(
        part.to(torch.device("cuda", device), non_blocking=True)
        for part, device in zip(parts, devices, strict=False)
    )


def _gather(tensors: Sequence[torch.Tensor], dim: int, destination: int | None) -> torch.Tensor:
    """The parts in one tensor, on a GPU or (index -1) on the CPU."""
    index = 0 if destination is None else destination
    device = torch.device("cpu") if index < 0 else torch.device("cuda", index)
    return torch.cat([tensor.to(device, non_blocking=True) for tensor in tensors], dim)


def _broadcast(tensor: torch.Tensor, devices: Sequence[int]) -> tuple[torch.Tensor, ...]:
    return tuple(tensor.to(torch.device("cuda", device)) for device in devices)


def _broadcast_coalesced(
    tensors: Sequence[torch.Tensor], devices: Sequence[int], buffer_size: int
) -> tuple[list[torch.Tensor], ...]:
    return tuple(
        [tensor.to(torch.device("cuda", device)) for tensor in tensors] for device in devices
    )


# -- the default type of tensors ------------------------------------------------------------------


def _install_default_type(patches: Patches) -> None:
    """torch.set_default_tensor_type("torch.cuda.HalfTensor"): a default dtype and device, of
    `torch.Tensor(...)` too, which knows no default device."""
    original: Any = torch.set_default_tensor_type
    changed: list[torch.dtype] = []

    def make_on_gpu(cls: Any, *args: Any, **kwargs: Any) -> Any:
        if cls is torch.Tensor and not kwargs:
            return legacy_tensor(torch.get_default_dtype(), *args)
        return torch._C.TensorBase.__new__(cls, *args, **kwargs)

    def make_on(device: str) -> None:
        if device == "cuda":
            torch.Tensor.__new__ = staticmethod(make_on_gpu)  # type: ignore[method-assign]
        elif "__new__" in vars(torch.Tensor):  # else inherited from torch._C.TensorBase
            del torch.Tensor.__new__

    def put_back() -> None:
        make_on("cpu")
        if changed:
            torch.set_default_device(None)
            torch.set_default_dtype(changed[0])

    def set_default_tensor_type(kind: Any, /) -> None:
        name = kind if isinstance(kind, str) else f"{kind.__module__}.{kind.__name__}"
        changed.append(torch.get_default_dtype())
        if ".cuda." in f".{name}":
            torch.set_default_dtype(TENSOR_TYPES.get(name.rpartition(".")[2], torch.float32))
            torch.set_default_device("cuda")
            make_on("cuda")
        else:
            torch.set_default_device(None)
            make_on("cpu")
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)  # "is deprecated": the GPU's as well
                original(kind)

    patches.on_restore(put_back)
    patches.set(torch, "set_default_tensor_type", set_default_tensor_type)
