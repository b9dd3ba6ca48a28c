"""What is worse than a baseline: of another batch what a sample costs, not what a step does."""

from __future__ import annotations

import pytest

from neusight.integrations.check.figures.batch_change import batch_change_of, intake_figures
from neusight.integrations.check.figures.change import MetricChange, metric_changes
from neusight.integrations.check.figures.metrics import METRICS
from neusight.integrations.check.figures.tolerance import parse_tolerances
from neusight.recording.recording import Batch


def figures(samples: int | None, latency_us: float, **others: float) -> dict[str, float]:
    found = dict.fromkeys((metric.name for metric in METRICS), 100.0)
    found |= {"step_latency_us": latency_us, "gpu_busy_us": latency_us, "flops": latency_us}
    return found | others | intake_figures(Batch(samples=samples), latency_us)


def changes(
    before: dict[str, float], now: dict[str, float], tool_us: float = 0.0, **tolerance: str
) -> dict[str, MetricChange]:
    found = metric_changes(
        before,
        now,
        {"step_latency_us": tool_us},
        parse_tolerances(tolerance),
        batch_change_of(before, now),
    )
    return {change.name: change for change in found}


def test_twice_the_batch_in_less_than_twice_the_time_is_better() -> None:
    found = changes(figures(8, 1000.0), figures(16, 1600.0))

    latency, rate = found["step_latency_us"], found["samples_per_second"]
    assert (latency.title, latency.status) == ("latency a sample", "better")
    assert (latency.one_before, latency.one_after) == (125.0, 100.0)
    assert (rate.before, rate.after, rate.status) == (8000.0, 10000.0, "better")


def test_the_programs_part_of_a_change_is_rounded_to_a_picosecond() -> None:
    found = changes(figures(8, 1000.0), figures(8, 1000.0 + 4 / 3), tool_us=1.0)

    assert found["step_latency_us"].by_program == 0.333333


@pytest.mark.parametrize(("latency_us", "status"), [(2011.0, "worse"), (2009.0, "within")])
def test_a_sample_is_judged_within_the_latency_s_tolerance(latency_us: float, status: str) -> None:
    found = changes(figures(8, 1000.0), figures(16, latency_us))

    assert found["step_latency_us"].status == found["samples_per_second"].status == status


def test_memory_and_kernels_may_grow_with_the_batch_and_need_not_shrink() -> None:
    grown = changes(figures(8, 1.0), figures(16, 2.0, num_kernels=200, peak_memory_bytes=2**30))
    shrunk = changes(figures(16, 2.0), figures(8, 1.0))

    assert grown["num_kernels"].status == "within"
    assert grown["peak_memory_bytes"].status == "worse"
    assert "x 2 by the batch" in grown["num_kernels"].tolerance
    assert shrunk["num_kernels"].status == shrunk["peak_memory_bytes"].status == "same"


def test_without_samples_a_step_is_judged_and_there_is_no_throughput() -> None:
    found = changes(figures(None, 1000.0), figures(None, 1600.0))

    assert found["step_latency_us"].status == "worse"
    assert "samples_per_second" not in found


def test_throughput_may_have_a_tolerance_of_its_own() -> None:
    before, now = figures(8, 1000.0), figures(8, 1010.0)

    loose = changes(before, now, throughput="2 %", step_latency="2 %")
    tight = changes(before, now, throughput="10 samples/s", step_latency="2 %")

    assert loose["samples_per_second"].status == "within"
    assert tight["samples_per_second"].status == "worse"
    assert tight["samples_per_second"].tolerance == "10 samples/s"


def test_what_the_tool_moved_is_no_fault_of_the_program_in_either_form() -> None:
    found = changes(figures(8, 1000.0), figures(16, 2200.0), tool_us=100.0)

    latency, rate = found["step_latency_us"], found["samples_per_second"]
    assert (latency.status, rate.status) == ("tool", "tool")
    assert (latency.by_tool, latency.by_program) == (200.0, 0.0)
    assert rate.by_tool == pytest.approx(rate.after - rate.before)
    assert rate.allowed == pytest.approx(8000 * 10 / 2010)


def test_the_programs_part_of_a_rate_is_rounded_to_a_tenth() -> None:
    found = changes(figures(8, 1000.0), figures(8, 1000.0 + 4 / 3), tool_us=1.0)

    assert found["samples_per_second"].by_program == pytest.approx(-2.7, abs=1e-9)


@pytest.mark.parametrize(
    ("after", "tool", "status"),
    [
        (1005.0, 0.0, "within"), (1005.01, 0.0, "worse"), (1000.0, 0.0, "same"),
        (995.0, 0.0, "within"), (994.99, 0.0, "better"),
        (1005.0, 5.0, "within"), (1005.01, 5.01, "tool"), (1010.02, 5.01, "worse"),
        (1000.0, 5.0, "same"), (1000.0, 5.01, "tool"), (0.0, 0.0, "better"),
    ],
)  # fmt: skip
def test_half_a_percent_of_the_latency_is_tolerated_either_way(
    after: float, tool: float, status: str
) -> None:
    found = changes(figures(None, 1000.0), figures(None, after), tool_us=tool)

    assert found["step_latency_us"].status == status


def test_figures_that_are_nothing_stay_the_same() -> None:
    nothing = dict.fromkeys((metric.name for metric in METRICS), 0.0)

    assert {change.status for change in changes(nothing, nothing).values()} == {"same"}
