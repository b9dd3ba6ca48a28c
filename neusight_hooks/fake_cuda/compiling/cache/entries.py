"""Entries of a cache on disk: whole, of this version and this user's own, or not there."""

from __future__ import annotations

import hashlib
import json
import os
import stat
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from neusight.predictors.files import json_value, write_atomically

#: The form of an entry: a line of JSON, then the content, packed by zlib.
_SCHEMA = 1

#: How far zlib packs: level 1 makes text of code five times smaller at 100 MB/s.
_LEVEL = 1

#: Bytes that all entries may take: a training step of GPT-2 small takes half a megabyte.
_MOST_BYTES = 256 * 2**20
#: What of that is left where it was too much, so that not every write removes something.
_SHARE_LEFT = 0.75

_OTHERS_MAY_WRITE = stat.S_IWGRP | stat.S_IWOTH


class _Unfit(Exception):
    """Why an entry is left aside."""


class Entries:
    """Contents by their keys, of which one may have several; `version` is of what reads them.

    What is damaged, of another version or not written by this user is left aside, which `warn`
    hears once. Several processes may read and write at once. Whatever the system refuses is as if
    it were not there.
    """

    def __init__(
        self,
        folder: Path,
        *,
        version: str,
        warn: Callable[[str], None],
        most_bytes: int = _MOST_BYTES,
    ) -> None:
        self.folder = folder
        self._version = version
        self._warn = warn
        self._most_bytes = most_bytes
        self._has_reported = False

    def read(self, key: str) -> Iterator[bytes]:
        """The contents of a key, in the order of their names."""
        for path in sorted(self._paths(f"{key}-*")):
            try:
                content = self._content(path)
            except OSError:
                continue  # another process removed it, or it is not for this one to read
            except _Unfit as reason:
                self._leave_aside(path, str(reason))
                continue
            with suppress(OSError):
                os.utime(path)
            yield content

    def write(self, key: str, content: bytes) -> None:
        """Keeps a content, and removes the oldest where they take too much."""
        digest = hashlib.sha256(content).hexdigest()
        head = {"schema": _SCHEMA, "version": self._version, "sha256": digest}
        packed = zlib.compress(content, _LEVEL)
        with suppress(OSError):
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            path = self.folder / f"{key}-{digest}"
            write_atomically(path, json.dumps(head).encode() + b"\n" + packed)
            self._remove_oldest()

    def _paths(self, pattern: str) -> list[Path]:
        with suppress(OSError):
            return list(self.folder.glob(pattern))
        return []

    def _content(self, path: Path) -> bytes:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as stream:
            status = os.fstat(descriptor)
            if status.st_uid != os.geteuid() or status.st_mode & _OTHERS_MAY_WRITE:
                raise _Unfit("another user may have written it")
            if status.st_size > self._most_bytes:
                raise _Unfit("it is too large")
            head, _, packed = stream.read().partition(b"\n")
        return self._unpacked(head, packed)

    def _unpacked(self, head: bytes, packed: bytes) -> bytes:
        try:
            says = json_value(head)
            content = zlib.decompress(packed)
        except (ValueError, zlib.error):
            raise _Unfit("it is damaged") from None
        if not isinstance(says, dict) or not {"schema", "version", "sha256"} <= set(says):
            raise _Unfit("it is damaged")
        if (says["schema"], says["version"]) != (_SCHEMA, self._version):
            raise _Unfit("it is of another version of neusight")
        if says["sha256"] != hashlib.sha256(content).hexdigest():
            raise _Unfit("it is damaged")
        return content

    def _leave_aside(self, path: Path, reason: str) -> None:
        """Removes a file that cannot be used, so that it is reported once."""
        with suppress(OSError):
            path.unlink()
        if not self._has_reported:
            self._has_reported = True
            self._warn(f"a compiled graph in {self.folder} is compiled again: {reason}")

    def _remove_oldest(self) -> None:
        entries = []
        for path in self._paths("*-*"):
            with suppress(OSError):
                status = path.stat()
                entries.append((status.st_mtime_ns, status.st_size, path))
        total = sum(size for _, size, _ in entries)
        if total <= self._most_bytes:
            return
        for _, size, path in sorted(entries):
            with suppress(OSError):
                path.unlink()
            total -= size
            if total <= self._most_bytes * _SHARE_LEFT:
                return
