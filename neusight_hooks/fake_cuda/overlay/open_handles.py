"""Files that were open for writing before the forecast began: what is written to them meanwhile."""

from __future__ import annotations

import contextlib
import fcntl
import gc
import io
import os
import stat
import sys
from collections.abc import Callable, Iterable
from typing import Any

from neusight.fake_cuda.overlay.overlay import Overlay
from neusight.fake_cuda.patching import Patches

_STANDARD_STREAMS = (0, 1, 2)


def install_open_handles(patches: Patches, overlay: Overlay) -> None:
    """Python's file objects that write to a file of the user's write to its private copy until the
    end; then they go on where they were. Standard output and error stay where they lead."""
    open_files = {
        descriptor: path
        for descriptor, path in open_for_writing().items()
        if not overlay.is_left_alone(path)
    }
    if not open_files:
        return
    streams = [stream for stream in _python_files() if _descriptor_of(stream) in open_files]
    for descriptor in sorted({_descriptor_of(stream) for stream in streams}):
        _divert(patches, overlay, descriptor, open_files[descriptor])
    # After the descriptors were exchanged: undone before they are exchanged back.
    patches.on_restore(lambda: _flush(streams))


def open_for_writing() -> dict[int, str]:
    """Descriptors of named, regular files that may be written, and their paths; but for where
    standard output and error lead."""
    kept = {_identity(descriptor) for descriptor in (*_STANDARD_STREAMS, *_of_the_kernel())}
    found: dict[int, str] = {}
    for name in os.listdir("/proc/self/fd"):
        descriptor = int(name)
        with contextlib.suppress(OSError):
            status = os.fstat(descriptor)
            mode = fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE
            is_named_file = stat.S_ISREG(status.st_mode) and status.st_nlink > 0
            if mode != os.O_RDONLY and is_named_file and _identity(descriptor) not in kept:
                found[descriptor] = os.readlink(f"/proc/self/fd/{descriptor}")
    return found


def _of_the_kernel() -> list[int]:
    """Where a notebook's kernel kept what were its standard output and error (OutStream in
    ipykernel/iostream.py puts pipes in their place): its log, and none of the program's files."""
    kept = (
        getattr(stream, "_original_stdstream_copy", None) for stream in (sys.stdout, sys.stderr)
    )
    return [descriptor for descriptor in kept if isinstance(descriptor, int)]


def _identity(descriptor: int) -> tuple[int, int] | None:
    try:
        status = os.fstat(descriptor)
    except OSError:
        return None
    return (status.st_dev, status.st_ino)


def _python_files() -> list[Any]:
    kinds = (io.FileIO, io.BufferedWriter, io.BufferedRandom, io.TextIOWrapper)
    return list(filter(lambda thing: type(thing) in kinds, gc.get_objects()))


def _descriptor_of(stream: Any) -> int:
    try:
        return int(stream.fileno())
    except (ValueError, OSError):  # closed, or detached
        return -1


def _flush(streams: Iterable[Any]) -> None:
    for stream in streams:
        with contextlib.suppress(ValueError, OSError):
            stream.flush()


def reopen(descriptor: int, path: str, open_file: Callable[[str, int], int]) -> None:
    """From now on a descriptor is what `open_file` gives for its path, at the same position."""
    flags = fcntl.fcntl(descriptor, fcntl.F_GETFL) & (os.O_ACCMODE | os.O_APPEND)
    opened = open_file(path, flags | os.O_CLOEXEC)
    os.lseek(opened, os.lseek(descriptor, 0, os.SEEK_CUR), os.SEEK_SET)
    os.dup2(opened, descriptor, os.get_inheritable(descriptor))
    os.close(opened)


def _divert(patches: Patches, overlay: Overlay, descriptor: int, path: str) -> None:
    saved, inheritable = os.dup(descriptor), os.get_inheritable(descriptor)

    def undo() -> None:
        os.dup2(saved, descriptor, inheritable)
        os.close(saved)

    patches.on_restore(undo)
    _flush(stream for stream in _python_files() if _descriptor_of(stream) == descriptor)
    with contextlib.suppress(OSError):  # too large for a copy: the watch on its folder names it
        reopen(descriptor, path, overlay.open)
