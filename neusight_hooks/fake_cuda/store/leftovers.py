"""What a killed run left in the temporary folder: found by its lock, and removed."""

# Strings, not pathlib: this is called by every forecast, and must stay quick to import.

from __future__ import annotations

import fcntl
import os
import shutil
import stat
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial

#: How the name of a store's folder begins.
STORE_PREFIX = "neusight-"
#: File in a store's folder with its owner's process number, which the owner keeps locked while it
#: lives: containers that share a folder do not share numbers.
OWNER = "owner"
#: Folder in a store's folder with a mark for each new file that the run made elsewhere.
MADE = "made"
#: Mode of folders in it that only lead to marks.
TRANSPARENT = stat.S_ISVTX | 0o700

#: The mark of what the run was about to make where nothing stood; later it has device and inode.
BEING_MADE = "0 0"

#: What a run writes to a new file comes a moment after it is marked: a second, so that no other
#: program's write, after the run was killed, is taken for its own.
_AFTER_THE_MARK_NS = 10**9


def own(folder: str) -> int:
    """Says that a store's folder is in use until the descriptor is closed, by all who inherit it,
    or the process ends."""
    descriptor = os.open(os.path.join(folder, OWNER), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    os.write(descriptor, str(os.getpid()).encode())
    return descriptor


def remove_leftovers(parent: str) -> list[str]:
    """Removes the stores in a folder whose owners are dead, with the new files that they made if
    they are still the same, and links to such; returns the stores removed. Never raises."""
    removed = []
    for folder in _own_entries(parent, stat.S_ISDIR):
        with suppress(OSError, ValueError):
            descriptor = os.open(os.path.join(folder, OWNER), os.O_RDWR | os.O_CLOEXEC)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.path.exists(f"/proc/{int(os.read(descriptor, 20))}"):
                    continue
                marked = max((mark.st_mtime_ns for _, mark in _made_paths(folder)), default=0)
                remove_made(folder, partial(_is_of_run, marked + _AFTER_THE_MARK_NS))
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
            open_up(os.path.join(place, name))
    shutil.rmtree(folder, ignore_errors=True)


def open_up(folder: str) -> None:
    """Restores this user's access to a folder of the run. Never raises."""
    with suppress(OSError):
        is_folder = stat.S_ISDIR(os.lstat(folder).st_mode)
        if is_folder and not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
            os.chmod(folder, 0o700)


def _own_entries(parent: str, is_kind: Callable[[int], bool]) -> Iterator[str]:
    """The entries named like a store, of one kind (`stat.S_ISDIR`), that this user owns."""
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


def remove_made(folder: str, is_ours: Callable[[str, os.stat_result], bool]) -> None:
    """Removes what the run of the store in `folder` made elsewhere, if it is still the same and
    `is_ours` of its path and status. Never raises."""
    made = list(_made_paths(folder))
    for path, _ in made:
        open_up(path)
    for path, mark in reversed(made):
        with suppress(OSError):
            status = os.lstat(path)
            if not is_ours(path, status):
                continue
            if stat.S_ISDIR(mark.st_mode):
                os.rmdir(path)  # what another program put there stays
                continue
            with open(f"{folder}/{MADE}{path}") as file:
                is_same = file.read() in (BEING_MADE, f"{status.st_dev} {status.st_ino}")
            if is_same:
                os.unlink(path)


def _made_paths(folder: str, path: str = "") -> Iterator[tuple[str, os.stat_result]]:
    """What the run of a store made below a path, folders before what is in them, and the status of
    its mark: a folder where it is one."""
    with suppress(OSError):
        for name in sorted(os.listdir(f"{folder}/{MADE}{path}")):
            below = f"{path}/{name}"
            status = os.lstat(f"{folder}/{MADE}{below}")
            if not (stat.S_ISDIR(status.st_mode) and stat.S_IMODE(status.st_mode) == TRANSPARENT):
                yield below, status
            yield from _made_paths(folder, below)


def _is_of_run(last_ns: int, path: str, status: os.stat_result) -> bool:
    """What was written after the run's last sign of life is another program's, also where it is the
    same file."""
    return stat.S_ISDIR(status.st_mode) or status.st_mtime_ns <= last_ns
