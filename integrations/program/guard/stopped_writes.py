"""Tells a script's error that the guard over files made from one of its own."""

from __future__ import annotations

import errno
import os
import re
import subprocess
from collections.abc import Iterator

__all__ = ["explanation"]

#: How C libraries put a refusal that they hide behind an error of their own: Arrow, HDF5, PyTorch,
#: Rust (safetensors), SQLite.
_REFUSED = re.compile(
    r"permission denied|errno\s*[=: ]\s*13\b|os error 13\b|readonly database"
    r"|unable to open database file",
    re.IGNORECASE,
)
#: Paths as they put them: quoted, or after a word.
_PATHS = re.compile(r"""['"]([^'"\n]+)['"]|(?:file path|path|name)\s*[=:]\s*([^\s,'")]+)""")


def explanation(error: BaseException, line: str) -> str:
    """A sentence on who stopped the script and how to let it; empty where it was not the guard.
    `line` is the script's own that failed."""
    for cause in _causes(error):
        if isinstance(cause, subprocess.CalledProcessError):
            command = cause.cmd if isinstance(cause.cmd, str) else cause.cmd[0]
            return (
                f"{line} started {str(command)!r}: if it says 'Permission denied', it was about to "
                "change files past neusight's overlay, which is stopped to keep your files safe; "
                "--allow-writes lets it"
            )
        if _is_refusal(cause):
            path = _path_of(cause)
            if path is not None and not _may_be_written(path):
                return ""  # the user may not write there either
            return (
                f"{line} wrote to {path or 'a file that the error does not name'} past neusight's "
                "overlay, which was stopped to keep your files safe; --allow-writes lets it"
            )
    return ""


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


def _is_refusal(error: BaseException) -> bool:
    if isinstance(error, OSError) and error.errno in (errno.EACCES, errno.EPERM):
        return True
    return _REFUSED.search(str(error)) is not None


def _path_of(error: BaseException) -> str | None:
    """The path that the error names."""
    for name in (getattr(error, "filename", None), getattr(error, "filename2", None)):
        if isinstance(name, (str, bytes)):
            return os.fsdecode(name)
    for quoted, bare in _PATHS.findall(str(error)):
        path = quoted or bare
        if os.path.isdir(os.path.dirname(os.path.abspath(path))):  # noqa: PTH100, PTH112, PTH120
            return str(path)
    return None


def _may_be_written(path: str) -> bool:
    """By the file's own mode and owner, of which the guard knows nothing."""
    place = os.path.abspath(path)  # noqa: PTH100
    while not os.path.lexists(place):
        place = os.path.dirname(place)  # noqa: PTH120
    return os.access(place, os.W_OK)
