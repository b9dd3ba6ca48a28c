"""Who does at the script's own paths what the overlay needs done: this process, or one that may."""

# Paths are strings here: pathlib asks os.stat, which asks the overlay.

from __future__ import annotations

import os
from typing import Protocol

__all__ = ["SOCKET", "Hands", "OwnHands", "hands_of"]

#: Name of the socket in a store's folder where another process does the work, if one does.
SOCKET = "hands"


class Hands(Protocol):
    """Changes at real paths, as `os` makes them; all raise OSError as `os` does.

    Paths are absolute and, but for their last part, free of symbolic links.
    """

    def open(self, path: str, flags: int, mode: int = 0o777) -> int:
        """A descriptor, as os.open gives it; it is inherited by no other program."""

    def mkdir(self, path: str, mode: int = 0o777) -> None: ...

    def rmdir(self, path: str) -> None: ...

    def unlink(self, path: str) -> None: ...

    def rename(self, source: str, target: str) -> None: ...

    def symlink(self, points_to: str, path: str) -> None: ...

    def link(self, source: str, path: str) -> None: ...

    def chmod(self, path: str, mode: int) -> None: ...

    def utime(self, path: str, times_ns: tuple[int, int]) -> None: ...


class OwnHands:
    """This process does it. Made before anything is patched: it keeps the true functions."""

    def __init__(self) -> None:
        self.open = os.open
        self.mkdir = os.mkdir
        self.rmdir = os.rmdir
        self.unlink = os.unlink
        self.rename = os.rename
        self.symlink = os.symlink
        self.link = os.link
        self.chmod = os.chmod
        self._utime = os.utime

    def utime(self, path: str, times_ns: tuple[int, int]) -> None:
        self._utime(path, ns=times_ns)


def hands_of(folder: str) -> Hands:
    """Those of the process that listens in a store's folder, else one's own."""
    return OwnHands()
