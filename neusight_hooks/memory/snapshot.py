"""What is in memory and how it came there, in the form that pytorch.org/memory_viz reads."""

from __future__ import annotations

import pickle
from collections import deque
from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any

from neusight.memory.allocator import Allocator, Block, SegmentChange
from neusight.memory.placement import (
    ALLOCATOR_OPTION,
    Placement,
    Source,
    allocator_settings,
    place_all,
    workspaces_on,
)
from neusight.memory.workspaces import Workspaces
from neusight.predictors.files import write_atomically
from neusight.predictors.gpu import GPU
from neusight.recording.recording import Recording

#: As torch.cuda.memory._snapshot() describes it: segments, device_traces and more.
Snapshot = dict[str, Any]
Frames = list[dict[str, Any]]

#: Of a frame that is no line of a program; so torch names C++ frames without source.
_NO_FILE = "??"
#: What has no category. The page fails on a snapshot in which some entry has a category, but none
#: has this one (annotate_snapshot in torch/utils/viz/MemoryViz.js).
_NO_CATEGORY = "unknown"
#: The pool of all memory that no torch.cuda.MemPool owns.
_DEFAULT_POOL = (0, 0)


class History:
    """What the allocator did, the newest `max_entries` of it. `now_us` is the time to write."""

    def __init__(self, max_entries: int | None = None) -> None:
        self.entries: deque[dict[str, Any]] = deque(maxlen=max_entries)
        self.now_us = 0
        self._frames: dict[int, tuple[Source, Frames]] = {}

    def allocated(self, block: Block, alloc: Source) -> None:
        """A block was given away."""
        self._add(
            "alloc", block.address, block.requested, block.stream, self.frames_of(alloc),
            category=_category(alloc),
        )  # fmt: skip

    def freed(self, block: Block, alloc: Source) -> None:
        """It came back."""
        frames = self.frames_of(alloc)
        for action in ("free_requested", "free_completed"):
            self._add(action, block.address, block.requested, block.stream, frames)

    def segment_changed(self, change: SegmentChange) -> None:
        """A segment was allocated from CUDA, or returned to it."""
        self._add(
            change.action, change.address, change.num_bytes, change.stream, [],
            category=_NO_CATEGORY,
        )  # fmt: skip

    def ran_out(self, num_bytes: int, free_bytes: int) -> None:
        """A request could not be served."""
        self.entries.append(
            {
                "action": "oom",
                "size": num_bytes,
                "device_free": max(0, free_bytes),
                "stream": 0,
                "time_us": self.now_us,
                "frames": [],
            }
        )

    def frames_of(self, alloc: Source) -> Frames:
        """Op, module and the program's lines, innermost first."""
        known = self._frames.get(id(alloc))
        if known is None:
            known = self._frames[id(alloc)] = (alloc, frames_of(alloc))
        return known[1]

    def _add(
        self, action: str, address: int, num_bytes: int, stream: int, frames: Frames, **more: str
    ) -> None:
        self.entries.append(
            {
                "action": action,
                "addr": address,
                "size": num_bytes,
                "stream": stream,
                "time_us": self.now_us,
                "compile_context": "N/A",
                "user_metadata": "",
                "pool_id": _DEFAULT_POOL,
                "frames": frames,
                **more,
            }
        )


def frames_of(alloc: Source) -> Frames:
    """A stack for an allocation: its op, its module, and the lines of the program that led there.

    >>> from neusight.recording.recording import Alloc
    >>> frames_of(Alloc(0, 4, "net.fc", "aten::mm", stack=("train.py:12",)))[-1]
    {'filename': 'train.py', 'line': 12, 'name': 'train.py'}
    """
    names = (alloc.op or "(no op)", alloc.module, f"{alloc.phase} {alloc.kind}")
    frames: Frames = [{"filename": _NO_FILE, "line": 0, "name": name} for name in names if name]
    for place in alloc.stack:
        filename, _, line = place.rpartition(":")
        frames.append({"filename": filename, "line": int(line), "name": Path(filename).name})
    return frames


def _category(alloc: Source) -> str:
    """In the words of torch.profiler's memory timeline."""
    if alloc.kind == "activation" and alloc.phase != "forward":
        return "temporary"
    return alloc.kind


class HistoricPlacement(Placement):
    """Keeps the source of every live storage, and where asked the history."""

    def __init__(
        self,
        allocator: Allocator,
        workspaces: Workspaces | None = None,
        history: History | None = None,
        times_ns: Sequence[int] = (),
    ) -> None:
        super().__init__(allocator, workspaces)
        self.sources: dict[Hashable, Source] = {}
        self.history = history
        self._times_ns = times_ns
        allocator.on_segment = self.segment_changed

    def place(self, storage: Hashable, alloc: Source, stream: int) -> bool:
        """Allocates, and keeps how."""
        self._set_clock()
        fits = self.allocator.allocate(storage, alloc.num_bytes, stream)
        block = self.allocator.block_of(storage)
        if block is not None:
            self.sources[storage] = alloc
            if self.history is not None:
                self.history.allocated(block, alloc)
            self.came(block)
        return fits

    def take_away(self, storage: Hashable) -> None:
        """Frees, and keeps that."""
        self._set_clock()
        block = self.allocator.block_of(storage)
        if block is not None:
            source = self.sources.pop(storage)
            if self.history is not None:
                self.history.freed(block, source)
            self.goes(block)
        self.allocator.free(storage)

    def came(self, block: Block) -> None:
        """A block was given away: for those who count."""

    def goes(self, block: Block) -> None:
        """A block comes back."""

    def segment_changed(self, change: SegmentChange) -> None:
        """A segment was allocated from CUDA, or returned to it."""
        if self.history is not None:
            self.history.segment_changed(change)

    def _set_clock(self) -> None:
        if self.history is not None and 0 <= self.mark < len(self._times_ns):
            self.history.now_us = self._times_ns[self.mark] // 1000


def snapshot_of(
    allocator: Allocator,
    sources: Mapping[Hashable, Source],
    history: History | None,
    settings_text: str = "",
) -> Snapshot:
    """The state of an allocator now, and the history that led there where one was kept."""
    storages = allocator.storages()
    book = History() if history is None else history
    settings = allocator.settings
    return {
        "segments": [
            {
                "device": 0,
                "address": segment.address,
                "total_size": segment.num_bytes,
                "allocated_size": _live_bytes(segment.blocks),
                "active_size": _live_bytes(segment.blocks),
                "requested_size": sum(block.requested for block in segment.blocks),
                "stream": segment.stream,
                "segment_type": "small" if segment.is_small else "large",
                "segment_pool_id": (0, segment.blocks[0].private_pool),
                "is_expandable": settings.expandable_segments,
                "frames": [],
                "blocks": [_block(block, storages, sources, book) for block in segment.blocks],
            }
            for segment in allocator.segments()
        ],
        "device_traces": [[] if history is None else list(history.entries)],
        "external_annotations": [],
        "allocator_settings": {
            "PYTORCH_CUDA_ALLOC_CONF": settings_text,
            "max_split_size": -1 if settings.max_split_bytes is None else settings.max_split_bytes,
            "garbage_collection_threshold": settings.garbage_collection_threshold,
            "expandable_segments": settings.expandable_segments,
        },
    }


def _live_bytes(blocks: tuple[Block, ...]) -> int:
    return sum(block.num_bytes for block in blocks if not block.is_free)


def _block(
    block: Block, storages: dict[int, Hashable], sources: Mapping[Hashable, Source], book: History
) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "address": block.address,
        "size": block.num_bytes,
        "requested_size": block.requested,
        "state": "inactive" if block.is_free else "active_allocated",
        "frames": [],
    }
    if not block.is_free:
        entry["frames"] = book.frames_of(sources[storages[block.address]])
    return entry


def memory_snapshot(recording: Recording, gpu: GPU, *, times_ns: Sequence[int] = ()) -> Snapshot:
    """The memory of a whole recording on `gpu`, from its first allocation to its end.

    `times_ns` gives the time of every `Alloc` and `Free` (`Timeline.memory_ns`).
    """
    allocator = Allocator(
        max(0, gpu.memory_bytes - gpu.context_bytes), allocator_settings(recording)
    )
    history = History()
    placement = HistoricPlacement(allocator, workspaces_on(recording, gpu), history, times_ns)
    place_all(recording, placement)
    text = recording.options.get(ALLOCATOR_OPTION, "")
    return snapshot_of(allocator, placement.sources, history, text)


def write_memory_snapshot(
    path: str | Path, recording: Recording, gpu: GPU, *, times_ns: Sequence[int] = ()
) -> None:
    """Writes that for pytorch.org/memory_viz: a pickle of plain values, the form the page reads."""
    snapshot = memory_snapshot(recording, gpu, times_ns=times_ns)
    write_atomically(Path(path), pickle.dumps(snapshot, protocol=4))
