"""Which tensor an allocation is."""

from __future__ import annotations

import neusight
from neusight.advice.tensors import tensors_of


def test_shapes_of_what_was_allocated_are_known(plain: neusight.Forecast) -> None:
    specs = tensors_of(plain.recording)

    named = {specs[id(alloc)].shape for alloc in plain.memory.alive_at_peak if id(alloc) in specs}
    assert {(2048, 1000), (16, 128, 1024), (1000, 256), (1024, 256)} <= named
