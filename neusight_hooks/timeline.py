"""Kernels and ops placed in time: a host lane that dispatches and launches, streams that run in order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from neusight.predictors.kernel import Kernel
from neusight.predictors.predictor import Estimate
from neusight.recording import OpCall, Replay

__all__ = ["HostSpan", "KernelSpan", "StepSpan", "Timeline"]

Thread = Literal["main", "autograd"]


@dataclass(frozen=True, slots=True)
class HostSpan:
    """Something on the host lane, times in whole nanoseconds from the start of the block.

    kind "op": `call` is the op; "node": an autograd node around backward ops; "module": an
    nn.Module's forward; "annotation": record_function and the like; "launch": a runtime call, with
    the `correlation` of its kernel; "sync": the host waits; "work": the host is busy itself.
    `parent` is the position of the enclosing span in `Timeline.host`, or -1.
    """

    kind: Literal["op", "node", "module", "annotation", "launch", "sync", "work"]
    name: str
    start_ns: int
    duration_ns: int
    thread: Thread = "main"
    parent: int = -1
    call: OpCall | None = None
    correlation: int = 0
    detail: str = ""

    @property
    def end_ns(self) -> int:
        """When it ends."""
        return self.start_ns + self.duration_ns


@dataclass(frozen=True, slots=True)
class KernelSpan:
    """A kernel on a stream; `op` is the position of the op that launched it in `Timeline.host`."""

    kernel: Kernel
    estimate: Estimate
    stream: int
    start_ns: int
    duration_ns: int
    correlation: int
    op: int

    @property
    def end_ns(self) -> int:
        """When it ends."""
        return self.start_ns + self.duration_ns


@dataclass(frozen=True, slots=True)
class StepSpan:
    """One replayed step: where it lies in time, and which host and kernel spans are its own.

    It ends where the host ends it, or with the last kernel launched in it if the host waited for
    that. `latency_ns` is from this step's end to the one before: what a loop of such steps costs
    each. `represents` says how many equal steps it stands for.
    """

    replay: Replay
    start_ns: int
    end_ns: int
    latency_ns: int
    gpu_busy_ns: int
    communication_ns: int
    host_ns: int
    first_host: int
    last_host: int
    first_kernel: int
    last_kernel: int

    @property
    def represents(self) -> int:
        """How many equal steps of the program this one stands for."""
        return self.replay.represents


@dataclass(frozen=True)
class Timeline:
    """A whole block in time. Host spans are in order of start, kernels in order of launch."""

    host: tuple[HostSpan, ...]
    kernels: tuple[KernelSpan, ...]
    steps: tuple[StepSpan, ...]
    end_ns: int
