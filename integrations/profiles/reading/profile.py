"""A profile: what ran on the host and on the GPU, and when; its steps."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import Literal, NamedTuple

from neusight.predictors.published.wave_scaling import LaunchSize

EventKind = Literal["kernel", "memcpy", "memset"]


class HostOp(NamedTuple):
    """An operator on the host. `shapes` are those of its tensors, lists of tensors flattened;
    `arguments` is all that the trace says of it, where `read_profile` was asked to keep that."""

    name: str
    start_ns: int
    duration_ns: int
    thread: str
    shapes: tuple[tuple[int, ...], ...] = ()
    types: tuple[str, ...] = ()
    external_id: int | None = None
    sequence_nr: int | None = None
    arguments: Mapping[str, object] | None = None

    @property
    def end_ns(self) -> int:
        """When it ends."""
        return self.start_ns + self.duration_ns


class RuntimeCall(NamedTuple):
    """A call of the CUDA or HIP runtime or driver."""

    name: str
    start_ns: int
    duration_ns: int
    thread: str
    correlation: int | None = None
    external_id: int | None = None

    @property
    def end_ns(self) -> int:
        """When it ends."""
        return self.start_ns + self.duration_ns


class DeviceEvent(NamedTuple):
    """A kernel, copy or memset; `op` and `launch` are positions in `Profile.ops` and `.calls`.

    Each is -1 where the trace does not state. `kernel_class` is what a forecast trace says, `size`
    None where the trace has no grid.
    """

    kind: EventKind
    name: str
    start_ns: int
    duration_ns: int
    device: int
    stream: int
    correlation: int | None = None
    op: int = -1
    launch: int = -1
    num_bytes: int = 0
    kernel_class: str = ""
    size: LaunchSize | None = None

    @property
    def end_ns(self) -> int:
        """When it ends."""
        return self.start_ns + self.duration_ns


@dataclass(frozen=True, slots=True)
class ProfileStep:
    """One step: from its start on the host to the end of its last kernel.

    `latency_ns` is what a loop of such steps costs each; `host_ns` the annotation's own duration,
    of which the main thread waited `loader_ns` for its DataLoader.
    """

    name: str
    start_ns: int
    host_ns: int
    latency_ns: int
    events: tuple[DeviceEvent, ...]
    loader_ns: int = 0

    @property
    def kernel_ns(self) -> int:
        """Sum of what its kernels, copies and memsets take."""
        return sum(event.duration_ns for event in self.events)

    @property
    def busy_ns(self) -> int:
        """Time in which at least one of them runs."""
        return _union_ns(self.events)


@dataclass(frozen=True)
class Profile:
    """What a trace file says; times in whole nanoseconds from its first event.

    `events` are in order of start. `notes` say what was missing or repaired.
    """

    source: str
    device_name: str
    is_forecast: bool
    is_complete: bool
    steps: tuple[ProfileStep, ...]
    ops: tuple[HostOp, ...]
    events: tuple[DeviceEvent, ...]
    calls: tuple[RuntimeCall, ...]
    peak_allocated_bytes: int | None = None
    peak_reserved_bytes: int | None = None
    notes: tuple[str, ...] = ()
    metadata: Mapping[str, object] = field(default_factory=dict, repr=False)

    def median_step(self) -> ProfileStep | None:
        """The step of median kernel time among those that have kernels (the first, if alone)."""
        found = [step for step in self.steps if step.events]
        if not found:
            return None
        middle = median(step.kernel_ns for step in found)
        return min(found, key=lambda step: (abs(step.kernel_ns - middle), step.start_ns))

    def launch_of(self, event: DeviceEvent) -> RuntimeCall | None:
        """The call that launched it, if the trace states it."""
        return self.calls[event.launch] if event.launch >= 0 else None

    def op_of(self, event: DeviceEvent) -> HostOp | None:
        """The innermost operator that launched it, if the trace states it."""
        return self.ops[event.op] if event.op >= 0 else None


def _union_ns(events: Iterable[DeviceEvent]) -> int:
    total_ns = reached_ns = 0
    for start_ns, end_ns in sorted((event.start_ns, event.end_ns) for event in events):
        if end_ns > reached_ns:
            total_ns += end_ns - max(start_ns, reached_ns)
            reached_ns = end_ns
    return total_ns
