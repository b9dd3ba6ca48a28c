"""The private store behind a script's files: copies, removals and what is new, in one folder.

A path that the script names is *visible* in one of four ways: as it really is; through a private
copy (or at another place, after a move); not at all, after a removal; or as something new that
really stands there until the run ends. The store's journal says which, to every process of the run.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from typing import Any, NamedTuple

from neusight.fake_cuda.store.folder_watch import FolderWatch
from neusight.fake_cuda.store.journal import Journal
from neusight.fake_cuda.store.leftovers import (
    BEING_MADE,
    OWNER,
    STORE_PREFIX,
    own,
    remove_tree,
)
from neusight.fake_cuda.store.original_functions import functions_beneath
from neusight.fake_cuda.store.path_tree import PathTree
from neusight.fake_cuda.store.private_copy import copy_privately
from neusight.interrupts import signals_held

__all__ = ["SUPERVISED", "Place", "Store", "missing"]

#: Symbolic links followed in one path (MAXSYMLINKS of Linux).
_MAX_LINKS = 40

_FILES = "files"
#: File in a store's folder where a supervisor does what processes of the run do to files.
SUPERVISED = "supervised"


class Place(NamedTuple):
    """Where the content of a visible path lies; `is_private` where it may be written."""

    path: str
    is_private: bool


# Over 300 lines: what is visible where, what was made and what is gone is one state, kept by one
# journal; every question about a path needs all of it.
class Store:
    """What became of the script's files, and where.

    `create` makes one; `Store(folder)` is another process's look at it. Only the process that made
    it closes it.
    """

    def __init__(self, folder: str, *, waits: bool = True) -> None:
        self.true = functions_beneath()
        self.folder = folder
        with open(os.path.join(folder, OWNER)) as file:
            self._owner = int(file.read())
        self._is_supervised = os.path.exists(os.path.join(folder, SUPERVISED))
        #: Remembers the folders in which the script changes something, where nothing else guards.
        self.watch: FolderWatch | None = None
        #: What could not be copied to the folder that keeps the run's files, and why.
        self.not_kept: list[str] = []
        #: Visible path -> where it lies now; None where it was removed.
        self.entries = PathTree[Place | None]()
        #: Visible path -> device and inode of what the run made there.
        self.made = PathTree[tuple[int, int]]()
        #: Visible paths of folders of which mode and times were to be changed.
        self.refused: dict[str, None] = {}
        # Several names of one file share its copy: device and inode -> place.
        self._shared: dict[tuple[int, ...], str] = {}
        self._journal = Journal(folder, self._apply, waits=waits)
        self._lock: int | None = None
        self.refresh()

    @classmethod
    def create(cls, *, parent: str | None = None) -> Store:
        """A fresh one in the temporary folder (or in `parent`), readable by this user alone."""
        with signals_held():
            folder = os.path.realpath(tempfile.mkdtemp(prefix=STORE_PREFIX, dir=parent))
            lock = own(folder)  # first: what has no owner is never removed
            os.mkdir(os.path.join(folder, _FILES))
            store = cls(folder)
            store._lock = lock
            return store

    # -- the journal ------------------------------------------------------------------------------

    def refresh(self) -> None:
        """Takes over what other processes of the run did."""
        self._journal.refresh()

    def changing(self) -> contextlib.AbstractContextManager[None]:
        """While open, no other process or thread of the run changes the store."""
        return self._journal.held()

    def is_held_by(self, thread: int) -> bool:
        """Whether a thread, of whatever process, is the last that was in `changing`."""
        return self._journal.holder() == thread

    def _apply(self, line: dict[str, Any]) -> None:
        if "at" in line:
            self.entries[line["at"]] = Place(line["place"], line["private"])
            if "inode" in line:
                self._shared[tuple(line["inode"])] = line["place"]
        elif "gone" in line:
            self._forget(line["gone"])
            self.entries[line["gone"]] = None
        elif "clear" in line:
            self._forget(line["clear"])
        elif "new" in line:
            self.made[line["new"]] = (line["dev"], line["ino"])
        elif "lost" in line:
            for path in self.made.at_or_below(line["lost"]):
                self.made.pop(path)
        elif "refused" in line:
            self.refused[line["refused"]] = None
        elif "moved" in line:
            _move(self.entries, line["moved"], line["to"])
        else:
            _move(self.made, line["moved_made"], line["to"])

    def _forget(self, path: str) -> None:
        for below in self.entries.at_or_below(path):
            self.entries.pop(below)

    # -- what is visible --------------------------------------------------------------------------

    @property
    def is_untouched(self) -> bool:
        """Whether every path shows what really stands there."""
        self.refresh()
        return not self.entries

    def locate(self, path: str) -> Place | None:
        """Where a visible path lies, whether anything stands there or not; None where it was
        removed. `path` is absolute and free of links but for its last part."""
        known = self.entries.nearest(path)
        if known is None:
            place = Place(path, self.is_within(path))
        else:
            entry = self.entries[known]
            if entry is None:
                return None
            place = Place(entry.path + path[len(known) :], entry.is_private)
        return place if place.is_private else self._shared_place(place.path) or place

    def outside(self, path: str) -> str:
        """A path of what really stands at `path`, also where a supervisor answers system calls by
        what is visible: it leaves /proc alone."""
        return f"/proc/self/root{path}" if self._is_supervised else path

    def _shared_place(self, path: str) -> Place | None:
        if self._shared:
            with contextlib.suppress(OSError):
                status = self.true.lstat(self.outside(path))
                place = self._shared.get((status.st_dev, status.st_ino))
                return None if place is None else Place(place, True)
        return None

    def _looked_at(self, place: Place) -> str:
        return place.path if place.is_private else self.outside(place.path)

    def is_within(self, path: str) -> bool:
        """Whether a path lies in the store itself."""
        return path == self.folder or path.startswith(self.folder + "/")

    def is_made(self, path: str) -> bool:
        """Whether what really stands at `path` was made in this run."""
        return self.made.nearest(path) is not None

    def stands(self, path: str) -> bool:
        """Whether something really stands at `path` that this run did not make."""
        return self._exists(path) and not self.is_made(path)

    def is_shared(self, place: str) -> bool:
        """Whether a private copy stands for several names of one file."""
        return place in self._shared.values()

    def lstat(self, path: str) -> os.stat_result | None:
        """The status of what is visible at `path`, links not followed; None if nothing is."""
        place = self.locate(path)
        if place is None:
            return None
        try:
            return self.true.lstat(self._looked_at(place))  # type: ignore[no-any-return]
        except (FileNotFoundError, NotADirectoryError):
            return None

    def is_folder(self, path: str) -> bool:
        """Whether a folder is visible at `path`."""
        status = self.lstat(path)
        return status is not None and stat.S_ISDIR(status.st_mode)

    def resolve(self, path: str, *, follow: bool = True) -> str:
        """The path behind `path` (absolute), links followed as the script sees them; with
        `follow=False` all but the last. OSError(ELOOP) where they go round."""
        parts = _parts(path)
        current, num_links = "/", 0
        while parts:
            part = parts.pop()
            if part == "..":
                current = os.path.dirname(current)
                continue
            candidate = os.path.join(current, part)
            points_to = self._link_at(candidate) if parts or follow else None
            if points_to is None:
                current = candidate
                continue
            num_links += 1
            if num_links > _MAX_LINKS:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
            if points_to.startswith("/"):
                current = "/"
            parts += _parts(points_to)
        return current

    def _link_at(self, path: str) -> str | None:
        """What the link that is visible at `path` points to; None for all that is no link."""
        place = self.locate(path)
        if place is None:
            return None
        try:
            return self.true.readlink(self._looked_at(place))  # type: ignore[no-any-return]
        except OSError:
            return None

    def names_in(self, path: str) -> list[str]:
        """What is visible in a folder. OSError as os.listdir."""
        place = self.locate(path)
        if place is None:
            raise missing(path)
        names = dict.fromkeys(self.true.listdir(self._looked_at(place)))
        for name in self.entries.names_in(path):
            if self.lstat(os.path.join(path, name)) is None:
                names.pop(name, None)
            else:
                names[name] = None
        return list(names)

    def visible_of(self, place: str) -> str:
        """The visible path of what lies at `place`, such as an open folder."""
        for path in self.entries:
            entry = self.entries[path]
            if entry is not None and (place == entry.path or place.startswith(entry.path + "/")):
                return path + place[len(entry.path) :]
        return place

    # -- changes ----------------------------------------------------------------------------------

    def new_place(self, path: str) -> str:
        """A free path in the store for what is to be visible at `path`, its name kept."""
        holder = _numbered_folder(self, os.path.join(self.folder, _FILES))
        return os.path.join(holder, os.path.basename(path) or "root")

    def put(self, path: str, place: Place, *, inode: tuple[int, int] | None = None) -> None:
        """From now on `path` shows what lies at `place`."""
        shared = {} if inode is None else {"inode": inode}
        line = {"at": path, "place": place.path, "private": place.is_private}
        self._journal.write({**line, **shared})

    def drop(self, path: str) -> None:
        """From now on nothing is visible at `path` and below."""
        folder, name = os.path.split(path)
        place = self.locate(folder)
        shows_through = place is not None and self._exists(os.path.join(place.path, name))
        self._journal.write({"gone" if shows_through else "clear": path})

    def _exists(self, path: str) -> bool:
        try:
            self.true.lstat(self.outside(path))
        except OSError:
            return False
        return True

    def clear(self, path: str) -> None:
        """What became of `path` and what is below no longer counts."""
        self._journal.write({"clear": path})

    def move_entries(self, source: str, target: str) -> None:
        """What became of paths at and below `source` holds for `target`."""
        self._journal.write({"moved": source, "to": target})

    @contextlib.contextmanager
    def making(self, path: str) -> Iterator[None]:
        """Inside, the run makes what will stand at `path`, where nothing does: that is recorded
        first, so that a run that is killed meanwhile leaves nothing behind."""
        self._journal.write({"new": path, "dev": 0, "ino": 0})
        try:
            yield
            self.record_made(path, self.true.lstat(path))
        except OSError:
            self.record_removed(path)
            raise

    def note_refused(self, path: str) -> None:
        """Mode or times of a folder of the user's were to be changed, and stay."""
        if path not in self.refused:
            self._journal.write({"refused": path})

    def record_made(self, path: str, status: os.stat_result) -> None:
        """The run made what stands at `path`."""
        self._journal.write({"new": path, "dev": status.st_dev, "ino": status.st_ino})

    def record_removed(self, path: str) -> None:
        """What the run made at `path` and below stands there no longer."""
        self._journal.write({"lost": path})

    def record_moved(self, source: str, target: str) -> None:
        """What the run made at `source` and below stands at `target` now."""
        self._journal.write({"moved_made": source, "to": target})

    def private(self, path: str, *, empty: bool = False) -> str:
        """A place in the store to write instead of the file visible at `path`, its content in it
        unless it is to be `empty`; a free one where none is. OSError where it is too large to be
        copied, or the disk is full."""
        with self.changing():
            place = self.locate(path)
            if place is not None and place.is_private:
                return place.path
            copy = self.new_place(path)
            inode = None
            if place is not None and self.lstat(path) is not None:
                status = copy_privately(self.true, path, self._looked_at(place), copy, empty=empty)
                inode = (status.st_dev, status.st_ino) if status.st_nlink > 1 else None
            self.put(path, Place(copy, True), inode=inode)
            return copy

    # -- the end ----------------------------------------------------------------------------------

    @property
    def is_over(self) -> bool:
        """Whether the run has ended, and the store with it."""
        return self._journal.is_removed

    @property
    def is_owner(self) -> bool:
        """Whether this process made the store."""
        return os.getpid() == self._owner

    def summary_line(self) -> str:
        """What was kept from the user's files, in a line; empty where nothing was."""
        self.refresh()
        parts = []
        if self.entries:
            first = _shown(next(iter(self.entries)))
            parts.append(f"went to a temporary place, not over your files (first: {first})")
        if self.made:
            first = _shown(next(iter(self.made)))
            parts.append(f"was new and is removed at the end (first: {first})")
        stated = [f"what the script wrote {' or '.join(parts)}"] if parts else []
        if self.refused:
            first = _shown(next(iter(self.refused)))
            stated.append(
                f"changes of the mode or times of your folders were refused (first: {first})"
            )
        if not stated:
            return ""
        return (
            f"{', '.join(stated)}; --keep-writes DIR keeps what was written, "
            "--allow-writes writes where the script says"
        )

    def close(self, *, keep: str | None = None) -> None:
        """Removes what the run made, and the store; copies both to the folder `keep` before.

        Only in the process that made the store: others leave it alone.
        """
        if self.is_owner:
            with signals_held():
                self._close(keep)

    def _close(self, keep: str | None) -> None:
        self.refresh()
        kept = None if keep is None else os.path.realpath(keep)
        try:
            if kept is not None:
                self._collect(kept)
        finally:
            for path in sorted(self.made, key=len, reverse=True):
                if kept is None or not _is_in(path, kept):
                    self._remove_made(path)
            self._journal.close()
            remove_tree(self.folder)
            if self._lock is not None:
                with contextlib.suppress(OSError):  # a script may have closed it
                    os.close(self._lock)
                self._lock = None

    def _remove_made(self, path: str) -> None:
        with contextlib.suppress(OSError):
            status = os.lstat(path)
            if self.made[path] not in (BEING_MADE, (status.st_dev, status.st_ino)):
                return  # something else stands there now
            if stat.S_ISDIR(status.st_mode):
                os.rmdir(path)  # what another program put there stays
            else:
                os.unlink(path)

    def _collect(self, keep: str) -> None:
        start = os.getcwd()
        for path in _outermost([*self.made, *self.entries]):
            for source, shown in self._written_below(path):
                if _is_in(shown, keep):
                    continue  # the script wrote it there itself
                if start == "/" or not shown.startswith(start + "/"):
                    target = os.path.join(keep, "root", shown.lstrip("/"))
                else:
                    target = os.path.join(keep, os.path.relpath(shown, start))
                try:
                    os.makedirs(os.path.dirname(target), exist_ok=True)
                    shutil.copy2(source, target, follow_symlinks=False)
                except OSError as error:
                    with contextlib.suppress(OSError):
                        os.unlink(target)
                    self.not_kept.append(f"{shown} ({error.strerror or error})")

    def _written_below(self, path: str) -> Iterator[tuple[str, str]]:
        """Place and visible path of every file at or below `path` that the run wrote."""
        status, place = self.lstat(path), self.locate(path)
        if status is None or place is None:
            return
        if stat.S_ISDIR(status.st_mode):
            for name in self.names_in(path):
                yield from self._written_below(os.path.join(path, name))
        elif place.is_private or self.is_made(place.path):
            yield place.path, path


def _is_in(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def missing(path: Any) -> FileNotFoundError:
    """What os says of a path where nothing stands."""
    return FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)


def _numbered_folder(store: Store, folder: str) -> str:
    """A new folder in `folder`, numbered."""
    number = len(store.true.listdir(folder))
    while True:
        path = os.path.join(folder, str(number))
        try:
            store.true.mkdir(path)
        except FileExistsError:
            number += 1
        else:
            return path


def _parts(path: str) -> list[str]:
    """The parts of a path, last first."""
    return [part for part in reversed(path.split("/")) if part not in ("", ".")]


def _move(tree: PathTree[Any], source: str, target: str) -> None:
    for path in tree.at_or_below(source):
        tree[target + path[len(source) :]] = tree.pop(path)


def _outermost(paths: list[str]) -> list[str]:
    kept: dict[str, None] = {}
    for path in sorted(paths):
        if not any(above in kept for above in _folders_above(path)):
            kept[path] = None
    return list(kept)


def _folders_above(path: str) -> Iterator[str]:
    while path != "/":
        path = os.path.dirname(path)
        yield path


def _shown(path: str) -> str:
    """A path as the user would name it from here."""
    start = os.getcwd().rstrip("/") + "/"
    return path.removeprefix(start)
