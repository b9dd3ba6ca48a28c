"""What stands in folders, and processes whose files are kept as they are: for tests of both."""

from __future__ import annotations

import ast
import ctypes
import os
import stat
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from neusight.integrations.program.guard.guarded_process import (
    FILES_VARIABLE,
    why_no_fallback,
    why_no_view,
)

#: What keeps the user's files as they are under a command.
GUARDS = ("view", "fallback")
#: The user and group `nobody` of every Linux.
NOBODY = 65534
_PR_SET_DUMPABLE = 4


def standing(folder: Path, *, with_folder_times: bool = False) -> dict[str, Any]:
    """All that can be seen of a folder and what is in it, but for when it was read."""
    found = {}
    for path in (folder, *sorted(folder.rglob("*"))):
        status = path.lstat()
        has_times = with_folder_times or not stat.S_ISDIR(status.st_mode)
        names = os.listxattr(path, follow_symlinks=False)
        content: Any = {name: os.getxattr(path, name, follow_symlinks=False) for name in names}
        if stat.S_ISLNK(status.st_mode):
            content["link to"] = str(path.readlink())
        elif stat.S_ISREG(status.st_mode):
            content["bytes"] = path.read_bytes()
        if "__pycache__" not in path.parts:
            found[str(path.relative_to(folder))] = (
                status.st_mode, status.st_uid, status.st_ino, status.st_nlink, content,
                *((status.st_mtime_ns, status.st_ctime_ns) if has_times else ()),
            )  # fmt: skip
    return found


def guard_by(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on guarded processes are kept from the files in this way; skips where they are not
    here."""
    why = why_no_view() if mode == "view" else why_no_fallback()
    if why:
        pytest.skip(f"no {mode} here: {why}")
    if mode == "fallback":
        monkeypatch.setenv(FILES_VARIABLE, "overlay")


def work_in(place: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with a file in it, and a temporary folder of one's own beside it."""
    for name in ("home", "tmp"):
        (place / name).mkdir()
    (place / "home" / "mine.txt").write_text("mine")
    monkeypatch.chdir(place / "home")
    monkeypatch.setenv("TMPDIR", str(place / "tmp"))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return place / "home"


def in_fork(action: Callable[[], object]) -> Any:
    """What an action returns in a process forked off: a value that has a literal."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(writing, repr(action()).encode())
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as file:
        answer = file.read()
    os.waitpid(child, 0)
    return ast.literal_eval(answer or "None")


def become_nobody() -> None:
    """From now on this process is an ordinary user's, as after a login."""
    os.setgroups([])
    os.setgid(NOBODY)
    os.setuid(NOBODY)
    ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 1, 0, 0, 0)
