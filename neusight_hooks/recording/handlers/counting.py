"""Choices among few and how often each was made: the experts of tokens, and their shares.

Which expert a router prefers is unknown. Tokens are spread over all in turn, so that each gets
its equal share, as the losses that balance routers want it; what is counted of that follows.
"""

from __future__ import annotations

from typing import Any

import torch

from neusight.recording.handlers.registry import Args, Kwargs, handles
from neusight.recording.recorder import Recorder
from neusight.recording.tensor import ForecastTensor

aten = torch.ops.aten

#: Most experts of a layer (DeepSeek-V3 has 256, Kimi K2 384); more to choose from are words.
MAX_EXPERTS = 512


def _set_invented(recorder: Recorder, tensor: ForecastTensor, values: torch.Tensor) -> None:
    recorder.known.set(tensor, values.reshape(tensor.shape).to(tensor.dtype))
    recorder.known.record_invented(tensor)


def _in_turn(number: int, size: int) -> torch.Tensor:
    return torch.arange(number, device="cpu").remainder_(size)


def _shares(total: int, size: int) -> torch.Tensor:
    """The equal shares of `total` among `size`; the first ones get the remainder."""
    each, rest = divmod(total, size)
    return (torch.arange(size, device="cpu") < rest).long() + each


@handles(aten.topk.default)
def _topk(recorder: Recorder, func: Any, args: Args, kwargs: Kwargs) -> Any:
    """The choices of a router's rows are taken in turn, so that experts get equal shares; other
    choices are the first places of their row, which differ, as a beam search needs them."""
    out = recorder.run_known(func, args, kwargs)
    indices, scores = out[1], args[0]
    dim = kwargs.get("dim", args[2] if len(args) > 2 else -1)
    if indices in recorder.known or not recorder.known.may_hold(indices):
        return out
    is_last = dim in (-1, scores.dim() - 1)
    is_router = scores.dim() > 1 and is_last and scores.shape[-1] <= MAX_EXPERTS
    with recorder.mode.inside():
        if is_router:
            _set_invented(recorder, indices, _in_turn(indices.numel(), scores.shape[-1]))
        elif scores.dim() and indices.numel():
            _set_invented(recorder, indices, _places(indices, dim))
    return out


def _places(indices: ForecastTensor, dim: int) -> torch.Tensor:
    """The place of each element along a dimension."""
    shape = [1] * indices.dim()
    shape[dim] = -1
    count = torch.arange(indices.shape[dim], device="cpu")
    return count.reshape(shape).expand(tuple(indices.shape)).contiguous()


@handles(aten.scatter.value, aten.scatter_.value)
def _scatter(recorder: Recorder, func: Any, args: Args, kwargs: Kwargs) -> Any:
    """Ones at choices that were invented, in what is not known: taken for zeros, as routers count
    the tokens of an expert. A choice not known is invented here: `one_hot` of an argmax."""
    out = recorder.run_known(func, args, kwargs)
    dim, index, value = args[1:4]
    if (
        value == 1
        and not kwargs
        and out not in recorder.known
        and recorder.known.may_hold(out, are_whole=True)
    ):
        with recorder.mode.inside():
            chosen = _chosen(recorder, out, dim, index)
            if chosen is not None:
                ones = torch.zeros(tuple(out.shape), dtype=torch.long, device="cpu")
                _set_invented(recorder, out, ones.scatter_(dim, chosen, 1))
    return out


def _chosen(recorder: Recorder, out: Any, dim: int, index: Any) -> torch.Tensor | None:
    """Which places of `out` were invented, or one in turn of few where that is not known."""
    if recorder.known.is_invented(index):
        return recorder.known.of(index)
    is_one = dim in (-1, out.dim() - 1) and index.shape[-1:] == (1,)
    if index in recorder.known or not is_one or out.shape[-1] > MAX_EXPERTS:
        return None
    return _in_turn(index.numel(), out.shape[-1]).reshape(index.shape)


@handles(aten.bincount.default)
def _bincount(recorder: Recorder, func: Any, args: Args, kwargs: Kwargs) -> Any:
    recorder.fake_kernels.require_one_device(func, args, kwargs)
    recorder.fake_kernels.refuse(func, args, kwargs)
    minlength = kwargs.get("minlength", args[2] if len(args) > 2 else 0)
    weights = kwargs.get("weights", args[1] if len(args) > 1 else None)
    source, counts, dtype = args[0], None, torch.int64
    if weights is not None:  # weights are added, not counted (SummaryOps.cu)
        dtype = torch.float32 if weights.dtype is torch.float32 else torch.float64
    with recorder.mode.inside():
        if source in recorder.known and weights is None:
            counts = torch.bincount(recorder.known.of(source), minlength=minlength)
        elif minlength and weights is None:
            counts = _shares(source.numel(), minlength)
    size = max(1, minlength) if counts is None else counts.numel()
    out = recorder.new_tensor((size,), dtype, source)
    recorder.record_handled(func, args, kwargs, out)
    if counts is not None:
        with recorder.mode.inside():
            recorder.known.set(out, counts)
        if not recorder.known.is_sure(source):
            recorder.known.record_invented(out)
    recorder.wait("bincount")
    return out


@handles(aten.histc.default)
def _histc(recorder: Recorder, func: Any, args: Args, kwargs: Kwargs) -> Any:
    out = recorder.run_known(func, args, kwargs)
    if out not in recorder.known and out.numel() <= MAX_EXPERTS:
        with recorder.mode.inside():
            _set_invented(recorder, out, _shares(args[0].numel(), out.numel()))
    return out
