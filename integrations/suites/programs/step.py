"""What a program of a suite comes down to: a function that does one step."""

from __future__ import annotations

from collections.abc import Callable

Step = Callable[[], object]
