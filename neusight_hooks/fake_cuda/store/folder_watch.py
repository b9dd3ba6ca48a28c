"""What changed in folders all the same, seen by sizes, times and inodes before and after."""

from __future__ import annotations

import os
from collections.abc import Collection
from contextlib import suppress
from typing import Any

#: Entries of one folder that are remembered: a scan of 10,000 takes some 20 ms (2026, on a laptop's
#: disk, names cached). Larger folders are data sets; what is added there is not reported.
MAX_ENTRIES = 10_000
#: Folders that are remembered, 20 s of scanning at the very worst.
MAX_FOLDERS = 1_000

#: What Python itself writes beside the modules it imports.
_BY_PYTHON = ("__pycache__", ".pyc")


#: What shows that an entry is as it was: inode, size and time. A folder's own size and time say too
#: little and too much: those of its entries are compared where the folder is watched.
_Seen = tuple[int, ...]


class FolderWatch:
    """Remembers folders when they are first touched, and names what differs in them later.

    Made before anything is patched: it keeps the true functions.
    """

    def __init__(self) -> None:
        self._scandir = os.scandir
        self._folders: dict[str, dict[str, _Seen] | None] = {}

    def touch(self, folder: str) -> None:
        """Remembers the folder's direct entries, at the first call for it."""
        if folder not in self._folders and len(self._folders) < MAX_FOLDERS:
            self._folders[folder] = self._look(folder)

    def changes(self, expected: Collection[str] = ()) -> list[str]:
        """Paths that differ, were added or are gone since, sorted; `expected` ones are left out."""
        found: list[str] = []
        for folder, before in self._folders.items():
            after = None if before is None else self._look(folder)
            if before is None or after is None:  # too large to compare
                continue
            names = [name for name in before.keys() | after.keys()
                     if before.get(name) != after.get(name)]  # fmt: skip
            found += [os.path.join(folder, name) for name in names if not name.endswith(_BY_PYTHON)]
        return sorted(set(found) - set(expected))

    def _look(self, folder: str) -> dict[str, _Seen] | None:
        """Each entry; none where the folder is not there, None where it has too many."""
        found: dict[str, _Seen] = {}
        with suppress(OSError), self._scandir(folder) as entries:
            for entry in entries:
                if len(found) >= MAX_ENTRIES:
                    return None
                with suppress(OSError):  # gone between the two calls
                    found[entry.name] = _seen(entry)
        return found


def _seen(entry: Any) -> _Seen:
    status = entry.stat(follow_symlinks=False)
    is_folder = entry.is_dir(follow_symlinks=False)
    return (status.st_ino, *(() if is_folder else (status.st_size, status.st_mtime_ns)))
