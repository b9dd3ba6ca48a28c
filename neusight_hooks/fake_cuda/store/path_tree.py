"""A mapping from absolute paths that knows what lies in and below a folder."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator
from typing import Generic, TypeVar

__all__ = ["PathTree"]

V = TypeVar("V")


class PathTree(Generic[V]):
    """Values by path; asking for a folder's parts costs as much as there are.

    >>> tree = PathTree[int]()
    >>> tree["/a/b"], tree["/a/c/d"] = 1, 2
    >>> tree.names_in("/a"), list(tree.at_or_below("/a/c"))
    (['b', 'c'], ['/a/c/d'])
    """

    def __init__(self) -> None:
        self._values: dict[str, V] = {}
        #: Folder -> names of what is known in it, or somewhere below that name.
        self._names: dict[str, dict[str, None]] = {}

    def __setitem__(self, path: str, value: V) -> None:
        self._values[path] = value
        while path != "/":
            folder, name = posixpath.split(path)
            names = self._names.setdefault(folder, {})
            if name in names:
                return
            names[name] = None
            path = folder

    def __getitem__(self, path: str) -> V:
        return self._values[path]

    def __contains__(self, path: object) -> bool:
        return path in self._values

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def pop(self, path: str) -> V:
        """Takes a path out; KeyError where it is not known."""
        value = self._values.pop(path)
        while path != "/" and path not in self._values and not self._names.get(path):
            self._names.pop(path, None)
            folder, name = posixpath.split(path)
            self._names[folder].pop(name, None)
            path = folder
        return value

    def names_in(self, folder: str) -> list[str]:
        """Names in a folder at or below which a path is known."""
        return list(self._names.get(folder, ()))

    def at_or_below(self, path: str) -> list[str]:
        """The known paths at `path` and below."""
        found = [path] if path in self._values else []
        for name in self._names.get(path, ()):
            found += self.at_or_below(posixpath.join(path, name))
        return found

    def nearest(self, path: str) -> str | None:
        """The known path that is `path` or the innermost folder above it."""
        while path not in self._values:
            if path == "/":
                return None
            path = posixpath.dirname(path)
        return path
