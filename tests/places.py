"""Where the tests find what they need outside themselves."""

from __future__ import annotations

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
