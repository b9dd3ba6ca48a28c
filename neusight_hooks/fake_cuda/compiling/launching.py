"""What a wrapper that Inductor wrote calls: its kernels, its allocations, its views."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from math import prod
from typing import Any

import torch

from neusight.fake_cuda.compiling.fused_kernel import FusedKernel
from neusight.fake_cuda.compiling.rules.flex_attention import FlexAttention, with_mask_known
from neusight.fake_cuda.patching import Patches
from neusight.recording.dispatch.op_cache import KnownOp
from neusight.recording.recorder import Recorder
from neusight.recording.recording import Argument, OpSignature
from neusight.recording.signature import spec_of
from neusight.recording.tensor import ForecastTensor

#: Bytes at which Inductor wants its inputs to begin (torch._inductor.utils.ALIGNMENT).
_ALIGNMENT = 16


class KernelLauncher:
    """Stands where a wrapper expects a compiled Triton kernel, and records its launches."""

    def __init__(self, recorder: Recorder, kernel: FusedKernel) -> None:
        self.kernel = kernel
        self._recorder = recorder
        self._known: dict[Any, KnownOp] = {}

    def run(self, *args: Any, **kwargs: Any) -> None:
        with torch._C._DisableTorchDispatch():
            key: Any = tuple(
                (tuple(arg.shape), arg.stride(), arg.dtype)
                if isinstance(arg, torch.Tensor)
                else arg
                for arg in args
            )
            attention = _attention(self._recorder, self.kernel, args)
            key = (key, attention)
        known = self._known.get(key)
        if known is None:
            with torch._C._DisableTorchDispatch():
                known = self._known[key] = KnownOp(_signature(self.kernel, args, attention))
        watch = self._recorder.repeats.watch
        if watch is not None:
            tensors = [arg for arg in args if isinstance(arg, torch.Tensor)]
            buffers = zip(self.kernel.buffers, tensors, strict=False)
            written = [tensor for buffer, tensor in buffers if buffer.is_written]
            watch.see_kernel(written, has_mask=attention is not None)
        self._recorder.record_op(known)


def _attention(
    recorder: Recorder, kernel: FusedKernel, args: tuple[Any, ...]
) -> FlexAttention | None:
    """Its attention, with the sizes of this call and as many blocks as the mask has where that is
    known of the call's own."""
    if not kernel.attention:
        return None
    found = FlexAttention(*kernel.attention)
    tensors: list[Any] = [arg for arg in args if isinstance(arg, torch.Tensor)]
    named = {buffer.name: tensor for buffer, tensor in zip(kernel.buffers, tensors, strict=False)}
    rows = named.get("arg_LSE")
    if rows is not None:
        batch, heads, seq_q = rows.shape
        seq_kv = seq_q if found.seq_q == found.seq_kv else found.seq_kv
        found = found._replace(batch=batch, heads=heads, seq_q=seq_q, seq_kv=seq_kv)
    counts = [named[name] for name in _BLOCK_COUNTS if name in named]
    known = recorder.known
    if counts and all(known.is_sure(count) for count in counts):
        visible = sum(int(known.of(count).sum()) for count in counts)
        blocks = counts[0].numel() * named["arg_KV_IDX"].shape[-1]
        found = found._replace(num_visible=visible, num_blocks=blocks)
    return with_mask_known(recorder.warn_once, found)


#: The arguments of a flex attention kernel that count the blocks of its mask by query block.
_BLOCK_COUNTS = ("arg_KV_NUM_BLKS", "arg_FULL_KV_NUM_BLKS")


def _signature(
    kernel: FusedKernel, args: tuple[Any, ...], attention: FlexAttention | None = None
) -> OpSignature:
    """The launch as plain values, bytes of this call."""
    tensors = [arg for arg in args if isinstance(arg, torch.Tensor)]
    sizes = [arg for arg in args if isinstance(arg, int) and not isinstance(arg, bool)]
    numels = _numels(kernel, sizes)
    scale = prod(size for _, size in numels) / max(1, kernel.num_elements)
    read = written = again = 0
    for buffer, tensor in zip(kernel.buffers, tensors, strict=False):
        touched = tensor.numel()
        if buffer.elements is not None:
            touched = buffer.elements if scale == 1.0 else round(buffer.elements * scale)
        num_bytes = touched * tensor.element_size()
        read += num_bytes * buffer.is_read
        written += num_bytes * buffer.is_written
        again += num_bytes * (buffer.num_loops - 1)
    arguments: list[tuple[str, Argument]] = [
        (buffer.name, spec_of(tensor))
        for buffer, tensor in zip(kernel.buffers, tensors, strict=False)
    ]
    arguments += [
        ("kind", kernel.kind),
        ("numels", tuple(size for _, size in numels)),
        ("bytes_read", read),
        ("bytes_written", written),
        ("bytes_read_again", again),
        ("num_operations", kernel.num_operations),
        ("num_instructions", kernel.num_instructions),
        ("along_columns", kernel.along_columns),
        ("origins", kernel.origins),
    ]
    if attention is not None:
        arguments.append(("attention", tuple(map(int, attention))))
    return OpSignature(f"inductor::{kernel.name}", "default", tuple(arguments), ())


def _numels(kernel: FusedKernel, sizes: list[int]) -> tuple[tuple[str, int], ...]:
    """The sizes of this call, which stand last among its arguments; those it was compiled with
    where the call has none (foreach)."""
    if not kernel.numels or len(sizes) < len(kernel.numels):
        return kernel.numels
    given = sizes[-len(kernel.numels) :]
    return tuple((name, size) for (name, _), size in zip(kernel.numels, given, strict=True))


def install_runtime(patches: Patches, recorder: Recorder) -> None:
    """Allocations and views of a wrapper become the forecast's; its streams too."""
    guards: Any = import_module("torch._C._dynamo.guards")

    def allocate(size: Any, stride: Any, dtype: torch.dtype) -> ForecastTensor:
        # No op: it costs the host an allocation, not a dispatch.
        device = torch.device("cuda", recorder.devices.current)
        with torch._C._DisableTorchDispatch():
            made = recorder.mode.new_tensor(tuple(size), tuple(stride), dtype, device)
        recorder.storages.made(made, "inductor::empty_strided_cuda")
        return made

    reinterpret_real: Callable[..., Any] = guards._reinterpret_tensor

    def reinterpret(tensor: Any, size: Any, stride: Any, offset: int = 0) -> Any:
        if not isinstance(tensor, ForecastTensor):
            return reinterpret_real(tensor, size, stride, offset)
        start = tensor.storage_offset() + offset
        return recorder.fake_kernels.view(torch.as_strided, (tensor, size, stride, start), {})

    # Wrappers of torch 2.13 call it; earlier ones copy by the address, which is the forecast's.
    copy_real: Callable[..., Any] | None = getattr(guards, "copy_if_misaligned", None)

    def copy_if_misaligned(tensor: Any) -> Any:
        if copy_real is not None and not isinstance(tensor, ForecastTensor):
            return copy_real(tensor)
        start = tensor.storage_offset() * tensor.element_size()
        return tensor.clone() if start % _ALIGNMENT else tensor

    if copy_real is not None:
        patches.set(guards, "copy_if_misaligned", copy_if_misaligned)

    def allocate_pinned(size: Any, stride: Any, dtype: torch.dtype) -> torch.Tensor:
        return recorder.pinned.remember(guards._empty_strided_cpu(size, stride, dtype))

    patches.set(guards, "_empty_strided_cpu_pinned", allocate_pinned)
    patches.set(guards, "_empty_strided_cuda", allocate)
    patches.set(guards, "_reinterpret_tensor", reinterpret)
    # Both exist on a CUDA build, and ask the driver.
    patches.set(torch._C, "_cuda_getCurrentRawStream", lambda index: recorder.current_stream)
    patches.set(torch._C, "_cuda_cudaCachingAllocator_is_enabled", lambda: True)
