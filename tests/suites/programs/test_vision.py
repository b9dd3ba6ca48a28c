"""Image models run as others timed them."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import neusight
from neusight.integrations.suites.case import CannotBuild, CaseProgram
from neusight.integrations.suites.programs import vision
from neusight.integrations.suites.programs.vision import timm_step, vision_step


def test_a_model_that_nobody_configured_is_reported() -> None:
    pytest.importorskip("transformers")

    with pytest.raises(CannotBuild, match="its configuration is not available"):
        vision_step(CaseProgram("vision", "unheard-of", "inf", 1, 32))


def test_a_missing_package_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "timm", None)

    with pytest.raises(CannotBuild, match="timm is not installed: pip install timm"):
        timm_step(CaseProgram("timm", "resnet18", "inf", 1, 32))


def test_cudnn_is_let_find_its_fastest_kernels_for_models_of_timm(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import sys
    from types import ModuleType

    timm = ModuleType("timm")
    vars(timm).update(create_model=lambda name: nn.Conv2d(3, 8, 3))
    monkeypatch.setitem(sys.modules, "timm", timm)
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", False)

    with neusight.forecast_on("V100") as found:
        timm_step(CaseProgram("timm", "any", "inf", 2, 16))()

    (convolution,) = [kernel for kernel, _ in found.kernels if "conv" in kernel.name]
    assert convolution.variant == "fastest"


@pytest.mark.parametrize("mode", ["inf", "train"])
def test_a_model_of_transformers_infers_and_trains(
    mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Answer:
        def __init__(self, logits: torch.Tensor) -> None:
            self.logits = logits

    class Tiny(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Conv2d(3, 8, 3)

        def forward(self, pixel_values: torch.Tensor) -> Answer:
            return Answer(self.layer(pixel_values).mean((2, 3)))

    pytest.importorskip("transformers")
    monkeypatch.setattr(vision, "_MODELS", {"tiny": lambda library: Tiny()})
    was = torch.backends.cuda.matmul.allow_tf32

    with neusight.forecast_on("T4") as found:
        step = vision_step(CaseProgram("vision", "tiny", mode, 2, 16))
        step()
        found.step()
        step()
        found.step()

    assert found.steps[-1]["kind"] == ("train" if mode == "train" else "eval")
    assert torch.backends.cuda.matmul.allow_tf32 == was
