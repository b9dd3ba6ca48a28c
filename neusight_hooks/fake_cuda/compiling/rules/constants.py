"""What a compiler computes by itself, it computes on the CPU: there is no device that could."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode


class OnCPU(TorchDispatchMode):  # type: ignore[no-untyped-call, unused-ignore]
    """Tensors that are made on a GPU are made on the CPU in here."""

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        given = dict(kwargs or {})
        if func is torch.ops.prims.device_put.default:
            return args[0]
        if given.get("device") is not None and torch.device(given["device"]).type == "cuda":
            given["device"] = torch.device("cpu")
            given.pop("pin_memory", None)
            given.pop("non_blocking", None)
        return func(*args, **given)
