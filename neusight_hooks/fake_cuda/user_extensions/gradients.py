"""Gradients on another device than what they are of: the words of autograd's engine for it.

Its own check (validate_outputs in torch/csrc/autograd/engine.cpp) leaves out tensors without data.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any

import torch

from neusight.fake_cuda.patching import Patches
from neusight.recording.tensor import ForecastTensor


def install_gradients(patches: Patches) -> None:
    """They are checked where a backward begins, and where a function of the program's returns."""
    autograd: Any = import_module("torch.autograd")
    make: Any = autograd._make_grads

    def make_grads(outputs: Sequence[Any], grads: Sequence[Any], *others: Any, **named: Any) -> Any:
        for position, (out, grad) in enumerate(zip(outputs, grads, strict=False)):
            if isinstance(out, torch.Tensor) and _differ(out.device, grad):
                raise RuntimeError(_text("invalid gradient", position, out.device, grad))
        return make(outputs, grads, *others, **named)

    patches.set(autograd, "_make_grads", make_grads)
    node: Any = torch.autograd.function.BackwardCFunction
    run: Any = node.apply

    def apply(self: Any, *args: Any) -> Any:
        found = run(self, *args)
        _check(self, found if isinstance(found, tuple) else (found,))
        return found

    patches.set(node, "apply", apply)


def _check(node: Any, grads: tuple[Any, ...]) -> None:
    """Raises where all inputs of a function are on one device, and a gradient is not."""
    devices = {
        following._input_metadata[index].device
        for following, index in node.next_functions
        if following is not None
    }
    if len(devices) != 1:
        return
    (device,) = devices
    if device.type not in ("cpu", "cuda"):
        return
    for position, grad in enumerate(grads):
        if _differ(device, grad):
            begin = f"Function {type(node).__name__} returned an invalid gradient"
            raise RuntimeError(_text(begin, position, device, grad))


def _differ(device: torch.device, grad: Any) -> bool:
    """A number of no dimension is moved by the engine itself."""
    if not isinstance(grad, torch.Tensor) or not grad.dim() or grad.layout is not torch.strided:
        return False
    is_ours = isinstance(grad, ForecastTensor) or device.type == "cuda"
    return is_ours and grad.device.type != device.type


def _text(begin: str, position: int, device: torch.device, grad: torch.Tensor) -> str:
    return f"{begin} at index {position} - expected device {device} but got {grad.device}"
