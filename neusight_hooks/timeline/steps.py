"""A whole recording placed in time, step by step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import replace
from itertools import groupby
from typing import NamedTuple

from neusight.predictors.kernel import KernelClass
from neusight.recording.recording import Entry, ModelInput, Recording, Replay, replays
from neusight.timeline.host import HostProfile
from neusight.timeline.launches import Pricing
from neusight.timeline.scheduler import Scheduler
from neusight.timeline.spans import InputSpan, KernelSpan, StepSpan, Timeline
from neusight.timeline.streams import Streams


class Moment(NamedTuple):
    """The host's time at some moment of a program, and what its streams hold then."""

    host_ns: int
    streams: Streams


class StepEnd(NamedTuple):
    """When a step's kernels had run, and what gaps lay between those that were queued."""

    done_ns: int
    gaps_ns: int


class _Passed(NamedTuple):
    """The host's part of a step, and where its spans end."""

    replay: Replay
    start_ns: int
    end_ns: int
    waited_ns: int
    first_host: int
    last_host: int
    last_kernel: int


class Passage:
    """Steps pass through a scheduler; when all kernels have run, they are a `Timeline`."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self._passed: list[_Passed] = []
        self._inputs: list[InputSpan] = []

    def through(self, replay: Replay) -> Iterator[Entry]:
        """The step's entries, each to be fed before the next is taken; at the end the step ends.
        Spans that the step before left open are its own."""
        scheduler = self.scheduler
        start_ns, waited_ns = scheduler.host_ns, scheduler.waited_ns
        for position, entry in enumerate(replay.step.entries):
            scheduler.lane.entry = position
            if isinstance(entry, ModelInput):
                span = InputSpan(
                    entry, scheduler.host_ns, len(self._passed), len(scheduler.kernels)
                )
                self._inputs.append(span)
            else:
                yield entry
        self._passed.append(
            _Passed(
                replay=replay,
                start_ns=start_ns,
                end_ns=scheduler.host_ns,
                waited_ns=scheduler.waited_ns - waited_ns,
                first_host=self._passed[-1].last_host if self._passed else 0,
                last_host=len(scheduler.lane.spans),
                last_kernel=len(scheduler.kernels),
            )
        )

    def timeline(self, ends: Sequence[StepEnd]) -> Timeline:
        """All of it; `ends` says of each step when its kernels had run."""
        scheduler = self.scheduler
        scheduler.lane.close_all()
        steps: list[StepSpan] = []
        done_ns = first_kernel = 0
        for passed, end in zip(self._passed, ends, strict=True):
            was_done_ns, done_ns = done_ns, max(passed.end_ns, end.done_ns)
            kernels = scheduler.kernels[first_kernel : passed.last_kernel]
            busy_ns, communication_ns, exposed_ns = busy_times(kernels)
            steps.append(
                StepSpan(
                    replay=passed.replay,
                    start_ns=passed.start_ns,
                    end_ns=passed.end_ns,
                    done_ns=done_ns,
                    latency_ns=done_ns - was_done_ns,
                    gpu_busy_ns=busy_ns,
                    communication_ns=communication_ns,
                    exposed_communication_ns=exposed_ns,
                    stream_gaps_ns=end.gaps_ns,
                    host_ns=passed.end_ns - passed.start_ns - passed.waited_ns,
                    first_host=passed.first_host,
                    last_host=passed.last_host,
                    first_kernel=first_kernel,
                    last_kernel=passed.last_kernel,
                )
            )
            first_kernel = passed.last_kernel
        return Timeline(
            host=tuple(scheduler.lane.spans),
            kernels=tuple(scheduler.kernels),
            steps=tuple(_as_in_a_loop(steps)),
            end_ns=steps[-1].done_ns if steps else 0,
            memory_ns=tuple(scheduler.lane.memory_ns),
            inputs=tuple(self._inputs),
        )


def _as_in_a_loop(steps: Sequence[StepSpan]) -> Iterator[StepSpan]:
    """With latencies that a longer loop has. While the GPU works off what was launched before the
    steps (a long prompt), they seem to take its time alone, though the host takes longer."""
    for kind, group in groupby(steps, key=lambda step: step.replay.step.kind):
        first, *following = group
        yield first
        host_ns = sum(step.host_ns * step.represents for step in following)
        drains = kind != "setup" and host_ns > sum(s.latency_ns * s.represents for s in following)
        for step in following:
            late_ns = max(step.latency_ns, step.host_ns)
            yield replace(step, latency_ns=late_ns) if drains else step


def schedule(
    recording: Recording,
    price: Pricing,
    host: HostProfile,
    *,
    stretch_ns: Sequence[int] = (),
    since: Moment | None = None,
) -> Timeline:
    """The recording placed in time: what the host does when, and which kernel runs when.

    `stretch_ns` is what its kernels, in order of launch, take beyond their estimates. A recording
    of what a program did `since` a moment has in its first step what was allocated before.

    >>> from neusight.timeline.host import PLAIN
    >>> from neusight.recording.recording import HostWork, Step
    >>> step = Step("eval", (HostWork("load", 2.5),))
    >>> program = Recording((step,), gpu="H100", torch_version="2.13")
    >>> schedule(program, lambda call: (), PLAIN).end_ns
    2500
    """
    scheduler = Scheduler(price, host, keep_spans=True, stretch_ns=stretch_ns)
    passage = Passage(scheduler)
    ends: list[StepEnd] = []
    for replay in replays(recording):
        gaps_ns = scheduler.streams.gaps_ns
        scheduler.feed(passage.through(replay))
        ends.append(StepEnd(scheduler.device_ns, scheduler.streams.gaps_ns - gaps_ns))
        scheduler.cut()
        if since is not None and replay.index == 0:
            scheduler.lane.now_ns, scheduler.streams = since.host_ns, deepcopy(since.streams)
            scheduler.streams.end_step()
    return passage.timeline(ends)


def busy_times(kernels: list[KernelSpan]) -> tuple[int, int, int]:
    """Union of all kernels, union of the collectives, and what only collectives cover, ns."""
    collectives = [k for k in kernels if k.kernel.kernel_class is KernelClass.COLLECTIVE]
    busy_ns = _union_ns(kernels)
    if not collectives:
        return busy_ns, 0, 0
    others = [k for k in kernels if k.kernel.kernel_class is not KernelClass.COLLECTIVE]
    return busy_ns, _union_ns(collectives), busy_ns - _union_ns(others)


def _union_ns(kernels: list[KernelSpan]) -> int:
    total_ns = reached_ns = 0
    for start_ns, end_ns in sorted((k.start_ns, k.start_ns + k.duration_ns) for k in kernels):
        if end_ns > reached_ns:
            total_ns += end_ns - max(start_ns, reached_ns)
            reached_ns = end_ns
    return total_ns
