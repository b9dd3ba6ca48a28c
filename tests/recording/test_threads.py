"""Threads of a program have numbers."""

from __future__ import annotations

import threading
from collections.abc import Callable

from neusight.recording.recording import EventRecord, MathMode, OpCall, OpSignature
from neusight.recording.threads import ProgramThreads, is_elsewhere

SIGNATURE = OpSignature("aten::mm", "default", (), ())


def in_thread(work: Callable[[], object]) -> None:
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


def test_threads_that_run_at_once_have_numbers_of_their_own_and_later_ones_those_again() -> None:
    threads = ProgramThreads()
    numbers = [threads.number()]

    def outer() -> None:
        numbers.append(threads.number())
        in_thread(lambda: numbers.append(threads.number()))
        numbers.append(threads.number())

    in_thread(outer)
    in_thread(outer)

    assert numbers == [0, 1, 2, 1, 1, 2, 1]


def test_the_thread_that_counts_may_be_any() -> None:
    numbers: list[int] = []

    def work() -> None:
        threads = ProgramThreads()
        numbers.append(threads.number())
        in_thread(lambda: numbers.append(threads.number()))

    in_thread(work)

    assert numbers == [0, 1]


def test_backward_is_of_no_thread_of_the_program() -> None:
    calls = [OpCall(SIGNATURE, MathMode(), phase="backward", thread=1), EventRecord(1, 0, thread=1),
             OpCall(SIGNATURE, MathMode(), thread=1), OpCall(SIGNATURE, MathMode())]  # fmt: skip

    assert [is_elsewhere(call) for call in calls] == [False, True, True, False]
