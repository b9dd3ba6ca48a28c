"""The caching allocator while the program runs: what torch.cuda.memory_allocated answers."""

from __future__ import annotations

import os
from collections.abc import Sequence

import torch

from neusight.memory.allocator import FIRST_PRIVATE, Allocator, Block, SegmentChange
from neusight.memory.allocator_settings import settings_of
from neusight.memory.placement import ALLOCATOR_OPTION, FRACTION_OPTION
from neusight.memory.snapshot import HistoricPlacement, History, Snapshot, snapshot_of
from neusight.memory.workspaces import ENVIRONMENT, Workspaces
from neusight.predictors.gpu import GPU
from neusight.recording.call_stack import call_site
from neusight.recording.recorder import Recorder
from neusight.recording.recording import EmptyCache, Mark
from neusight.recording.tape import SingleEntry, TapedAlloc, TapedFree, TapedOp

#: Read by torch when CUDA is first used; the first of them that is set counts.
_SETTINGS_VARIABLES = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF")

_POOLS = ("all", "large_pool", "small_pool")


class _Counter:
    """Blocks (or segments) of one pool: how many, their bytes, the bytes asked for; the most there
    were of each, and how many came. It is on the path of every allocation."""

    __slots__ = (
        "came", "came_bytes", "came_requested", "now", "now_bytes", "now_requested", "peak",
        "peak_bytes", "peak_requested",
    )  # fmt: skip

    def __init__(self) -> None:
        self.now = self.now_bytes = self.now_requested = 0
        self.peak = self.peak_bytes = self.peak_requested = 0
        self.came = self.came_bytes = self.came_requested = 0

    def add(self, num_bytes: int, requested: int) -> None:
        self.came += 1
        self.came_bytes += num_bytes
        self.came_requested += requested
        self.now = now = self.now + 1
        if now > self.peak:
            self.peak = now
        self.now_bytes = now = self.now_bytes + num_bytes
        if now > self.peak_bytes:
            self.peak_bytes = now
        self.now_requested = now = self.now_requested + requested
        if now > self.peak_requested:
            self.peak_requested = now

    def remove(self, num_bytes: int, requested: int) -> None:
        self.now -= 1
        self.now_bytes -= num_bytes
        self.now_requested -= requested

    def reset_peak(self) -> None:
        self.peak, self.peak_bytes = self.now, self.now_bytes
        self.peak_requested = self.now_requested

    def reset_accumulated(self) -> None:
        """What came and went is counted again from here, as if what is there came now."""
        self.came, self.came_bytes = self.now, self.now_bytes
        self.came_requested = self.now_requested

    def values(self, which: str, key: str) -> dict[str, int]:
        """One of the three under the names of torch.cuda.memory_stats."""
        now, came = getattr(self, f"now{which}"), getattr(self, f"came{which}")
        return {
            f"{key}.current": now,
            f"{key}.peak": getattr(self, f"peak{which}"),
            f"{key}.allocated": came,
            f"{key}.freed": came - now,
        }


class _Counters:
    """A counter for each pool, and one for all."""

    def __init__(self) -> None:
        self._pools = {name: _Counter() for name in _POOLS}
        self.all = self._pools["all"]
        self.of_small = (self._pools["large_pool"], self._pools["small_pool"])

    def add(self, num_bytes: int, requested: int, is_small: int) -> None:
        self.all.add(num_bytes, requested)
        self.of_small[is_small].add(num_bytes, requested)

    def remove(self, num_bytes: int, requested: int, is_small: int) -> None:
        self.all.remove(num_bytes, requested)
        self.of_small[is_small].remove(num_bytes, requested)

    def reset_peak(self) -> None:
        for counter in self._pools.values():
            counter.reset_peak()

    def reset_accumulated(self) -> None:
        for counter in self._pools.values():
            counter.reset_accumulated()

    def values(self, **names: str) -> dict[str, int]:
        """`count`, `num_bytes`, `requested`: the names to give these under."""
        which = {"count": "", "num_bytes": "_bytes", "requested": "_requested"}
        found: dict[str, int] = {}
        for what, name in names.items():
            for pool, counter in self._pools.items():
                found |= counter.values(which[what], f"{name}.{pool}")
        return found


class _Counted(HistoricPlacement):
    """Keeps the counters of torch.cuda.memory_stats, too."""

    def __init__(self, allocator: Allocator) -> None:
        super().__init__(allocator)
        self.blocks = _Counters()
        self.segments = _Counters()

    def came(self, block: Block) -> None:
        self.blocks.add(block.num_bytes, block.requested, block.pool & 1)

    def goes(self, block: Block) -> None:
        self.blocks.remove(block.num_bytes, block.requested, block.pool & 1)

    def segment_changed(self, change: SegmentChange) -> None:
        super().segment_changed(change)
        is_new = change.action in ("segment_alloc", "segment_map")
        count = self.segments.add if is_new else self.segments.remove
        count(change.num_bytes, 0, change.is_small)


class SimulatedMemory:
    """Follows allocations; with `raises`, the one that a GPU could not serve raises as there.

    The allocator's settings are read when the first storage is allocated, as torch reads them when
    CUDA is first used; what is set counts into `recorder.options`.
    """

    def __init__(self, recorder: Recorder, gpu: GPU, *, raises: bool) -> None:
        self._recorder = recorder
        self._gpu = gpu
        self._num_ooms = 0
        self._fraction = 1.0
        self._placement = _Counted(Allocator(self._capacity()))
        recorder.tape.followers.append(self._follow)
        recorder.storages.on_first_alloc.subscribe(self._begin)
        if raises:
            recorder.storages.on_alloc.subscribe(self._check)

    def _capacity(self) -> int:
        limit = int(self._fraction * self._gpu.memory_bytes)
        return max(0, min(limit, self._gpu.memory_bytes - self._gpu.context_bytes))

    def _begin(self) -> None:
        options, environment = self._recorder.options, os.environ
        for name in ENVIRONMENT:
            if name in environment:
                options[name] = environment[name]
        stated = [environment[name] for name in _SETTINGS_VARIABLES if environment.get(name)]
        if stated and ALLOCATOR_OPTION not in options:
            options[ALLOCATOR_OPTION] = stated[0]
        self._apply_settings()
        given = {name: options[name] for name in ENVIRONMENT if name in options}
        self._placement.workspaces = Workspaces(self._gpu, torch.__version__, given)

    def _apply_settings(self) -> None:
        settings, ignored = settings_of(self._recorder.options.get(ALLOCATOR_OPTION, ""))
        self._placement.allocator.settings = settings
        for text in ignored:
            self._recorder.warn_once(f"{ALLOCATOR_OPTION}: {text}")

    def _follow(self, fresh: Sequence[SingleEntry]) -> None:
        placement = self._placement
        for entry in fresh:
            if isinstance(entry, TapedOp):
                placement.run(entry.signature, entry.math, entry.phase, entry.stream, entry.module)
            elif isinstance(entry, TapedAlloc):
                placement.allocate(entry.number, entry)
            elif isinstance(entry, TapedFree):
                placement.free(entry.number)
            elif isinstance(entry, Mark):
                placement.pass_by(entry)
            elif isinstance(entry, EmptyCache):
                placement.settle()
                placement.allocator.empty_cache()

    def _drained(self) -> _Counted:
        self._recorder.tape.drain()
        self._placement.settle()
        return self._placement

    def _check(self, num_bytes: int) -> None:
        # The entry of this very allocation is already there: follow all before it, then ask.
        newest = self._recorder.tape.entries.pop()
        assert isinstance(newest, TapedAlloc)
        self._recorder.tape.drain()
        allocator = self._placement.allocator
        stream = FIRST_PRIVATE + newest.pool if newest.pool else self._recorder.current_stream
        if allocator.would_fit(num_bytes, stream):
            self._recorder.tape.entries.append(newest)
            return
        self._recorder.storages.refuse(newest.number)
        self._num_ooms += 1
        allocator.empty_cache()
        if self._placement.history is not None:
            self._placement.history.ran_out(num_bytes, self._capacity() - allocator.reserved)
        gib = 2**30
        if self._num_ooms == 1:
            self._recorder.warn_once(
                f"the GPU's memory ran out first at {call_site()}, where {num_bytes / gib:.2f} GiB "
                "were asked for; what the script did after catching that is judged by itself"
            )
        raise torch.OutOfMemoryError(
            f"CUDA out of memory. Tried to allocate {num_bytes / gib:.2f} GiB. GPU 0 has a total "
            f"capacity of {self._gpu.memory_bytes / gib:.2f} GiB of which "
            f"{allocator.allocated / gib:.2f} GiB is allocated by PyTorch (forecast for "
            f"{self._gpu.name}, op {newest.op}, module {newest.module or '(none)'})."
        )

    def statistics(self) -> dict[str, int]:
        """Keys as in torch.cuda.memory_stats; what is not modelled is 0."""
        placement = self._drained()
        allocator, settings = placement.allocator, placement.allocator.settings
        blocks, segments = placement.blocks, placement.segments
        values = {
            **blocks.values(
                count="allocation", num_bytes="allocated_bytes", requested="requested_bytes"
            ),
            **blocks.values(count="active", num_bytes="active_bytes"),
            **segments.values(count="segment", num_bytes="reserved_bytes"),
            **_inactive_split(allocator),
        }
        values.update(
            num_alloc_retries=allocator.num_retries,
            num_ooms=self._num_ooms,
            num_sync_all_streams=0,
            num_device_alloc=segments.all.came,
            num_device_free=segments.all.came - segments.all.now,
            num_oom_rejections=0,
            max_split_size=-1 if settings.max_split_bytes is None else settings.max_split_bytes,
        )
        for name in ("oversize_allocations", "oversize_segments"):
            values.update(
                {f"{name}.{which}": 0 for which in ("current", "peak", "allocated", "freed")}
            )
        return dict(sorted(values.items()))

    def reset_peak(self) -> None:
        placement = self._drained()
        placement.allocator.reset_peak()
        placement.blocks.reset_peak()
        placement.segments.reset_peak()

    def reset_accumulated(self) -> None:
        placement = self._drained()
        placement.blocks.reset_accumulated()
        placement.segments.reset_accumulated()

    def empty_cache(self) -> None:
        self._recorder.tape.add(EmptyCache())

    def set_fraction(self, fraction: float) -> None:
        """Limits the program to this share of the GPU's memory."""
        if not isinstance(fraction, float):
            raise TypeError("Invalid type for fraction argument, must be `float`")
        if not 0 <= fraction <= 1:
            raise ValueError(f"Invalid fraction value: {fraction}. Allowed range: 0~1")
        self._fraction = fraction
        self._recorder.options[FRACTION_OPTION] = repr(fraction)
        self._drained().allocator.capacity_bytes = self._capacity()

    def fraction(self) -> float:
        return self._fraction

    def set_settings(self, text: str) -> None:
        """The allocator's settings from here on, as PYTORCH_ALLOC_CONF has them."""
        self._recorder.options[ALLOCATOR_OPTION] = text
        self._drained()
        self._apply_settings()

    def record_history(self, enabled: str | None = "all", max_entries: int | None = None) -> None:
        """Records allocations for snapshots from now on; None ends that."""
        placement = self._drained()
        placement.history = None if enabled is None else History(max_entries)

    def snapshot(self) -> Snapshot:
        """What torch.cuda.memory._snapshot returns."""
        placement = self._drained()
        return snapshot_of(
            placement.allocator,
            placement.sources,
            placement.history,
            self._recorder.options.get(ALLOCATOR_OPTION, ""),
        )


def _inactive_split(allocator: Allocator) -> dict[str, int]:
    """Free blocks of segments that are in use; the peak is that of now."""
    free = _Counters()
    for segment in allocator.segments():
        if len(segment.blocks) > 1:
            for block in segment.blocks:
                if block.is_free:
                    free.add(block.num_bytes, 0, segment.is_small)
    return free.values(count="inactive_split", num_bytes="inactive_split_bytes")
