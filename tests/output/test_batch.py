"""What a step consumes, as the user states it or as it was recorded."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import neusight
from neusight.forecast import Forecast
from neusight.output.batch import stated_batch
from neusight.recording.recording import Batch


def test_rates_prefer_tokens() -> None:
    assert Batch(2, 20).per_second(10.0) == (2e6, "tokens")
    assert Batch(2).per_second(10.0) == (2e5, "samples")
    assert Batch().per_second(10.0) is None
    assert Batch(2).per_second(0.0) is None


def test_what_was_stated_survives_saving(tmp_path: Path) -> None:
    with neusight.forecast_on("H100") as forecast:
        torch.ones(4, device="cuda") + 1
    forecast.recording.options["samples_per_step"] = "32"
    forecast.save(tmp_path / "f.json")

    loaded = Forecast.load(tmp_path / "f.json")

    assert loaded.verdict.batch == stated_batch({"samples_per_step": "32"})
    assert loaded.to_json()["samples_per_step"] == 32


@pytest.mark.parametrize("options", [{}, {"other": "1"}])
def test_nothing_stated_is_no_batch(options: dict[str, str]) -> None:
    assert not stated_batch(options)
