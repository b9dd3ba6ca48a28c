"""A program's Triton kernels are recorded where Triton is not installed."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import partial
from inspect import signature
from typing import Any, cast

import pytest
import torch

import neusight
from neusight.recording.recording import OpCall

NUM = 4096

Wrapper = Callable[[Callable[..., Any]], Any]


def kernels_of(triton: Any) -> tuple[Any, Any]:
    """A kernel as programs write them, and one that is tuned; their bodies never run."""
    tl, jit = triton.language, cast(Wrapper, triton.jit)
    configs = [triton.Config({"BLOCK": 64}), triton.Config({"BLOCK": 128})]
    autotune: Wrapper = triton.autotune(configs=configs, key=[])
    even: Wrapper = triton.heuristics({"EVEN": lambda given: given["n"] % given["BLOCK"] == 0})

    @jit
    def add(x_ptr: Any, y_ptr: Any, n: int, BLOCK: tl.constexpr) -> None:  # type: ignore[name-defined]
        tl.store(y_ptr, tl.load(x_ptr) + tl.program_id(0))

    @autotune
    @even
    @jit
    def tuned(x_ptr: Any, n: int, BLOCK: tl.constexpr, EVEN: tl.constexpr) -> None:  # type: ignore[name-defined]
        raise AssertionError

    return add, tuned


def launches(forecast: neusight.Forecast) -> list[OpCall]:
    entries = [entry for step in forecast.recording.steps for entry in step.entries]
    calls = [entry for entry in entries if isinstance(entry, OpCall)]
    return [call for call in calls if call.signature.op.startswith("triton::")]


def test_a_launch_is_one_kernel_of_its_name_with_its_grid() -> None:
    with neusight.forecast_on("H100") as forecast:
        triton = importlib.import_module("triton")
        add, _ = kernels_of(triton)
        x = torch.ones(NUM, device="cuda")
        add[lambda given: (triton.cdiv(NUM, given["BLOCK"]),)](x, x, NUM, BLOCK=1000)
    [call] = launches(forecast)
    [(kernel, estimate)] = [pair for pair in forecast.kernels if pair[0].name == "add"]

    assert call.signature.by_name["grid"] == (5,)
    assert kernel.num_bytes == 2 * NUM * 4
    assert estimate.high_us > 5 * estimate.latency_us
    assert forecast.coverage["custom"] > 0
    assert "kernels of the program's own by their bytes" in forecast.summary()


def test_a_config_has_tritons_defaults() -> None:
    """triton/runtime/autotuner.py."""
    with neusight.forecast_on("H100"):
        torch.ones(1, device="cuda")
        config = importlib.import_module("triton").Config({"BLOCK": 64})

    assert config.all_kwargs() == {"BLOCK": 64, "num_warps": 4, "num_stages": 3}
    assert (config.num_ctas, config.maxnreg, config.pre_hook) == (1, None, None)


def test_a_kernel_of_tensor_descriptors_is_recorded_by_their_tensors() -> None:
    with neusight.forecast_on("H100") as forecast:
        triton = importlib.import_module("triton")
        described = importlib.import_module("triton.tools.tensor_descriptor").TensorDescriptor
        add, _ = kernels_of(triton)
        x = torch.ones(64, 64, device="cuda")
        whole = described.from_tensor(x, [16, 16])
        part = described(x, shape=[64, 64], strides=[64, 1], block_shape=[16, 16])
        add[(4, 4)](whole, part, NUM, BLOCK=16)
    [call] = launches(forecast)
    [(kernel, _)] = [pair for pair in forecast.kernels if pair[0].name == "add"]

    assert whole.shape == part.shape
    assert call.signature.by_name["grid"] == (4, 4)
    assert kernel.num_bytes == 2 * x.nbytes


def test_the_first_configuration_runs_and_heuristics_are_asked() -> None:
    with neusight.forecast_on("H100") as forecast:
        _, tuned = kernels_of(importlib.import_module("triton"))
        tuned[(8, 2)](torch.ones(NUM, device="cuda"), NUM)
    [call] = launches(forecast)
    given = call.signature.by_name

    assert (given["BLOCK"], given["EVEN"], given["grid"]) == (64, True, (8, 2))


def test_a_triton_op_is_what_it_launches() -> None:
    with neusight.forecast_on("H100") as forecast:
        add, _ = kernels_of(importlib.import_module("triton"))

        @torch.library.triton_op("triton_test::add", mutates_args={})
        def added(x: torch.Tensor) -> torch.Tensor:
            out = torch.empty_like(x)
            torch.library.wrap_triton(add)[(4,)](x, out, NUM, BLOCK=1024)
            return out

        assert added(torch.ones(NUM, device="cuda")).shape == (NUM,)

    assert [call.signature.op for call in launches(forecast)] == ["triton::add"]
    assert forecast.unmapped == []


def test_a_program_may_ask_for_the_gpu_and_measure() -> None:
    with neusight.forecast_on("H100"):
        triton = importlib.import_module("triton")
        add, _ = kernels_of(triton)
        driver = triton.runtime.driver.active
        x = torch.ones(NUM, device="cuda")
        took_ms = triton.testing.do_bench(lambda: add[(4,)](x, x, NUM, BLOCK=1024))
        bench = partial(triton.testing.do_bench, lambda: x + x)
        one, several = bench(quantiles=[0.5]), bench(quantiles=[0.5, 0.2, 0.8])
        every = bench(return_mode="all")
        kernel = add.warmup(x, x, NUM, BLOCK=1024, grid=(1,))
        found = driver.get_device_properties(0)

        assert (driver.get_current_target().arch, found["multiprocessor_count"]) == (90, 132)
        assert driver.get_active_torch_device() == torch.device("cuda", 0)
        assert 0.001 < took_ms < 0.1
        assert several == pytest.approx([one] * 3) and every == pytest.approx([one])
        defaults = [each.default for each in signature(bench.func).parameters.values()][1:]
        assert defaults == [25, 100, None, None, "mean"]  # triton/testing.py
        assert kernel.n_regs > 0


@pytest.mark.parametrize(
    ("gpu", "target"), [("H100", ("cuda", 90, 32)), ("MI300X", ("hip", "gfx942", 64))]
)
def test_its_driver_is_the_targets(gpu: str, target: tuple[Any, ...]) -> None:
    with neusight.forecast_on(gpu):
        torch.ones(1, device="cuda")
        triton = importlib.import_module("triton")
        driver = triton.runtime.driver.active
        found = driver.get_current_target()
        driver.set_current_device(0)
        cache = driver.get_empty_cache_for_benchmark()
        driver.clear_cache(cache)

        assert driver.is_active() and driver.get_device_interface() is torch.cuda
        assert (found.backend, found.arch, found.warp_size) == target
        assert (driver.get_current_device(), driver.get_current_stream()) == (0, 0)
        assert driver.get_benchmarker() is triton.testing.do_bench
        assert (cache.nbytes, cache.is_cuda) == (256 * 2**20, True)


def test_a_benchmark_is_run_point_by_point(capsys: pytest.CaptureFixture[str]) -> None:
    with neusight.forecast_on("H100"):
        torch.ones(1, device="cuda")
        testing = importlib.import_module("triton").testing
        plot = testing.Benchmark(["n"], [1, 2], "provider", ["a", "b"], args={"scale": 10})
        testing.perf_report(plot)(lambda n, provider, scale: f"{provider}{n * scale}").run(
            print_data=True
        )

    assert capsys.readouterr().out == "1 a10 b10\n2 a20 b20\n"


def test_nothing_of_its_language_runs() -> None:
    with neusight.forecast_on("H100"):
        triton = importlib.import_module("triton")
        torch.ones(1, device="cuda")
        tl = triton.language
        words = {torch.float16: tl.float16}
        libdevice = importlib.import_module("triton.language.extra").libdevice

        assert words[torch.float16] is tl.float16
        assert repr(libdevice.tanh) == "triton.language.tanh"
        assert tl.constexpr(3) == 3 == len({tl.constexpr(0), 0, *map(tl.constexpr, (1, 2))})
        assert [bool(tl.constexpr(value)) for value in (0, 2)] == [False, True]
        assert tl.tensor[32] is tl.tensor
        assert range(tl.constexpr(3)) == range(3)
        assert (triton.cdiv(9, 4), triton.next_power_of_2(9)) == (3, 16)
        with pytest.raises(RuntimeError, match="Triton is not installed"):
            tl.load(None)
        add, _ = kernels_of(triton)
        with pytest.raises(RuntimeError, match="Triton is not installed"):
            add[(1,)](torch.ones(1), torch.ones(1), 1, BLOCK=1)
        with pytest.raises(RuntimeError, match="outside of the scope of a kernel"):
            add(None)


def test_torch_goes_on_as_without_triton() -> None:
    with neusight.forecast_on("H100") as forecast:
        importlib.import_module("triton")
        compiled = torch.compile(lambda x: x.sin().cos())
        compiled(torch.ones(NUM, device="cuda"))

    assert not [line for line in forecast.warnings if "eager" in line]
    assert [kernel.variant for kernel, _ in forecast.kernels if kernel.variant] == ["fused"]


def test_packages_derive_tuners_of_their_own() -> None:
    """As flash-linear-attention does, which keeps what was tuned in files."""
    with neusight.forecast_on("H100") as forecast:
        triton = importlib.import_module("triton")

        Kept = type("Kept", (triton.runtime.autotuner.Autotuner,), {})

        add, _ = kernels_of(triton)
        kept = Kept(add, add.arg_names, [triton.Config({"BLOCK": 64})], ["n"], None, None)
        x = torch.ones(NUM, device="cuda")
        kept[(NUM // 64,)](x, x, NUM)
        assert (kept.keys, kept.user_defined_pre_hook) == (["n"], False)

    (launch,) = launches(forecast)
    assert launch.signature.op == "triton::add"


def test_a_compiled_program_has_its_kernels_in_its_graph() -> None:
    with neusight.forecast_on("H100") as forecast:
        triton = importlib.import_module("triton")
        add, tuned = kernels_of(triton)

        def run(x: torch.Tensor) -> torch.Tensor:
            out = torch.empty_like(x)
            add[lambda given: (triton.cdiv(x.numel(), given["BLOCK"]),)](
                x.sin(), out, x.numel(), BLOCK=1000
            )
            tuned[(4,)](out, n=out.numel())
            return out.cos()

        x = torch.ones(NUM, device="cuda")
        run(x)
        torch.compile(run, fullgraph=True)(x)
    eager = launches(forecast)[:2]
    compiled = launches(forecast)[2:]

    assert [call.signature.op for call in compiled] == ["triton::add", "triton::tuned"]
    for one, other in zip(eager, compiled, strict=True):
        assert one.signature.by_name == {
            name: {"True": True, "False": False}.get(str(value), value)
            for name, value in other.signature.by_name.items()
        }
    assert not forecast.unmapped


def test_a_kernel_writes_through_what_its_stores_are_computed_from() -> None:
    def kernel(x_ptr: Any, out_ptr: Any, count_ptr: Any, helped_ptr: Any, n: Any) -> None:
        tl: Any = None
        helper: Any = None
        places = tl.arange(0, 8)
        block = out_ptr + places
        block += n
        tl.store(block, tl.load(x_ptr + places), mask=places < n)
        tl.atomic_add(count_ptr, 1)
        helper(helped_ptr)

    from neusight.stubs.packages.triton import _written_by

    parameters = ("x_ptr", "out_ptr", "count_ptr", "helped_ptr", "n")
    assert _written_by(kernel, parameters) == ("out_ptr", "count_ptr", "helped_ptr", "n")
    assert _written_by(len, parameters) == parameters
