"""Nothing of the user's changes, whatever a script does; and it reads back what it would have."""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

import neusight

sys.path.insert(0, str(Path(__file__).parent))
from user_files import (
    C_LIBRARIES,
    MOVES_AND_REMOVALS,
    PYTHON,
    furnish,
)

sys.path.pop(0)

PREAMBLE = """
import atexit, bz2, codecs, configparser, contextlib, csv, fileinput, glob, gzip, io, json, logging
import logging.handlers, lzma, mmap, multiprocessing, os, pickle, shelve, shutil, sqlite3
import subprocess, sys, tarfile, tempfile, weakref, zipfile
from pathlib import Path
import numpy as np
import torch

class Twice(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2
"""

WORKER = """
log = open('log.csv', 'a')

def work():
    open('notes.txt', 'a').write('child')
    open('new.txt', 'w').write('n')
"""

GROUPS = {"python": PYTHON, "C libraries": C_LIBRARIES, "moves": MOVES_AND_REMOVALS}
WAYS = [
    pytest.param(code, id=f"{group}: {name}")
    for group, ways in GROUPS.items()
    for name, code in ways.items()
]


class Standing(NamedTuple):
    """What stands at a path."""

    mode: int
    inode: int
    modified_ns: int
    digest: str


def standing(folder: Path) -> dict[str, Standing]:
    """All that stands below a folder; of folders the mode and the inode."""
    found = {}
    for path in sorted(folder.rglob("*")):
        if "__pycache__" in path.parts:
            continue
        status = path.lstat()
        digest = ""
        if path.is_symlink():
            digest = os.readlink(path)
        elif path.is_file():
            digest = hashlib.sha256(path.read_bytes()).hexdigest()
        modified = 0 if stat.S_ISDIR(status.st_mode) else status.st_mtime_ns
        found[str(path.relative_to(folder))] = Standing(
            status.st_mode, status.st_ino, modified, digest
        )
    return found


@contextlib.contextmanager
def working_in(folder: Path) -> Iterator[None]:
    before = os.getcwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


def seen_by(code: str, folder: Path) -> Any:
    names: dict[str, Any] = {"__name__": "way"}
    # torch.jit.script reads the source of a class.
    exec(compile(PREAMBLE, str(Path(__file__).parent / "way_preamble.py"), "exec"), names)
    names["Twice"] = Twice
    with working_in(folder):
        exec(compile(code, "way.py", "exec"), names)
    seen = names["seen"]
    return (
        sorted(seen) if isinstance(seen, list) and all(isinstance(s, str) for s in seen) else seen
    )


class Twice(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2


IGNORED = (
    "ignore:unclosed file", "ignore:no CUDA work", "ignore:torch.distributed is",
    "ignore:Detected an existing",
    "ignore:.*is deprecated", "ignore:.*torch.package", "ignore:.*unclosed",
    "ignore::pytest.PytestUnraisableExceptionWarning", "ignore:Duplicate name",
)  # fmt: skip


@pytest.mark.filterwarnings(*IGNORED)
@pytest.mark.parametrize("code", WAYS)
def test_in_a_block_the_files_stay_and_the_script_reads_what_it_wrote(
    code: str, tmp_path: Path
) -> None:
    for name in ("real", "forecast"):
        furnish(tmp_path / name)
    real = neusight.forecast_on("H100", allow_writes=True) if "cuda" in code else nullcontext()
    with real:
        expected = seen_by(code, tmp_path / "real")
    before = standing(tmp_path / "forecast")

    with neusight.forecast_on("H100"):
        torch.ones(2, device="cuda")
        seen = seen_by(code, tmp_path / "forecast")

    assert repr(seen).replace("forecast", "real") == repr(expected)
    assert standing(tmp_path / "forecast") == before
