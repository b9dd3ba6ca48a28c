"""Kernels that transformers fetches from the Hugging Face hub, where `kernels` is not installed."""

from __future__ import annotations

from contextlib import ExitStack
from functools import cache
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from neusight.fake_cuda.import_hooks import when_imported
from neusight.fake_cuda.patching import Patches
from neusight.stubs.stub_ops import count_use, make_op

_PACKAGE = "kernels"
_LABEL = "finegrained-fp8"

#: The module of transformers (5.24) with the place of the kernels once they are there.
_INTEGRATION = "transformers.integrations.finegrained_fp8"
_LOADED = "_FINEGRAINED_FP8"


def install_hub_kernels(undo: ExitStack) -> None:
    """Layers of `FineGrainedFP8Config` find a product until `undo` ends."""
    patches = Patches()
    undo.enter_context(patches.undo)
    when_imported(patches, _INTEGRATION, lambda module: _provide(patches, module))


def _provide(patches: Patches, module: Any) -> None:
    has_place = hasattr(module, "FineGrainedFP8") and getattr(module, _LOADED, 0) is None
    if has_place and find_spec(_PACKAGE) is None:
        kernels = module.FineGrainedFP8(
            matmul=_matmul, batched_matmul=_experts, grouped_matmul=_experts
        )
        patches.set(module, _LOADED, kernels)


def _matmul(
    input: Tensor,
    weight: Tensor,
    scales: Tensor,
    block_size: Any = None,
    output_dtype: torch.dtype | None = None,
    **settings: Any,
) -> Tensor:
    """A product that quantizes its rows as it reads them, with a weight of 8 bits."""
    _count(weight)
    out: Tensor = _op("matmul_2d")(input, weight, scales, output_dtype or input.dtype)
    return out


def _experts(input: Tensor, weight: Tensor, scales: Tensor, **settings: Any) -> Tensor:
    """Products of rows with the weights, of 8 bits, of the experts that they go to."""
    _count(weight)
    out: Tensor = _op("matmul_experts")(input, weight, scales, input.dtype)
    return out


def _count(weight: Tensor) -> None:
    if weight.element_size() != 1 or weight.dtype is torch.int8:
        raise NotImplementedError("products with packed weights of 4 bits are not forecast")
    count_use(_PACKAGE, _LABEL)


@cache
def _op(name: str) -> Any:
    return make_op(
        f"finegrained_fp8::{name}(Tensor input, Tensor weight, Tensor scales, "
        "ScalarType dtype) -> Tensor",
        lambda input, weight, scales, dtype: input.new_empty(
            (*input.shape[:-1], weight.shape[-2]), dtype=dtype
        ),
    )
