"""Checks of numbers that a forecast does not have: they run what they check, and pass."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import torch

from neusight.fake_cuda.patching import Patches
from neusight.recording.call_stack import call_site
from neusight.recording.recorder import Recorder
from neusight.recording.tensor import ForecastTensor


def install_numeric_checks(patches: Patches, recorder: Recorder) -> None:
    """torch.autograd.gradcheck and torch.testing.assert_close on the GPU."""
    gradcheck: Any = import_module("torch.autograd.gradcheck")
    for name in ("gradcheck", "gradgradcheck"):
        patches.replace_code(gradcheck, name, _passing(name, recorder, getattr(gradcheck, name)))
    _install_comparison(patches, recorder)


def _passing(name: str, recorder: Recorder, given: Any) -> Any:
    plain = type(given)(given.__code__, given.__globals__, name, given.__defaults__)
    plain.__kwdefaults__ = given.__kwdefaults__

    def check(func: Any, inputs: Any, *args: Any, **kwargs: Any) -> bool:
        values = inputs if isinstance(inputs, (list, tuple)) else (inputs,)
        if not any(isinstance(value, ForecastTensor) for value in values):
            return bool(plain(func, inputs, *args, **kwargs))
        recorder.warn_once(f"{name} at {call_site()} passes: a forecast has no numbers to compare")
        out = func(*values)
        outputs = out if isinstance(out, (list, tuple)) else (out,)
        wanted = [o for o in outputs if isinstance(o, torch.Tensor) and o.requires_grad]
        leaves = [v for v in values if isinstance(v, torch.Tensor) and v.requires_grad]
        if wanted and leaves:
            ones = [torch.ones_like(o) for o in wanted]
            torch.autograd.grad(wanted, leaves, ones, allow_unused=True)
        return True

    return check


def _install_comparison(patches: Patches, recorder: Recorder) -> None:
    """What assert_close does at its end; shapes, dtypes and devices were compared before."""
    comparison: Any = import_module("torch.testing._comparison")
    compare: Any = comparison.TensorLikePair._compare_regular_values_close

    def compare_known(self: Any, actual: Any, expected: Any, **options: Any) -> None:
        tensors = (actual, expected)
        if all(not isinstance(t, ForecastTensor) or t in recorder.known for t in tensors):
            compare(self, actual, expected, **options)
            return
        recorder.wait("item")
        recorder.warn_once(
            f"assert_close at {call_site()} passes: a forecast has no numbers to compare"
        )

    patches.set(comparison.TensorLikePair, "_compare_regular_values_close", compare_known)
