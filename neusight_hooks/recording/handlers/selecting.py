"""Ops that return as many elements as values say: masks, unique values, lengths."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import torch

from neusight.recording.dispatch.eager_errors import SCALAR_TYPES
from neusight.recording.handlers.registry import Args, Kwargs, handles
from neusight.recording.recorder import Recorder
from neusight.recording.tensor import ForecastTensor, is_mask
from neusight.recording.values.invention import MASK_DENSITY

aten = torch.ops.aten


def _num_selected(recorder: Recorder, mask: Any) -> int:
    """How many elements a mask selects: counted where known, else by the assumed density."""
    if isinstance(mask, ForecastTensor) and mask in recorder.known:
        with recorder.mode.inside():
            return int(torch.count_nonzero(recorder.values.read(mask)).item())
    if not isinstance(mask, ForecastTensor):
        return int(torch.count_nonzero(mask).item())
    return max(1, int(mask.numel() * MASK_DENSITY)) if mask.numel() else 0


@handles(aten.nonzero.default)
def _nonzero(recorder: Recorder, func: Any, args: Args, kwargs: Kwargs) -> Any:
    mask = args[0]
    shape = (_num_selected(recorder, mask), mask.dim())
    # Position by position of one axis, then of the next (cuda/Nonzero.cu).
    out = recorder.mode.new_tensor(shape, (1, shape[0]), torch.int64, mask._fake_device)
    recorder.record_handled(func, args, kwargs, out)
    if mask in recorder.known and recorder.known.may_hold(out):
        with recorder.mode.inside():
            recorder.known.set_from(mask, out, recorder.known.of(mask).nonzero())
    elif mask not in recorder.known and recorder.known.may_hold(out):
        with recorder.mode.inside():
            recorder.known.set(out, _spread(shape[0], tuple(mask.shape)))
        recorder.known.record_invented(out)
    recorder.wait("nonzero")
    return out


def _spread(number: int, shape: tuple[int, ...]) -> torch.Tensor:
    """The places of so many elements at equal distances: a search goes on with what it finds."""
    size = math.prod(shape)
    places = torch.arange(number, device="cpu") * size // max(1, number)
    return torch.stack(torch.unravel_index(places, shape), 1) if shape else places.new_zeros(1, 0)


@handles(aten.masked_select.default)
def _masked_select(recorder: Recorder, func: Any, args: Args, kwargs: Kwargs) -> Any:
    recorder.fake_kernels.require_one_device(func, args, kwargs)
    recorder.fake_kernels.refuse(func, args, kwargs)
    source, mask = args[0], args[1]
    broadcast: Any = torch.broadcast_shapes  # torch leaves it without annotations
    whole = math.prod(broadcast(source.shape, mask.shape))
    num_selected = _num_selected(recorder, mask) * whole // max(1, mask.numel())
    out = recorder.new_tensor((num_selected,), source.dtype, source)
    recorder.record_handled(func, args, kwargs, out)
    recorder.wait("masked_select")
    return out


@handles(
    aten._unique2.default,
    aten._unique.default,
    aten.unique_dim.default,
    aten.unique_consecutive.default,
)
def _unique(recorder: Recorder, func: Any, args: Args, kwargs: Kwargs) -> Any:
    source = args[0]
    if source in recorder.known:
        with recorder.mode.inside():
            found = func(recorder.values.read(source), *args[1:], **kwargs)
        out = tuple(recorder.new_tensor(tuple(t.shape), t.dtype, source) for t in found)
        for mine, value in zip(out, found, strict=True):
            recorder.known.set(mine, value)
    else:
        by_dim = func is aten.unique_dim.default
        size = source.shape[args[1]] if by_dim else source.numel()
        num_unique = max(1, int(size * MASK_DENSITY))
        shape, inverse = [num_unique], tuple(source.shape)
        if by_dim:
            shape, inverse = list(source.shape), (size,)
            shape[args[1]] = num_unique
        out = (
            recorder.new_tensor(shape, source.dtype, source),
            recorder.new_tensor(inverse, torch.int64, source),
            recorder.new_tensor((num_unique,), torch.int64, source),
        )[: len(func._schema.returns)]
    recorder.record_handled(func, args, kwargs, out)
    recorder.wait("unique")
    return out


@handles(aten.repeat_interleave.Tensor)
def _repeat_interleave(recorder: Recorder, func: Any, args: Args, kwargs: Kwargs) -> Any:
    size = kwargs.get("output_size")
    repeats = args[0]
    if size is None:
        if repeats in recorder.known:
            with recorder.mode.inside():
                size = int(recorder.values.read(repeats).sum().item())
        else:
            size = repeats.numel()
        recorder.wait("repeat_interleave")
    out = recorder.new_tensor((size,), torch.int64, repeats)
    recorder.record_handled(func, args, kwargs, out)
    if repeats in recorder.known and recorder.known.may_hold(out):
        with recorder.mode.inside():
            value = torch.repeat_interleave(recorder.known.of(repeats))
            recorder.known.set_from(repeats, out, value)
    return out


@handles(aten._pack_padded_sequence.default)
def _pack_padded_sequence(recorder: Recorder, func: Any, args: Args, kwargs: Kwargs) -> Any:
    """As its one kernel for all devices does it (aten/src/ATen/native/PackedSequence.cpp): that
    kernel, run on the CPU without features, says how many samples each step has, and what is wrong
    with the lengths."""
    data, lengths, batch_first = args
    if lengths.is_cuda:
        kind = f"{lengths.dim()}D {lengths.device} {SCALAR_TYPES[lengths.dtype]}"
        raise RuntimeError(
            f"'lengths' argument should be a 1D CPU int64 tensor, but got {kind} tensor"
        )
    with recorder.mode.inside():
        steps = torch.zeros((), device="cpu").expand(data.shape[:2])
        batch_sizes = func(steps, recorder.values.read(lengths), batch_first)[1]
    data = data.transpose(0, 1) if batch_first else data
    packed, done = [], 0
    for batch_size, group in itertools.groupby(batch_sizes.tolist()):
        end = done + len(list(group))
        packed.append(data[done:end, :batch_size].reshape(-1, *data.shape[2:]))
        done = end
    return torch.cat(packed), batch_sizes


def _integer_indices(recorder: Recorder, indices: Sequence[Any]) -> list[Any]:
    """Boolean masks among indices as the integer indices they become, with the wait that costs."""
    result: list[Any] = []
    for index in indices:
        if is_mask(index):
            if isinstance(index, ForecastTensor):
                found = _nonzero(recorder, aten.nonzero.default, (index,), {})
                result.extend(
                    _column(recorder, found, dimension) for dimension in range(index.dim())
                )
            else:
                result.extend(index.nonzero(as_tuple=True))
        else:
            result.append(index)
    return result


def _column(recorder: Recorder, found: ForecastTensor, dimension: int) -> ForecastTensor:
    """One coordinate of all elements that a mask selects, with its values where they are known."""
    out = recorder.new_tensor((found.shape[0],), torch.int64, found)
    if found in recorder.known:
        with recorder.mode.inside():
            recorder.known.set_from(found, out, recorder.known.of(found)[:, dimension])
    return out


@handles(aten.index.Tensor)
def _index(recorder: Recorder, func: Any, args: Args, kwargs: Kwargs) -> Any:
    if not any(map(is_mask, args[1])):
        return recorder.run_known(func, args, kwargs)
    recorder.fake_kernels.refuse(func, args, kwargs)
    return recorder.run_known(func, (args[0], _integer_indices(recorder, args[1])), kwargs)


@handles(aten.index_put.default, aten.index_put_.default, aten._index_put_impl_.default)
def _index_put(recorder: Recorder, func: Any, args: Args, kwargs: Kwargs) -> Any:
    if not any(map(is_mask, args[1])):
        return recorder.run_known(func, args, kwargs)
    recorder.fake_kernels.refuse(func, args, kwargs)
    value = args[2]
    if value.dim() > 0 and value.numel() > 1:
        recorder.fake_kernels.require_one_device(func, (args[0], value), {})
        # As many values are put as were selected before: the shape of the value says how many.
        recorder.wait("nonzero")
        out = (
            args[0]
            if func is not aten.index_put.default
            else recorder.fake_kernels.run(aten.clone.default, (args[0],), {})
        )
        recorder.record_handled(func, args, kwargs, out)
        return out
    return recorder.run_known(
        func, (args[0], _integer_indices(recorder, args[1]), *args[2:]), kwargs
    )
