"""Samples of distributions for which torch has no fake kernels."""

from __future__ import annotations

from typing import Any

import torch

from neusight.recording.handlers.registry import Args, Kwargs, handles
from neusight.recording.recorder import Recorder

aten = torch.ops.aten


@handles(aten._sample_dirichlet.default, aten._dirichlet_grad.default, aten.binomial.default)
def _sampled(recorder: Recorder, func: Any, args: Args, kwargs: Kwargs) -> Any:
    """Torch has no fake kernels for these; each gives a tensor like its first argument."""
    out = recorder.fake_kernels.run(aten.empty_like.default, (args[0],), {})
    recorder.record_handled(func, args, kwargs, out)
    return out
