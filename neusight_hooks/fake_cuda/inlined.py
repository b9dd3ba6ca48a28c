"""Answers that programs ask for while they are compiled: Dynamo looks into this file, unlike others
of neusight, and compiles what stands here with the program."""

from __future__ import annotations

import torch

from neusight.recording.tensor import ForecastTensor

__all__ = ["is_tracers_tensor"]

_FakeTensor = torch._subclasses.FakeTensor


def is_tracers_tensor(x: object) -> bool:
    """Whether somebody traces the program with tensors that hold no data; those of a forecast stand
    for a GPU's."""
    return isinstance(x, _FakeTensor) and not isinstance(x, ForecastTensor)
