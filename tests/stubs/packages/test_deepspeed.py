"""DeepSpeed's engine is refused with the line and what to do."""

from __future__ import annotations

import pytest
import torch

import neusight
from neusight.predictors.errors import UnmappedOpError


def test_its_engine_is_refused() -> None:
    with neusight.forecast_on("H100"):
        torch.ones(1, device="cuda")
        import deepspeed  # type: ignore[import-not-found]

        with pytest.raises(UnmappedOpError, match=r"test_deepspeed\.py:\d+ .* FSDP"):
            deepspeed.initialize(model=None)
