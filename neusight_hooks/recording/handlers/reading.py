"""Ops by which a program reads numbers and booleans from the GPU; each waits for it."""

from __future__ import annotations

from typing import Any

import torch

from neusight.recording.handlers.registry import Args, Kwargs, handles
from neusight.recording.recorder import Recorder
from neusight.recording.tensor import ForecastTensor
from neusight.recording.values.assertions import passing_truth

aten = torch.ops.aten


@handles(aten._local_scalar_dense.default)
def _item(recorder: Recorder, func: Any, args: Args, kwargs: Kwargs) -> Any:
    recorder.record_handled(func, args, kwargs, None)
    recorder.wait("item")
    with recorder.mode.inside():
        value = recorder.values.read(args[0]).reshape(-1)[0].item()
    return _truth(recorder, args[0], value) if isinstance(value, bool) else value


def _truth(recorder: Recorder, tensor: Any, guess: bool) -> bool:
    """What is known, else what lets the program's own check pass, else the guess."""
    if tensor.device.type != "cuda" or recorder.known.is_sure(tensor):
        return guess
    passing = passing_truth()
    return guess if passing is None else passing


@handles(aten.is_nonzero.default)
def _is_nonzero(recorder: Recorder, func: Any, args: Args, kwargs: Kwargs) -> Any:
    value = _item(recorder, aten._local_scalar_dense.default, args, {})
    return _truth(recorder, args[0], bool(value))


@handles(aten._is_all_true.default)
def _is_all_true(recorder: Recorder, func: Any, args: Args, kwargs: Kwargs) -> Any:
    """How torch asks whether arguments are valid (torch.distributions): those not known
    are, so that no invented value fails a check."""
    out = recorder.run_known(func, args, kwargs)
    if not recorder.known.is_sure(args[0]):
        recorder.known.set(out, torch.tensor(True))
    return out


@handles(aten.allclose.default)
def _allclose(recorder: Recorder, func: Any, args: Args, kwargs: Kwargs) -> Any:
    recorder.fake_kernels.require_one_device(func, args, kwargs)
    recorder.record_handled(func, args, kwargs, None)
    recorder.wait("item")
    if all(not isinstance(t, ForecastTensor) or t in recorder.known for t in args[:2]):
        with recorder.mode.inside():
            first, second = map(recorder.values.read, args[:2])
            return torch.allclose(first, second, *args[2:], **kwargs)
    passing = passing_truth()
    return True if passing is None else passing


@handles(aten.equal.default)
def _equal(recorder: Recorder, func: Any, args: Args, kwargs: Kwargs) -> Any:
    recorder.fake_kernels.require_one_device(func, args, kwargs)
    recorder.record_handled(func, args, kwargs, None)
    recorder.wait("equal")
    known = all(not isinstance(t, ForecastTensor) or t in recorder.known for t in args)
    if known and args[0].shape == args[1].shape:
        with recorder.mode.inside():
            return torch.equal(recorder.values.read(args[0]), recorder.values.read(args[1]))
    if tuple(args[0].shape) != tuple(args[1].shape):
        return False
    passing = passing_truth()
    return True if passing is None else passing


@handles(aten._amp_foreach_non_finite_check_and_unscale_.default)
def _amp_check(recorder: Recorder, func: Any, args: Args, kwargs: Kwargs) -> Any:
    recorder.record_handled(
        func, args, kwargs, None
    )  # gradients are taken as finite: found_inf stays 0


@handles(aten._amp_update_scale_.default)
def _amp_update(recorder: Recorder, func: Any, args: Args, kwargs: Kwargs) -> Any:
    recorder.record_handled(func, args, kwargs, None)  # the scale stays: growth is every 2000 steps
    return args[0]
