"""Language models run as the NeuSight paper's program ran them."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import neusight
from neusight.forecast import Forecast
from neusight.integrations.suites.case import CannotBuild, CaseProgram
from neusight.integrations.suites.programs.language import language_model, language_step
from neusight.recording.recording import OpCall
from suite_folders import MODELS

pytest.importorskip("transformers")


def forecast(program: CaseProgram, steps: int = 2) -> Forecast:
    """The program's steps on a T4."""
    with neusight.forecast_on("T4") as found:
        step = language_step(program, MODELS[program.model])
        for _ in range(steps):
            step()
            found.step()
    return found


def ops_of_the_last_step(found: Forecast) -> list[str]:
    """Names of the ops, in order."""
    entries = found.recording.steps[-1].entries
    return [entry.signature.op for entry in entries if isinstance(entry, OpCall)]


def test_inference_is_one_forward_of_all_tokens() -> None:
    found = forecast(CaseProgram("language", "tiny_gpt", "inf", 2, 16))

    # 2 layers of four products and the head; FLOPs of both products of attention, 2 x 16 tokens
    width, tokens = 32, 2 * 16
    products = 2 * 2 * tokens * 12 * width * width + 2 * tokens * width * 64
    attention = 2 * 2 * 2 * 2 * 2 * 16 * 16 * 16
    assert found.flops_per_step == products + attention


def test_training_adds_gradients_up_and_has_no_optimizer() -> None:
    found = forecast(CaseProgram("language", "tiny_gpt", "train", 2, 16), steps=3)

    ops = ops_of_the_last_step(found)
    num_parameters = 2 * 12 + 2 + 2  # of each layer, of both embeddings, of the last norm
    assert sum(op == "aten::add_" for op in ops) >= num_parameters
    assert not [op for op in ops if "_foreach" in op or "sgd" in op or "zero_" in op]
    assert "aten::nll_loss_forward" in ops


def test_a_bert_classifies_where_it_infers_and_is_pretrained_where_it_trains() -> None:
    with neusight.forecast_on("T4"):
        inferring: Any = language_model(MODELS["tiny_bert"], mode="inf")
        training: Any = language_model(MODELS["tiny_bert"], mode="train")

    assert type(inferring).__name__ == "BertForSequenceClassification"
    assert type(training).__name__ == "BertForPreTraining"
    assert (inferring.training, training.training) == (False, True)


def test_a_bert_is_trained_by_its_text() -> None:
    found = forecast(CaseProgram("language", "tiny_bert", "train", 2, 16))

    assert found.step_latency_us.median > 0.0
    assert found.flops_per_step > 3 * 2 * 2 * 16 * 32 * 64


def test_an_unknown_architecture_is_reported() -> None:
    with pytest.raises(CannotBuild, match="has no PerceptronOf1958"):
        language_model({"architectures": ["PerceptronOf1958"]}, mode="inf")


def test_the_grad_mode_is_put_back() -> None:
    forecast(CaseProgram("language", "tiny_gpt", "inf", 1, 8))

    assert torch.is_grad_enabled()
