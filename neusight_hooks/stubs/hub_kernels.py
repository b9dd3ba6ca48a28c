"""Kernels that transformers fetches from the Hugging Face hub, where `kernels` is not installed."""

from __future__ import annotations

from contextlib import ExitStack
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
            matmul=_matmul, batched_matmul=_refuse, grouped_matmul=_refuse
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
    if weight.element_size() != 1 or weight.dtype is torch.int8:
        raise NotImplementedError("products with packed weights of 4 bits are not forecast")
    count_use(_PACKAGE, _LABEL)
    out: Tensor = _op()(input, weight, scales, output_dtype or input.dtype)
    return out


def _refuse(*args: Any, **settings: Any) -> Any:
    raise NotImplementedError(
        "experts in FP8 are not forecast without the package that has their kernels: "
        "pip install kernels, or model.set_experts_implementation('eager')"
    )


_made: list[Any] = []


def _op() -> Any:
    if not _made:
        _made.append(
            make_op(
                "finegrained_fp8::matmul_2d(Tensor input, Tensor weight, Tensor scales, "
                "ScalarType dtype) -> Tensor",
                lambda input, weight, scales, dtype: input.new_empty(
                    (*input.shape[:-1], weight.shape[0]), dtype=dtype
                ),
            )
        )
    return _made[0]
