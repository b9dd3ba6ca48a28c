"""Samples of distributions for which torch has no fake kernels."""

from __future__ import annotations

from typing import Any

import torch

from neusight.recording.handlers.registry import Args, Kwargs, allocates
from neusight.recording.recorder import Recorder

aten = torch.ops.aten


@allocates(aten._sample_dirichlet.default, aten._dirichlet_grad.default, aten.binomial.default)
def _sampled(recorder: Recorder, args: Args, kwargs: Kwargs) -> Any:
    """Torch has no fake kernels for these; each gives a tensor like its first argument."""
    return recorder.fake_kernels.run(aten.empty_like.default, (args[0],), {})
