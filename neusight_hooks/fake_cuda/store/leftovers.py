"""What a killed run left in the temporary folder: found by its lock, and removed."""

# Strings, not pathlib: whoever opens a forecast calls this, and it must stay quick to import.

from __future__ import annotations

import fcntl
import json
import os
import shutil
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Any

__all__ = [
    "BEING_MADE",
    "JOURNAL",
    "OWNER",
    "STORE_PREFIX",
    "own",
    "remove_leftovers",
    "remove_tree",
]

#: How the name of a store's folder begins.
STORE_PREFIX = "neusight-"
#: File in a store's folder with its owner's process number, which the owner keeps locked while it
#: lives: containers that share a folder do not share numbers.
OWNER = "owner"
#: File in a store's folder with a line of JSON for each new file that the run made elsewhere.
JOURNAL = "journal"

#: Device and inode of what the run was about to make where nothing stood.
BEING_MADE = (0, 0)

#: What a run writes to a new file comes a moment after the journal names it: a second, so that no
#: other program's write, after the run was killed, is taken for its own.
_AFTER_THE_JOURNAL_NS = 10**9


def own(folder: str) -> int:
    """Says that a store's folder is in use until the descriptor is closed, by all who inherit it,
    or the process ends."""
    descriptor = os.open(os.path.join(folder, OWNER), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    os.write(descriptor, str(os.getpid()).encode())
    return descriptor


def remove_leftovers(parent: str) -> list[str]:
    """Removes the stores in a folder whose owners are dead, with the new files that their journals
    list if they are still the same, and links to such; returns the stores removed. Never raises."""
    removed = []
    for folder in _own_entries(parent, stat.S_ISDIR):
        with suppress(OSError, ValueError):
            descriptor = os.open(os.path.join(folder, OWNER), os.O_RDWR | os.O_CLOEXEC)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if _is_alive(int(os.read(descriptor, 20))):
                    continue
                _remove_new_files(os.path.join(folder, JOURNAL))
                remove_tree(folder)
                removed.append(folder)
            finally:
                os.close(descriptor)
    for link in _own_entries(parent, stat.S_ISLNK):
        with suppress(OSError):
            if STORE_PREFIX in os.readlink(link) and not os.path.exists(link):
                os.unlink(link)
    return removed


def remove_tree(folder: str) -> None:
    """Removes a folder of this user's with all that is in it, folders that may not be read as well.
    Never raises."""
    for place, names, _ in os.walk(folder):
        for name in names:
            path = os.path.join(place, name)
            if not os.path.islink(path):
                with suppress(OSError):
                    os.chmod(path, 0o700)
    shutil.rmtree(folder, ignore_errors=True)


def _is_alive(pid: int) -> bool:
    return os.path.exists(f"/proc/{pid}")


def _own_entries(parent: str, is_kind: Callable[[int], bool]) -> Iterator[str]:
    """What is named as a store, of one kind (`stat.S_ISDIR`), and this user's own."""
    try:
        with os.scandir(parent) as entries:
            found = [entry for entry in entries if entry.name.startswith(STORE_PREFIX)]
    except OSError:
        return
    for entry in found:
        with suppress(OSError):
            status = entry.stat(follow_symlinks=False)
            if is_kind(status.st_mode) and status.st_uid == os.getuid():
                yield entry.path


def _remove_new_files(journal: str) -> None:
    """Last made, first removed: files before the folders they are in. What was written after the
    run's last sign of life is somebody else's, also where it is the same file."""
    try:
        last_ns = os.stat(journal).st_mtime_ns + _AFTER_THE_JOURNAL_NS
    except OSError:
        return
    for path, identity in reversed(_new_files(journal).items()):
        with suppress(OSError):
            status = os.lstat(path)
            is_same = identity in (BEING_MADE, (status.st_dev, status.st_ino))
            if is_same and (stat.S_ISDIR(status.st_mode) or status.st_mtime_ns <= last_ns):
                remove: Any = os.rmdir if stat.S_ISDIR(status.st_mode) else os.unlink
                remove(path)


def _new_files(journal: str) -> dict[str, tuple[int, int]]:
    """Device and inode of what the run made and did not remove again, by path."""
    found: dict[str, tuple[int, int]] = {}
    for line in _lines(journal):
        with suppress(ValueError, KeyError, TypeError):  # the last line may be half a line
            entry = json.loads(line)
            if "new" in entry:
                found[entry["new"]] = (entry["dev"], entry["ino"])
            elif "lost" in entry:
                for path in _at_or_below(entry["lost"], found):
                    del found[path]
            elif "moved_made" in entry:
                source, target = entry["moved_made"], entry["to"]
                for path in _at_or_below(source, found):
                    found[target + path[len(source) :]] = found.pop(path)
    return found


def _at_or_below(folder: str, paths: Iterable[str]) -> list[str]:
    return [path for path in paths if path == folder or path.startswith(folder + "/")]


def _lines(path: str) -> list[str]:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read().splitlines()
    except (OSError, ValueError):
        return []
