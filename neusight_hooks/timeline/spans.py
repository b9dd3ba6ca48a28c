"""What a timeline is made of: spans of the host, of kernels, and of the steps around them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

from neusight.predictors.kernel import Kernel
from neusight.predictors.predictor import Estimate
from neusight.recording.recording import ModelInput, OpCall, Replay

#: A lane of the host: `MAIN`, `AUTOGRAD`, or `other_thread(number)`.
Thread = str
MAIN: Thread = "main"
AUTOGRAD: Thread = "autograd"
_OTHER = "thread "
SpanKind = Literal[
    "op",
    "operator",
    "node",
    "function",
    "module",
    "annotation",
    "compiled",
    "launch",
    "event",
    "sync",
    "work",
]


def other_thread(number: int) -> Thread:
    """A thread of the program's own, from 1 on.

    >>> other_thread(1), number_of_thread(other_thread(1)), number_of_thread("main")
    ('thread 1', 1, 0)
    """
    return f"{_OTHER}{number}"


def number_of_thread(thread: Thread) -> int:
    """The number of a thread of the program's own; 0 of the main and the autograd thread."""
    return int(thread.removeprefix(_OTHER)) if thread.startswith(_OTHER) else 0


class HostSpan(NamedTuple):
    """Something on the host, times in whole nanoseconds from the start of the block.

    kind "op": `call` is the op; "operator": one that calls ops, or that an op calls
    (`call`, if it launches the op's kernels); "node": an
    autograd node around backward ops (two, one in the other, as the profiler shows them);
    "function": a Python function;
    "module": an nn.Module's forward, `name` its path and `detail` its class (behind a space which
    of several modules of that path it is, but for the first); "annotation":
    record_function and the like; "compiled": code of torch.compile, and what it does before its
    first kernel; "launch": a runtime call with the `correlation` of its kernel, or of all kernels
    of a CUDA graph; "event": cudaEventRecord or cudaStreamWaitEvent; "sync": the host waits,
    because of `detail`; "work": the host is busy itself.
    `parent` is the position of the enclosing span in `Timeline.host`, or -1; on a thread of the
    program's own only ops enclose. While ops of "autograd" run, "main" waits in backward(). `entry`
    is the position in the step's entries of what it comes from, or -1; `sequence_nr` autograd's
    number of what is no op itself.
    """

    kind: SpanKind
    name: str
    start_ns: int
    duration_ns: int
    thread: Thread = "main"
    parent: int = -1
    call: OpCall | None = None
    correlation: int = 0
    detail: str = ""
    entry: int = -1
    sequence_nr: int | None = None

    @property
    def end_ns(self) -> int:
        """When it ends."""
        return self.start_ns + self.duration_ns


class KernelSpan(NamedTuple):
    """A kernel on a stream. `call` is the op it is part of, `op` the position in `Timeline.host` of
    that op's span; kernels of a CUDA graph have no such span, but that of the graph's launch. Of
    `duration_ns` a collective waits `waited_ns` for other ranks."""

    kernel: Kernel
    estimate: Estimate
    stream: int
    start_ns: int
    duration_ns: int
    correlation: int
    op: int
    call: OpCall
    waited_ns: int = 0

    @property
    def end_ns(self) -> int:
        """When it ends."""
        return self.start_ns + self.duration_ns


@dataclass(frozen=True, slots=True)
class StepSpan:
    """One replayed step: where it lies in time, and which host and kernel spans are its own.

    `start_ns` and `end_ns` are the host's; `done_ns` is when the host has ended it and all
    kernels launched so far have run, whichever is later. `latency_ns` is from the step before's
    `done_ns` to this one's: what a loop of such steps costs each. `gpu_busy_ns` is the union of
    the step's kernels over all streams, `exposed_communication_ns` the part of it in which only
    collectives run, `stream_gaps_ns` the gaps between queued kernels, `host_ns` the host's time
    without waits. Host spans are `first_host` up to, not including, `last_host`; kernels alike.
    """

    replay: Replay
    start_ns: int
    end_ns: int
    done_ns: int
    latency_ns: int
    gpu_busy_ns: int
    communication_ns: int
    exposed_communication_ns: int
    stream_gaps_ns: int
    host_ns: int
    first_host: int
    last_host: int
    first_kernel: int
    last_kernel: int

    @property
    def represents(self) -> int:
        """How many equal steps of the program this one stands for."""
        return self.replay.represents


class InputSpan(NamedTuple):
    """A model is called without gradients: when the host does so, in which of `Timeline.steps`,
    and how many kernels were launched before."""

    entry: ModelInput
    start_ns: int
    step: int
    num_kernels: int


@dataclass(frozen=True)
class Timeline:
    """A whole block in time. Host spans are in order of start, kernels in order of launch.

    `memory_ns` holds the host time of every `Alloc` and `Free`, in order; `inputs` the calls
    of models without gradients.
    """

    host: tuple[HostSpan, ...]
    kernels: tuple[KernelSpan, ...]
    steps: tuple[StepSpan, ...]
    end_ns: int
    memory_ns: tuple[int, ...] = ()
    inputs: tuple[InputSpan, ...] = ()
