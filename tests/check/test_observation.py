"""What a check sees: rows that add up to the figures, and the lines of code behind them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn

import neusight
from neusight.integrations.check.figures.metrics import METRICS
from neusight.integrations.check.figures.tolerance import parse_tolerances
from neusight.integrations.check.judgement import judge
from neusight.integrations.check.observation import (
    Observation,
    code_at,
    observe,
    tool,
)
from neusight.integrations.check.outputs.terminal import explanation
from neusight.predictors.errors import ForecastStateError
from neusight.predictors.gpu import find_gpu
from neusight.predictors.kernel import Kernel
from neusight.predictors.measuring.calibrate import fit_calibration
from neusight.predictors.measuring.calibration import Measurement
from neusight.recording.recording import MathMode, OpCall, OpSignature, TensorSpec

HERE = Path(__file__)
#: What baselines kept before torch.compile was recorded.
KNOWN_EARLIER = {metric.name for metric in METRICS}


def train(*, rate: float = 0.1, waits: bool = False) -> None:
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64)).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    for _ in range(3):
        loss = model(torch.ones(8, 64, device="cuda") * rate).sum()
        if waits:
            loss.item()
            loss.item()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def seen(program: Callable[[], None] = train, **options: object) -> Observation:
    with neusight.forecast_on("H100", with_stack=True) as forecast:
        program()
    return observe(forecast, **options)  # type: ignore[arg-type]


def test_rows_add_up_to_the_figures() -> None:
    observed = seen()
    case = observed.case

    assert case.adds_up
    assert observed.forecast is not None
    alive = observed.forecast.memory.alive
    assert sum(row.num_storages for row in case.memory) == sum(row.num_storages for row in alive)
    total_us = sum(row.kernel_ns for row in case.ops) / 1000
    assert total_us == pytest.approx(case.metrics["gpu_busy_us"])


def test_equal_programs_give_equal_cases() -> None:
    assert seen().case == seen().case


def test_another_learning_rate_is_the_same_work() -> None:
    assert seen(lambda: train(rate=0.2)).case.work == seen().case.work


def test_a_wait_more_is_other_work() -> None:
    assert seen(lambda: train(waits=True)).case.work != seen().case.work


def test_waits_are_counted_by_the_line_that_asks() -> None:
    observation = seen(lambda: train(waits=True))

    assert [tuple(row) for row in observation.case.waits] == [("item", "loss.item()", 2)]
    wait = observation.waits["item", "loss.item()"]
    assert wait.stack[0].partition(":")[0].endswith(HERE.name)
    assert wait.cost_us > 0


def test_the_cost_of_known_waits_is_not_computed() -> None:
    observation = seen(lambda: train(waits=True), known_waits={("item", "loss.item()")})

    assert observation.waits["item", "loss.item()"].cost_us == 0


def test_rows_know_the_lines_behind_them() -> None:
    observation = seen()

    ops = {key[:3]: stack for key, stack in observation.op_stacks.items()}
    place = ops["Sequential.0", "forward", "aten::addmm"][0][0]
    assert code_at(Path(place).name, HERE.parent).startswith("loss = model(")
    made = observation.made["Sequential.0"][0]
    assert code_at(Path(made).name, HERE.parent).startswith("model = nn.Sequential(")


def test_collectives_are_counted_in_bytes() -> None:
    with neusight.forecast_on("H100", with_stack=True) as forecast:
        train()
    signature = OpSignature(
        "c10d::allreduce_",
        "default",
        (
            ("tensors", (TensorSpec((1024,), (1,), "float32"),)),
            ("process_group", "default size=8 nodes=1"),
        ),
        (),
    )
    steps = tuple(
        replace(step, entries=(*step.entries, OpCall(signature, MathMode(), phase="backward")))
        for step in forecast.recording.steps
    )

    case = observe(forecast.of(replace(forecast.recording, steps=steps))).case

    assert case.metrics["communication_bytes"] == 4096
    assert any(row.work.startswith("all_reduce 4096 bytes on 8 GPUs") for row in case.ops)


def test_ops_without_kernels_of_a_module_are_one_row() -> None:
    rows = [row for row in seen().case.ops if row.op == "views"]

    assert rows
    assert all(row.num_kernels == 0 and row.kernel_ns == 0 and row.host_ns > 0 for row in rows)
    assert len({(row.module, row.phase) for row in rows}) == len(rows)


def test_a_program_without_kernels_cannot_be_checked() -> None:
    with (
        pytest.warns(UserWarning, match="no CUDA work"),
        pytest.raises(ForecastStateError, match="launched no kernel"),
    ):
        seen(lambda: None)


def test_the_tool_is_named_without_the_build_of_torch() -> None:
    cpu, cuda = tool("2.13.0+cpu", find_gpu("H100")), tool("2.13.0+cu130", find_gpu("H100"))

    assert cpu == cuda
    assert set(cpu) == {"neusight", "torch", "code", "weights", "gpu"}
    assert cpu["gpu"] != tool("2.13.0", find_gpu("L40S"))["gpu"]


def test_what_a_calibration_learnt_is_part_of_the_tool_and_its_source_is_not() -> None:
    target = find_gpu("L4")
    fitted = fit_calibration([Measurement((Kernel.gemm(512, 512, 512),), 20.0)], "L4")
    calibrated = [replace(fitted, plain_host={"op_us": op_us}) for op_us in (9.0, 30.0)]
    elsewhere = replace(calibrated[0], source={**calibrated[0].source, "files": ["other"]})

    first, second, third = (tool("2.13.0", target, item) for item in (*calibrated, elsewhere))

    assert first == third
    assert {name for name in first if first[name] != second[name]} == {"calibration"}
    assert tool("2.13.0", target) == {name: first[name] for name in first if name != "calibration"}


def test_code_of_a_place_that_is_not_there_is_empty(tmp_path: Path) -> None:
    assert code_at("gone.py:3", tmp_path) == ""
    assert code_at("", tmp_path) == ""


# -- torch.compile


def infer(*, prints: bool = False, reads: bool = False, sizes: tuple[int, ...] = (8, 8, 8)) -> None:
    def compute(x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(x) * 2
        if prints:
            print("here")
        if reads:
            y = y * y.sum().item()
        return y + 1

    function: Callable[[torch.Tensor], torch.Tensor] = torch.compile(compute, backend="eager")
    for size in sizes:
        function(torch.ones(size, 64, device="cuda"))
        torch.cuda.synchronize()


def test_a_program_that_compiles_nothing_has_no_such_figures() -> None:
    case = seen().case

    assert not case.is_compiled
    assert case.compiling == ()


def test_breaks_and_recompiles_are_kept_with_the_code_that_they_are_about() -> None:
    observation = seen(lambda: infer(prints=True, sizes=(8, 8, 4)))
    figures = observation.case.metrics

    assert (figures["num_graph_breaks"], figures["num_graphs"]) == (1, 4)
    stop, *again = observation.case.compiling
    assert tuple(stop) == (
        "graph break", "Failed to trace builtin operator: print", 'print("here")', 1
    )  # fmt: skip
    assert {row.what for row in again} == {"recompile"}
    assert figures["num_recompiles"] == sum(row.num_times for row in again) == 2
    assert observation.stops[stop[:3]].startswith("tests/check/test_observation.py:")


@pytest.mark.parametrize(
    ("added", "reason", "code"),
    [
        (partial(infer, prints=True), "Failed to trace builtin operator: print", 'print("here")'),
        (partial(infer, reads=True), "Unsupported Tensor.item()", "y = y * y.sum().item()"),
    ],
)
def test_a_break_that_is_added_is_a_regression_at_its_line(
    added: Callable[[], None], reason: str, code: str
) -> None:
    before = seen(infer).case

    judgement = judge("infer", before, seen(added))
    text = "\n".join(explanation(judgement, Path.cwd()))

    assert judgement.is_regression
    [change] = [item for item in judgement.metrics if item.name == "num_graph_breaks"]
    assert (change.before, change.after, change.status) == (0, 1, "worse")
    assert f"new graph break: {reason}" in text
    assert code in text
    assert "note: torch.compile: compiled graphs 1 → " in text


def test_a_recompile_that_is_added_is_a_regression_unless_tolerated() -> None:
    before, after = seen(infer).case, seen(lambda: infer(sizes=(8, 4, 8, 8, 8)))

    judgement = judge("infer", before, after)
    tolerated = judge("infer", before, after, parse_tolerances({"num_recompiles": "1"}))

    [stop] = judgement.new_stops
    assert (stop.what, stop.num_times) == ("recompile", 1)
    assert "size mismatch at index 0. expected 8, actual 4" in stop.reason
    assert stop.code == "def compute(x: torch.Tensor) -> torch.Tensor:"
    assert judgement.is_regression
    assert not tolerated.is_regression


def test_a_baseline_that_knows_nothing_of_compiling_judges_none_of_it() -> None:
    now = seen(lambda: infer(prints=True))
    old = replace(
        now.case,
        metrics={name: value for name, value in now.case.metrics.items() if name in KNOWN_EARLIER},
        compiling=(),
    )

    judgement = judge("infer", old, now)

    assert not judgement.is_regression
    assert judgement.new_stops == ()
    assert any("--update writes them down" in note for note in judgement.notes)


def test_the_work_of_an_op_names_its_kernels_with_sizes_and_types() -> None:
    def compute() -> None:
        x = torch.ones(4, 8, 16, device="cuda", dtype=torch.bfloat16)
        for _ in range(3):
            torch.bmm(x, x.transpose(1, 2))
            x[0] @ x[0].T
            x.float().view(4, 8, 16)
            torch.ones(6, 6, device="cuda").det()
            x.sum()

    works = {row.op: row.work for row in seen(compute).case.ops}

    assert works == {
        "aten::ones": "fill 36 fp32",
        "views": "no kernel",
        "aten::bmm": "gemm 4x8x8x16 bf16",
        "aten::mm": "gemm 8x8x16 bf16",
        "aten::_to_copy": "copy 512 bf16",
        "aten::_linalg_det": "linalg_det_panel 6x6 fp32",
        "aten::sum": "sum 512 bf16",
    }
