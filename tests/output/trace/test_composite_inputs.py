"""Inputs of operators around ops and below them, from the arguments of ops."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

import neusight
from neusight.output.trace.composite_inputs import inner_arguments
from neusight.recording.recording import OpSignature, TensorSpec


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The arguments of the first operator of each name in a step with autocast."""
    path: Path = tmp_path_factory.mktemp("trace") / "trace.json"
    with neusight.forecast_on("H100") as forecast, torch.device("cuda"):
        model = nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16))
        x, target = torch.ones(4, 3, 8), torch.ones(12, dtype=torch.int64)
        with torch.autocast("cuda", torch.bfloat16):
            functional.cross_entropy(model(x).reshape(12, 16), target).backward()
    forecast.export_chrome_trace(path)
    found: dict[str, Any] = {}
    for event in json.loads(path.read_text())["traceEvents"]:
        if event.get("cat") == "cpu_op":
            found.setdefault(event["name"], event["args"])
    return found


def test_a_linear_layer_was_called_with_what_came_in_before_casts_and_views(
    inputs: dict[str, Any],
) -> None:
    assert inputs["aten::linear"]["Input Dims"] == [[4, 3, 8], [16, 8], [16]]
    assert inputs["aten::linear"]["Input type"] == ["float", "float", "float"]


def test_casts_of_autocast_state_their_dtype(inputs: dict[str, Any]) -> None:
    assert inputs["aten::to"]["Concrete Inputs"] == ["", "15", "False", "False", ""]


def test_a_layer_norm_has_its_numbers(inputs: dict[str, Any]) -> None:
    norm = inputs["aten::layer_norm"]

    assert norm["Input Dims"] == [[4, 3, 16], [], [16], [16], [], []]
    assert norm["Concrete Inputs"][1] == "[16]" and norm["Concrete Inputs"][5] == "True"


def test_nodes_have_the_gradients_of_what_their_op_returned(inputs: dict[str, Any]) -> None:
    assert inputs["AddmmBackward0"]["Input Dims"] == [[12, 16]]
    assert inputs["torch::autograd::AccumulateGrad"]["Input Dims"] == [[16]]


def test_copies_below_an_op_have_both_sides(inputs: dict[str, Any]) -> None:
    assert inputs["aten::copy_"]["Input type"] == ["c10::BFloat16", "float", "Scalar"]


def test_an_operator_without_a_row_shows_none() -> None:
    x = TensorSpec((4,), (1,), "float32")

    assert inner_arguments("aten::empty", OpSignature("aten::relu", "", (("self", x),), (x,))) == ()
