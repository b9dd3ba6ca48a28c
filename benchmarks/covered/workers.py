"""Processes that run cases: one at a time each, ended when a case takes too long."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import tempfile
import time
import warnings
from collections.abc import Iterator
from dataclasses import asdict
from typing import IO

from covered.cases import Case, Outcome, outcome_of, plain

#: What a process may take to import what its cases need, seconds.
START_LIMIT_S = 180.0

#: Cases after which a process that runs many is started again: what earlier cases left in torch
#: (caches, registered ops) and memory stay bounded.
CASES_A_PROCESS = 150


class Worker:
    """One process that runs cases by name: `command` starts what calls `serve`."""

    def __init__(self, command: list[str]) -> None:
        self._command = command
        self._process: subprocess.Popen[bytes] | None = None
        self._words: IO[bytes] | None = None
        self._num_run = 0

    def run(self, case: Case) -> Outcome:
        """The outcome of a case; a process that dies or takes too long is a failed case."""
        try:
            if self._process is None or case.is_alone or self._num_run >= CASES_A_PROCESS:
                self.end()
                self._start()
            self._num_run += 1
            answer = self._ask(case.name, case.limit_s)
            if case.is_alone:
                self.end()
            return Outcome(**json.loads(answer))
        except _LostError as lost:
            self.end()
            return Outcome("failed", plain(str(lost)))

    def end(self) -> None:
        """Ends the process and what it started."""
        if self._process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._words):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):
                    stream.close()
        self._process = None

    def _start(self) -> None:
        self._num_run = 0
        self._words = tempfile.TemporaryFile()  # noqa: SIM115
        self._process = subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._words,
            start_new_session=True,
        )
        self._answer(START_LIMIT_S)

    def _ask(self, name: str, limit_s: float) -> bytes:
        assert self._process is not None and self._process.stdin is not None
        try:
            self._process.stdin.write(name.encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError as error:
            raise _LostError(self._last_output()) from error
        return self._answer(limit_s)

    def _answer(self, limit_s: float) -> bytes:
        """The process's next line."""
        assert self._process is not None and self._process.stdout is not None
        descriptor = self._process.stdout.fileno()
        found = b""
        end_s = time.monotonic() + limit_s
        while not found.endswith(b"\n"):
            left_s = max(0.0, end_s - time.monotonic())
            if not select.select([descriptor], [], [], left_s)[0]:
                raise _LostError(f"takes longer than {limit_s:.0f} s")
            part = os.read(descriptor, 1 << 16)
            if not part:
                raise _LostError(self._last_output())
            found += part
        return found

    def _last_output(self) -> str:
        """How the process ended, and what it said last."""
        assert self._process is not None and self._words is not None
        code = self._process.wait()
        self._words.seek(0)
        last = self._words.read().decode(errors="replace").strip().splitlines()[-1:]
        ended = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        return ": ".join([f"its process ended ({ended})", *last])


class _LostError(Exception):
    """The process ended, or was silent for too long."""


def serve(cases: Iterator[Case]) -> None:
    """Runs the cases whose names come in, a line each, and answers each with its outcome."""
    answers = os.fdopen(os.dup(1), "wb")
    requests = os.fdopen(os.dup(0), "r")
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.dup2(2, 1)  # what cases print is no answer
    warnings.simplefilter("ignore")
    known = {case.name: case for case in cases}
    answers.write(b"ready\n")
    answers.flush()
    for line in requests:
        try:
            outcome = known[line.strip()].run()
        except (Exception, SystemExit) as error:
            outcome = outcome_of(error)
        answers.write(json.dumps(asdict(outcome)).encode() + b"\n")
        answers.flush()
