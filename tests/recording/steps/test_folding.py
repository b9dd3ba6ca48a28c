"""Equal steps in a row are one, with a count."""

from __future__ import annotations

import pytest

from neusight.recording.recording import Alloc, Entry, HostWork, Mark, Step, StepKind
from neusight.recording.steps.folding import FoldedSteps

MARK = Mark("module_begin", "Net")


def step(*entries: Entry, kind: StepKind = "train") -> Step:
    return Step(kind, entries)


def folded(*steps: Step) -> FoldedSteps:
    found = FoldedSteps()
    for each in steps:
        found.add(each)
    return found


def test_equal_steps_in_a_row_are_one() -> None:
    found = folded(step(MARK), step(MARK), step(), step(MARK))

    assert found.steps == [Step("train", (MARK,), 2), Step("train", ()), Step("train", (MARK,))]
    assert (found.num_train, found.num_eval) == (4, 0)


def test_steps_of_another_kind_are_others() -> None:
    found = folded(step(MARK), step(MARK, kind="eval"))

    assert [each.count for each in found.steps] == [1, 1]
    assert (found.num_train, found.num_eval) == (1, 1)


@pytest.mark.parametrize(
    ("name", "duration_us", "is_same"),
    [("cpu ops", 150.0, True), ("cpu ops", 151.0, False), ("time.sleep", 101.0, False)],
)
def test_estimated_work_of_the_cpu_may_differ_by_half(
    name: str, duration_us: float, is_same: bool
) -> None:
    found = folded(step(MARK, HostWork(name, 100.0)), step(MARK, HostWork(name, duration_us)))

    assert (len(found.steps) == 1) is is_same


def test_the_last_step_can_be_taken_back_out_of_equal_ones() -> None:
    found = folded(step(MARK), step(MARK), step(kind="eval"))

    found.take_back()
    assert (found.steps, found.num_eval) == ([Step("train", (MARK,), 2)], 0)
    found.take_back()
    assert (found.steps, found.num_train) == ([Step("train", (MARK,), 1)], 1)


def test_steps_before_the_script_spoke_count_as_setup() -> None:
    found = folded(step(MARK), step(kind="eval"))

    found.count_as_setup()

    assert [each.kind for each in found.steps] == ["setup", "setup"]
    assert (found.num_train, found.num_eval) == (0, 0)


def test_what_storages_are_for_is_corrected_in_the_step_that_made_them() -> None:
    allocs = (Alloc(0, 512), Alloc(1, 512), Alloc(2, 512, kind="parameter"))
    found = folded(step(MARK), step(*allocs), step(*allocs), step(allocs[0]))

    found.correct_kinds({(2, 0): "gradient", (2, 2): "buffer", (3, 1): "buffer"})

    assert found.steps[1] == Step(
        "train", (Alloc(0, 512, kind="gradient"), Alloc(1, 512), allocs[2]), 2
    )
    assert found.steps[2] == step(allocs[0])
