"""Files of ours: written whole or not at all, read within bounds and with every field checked."""

from __future__ import annotations

import os
import secrets
import stat
import sys
from contextlib import suppress
from pathlib import Path

__all__ = ["write_atomically"]

#: Mode of a new file before the user's umask, as `open` has it.
_NEW_FILE_MODE = 0o666

#: Random bytes in a temporary name: nobody can guess it and lay a link there.
_NAME_BYTES = 8


# -- writing ---------------------------------------------------------------------------------------


def write_atomically(path: str | Path, data: bytes) -> None:
    """Writes aside and renames, so that no half-written file ever stands at `path`.

    Symbolic links are followed; mode and owner of a file that is there stay. What is no ordinary
    file (/dev/null, a pipe), and this process's own output (/dev/stdout), is written straight. The
    folder is made where it is missing. OSError where it fails; then nothing is left behind.
    """
    there = _status(path)
    descriptor = None if there is None else _own_output(there)
    if descriptor is not None:
        _write_all(descriptor, data)
    elif there is not None and not stat.S_ISREG(there.st_mode):
        with Path(path).open("wb") as stream:
            stream.write(data)
    else:
        _replace(Path(os.path.realpath(path)), data, there)


def _status(path: str | Path) -> os.stat_result | None:
    try:
        return Path(path).stat()
    except (FileNotFoundError, NotADirectoryError):
        return None


def _own_output(there: os.stat_result) -> int | None:
    """The descriptor of stdout or stderr where that is the file: a renamed file would not be."""
    for descriptor in (1, 2):
        with suppress(OSError):
            if os.path.samestat(os.fstat(descriptor), there):
                return descriptor
    return None


def _write_all(descriptor: int, data: bytes) -> None:
    """What Python holds back of the same output comes first."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def _replace(target: Path, data: bytes, there: os.stat_result | None) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    descriptor, aside = _create_beside(target, is_new=there is None)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(data)
            stream.flush()
            if there is not None:
                _take_over(descriptor, there)
        aside.replace(target)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise


def _create_beside(target: Path, *, is_new: bool) -> tuple[int, Path]:
    """A file that was not there, and is nobody's link; private until it has its final mode.

    Not `tempfile.mkstemp`: only the kernel can apply the umask to a new file without changing it
    for all threads.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    while True:
        aside = target.with_name(f".neusight-{secrets.token_hex(_NAME_BYTES)}")
        with suppress(FileExistsError):
            return os.open(aside, flags, _NEW_FILE_MODE if is_new else stat.S_IRUSR), aside


def _take_over(descriptor: int, there: os.stat_result) -> None:
    """Owner (where we may) and mode of the file that is replaced."""
    mine = os.fstat(descriptor)
    if (mine.st_uid, mine.st_gid) != (there.st_uid, there.st_gid):
        with suppress(PermissionError):
            os.fchown(descriptor, there.st_uid, there.st_gid)
    os.fchmod(descriptor, stat.S_IMODE(there.st_mode))
