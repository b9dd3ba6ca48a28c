"""Whether a torch compiles inside a forecast is tried apart, once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from compiled_net import ops, torch_compile

import neusight
from neusight.fake_cuda import core
from neusight.fake_cuda.compiling.rules import self_check
from neusight.fake_cuda.compiling.rules.self_check import compile_failure

PASSING = f"print({core.SELF_CHECK_PASSED!r})"
FAILING = "raise ValueError('Scheduler is another one')"


@pytest.fixture(autouse=True)
def nothing_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    core.self_check()  # it keeps its answer in the folder of now
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(self_check, "_failures", [])


def test_a_torch_that_passed_is_not_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(self_check, "_PROGRAM", PASSING)
    assert compile_failure() == ""

    monkeypatch.setattr(self_check, "_PROGRAM", FAILING)
    assert compile_failure() == ""
    monkeypatch.setattr(self_check, "_failures", [])  # as in another process
    assert compile_failure() == ""


def test_where_it_fails_programs_are_eager_and_shown_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(self_check, "_PROGRAM", FAILING)

    with neusight.forecast_on("H100") as forecast:
        function: Any = torch_compile(lambda x: torch.relu(x) + 1)
        function(torch.ones(4, device="cuda"))

    assert "aten::relu" in ops(*forecast.recording.steps)
    assert forecast.warnings == [
        f"torch.compile is forecast as eager: torch {torch.__version__} failed neusight's "
        "self-check of it (ValueError: Scheduler is another one)"
    ]


def test_ctrl_c_says_nothing_about_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(self_check, "_PROGRAM", "raise KeyboardInterrupt")
    assert compile_failure() == "KeyboardInterrupt"

    monkeypatch.setattr(self_check, "_PROGRAM", PASSING)
    assert compile_failure() == ""


@pytest.mark.slow
def test_this_torch_passes() -> None:
    assert compile_failure() == ""
