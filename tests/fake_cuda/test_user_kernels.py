"""Triton kernels of the program's own are launched by name and priced by their tensors."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest
import torch

import neusight
from neusight.recording.recording import OpCall, TensorSpec

NUM = 4096


class JITFunction:
    """As triton.runtime.jit has it, which is not installed here."""

    __name__ = "add_kernel"
    arg_names = ("x", "out", "n", "BLOCK")

    def run(self, *args: Any, grid: Any = None, warmup: bool = False, **kwargs: Any) -> str:
        return "compiled"


class Autotuner:
    """As triton.runtime.autotuner has it."""

    def __init__(self) -> None:
        self.fn = JITFunction()
        self.configs = [type("Config", (), {"kwargs": {"BLOCK": size}}) for size in (64, 128)]

    def run(self, *args: Any, **kwargs: Any) -> str:
        return "timed"


@pytest.fixture
def triton(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, held in (("jit", JITFunction), ("autotuner", Autotuner)):
        module = ModuleType(f"triton.runtime.{name}")
        setattr(module, held.__name__, held)
        monkeypatch.setitem(sys.modules, module.__name__, module)


def launched(forecast: neusight.Forecast) -> list[OpCall]:
    entries = [entry for step in forecast.recording.steps for entry in step.entries]
    calls = [entry for entry in entries if isinstance(entry, OpCall)]
    return [call for call in calls if call.signature.op.startswith("triton::")]


def test_a_kernel_moves_each_of_its_tensors_once(triton: None) -> None:
    with neusight.forecast_on("H100") as forecast:
        x = torch.randn(NUM, device="cuda")
        JITFunction().run(x, torch.empty_like(x), NUM, grid=(4,), warmup=False, BLOCK=1024)
    [call] = launched(forecast)
    [kernel] = [kernel for kernel, _ in forecast.kernels if kernel.name == "add_kernel"]

    assert call.signature.arguments[2:] == (("n", NUM), ("BLOCK", 1024), ("grid", (4,)))
    assert kernel.num_bytes == 2 * NUM * 4
    assert any("triton::add_kernel" in line for line in forecast.warnings)
    assert forecast.unmapped == []


def test_of_configurations_the_first_runs(triton: None) -> None:
    with neusight.forecast_on("H100") as forecast:
        x = torch.randn(NUM, device="cuda")
        Autotuner().run(x, x, NUM, grid=(4,))
    [call] = launched(forecast)

    assert call.signature.by_name["BLOCK"] == 64


def test_what_runs_on_no_forecast_tensor_runs_as_ever(triton: None) -> None:
    with neusight.forecast_on("H100"):
        torch.ones(2, device="cuda")
        inside = JITFunction().run(torch.ones(2), grid=(1,))

    assert (inside, JITFunction().run(), Autotuner().run()) == ("compiled", "compiled", "timed")


def test_a_program_may_say_what_its_kernel_does(triton: None) -> None:
    from neusight.ops import unregister_op
    from neusight.predictors.kernel import Kernel

    @neusight.register_op("triton::add_kernel")
    def add(call: Any, math: Any, *, x: TensorSpec, **others: Any) -> list[Kernel]:
        return [Kernel.gemm(x.numel, 1, 1, dtype="float32")]

    try:
        with neusight.forecast_on("H100") as forecast:
            x = torch.randn(NUM, device="cuda")
            JITFunction().run(x, x, NUM, grid=(4,))
        flops = [kernel.flops for kernel, _ in forecast.kernels]
    finally:
        unregister_op("triton::add_kernel")

    assert 2 * NUM in flops


def test_a_jitted_element_broadcasts_and_promotes() -> None:
    code = "template <typename T> T add(T x, T y, T alpha) { return x + alpha * y; }"
    with neusight.forecast_on("H100") as forecast:
        add = torch.cuda.jiterator._create_jit_fn(code, alpha=1.0)
        x = torch.randn(64, 1, device="cuda")
        y = torch.randn(32, device="cuda", dtype=torch.bfloat16)
        out = add(x, y, alpha=2.0)
        assert (out.shape, out.dtype, out.device.type) == ((64, 32), torch.float32, "cuda")
    [kernel] = [kernel for kernel, _ in forecast.kernels if kernel.name == "add"]

    assert kernel.num_bytes == 64 * 4 + 32 * 2 + 64 * 32 * 4
    assert forecast.unmapped == []
