"""What calls of stubs return, launch and keep, as a text small enough to review."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

import neusight
from neusight.ops.launched import kernels_of_calls, listening
from neusight.predictors.kernel import Kernel
from places import GOLDEN_FILES

#: Makes what is called, with its tensors, inside a forecast.
Case = Callable[[], Callable[[], Any]]

BF16 = torch.bfloat16


def cuda(*shape: int, dtype: torch.dtype = BF16, grad: bool = True) -> torch.Tensor:
    """A tensor of the forecast."""
    if dtype in (torch.int32, torch.int64):
        return torch.zeros(shape, dtype=dtype, device="cuda")
    made = torch.ones(shape, device="cuda", dtype=dtype)
    return made.requires_grad_(grad)


def assert_as_before(name: str, cases: Mapping[str, Case]) -> None:
    """Compares the calls with tests/golden/stubs; NEUSIGHT_UPDATE_GOLDEN=1 rewrites it."""
    path = GOLDEN_FILES / "stand_ins" / f"{name}.txt"
    text = "\n".join(_lines(cases)) + "\n"
    if os.environ.get("NEUSIGHT_UPDATE_GOLDEN"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")

    assert text == path.read_text(encoding="utf-8")


def _lines(cases: Mapping[str, Case]) -> Iterator[str]:
    """Of each call: what it returns and keeps, and its kernels forward and backward."""
    with neusight.forecast_on("H100"):
        for name, case in cases.items():
            yield name
            yield from _of_call(case())


def _of_call(call: Callable[[], Any]) -> Iterator[str]:
    kept: dict[int, int] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        kept[storage._cdata] = storage.nbytes()
        return tensor

    with listening() as forward, torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
        out = call()
    results = [item for item in _flat(out) if isinstance(item, torch.Tensor)]
    yield f"  returns  {', '.join(map(_tensor, results))}; keeps {sum(kept.values())} bytes"
    yield from _kernels("forward", forward)
    wanted = [item for item in results if item.requires_grad]
    if wanted:
        gradients = [
            torch.ones_like(item, memory_format=torch.contiguous_format) for item in wanted
        ]
        with listening() as backward:
            torch.autograd.backward(wanted, gradients)
        yield from _kernels("backward", backward)


def _kernels(phase: str, calls: Any) -> Iterator[str]:
    kernels, unmapped = kernels_of_calls(calls)
    assert unmapped == []
    for kernel in kernels:
        yield f"  {phase:<8} {_kernel(kernel)}"


def _kernel(kernel: Kernel) -> str:
    size = "x".join(str(int(part)) for part in kernel.size if not isinstance(part, tuple))
    name = f"{kernel.kernel_class.value} {kernel.name} {size} {kernel.dtype}"
    return f"{name}, {kernel.flops} FLOPs, {kernel.bytes_read}+{kernel.bytes_written} bytes"


def _tensor(tensor: torch.Tensor) -> str:
    return f"{'x'.join(map(str, tensor.shape)) or 'scalar'} {str(tensor.dtype)[6:]}"


def _flat(value: Any) -> list[Any]:
    if isinstance(value, (list, tuple)):
        return [part for item in value for part in _flat(item)]
    return [value]
