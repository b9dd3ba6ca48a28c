"""A private copy of a file of the user's: shared blocks where the disk can, else bytes, bounded."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from types import SimpleNamespace

#: Largest file that is copied byte for byte (where the file system shares blocks, any size is):
#: beyond it the copy would take the script minutes and may fill the user's disk.
MAX_COPY_BYTES = 2**30

#: ioctl that lets a new file share the blocks of another (linux/fs.h).
_FICLONE = 0x40049409

_CHUNK_BYTES = 2**24


def copy_privately(
    true: SimpleNamespace, path: str, source: str, target: str, *, empty: bool
) -> None:
    """Copies the file at `source` to the new path `target`, with its mode and times, without its
    content where it is to be `empty`.

    `true` has the functions of `os`; `path` is the name in errors. OSError where it is larger than
    MAX_COPY_BYTES and no blocks can be shared, or the disk is full: nothing is left at `target`.
    """
    status = true.stat(source)
    opened = true.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        if not empty:
            read = true.open(source, os.O_RDONLY | os.O_CLOEXEC)
            try:
                _copy_content(path, read, opened, status.st_size, target)
            finally:
                os.close(read)
        true.fchmod(opened, stat.S_IMODE(status.st_mode))
    except BaseException:
        true.unlink(target)
        raise
    finally:
        os.close(opened)
    true.utime(target, ns=(status.st_atime_ns, status.st_mtime_ns))


def _copy_content(path: str, source: int, target: int, size: int, place: str) -> None:
    try:
        fcntl.ioctl(target, _FICLONE, source)
        return
    except OSError:
        pass  # another file system, or one that cannot
    if size > MAX_COPY_BYTES:
        raise OSError(
            errno.EFBIG,
            f"the script changes a file of {size / 2**30:.1f} GiB, and neusight would have to copy "
            "it to keep yours as it is; --allow-writes (allow_writes=True) lets the script write "
            "to the file itself",
            path,
        )
    try:
        while os.sendfile(target, source, None, _CHUNK_BYTES):
            pass
    except OSError as error:
        raise OSError(
            error.errno,
            f"{os.strerror(error.errno or 0)} while neusight copied the file to "
            f"{os.path.dirname(place)} to keep yours as it is; set TMPDIR to a larger disk, or use "
            "--allow-writes",
            path,
        ) from None
