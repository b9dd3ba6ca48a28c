"""Where the tests find what they need outside themselves."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import pytest

#: Folder of the tests, and what they compare with.
TESTS = Path(__file__).parent
GOLDEN_FILES = TESTS / "golden"
#: The checkout.
ROOT = TESTS.parent
#: Public measurements, programs and traces, where they lie beside the checkout: tests that need
#: them skip without.
SHARED = ROOT.parent / "shared"
#: Real profiles that were published.
TRACES = SHARED / "traces"
needs_traces = pytest.mark.skipif(
    not TRACES.is_dir(), reason="the public profiles are not beside this checkout"
)


def require_golden(name: str, lines: Iterable[str]) -> None:
    """Compares lines with a file of tests/golden; NEUSIGHT_UPDATE_GOLDEN=1 rewrites it."""
    path, text = GOLDEN_FILES / name, "".join(f"{line.rstrip()}\n" for line in lines)
    if os.environ.get("NEUSIGHT_UPDATE_GOLDEN"):
        path.write_text(text, encoding="utf-8")
    assert text.splitlines() == path.read_text(encoding="utf-8").splitlines()
