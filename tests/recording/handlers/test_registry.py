"""A handler is found by each of the overloads that it says it runs."""

from __future__ import annotations

from typing import Any

import torch

from neusight.recording.handlers import FAMILIES, HANDLERS
from neusight.recording.handlers.registry import Args, Kwargs, handles
from neusight.recording.recorder import Recorder

aten = torch.ops.aten


def test_a_handler_runs_the_ops_it_names() -> None:
    ops = (object(), object())

    @handles(*ops)
    def run(recorder: Recorder, func: Any, args: Args, kwargs: Kwargs) -> Any:
        return None

    try:
        assert [HANDLERS[op] for op in ops] == [run, run]
    finally:
        for op in ops:
            del HANDLERS[op]


def test_every_family_registers_handlers() -> None:
    modules = {handler.__module__ for handler in HANDLERS.values()}

    assert {family.__name__ for family in FAMILIES} <= modules
    assert aten._local_scalar_dense.default in HANDLERS
