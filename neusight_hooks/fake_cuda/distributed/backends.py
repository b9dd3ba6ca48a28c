"""Which backend the program asked for of each process group, and on which devices that runs."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist

__all__ = ["FAKE_BACKEND", "Backends"]

#: The backend that runs all groups; torch's tests use it for the same purpose.
FAKE_BACKEND = "fake"

#: What stands for no choice: torch takes NCCL for the GPU and Gloo for the CPU, and a group within
#: others theirs.
_UNSTATED = frozenset({"", "none", "undefined", FAKE_BACKEND})
_BY_DEFAULT = {"cuda": "nccl", "cpu": "gloo"}


class Backends:
    """Of each group, by its name, the backend of each type of device."""

    def __init__(self) -> None:
        self._by_device: dict[str, dict[str, str]] = {}
        self._first: dict[str, str] = _BY_DEFAULT

    def note(self, group: Any, wanted: object) -> None:
        """The group is to have that backend, or one a device ("cpu:gloo,cuda:nccl"); the first
        group's where it is not stated."""
        text = str(wanted or "").lower()
        if ":" in text:
            found = dict(part.split(":", 1) for part in text.split(",") if ":" in part)
        elif text in _UNSTATED:
            found = self._first
        else:
            found = {"cuda": text} if text == "nccl" else {"cuda": text, "cpu": text}
        if not dist.is_initialized():
            self._first = found
        self._by_device[group.group_name] = found

    def name_of(self, group: Any) -> str:
        """What get_backend answers."""
        found = self._by_device.get(group.group_name, _BY_DEFAULT)
        return found.get("cuda", "nccl")

    def require_cpu(self, group: Any) -> None:
        """RuntimeError, in torch's words, where no backend of the group takes tensors of the CPU
        (ProcessGroup::getBackend)."""
        if "cpu" not in self._by_device.get(group.group_name, _BY_DEFAULT):
            raise RuntimeError("No backend type associated with device type cpu")


assert dist.Backend.UNDEFINED in _UNSTATED
