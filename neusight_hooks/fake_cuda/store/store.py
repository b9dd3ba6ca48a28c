"""The private store behind a script's files: copies, removals and what is new, in one folder.

Three trees in it mirror the paths of the file system. What lies in `files` is shown in place of
what really stands at its path; `hidden` has an empty file for each path that was removed; `made`
has a mark for each new file or folder that really stands there until the run ends. Folders of mode
`TRANSPARENT` only lead to what is below them.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
import tempfile
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, NamedTuple

from neusight.fake_cuda.store import changes
from neusight.fake_cuda.store.changes import Change, is_in
from neusight.fake_cuda.store.folder_watch import FolderWatch
from neusight.fake_cuda.store.leftovers import (
    BEING_MADE,
    MADE,
    OWNER,
    STORE_PREFIX,
    TRANSPARENT,
    open_up,
    own,
    remove_made,
    remove_tree,
)
from neusight.fake_cuda.store.private_copy import copy_privately
from neusight.interrupts import signals_held

#: Symbolic links followed in one path (MAXSYMLINKS of Linux).
_MAX_LINKS = 40
#: Begins a file of mode _REFERENCE_MODE in `files` that names the place of the content.
_REFERENCE = b"\0neusight\0"
_REFERENCE_MODE = stat.S_ISVTX | 0o400
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC


class Place(NamedTuple):
    """Where the content of a visible path is stored; `is_private` if it may be written."""

    path: str
    is_private: bool


# Over 300 lines: what is visible where, what was made and what is gone lie in three trees; every
# question about a path needs all of them.
class Store:
    """What became of the script's files, and where.

    `create` makes one; `Store(folder)` is another process's look at it. Only the process that made
    it closes it.
    """

    def __init__(self, folder: str) -> None:
        functions = ((name, getattr(os, name)) for name in dir(os))
        #: The functions of `os` as they are now: the overlay exchanges them.
        self.true = SimpleNamespace(**{name: value for name, value in functions if callable(value)})
        self.folder = folder
        with open(f"{folder}/{OWNER}") as file:
            self._owner = int(file.read())
        #: Remembers the folders in which the script changes something, where nothing else guards.
        self.watch: FolderWatch | None = None
        #: What could not be copied to the folder that keeps the run's files, and why.
        self.not_kept: list[str] = []
        self._files, self._hidden = f"{folder}/files", f"{folder}/hidden"
        #: Several names of one file share its copy: here it is named by device and inode.
        self._inodes = f"{folder}/inodes"
        self._made = f"{folder}/{MADE}"
        self._thread_lock, self._depth = threading.RLock(), 0
        self._lock: int | None = None

    @classmethod
    def create(cls, *, parent: str | None = None) -> Store:
        """Makes one in the temporary folder (or in `parent`), readable only by this user."""
        with signals_held():
            folder = os.path.realpath(tempfile.mkdtemp(prefix=STORE_PREFIX, dir=parent))
            lock = own(folder)  # first: what has no owner is never removed
            store = cls(folder)
            store._lock = lock
            for path in (store._files, store._hidden, store._inodes, store._made):
                os.mkdir(path)
                os.utime(path, (0, 0))  # until something is in it
            return store

    @contextlib.contextmanager
    def changing(self) -> Iterator[None]:
        """Locks the store against other processes and threads of the run."""
        with self._thread_lock:
            if self._depth:
                yield
                return
            # Opened again each time: forked processes share the lock of one descriptor.
            lock = self.true.open(f"{self.folder}/lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX)
                self._depth = 1
                yield
            finally:
                self._depth = 0
                os.close(lock)

    # -- what is visible --------------------------------------------------------------------------

    @property
    def is_over(self) -> bool:
        """Whether the run has ended, and the store with it."""
        return self._status(self._files) is None

    @property
    def is_untouched(self) -> bool:
        """Whether every path shows what is on disk."""
        return self._is_empty(self._files) and self._is_empty(self._hidden)

    def _is_empty(self, tree: str) -> bool:
        status = self._status(tree)
        return status is None or status.st_mtime_ns == 0

    def locate(self, path: str) -> Place | None:
        """Where a visible path lies, whether anything stands there or not; None where it was
        removed. `path` is absolute and free of links but for its last part."""
        if self.is_untouched or self.is_within(path):
            return Place(path, self.is_within(path))
        entries = list(self._entries(self._files, path))
        if entries:
            at, status = entries[-1]
            rest = path[len(at) - len(self._files) :]
            if not stat.S_ISDIR(status.st_mode):
                source = self._reference(at, status)
                if source is None:
                    return Place(at + rest, True)
                return self._shared_place(source + rest) or Place(source + rest, False)
            if not rest and not _is_transparent(status):
                return Place(at, True)
        return None if self.is_hidden(path) else self._shared_place(path) or Place(path, False)

    def _entries(self, tree: str, path: str) -> Iterator[tuple[str, os.stat_result]]:
        """What a tree has for a path and what is above it, outermost first."""
        at = tree
        for part in path.split("/"):
            if part:
                at = f"{at}/{part}"
                status = self._status(at)
                if status is None:
                    return
                yield at, status

    def _status(self, place: str) -> os.stat_result | None:
        try:
            return self.true.lstat(place)  # type: ignore[no-any-return]
        except (FileNotFoundError, NotADirectoryError):
            return None

    def _reference(self, at: str, status: os.stat_result) -> str | None:
        """The path that a file in `files` stands for; None where it is the content itself."""
        if not (stat.S_ISREG(status.st_mode) and status.st_mode & stat.S_ISVTX):
            return None
        opened = self.true.open(at, os.O_RDONLY | os.O_CLOEXEC)
        try:
            data = os.read(opened, 2**16)
        finally:
            os.close(opened)
        named = data.removeprefix(_REFERENCE)
        return os.fsdecode(named) if named != data else None

    def _shared_place(self, path: str) -> Place | None:
        if not self._is_empty(self._inodes):
            status = self._status(path)
            if status is not None and status.st_nlink > 1:
                place = self._of_inode(status)
                return None if self._status(place) is None else Place(place, True)
        return None

    def _of_inode(self, status: os.stat_result) -> str:
        return f"{self._inodes}/{status.st_dev}-{status.st_ino}"

    def is_within(self, path: str) -> bool:
        return is_in(path, self.folder)

    def is_hidden(self, path: str) -> bool:
        """Whether the run removed what is on disk at `path`, or a folder above it."""
        return any(not stat.S_ISDIR(one.st_mode) for _, one in self._entries(self._hidden, path))

    def is_made(self, path: str) -> bool:
        """Whether what is on disk at `path` was made in this run."""
        return any(not _is_transparent(one) for _, one in self._entries(self._made, path))

    def is_new(self, place: Place) -> bool:
        """Whether what lies at a place really stands there, made in this run."""
        return not place.is_private and self.is_made(place.path)

    def exists(self, path: str) -> bool:
        return self._status(path) is not None

    def existed(self, path: str) -> bool:
        """Whether something exists on disk at `path` that this run did not make."""
        return self.exists(path) and not self.is_made(path)

    def is_free(self, path: str) -> bool:
        """Whether a new file can be made at `path` on disk and is then visible there."""
        above = self._status(os.path.dirname(path))
        is_in_folder = above is not None and stat.S_ISDIR(above.st_mode)
        return is_in_folder and not self.existed(path) and not self.is_hidden(path)

    def lstat(self, path: str) -> os.stat_result | None:
        """The status of what is visible at `path`, links not followed; None if nothing is."""
        place = self.locate(path)
        return None if place is None else self._status(place.path)

    def is_folder(self, path: str) -> bool:
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
            return self.true.readlink(place.path)  # type: ignore[no-any-return]
        except OSError:
            return None

    def names_in(self, path: str) -> list[str]:
        """What is visible in a folder. OSError as os.listdir."""
        place = self.locate(path)
        if place is None:
            raise missing(path)
        own = self._files + path.rstrip("/")
        is_shown = place.path == own
        is_new = is_shown and (self.is_hidden(path) or self._status(path) is None)
        real = [] if is_new else self.true.listdir(path if is_shown else place.path)
        names = dict.fromkeys(real)
        for name in (*self._names(self._hidden + path), *self._names(own)):
            if self.lstat(os.path.join(path, name)) is None:
                names.pop(name, None)
            else:
                names[name] = None
        return list(names)

    def _names(self, folder: str) -> list[str]:
        status = self._status(folder)
        is_folder = status is not None and stat.S_ISDIR(status.st_mode)
        return self.true.listdir(folder) if is_folder else []

    def visible_of(self, place: str) -> str:
        """The visible path of what lies at `place`, such as an open folder."""
        if is_in(place, self._files):
            return place[len(self._files) :] or "/"
        return place

    def listing(self, path: str) -> str | None:
        """A folder that shows to every program what is visible in the folder `path`: None where
        that is what really stands there."""
        is_own = self._status(self._files + path) is not None
        if not is_own and self._status(self._hidden + path) is None:
            return None
        if not self.is_folder(path):  # nor a link to one, which may be the user's
            return None
        names = self.names_in(path)
        if self.locate(path) == Place(path, False) and self._really_has(path, names):
            return None
        folder = self.private_folder(path)
        for name in self.true.listdir(folder):
            if name not in names:
                remove_tree(f"{folder}/{name}")
        for name in names:
            real, at = os.path.join(path, name), f"{folder}/{name}"
            status = self._status(real)
            if status is None or self._status(at) is not None:
                continue
            if stat.S_ISDIR(status.st_mode):
                self.true.mkdir(at, TRANSPARENT)
            else:
                self._refer(at, real, status)
        return folder

    def _really_has(self, path: str, names: list[str]) -> bool:
        """Whether a folder on disk has these names, of the kinds that are visible."""
        if set(names) != set(self.true.listdir(path)):
            return False
        below = [f"{path}/{name}" for name in self._names(self._files + path)]
        pairs = [(self.lstat(one), self._status(one)) for one in below]
        return all(a and b and stat.S_IFMT(a.st_mode) == stat.S_IFMT(b.st_mode) for a, b in pairs)

    # -- changes ----------------------------------------------------------------------------------

    def own_place(self, path: str) -> str:
        """A free place in the store for what is to be visible at `path`."""
        self.forget(path)
        return self._led_to(self._files, path)

    def _led_to(self, tree: str, path: str) -> str:
        """Where `path` is in a tree; makes its parent folders."""
        at = tree
        for part in path.split("/")[1:-1]:
            at = f"{at}/{part}"
            if self._status(at) is None:
                self.true.mkdir(at, TRANSPARENT)
        return f"{at}/{path.rsplit('/', 1)[1]}"

    def forget(self, path: str) -> None:
        """Shows what is on disk at `path` again, unless it is hidden."""
        self._remove(self._files + path)

    def _remove(self, at: str) -> None:
        status = self._status(at)
        if status is not None and stat.S_ISDIR(status.st_mode):
            remove_tree(at)
        elif status is not None:
            self.true.unlink(at)

    def hide(self, path: str) -> None:
        """Hides what is on disk at `path` and below."""
        if self.is_hidden(path):  # as all of a folder is
            return
        at = self._led_to(self._hidden, path)
        self._remove(at)
        self._write(at, b"")

    def show(self, path: str, place: Place) -> None:
        """From now on what lies at `place` is visible at `path`; what is the run's own moves."""
        at = self.own_place(path)
        is_new = self.is_new(place)
        status = self.true.lstat(place.path)
        if place.path.startswith(self._inodes + "/"):
            self.true.link(place.path, at)
        elif not (place.is_private or is_new):
            self._refer(at, place.path, status)
        else:
            try:
                self.true.rename(place.path, at)
            except OSError:  # another disk
                copy_privately(self.true, path, place.path, at, empty=False)
                self.true.unlink(place.path)
        if is_new:
            self.record_removed(place.path)

    def _refer(self, at: str, path: str, status: os.stat_result) -> None:
        """Makes a place refer to what is on disk at `path`."""
        if stat.S_ISLNK(status.st_mode):
            self.true.symlink(self.true.readlink(path), at)
        else:
            self._write(at, _REFERENCE + os.fsencode(path), _REFERENCE_MODE)

    def _write(self, at: str, data: bytes, mode: int = 0o600) -> None:
        opened = self.true.open(at, _NEW_FILE, mode)
        try:
            os.write(opened, data)
            self.true.fchmod(opened, mode)
        finally:
            os.close(opened)

    def private_folder(self, path: str) -> str:
        """A folder in the store with the mode and times of the one that is visible at `path`."""
        status = self.lstat(path)
        assert status is not None
        at = self._led_to(self._files, path)
        own = self._status(at)
        if own is None:
            self.true.mkdir(at, 0o700)
        if own is None or _is_transparent(own):
            mode = stat.S_IMODE(status.st_mode) | 0o700
            self.true.chmod(at, mode if mode != TRANSPARENT else 0o700)
            self.true.utime(at, ns=(status.st_atime_ns, status.st_mtime_ns))
        return at

    def private(self, path: str, *, empty: bool = False) -> str:
        """A place in the store to write instead of the file visible at `path`, its content in it
        unless it is to be `empty`; a free one where none is. OSError where it is too large to be
        copied, or the disk is full."""
        with self.changing():
            place, status = self.locate(path), self.lstat(path)
            if place is not None and place.is_private:
                return place.path
            if place is None or status is None:
                return self.own_place(path)
            if stat.S_ISLNK(status.st_mode):
                at = self.own_place(path)
                self._refer(at, place.path, status)
                return at
            part = f"{self.folder}/part"
            self._remove(part)
            copy_privately(self.true, path, place.path, part, empty=empty)
            at = self._led_to(self._files, path)
            self.true.rename(part, at)
            if status.st_nlink > 1:
                self.true.link(at, self._of_inode(status))
            return at

    # -- what is new ------------------------------------------------------------------------------

    @contextlib.contextmanager
    def making(self, path: str, *, is_folder: bool = False) -> Iterator[None]:
        """Inside, the run makes what will stand at `path`, where nothing does: that is recorded
        first, so that a run that is killed meanwhile leaves nothing behind."""
        self.forget(path)
        self.record_removed(path)
        self._mark(path, None if is_folder else BEING_MADE)
        try:
            yield
            if not is_folder:
                self.record_made(path)
        except OSError:
            self.record_removed(path)
            raise

    def record_made(self, path: str) -> None:
        """Records that the run made what is on disk at `path`."""
        status = self.true.lstat(path)
        is_folder = stat.S_ISDIR(status.st_mode)
        self._mark(path, None if is_folder else f"{status.st_dev} {status.st_ino}")

    def _mark(self, path: str, text: str | None) -> None:
        """Writes a mark: `text` for a file, None for a folder."""
        at = self._led_to(self._made, path)
        own = self._status(at)
        if text is None and own is None:
            self.true.mkdir(at, 0o700)
        elif text is not None and (own is None or not stat.S_ISDIR(own.st_mode)):
            self._write(at, text.encode())

    def record_removed(self, path: str) -> None:
        """Records that what the run made at `path` and below was removed."""
        self._remove(self._made + path)

    def record_moved(self, source: str, target: str) -> None:
        """What the run made at `source` stands at `target` now, with all that is shown below it."""
        for tree in (self._made, self._files):
            self._remove(tree + target)
            if self._status(tree + source) is not None:
                self.true.rename(tree + source, self._led_to(tree, target))
        if self._status(self._made + target) is None:  # it was part of a new folder
            self.record_made(target)

    # -- the end ----------------------------------------------------------------------------------

    def changes(self, folder: str = "") -> Iterator[Change]:
        """Every path below a folder at which something else was visible than stood there before;
        what other programs put into a folder that the run made is in it."""
        trees = (self._files, self._hidden, self._made, *[""] * self.is_made(folder))
        for tree in trees:
            open_up(tree + folder)
        for name in sorted({name for tree in trees for name in self._names(tree + folder)}):
            path = f"{folder}/{name}"
            place, status, existed = self.locate(path), self.lstat(path), self.existed(path)
            if place is None or status is None:
                if existed:
                    yield Change(path, False, True, None)
            elif stat.S_ISDIR(status.st_mode):
                if not existed:
                    yield Change(path, True, False, None)
                yield from self.changes(path)
            elif place.path != path or not existed:
                yield Change(path, not existed, False, place.path)

    def summary_line(self) -> str:
        """What the script did to files, in one line; empty if it wrote none."""
        return changes.summary_of(self.changes())

    def close(self, *, keep: str | None = None) -> None:
        """Removes what the run made, and the store; copies both to the folder `keep` before.

        Only in the process that made the store: others leave it alone.
        """
        if os.getpid() == self._owner:
            with signals_held():
                self._close(keep)

    def _close(self, keep: str | None) -> None:
        kept = None if keep is None else os.path.realpath(keep)
        try:
            if kept is not None:
                self.not_kept += changes.keep(self.changes(), kept, store=self.folder)
        finally:
            remove_made(self.folder, lambda path, _: kept is None or not is_in(path, kept))
            remove_tree(self.folder)
            if self._lock is not None:
                with contextlib.suppress(OSError):  # a script may have closed it
                    os.close(self._lock)
                self._lock = None


def _is_transparent(status: os.stat_result) -> bool:
    return stat.S_ISDIR(status.st_mode) and stat.S_IMODE(status.st_mode) == TRANSPARENT


def missing(path: Any) -> FileNotFoundError:
    return FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)


def _parts(path: str) -> list[str]:
    """The parts of a path, last first."""
    return [part for part in reversed(path.split("/")) if part not in ("", ".")]
