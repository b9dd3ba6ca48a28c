"""The functions of `os` as they are before the overlay takes their place."""

from __future__ import annotations

import os
from types import SimpleNamespace

__all__ = ["functions_beneath"]


def functions_beneath() -> SimpleNamespace:
    """All functions that `os` has now; take them before anything is patched."""
    functions = ((name, getattr(os, name)) for name in dir(os))
    return SimpleNamespace(**{name: value for name, value in functions if callable(value)})
