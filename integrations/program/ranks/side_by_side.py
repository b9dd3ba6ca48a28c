"""Runs ranks of one program side by side, a process each, and carries their messages."""

from __future__ import annotations

import gc
import os
import select
import signal
import threading
import time
from collections.abc import Callable, Iterable, Sequence, Set
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from itertools import islice
from types import FrameType
from typing import Any

from neusight.fake_cuda.distributed.peers.link import handled
from neusight.fake_cuda.distributed.peers.message_server import MessageServer
from neusight.integrations.program.ranks.rank_process import RankProcess, RankWork
from neusight.interrupts import RELAY
from neusight.predictors.errors import OptionError

#: Ranks that are run without their being stated: each is a process, and takes its memory.
MOST_RANKS = 64


@dataclass
class Ranks:
    """What became of each rank, in the order in which they began. `failed` is the first that
    failed, if one did, `unmet` who waits for what a rank never sent, in words."""

    processes: dict[int, RankProcess] = field(default_factory=dict)
    failed: int | None = None
    unmet: str = ""

    @property
    def answers(self) -> dict[int, Any]:
        """What the work of each that has ended returned."""
        return {
            rank: process.done.answer
            for rank, process in self.processes.items()
            if process.done is not None
        }


def run_side_by_side(
    work: RankWork,
    *,
    ranks: Sequence[int],
    last: int | None = None,
    others: Callable[[Ranks], Iterable[int]] = lambda ranks: (),
    wait_s: float,
) -> Ranks:
    """Runs these ranks, and what became of them. With `last` those that they exchange anything with
    run as well, and the last rank where no other can go on without it; then `others`, which knows
    what became of the first, a few at a time, each with its own. A wait for a key that is never set
    ends after `wait_s`. The first rank that fails ends all others.

    OptionError where more than 64 ranks exchange something with each other.
    """
    gc.freeze()  # what all share is not copied for a mark in it
    try:
        with _Server(work, last=last, wait_s=wait_s) as server:
            for rank in ranks:
                server.begin(rank)
            server.serve()
            if last is not None and server.goes_on:
                server.run_in_turn(others(server.ranks))
            return server.ranks
    finally:
        gc.unfreeze()


class _Server:
    """Begins ranks, and serves them until they have ended."""

    def __init__(self, work: RankWork, *, last: int | None, wait_s: float) -> None:
        self.ranks = Ranks()
        self._work = work
        self._follows = last is not None
        self._shows_all = True
        self._wait_s = wait_s
        self._exchange = MessageServer(self.begin if self._follows else None, reserve=last)
        self._waiting_since: dict[int, float] = {}
        self._is_interrupted = False
        self._woken, self._wake = os.pipe()
        self._interrupt: Any = signal.SIG_DFL
        self._over: set[int] = set()
        self._undo = ExitStack()

    def __enter__(self) -> _Server:
        self._undo.callback(os.close, self._wake)
        self._undo.callback(os.close, self._woken)
        if threading.current_thread() is threading.main_thread():
            self._interrupt = signal.getsignal(signal.SIGINT)
            for number in (signal.SIGINT, RELAY):
                self._undo.callback(signal.signal, number, signal.getsignal(number))
                signal.signal(number, self._pass_on)
        return self

    def __exit__(self, *error: object) -> None:
        self._kill()
        for process in self._live:
            process.close()
        self._undo.close()

    @property
    def _live(self) -> list[RankProcess]:
        return [process for process in self.ranks.processes.values() if not process.is_gone]

    @property
    def goes_on(self) -> bool:
        """Whether there is a reason to run more ranks."""
        return self.ranks.failed is None and not self._is_interrupted

    def run_in_turn(self, ranks: Iterable[int]) -> None:
        """Runs these, one and what it brings first, then as many at a time as there are cores. What
        they print is shown if one fails."""
        waiting = iter(ranks)
        self._shows_all = False
        at_once = 1
        while self.goes_on and (chosen := list(islice(waiting, at_once))):
            num_before = len(self.ranks.processes)
            for rank in chosen:
                if rank not in self.ranks.processes:
                    self.begin(rank)
            self.serve()
            brought = -(-(len(self.ranks.processes) - num_before) // len(chosen))
            at_once = max(1, min(len(os.sched_getaffinity(0)), MOST_RANKS // max(1, brought)))
        if self.goes_on:
            self.ranks.unmet = self._exchange.unmet()

    def begin(self, rank: int) -> None:
        """Runs a rank from now on."""
        processes = self.ranks.processes
        if self._follows and len(self._live) >= MOST_RANKS:
            raise OptionError(
                f"more than {MOST_RANKS} ranks send to and receive from each other, beginning with "
                f"rank {next(iter(processes))}; say which to run: --rank 0,1,2"
            )
        self._exchange.begin(rank)
        processes[rank] = RankProcess.begin(
            rank,
            self._work,
            others=self._live,
            interrupt=self._interrupt,
            is_first=not processes,
            is_shown=self._shows_all,
        )

    def _pass_on(self, number: int, frame: FrameType | None) -> None:
        """Ctrl-C: every rank is notified, as a terminal may have notified this process alone."""
        self._is_interrupted = True
        for process in self._live:
            with suppress(ProcessLookupError):
                os.kill(process.pid, RELAY)
        os.write(self._wake, b" ")

    # -- serving ----------------------------------------------------------------------------------

    def serve(self) -> None:
        """Answers all ranks until they have ended."""
        while self._live:
            self._serve_once()
            answers, self._exchange.answers = self._exchange.answers, []
            for rank, answer in answers:
                self.ranks.processes[rank].send(answer)

    def _serve_once(self) -> None:
        poll = select.poll()
        for number in (self._woken, *(each for one in self._live for each in one.descriptors)):
            poll.register(number, select.POLLIN)
        ready = {number for number, _ in poll.poll(self._timeout_ms())}
        if self._woken in ready:
            os.read(self._woken, 1)
            self._exchange.interrupt()
        for process in self._live:
            self._receive(process, ready)
        self._end_late_waits()

    def _receive(self, process: RankProcess, ready: Set[int]) -> None:
        process.show(ready)
        if process.connection.fileno() in ready:
            request = process.next_request()
            if request is not None:
                handled(self._exchange, process.rank, request)
        elif process.ended in ready:  # and all that it sent was read
            process.close()
        if process.end is None or process.rank in self._over:
            return
        self._over.add(process.rank)
        if process.end != "failed":
            self._exchange.end(process.rank, process.end)
        elif self.ranks.failed is None:
            self.ranks.failed = process.rank
            process.show_kept()
            self._kill(but=process)

    def _kill(self, *, but: RankProcess | None = None) -> None:
        for process in self._live:
            if process is not but:
                process.kill()

    # -- waiting ----------------------------------------------------------------------------------

    def _timeout_ms(self) -> int | None:
        """How long to wait for anything to happen; None: forever."""
        waiting = set(self._exchange.waiting_for_keys)
        now = time.monotonic()
        self._waiting_since = {rank: self._waiting_since.get(rank, now) for rank in waiting}
        if not waiting:
            return None
        return max(0, int((min(self._waiting_since.values()) + self._wait_s - now) * 1000) + 1)

    def _end_late_waits(self) -> None:
        now = time.monotonic()
        for rank in self._exchange.waiting_for_keys:
            if now - self._waiting_since.get(rank, now) > self._wait_s:
                self._exchange.give_up(rank, self._wait_s)
