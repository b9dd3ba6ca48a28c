"""What was written in a copy-on-write view, as overlayfs keeps it: read, told and collected."""

from __future__ import annotations

import json
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple

from neusight.fake_cuda.store.leftovers import STORE_PREFIX

__all__ = ["Change", "Layers", "is_private_to_systems"]

_LIST, _LAYERS, _ROOT = "layers.jsonl", "layers", "root"
#: Attributes that overlayfs keeps in an upper layer (Documentation/filesystems/overlayfs.rst), as
#: root and as an ordinary user.
_ATTRIBUTES = ("trusted.overlay.", "user.overlay.")
#: Folders of files that nobody looks for afterwards.
_TEMPORARY = ("/tmp", "/var/tmp")
#: File in the folder that keeps the run's files with what the script removed.
REMOVED = "removed-by-the-script.txt"


class Change(NamedTuple):
    """A path that differs from what really stands there; `source` has the content of a file."""

    path: str
    is_new: bool
    is_removed: bool
    source: str | None


class Layers:
    """The upper layers below a folder, one for each file system or folder that is covered."""

    def __init__(self, folder: str) -> None:
        self._folder = folder

    @property
    def root(self) -> str:
        """Where a new root is mounted."""
        path = f"{self._folder}/{_ROOT}"
        os.makedirs(path, exist_ok=True)
        return path

    def add(self, covered: str) -> tuple[str, str]:
        """An upper layer for what lies at `covered`, and a folder that overlayfs works in."""
        entries = self._entries()
        place = f"{self._folder}/{_LAYERS}/{len(entries)}"
        with open(f"{self._folder}/{_LIST}", "a") as file:
            file.write(json.dumps(covered) + "\n")
        for name in ("upper", "work"):
            os.makedirs(f"{place}/{name}")
        return f"{place}/upper", f"{place}/work"

    def _entries(self) -> list[str]:
        with suppress(FileNotFoundError), open(f"{self._folder}/{_LIST}") as file:
            return [json.loads(line) for line in file]
        return []

    def changes(self) -> Iterator[Change]:
        """What the view shows otherwise, by path; not what it left in temporary folders, unless
        the working directory lies there."""
        for number, covered in enumerate(self._entries()):
            upper = f"{self._folder}/{_LAYERS}/{number}/upper"
            if os.path.isdir(upper):
                layer = _Layer(covered)
                yield from (
                    change
                    for change in layer.changes(upper, covered, covered, is_moved=False)
                    if not is_private_to_systems(change.path)
                )

    def summary_line(self) -> str:
        """What became of the script's files, in a line; empty where it wrote none."""
        parts, found = [], list(self.changes())
        for words, kind in (
            ("went to a temporary place, not over your files", (False, False)),
            ("was new and is removed at the end", (True, False)),
        ):
            paths = [one.path for one in found if (one.is_new, one.is_removed) == kind]
            if paths:
                parts.append(f"{words} (first: {_shown(paths[0])})")
        removed = [one.path for one in found if one.is_removed]
        stated = []
        if parts:
            stated.append(f"what the script wrote {' or '.join(parts)}")
        if removed:
            stated.append(f"what it removed still stands there (first: {_shown(removed[0])})")
        if not stated:
            return ""
        return (
            f"{', '.join(stated)}; --keep-writes DIR keeps it, "
            "--allow-writes writes where the script says"
        )

    def keep(self, folder: str) -> list[str]:
        """Moves what was written to a folder, by its path below the working directory, or below
        `root` in it; what was removed is listed there. What could not be kept, and why."""
        keep, here, removed = os.path.realpath(folder), os.getcwd(), []
        not_kept: list[str] = []
        for change in self.changes():
            if change.is_removed:
                removed.append(_shown(change.path))
            if change.source is None:
                continue
            try:
                is_moved = _is_in(change.source, self._folder)  # else it really stands there
                _take(change.source, _target(change.path, keep, here), is_moved=is_moved)
            except OSError as error:
                not_kept.append(f"{change.path} ({error.strerror or error})")
        if removed:
            with open(os.path.join(keep, REMOVED), "w") as file:
                file.writelines(f"{path}\n" for path in removed)
        return not_kept


class _Layer(NamedTuple):
    """One upper layer, over what really lies at `covered`."""

    covered: str

    def changes(
        self, upper: str, lower: str | None, path: str, *, is_moved: bool
    ) -> Iterator[Change]:
        """What differs in a folder: `lower` lies below it, which is all new where it was moved."""
        names = set(_names_in(upper))
        if is_moved and lower is not None:
            names.update(_names_in(lower))
        for name in sorted(names):
            above = os.path.join(upper, name)
            below = None if lower is None else os.path.join(lower, name)
            yield from self._change(above, below, os.path.join(path, name), is_moved=is_moved)

    def _change(
        self, above: str, below: str | None, path: str, *, is_moved: bool
    ) -> Iterator[Change]:
        is_new = not os.path.lexists(path)
        if not os.path.lexists(above):
            assert below is not None
            if os.path.isdir(below) and not os.path.islink(below):
                yield from self.changes(above, below, path, is_moved=True)
            else:
                yield Change(path, is_new, False, below)
            return
        status = os.lstat(above)
        if stat.S_ISCHR(status.st_mode) and status.st_rdev == 0:  # a whiteout
            if not is_new:
                yield Change(path, False, True, None)
        elif not stat.S_ISDIR(status.st_mode):
            yield Change(path, is_new, False, above)
        else:
            if is_new:
                yield Change(path, True, False, None)
            moved_from = _attribute(above, "redirect")
            if moved_from is not None:
                folder = (
                    self.covered if moved_from.startswith("/") else os.path.dirname(below or "")
                )
                below, is_moved = os.path.join(folder, moved_from.lstrip("/")), True
            elif _attribute(above, "opaque") is not None:
                below = None
                hidden = set(_names_in(path)) - set(_names_in(above))
                yield from (Change(f"{path}/{name}", False, True, None) for name in sorted(hidden))
            yield from self.changes(above, below, path, is_moved=is_moved)


def _names_in(folder: str) -> list[str]:
    with suppress(FileNotFoundError, NotADirectoryError):
        if not os.access(folder, os.R_OK | os.X_OK):
            os.chmod(folder, 0o700)  # as the script left it
        return os.listdir(folder)
    return []


def _attribute(path: str, name: str) -> str | None:
    for prefix in _ATTRIBUTES:
        with suppress(OSError):
            return os.fsdecode(os.getxattr(path, prefix + name, follow_symlinks=False))
    return None


def is_private_to_systems(path: str) -> bool:
    """Whether a new file there is of no account: Python's own, neusight's own, or in a temporary
    folder that does not hold the working directory."""
    here = os.getcwd()
    if "__pycache__" in path:
        return True
    for folder in {os.path.realpath(tempfile.gettempdir()), *_TEMPORARY}:
        if path.startswith(f"{folder}/{STORE_PREFIX}"):
            return True
        if _is_in(path, folder) and not _is_in(here, folder):
            return True
    return False


def _target(path: str, keep: str, here: str) -> str:
    if _is_in(path, keep):
        return path  # the script wrote it there itself
    if here == "/" or not _is_in(path, here):
        return os.path.join(keep, "root", path.lstrip("/"))
    return os.path.join(keep, os.path.relpath(path, here))


def _take(source: str, target: str, *, is_moved: bool) -> None:
    os.makedirs(os.path.dirname(target), exist_ok=True)
    kind = stat.S_IFMT(os.lstat(source).st_mode)
    if kind not in (stat.S_IFREG, stat.S_IFLNK):
        return  # a pipe, a socket
    if not (is_moved and _is_renamed(source, target)):
        try:
            shutil.copy2(source, target, follow_symlinks=False)
        except OSError:
            with suppress(OSError):
                os.unlink(target)
            raise
    for name in os.listxattr(target, follow_symlinks=False):
        if name.startswith(_ATTRIBUTES):
            os.removexattr(target, name, follow_symlinks=False)


def _is_renamed(source: str, target: str) -> bool:
    """Whether a file could be moved as it is: not to another file system."""
    try:
        os.rename(source, target)
    except OSError:
        return False
    return True


def _is_in(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def _shown(path: str) -> str:
    """A path as the user would name it from here."""
    return path.removeprefix(os.getcwd().rstrip("/") + "/")
