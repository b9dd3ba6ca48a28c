"""Switch Transformers run as the library of the paper ran them."""

from __future__ import annotations

from typing import Any

import pytest

import neusight
from neusight.forecast import Forecast
from neusight.integrations.suites.case import CannotBuild, CaseProgram
from neusight.integrations.suites.programs import switch
from neusight.integrations.suites.programs.switch import switch_step
from neusight.predictors.kernel import GemmSize
from neusight.recording.recording import OpCall, TensorSpec
from suite_folders import MODELS

pytest.importorskip("transformers")

PROGRAM = CaseProgram("switch", "tiny_switch", "inf", 2, 16)


def forecast() -> Forecast:
    with neusight.forecast_on("T4") as found:
        step = switch_step(PROGRAM, MODELS["tiny_switch"])
        for _ in range(2):
            step()
            found.step()
    return found


def test_one_expert_takes_as_many_tokens_as_it_has_room_for() -> None:
    found = forecast()

    sizes = [kernel.size for kernel, _ in found.kernels]
    experts = [size for size in sizes if isinstance(size, GemmSize) and size.m == 2 * 4]
    # an encoder's and a decoder's layer, into the hidden width and back, in both steps
    assert len(experts) == 2 * 2 * 2


def test_every_expert_looks_for_its_tokens_and_waits_for_their_number() -> None:
    found = forecast()

    entries = found.recording.steps[-1].entries
    ops = [entry.signature.op for entry in entries if isinstance(entry, OpCall)]
    assert sum(op == "aten::nonzero" for op in ops) >= 2 * 3 * 2


def test_a_layer_adds_the_masked_bias_to_its_scores_in_place() -> None:
    found = forecast()

    entries = found.recording.steps[-1].entries
    adds = [
        entry.signature
        for entry in entries
        if isinstance(entry, OpCall) and entry.signature.op == "aten::add_"
    ]
    results = [out for add in adds for out in add.outputs if isinstance(out, TensorSpec)]
    scores = [result for result in results if result.shape == (2, 2, 16, 16)]
    assert len(scores) == 2 + 2 + 2  # the encoder's layers, the decoder's own, and those across


def test_another_version_of_the_library_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def without_experts(settings: object, *, mode: str) -> Any:
        import torch

        return torch.nn.Linear(2, 2)

    monkeypatch.setattr(switch, "language_model", without_experts)

    with pytest.raises(CannotBuild, match="names the layers of experts otherwise"):
        switch_step(PROGRAM, MODELS["tiny_switch"])
