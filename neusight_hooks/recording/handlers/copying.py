"""Copies between the CPU and the GPU, with the waits that they cost."""

from __future__ import annotations

import sys
from typing import Any

import torch

from neusight.recording.handlers.registry import Args, Kwargs, handles
from neusight.recording.handlers.sparse.construction import copied_to_gpu
from neusight.recording.recorder import Recorder, RecordingMode
from neusight.recording.tensor import ForecastTensor
from neusight.recording.values.known import MAX_KNOWN_ELEMENTS, is_small
from neusight.recording.values.lazy import without_data_on_meta
from neusight.recording.values.values import MAX_COPIED_ELEMENTS

aten = torch.ops.aten


@handles(aten._to_copy.default)
def _to_copy(recorder: Recorder, func: Any, args: Args, kwargs: Kwargs) -> Any:
    source = args[0]
    target = kwargs.get("device")
    target = None if target is None else torch.device(target)
    from_cuda = isinstance(source, ForecastTensor) and source._fake_device.type == "cuda"
    _refuse_meta(source)
    if target is not None and target.type == "meta":
        return without_data_on_meta(source, kwargs)
    if target is None or (target.type == "cuda") == from_cuda:
        return recorder.run_known(func, args, kwargs)
    if source.is_nested and recorder.move_nested is not None:
        with RecordingMode(recorder):
            return recorder.move_nested(source, target, kwargs.get("dtype"))
    if source.layout is not torch.strided:
        with RecordingMode(recorder):
            return copied_to_gpu(source, kwargs)
    dtype = kwargs.get("dtype") or source.dtype
    non_blocking = bool(kwargs.get("non_blocking", False))
    if target.type == "cuda":
        fake_kwargs = {k: v for k, v in kwargs.items() if k != "pin_memory"}
        out = recorder.fake_kernels.copied(source, fake_kwargs)
        _keep_ragged_size(source)
        recorder.record_handled(func, args, kwargs, out)
        if not non_blocking:
            recorder.wait("copy")
        is_known = not isinstance(source, ForecastTensor) or source in recorder.known
        if is_small(source) and is_known:
            with torch.no_grad(), recorder.mode.inside():
                recorder.known.set(out, recorder.values.read(source).detach().to(dtype))
        return out
    _keep_ragged_size(source)
    recorder.record_handled(func, args, kwargs, None)
    if not non_blocking:
        recorder.wait("copy")
    with recorder.mode.inside():
        if source.numel() <= MAX_KNOWN_ELEMENTS or source in recorder.known:
            return recorder.values.read(source).to(dtype)
        recorder.invention.report()
        if source.numel() <= MAX_COPIED_ELEMENTS:
            return recorder.invention.values(source.shape, dtype)
    return recorder.mode.new_tensor(
        tuple(source.shape), source.stride(), dtype, torch.device("cpu")
    )


def _refuse_meta(source: Any) -> None:
    if isinstance(source, torch.Tensor) and source.device.type == "meta":
        raise NotImplementedError("Cannot copy out of meta tensor; no data!")


def _keep_ragged_size(offsets: Any) -> None:
    """torch.nested gives a copy of offsets the ragged size of these (to_copy_default in
    nested/_internal/ops.py, 2.13): it looks for it at the copy's kind of tensor, real or not."""
    nested: Any = sys.modules.get("torch.nested._internal.nested_tensor")
    if nested is None:
        return
    sizes = nested._tensor_symint_registry
    if not isinstance(offsets, ForecastTensor):
        if offsets in sizes:
            offsets.nested_int_memo = sizes[offsets]
    elif offsets.has_nested_int:
        sizes[offsets] = offsets.nested_int_memo


@handles(aten.copy_.default)
def _copy(recorder: Recorder, func: Any, args: Args, kwargs: Kwargs) -> Any:
    target, source = args[0], args[1]
    non_blocking = bool(args[2] if len(args) > 2 else kwargs.get("non_blocking", False))
    _refuse_meta(source)
    if target.device.type == "meta":
        return target
    target_on_gpu = isinstance(target, ForecastTensor) and target._fake_device.type == "cuda"
    source_on_gpu = isinstance(source, ForecastTensor) and source._fake_device.type == "cuda"
    if target_on_gpu and source_on_gpu:
        return recorder.run_known(func, args, kwargs)
    recorder.record_handled(func, args, kwargs, None)
    if not non_blocking:
        recorder.wait("copy")
    if target_on_gpu:
        recorder.values.follow(func, args, kwargs, target)
    elif isinstance(target, ForecastTensor):
        recorder.known.forget(target.untyped_storage()._cdata)
    elif source.numel() <= MAX_KNOWN_ELEMENTS or source in recorder.known:
        with recorder.mode.inside():
            target.copy_(recorder.values.read(source))
    else:
        recorder.invention.report()
    return target


@handles(aten._pin_memory.default, aten.pin_memory.default)
def _pin_memory(recorder: Recorder, func: Any, args: Args, kwargs: Kwargs) -> Any:
    raise RuntimeError("cannot pin 'torch.cuda.FloatTensor' only dense CPU tensors can be pinned")


@handles(aten.is_pinned.default)
def _is_pinned(recorder: Recorder, func: Any, args: Args, kwargs: Kwargs) -> Any:
    return False
