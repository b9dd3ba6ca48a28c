"""Forecast time while the program runs."""

from __future__ import annotations

import threading
import time
import timeit
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from torch.utils.benchmark import Timer

import neusight
from neusight.fake_cuda.session import fake_cuda
from neusight.fake_cuda.torch_api.clock import SimulatedClock
from neusight.predictors.gpu import find_gpu
from neusight.predictors.registry import find_predictor
from neusight.recording.recorder import Recorder
from neusight.recording.recording import HostWork
from neusight.timeline.host import PLAIN
from neusight.timeline.pricing import Pricer


@contextmanager
def virtual_time() -> Iterator[Recorder]:
    target = find_gpu("H100")
    recorder = Recorder()
    with fake_cuda(
        recorder,
        target,
        price=Pricer(target, find_predictor("roofline")),
        host=PLAIN,
        on_query=lambda *device_query: None,
        virtual_time=True,
    ):
        yield recorder


#: Longer than any test, however loaded the machine.
A_DAY_S = 86_400.0


def matrix() -> torch.Tensor:
    return torch.empty(8192, 8192, device="cuda", dtype=torch.bfloat16)


def test_the_clock_advances_with_the_gpu_where_the_program_waits_for_it() -> None:
    with virtual_time():
        big = matrix()
        start = time.perf_counter()
        big @ big
        launched = time.perf_counter()
        torch.cuda.synchronize()
        done = time.perf_counter()

    assert 0 < launched - start < 1e-4  # a launch
    assert 1e-3 < done - start < 5e-3  # 1.1e12 FLOPs on a GPU of 9.9e14 FLOP/s


def test_what_measures_by_timeit_measures_the_forecast_and_is_itself_again_afterwards() -> None:
    before = timeit.default_timer, timeit.Timer.__init__.__defaults__
    with virtual_time():
        big = matrix()
        names = {"big": big, "wait": torch.cuda.synchronize}
        through_torch = Timer("big @ big", globals={"big": big}).timeit(5).median
        alone_s = timeit.timeit("big @ big; wait()", number=5, globals=names) / 5

    assert 1e-3 < through_torch < 5e-3
    assert 1e-3 < alone_s < 5e-3
    assert (timeit.default_timer, timeit.Timer.__init__.__defaults__) == before


def test_all_clocks_of_the_standard_library_agree() -> None:
    with virtual_time():
        before = (time.time(), time.perf_counter(), time.monotonic())
        before_ns = (time.time_ns(), time.perf_counter_ns(), time.monotonic_ns())
        big = matrix()
        big @ big
        torch.cuda.synchronize()
        after = (time.time(), time.perf_counter(), time.monotonic())
        after_ns = (time.time_ns(), time.perf_counter_ns(), time.monotonic_ns())

    seconds = [b - a for a, b in zip(before, after, strict=True)]
    nanoseconds = [(b - a) / 1e9 for a, b in zip(before_ns, after_ns, strict=True)]
    assert seconds == pytest.approx([seconds[1]] * 3, rel=1e-3)
    assert nanoseconds == pytest.approx([seconds[1]] * 3, rel=1e-3)


def test_sleeping_takes_forecast_time_only() -> None:
    real = time.perf_counter()
    with virtual_time() as recorder:
        start = time.time()
        time.sleep(A_DAY_S)
        slept = time.time() - start
        time.sleep(0.0123456789)
        recorded = [e for e in recorder.tape.entries if isinstance(e, HostWork)]

    assert slept == pytest.approx(A_DAY_S, rel=1e-3)
    assert recorded == [
        HostWork("time.sleep", A_DAY_S * 1e6), HostWork("time.sleep", 12_345.679)
    ]  # fmt: skip
    assert time.perf_counter() - real < A_DAY_S / 2


def test_the_standard_library_and_other_threads_keep_real_time() -> None:
    found: list[float] = []

    with virtual_time():
        time.sleep(A_DAY_S)
        condition = threading.Condition()
        with condition:
            waited = condition.wait(timeout=0.01)
        thread = threading.Thread(target=lambda: found.append(time.perf_counter()))
        before = time.perf_counter()
        thread.start()
        thread.join()

    assert not waited
    assert found[0] < before - A_DAY_S / 2  # the program's own clock is ahead


def test_real_time_is_back_afterwards() -> None:
    names = ("time", "perf_counter", "monotonic", "time_ns", "perf_counter_ns", "sleep")
    before = [getattr(time, name) for name in names]

    with virtual_time():
        assert [getattr(time, name) for name in names] != before

    assert [getattr(time, name) for name in names] == before


def test_without_virtual_time_the_clock_is_real() -> None:
    with neusight.forecast_on("H100") as forecast:
        big = torch.empty(32768, 32768, device="cuda", dtype=torch.bfloat16)
        start = time.perf_counter()
        for _ in range(1000):
            big @ big
        torch.cuda.synchronize()
        elapsed = time.perf_counter() - start

    assert forecast.latency_us / 1e6 > 60
    assert elapsed < forecast.latency_us / 1e6 / 2


def test_events_of_earlier_steps_keep_their_times() -> None:
    with neusight.forecast_on("H100"):
        model = torch.nn.Linear(8, 8).cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        events = []
        for _ in range(5):
            model(torch.ones(2, 8, device="cuda")).sum().backward()
            optimizer.step()
            event = torch.cuda.Event(enable_timing=True)
            event.record()
            events.append(event)
        torch.cuda.synchronize()
        times = [events[0].elapsed_time(event) for event in events]

    assert times == sorted(times)
    assert times[0] == 0.0
    assert times[-1] > 0.0


def test_an_event_that_was_not_recorded_has_no_time() -> None:
    with neusight.forecast_on("H100"):
        torch.ones(1, device="cuda")
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        with pytest.raises(RuntimeError, match="must be recorded before"):
            start.elapsed_time(end)
        untimed = torch.cuda.Event()
        untimed.record()
        start.record()
        with pytest.raises(RuntimeError, match="enable_timing=True"):
            start.elapsed_time(untimed)


def test_a_clock_that_nobody_reads_does_no_work() -> None:
    recorder = Recorder()
    target = find_gpu("H100")
    priced = []

    def price(call: object) -> tuple[()]:
        priced.append(call)
        return ()

    with fake_cuda(recorder, target, price=price, host=PLAIN, on_query=lambda *device_query: None):
        torch.ones(4, device="cuda").sin()
    assert priced == []

    clock = SimulatedClock(recorder, price, PLAIN)
    assert clock.host_ns > 0
    assert len(priced) == 2
