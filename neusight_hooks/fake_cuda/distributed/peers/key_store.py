"""torch.distributed's key-value store between ranks."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from neusight.fake_cuda.distributed.peers.link import Link
from neusight.fake_cuda.distributed.peers.message_server import NAME_END

#: torch's own, which nothing here waits for.
_TIMEOUT = timedelta(minutes=5)

_Store: Any = vars(dist)["Store"]


class KeyStore(_Store):  # type: ignore[misc]
    """A store that all ranks share that run; `name` distinguishes several.

    torch's PrefixStore around it passes on all but `delete_key`, `num_keys` and `list_keys`, for
    which C++ does not ask Python (torch 2.13).
    """

    def __init__(self, link: Link, name: str = "") -> None:
        super().__init__()
        self._link = link
        self._name = name
        self._timeout = _TIMEOUT

    def _key(self, key: str) -> str:
        return f"{self._name}{NAME_END}{key}"

    def set(self, key: str, value: str | bytes) -> None:
        self._link.ask("set", self._key(key), _bytes(value))

    def get(self, key: str) -> bytes:
        [value] = self._link.wait([self._key(key)])
        return value

    def wait(self, keys: Sequence[str], timeout: object = None) -> None:
        self._link.wait([self._key(key) for key in keys])

    def check(self, keys: Sequence[str]) -> bool:
        is_there = bool(self._link.ask("check", [self._key(key) for key in keys]))
        if not is_there and self._link.on_missing is not None:
            self._link.on_missing(", ".join(keys))
        return is_there

    def add(self, key: str, amount: int) -> int:
        return int(self._link.ask("add", self._key(key), amount))

    def compare_set(self, key: str, expected: str | bytes, desired: str | bytes) -> bytes:
        values = (_bytes(expected), _bytes(desired))
        return bytes(self._link.ask("compare_set", self._key(key), *values))

    def append(self, key: str, value: str | bytes) -> None:
        self._link.ask("append", self._key(key), _bytes(value))

    def delete_key(self, key: str) -> bool:
        return bool(self._link.ask("delete", self._key(key)))

    def list_keys(self) -> list[str]:
        found = self._link.ask("list_keys", self._key(""))
        return [key.rpartition(NAME_END)[2] for key in found]

    def num_keys(self) -> int:
        return len(self.list_keys())

    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        return self._link.wait([self._key(key) for key in keys])

    def multi_set(self, keys: Sequence[str], values: Sequence[str | bytes]) -> None:
        for key, value in zip(keys, values, strict=True):
            self.set(key, value)

    def has_extended_api(self) -> bool:
        return True

    def clone(self) -> KeyStore:
        return KeyStore(self._link, self._name)

    def set_timeout(self, timeout: timedelta) -> None:
        """Kept, but not used: a wait in vain is an error at once."""
        self._timeout = timeout

    @property
    def timeout(self) -> timedelta:
        """The value that `set_timeout` was given."""
        return self._timeout


def key_store_classes(link: Link) -> dict[str, type]:
    """What stands for torch's stores between processes: equal places are one store."""

    class TCPStore(KeyStore):
        def __init__(
            self, host_name: str, port: int, *arguments: object, **options: object
        ) -> None:
            super().__init__(link, f"tcp {port}")
            self.host, self.port = host_name, port

    class FileStore(KeyStore):
        def __init__(self, file_name: str, world_size: int = -1) -> None:
            super().__init__(link, f"file {file_name}")
            self.path = file_name

    return {"TCPStore": TCPStore, "FileStore": FileStore}


def _bytes(value: str | bytes) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(value)
