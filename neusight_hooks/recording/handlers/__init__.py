"""Ops that no fake kernel can run: their answer or their shape depends on values."""

from __future__ import annotations

from neusight.recording.handlers import copying, counting, reading, sampling, selecting, shaped
from neusight.recording.handlers.registry import HANDLERS, handles

__all__ = ["FAMILIES", "HANDLERS", "handles"]

#: The modules that register handlers; importing them fills the registry.
FAMILIES = (copying, counting, reading, sampling, selecting, shaped)
