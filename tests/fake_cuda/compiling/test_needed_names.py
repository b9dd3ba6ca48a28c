"""The names inside torch that compiling stands on."""

from __future__ import annotations

import pytest

from neusight.fake_cuda.compiling.needed_names import NEEDED_NAMES, moved_names


def test_this_torch_has_all_names() -> None:
    assert moved_names() == []


def test_what_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(NEEDED_NAMES, "torch._inductor", ("list_mode_options", "gone.at_all"))
    monkeypatch.setitem(NEEDED_NAMES, "torch._no_such_module", ("name",))

    assert moved_names() == ["torch._inductor.gone.at_all", "torch._no_such_module.name"]
