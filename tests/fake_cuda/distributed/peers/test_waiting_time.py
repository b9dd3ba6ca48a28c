"""A program that waits for another process by asking again and again."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
import torch
import torch.distributed as dist
from ranks import join

from neusight.fake_cuda.distributed.peers.waiting_time import WaitingTime
from neusight.fake_cuda.distributed.rank import Rank
from neusight.forecast import forecast_options
from neusight.predictors.errors import UnansweredRankError
from neusight.session import Session, SessionOptions


def waiting(program: Any, *, wait_s: float = 60.0, virtual_time: bool = True) -> None:
    """Runs it as one of two ranks."""
    options = SessionOptions(
        forecast_options("H100"), virtual_time=virtual_time, rank=Rank(0, 2), wait_s=wait_s
    )
    with Session(options):
        join()
        torch.ones(8, device="cuda")
        program()


def test_a_loop_that_sleeps_until_a_key_is_there_ends_with_the_key() -> None:
    def program() -> None:
        store: Any = vars(dist)["TCPStore"]("localhost", 29501, 2, False)
        while not store.check(["ready"]):
            time.sleep(10)

    with pytest.raises(
        UnansweredRankError,
        match=r"rank 0 at test_waiting_time.py:\d+ has waited 60 s for the key",
    ):
        waiting(program)


def test_a_loop_that_does_not_sleep_ends_too() -> None:
    def program() -> None:
        store: Any = vars(dist)["TCPStore"]("localhost", 29501, 2, False)
        while not store.check(["ready"]):
            pass

    with pytest.raises(UnansweredRankError, match='the key "ready"'):
        waiting(program, wait_s=0.01)


def test_a_loop_that_waits_for_a_file_ends_with_its_line() -> None:
    def program() -> None:
        while True:
            time.sleep(5)

    with pytest.raises(UnansweredRankError, match=r"test_waiting_time.py:\d+ has waited 60 s"):
        waiting(program)


def test_a_loop_of_real_sleeps_ends_too() -> None:
    def program() -> None:
        def sleep() -> None:
            for _ in range(50):
                time.sleep(0.001)

        other = threading.Thread(target=sleep)
        other.start()
        other.join()  # who sleeps in a thread of its own waits for nobody
        while True:
            time.sleep(0.01)

    with pytest.raises(UnansweredRankError, match=r"has waited 0\.03 s for something"):
        waiting(program, wait_s=0.03, virtual_time=False)


def test_who_works_or_sleeps_once_waits_for_nobody() -> None:
    def program() -> None:
        time.sleep(1000)
        for _ in range(20):
            torch.ones(8, device="cuda")
            time.sleep(10)

    waiting(program)


def test_waiting_time_starts_again_with_work() -> None:
    class CountedTape:
        gpu_ops = 0

    tape: Any = CountedTape()
    waiting_limit = WaitingTime(tape, 3, 10.0)
    for _ in range(5):
        waiting_limit.slept(5.0)
        waiting_limit.slept(5.0)
        tape.gpu_ops += 1
    waiting_limit.slept(6.0)
    with pytest.raises(UnansweredRankError, match="rank 3"):
        waiting_limit.slept(6.0)
