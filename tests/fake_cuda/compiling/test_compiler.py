"""torch.compile runs whole inside a forecast, and leaves nothing behind."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import pytest
import torch
from compiled_net import Net, infer, ops, steady, torch_compile

import neusight
from neusight.compatibility.torch_internals import TorchInternal, table
from neusight.fake_cuda.compiling import compiler
from neusight.fake_cuda.compiling.compiler import inductor_query_result
from neusight.predictors.errors import ForecastStateError
from neusight.predictors.gpu import find_gpu
from neusight.predictors.kernel import Kernel, KernelClass

#: Kernels and ops of a training step, in order, by Inductor of torch 2.13.
STEP = [
    ("forward", "aten::addmm"),
    ("forward", "aten::randint"),
    ("forward", "inductor::triton_per_fused_gelu_native_dropout_native_layer_norm_0"),
    ("forward", "aten::addmm"),
    ("backward", "aten::mm"),
    ("backward", "aten::mm"),
    ("backward", "inductor::triton_red_fused_sum_0"),
    ("backward", "inductor::triton_per_fused_gelu_gelu_backward_native_dropout_backward_"
     "native_layer_norm_native_layer_norm_backward_1"),
    ("backward", "inductor::triton_red_fused_gelu_gelu_backward_native_dropout_backward_"
     "native_layer_norm_native_layer_norm_backward_2"),
    ("backward", "aten::mm"),
    ("backward", "inductor::triton_red_fused_sum_3"),
]  # fmt: skip


def test_a_training_step_launches_what_inductor_fused(compiled: neusight.Forecast) -> None:
    inside = [(call.phase, call.signature.op) for call in steady(compiled) if call.module]

    assert inside == STEP


def test_kernels_belong_to_the_modules_that_they_come_from(compiled: neusight.Forecast) -> None:
    modules = {call.module for call in steady(compiled) if "triton_per" in call.signature.op}

    assert modules == {"Net.norm"}


def test_later_steps_are_equal_and_compile_nothing(compiled: neusight.Forecast) -> None:
    _, *later = [ops(step) for step in compiled.recording.steps if step.kind == "train"]

    assert later == [later[0]] * len(later)
    assert not compiled.warnings


def test_fusion_moves_fewer_bytes_and_keeps_the_products(
    compiled: neusight.Forecast, eager: neusight.Forecast
) -> None:
    def totals(forecast: neusight.Forecast) -> tuple[int, int]:
        kernels: list[Kernel] = [
            kernel for call in steady(forecast) for kernel, _ in forecast.pricer(call)
        ]
        products = [kernel for kernel in kernels if kernel.kernel_class is KernelClass.GEMM]
        return sum(k.num_bytes for k in kernels), sum(kernel.flops for kernel in products)

    assert totals(compiled)[0] < totals(eager)[0]
    assert totals(compiled)[1] == totals(eager)[1]


def test_every_kernel_has_a_price(compiled: neusight.Forecast) -> None:
    assert compiled.unmapped == []


def test_its_memory_comes_and_goes(compiled: neusight.Forecast, eager: neusight.Forecast) -> None:
    assert compiled.peak_memory_bytes <= eager.peak_memory_bytes


def test_a_recording_loads_and_is_priced_where_fusion_is_the_same(
    compiled: neusight.Forecast, tmp_path: Path
) -> None:
    compiled.save(tmp_path / "saved.json")

    again = neusight.Forecast.load(tmp_path / "saved.json")

    assert again.summary() == compiled.summary()
    assert again.on("H200").step_latency_us.median > 0
    with pytest.raises(ForecastStateError, match="inductor"):
        again.on("A100")


def test_fusion_depends_on_architecture_and_size() -> None:
    answers = {
        inductor_query_result("inductor", find_gpu(name)) for name in ("H100", "H200", "A100")
    }

    assert len(answers) == 2
    assert inductor_query_result("get_device_name", find_gpu("H100")) is None


def needed() -> dict[str, object]:
    return {
        row.name: resolve_name(row.name)
        for row in table()
        if row.feature == "compiling"
        and row.name.startswith(("torch._dynamo.", "torch._functorch.", "torch._inductor."))
        and row.check == "attribute"
        # A method that is made again at each look, and what torch counts in.
        and not row.name.endswith(("_type_dispatch", "counters", "graph_break_reasons"))
    }


def test_afterwards_torch_compiles_as_before() -> None:
    before = {name: str(value) for name, value in needed().items()}

    with neusight.forecast_on("H100"):
        function: Any = torch_compile(lambda x: torch.relu(x) + 1)
        function(torch.ones(4, device="cuda"))
    after: Any = torch_compile(lambda x: x + 1, backend="eager")

    assert {name: str(value) for name, value in needed().items()} == before
    assert after(torch.ones(2)).tolist() == [2.0, 2.0]


def test_arguments_of_distributions_are_checked_again_afterwards(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.distributions.Distribution, "_validate_args", True)

    for _ in range(2):
        with neusight.forecast_on("H100"):
            mean = torch.zeros(3, device="cuda")
            torch.distributions.Normal(mean, 1.0)
            torch_compile(torch.relu)(mean)
            assert not torch.distributions.Normal(mean, 1.0)._validate_args  # as torch leaves it
        assert torch.distributions.Normal(torch.zeros(3), 1.0)._validate_args


def test_what_was_compiled_before_is_compiled_again_inside() -> None:
    function: Any = torch_compile(lambda x: torch.relu(x) + 1, backend="inductor")

    with neusight.forecast_on("H100") as forecast:
        function(torch.ones(4, device="cuda"))

    assert "inductor::triton_poi_fused_add_relu_0" in ops(*forecast.recording.steps)


def test_a_module_compiled_in_place_keeps_its_name_and_its_steps() -> None:
    with neusight.forecast_on("H100") as forecast:
        net = Net().cuda().eval()
        net.compile()
        infer(net)
    eval_steps = [step for step in forecast.recording.steps if step.kind == "eval"]

    assert sum(step.count for step in eval_steps) == 5
    assert {call.module.partition(".")[0] for call in steady(forecast)} == {"", "Net"}


def test_a_graph_break_splits_what_is_fused_and_invents_the_value() -> None:
    with neusight.forecast_on("H100") as forecast:
        net = Net().cuda().eval()

        @torch.compile
        def function(x: torch.Tensor) -> torch.Tensor:
            y = net(x)
            if y.sum().item() > 0:
                y = y * 2
            return torch.relu(y)

        infer(function)
    names = [name for name in ops(forecast.recording.steps[1]) if name.startswith("inductor")]

    assert names[-2:] == [
        "inductor::triton_red_fused_sum_1",
        "inductor::triton_poi_fused_mul_relu_0",
    ]
    assert "aten::_local_scalar_dense" in ops(forecast.recording.steps[1])
    assert any("invented" in text for text in forecast.warnings)


def test_sizes_that_change_are_compiled_once_more_and_priced_by_the_call() -> None:
    with neusight.forecast_on("H100") as forecast:
        infer(torch.compile(Net().cuda().eval()), (64, 32, 48, 16))
    moved = [
        kernel.num_bytes
        for kernel, _ in forecast.kernels
        if kernel.name == "triton_per_fused_gelu_native_layer_norm_0"
    ]

    norm = 2 * 512 * 4  # weight and bias
    assert [size - norm for size in moved[1:]] == [
        (moved[1] - norm) * batch // 32 for batch in (32, 48, 16)
    ]


def test_other_backends_are_eager_and_named() -> None:
    with neusight.forecast_on("H100") as forecast:
        net = Net().cuda().eval()
        same = torch.compile(net, backend="tvm") is net
        infer(torch.compile(net, backend="aot_eager"))

    assert same
    assert "aten::native_layer_norm" in ops(*forecast.recording.steps)
    assert forecast.warnings == ['backend "tvm" is forecast as eager']


def test_a_backend_that_nobody_knows_is_torchs_to_refuse() -> None:
    with pytest.raises(Exception, match="no_such"), neusight.forecast_on("H100"):
        infer(torch.compile(Net().cuda(), backend="no_such"))


def test_where_torch_has_moved_a_name_the_program_is_eager(monkeypatch: pytest.MonkeyPatch) -> None:
    gone = TorchInternal("torch._inductor.gone", "neusight", "compiling", "attribute")
    monkeypatch.setattr(compiler, "missing", lambda feature: [gone])

    with neusight.forecast_on("H100") as forecast:
        net = Net().cuda().eval()
        same = torch.compile(net) is net
        net.compile()

        @torch.compile
        def double(x: torch.Tensor) -> torch.Tensor:
            return x * 2

        infer(net)
        double(torch.ones(3, device="cuda"))

    assert same
    assert [text for text in forecast.warnings if "torch.compile" in text] == [
        f"torch.compile is forecast as eager: torch {torch.__version__} has no torch._inductor.gone"
    ]


@pytest.mark.slow
def test_inductor_is_imported_only_where_something_is_compiled() -> None:
    script = (
        "import sys, torch, neusight\n"
        "with neusight.forecast_on('H100'): torch.ones(3, device='cuda')\n"
        "print('torch._inductor.scheduler' in sys.modules)\n"
    )

    printed = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    ).stdout

    assert printed == "False\n"
