"""A rank in a process of its own, as the process that forked it sees it."""

from __future__ import annotations

import os
import pickle
import signal
import socket
import sys
from collections.abc import Callable, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, TextIO

from neusight.exit_codes import ExitCode
from neusight.fake_cuda.distributed.peers.link import Link, RemoteLink, receive, send
from neusight.integrations.program.guard.forking import (
    end_after,
    fork,
    ignore_interrupts,
)
from neusight.integrations.program.guard.results import decoded, encoded_error
from neusight.interrupts import RELAY

#: Begins the last message of a rank.
_DONE = "done"

#: Bytes of output that are read at a time.
_CHUNK_BYTES = 2**16


#: How a rank ended: by itself, stopped early as its steps were steady, or in failure.
RankEnd = Literal["well", "early", "failed"]

#: Does a rank's program; how it ended, and what it reports.
RankWork = Callable[[int, Link], tuple[RankEnd, Any]]


@dataclass(frozen=True)
class Done:
    """What became of a rank: what its work returned, or what it raised."""

    end: RankEnd
    answer: Any = None
    error: BaseException | None = None


@dataclass
class _Output:
    """What a rank prints, and where it is shown: with the rank's number before each line. Lines
    that are not to be shown yet are `kept`."""

    descriptor: int
    shown: TextIO | None
    rank: int
    rest: bytes = b""
    kept: list[bytes] | None = None

    def read(self) -> bool:
        """Shows what is there by now; False once there will be no more."""
        data = os.read(self.descriptor, _CHUNK_BYTES)
        if not data:
            os.close(self.descriptor)
        *lines, self.rest = (self.rest + data).splitlines(keepends=True) or [b""]
        if self.rest.endswith((b"\n", b"\r")) or not data:
            lines, self.rest = [*lines, self.rest], b""
        for line in lines:
            self._show(line)
        return bool(data)

    def show_kept(self) -> None:
        """Shows what was kept, and keeps nothing more."""
        kept, self.kept = self.kept, None
        for line in kept or ():
            self._show(line)

    def _show(self, line: bytes) -> None:
        if self.kept is not None:
            self.kept.append(line)
        elif line.strip() and self.shown is not None:
            text = line.rstrip(b"\r\n").decode(errors="replace")
            self.shown.write(f"[rank {self.rank}] {text}\n")
            self.shown.flush()


@dataclass
class RankProcess:
    """One rank that was forked off. `done` is known once it said so, `status` once it is gone."""

    rank: int
    pid: int
    connection: socket.socket
    ended: int
    outputs: list[_Output] = field(default_factory=list)
    finished: list[_Output] = field(default_factory=list)
    done: Done | None = None
    status: int | None = None
    is_silent: bool = False

    @classmethod
    def begin(
        cls,
        rank: int,
        work: RankWork,
        *,
        others: Sequence[RankProcess],
        interrupt: Any,
        is_first: bool,
        is_shown: bool,
    ) -> RankProcess:
        """Forks a process that does the work; `interrupt` handles Ctrl-C there. What others than
        the first print is shown with the rank's number, or kept."""
        for stream in filter(None, (sys.stdout, sys.stderr)):
            stream.flush()
        own, theirs = socket.socketpair()
        pipes = [] if is_first else [(1, sys.stdout, os.pipe()), (2, sys.stderr, os.pipe())]
        parent = os.getpid()
        # What comes before the child has handlers of its own comes to it afterwards.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT, RELAY])
        pid = fork()
        if pid == 0:
            for other in others:
                other.connection.close()
            own.close()
            for number, _, (reading, writing) in pipes:
                os.close(reading)
                os.dup2(writing, number)
                os.close(writing)
            if pipes:
                sys.stdout, sys.stderr = map(_line_by_line, (1, 2))
            end_after(
                partial(_send_result, rank, work, theirs),
                parent=parent,
                handlers={signal.SIGINT: interrupt},
                mask=set(mask) - {signal.SIGINT, RELAY},
            )
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        theirs.close()
        outputs = []
        for _, shown, (reading, writing) in pipes:
            os.close(writing)
            outputs.append(_Output(reading, shown, rank, kept=None if is_shown else []))
        return cls(rank, pid, own, os.pidfd_open(pid), outputs)

    @property
    def is_gone(self) -> bool:
        """Whether the process has ended."""
        return self.status is not None

    @property
    def end(self) -> RankEnd | None:
        """How the rank ended; None while it runs."""
        if self.done is not None or self.status is None:
            return None if self.done is None else self.done.end
        code = os.waitstatus_to_exitcode(self.status)
        return "well" if code == ExitCode.INTERRUPTED else "failed"

    @property
    def descriptors(self) -> list[int]:
        """What is readable where it says or prints something, or ends."""
        outputs = [output.descriptor for output in self.outputs]
        return [self.ended, *outputs, *([] if self.is_silent else [self.connection.fileno()])]

    def show(self, ready: Set[int]) -> None:
        """Shows what it printed, where its output is readable."""
        for output in list(self.outputs):
            if output.descriptor in ready and not output.read():
                self.outputs.remove(output)
                self.finished.append(output)

    def show_kept(self) -> None:
        """Shows what it printed so far and was kept."""
        for output in (*self.finished, *self.outputs):
            output.show_kept()

    def next_request(self) -> Any:
        """What it asks; None where it has no more to ask: its last words are kept in `done`."""
        message = receive(self.connection)
        if message is None:
            self.is_silent = True
        elif message[0] == _DONE:
            self.done = pickle.loads(message[1])
            message = None
        return message

    def send(self, message: object) -> None:
        """Answers it; one that has ended meanwhile needs no answer."""
        with suppress(OSError):
            send(self.connection, message)

    def kill(self) -> None:
        """Ends it at once."""
        if not self.is_gone:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)

    def close(self) -> None:
        """Takes note of how it ended, once it has, and shows the rest of what it printed."""
        _, self.status = os.waitpid(self.pid, 0)
        os.close(self.ended)
        self.connection.close()
        for output in self.outputs:
            os.set_blocking(output.descriptor, False)
            try:
                while output.read():
                    continue
            except BlockingIOError:  # a process that it left behind holds the other end
                os.close(output.descriptor)
        self.finished += self.outputs
        self.outputs.clear()


def _line_by_line(descriptor: int) -> TextIO:
    """A standard stream of which whole lines are seen at once."""
    return open(descriptor, "w", buffering=1, errors="backslashreplace", closefd=False)


def _send_result(rank: int, work: RankWork, connection: socket.socket) -> None:
    own = os.getpid()
    try:
        done = pickle.dumps(Done(*work(rank, RemoteLink(connection))), pickle.HIGHEST_PROTOCOL)
        ignore_interrupts()
    except BaseException as error:
        ignore_interrupts()
        done = pickle.dumps(Done("failed", error=decoded(encoded_error(error))))
    if os.getpid() != own:  # what a script forked off and let run to the end
        return
    for stream in filter(None, (sys.stdout, sys.stderr)):
        with suppress(Exception):
            stream.flush()
    send(connection, (_DONE, done))
