"""A program that asks again and again for what another process would do is ended in time."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from neusight.fake_cuda.distributed.peers.link import Link
from neusight.fake_cuda.patching import Patches
from neusight.predictors.errors import UnansweredRankError
from neusight.recording.call_stack import call_site

if TYPE_CHECKING:
    from neusight.recording.tape import Listeners, Tape

#: How long a rank may wait for what another process would do, in seconds.
DEFAULT_WAIT_S = 60.0

_now = time.monotonic


class WaitingTime:
    """Counts the time in which a program does no more than sleep and look whether a key is there.

    Work on the GPU starts it again. UnansweredRankError after `wait_s` seconds, virtual ones
    included, with the line and the key.
    """

    def __init__(self, tape: Tape, rank: int, wait_s: float) -> None:
        self._tape = tape
        self._rank = rank
        self._wait_s = wait_s
        self._num_ops = -1
        self._missing, self._began = "", 0.0
        self._slept_s, self._num_sleeps = 0.0, 0

    def looked_for(self, key: str) -> None:
        """A key of the store was asked for, and is not there."""
        self._restart_after_work()
        self._missing = key
        self._end_if_late()

    def slept(self, duration_s: float) -> None:
        if threading.current_thread() is not threading.main_thread():
            return
        self._restart_after_work()
        self._slept_s += duration_s
        self._num_sleeps += 1
        self._end_if_late()

    def _restart_after_work(self) -> None:
        num_ops = self._tape.gpu_ops
        if num_ops != self._num_ops:
            self._num_ops, self._began = num_ops, _now()
            self._missing, self._slept_s, self._num_sleeps = "", 0.0, 0

    def _end_if_late(self) -> None:
        is_loop = self._missing or self._num_sleeps > 1  # one long sleep waits for no rank
        if not is_loop or max(self._slept_s, _now() - self._began) <= self._wait_s:
            return
        what = f'the key "{self._missing}"' if self._missing else "something"
        raise UnansweredRankError(
            f"rank {self._rank} at {call_site()} has waited {self._wait_s:g} s for {what} that "
            "another process would bring; that process is not run (--wait says how long to wait)"
        )


def install_waiting_time(
    patches: Patches, link: Link, waiting: WaitingTime, on_sleep: Listeners[[float]] | None
) -> None:
    """From here on the program is shown where it waits in vain; `on_sleep` has virtual sleeps."""
    link.on_missing = waiting.looked_for
    if on_sleep is not None:
        on_sleep.subscribe(waiting.slept)
        return
    real_sleep = time.sleep

    def sleep(duration: float) -> None:
        waiting.slept(duration)
        real_sleep(duration)

    patches.set(time, "sleep", sleep)
