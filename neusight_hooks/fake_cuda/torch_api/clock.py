"""Forecast time while the program runs: for event timers and, if wanted, for `time` itself."""

from __future__ import annotations

import sys
import sysconfig
import threading
import time
import timeit
from collections.abc import Callable, Sequence
from copy import deepcopy
from functools import partial

from neusight.fake_cuda.patching import Patches
from neusight.recording.recorder import Recorder
from neusight.recording.recording import Alloc, Entry, Free, HostWork, StorageRef
from neusight.recording.tape import (
    AROUND_ENTRIES,
    SingleEntry,
    TapedAlloc,
    TapedFree,
    TapedInput,
    TapedOp,
)
from neusight.timeline.host import HostProfile
from neusight.timeline.launches import Pricing
from neusight.timeline.scheduler import Scheduler
from neusight.timeline.steps import Moment

_NS_PER_US = 1000
_NS_PER_S = 1_000_000_000

# The host's cost of an allocation does not depend on which it is.
_ANY_ALLOC = Alloc(0, 0)
_ANY_FREE = Free(StorageRef(0, 0))

#: Sleeping is virtual; other threads of the program get this long to run, in seconds.
_REAL_SLEEP_S = 0.001


class SimulatedClock:
    """Schedules what the recorder records, as far as the time is queried."""

    def __init__(self, recorder: Recorder, price: Pricing, host: HostProfile) -> None:
        self._recorder = recorder
        self._scheduler = Scheduler(price, host)
        recorder.tape.followers.append(self._follow)

    def _follow(self, fresh: Sequence[SingleEntry]) -> None:
        self._scheduler.feed(
            self._as_entry(taped)
            for taped in fresh
            if not isinstance(taped, (*AROUND_ENTRIES, TapedInput))
        )

    def _as_entry(self, taped: Entry | TapedAlloc | TapedFree | TapedOp) -> Entry:
        """The entry of a step, as far as time depends on it."""
        if isinstance(taped, TapedOp):
            return self._recorder.cutter.writer.call_of(taped)
        if isinstance(taped, TapedAlloc):
            return _ANY_ALLOC
        return _ANY_FREE if isinstance(taped, TapedFree) else taped

    @property
    def host_ns(self) -> int:
        """The time of the program's clock since the start of the block."""
        self._recorder.tape.drain()
        return self._scheduler.host_ns

    def now(self) -> Moment:
        """The host's time now, and what the streams hold."""
        return Moment(self.host_ns, deepcopy(self._scheduler.streams))

    def event_us(self, event: int) -> float:
        """When an event is reached on its stream."""
        self._recorder.tape.drain()
        return self._scheduler.streams.event_ns(event) / _NS_PER_US


def install_virtual_time(patches: Patches, recorder: Recorder, clock: SimulatedClock) -> None:
    """`time.time()` and its like advance with the forecast, for the program's main thread.

    The standard library itself keeps real time, as its timeouts wait for real things; but for
    `timeit`, which measures the program and torch.utils.benchmark builds on.
    """
    main = threading.get_ident()
    stdlib = tuple(sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib"))
    site = tuple(sysconfig.get_paths()[name] for name in ("purelib", "platlib"))

    def is_virtual() -> bool:
        if not recorder.is_open or threading.get_ident() != main or recorder.mode.is_inside:
            return False
        filename = sys._getframe(2).f_code.co_filename
        return not filename.startswith(stdlib) or filename.startswith(site)

    def seconds(real: Callable[[], float]) -> Callable[[], float]:
        start = real()
        return lambda: start + clock.host_ns / _NS_PER_S if is_virtual() else real()

    def nanoseconds(real: Callable[[], int]) -> Callable[[], int]:
        start = real()
        return lambda: start + clock.host_ns if is_virtual() else real()

    real_sleep = time.sleep

    def sleep(duration: float) -> None:
        if not is_virtual():
            real_sleep(duration)
            return
        recorder.tape.add(HostWork("time.sleep", round(duration * 1e6, 3)))
        real_sleep(min(duration, _REAL_SLEEP_S))
        recorder.on_sleep(duration)
        if recorder.interrupted is not None:  # a loop that only sleeps is here most of the time
            recorder.interrupted()

    for name in ("time", "perf_counter", "monotonic"):
        patches.set(time, name, seconds(getattr(time, name)))
        patches.set(time, f"{name}_ns", nanoseconds(getattr(time, f"{name}_ns")))
    patches.set(time, "sleep", sleep)
    _measure_by(patches, timeit.default_timer, time.perf_counter)


def _measure_by(patches: Patches, real: Callable[[], float], virtual: Callable[[], float]) -> None:
    """Sets the default timer of `timeit`."""
    patches.set(timeit, "default_timer", virtual)
    for function in (timeit.Timer.__init__, timeit.timeit, timeit.repeat):
        kept = function.__defaults__ or ()
        patches.on_restore(partial(setattr, function, "__defaults__", kept))
        function.__defaults__ = tuple(virtual if value is real else value for value in kept)
