"""Which kernels a call launches on whatever device it runs on, as a forecast describes them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode

from neusight.ops import map_op
from neusight.predictors.kernel import Kernel
from neusight.recording.recording import MathMode, OpSignature
from neusight.recording.signature import math_mode, signature_of


def kernels_launched_by(function: Callable[[], object]) -> tuple[tuple[Kernel, ...], list[str]]:
    """The kernels, as a forecast describes them, of one call on whatever device it runs on, and
    the names of the ops without a description."""
    with listening() as calls:
        function()
    return kernels_of_calls(calls)


def kernels_of_calls(
    calls: Sequence[tuple[OpSignature, MathMode]],
) -> tuple[tuple[Kernel, ...], list[str]]:
    """The kernels of what was recorded, and the names of the ops without a description."""
    mappings = [(signature, map_op(signature, math)) for signature, math in calls]
    unmapped = [signature.op for signature, mapping in mappings if not mapping.is_mapped]
    return tuple(kernel for _, mapping in mappings for kernel in mapping.kernels), unmapped


@contextmanager
def listening() -> Iterator[list[tuple[OpSignature, MathMode]]]:
    """Records every op that is dispatched inside, also by a backward pass."""
    with _Listener() as listener:
        yield listener.calls


class _Listener(TorchDispatchMode):  # type: ignore[no-untyped-call, unused-ignore]
    """Keeps what is dispatched while it is open."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call, unused-ignore]
        self.calls: list[tuple[OpSignature, MathMode]] = []

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        self.calls.append((signature_of(func, args, kwargs or {}, out), math_mode()))
        return out
