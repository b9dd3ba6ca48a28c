"""PyTorch's oldest types of the GPU: typed storages and sparse tensors."""

from __future__ import annotations

from typing import Any

import torch

from neusight.fake_cuda.patching import Patches

#: What they hold, by the first part of their names.
DTYPES_BY_NAME = {
    "Float": torch.float32,
    "Double": torch.float64,
    "Half": torch.float16,
    "BFloat16": torch.bfloat16,
    "Long": torch.int64,
    "Int": torch.int32,
    "Short": torch.int16,
    "Char": torch.int8,
    "Byte": torch.uint8,
    "Bool": torch.bool,
    "ComplexFloat": torch.complex64,
    "ComplexDouble": torch.complex128,
}


def install_legacy_types(patches: Patches) -> None:
    """torch.cuda.FloatStorage, torch.cuda.sparse.FloatTensor and their like make tensors of today
    until `patches.restore()`."""
    import torch.cuda.sparse

    for name, dtype in DTYPES_BY_NAME.items():
        storage = getattr(torch.cuda, f"{name}Storage", None)
        if storage is not None:
            patches.set(storage, "__new__", staticmethod(_storage_of(dtype)))
        if hasattr(torch.cuda.sparse, f"{name}Tensor"):
            patches.set(torch.cuda.sparse, f"{name}Tensor", _sparse_of(dtype))


def _storage_of(dtype: torch.dtype) -> Any:
    def new(cls: Any, *args: Any, **kwargs: Any) -> Any:
        if args and isinstance(args[0], (list, tuple)):
            held: Any = torch.tensor(args[0], dtype=dtype, device="cuda")
        else:
            held = torch.empty(*(args or (0,)), dtype=dtype, device="cuda")
        return held._typed_storage()

    return new


def _sparse_of(dtype: torch.dtype) -> Any:
    make: Any = torch.sparse_coo_tensor

    def new(*args: Any) -> Any:
        if args and isinstance(args[0], torch.Tensor):
            return make(*args, dtype=dtype, device="cuda")
        size = args[0] if args and isinstance(args[0], torch.Size) else args or (0,)
        return make(size, dtype=dtype, device="cuda")

    return new
