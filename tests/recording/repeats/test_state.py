"""What a call may read, as it is compared before and after."""

from __future__ import annotations

import pytest
import torch

import neusight
from neusight.recording.repeats import state


def test_what_torch_and_neusight_hold_is_no_state_wherever_they_are_installed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(state, "_INSTALLED", ())

    assert state.state_of([torch, neusight]) == [id(neusight), id(torch)]
