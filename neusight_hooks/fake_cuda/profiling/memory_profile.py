"""Memory of a window as torch's own `export_memory_timeline` reads it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from neusight.memory.placement import MemoryEvent, MemoryTimeline
from neusight.recording.recording import Alloc, StorageKind

#: Names of torch's categories, by what a storage is for.
_CATEGORIES: dict[StorageKind, str] = {
    "parameter": "PARAMETER",
    "gradient": "GRADIENT",
    "optimizer_state": "OPTIMIZER_STATE",
}
#: Those of activations, by the phase that makes them.
_OF_PHASE = {"forward": "ACTIVATION", "backward": "AUTOGRAD_DETAIL", "optimizer": "TEMPORARY"}
#: What makes a program's inputs, outside of its modules; ("") before the window.
_INPUTS = frozenset({
    "", "aten::_to_copy", "aten::arange", "aten::empty.memory_format", "aten::full", "aten::ones",
    "aten::rand", "aten::randint", "aten::randn", "aten::zeros",
})  # fmt: skip


class MemoryProfile:
    """What torch makes its timelines of: `timeline` has (nanoseconds or -1, what happens, (storage,
    version), bytes) of each event, `_categories` the category of a storage.

    `time_ns` gives the time of the allocation or release at a position; what was allocated in the
    step `before` was there when the window opened. A workspace that stays was there, too: torch
    sees it only in the first window of a program.
    """

    def __init__(
        self, memory: MemoryTimeline, time_ns: Callable[[int], int], *, before: int, device: int
    ) -> None:
        self.timeline: list[tuple[int, Any, tuple[Any, int], int]] = []
        self._categories = _Categories()
        self._device = torch.device("cuda", device)
        self._alive: dict[int, tuple[Any, Alloc]] = {}  # by address
        for event in memory.events:
            at_ns = -1 if event.step == before else time_ns(event.mark)
            self._happens(event, at_ns)
        stay = {key for key, source in self._alive.values() if source.kind == "workspace"}
        self.timeline = [event for event in self.timeline if event[2][0] not in stay]
        self.timeline.sort(key=lambda event: event[0])

    def _happens(self, event: MemoryEvent, at_ns: int) -> None:
        from torch.profiler import _memory_profiler

        untyped: Any = _memory_profiler  # torch's own classes have no annotations
        what = untyped.Action.PREEXISTING if at_ns < 0 else untyped.Action.CREATE
        if event.num_bytes < 0:
            key, _ = self._alive.pop(event.address)
            what = untyped.Action.DESTROY
        else:
            number, name = len(self._categories), category_of(event.source)
            key = untyped.TensorKey._make(number, event.address, number, self._device)
            self._alive[event.address] = key, event.source
            self._categories[number] = getattr(untyped.Category, name) if name else None
        self.timeline.append((at_ns, what, (key, 0), abs(event.num_bytes)))


class _Categories(dict[int, Any]):
    """Categories by the numbers of storages, asked for by their keys and versions."""

    def get(self, key: Any, version: Any = 0) -> Any:
        return self[key.id]


def category_of(alloc: Alloc) -> str:
    """The name of torch's category of a storage; "" where torch knows none.

    >>> category_of(Alloc(0, 512, kind="parameter")), category_of(Alloc(0, 512, kind="workspace"))
    ('PARAMETER', '')
    >>> category_of(Alloc(0, 512, module="Net", op="aten::_to_copy"))
    'ACTIVATION'
    """
    if alloc.kind != "activation":
        return _CATEGORIES.get(alloc.kind, "")
    if alloc.phase == "forward" and not alloc.module and alloc.op in _INPUTS:
        return "INPUT"
    return _OF_PHASE[alloc.phase]
