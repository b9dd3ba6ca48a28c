"""What was written in a copy-on-write view, as overlayfs keeps it: read, listed and collected."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple

from neusight.fake_cuda.store.changes import ATTRIBUTES, Change, is_of_no_account
from neusight.fake_cuda.store.leftovers import open_up

#: Folder with one for each layer, and the link in that which names what the layer covers.
_LAYERS, _COVERED = "layers", "covered"


def add_layer(store: str, covered: str) -> tuple[str, str]:
    """An upper layer in a store for what lies at `covered`, and a folder for overlayfs."""
    place = f"{store}/{_LAYERS}/{len(_names_in(f'{store}/{_LAYERS}'))}"
    os.makedirs(place)
    os.symlink(covered, f"{place}/{_COVERED}")
    for name in ("upper", "work"):
        os.mkdir(f"{place}/{name}")
    return f"{place}/upper", f"{place}/work"


def changes_in(store: str) -> Iterator[Change]:
    """What the view shows otherwise, by path, except where changes are ignored."""
    for number in sorted(_names_in(f"{store}/{_LAYERS}"), key=int):
        place = f"{store}/{_LAYERS}/{number}"
        covered = os.readlink(f"{place}/{_COVERED}")
        for change in _Layer(covered).changes(f"{place}/upper", covered, covered, is_moved=False):
            if not is_of_no_account(change.path):
                yield change


class _Layer(NamedTuple):
    """One upper layer, over what really lies at `covered`."""

    covered: str

    def changes(
        self, upper: str, lower: str | None, path: str, *, is_moved: bool
    ) -> Iterator[Change]:
        """What differs in a folder: `lower` lies below it, which is all new where it was moved."""
        open_up(upper)
        names = set(_names_in(upper))
        if is_moved and lower is not None:
            names.update(_names_in(lower))
        for name in sorted(names):
            above = os.path.join(upper, name)
            below = None if lower is None else os.path.join(lower, name)
            yield from self._change(above, below, os.path.join(path, name), is_moved=is_moved)

    def _change(
        self, above: str, below: str | None, path: str, *, is_moved: bool
    ) -> Iterator[Change]:
        is_new = not os.path.lexists(path)
        if not os.path.lexists(above):
            assert below is not None
            if os.path.isdir(below) and not os.path.islink(below):
                yield from self.changes(above, below, path, is_moved=True)
            else:
                yield Change(path, is_new, False, below)
            return
        status = os.lstat(above)
        if stat.S_ISCHR(status.st_mode) and status.st_rdev == 0:  # a whiteout
            if not is_new:
                yield Change(path, False, True, None)
        elif not stat.S_ISDIR(status.st_mode):
            yield Change(path, is_new, False, above)
        else:
            if is_new:
                yield Change(path, True, False, None)
            moved_from = _attribute(above, "redirect")
            if moved_from is not None:
                folder = (
                    self.covered if moved_from.startswith("/") else os.path.dirname(below or "")
                )
                below, is_moved = os.path.join(folder, moved_from.lstrip("/")), True
            elif _attribute(above, "opaque") is not None:
                below = None
                below_here = [] if os.path.islink(path) else _names_in(path)
                hidden = set(below_here) - set(_names_in(above))
                yield from (Change(f"{path}/{name}", False, True, None) for name in sorted(hidden))
            yield from self.changes(above, below, path, is_moved=is_moved)


def _names_in(folder: str) -> list[str]:
    with suppress(FileNotFoundError, NotADirectoryError, PermissionError):
        return os.listdir(folder)
    return []


def _attribute(path: str, name: str) -> str | None:
    for prefix in ATTRIBUTES:
        with suppress(OSError):
            return os.fsdecode(os.getxattr(path, prefix + name, follow_symlinks=False))
    return None
