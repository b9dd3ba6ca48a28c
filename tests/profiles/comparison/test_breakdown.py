"""What steps and operators take on both sides, beside each other."""

from __future__ import annotations

from neusight.integrations.profiles.comparison.breakdown import (
    OperatorRow,
    StepRow,
    operator_rows,
    step_rows,
)
from neusight.integrations.profiles.reading.profile import (
    DeviceEvent,
    HostOp,
    Profile,
    ProfileStep,
)

STEP = ProfileStep("s", 1000, 100_000, 100_000, ())


def profile(*ops: HostOp, steps: tuple[ProfileStep, ...] = ()) -> Profile:
    return Profile("a.json", "H100", False, True, steps, ops, (), ())


def op(name: str, start_us: float, duration_us: float, thread: str = "1/1") -> HostOp:
    return HostOp(name, round(start_us * 1000), round(duration_us * 1000), thread)


def test_operators_that_differ_most_come_first_and_one_within_its_like_counts_once() -> None:
    measured = profile(
        op("before", 0.5, 9), op("mm", 1, 5), op("mm", 2, 1), op("relu", 3, 1), op("mm", 6, 4),
        op("add", 2, 10, "1/2"), op("after", 101, 9),
    )  # fmt: skip
    forecast = profile(op("add", 1, 13), op("mm", 20, 1), op("sum", 30, 2))

    assert operator_rows(measured, STEP, forecast, STEP) == (
        OperatorRow("mm", 3, 1, 9.0, 1.0, round(1 / 9 - 1, 6)),
        OperatorRow("add", 1, 1, 10.0, 13.0, 0.3),
        OperatorRow("sum", 0, 1, 0.0, 2.0, None),
        OperatorRow("relu", 1, 0, 1.0, 0.0, -1.0),
    )


def test_steps_stand_beside_each_other_as_long_as_there_are_any() -> None:
    kernel = DeviceEvent("kernel", "gemm", 0, 2500, 0, 7)
    one = ProfileStep("one", 0, 1, 5000, (kernel, kernel))
    two = ProfileStep("two", 0, 1, 6000, (kernel,))
    empty = ProfileStep("empty", 0, 1, 7000, ())

    found = step_rows(profile(steps=(empty, one, two)), profile(steps=(two, empty)))

    assert found == (
        StepRow("one", "two", 5.0, 6.0, 5.0, 2.5, 2, 1),
        StepRow("two", "", 6.0, None, 2.5, None, 1, None),
    )
