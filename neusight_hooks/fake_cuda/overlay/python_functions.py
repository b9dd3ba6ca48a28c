"""Python's functions on files, exchanged for those of the overlay while a forecast is open."""

from __future__ import annotations

import builtins
import errno
import functools
import io
import os
import shutil
import stat
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

from neusight.fake_cuda.overlay.builtin_functions import as_builtin
from neusight.fake_cuda.overlay.overlay import LeftAloneError, Overlay
from neusight.fake_cuda.patching import Patches

#: Functions of `os` that look at a path, and whether they follow its last link.
_LOOKING = {
    "access": True, "stat": True, "lstat": False, "readlink": False, "statvfs": True,
    "pathconf": True, "listxattr": True, "getxattr": True,
}  # fmt: skip

#: Functions of `os` that change what a file is called, may, or when it was written.
_CHANGING = {
    "chmod": True, "chown": True, "lchown": False, "utime": True, "setxattr": True,
    "removexattr": True,
}  # fmt: skip

#: Functions of `os` that take two paths.
_OF_TWO_PATHS = ("link", "rename", "replace", "symlink")

#: Functions of `os` that raise InterruptedError where the kernel says EINTR.
_NOT_RETRIED = (
    "access", "chdir", "chmod", "chown", "lchown", "link", "listdir", "lstat", "mkdir", "mkfifo",
    "mknod", "readlink", "remove", "rename", "replace", "rmdir", "scandir", "stat", "symlink",
    "truncate", "unlink", "utime",
)  # fmt: skip

#: Arguments of `open` after its mode, the opener the last of them.
_ARGUMENTS_TO_OPENER = 6

#: Sets in `os` of functions that take a descriptor or do not follow links.
_ABILITIES = (
    "supports_dir_fd", "supports_fd", "supports_follow_symlinks", "supports_effective_ids",
)  # fmt: skip


def install_files(patches: Patches, overlay: Overlay) -> None:
    """Every function of Python that names a file goes through the overlay until the end."""
    replacements: dict[Any, Any] = {}

    def replace(owner: Any, name: str, function: Callable[..., Any]) -> None:
        original = getattr(owner, name)
        replacements[original] = _while_open(overlay, original, function)
        patches.set(owner, name, replacements[original])

    for name, function in _functions(overlay).items():
        replace(os, name, function)
    opened = _open_function(overlay, builtins.open)
    replace(builtins, "open", opened)
    patches.set(io, "open", replacements[io.open])
    patches.set(io, "FileIO", _file_io_class(overlay))
    _extend_abilities(patches, replacements)
    _replace_kept_names(patches, replacements)
    _replace_kept_defaults(patches, replacements)
    patches.on_restore(overlay.close)
    for original, replacement in replacements.items():
        patches.put(_now, original, replacement)


#: Functions -> what stands for them in the forecast that is open.
_now: dict[Any, Callable[..., Any]] = {}


def install_retries(patches: Patches) -> None:
    """Functions of `os` on paths are tried again where a signal came. A kernel alone never says so
    of them; where another process is to answer a call (seccomp_unotify(2)) it does. And what is
    listed is asked for by a path, which that process is notified of."""
    replacements: dict[Any, Any] = {}
    for name in _NOT_RETRIED:
        original = getattr(os, name)
        call = _listing_by_path(original) if name == "listdir" else original
        replacements[original] = as_builtin(original, _retrying(call))
        patches.set(os, name, replacements[original])
    _extend_abilities(patches, replacements)


def _listing_by_path(listdir: Callable[..., Any]) -> Callable[..., Any]:
    """A descriptor may be the real folder's, from before something in it was removed."""
    return lambda path=".": listdir(
        os.readlink(f"/proc/self/fd/{path}") if isinstance(path, int) else path
    )


def _retrying(original: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        while True:
            try:
                return original(*args, **kwargs)
            except InterruptedError:
                continue

    return call


def install_folder_renames(patches: Patches) -> None:
    """os.rename and os.replace of a folder that was there before work in a copy-on-write view."""
    for name in ("rename", "replace"):
        patches.set(os, name, _renaming(getattr(os, name)))


def _renaming(original: Callable[..., None]) -> Callable[..., None]:
    # Without the `redirect_dir` that only root may use, EXDEV stands for what is not implemented
    # (Documentation/filesystems/overlayfs.rst, "renaming directories").
    def rename(src: Any, dst: Any, **folders: Any) -> None:
        try:
            original(src, dst, **folders)
        except OSError as error:
            if error.errno != errno.EXDEV or folders or not _is_folder_of_one_disk(src, dst):
                raise
            if os.path.isdir(dst):
                os.rmdir(dst)
            shutil.copytree(src, dst, symlinks=True)
            shutil.rmtree(src)

    return rename


def _is_folder_of_one_disk(src: Any, dst: Any) -> bool:
    if os.path.islink(src) or not os.path.isdir(src):
        return False
    above = os.path.dirname(os.path.abspath(os.fspath(dst)))
    return os.stat(src).st_dev == os.stat(above).st_dev


def _while_open(
    overlay: Overlay, original: Callable[..., Any], function: Callable[..., Any]
) -> Callable[..., Any]:
    """`function` while the overlay is open; kept longer (an attribute of a class, a default value),
    what stands for `original` then. Errors have the paths that the script gave."""

    @functools.wraps(original)
    def either(*args: Any, **kwargs: Any) -> Any:
        if not overlay.is_open:
            return _now.get(original, original)(*args, **kwargs)
        try:
            return function(*args, **kwargs)
        except LeftAloneError:
            pass
        except OSError as error:
            given = (*args, *kwargs.values())
            if error.filename is not None and given:
                error.filename = given[0]
                if original.__name__ in _OF_TWO_PATHS:
                    error.filename2 = given[1]
            raise
        return original(*args, **kwargs)

    is_builtin = isinstance(original, types.BuiltinFunctionType)
    return as_builtin(original, either) if is_builtin else either


def _functions(overlay: Overlay) -> dict[str, Callable[..., Any]]:
    true = overlay.true
    functions: dict[str, Callable[..., Any]] = {
        "open": overlay.open,
        "remove": overlay.remove,
        "unlink": overlay.remove,
        "rmdir": overlay.rmdir,
        "mkdir": overlay.mkdir,
        "symlink": overlay.symlink,
        "link": overlay.link,
        "rename": overlay.rename,
        "replace": overlay.rename,
        "truncate": lambda path, length: (
            true.truncate(path, length) if isinstance(path, int) else overlay.truncate(path, length)
        ),
        "chdir": overlay.chdir,
        "getcwd": overlay.working_folder,
        "getcwdb": lambda: os.fsencode(overlay.working_folder()),
        "listdir": _listing(overlay, true.listdir, lambda folder, names: names),
        "scandir": _listing(overlay, true.scandir, _Scan),
        "fchmod": lambda fd, mode: os.chmod(fd, mode),
        "fchown": lambda fd, uid, gid: os.chown(fd, uid, gid),
    }
    for names, place_of in ((_LOOKING, overlay.found), (_CHANGING, overlay.place_to_change)):
        for name, follows in names.items():
            functions[name] = _at_place(getattr(true, name), place_of, follows=follows)
    functions["access"] = _may_access(functions["access"])
    return functions


def _at_place(
    original: Callable[..., Any], place_of: Callable[..., Any], *, follows: bool
) -> Callable[..., Any]:
    """`original`, which looks at a path or changes what it is called, where `place_of` says."""

    def call(path: Any = ".", *args: Any, **kwargs: Any) -> Any:
        follow = kwargs.get("follow_symlinks", follows)
        where = place_of(path, kwargs.get("dir_fd"), follow=follow)
        if where is not path:
            kwargs.pop("dir_fd", None)
        return original(where, *args, **kwargs)

    return call


def _may_access(access: Callable[..., bool]) -> Callable[..., bool]:
    def may(*args: Any, **kwargs: Any) -> bool:
        try:
            return access(*args, **kwargs)
        except FileNotFoundError:
            return False

    return may


# -- folders -------------------------------------------------------------------------------------


def _listing(
    overlay: Overlay, original: Callable[..., Any], made_of: Callable[[Any, list[Any]], Any]
) -> Callable[..., Any]:
    """`original`, which lists a folder; what is listed otherwise is made of its names."""

    def listed(path: Any = None) -> Any:
        folder = "." if path is None else path
        names = overlay.names_in(folder)
        return original(path) if names is None else made_of(folder, names)

    return listed


class _Scan(Iterator[Any]):
    """What os.scandir returns, of a folder that shows something else than really stands there."""

    def __init__(self, folder: Any, names: list[Any]) -> None:
        self._entries = iter([_ScannedEntry(folder, name) for name in names])

    def __next__(self) -> _ScannedEntry:
        return next(self._entries)

    def __enter__(self) -> _Scan:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        self._entries = iter(())


class _ScannedEntry:
    """An os.DirEntry; it asks `os`, and so the overlay, when it is asked."""

    def __init__(self, folder: Any, name: Any) -> None:
        self.name = name
        self._dir_fd = folder if isinstance(folder, int) else None
        self.path = name if isinstance(folder, int) else os.path.join(os.fspath(folder), name)

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        return os.stat(self.path, dir_fd=self._dir_fd, follow_symlinks=follow_symlinks)

    def inode(self) -> int:
        return self.stat(follow_symlinks=False).st_ino

    def is_dir(self, *, follow_symlinks: bool = True) -> bool:
        return self._is(stat.S_ISDIR, follow_symlinks)

    def is_file(self, *, follow_symlinks: bool = True) -> bool:
        return self._is(stat.S_ISREG, follow_symlinks)

    def is_symlink(self) -> bool:
        return self._is(stat.S_ISLNK, False)

    def is_junction(self) -> bool:
        return False

    def _is(self, is_kind: Callable[[int], bool], follow_symlinks: bool) -> bool:
        try:
            return is_kind(self.stat(follow_symlinks=follow_symlinks).st_mode)
        except FileNotFoundError:
            return False

    def __fspath__(self) -> Any:
        return self.path

    def __repr__(self) -> str:
        return f"<DirEntry {self.name!r}>"


# -- opening -------------------------------------------------------------------------------------


def _open_function(overlay: Overlay, original: Callable[..., Any]) -> Callable[..., Any]:
    opener_of_overlay = _opener(overlay)

    def open_file(file: Any, mode: Any = "r", *args: Any, opener: Any = None, **kwargs: Any) -> Any:
        if len(args) == _ARGUMENTS_TO_OPENER:
            args, opener = args[:-1], args[-1]
        if opener is None and not isinstance(file, int):
            is_read = isinstance(mode, str) and not set("wax+") & set(mode)
            if not (is_read and overlay.store.is_untouched):
                opener = opener_of_overlay
        return original(file, mode, *args, opener=opener, **kwargs)

    return open_file


def _opener(overlay: Overlay) -> Callable[[Any, int], int]:
    opened = _while_open(overlay, overlay.true.open, overlay.open)
    # 0o666 less the umask, as for every new file that Python opens.
    return lambda path, flags: opened(path, flags, 0o666)


def _file_io_class(overlay: Overlay) -> Any:
    """io.FileIO; all objects of the true class count as its own."""
    true_class, opener_of_overlay = io.FileIO, _opener(overlay)

    class Kind(type):
        def __instancecheck__(cls, instance: object) -> bool:
            return isinstance(instance, true_class)

        def __subclasscheck__(cls, subclass: type) -> bool:
            return issubclass(subclass, true_class)

    class FileIO(true_class, metaclass=Kind):  # type: ignore[misc, valid-type]
        __doc__ = true_class.__doc__

        def __init__(
            self, file: Any, mode: str = "r", closefd: bool = True, opener: Any = None
        ) -> None:
            if overlay.is_open and opener is None and not isinstance(file, int):
                opener = opener_of_overlay
            super().__init__(file, mode, closefd, opener)

    FileIO.__module__, FileIO.__qualname__ = "_io", "FileIO"
    return FileIO


# -- names that others keep ----------------------------------------------------------------------


def _extend_abilities(patches: Patches, replacements: dict[Any, Any]) -> None:
    for name in _ABILITIES:
        able: set[Any] = getattr(os, name)
        added = {new for old, new in replacements.items() if old in able}
        able |= added
        patches.undo.callback(able.difference_update, added)


#: Modules of which the names are exchanged already, or are Python's own.
_SOURCES = ("os", "io", "builtins", "posix", "_io")

# Module -> how many names it had when it was looked through, and which of them keep a function.
_looked_through: dict[str, tuple[int, list[str]]] = {}


def _replace_kept_names(patches: Patches, replacements: dict[Any, Any]) -> None:
    """Modules that imported a function by name (`from os import remove`) get the new one."""
    kinds = (types.BuiltinFunctionType, types.FunctionType)
    for module_name, module in list(sys.modules.items()):
        if module_name in _SOURCES or module_name.startswith("neusight."):
            continue
        names = getattr(module, "__dict__", {})
        size, kept = _looked_through.get(module_name, (-1, []))
        if size != len(names):
            kept = [
                name
                for name, value in list(names.items())
                if type(value) in kinds and value in replacements
            ]
            _looked_through[module_name] = (len(names), kept)
        for name in kept:
            value = names.get(name)
            if type(value) in kinds and value in replacements:
                patches.set(module, name, replacements[value])


def _replace_kept_defaults(patches: Patches, replacements: dict[Any, Any]) -> None:
    """tempfile keeps os.unlink in default arguments, numpy io.open in a table of openers, and
    Python 3.10's pathlib all functions in a class."""
    import tempfile

    closer: Any = getattr(tempfile, "_TemporaryFileCloser", None)
    for function in vars(closer).values() if closer is not None else ():
        defaults = getattr(function, "__defaults__", None)
        if defaults and any(_hashable(value) in replacements for value in defaults):
            new = tuple(replacements.get(_hashable(value), value) for value in defaults)
            patches.on_restore(functools.partial(setattr, function, "__defaults__", defaults))
            function.__defaults__ = new
    accessor: Any = getattr(sys.modules.get("pathlib"), "_NormalAccessor", None)
    for name, value in list(vars(accessor).items()) if accessor is not None else ():
        function = value.__func__ if isinstance(value, staticmethod) else value
        if _hashable(function) in replacements:
            patches.set(accessor, name, staticmethod(replacements[function]))
    openers = getattr(sys.modules.get("numpy.lib._datasource"), "_file_openers", None)
    if openers is not None:
        table = openers._file_openers
        for suffix, value in list(table.items()):
            if _hashable(value) in replacements:
                patches.put(table, suffix, replacements[value])


def _hashable(value: Any) -> Any:
    return value if type(value) in (types.BuiltinFunctionType, types.FunctionType) else None
