"""Storages and workspaces placed in a GPU's memory: what is held when, peaks, who is alive."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field, replace
from functools import cached_property
from operator import attrgetter
from typing import Literal, NamedTuple, get_args

from neusight.memory.allocator import FIRST_PRIVATE, Allocator
from neusight.memory.allocator_settings import AllocatorSettings, settings_of
from neusight.memory.spread import (
    MemoryVerdict,
    PeakRange,
    Spread,
    spread_of,
    verdict_of_memory,
)
from neusight.memory.workspaces import ENVIRONMENT, Workspaces, thread_of
from neusight.predictors.gpu import GPU
from neusight.recording.recording import (
    Alloc,
    EmptyCache,
    Free,
    Mark,
    MathMode,
    OpCall,
    OpSignature,
    Phase,
    Recording,
    Replay,
    Step,
    StepKind,
    replays,
)
from neusight.recording.tape import TapedAlloc

#: Names in `Recording.options`: what PYTORCH_ALLOC_CONF said, and the share of the GPU's memory
#: that torch.cuda.set_per_process_memory_fraction left.
ALLOCATOR_OPTION, FRACTION_OPTION = "PYTORCH_ALLOC_CONF", "memory_fraction"

Category = Literal[
    "parameters", "gradients", "optimizer_state", "activations", "workspaces", "other"
]

_CATEGORY_OF: dict[str, Category] = {
    "parameter": "parameters",
    "gradient": "gradients",
    "optimizer_state": "optimizer_state",
    "workspace": "workspaces",
    "activation": "activations",
}


class MemoryEvent(NamedTuple):
    """An allocation (`num_bytes` > 0) or a free (< 0), and what is held after it.

    `mark` is its position among all `Alloc` and `Free` entries in order of replay, as in
    `Timeline.memory_ns` (of a workspace, that of the entry before it); `step` the program's number
    of the step.
    """

    mark: int
    step: int
    num_bytes: int
    address: int
    allocated: int
    reserved: int
    source: Alloc


class AliveRow(NamedTuple):
    """What was alive at the peak, summed over equal module, phase and kind."""

    module: str
    phase: Phase
    kind: str
    num_bytes: int
    num_storages: int


@dataclass(frozen=True, slots=True)
class OutOfMemory:
    """The first allocation that the GPU could not have served, and what was held before it.

    The cached segments were given back first, as the real allocator does.
    """

    step: int
    op: str
    module: str
    phase: Phase
    num_bytes: int
    allocated: int
    reserved: int
    capacity_bytes: int
    context_bytes: int
    stack: tuple[str, ...] = field(default=(), compare=False)


@dataclass(frozen=True, slots=True)
class StepMemory:
    """The memory of one replayed step: its own peaks, and what is left allocated at its end.
    `growth` is what each of several equal steps leaves, that nothing frees."""

    step: int
    kind: StepKind
    peak_allocated: int
    peak_reserved: int
    end_allocated: int
    growth: int = 0


@dataclass(frozen=True)
class MemoryTimeline:
    """Memory over the whole block, as `torch.cuda.memory_stats` would report it. All bytes.

    `peak_event` is the allocation that reached the peak (None where nothing was allocated);
    `alive_at_peak` what was alive then, largest first, without rounding to blocks. `spread` is what
    the peaks may be off by; `fits_into` places it all again in that many bytes, context included.
    """

    events: tuple[MemoryEvent, ...]
    steps: tuple[StepMemory, ...]
    peak_allocated: int
    peak_reserved: int
    peak_event: MemoryEvent | None
    alive_at_peak: tuple[Alloc, ...]
    capacity_bytes: int | None
    context_bytes: int
    settings: AllocatorSettings
    #: What of `peak_reserved` are private pools of CUDA graphs.
    reserved_for_graphs: int = 0
    #: The largest workspace of cuDNN that there was no space for, and that an op ran without.
    most_left_out: int = 0
    out_of_memory: OutOfMemory | None = None
    spread: Spread = field(default_factory=Spread)
    fits_into: Callable[[int], bool] | None = field(default=None, repr=False, compare=False)

    @cached_property
    def verdict(self) -> MemoryVerdict:
        """Whether it fits, does not, or is too close to call: "fits", "does not fit", "close"."""
        if self.capacity_bytes is None or self.fits_into is None:
            return "fits" if self.fits else "does not fit"
        return verdict_of_memory(
            fits=self.fits,
            needed_bytes=self.total_bytes,
            needed=self.needed_range,
            capacity_bytes=self.capacity_bytes,
            fits_into=self.fits_into,
        )

    @property
    def allocated_range(self) -> PeakRange:
        """Between what the peak of allocated bytes lies."""
        return self.spread.allocated(self.peak_allocated)

    @property
    def needed_range(self) -> PeakRange:
        """Between what `total_bytes` lies."""
        return self.spread.needed(self.peak_reserved, self.context_bytes)

    @property
    def fits(self) -> bool:
        """Whether every allocation was served within the capacity, the CUDA context included."""
        return self.out_of_memory is None

    @property
    def total_bytes(self) -> int:
        """What the GPU has to have: most bytes reserved, and the CUDA context."""
        return self.peak_reserved + self.context_bytes

    @property
    def growth(self) -> int:
        """Bytes that each step of the last of several equal ones leaves allocated."""
        return 0 if self._steady is None else self._steady.growth

    @property
    def steps_left(self) -> int | None:
        """How many more of these steps fit, by what is allocated: gaps may take the place of one or
        two. None where they leave nothing, or where no capacity is stated."""
        if self._steady is None or not self.growth or self.capacity_bytes is None:
            return None
        free = self.capacity_bytes - self.context_bytes - self._steady.peak_allocated
        return max(0, free) // self.growth

    @property
    def _steady(self) -> StepMemory | None:
        return next((step for step in reversed(self.steps) if step.kind != "setup"), None)

    @property
    def first_and_steady(self) -> tuple[StepMemory, StepMemory] | None:
        """The first step that trains (else the first that infers) and the last of them; None
        where there are not two."""
        for kind in ("train", "eval"):
            found = [step for step in self.steps if step.kind == kind]
            if found:
                return (found[0], found[-1]) if len(found) > 1 else None
        return None

    @cached_property
    def alive(self) -> tuple[AliveRow, ...]:
        """What was alive at the peak by module, phase and kind, largest first."""
        sums: dict[tuple[str, Phase, str], list[int]] = defaultdict(lambda: [0, 0])
        for alloc in self.alive_at_peak:
            row = sums[(alloc.module, alloc.phase, alloc.kind)]
            row[0] += alloc.num_bytes
            row[1] += 1
        rows = [AliveRow(*key, num_bytes=total, num_storages=n) for key, (total, n) in sums.items()]
        return tuple(sorted(rows, key=lambda row: (-row.num_bytes, row[:3])))

    @cached_property
    def by_category(self) -> dict[Category, int]:
        """Bytes alive at the peak; activations are those of the forward pass, other is what
        backward and optimizer need for a moment, and buffers."""
        sums: dict[Category, int] = dict.fromkeys(get_args(Category), 0)
        for alloc in self.alive_at_peak:
            sums[category_of(alloc)] += alloc.num_bytes
        return sums


def category_of(alloc: Alloc) -> Category:
    """What people call it.

    >>> category_of(Alloc(0, 512, phase="backward"))
    'other'
    """
    if alloc.kind == "activation" and alloc.phase != "forward":
        return "other"
    return _CATEGORY_OF.get(alloc.kind, "other")


#: What says who allocates: an entry of a step, or of the tape while the program runs.
Source = Alloc | TapedAlloc


class Placement:
    """Storages placed by an allocator in the order in which a program makes them, and between them
    the workspaces that its ops take. A storage is for the stream of the op that makes it."""

    def __init__(self, allocator: Allocator, workspaces: Workspaces | None = None) -> None:
        self.allocator = allocator
        self.workspaces = workspaces
        #: The largest workspace that there was no space for, and that an op ran without.
        self.most_left_out = 0
        #: Position of the last `Alloc` or `Free`, -1 before the first; number of the step.
        self.mark = -1
        self.step = 0
        #: Whether a captured CUDA graph runs: its workspaces lie in it.
        self.is_in_graph = False
        self._op = ""
        self._stream = 0
        self._pending: tuple[OpSignature, MathMode, Phase, str] | None = None
        self._kept: set[Hashable] = set()

    def run(
        self, signature: OpSignature, math: MathMode, phase: Phase, stream: int, module: str
    ) -> None:
        """An op runs; what it returns is allocated next, then its workspaces."""
        if self._pending is not None:
            self.settle()
        self._op, self._stream = signature.op, stream
        if self.is_in_graph or self.workspaces is None:
            return
        if self.workspaces.of(signature, math):
            self._pending = (signature, math, phase, module)

    def allocate(self, storage: Hashable, alloc: Source) -> bool:
        """Places a storage; False if the GPU could not have served it."""
        own = alloc.op == self._op
        if self._pending is not None and not own:
            self.settle()
        if alloc.pool:
            return self.place(storage, alloc, FIRST_PRIVATE + alloc.pool)
        return self.place(storage, alloc, self._stream if own else 0)

    def free(self, storage: Hashable) -> None:
        """A storage ends."""
        if self._pending is not None:
            self.settle()
        self.take_away(storage)

    def pass_by(self, mark: Mark) -> None:
        """Something begins or ends here."""
        if mark.kind in ("graph_begin", "graph_end"):
            self.is_in_graph = mark.kind == "graph_begin"

    def settle(self) -> None:
        """The last op takes its workspaces, and gives back what it does not keep."""
        if self._pending is None or self.workspaces is None:
            return
        signature, math, phase, module = self._pending
        self._pending = None
        ended: list[Hashable] = []
        for need in self.workspaces.of(signature, math):
            key = ("workspace", need.name, thread_of(phase), self._stream)
            if key in self._kept:
                continue
            if need.is_optional and not self.allocator.would_fit(need.num_bytes, self._stream):
                self.most_left_out = max(self.most_left_out, need.num_bytes)
                continue
            alloc = Alloc(
                -1, need.num_bytes, f"({need.name})" if need.is_kept else module, signature.op,
                phase, "workspace",
            )  # fmt: skip
            self.place(key, alloc, self._stream)
            if need.is_kept:
                self._kept.add(key)
            else:
                ended.append(key)
        for storage in ended:
            self.take_away(storage)

    def place(self, storage: Hashable, alloc: Source, stream: int) -> bool:
        """Where every allocation passes."""
        return self.allocator.allocate(storage, alloc.num_bytes, stream)

    def take_away(self, storage: Hashable) -> None:
        """Where every free passes."""
        self.allocator.free(storage)


class _Replayed(Placement):
    """Writes down what happens."""

    def __init__(
        self, allocator: Allocator, workspaces: Workspaces | None, context_bytes: int
    ) -> None:
        super().__init__(allocator, workspaces)
        self.events: list[MemoryEvent] = []
        self.live: dict[Hashable, Alloc] = {}
        self.out_of_memory: OutOfMemory | None = None
        self.peak_allocated = 0
        self.events_to_peak = 0
        self._context_bytes = context_bytes

    def place(self, storage: Hashable, alloc: Source, stream: int) -> bool:
        """Allocates, and notes it."""
        assert isinstance(alloc, Alloc)  # recordings hold no others
        allocator = self.allocator
        reserved, allocated = allocator.reserved, allocator.allocated
        fits = allocator.allocate(storage, alloc.num_bytes, stream)
        self.live[storage] = alloc
        if not fits and self.out_of_memory is None:
            self.out_of_memory = OutOfMemory(
                step=self.step,
                op=alloc.op,
                module=alloc.module,
                phase=alloc.phase,
                num_bytes=alloc.num_bytes,
                allocated=allocated,
                reserved=min(reserved, allocator.reserved),
                capacity_bytes=(allocator.capacity_bytes or 0) + self._context_bytes,
                context_bytes=self._context_bytes,
                stack=alloc.stack,
            )
        block = allocator.block_of(storage)
        if block is not None:
            if allocator.allocated > self.peak_allocated:
                self.peak_allocated = allocator.allocated
                self.events_to_peak = len(self.events) + 1
            self.events.append(
                MemoryEvent(
                    max(self.mark, 0), self.step, block.num_bytes, block.address,
                    allocator.allocated, allocator.reserved, alloc,
                )
            )  # fmt: skip
        return fits

    def take_away(self, storage: Hashable) -> None:
        """Frees, and notes it."""
        allocator = self.allocator
        block = allocator.block_of(storage)
        source = self.live.pop(storage)
        if block is None:
            allocator.free(storage)
            return
        num_bytes, address = block.num_bytes, block.address  # its block may grow
        allocator.free(storage)
        self.events.append(
            MemoryEvent(
                max(self.mark, 0), self.step, -num_bytes, address, allocator.allocated,
                allocator.reserved, source,
            )
        )  # fmt: skip


def memory_of(
    recording: Recording,
    *,
    capacity_bytes: int | None = None,
    context_bytes: int = 0,
    workspaces: Workspaces | None = None,
    settings: AllocatorSettings | None = None,
) -> MemoryTimeline:
    """The recording's storages placed in a GPU of `capacity_bytes`, its context taken off.

    >>> from neusight.recording.recording import Step
    >>> step = Step("train", (Alloc(0, 1000), Alloc(1, 3 * 2**20)))
    >>> memory_of(Recording((step,), gpu="H100", torch_version="2.13")).peak_reserved == 22 * 2**20
    True
    """
    available = None if capacity_bytes is None else max(0, capacity_bytes - context_bytes)
    memory = _Replayed(Allocator(available, settings), workspaces, context_bytes)
    steps = place_all(recording, memory)
    events, to_peak = memory.events, memory.events_to_peak
    return MemoryTimeline(
        events=tuple(events),
        steps=steps,
        peak_allocated=memory.peak_allocated,
        peak_reserved=max((step.peak_reserved for step in steps), default=0),
        peak_event=events[to_peak - 1] if to_peak else None,
        alive_at_peak=_alive_after(events[:to_peak]),
        capacity_bytes=capacity_bytes,
        context_bytes=context_bytes,
        settings=memory.allocator.settings,
        reserved_for_graphs=memory.allocator.reserved_for_graphs,
        most_left_out=memory.most_left_out,
        out_of_memory=memory.out_of_memory,
    )


def place_all(recording: Recording, placement: Placement) -> tuple[StepMemory, ...]:
    """Lets all storages of a recording come and go, each folded step a few times."""
    allocator = placement.allocator
    steps: list[StepMemory] = []
    live: set[Hashable] = set()
    equal: list[int] = []  # what was left at the end of each run of the same folded step
    last: Step | None = None
    made: dict[Hashable, Alloc] = {}
    for replay in replays(recording):
        equal = equal if replay.step is last else []
        last = replay.step
        growth = max(0, equal[-1] - equal[-2]) if len(equal) > 1 else 0
        allocator.reset_peak()
        placement.step = replay.index
        left = [alloc for storage, alloc in made.items() if storage in live]
        if growth and left:
            _keep_of_folded(placement, max(left, key=attrgetter("num_bytes")), growth, replay)
        made = {}
        for entry in replay.step.entries:
            if isinstance(entry, OpCall):
                placement.run(entry.signature, entry.math, entry.phase, entry.stream, entry.module)
            elif isinstance(entry, Alloc):
                placement.mark += 1
                storage = replay.alloc_id(entry)
                live.add(storage)
                made[storage] = entry
                placement.allocate(storage, entry)
            elif isinstance(entry, Free):
                placement.mark += 1
                known = replay.storage_id(entry.storage)
                if known is not None and known in live:
                    live.discard(known)
                    placement.free(known)  # others were allocated in a step that is folded away
            elif isinstance(entry, Mark):
                placement.pass_by(entry)
            elif isinstance(entry, EmptyCache):
                placement.settle()
                allocator.empty_cache()
        placement.settle()
        steps.append(
            StepMemory(
                step=replay.index,
                kind=replay.step.kind,
                peak_allocated=allocator.peak_allocated,
                peak_reserved=allocator.peak_reserved,
                end_allocated=allocator.allocated,
                growth=growth,
            )
        )
        equal.append(allocator.allocated)
    return tuple(steps)


#: Steps folded away for which what each leaves is a block of its own; else one block for all.
_MOST_BLOCKS = 1000


def _keep_of_folded(placement: Placement, left: Alloc, growth: int, replay: Replay) -> None:
    """Places what the steps leave allocated that are folded away before this run, each as much;
    `left` is the largest of it."""
    num_steps = replay.represents - 1
    blocks = min(num_steps, _MOST_BLOCKS)
    for number in range(blocks):
        placement.step = replay.index - num_steps + number
        share = num_steps * (number + 1) // blocks - num_steps * number // blocks
        block = replace(left, ordinal=-1, num_bytes=growth * share)
        placement.place(("kept", placement.step), block, 0)
    placement.step = replay.index


def memory_on(
    recording: Recording, gpu: GPU, *, capacity_bytes: int | None = None
) -> MemoryTimeline:
    """The recording in the memory of `gpu` (or in that much of it), with the workspaces that the
    libraries take there and the allocator's settings of the recorded program."""
    fraction = recording.options.get(FRACTION_OPTION)
    total = gpu.memory_bytes if capacity_bytes is None else min(capacity_bytes, gpu.memory_bytes)
    if fraction is not None:
        # The limit counts what is reserved, the context not.
        total = min(total, int(float(fraction) * gpu.memory_bytes) + gpu.context_bytes)
    workspaces = workspaces_on(recording, gpu)
    settings = allocator_settings(recording)

    def placed(capacity_bytes: int) -> MemoryTimeline:
        return memory_of(
            recording,
            capacity_bytes=capacity_bytes,
            context_bytes=gpu.context_bytes,
            workspaces=workspaces,
            settings=settings,
        )

    return replace(
        placed(total),
        spread=spread_of(recording),
        fits_into=lambda capacity_bytes: placed(capacity_bytes).fits,
    )


def workspaces_on(recording: Recording, gpu: GPU) -> Workspaces:
    """What the recorded program's libraries take on `gpu`."""
    options = recording.options
    environment = {name: options[name] for name in ENVIRONMENT if name in options}
    return Workspaces(gpu, recording.torch_version, environment)


def allocator_settings(recording: Recording) -> AllocatorSettings:
    """The settings that the recorded program ran with."""
    return settings_of(recording.options.get(ALLOCATOR_OPTION, ""))[0]


def _alive_after(events: list[MemoryEvent]) -> tuple[Alloc, ...]:
    live: dict[int, Alloc] = {}
    for event in events:
        if event.num_bytes > 0:
            live[event.address] = event.source
        else:
            del live[event.address]
    return tuple(sorted(live.values(), key=lambda alloc: -alloc.num_bytes))
