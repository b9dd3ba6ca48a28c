"""The files that a run wrote, removed and made: shown in a line, and kept with --keep-writes."""

# Strings, not pathlib: this is imported by every forecast, and must stay quick to import.

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from collections.abc import Iterable
from contextlib import suppress
from typing import NamedTuple

from neusight.fake_cuda.store.leftovers import STORE_PREFIX

#: Attributes that overlayfs keeps in an upper layer (Documentation/filesystems/overlayfs.rst), as
#: root and as an ordinary user.
ATTRIBUTES = ("trusted.overlay.", "user.overlay.")
#: Folders in which changes are ignored.
_TEMPORARY = ("/tmp", "/var/tmp")
#: File in the folder that keeps the run's files with what the script removed.
REMOVED = "removed-by-the-script.txt"


#: Whether it is new, and whether removed -> what became of it.
_WRITTEN = {
    (False, False): "went to a temporary place, not over your files",
    (True, False): "was new and is removed at the end",
}
_REMOVED = (False, True)


class Change(NamedTuple):
    """A path that differs from what is on disk; `source` has the content of a file."""

    path: str
    is_new: bool
    is_removed: bool
    source: str | None


def summary_of(changes: Iterable[Change]) -> str:
    """What the script did to files, in one line; empty if it wrote none."""
    first: dict[tuple[bool, bool], str] = {}
    for one in changes:
        first.setdefault((one.is_new, one.is_removed), _shown(one.path))
    written = [
        f"{words} (first: {first[kind]})" for kind, words in _WRITTEN.items() if kind in first
    ]
    stated = [f"what the script wrote {' or '.join(written)}"] if written else []
    if _REMOVED in first:
        stated.append(f"what it removed still stands there (first: {first[_REMOVED]})")
    if not stated:
        return ""
    return (
        f"{', '.join(stated)}; --keep-writes DIR keeps it, "
        "--allow-writes writes where the script says"
    )


def keep(changes: Iterable[Change], folder: str, *, store: str) -> list[str]:
    """Puts what was written into a folder, by its path below the working directory, or below
    `root` in it; what was removed is listed there. What lies in `store` is moved, the rest copied.
    What could not be kept, and why."""
    kept_in, here, removed = os.path.realpath(folder), os.getcwd(), []
    not_kept: list[str] = []
    for change in changes:
        if change.is_removed:
            removed.append(_shown(change.path))
        if change.source is None:
            continue
        try:
            _take(change.source, _target(change.path, kept_in, here), store)
        except OSError as error:
            not_kept.append(f"{change.path} ({error.strerror or error})")
    if removed:
        with open(os.path.join(kept_in, REMOVED), "w") as file:
            file.writelines(f"{path}\n" for path in removed)
    return not_kept


def _target(path: str, kept_in: str, here: str) -> str:
    if is_in(path, kept_in):
        return path  # the script wrote it there itself
    if here == "/" or not is_in(path, here):
        return os.path.join(kept_in, "root", path.lstrip("/"))
    return os.path.join(kept_in, os.path.relpath(path, here))


def _take(source: str, target: str, store: str) -> None:
    if source == target:
        return
    os.makedirs(os.path.dirname(target), exist_ok=True)
    kind = stat.S_IFMT(os.lstat(source).st_mode)
    if kind not in (stat.S_IFREG, stat.S_IFLNK):
        return  # a pipe, a socket
    try:
        if is_in(source, store):
            shutil.move(source, target)
        else:
            shutil.copy2(source, target, follow_symlinks=False)
    except OSError:
        with suppress(OSError):
            os.unlink(target)
        raise
    for name in os.listxattr(target, follow_symlinks=False):
        if name.startswith(ATTRIBUTES):
            os.removexattr(target, name, follow_symlinks=False)


def is_in(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def _shown(path: str) -> str:
    """A path relative to the working directory, if it is inside."""
    return path.removeprefix(os.getcwd().rstrip("/") + "/")


def is_of_no_account(path: str) -> bool:
    """Whether changes there are ignored: Python's own, neusight's own, or in a
    temporary folder that does not hold the working directory."""
    here = os.getcwd()
    if "__pycache__" in path:
        return True
    for folder in {os.path.realpath(tempfile.gettempdir()), *_TEMPORARY}:
        if path.startswith(f"{folder}/{STORE_PREFIX}"):
            return True
        if is_in(path, folder) and not is_in(here, folder):
            return True
    return False
