"""Where a guarded script may write past the overlay: devices and caches."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from neusight.fake_cuda.overlay.package_caches import cache_folders
from neusight.fake_cuda.store.changes import is_in

#: Devices, shared memory, and what a process says of itself.
_ALWAYS = ("/dev", "/proc/self")


def allowed_folders(caches: Iterable[str]) -> list[str]:
    """The folders, the caches among them, and the files into which output goes."""
    return [*_ALWAYS, *_redirected(), *caches]


@contextmanager
def caches_of_packages(words: Iterable[str]) -> Iterator[list[str]]:
    """The folders in which packages keep what they can make again, but none that holds the working
    directory, or what one of the program's words may name: what is there is the user's.

    The kernel can only allow what is there, so they are made; those that stay empty go again.
    """
    theirs = _places_of(words)
    caches = [path for path in cache_folders() if not any(is_in(one, path) for one in theirs)]
    made: list[Path] = []
    try:
        for path in caches:
            made += _made(Path(path))
        yield [path for path in caches if os.path.isdir(path)]  # noqa: PTH112
    finally:
        for folder in reversed(made):
            with suppress(OSError):
                folder.rmdir()


def _made(folder: Path) -> list[Path]:
    """The folders that had to be made, outermost first; readable by this user alone (XDG base
    directory specification, 0.8)."""
    made: list[Path] = []
    with suppress(OSError):  # also where this user may not look
        missing = [path for path in (folder, *folder.parents) if not path.exists()]
        for path in reversed(missing):
            path.mkdir(mode=0o700)
            made.append(path)
    return made


def _places_of(words: Iterable[str]) -> set[str]:
    """The working directory, and every word read as a path."""
    places = {os.path.realpath(".")}
    for word in words:
        with suppress(ValueError):  # no path: a zero byte in it
            places.add(os.path.realpath(os.path.expanduser(word)))  # noqa: PTH111
    return places


def _redirected() -> list[str]:
    """Files into which output goes: /dev/stdout opens them again."""
    found = []
    for number in (1, 2):
        with suppress(OSError):
            if stat.S_ISREG(os.fstat(number).st_mode):
                found.append(f"/proc/self/fd/{number}")
    return found
