"""What a check sees: rows that add up to the figures, and the lines of code behind them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

import neusight
from neusight.integrations.check.observation import (
    Observation,
    code_at,
    observe,
    tool,
)
from neusight.predictors.errors import ForecastStateError
from neusight.predictors.gpu import find_gpu
from neusight.predictors.kernel import Kernel
from neusight.predictors.measuring.calibrate import fit_calibration
from neusight.predictors.measuring.calibration import Measurement
from neusight.recording.recording import MathMode, OpCall, OpSignature, TensorSpec

HERE = Path(__file__)


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
    case = seen().case

    assert case.adds_up
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
    learnt = [replace(fitted, plain_host={"op_us": op_us}) for op_us in (9.0, 30.0)]
    elsewhere = replace(learnt[0], source={**learnt[0].source, "files": ["other"]})

    first, second, third = (tool("2.13.0", target, item) for item in (*learnt, elsewhere))

    assert first == third
    assert {name for name in first if first[name] != second[name]} == {"calibration"}
    assert tool("2.13.0", target) == {name: first[name] for name in first if name != "calibration"}


def test_code_of_a_place_that_is_not_there_is_empty(tmp_path: Path) -> None:
    assert code_at("gone.py:3", tmp_path) == ""
    assert code_at("", tmp_path) == ""
