"""Whether both sides of a comparison are the same program, in words."""

from __future__ import annotations

from dataclasses import replace

import pytest

from neusight.integrations.profiles.aliases import ProblemSize
from neusight.integrations.profiles.comparison.comparability import (
    differences,
    differences_by_class,
    notes_of,
)
from neusight.integrations.profiles.comparison.work import Work
from neusight.integrations.profiles.reading.profile import Profile, ProfileStep
from neusight.predictors.kernel import KernelClass


def work(*size: int, ns: int = 10, op: str = "mm", kind: KernelClass = KernelClass.GEMM) -> Work:
    return Work(kind, ProblemSize("", size), op, 3, ns)


SCALED = (
    "the forecast's problems are {} times as large as the measured ones, in {} of the measured "
    "kernel time: batch, sequence or width differ. Forecast the program with the settings that "
    "were measured."
)
OTHER = (
    "only 49% of the measured kernel time has a partner of its class and size in the forecast: "
    "these are two programs, or two settings of one. The errors below compare what is not alike."
)


@pytest.mark.parametrize(
    ("measured", "forecast", "all_ns", "words"),
    [
        ([work(2, 5, ns=50)], [work(4, 5)], 100, SCALED.format("2", "50%")),
        ([work(2, 5, ns=49)], [work(4, 5)], 100, OTHER),
        ([work(3, ns=9)], [work(1)], 10, SCALED.format("0.333", "90%")),
        # In order, an operator and a class each; what most of the time says.
        (
            [work(1, ns=30), work(1, ns=60), work(1, op="bmm", ns=10)],
            [work(3), work(2), work(3, op="bmm")],
            100,
            SCALED.format("2", "60%"),
        ),
        ([work(1, ns=60)], [work(2, op="mv")], 100, OTHER),
        ([work(1, ns=60)], [work(2, kind=KernelClass.SOFTMAX)], 100, OTHER),
        ([work(7, ns=60)], [work(7)], 100, OTHER),
        ([work(0, ns=60)], [work(7)], 100, OTHER),
        ([work(7, ns=60)], [work(0)], 100, OTHER),
        ([work(1, ns=60)], [], 100, OTHER),
        ([work(1, ns=0)], [work(2)], 0, OTHER),
    ],
)
def test_problems_that_are_all_larger_are_of_other_settings(
    measured: list[Work], forecast: list[Work], all_ns: int, words: str
) -> None:
    rest = work(9, ns=all_ns - sum(item.duration_ns for item in measured))

    assert differences([*measured, rest], measured, forecast, 0.49) == [words]
    assert differences([*measured, rest], measured, forecast, 0.5) == []


def test_without_shapes_the_class_decides() -> None:
    assert differences_by_class(0.5) == []
    assert differences_by_class(0.494) == [
        "only 49% of the measured kernel time has a partner of its class in the forecast, and the "
        "profile has no shapes: these are two programs. The errors below compare what is not alike."
    ]


def step(loader_us: float) -> ProfileStep:
    return ProfileStep("s", 0, 1, 1, (), round(loader_us * 1000))


THEIRS = Profile("real.json", "NVIDIA H100 80GB HBM3", False, True, (step(0.0),), (), (), ())
OURS = replace(THEIRS, device_name="H100", is_forecast=True)


def test_two_sides_of_a_kind_have_no_notes() -> None:
    assert notes_of(OURS, THEIRS, [work(1)]) == []


def test_what_both_note_and_where_they_differ_is_listed() -> None:
    ours = replace(OURS, is_forecast=False, device_name="", notes=("odd",))
    theirs = replace(
        THEIRS, is_forecast=True, notes=("old",), steps=(step(1.0), step(4.0), step(2.5))
    )
    unknown = work(1, kind=KernelClass.UNKNOWN)

    assert notes_of(ours, theirs, [work(1), unknown, unknown]) == [
        "measured: old",
        "forecast: odd",
        "the first trace is not marked as a forecast: two profiles were compared",
        "the second trace is a forecast itself, not a profile",
        "the GPUs differ: the forecast is for ?, measured was NVIDIA H100 80GB HBM3",
        "the measured program spends 2.5 µs a step in its DataLoader; the forecast knows of none",
        "6 measured kernels are of no known class",
    ]
    assert (
        notes_of(replace(OURS, steps=(step(0.1),)), replace(THEIRS, steps=(step(9.0),)), []) == []
    )
    assert notes_of(OURS, replace(THEIRS, device_name="mine"), [])[0].endswith("measured was mine")
