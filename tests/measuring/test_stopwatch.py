"""From probes to samples, with a stopwatch that knows what comes out."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from neusight.ops.launched import kernels_launched_by
from neusight.predictors.gpu import find_gpu
from neusight.predictors.kernel import Kernel
from neusight.predictors.measuring.folder import Sample
from neusight.predictors.measuring.probes import Probe, prepared, quick_sample
from neusight.predictors.measuring.stopwatch import (
    Conditions,
    CudaStopwatch,
    Profiling,
    Refusal,
    TimedLaunch,
    launches_of_trace,
    measured_probes,
    quick_of,
)
from neusight.session import forecast_on

GELU = Probe.parse("gelu dtype=fp32 numel=64")
MUL = Probe.parse("mul dtype=fp32 numel=64")
KERNEL = Kernel.elementwise("gelu", 64, dtype="float32")


@dataclass
class FakeStopwatch:
    """Runs calls on the CPU; every kernel takes 10 us, 14 where the L2 is cold, times `noise()`."""

    noise: Callable[[], float] = lambda: 1.0
    launches_per_run: Sequence[int] = (1,)
    has_profiler: bool = True
    device: str = "cpu"
    most_runs: int = 20
    done: list[str] = field(default_factory=list)
    is_cold: bool = False

    def events(self, call: Callable[[], object], *, runs: int, cold: bool) -> list[float]:
        call()
        return [(16.0 if cold else 12.0) * self.noise() for _ in range(runs)]

    @contextmanager
    def profiling(self) -> Iterator[Profiling]:
        self.done.append("profile")
        yield FakeProfiling(self)

    def cool(self) -> None:
        self.is_cold = True

    def heat(self, call: Callable[[], object], seconds: float) -> None:
        self.done.append(f"heat {seconds:g}")

    def synchronize(self) -> None:
        pass

    def conditions(self) -> Conditions:
        return Conditions(1410.0, 650.0)


class FakeProfiling:
    def __init__(self, stopwatch: FakeStopwatch) -> None:
        self.stopwatch = stopwatch
        self.found: defaultdict[str, list[list[TimedLaunch]]] = defaultdict(list)

    @contextmanager
    def mark(self, label: str) -> Iterator[None]:
        yield
        watch = self.stopwatch
        counts = watch.launches_per_run
        count = counts[len(self.found[label]) % len(counts)] if watch.has_profiler else 0
        time_us = 14.0 if watch.is_cold else 10.0
        watch.is_cold = False
        self.found[label].append(
            [TimedLaunch(f"kernel_{index}", time_us * watch.noise()) for index in range(count)]
        )

    def launches(self) -> Mapping[str, Sequence[Sequence[TimedLaunch]]]:
        return self.found


def measured(
    probes: Sequence[Probe],
    stopwatch: Any,
    kernels: tuple[Kernel, ...] = (KERNEL,),
    **options: Any,
) -> list[Sample | Refusal]:
    return list(measured_probes(probes, stopwatch, lambda call: kernels, **options))


def test_a_probe_gives_a_sample_with_the_l2_hot_and_one_with_it_cold() -> None:
    hot, cold = measured([GELU], FakeStopwatch())

    assert hot == Sample(
        op="gelu",
        probe="gelu dtype=fp32 numel=64",
        kernels=(KERNEL,),
        kernel_us=10.0,
        event_us=12.0,
        l2="hot",
        num_runs=20,
        kernel_name="kernel_0",
        clock_mhz=1410.0,
        power_w=650.0,
    )
    assert isinstance(cold, Sample)
    assert (cold.l2, cold.kernel_us, cold.event_us) == ("cold", 14.0, 16.0)


def test_one_profile_serves_all_probes() -> None:
    stopwatch = FakeStopwatch()

    found = measured([GELU, MUL], stopwatch)

    assert [sample.probe for sample in found if isinstance(sample, Sample)] == [
        GELU.text, GELU.text, MUL.text, MUL.text
    ]  # fmt: skip
    assert stopwatch.done == ["profile"]


def test_long_kernels_are_run_fewer_times() -> None:
    stopwatch = FakeStopwatch(noise=lambda: 1000.0)

    (hot, _) = measured([GELU], stopwatch)

    assert isinstance(hot, Sample)
    assert hot.num_runs == 5


def test_several_kernels_are_distinguished_where_as_many_were_described() -> None:
    other = Kernel.elementwise("mul", 64, dtype="float32")

    found = measured([GELU], FakeStopwatch(launches_per_run=(3,)), (KERNEL, other, other))

    probes = {(sample.probe, sample.l2): sample for sample in found if isinstance(sample, Sample)}
    first = probes[f"{GELU.text} part=1/2", "hot"]
    second = probes[f"{GELU.text} part=2/2", "cold"]
    assert len(probes) == 4
    assert (first.kernels, first.kernel_us, first.event_us) == ((KERNEL,), 10.0, None)
    assert (second.kernels, second.kernel_us, second.kernel_name) == ((other,), 14.0, "kernel_1")


def test_kernels_that_cannot_be_distinguished_stay_together() -> None:
    (hot, _) = measured([GELU], FakeStopwatch(launches_per_run=(2,)), (KERNEL,))

    assert isinstance(hot, Sample)
    assert (hot.kernel_us, hot.num_launches) == (20.0, 2)
    assert hot.kernel_name == "kernel_0 + kernel_1"


def test_without_a_profiler_the_times_between_events_are_all_there_is() -> None:
    (hot, _) = measured([GELU], FakeStopwatch(has_profiler=False))

    assert isinstance(hot, Sample)
    assert (hot.kernel_us, hot.event_us, hot.latency_us) == (None, 12.0, 12.0)


def test_noisy_probes_are_measured_again_with_more_runs() -> None:
    draws = random.Random(0)
    runs: list[int] = []

    def noise() -> float:
        runs.append(1)
        return draws.uniform(0.5, 2.0) if len(runs) < 90 else 1.0

    found = measured([GELU], FakeStopwatch(noise=noise))

    assert all(isinstance(sample, Sample) and sample.kernel_us in (10.0, 14.0) for sample in found)
    assert {sample.num_runs for sample in found if isinstance(sample, Sample)} == {40}


def test_what_stays_noisy_is_refused() -> None:
    draws = random.Random(0)
    stopwatch = FakeStopwatch(noise=lambda: draws.uniform(0.5, 2.0))

    found = measured([GELU], stopwatch)

    assert stopwatch.done == ["profile"] * 3
    assert [type(one) for one in found] == [Refusal, Refusal]
    assert isinstance(found[0], Refusal)
    assert found[0].subject == f"{GELU.text} l2=hot"
    assert "after 3 tries" in found[0].reason


def test_half_a_microsecond_of_a_short_kernel_is_no_noise() -> None:
    draws = random.Random(0)
    stopwatch = FakeStopwatch(noise=lambda: draws.uniform(0.05, 0.1))

    assert all(isinstance(one, Sample) for one in measured([GELU], stopwatch))


def test_a_probe_that_fails_is_refused_and_the_others_are_measured() -> None:
    impossible = Probe.parse("embedding dtype=fp32 rows=-3 width=4")

    refused, *samples = measured([impossible, GELU], FakeStopwatch())

    assert isinstance(refused, Refusal)
    assert refused.subject == impossible.text
    assert refused.reason.startswith("RuntimeError: ")
    assert [sample.probe for sample in samples if isinstance(sample, Sample)] == [GELU.text] * 2


def test_an_op_that_launches_nothing_is_refused() -> None:
    assert measured([GELU], FakeStopwatch(), ()) == [
        Refusal(GELU.text, "ValueError: it launches no kernel that neusight describes")
    ]


def test_sustained_samples_are_taken_under_load() -> None:
    stopwatch = FakeStopwatch()

    (only,) = measured([GELU], stopwatch, sustained=True)

    assert stopwatch.done == ["heat 0.5", "profile", "heat 0.5"]
    assert isinstance(only, Sample)
    assert (only.clock_regime, only.l2) == ("sustained", "hot")


def test_each_probe_is_reported_before_it_is_touched() -> None:
    begun: list[str] = []

    measured([GELU, MUL], FakeStopwatch(), begin=lambda probe: begun.append(probe.op))

    assert begun == ["gelu", "mul", "gelu", "mul"]


def test_an_all_reduce_is_described_though_no_op_calls_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.nccl.all_reduce", lambda parts: None)
    probe = Probe.parse("all_reduce dtype=fp32 gpus=2 numel=64")

    found = list(measured_probes([probe], FakeStopwatch(), lambda call: ()))

    samples = [sample for sample in found if isinstance(sample, Sample)]
    assert [sample.kernels for sample in samples] == [
        (Kernel.collective("all_reduce", 256, 2, dtype="float32"),)
    ] * 2
    assert samples[0].kernel_us == 10.0 / 2


def test_a_gpu_is_heated_by_as_many_calls_as_the_time_holds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = iter((1.0, 1.5))
    calls: list[int] = []
    monkeypatch.setattr("time.perf_counter", lambda: next(clock))
    monkeypatch.setattr(CudaStopwatch, "synchronize", lambda self: None)

    CudaStopwatch.heat(CudaStopwatch.__new__(CudaStopwatch), lambda: calls.append(1), 2.0)

    assert len(calls) == 1 + 4


# -- the real stopwatch, on a forecast --------------------------------------------------------


def test_the_stopwatch_of_a_real_gpu_reads_the_times_that_are_forecast() -> None:
    gemm = Probe.parse("mm dtype=bf16 layout=nn batch=1 m=4096 n=4096 k=4096")

    with forecast_on("H100") as forecast:
        stopwatch = CudaStopwatch(lambda: Conditions(1980.0, 700.0))
        found = list(measured_probes([gemm], stopwatch, lambda call: kernels_launched_by(call)[0]))

    hot, cold = found
    assert isinstance(hot, Sample) and isinstance(cold, Sample)
    (expected,) = {
        estimate.latency_us for kernel, estimate in forecast.kernels if kernel.name == "gemm"
    }
    assert hot.event_us == pytest.approx(expected, rel=0.02)
    assert cold.event_us == pytest.approx(expected, rel=0.02)
    assert hot.kernel_us == pytest.approx(expected, rel=0.02)
    assert (hot.clock_mhz, hot.power_w) == (1980.0, 700.0)


# -- traces -----------------------------------------------------------------------------------


def span(category: str, name: str, start: float, duration: float, **args: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": category, "name": name, "ts": start, "dur": duration, "args": args}


def test_kernels_belong_to_the_annotation_in_which_they_were_launched() -> None:
    trace = {
        "traceEvents": [
            span("user_annotation", "neusight probe 0 hot", 10, 10),
            span("user_annotation", "neusight probe 0 hot", 30, 10),
            span("user_annotation", "Optimizer.step#AdamW.step", 31, 5),
            span("cuda_runtime", "cudaLaunchKernel", 5, 1, correlation=1),
            span("cuda_runtime", "cudaLaunchKernel", 12, 1, correlation=2),
            span("cuda_runtime", "cudaMemcpyAsync", 14, 1, correlation=3),
            span("cuda_driver", "cuLaunchKernel", 32, 1, correlation=4),
            span("cuda_runtime", "cudaLaunchKernel", 50, 1, correlation=5),
            span("kernel", "flush", 100, 7.0, correlation=1),
            span("gpu_memcpy", "copy", 130, 2.0, correlation=3),
            span("kernel", "gemm", 110, 3.5, correlation=2),
            span("kernel", "gelu", 140, 4.0, correlation=4),
            span("kernel", "later", 150, 4.0, correlation=5),
            span("kernel", "unlaunched", 160, 4.0, correlation=99),
            {"ph": "M", "name": "process_name", "args": {}},
        ]
    }

    assert launches_of_trace(trace) == {
        "neusight probe 0 hot": [
            [TimedLaunch("gemm", 3.5), TimedLaunch("copy", 2.0)],
            [TimedLaunch("gelu", 4.0)],
        ]
    }


# -- constants --------------------------------------------------------------------------------


def quick_samples(gemm: float, stream: float, floor_us: float) -> list[Sample]:
    """Samples of an H100 that reaches these shares."""
    h100 = find_gpu("H100")
    samples = []
    with forecast_on(h100, predictor="roofline"):
        for kind, probe in quick_sample():
            with prepared(probe) as call:
                ((kernel,), _) = kernels_launched_by(call)
            peak = h100.peak_flops(kernel.compute, matrix=True) if kind == "gemm" else 1.0
            time_us = {
                "gemm": kernel.flops / (peak * gemm) * 1e6,
                "stream": kernel.num_bytes / (h100.bandwidth_gbps * 1e3 * stream),
                "floor": floor_us,
            }[kind]
            samples.append(Sample(probe.op, probe.text, (kernel,), time_us, None))
    return samples


def test_the_constants_that_made_the_samples_are_found_again() -> None:
    kinds = {probe.text: kind for kind, probe in quick_sample()}
    samples = quick_samples(0.8, 0.9, 1.5)

    quick = quick_of(kinds, samples, find_gpu("H100"))

    assert quick.constants["gemm_utilization"] == {
        "bf16": 0.8, "fp16": 0.8, "tf32": 0.8, "fp32": 0.8, "fp8": 0.8
    }  # fmt: skip
    assert quick.constants["bandwidth_utilization"] == 0.9
    assert quick.constants["floor_us"] == 1.5
    assert quick.constants["link_floor_us"] is None
    assert len(quick.samples) == len(kinds)


def test_of_a_gpu_without_a_datasheet_only_times_are_known() -> None:
    sample = Sample("add", "add dtype=fp32 numel=1", (KERNEL,), 2.0, None)

    quick = quick_of({sample.probe: "floor"}, [sample], None)

    assert quick.constants["floor_us"] == 2.0
    assert quick.constants["bandwidth_utilization"] is None
    assert quick.constants["gemm_utilization"] == {}


@pytest.mark.parametrize("name", [None, "P100"])
def test_a_product_without_a_stated_peak_has_no_utilization(name: str | None) -> None:
    sample = Sample("mm", "mm m=1", (Kernel.gemm(64, 64, 64, dtype="float8_e4m3fn"),), 2.0, None)

    quick = quick_of({"mm m=1": "gemm"}, [sample], find_gpu(name) if name else None)

    assert quick.constants["gemm_utilization"] == {}
    assert quick.samples == (("gemm", sample),)
