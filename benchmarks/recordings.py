"""Recordings of recipes, kept in a folder until the texts that decide them change."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable, Sequence
from hashlib import sha256
from pathlib import Path


def kept_recording(
    folder: Path, suffix: str, texts: Iterable[str], words: Sequence[str], **variables: str
) -> Path:
    """What `neusight run` records by those words of a command; RuntimeError where it fails."""
    path = folder / f"{sha256(''.join(texts).encode()).hexdigest()[:16]}{suffix}"
    if path.exists():
        return path
    folder.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(
        [sys.executable, "-m", "neusight", "run", "--quiet", "--save", str(path), *words],
        capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONWARNINGS": "ignore", **variables},
    )  # fmt: skip
    if done.returncode:
        path.unlink(missing_ok=True)
        lines = done.stderr.strip().splitlines()
        raise RuntimeError(lines[-1] if lines else f"status {done.returncode}")
    return path
