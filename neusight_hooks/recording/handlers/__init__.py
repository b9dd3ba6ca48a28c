"""Ops that no fake kernel can run: their answer or their shape depends on values."""

from __future__ import annotations

from neusight.recording.handlers import (
    copying,
    counting,
    padding,
    quantized,
    reading,
    sampling,
    selecting,
    semi_structured,
    shaped,
)
from neusight.recording.handlers.registry import HANDLERS, handles
from neusight.recording.handlers.sparse import arithmetic, construction, products, selection

__all__ = ["FAMILIES", "HANDLERS", "SPARSE_FAMILIES", "handles"]

#: The modules that register handlers; importing them fills the registry.
FAMILIES = (
    copying,
    counting,
    construction,
    padding,
    quantized,
    reading,
    sampling,
    selecting,
    semi_structured,
    shaped,
)

#: The same of the ops on sparse tensors, which have a registry of their own.
SPARSE_FAMILIES = (arithmetic, construction, products, selection)
