"""Torch's record functions: known by the header, tried in a process of its own, gone at the end."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from neusight.fake_cuda import core
from neusight.recording.dispatch.record_functions import RecordFunctions, is_known_header


def test_operators_are_reported_while_switched_on() -> None:
    seen: list[bytes] = []

    def begins(record: int, number: int, is_node: bool) -> bool:
        seen.append(functions.name_of(record))
        return True

    functions = RecordFunctions(begins)
    x = torch.ones(2, 2)

    torch.relu(x)
    functions.switch(True)
    torch.nn.functional.linear(x, x)
    functions.switch(False)
    torch.relu(x)

    assert seen[0] == b"aten::linear"
    assert b"aten::relu" not in seen


def test_an_end_is_known_once_the_operator_has_returned() -> None:
    ended: list[bool] = []

    def begins(record: int, number: int, is_node: bool) -> bool:
        ended.append(functions.has_ended(number - 1) if ended else False)
        return True

    functions = RecordFunctions(begins)
    functions.switch(True)
    torch.relu(torch.ones(2))
    functions.switch(False)

    assert ended  # asked in the middle of others without harm
    assert functions.has_ended(0)


def test_another_header_is_not_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert is_known_header()
    folder = tmp_path / "include" / "ATen"
    folder.mkdir(parents=True)
    (folder / "record_function.h").write_text("class TORCH_API RecordFunctionCallback {};")
    monkeypatch.setattr(torch, "__file__", str(tmp_path / "__init__.py"))

    assert not is_known_header()


def test_the_check_passes_for_the_installed_torch() -> None:
    assert core.record_functions_failure() == ""
