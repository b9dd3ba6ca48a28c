"""What the script does with files, done so that nothing of the user's changes."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import tempfile
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

from neusight.fake_cuda.overlay.package_caches import cache_folders
from neusight.fake_cuda.store.changes import is_in
from neusight.fake_cuda.store.store import Place, Store, missing

_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND

#: What holds no files of the user's.
_SYSTEM = ("/dev", "/proc", "/sys")


class LeftAloneError(Exception):
    """What is to be changed is none of the overlay's business: the system is to do it."""


# Over 300 lines: one method for each thing a program may do to a file, all on one store; some of
# them alone would leave the user's files unguarded.
class Overlay:
    """The operations of `os` on paths as the script sees them; paths may be all that os takes.

    Each raises OSError as the function of `os` does, with absolute paths in it; those that change
    something raise LeftAloneError where the system may do it as it was asked to.
    """

    def __init__(self, store: Store, *, left_alone: Iterable[str] | None = None) -> None:
        self.store = store
        self.true = store.true
        chosen = cache_folders() if left_alone is None else left_alone
        self._left_alone = (*_SYSTEM, store.folder, *chosen)
        self._began_in = self.true.getcwd()
        self._temporary = os.path.realpath(tempfile.gettempdir())
        self._is_closed = False

    @property
    def is_open(self) -> bool:
        """Whether the overlay is in force: the run goes on, here and where it began."""
        return not (self._is_closed or self.store.is_over)

    def close(self) -> None:
        """From now on everything is as it really is."""
        self._is_closed = True
        with contextlib.suppress(OSError):
            where = self.true.getcwd()
            if not self.store.is_within(where) and not self.store.is_made(where):
                return
        self.true.chdir(self._began_in)

    # -- paths ------------------------------------------------------------------------------------

    def working_folder(self) -> str:
        """Where the script is, as it sees it."""
        return self.store.visible_of(self.true.getcwd())

    def visible(self, path: Any, dir_fd: int | None = None, *, follow: bool = True) -> str:
        """The absolute path that the script means, links followed as it sees them."""
        if isinstance(path, int):
            return self._visible_of_descriptor(path)
        text = os.fsdecode(path)
        if not text:
            raise missing(path)
        if not text.startswith("/"):
            base = self.working_folder() if dir_fd is None else self._visible_of_descriptor(dir_fd)
            text = f"{base}/{text}"
        return self.store.resolve(text, follow=follow)

    def _visible_to_change(
        self, path: Any, dir_fd: int | None = None, *, follow: bool = False
    ) -> str:
        visible = self.visible(path, dir_fd, follow=follow)
        if self.store.watch is not None and not self.is_left_alone(visible):
            folder = os.path.dirname(visible)
            # Other programs use the temporary folder too; a new file has no owner yet.
            if folder != self._temporary and not self.store.is_made(folder):
                self.store.watch.touch(folder)
        return visible

    def _visible_of_descriptor(self, descriptor: int) -> str:
        return self.store.visible_of(self.true.readlink(f"/proc/self/fd/{descriptor}"))

    def is_left_alone(self, path: str) -> bool:
        """Whether a visible path is none of the overlay's business."""
        return any(is_in(path, folder) for folder in self._left_alone)

    @contextlib.contextmanager
    def _changing(
        self, path: Any, dir_fd: int | None = None, *, follow: bool = False
    ) -> Iterator[str]:
        """Gives the visible path; inside, no other thread or process changes the store."""
        visible = self._visible_to_change(path, dir_fd, follow=follow)
        if self.is_left_alone(visible):
            raise LeftAloneError
        with self.store.changing():
            yield visible

    # -- looking ----------------------------------------------------------------------------------

    def found(self, path: Any, dir_fd: int | None = None, *, follow: bool = True) -> Any:
        """Where to read what the script names: the path as given while all is as it stands.

        FileNotFoundError where the script removed it.
        """
        if isinstance(path, int) or self.store.is_untouched:
            return path
        place = self.store.locate(self.visible(path, dir_fd, follow=follow))
        if place is None:
            raise missing(path)
        return place.path

    def names_in(self, path: Any) -> list[Any] | None:
        """What is visible in a folder, None while all is as it stands."""
        if self.store.is_untouched:
            return None
        visible = self.visible(path)
        self._status(visible)
        names = self.store.names_in(visible)
        return [os.fsencode(name) for name in names] if isinstance(path, bytes) else names

    def exists(self, path: Any) -> bool:
        return self.store.lstat(self.visible(path)) is not None

    # -- opening ----------------------------------------------------------------------------------

    def open(self, path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        """A descriptor, as os.open: of a private copy where a file of the user's is to be written,
        of the path itself where it is new."""
        if not flags & _WRITES:
            where = self.found(path, dir_fd, follow=not flags & os.O_NOFOLLOW)
            return self._opened(where, flags, mode, dir_fd=dir_fd if where is path else None)
        is_exclusive = flags & os.O_EXCL and flags & os.O_CREAT
        follow = not (flags & os.O_NOFOLLOW or is_exclusive)
        with self._changing(path, dir_fd, follow=follow) as visible:
            if flags & os.O_TMPFILE == os.O_TMPFILE:  # a file without a name
                return self._opened(self.store.folder, flags, mode)
            place, status = self.store.locate(visible), self.store.lstat(visible)
            if place is None or status is None:
                if not flags & os.O_CREAT:
                    raise self._absent(visible)
                return int(self._make(visible, lambda path: self._opened(path, flags, mode)))
            if is_exclusive:
                raise _error(errno.EEXIST, visible)
            if stat.S_ISREG(status.st_mode):
                if not self.true.access(place.path, os.W_OK):
                    raise _error(errno.EACCES, visible)
                if not self.store.is_new(place):
                    place = Place(self.store.private(visible, empty=bool(flags & os.O_TRUNC)), True)
                return self._opened(place.path, flags, mode)
        return self._opened(place.path, flags, mode)  # a pipe, at which one may wait, or a folder

    def _opened(self, path: Any, flags: int, mode: int, *, dir_fd: int | None = None) -> int:
        return self.true.open(path, flags, mode, dir_fd=dir_fd)  # type: ignore[no-any-return]

    def _require_folder_of(self, visible: str) -> None:
        if not self.store.is_folder(os.path.dirname(visible)):
            raise self._absent(visible)

    def _status(self, visible: str) -> os.stat_result:
        status = self.store.lstat(visible)
        if status is None:
            raise self._absent(visible)
        return status

    def _absent(self, visible: str) -> OSError:
        """Why nothing is at a path."""
        above = os.path.dirname(visible)
        while self.store.lstat(above) is None:
            above = os.path.dirname(above)
        return missing(visible) if self.store.is_folder(above) else _error(errno.ENOTDIR, visible)

    def library_place(self, path: Any, *, empty: bool = True) -> str:
        """Where a C library is to write instead of `path`: something new at the path itself, else
        a private copy, with the content unless it is to be `empty`."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | (os.O_TRUNC if empty else 0)
        try:
            opened = self.open(path, flags, 0o666)
        except LeftAloneError:
            return os.fsdecode(path)
        try:
            return str(self.true.readlink(f"/proc/self/fd/{opened}"))
        finally:
            os.close(opened)

    def record_written(self, place: str) -> None:
        """A C library is done with a place: it may have put another file there."""
        if self.store.is_made(place):
            self.store.record_made(place)

    # -- removing ---------------------------------------------------------------------------------

    def remove(self, path: Any, *, dir_fd: int | None = None) -> None:
        """As os.remove; a file of the user's is hidden."""
        with self._changing(path, dir_fd) as visible:
            if stat.S_ISDIR(self._status(visible).st_mode):
                raise _error(errno.EISDIR, visible)
            self._take_away(visible, self.true.unlink)

    def rmdir(self, path: Any, *, dir_fd: int | None = None) -> None:
        """As os.rmdir; a folder of the user's is hidden."""
        with self._changing(path, dir_fd) as visible:
            if not stat.S_ISDIR(self._status(visible).st_mode):
                raise _error(errno.ENOTDIR, visible)
            if self.store.names_in(visible):
                raise _error(errno.ENOTEMPTY, visible)
            self._take_away(visible, self.true.rmdir)

    def _take_away(self, visible: str, remove: Callable[[str], None]) -> None:
        self._unmake(visible, remove)
        self.store.forget(visible)
        if self.store.existed(visible):
            self.store.hide(visible)

    def _unmake(self, path: str, remove: Callable[[str], None]) -> None:
        if self.store.exists(path) and self.store.is_made(path):
            remove(path)
            self.store.record_removed(path)

    # -- making -----------------------------------------------------------------------------------

    def mkdir(self, path: Any, mode: int = 0o777, *, dir_fd: int | None = None) -> None:
        """As os.mkdir; where the script removed a folder of the user's, the new one is private."""
        with self._changing(path, dir_fd) as visible:
            self._make_folder(visible, mode)

    def mknod(self, path: Any, mode: int = 0o600) -> None:
        """As os.mknod, of a file or a named pipe."""
        with self._changing(path) as visible:
            self._make(visible, lambda place: self.true.mknod(place, mode))

    def symlink(
        self,
        src: Any,
        dst: Any,
        target_is_directory: bool = False,
        *,
        dir_fd: int | None = None,
    ) -> None:
        with self._changing(dst, dir_fd) as visible:
            self._make(visible, lambda place: self.true.symlink(src, place))

    def _make_folder(self, visible: str, mode: int) -> None:
        self._make(visible, lambda place: self.true.mkdir(place, mode), is_folder=True)

    def _make(self, visible: str, make: Callable[[str], Any], *, is_folder: bool = False) -> Any:
        self._require_free(visible)
        if not self.store.is_free(visible):
            return make(self.store.own_place(visible))
        with self.store.making(visible, is_folder=is_folder):
            return make(visible)

    def _require_free(self, visible: str) -> None:
        if self.store.lstat(visible) is not None:
            raise _error(errno.EEXIST, visible)
        self._require_folder_of(visible)

    def link(
        self,
        src: Any,
        dst: Any,
        *,
        src_dir_fd: int | None = None,
        dst_dir_fd: int | None = None,
        follow_symlinks: bool = True,
    ) -> None:
        """As os.link; the second name of a file of the user's is one of its private copy."""
        # Without descriptors Python calls link(2), which follows no link whatever it is asked.
        follow = follow_symlinks and not (src_dir_fd is None and dst_dir_fd is None)
        source = self.visible(src, src_dir_fd, follow=follow)
        target = self._visible_to_change(dst, dst_dir_fd)
        with self.store.changing():
            status, place = self._status(source), self.store.locate(source)
            assert place is not None
            self._require_free(target)
            if stat.S_ISDIR(status.st_mode):
                raise _error(errno.EPERM, source)
            if stat.S_ISLNK(status.st_mode):
                self._make(target, partial(self.true.symlink, self.true.readlink(place.path)))
                return
            is_new = self.store.is_new(place)
            content = place.path if is_new else self.store.private(source)
            if is_new and self.store.is_free(target):
                self._make(target, partial(self.true.link, content))
            else:
                self.true.link(content, self.store.own_place(target))

    # -- moving -----------------------------------------------------------------------------------

    def rename(
        self,
        src: Any,
        dst: Any,
        *,
        src_dir_fd: int | None = None,
        dst_dir_fd: int | None = None,
    ) -> None:
        """As os.rename and os.replace: what is new moves really where its new path is free, all
        else is shown at its new path and hidden at its old one."""
        source = self._visible_to_change(src, src_dir_fd)
        target = self._visible_to_change(dst, dst_dir_fd)
        if self.is_left_alone(source) and self.is_left_alone(target):
            raise LeftAloneError
        with self.store.changing():
            self._require_folder_of(source)
            self._require_folder_of(target)
            moved, there = self._status(source), self.store.lstat(target)
            problem = self._problem_of_move(source, moved, target, there)
            if problem:
                raise _error(problem, source)
            # Two names of one file: then nothing is moved (rename(2)).
            if there is None or not os.path.samestat(moved, there):
                self._move(source, target)

    def _problem_of_move(
        self, source: str, moved: os.stat_result, target: str, there: os.stat_result | None
    ) -> int:
        is_folder = stat.S_ISDIR(moved.st_mode)
        if is_folder and target.startswith(source + "/"):
            return errno.EINVAL
        if source.startswith(target + "/"):
            return errno.ENOTEMPTY
        if there is None or source == target:
            return 0
        if stat.S_ISDIR(there.st_mode):
            if not is_folder:
                return errno.EISDIR
            return errno.ENOTEMPTY if self.store.names_in(target) else 0
        return errno.ENOTDIR if is_folder else 0

    def _move(self, source: str, target: str) -> None:
        place, status = self.store.locate(source), self._status(source)
        assert place is not None
        if self.store.is_new(place) and self.store.is_free(target):
            self.true.rename(source, target)
            self.store.record_moved(source, target)
            return
        if stat.S_ISDIR(status.st_mode):
            if self.store.lstat(target) is None:
                self._make_folder(target, stat.S_IMODE(status.st_mode))
            for name in self.store.names_in(source):
                self._move(os.path.join(source, name), os.path.join(target, name))
            self._take_away(source, self.true.rmdir)
            return
        self._unmake(target, self.true.unlink)
        self.store.show(target, place)
        self._take_away(source, self.true.unlink)

    # -- attributes -------------------------------------------------------------------------------

    def place_to_change(self, path: Any, dir_fd: int | None = None, *, follow: bool = True) -> Any:
        """Where to change mode, times or owner instead of `path`."""
        with self._changing(path, dir_fd, follow=follow) as visible:
            status, place = self._status(visible), self.store.locate(visible)
            assert place is not None
            if place.is_private or self.store.is_new(place):
                return place.path
            if stat.S_ISDIR(status.st_mode):
                return self.store.private_folder(visible)
            if stat.S_ISREG(status.st_mode) or stat.S_ISLNK(status.st_mode):
                return self.store.private(visible)
            if stat.S_ISSOCK(status.st_mode):  # a server's, while it runs
                return path
            raise _error(errno.EPERM, visible)

    def truncate(self, path: Any, length: int) -> None:
        opened = self.open(path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.ftruncate(opened, length)
        finally:
            os.close(opened)

    def chdir(self, path: Any) -> None:
        where = self.found(path)
        if where is not path:
            visible = self.store.visible_of(where)
            where = where if self.store.is_hidden(visible) else visible
        self.true.chdir(where)


def _error(number: int, path: str) -> OSError:
    return OSError(number, os.strerror(number), path)
