"""The figures that people read, each worked by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from small_programs import PROGRAMS, recorded

import neusight
from neusight.output.figures import (
    Row,
    StepLatency,
    Verdict,
    coverage_of,
    mfu_of,
    operator_rows,
    step_latency_of,
    verdict_of,
)
from neusight.predictors.kernel import Kernel
from neusight.recording.recording import Step, Synchronize
from neusight.timeline.host import PLAIN
from places import require_golden
from timelines import ROUND_GPU, kernel_span, op, recording_of, step_span, timeline

#: A host that may be half or twice as fast.
HOST = replace(PLAIN, fastest=0.5, slowest=2.0)

#: 2 GFLOP.
GEMM = Kernel.gemm(1000, 1000, 1000, dtype="bfloat16")


def test_nothing_takes_no_time() -> None:
    nothing = Verdict()

    assert nothing.step_latency == (0.0, 0.0, 0.0)
    figures = {name: value for name, value in vars(nothing).items() if type(value) in (int, float)}
    assert {"latency_us", "mfu", "num_ops"} <= set(figures)
    assert set(figures.values()) == {0}
    assert nothing.coverage == {"trained": 0.0, "physics": 0.0, "fallback": 0.0}


def test_the_interval_of_a_busy_gpu_is_that_of_its_kernels_added_up() -> None:
    kernels = [
        kernel_span(microseconds=60.0, low=50.0, high=80.0),
        kernel_span(microseconds=40.0, low=38.0, high=44.0),
    ]

    found = step_latency_of(step_span(microseconds=100.0, busy=100.0), kernels, HOST)

    assert found == StepLatency(median=100.0, low=88.0, high=124.0)


def test_what_collectives_made_longer_may_be_nothing_or_twice_as_much() -> None:
    kernel = kernel_span(microseconds=60.0, low=50.0, high=80.0)._replace(duration_ns=70_000)

    found = step_latency_of(step_span(microseconds=70.0, busy=70.0), [kernel], HOST)

    assert found == StepLatency(median=70.0, low=50.0, high=100.0)


def test_what_a_kernel_waits_for_other_ranks_is_not_its_time() -> None:
    """Of 100 us it waited 40, and then all 100: its interval is that of the rest, or of nothing."""
    kernel = kernel_span(microseconds=60.0, low=50.0, high=80.0)
    waited = kernel._replace(duration_ns=100_000, waited_ns=40_000)
    step = step_span(microseconds=100.0, busy=60.0)

    assert step_latency_of(step, [waited], HOST) == StepLatency(100.0, 90.0, 120.0)
    waited = waited._replace(waited_ns=100_000)
    assert step_latency_of(step, [waited], HOST) == StepLatency(100.0, 100.0, 100.0)


def test_a_step_that_the_host_sets_is_as_unsure_as_the_hosts_it_may_run_on() -> None:
    """Kernels that are certain: what is unsure is the host's alone, and what is neither's stays."""
    step = step_span(microseconds=300.0, busy=100.0, host=250.0)

    found = step_latency_of(step, [kernel_span(microseconds=100.0)], HOST)

    assert found == StepLatency(300.0, 50.0 + 0.5 * 250.0, 50.0 + 2.0 * 250.0)


def test_a_slow_host_does_not_slow_a_step_that_the_gpu_sets_by_far() -> None:
    step = step_span(microseconds=300.0, busy=300.0, host=100.0)

    found = step_latency_of(step, [kernel_span(microseconds=300.0)], HOST)

    assert found == StepLatency(300.0, 300.0, 300.0)


def test_of_kernels_and_host_the_longer_sets_each_end() -> None:
    step = step_span(microseconds=300.0, busy=300.0, host=200.0)
    kernels = [kernel_span(microseconds=300.0, low=270.0, high=330.0)]

    assert step_latency_of(step, kernels, HOST) == StepLatency(300.0, 270.0, 400.0)


def test_kernels_that_overlap_count_once() -> None:
    """Two kernels of 100 us at the same time: half of their errors is the step's."""
    both = [kernel_span(microseconds=100.0, low=80.0, high=140.0)] * 2

    found = step_latency_of(step_span(microseconds=100.0, busy=100.0), both, HOST)

    assert found == StepLatency(100.0, 80.0, 140.0)


def test_kernels_that_run_on_past_their_step_leave_the_host_no_share() -> None:
    found = step_latency_of(
        step_span(microseconds=50.0, busy=80.0), [kernel_span(microseconds=80.0)], HOST
    )

    assert found == StepLatency(50.0, 50.0, 50.0)


def test_no_step_takes_less_than_nothing() -> None:
    found = step_latency_of(
        step_span(microseconds=10.0, busy=4.0), [kernel_span(microseconds=1.0, low=-99.0)], HOST
    )

    assert found.low == 6.0  # what is neither the kernels' nor the host's


def test_mfu_is_over_the_peak_of_the_matrix_units() -> None:
    """2 GFLOP at 1000 TFLOP/s take 2 us, in FP32 at 100 TFLOP/s 20 us: of 40 us 5 % and 50 %."""
    halves, singles = GEMM, Kernel.gemm(1000, 1000, 1000, dtype="float32")

    assert mfu_of([kernel_span(halves)], ROUND_GPU, latency_us=40.0) == pytest.approx(0.05)
    assert mfu_of([kernel_span(singles)], ROUND_GPU, latency_us=40.0) == pytest.approx(0.5)


def test_mfu_counts_products_alone() -> None:
    kernels = [kernel_span(GEMM), kernel_span(Kernel.elementwise("relu", 10**9, dtype="float32"))]

    assert mfu_of(kernels, ROUND_GPU, latency_us=40.0) == pytest.approx(0.05)
    assert mfu_of(kernels, ROUND_GPU, latency_us=0.0) == 0.0


def test_coverage_is_by_time_not_by_number() -> None:
    kernels = [
        kernel_span(microseconds=70.0, origin="trained"),
        kernel_span(microseconds=20.0, origin="physics"),
        kernel_span(microseconds=5.0, origin="fallback"),
        kernel_span(microseconds=5.0, origin="fallback"),
    ]

    assert coverage_of(kernels) == {"trained": 0.7, "physics": 0.2, "fallback": 0.1}
    assert coverage_of([]) == {"trained": 0.0, "physics": 0.0, "fallback": 0.0}


def test_kernels_of_the_program_have_a_share_of_their_own() -> None:
    kernels = [
        kernel_span(microseconds=0.001, origin="physics"),
        kernel_span(microseconds=0.003, origin="custom"),
    ]

    shares = {"trained": 0.0, "physics": 0.25, "fallback": 0.0, "custom": 0.75}
    assert coverage_of(kernels) == shares


def test_kernels_that_take_no_time_have_no_share_of_it() -> None:
    step = step_span("train", 100.0, kernels=(0, 1))

    found = verdict_of(
        recording_of(), timeline([step], [kernel_span(microseconds=0.0)]), ROUND_GPU, HOST
    )

    assert found.by_op == [Row("aten::relu", 1, 0.0, 0.0)]
    assert set(found.coverage.values()) == {0.0}


def test_a_verdict_of_nothing_is_zero() -> None:
    verdict = verdict_of(recording_of(), timeline([]), ROUND_GPU, HOST)

    assert verdict == Verdict()
    assert not any(value for value in vars(verdict).values() if isinstance(value, int | float))
    assert verdict.step_latency == (0.0, 0.0, 0.0)
    assert verdict.coverage == {"trained": 0.0, "physics": 0.0, "fallback": 0.0}


def test_a_verdict_speaks_of_the_steady_step_and_counts_the_whole_block() -> None:
    product, relu = op("mm", module="net.up"), op("relu", module="net.act")
    entries = (product, relu, Synchronize("item"), replace(relu, module=""))
    kernels = [
        kernel_span(microseconds=999.0),
        kernel_span(GEMM, 40.0, call=product),
        kernel_span(microseconds=20.0, call=relu),
        kernel_span(microseconds=20.0, call=entries[3]),
    ]
    first = step_span("train", 1000.0, kernels=(0, 1))
    steady = step_span(
        "train", 100.0, busy=80.0, host=60.0, represents=9, entries=entries, kernels=(1, 4)
    )
    steady = replace(steady, communication_ns=5_000)

    found = verdict_of(
        recording_of(Step("train", entries, 10), options={"tokens_per_step": "4096"}),
        timeline([first, steady], kernels),
        ROUND_GPU,
        HOST,
    )

    assert found.kind == "train"
    assert found.step_latency.median == 100.0
    assert found.latency_us == 1900.0
    assert (found.gpu_busy_us, found.host_us, found.bound) == (80.0, 60.0, "memory")
    assert (found.flops, found.mfu) == (2 * 10**9, 0.02)
    assert (found.num_ops, found.num_kernels, found.num_synchronizations) == (3, 3, 1)
    assert found.num_steps == 9
    assert found.batch.tokens == 4096
    assert found.by_kernel_class == [
        Row("elementwise", 2, 40.0, 0.5),
        Row("gemm", 1, 40.0, 0.5),
    ]
    assert found.by_module == [
        Row("net.up", 1, 40.0, 0.5),
        Row("(forward)", 1, 20.0, 0.25),
        Row("net.act", 1, 20.0, 0.25),
    ]
    assert found.by_op == [Row("aten::mm", 1, 40.0, 0.5), Row("aten::relu", 2, 40.0, 0.5)]
    assert found.steps[1] == {
        "kind": "train",
        "count": 9,
        "latency_us": 100.0,
        "gpu_busy_us": 80.0,
        "host_us": 60.0,
        "communication_us": 5.0,
    }


def test_kernels_are_in_the_rows_of_all_operators_around_them() -> None:
    with neusight.forecast_on("H100") as forecast:
        layer = torch.nn.Linear(64, 64).cuda()
        for _ in range(3):
            layer(torch.ones(8, 64).cuda())
            forecast.step()

    rows = {row.name: row for row in forecast.by_operator}

    assert rows["aten::linear"] == replace(rows["aten::addmm"], name="aten::linear")
    assert [rows[name].count for name in ("aten::to", "aten::_to_copy", "aten::copy_")] == [1, 1, 1]
    assert rows["aten::linear"].share + rows["aten::to"].share == pytest.approx(1.0, abs=1e-5)
    assert forecast.to_json()["by_operator"][0]["name"] == forecast.by_operator[0].name


def test_programs_have_the_figures_of_the_golden_table() -> None:
    """NEUSIGHT_UPDATE_GOLDEN=1 rewrites it."""
    lines = []
    for name in PROGRAMS:
        forecast = recorded(name)
        lines.append(name)
        for field, value in vars(forecast.verdict).items():
            rows = value if isinstance(value, list) else [value]
            lines += [f"  {field} {row}" for row in rows]
        lines += [f"  operator {row}" for row in operator_rows(forecast.timeline)]

    require_golden("figures.txt", lines)
