"""What the script does with files, done so that nothing of the user's changes."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import tempfile
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from neusight.fake_cuda.overlay.package_caches import cache_folders
from neusight.fake_cuda.store.store import Store, missing

__all__ = ["Overlay"]

_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND

#: What holds no files of the user's.
_SYSTEM = ("/dev", "/proc", "/sys")


# Over 300 lines: one method for each thing a program may do to a file, all on one store; some of
# them alone would leave the user's files unguarded.
class Overlay:
    """The operations of `os` on paths as the script sees them; paths may be all that os takes.

    Each raises OSError as the function of `os` does, with the path as it was given.
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
        return self.visible_of(self.true.getcwd())

    def visible_of(self, place: str) -> str:
        """The path under which the script sees what lies at `place`."""
        return place if self.store.is_untouched else self.store.visible_of(place)

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
        folder = os.path.dirname(visible)
        watch = self.store.watch
        if watch is not None and not self.is_left_alone(visible) and self._is_users(folder):
            watch.touch(folder)
        return visible

    def _is_users(self, folder: str) -> bool:
        """Whether a change in it is to be reported: others use the temporary folder too."""
        return not (
            folder == self._temporary or self.store.is_made(folder) or self.is_left_alone(folder)
        )

    def _visible_of_descriptor(self, descriptor: int) -> str:
        return self.visible_of(self.true.readlink(f"/proc/self/fd/{descriptor}"))

    def is_left_alone(self, path: str) -> bool:
        """Whether a visible path is none of the overlay's business."""
        return any(path == own or path.startswith(own + "/") for own in self._left_alone)

    @contextlib.contextmanager
    def naming(self, path: Any) -> Iterator[None]:
        """Errors carry the path that the script gave."""
        try:
            yield
        except OSError as error:
            if error.filename is not None:
                error.filename = path
            raise

    @contextlib.contextmanager
    def _changing(self, path: Any) -> Iterator[None]:
        with self.naming(path), self.store.changing():
            yield

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
        with self.naming(path):
            visible = self.visible(path)
            self._status(visible)
            names = self.store.names_in(visible)
        return [os.fsencode(name) for name in names] if isinstance(path, bytes) else names

    def exists(self, path: Any) -> bool:
        """Whether the script sees anything at a path."""
        return self.store.lstat(self.visible(path)) is not None

    # -- opening ----------------------------------------------------------------------------------

    def open(self, path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        """A descriptor, as os.open: of a private copy where a file of the user's is to be written,
        of the path itself where it is new."""
        if not flags & _WRITES:
            where = self.found(path, dir_fd, follow=not flags & os.O_NOFOLLOW)
            with self.naming(path):
                fd = dir_fd if where is path else None
                return self.true.open(where, flags, mode, dir_fd=fd)  # type: ignore[no-any-return]
        if flags & os.O_TMPFILE == os.O_TMPFILE:  # a file without a name
            return self.true.open(self.store.folder, flags, mode)  # type: ignore[no-any-return]
        is_exclusive = flags & os.O_EXCL and flags & os.O_CREAT
        visible = self._visible_to_change(
            path, dir_fd, follow=not (flags & os.O_NOFOLLOW or is_exclusive)
        )
        if self.is_left_alone(visible):
            return self.true.open(path, flags, mode, dir_fd=dir_fd)  # type: ignore[no-any-return]
        status = self.store.lstat(visible)
        if status is not None and not stat.S_ISREG(status.st_mode):
            with self.naming(path):  # a pipe, a socket, a folder: as the system says
                where = self.store.locate(visible)
                return self.true.open(where.path, flags, mode)  # type: ignore
        with self._changing(path):
            return self._open_file(visible, flags, mode)

    def _open_file(self, visible: str, flags: int, mode: int) -> int:
        place = self.store.locate(visible)
        if place is None or self.store.lstat(visible) is None:
            if not flags & os.O_CREAT:
                raise self._absent(visible)
            return self._create(visible, flags, mode)
        if flags & os.O_CREAT and flags & os.O_EXCL:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), visible)
        if not place.is_private and self.store.is_made(place.path):
            return self.true.open(place.path, flags, mode)  # type: ignore[no-any-return]
        where = self.store.private(visible, empty=bool(flags & os.O_TRUNC))
        return self.true.open(where, flags, mode)  # type: ignore[no-any-return]

    def _create(self, visible: str, flags: int, mode: int) -> int:
        self._require_folder_of(visible)
        if not self.store.is_free(visible):
            place = self.store.own_place(visible)
            return self.true.open(place, flags, mode)  # type: ignore[no-any-return]
        with self.store.making(visible):
            return self.true.open(visible, flags, mode)  # type: ignore[no-any-return]

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
        if self.store.is_folder(above):
            return missing(visible)
        return NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), visible)

    def writer_place(self, path: Any) -> str:
        """Where a C library is to write instead of `path`: something new at the path itself."""
        visible = self._visible_to_change(path, follow=True)
        if self.is_left_alone(visible):
            return os.fsdecode(path)
        with self._changing(path):
            if self.store.lstat(visible) is None:
                flags = os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC
                os.close(self._create(visible, flags, 0o666))
            place = self.store.locate(visible)
            if place is not None and not place.is_private and self.store.is_made(place.path):
                return place.path
            return self.store.private(visible, empty=True)

    def note_written(self, place: str) -> None:
        """A C library is done with what `writer_place` said: it may have put another file there."""
        if self.store.is_made(place):
            self.store.record_made(place)

    def private_place(self, path: Any) -> str:
        """A private copy for a library that keeps the file open, of what is new as well."""
        visible = self._visible_to_change(path, follow=True)
        if self.is_left_alone(visible):
            return os.fsdecode(path)
        with self._changing(path):
            return self.store.private(visible)

    # -- removing ---------------------------------------------------------------------------------

    def remove(self, path: Any, *, dir_fd: int | None = None) -> None:
        """As os.remove; a file of the user's is hidden."""
        visible = self._visible_to_change(path, dir_fd)
        if self.is_left_alone(visible):
            return self.true.remove(path, dir_fd=dir_fd)  # type: ignore[no-any-return]
        with self._changing(path):
            status = self._status(visible)
            if stat.S_ISDIR(status.st_mode):
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
            self._take_away(visible, self.true.unlink)
        return None

    def rmdir(self, path: Any, *, dir_fd: int | None = None) -> None:
        """As os.rmdir; a folder of the user's is hidden."""
        visible = self._visible_to_change(path, dir_fd)
        if self.is_left_alone(visible):
            return self.true.rmdir(path, dir_fd=dir_fd)  # type: ignore[no-any-return]
        with self._changing(path):
            status = self._status(visible)
            if not stat.S_ISDIR(status.st_mode):
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
            if self.store.names_in(visible):
                raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), path)
            self._take_away(visible, self.true.rmdir)
        return None

    def _take_away(self, visible: str, remove: Callable[[str], None]) -> None:
        if self.store.exists(visible) and self.store.is_made(visible):
            remove(visible)
            self.store.record_removed(visible)
        self.store.forget(visible)
        if self.store.stands(visible):
            self.store.hide(visible)

    # -- making -----------------------------------------------------------------------------------

    def mkdir(self, path: Any, mode: int = 0o777, *, dir_fd: int | None = None) -> None:
        """As os.mkdir; where the script removed a folder of the user's, the new one is private."""
        visible = self._visible_to_change(path, dir_fd)
        if self.is_left_alone(visible):
            return self.true.mkdir(path, mode, dir_fd=dir_fd)  # type: ignore[no-any-return]
        with self._changing(path):
            self._make_folder(visible, mode)
        return None

    def mknod(self, path: Any, mode: int = 0o600) -> None:
        """As os.mknod, of a file or a named pipe."""
        visible = self._visible_to_change(path)
        if self.is_left_alone(visible):
            return self.true.mknod(path, mode)  # type: ignore[no-any-return]
        with self._changing(path):
            self._make(visible, lambda place: self.true.mknod(place, mode))
        return None

    def symlink(
        self,
        src: Any,
        dst: Any,
        target_is_directory: bool = False,
        *,
        dir_fd: int | None = None,
    ) -> None:
        """As os.symlink."""
        visible = self._visible_to_change(dst, dir_fd)
        if self.is_left_alone(visible):
            return self.true.symlink(src, dst, dir_fd=dir_fd)  # type: ignore[no-any-return]
        with self._changing(dst):
            self._make(visible, lambda place: self.true.symlink(src, place))
        return None

    def _make_folder(self, visible: str, mode: int) -> None:
        self._make(visible, lambda place: self.true.mkdir(place, mode), is_folder=True)

    def _make(self, visible: str, make: Callable[[str], None], *, is_folder: bool = False) -> None:
        if self.store.lstat(visible) is not None:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), visible)
        self._require_folder_of(visible)
        if self.store.is_free(visible):
            with self.store.making(visible, is_folder=is_folder):
                make(visible)
        else:
            make(self.store.own_place(visible))

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
        with self._changing(src):
            status, place = self._status(source), self.store.locate(source)
            assert place is not None
            if self.store.lstat(target) is not None:
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), src, None, dst)
            self._require_folder_of(target)
            if stat.S_ISDIR(status.st_mode):
                raise PermissionError(errno.EPERM, os.strerror(errno.EPERM), src, None, dst)
            if stat.S_ISLNK(status.st_mode):
                self.symlink(self.true.readlink(place.path), target)
                return
            is_made = not place.is_private and self.store.is_made(place.path)
            if is_made and self.store.is_free(target):
                with self.store.making(target):
                    self.true.link(place.path, target)
                return
            content = place.path if is_made else self.store.private(source)
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
            dirs = {"src_dir_fd": src_dir_fd, "dst_dir_fd": dst_dir_fd}
            return self.true.rename(src, dst, **dirs)  # type: ignore[no-any-return]
        with self._changing(src):
            self._check_move(source, target, src, dst)
            if not self._is_same(source, target):
                self._move(source, target)
        return None

    def _is_same(self, source: str, target: str) -> bool:
        """Whether both are names of one file: then nothing is moved (rename(2))."""
        moved, there = self.store.lstat(source), self.store.lstat(target)
        return (
            moved is not None
            and there is not None
            and (moved.st_dev, moved.st_ino) == (there.st_dev, there.st_ino)
        )

    def _check_move(self, source: str, target: str, src: Any, dst: Any) -> None:
        self._require_folder_of(source)
        self._require_folder_of(target)
        moved, there = self._status(source), self.store.lstat(target)
        problem = 0
        if stat.S_ISDIR(moved.st_mode) and target.startswith(source + "/"):
            problem = errno.EINVAL
        elif source.startswith(target + "/"):
            problem = errno.ENOTEMPTY
        elif there is not None and stat.S_ISDIR(there.st_mode):
            if not stat.S_ISDIR(moved.st_mode):
                problem = errno.EISDIR
            elif source != target and self.store.names_in(target):
                problem = errno.ENOTEMPTY
        elif there is not None and stat.S_ISDIR(moved.st_mode):
            problem = errno.ENOTDIR
        if problem:
            raise OSError(problem, os.strerror(problem), src, None, dst)

    def _move(self, source: str, target: str) -> None:
        place, status = self.store.locate(source), self._status(source)
        assert place is not None
        is_made = not place.is_private and self.store.is_made(place.path)
        if is_made and self.store.is_free(target):
            self.true.rename(source, target)
            self.store.record_moved(source, target)
            self.store.move_entries(source, target)
            return
        if stat.S_ISDIR(status.st_mode):
            if self.store.lstat(target) is None:
                self._make_folder(target, stat.S_IMODE(status.st_mode))
            for name in self.store.names_in(source):
                self._move(os.path.join(source, name), os.path.join(target, name))
            self._take_away(source, self.true.rmdir)
            return
        if self.store.exists(target) and self.store.is_made(target):
            self.true.unlink(target)
            self.store.record_removed(target)
        self.store.show(target, place)
        self._take_away(source, self.true.unlink)

    # -- attributes -------------------------------------------------------------------------------

    def place_to_change(self, path: Any, dir_fd: int | None = None, *, follow: bool = True) -> Any:
        """Where to change mode, times or owner instead of `path`."""
        visible = self._visible_to_change(path, dir_fd, follow=follow)
        if self.is_left_alone(visible):
            return path
        with self._changing(path):
            status, place = self._status(visible), self.store.locate(visible)
            assert place is not None
            if place.is_private or self.store.is_made(place.path):
                return place.path
            if stat.S_ISDIR(status.st_mode):
                return self.store.private_folder(visible)
            if stat.S_ISREG(status.st_mode) or stat.S_ISLNK(status.st_mode):
                return self.store.private(visible)
            if stat.S_ISSOCK(status.st_mode):  # a server's, while it runs
                return path
            raise PermissionError(errno.EPERM, os.strerror(errno.EPERM), path)

    def truncate(self, path: Any, length: int) -> None:
        """As os.truncate."""
        opened = self.open(path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.ftruncate(opened, length)
        finally:
            os.close(opened)

    def chdir(self, path: Any) -> None:
        """As os.chdir."""
        where = self.found(path)
        if where is not path:
            visible = self.store.visible_of(where)
            where = where if self.store.is_hidden(visible) else visible
        with self.naming(path):
            self.true.chdir(where)
