"""Packages that come later or cannot come at all: hooks on import, words for CUDA-only ones."""

from __future__ import annotations

import functools
import sys
from typing import Any

from neusight.fake_cuda.import_hooks import when_imported
from neusight.fake_cuda.patching import Patches

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


def cuda_only_package(error: ImportError) -> str | None:
    """The CUDA-only package whose import failed, if it was one."""
    name = (error.name or "").partition(".")[0]
    return name if name in CUDA_ONLY else None


def install_packages(patches: Patches) -> None:
    """Libraries that keep what torch.cuda answered ask again, inside and afterwards; those that
    treat fake tensors as a sign of tracing take the eager path for forecasts."""
    _forget_answers()
    patches.on_restore(_forget_answers)

    def patch_transformers(module: Any) -> None:
        from neusight.fake_cuda.inlined import is_tracers_tensor

        patches.replace_code(module, "is_fake_tensor", is_tracers_tensor)

    when_imported(patches, "transformers.utils.import_utils", patch_transformers)


def _forget_answers() -> None:
    for name in _KEEPS_ANSWERS:
        for function in list(vars(sys.modules.get(name, object)).values()):
            if isinstance(function, functools._lru_cache_wrapper):
                function.cache_clear()
