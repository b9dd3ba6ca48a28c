"""The files that commands write: what cannot be written is told after all else was said."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

__all__ = ["tell_problems", "tried", "write_json", "write_text"]


def tried(write: Callable[[], object], path: str) -> list[str]:
    """Writes; the problem in words where the file cannot be written."""
    try:
        write()
    except OSError as error:
        return [f"{path} cannot be written: {error.strerror or error}"]
    return []


def write_json(path: str, document: Any) -> None:
    """Writes aside and renames, keys sorted, so that equal values give equal bytes."""
    write_text(path, json.dumps(document, indent=1, sort_keys=True, allow_nan=False) + "\n")


def write_text(path: str, text: str) -> None:
    """Writes aside and renames."""
    from neusight.predictors.files import write_atomically

    write_atomically(Path(path), text.encode())


def tell_problems(problems: Iterable[str]) -> None:
    """Says on standard error what could not be done."""
    for problem in problems:
        print(f"neusight: {problem}", file=sys.stderr)
