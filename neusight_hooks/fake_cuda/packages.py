"""Packages that come later or cannot come at all: hooks on import, words for CUDA-only ones."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import torch

from neusight.fake_cuda.import_hooks import when_imported
from neusight.fake_cuda.inlined import is_tracers_tensor
from neusight.fake_cuda.patching import Patches
from neusight.recording.tensor import ForecastTensor

#: Packages that install or import only where CUDA is.
CUDA_ONLY = (
    "flash_attn",
    "apex",
    "xformers",
    "bitsandbytes",
    "triton",
    "deepspeed",
    "transformer_engine",
    "vllm",
    "cupy",
    "mamba_ssm",
    "causal_conv1d",
)


#: Modules whose cached functions ask torch.cuda.
_KEEPS_ANSWERS = (
    "torch.cuda",
    "torch.utils._triton",
    "transformers.utils.import_utils",
    "accelerate.utils.imports",
    "accelerate.utils.environment",
)


#: Modules that do with a plain tensor what they do with no subclass: quanto packs its values.
_COMPARES_TYPES = (
    "optimum.quanto.library.qbytes_mm",
    "optimum.quanto.tensor.qtensor",
    "optimum.quanto.tensor.weights.qbits",
    "optimum.quanto.tensor.weights.tinygemm.qbits",
)


def cuda_only_package(error: ImportError) -> str | None:
    """The CUDA-only package whose import failed, if it was one."""
    name = (error.name or "").partition(".")[0]
    return name if name in CUDA_ONLY else None


def install_packages(
    patches: Patches, take_over: Callable[[Any, Callable[..., Any]], None]
) -> None:
    """Libraries that keep what torch.cuda answered ask again, inside and afterwards; those that
    treat fake tensors as a sign of tracing take the eager path for forecasts."""
    _forget_answers()
    patches.on_restore(_forget_answers)

    def patch_transformers(module: Any) -> None:
        patches.replace_code(module, "is_fake_tensor", is_tracers_tensor)

    when_imported(patches, "transformers.utils.import_utils", patch_transformers)
    for name in _COMPARES_TYPES:
        when_imported(patches, name, lambda module: patches.set(module, "type", _type_of))

    def patch_quanto(module: Any) -> None:  # Python for all devices, which torch runs whole
        for name in ("quantize_affine", "quantize_symmetric"):
            op = getattr(torch.ops.quanto, name).default
            key = torch._C.DispatchKey.CompositeExplicitAutograd
            take_over(op, functools.partial(op._op_dk, key))

    when_imported(patches, "optimum.quanto.library.quantize", patch_quanto)


def _type_of(value: object) -> type:
    """The type of a value, for a tensor of the GPU the one that it has there."""
    if type(value) is not ForecastTensor:
        return type(value)
    return torch.nn.Parameter if isinstance(value, torch.nn.Parameter) else torch.Tensor


def _forget_answers() -> None:
    for name in _KEEPS_ANSWERS:
        for function in list(vars(sys.modules.get(name, object)).values()):
            if isinstance(function, functools._lru_cache_wrapper):
                function.cache_clear()
