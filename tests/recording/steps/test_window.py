"""A window has what is recorded from one moment to another, whatever steps are cut meanwhile."""

from __future__ import annotations

from neusight.recording.attribution import Attribution
from neusight.recording.recording import HostWork, Synchronize
from neusight.recording.steps.window import Window
from neusight.recording.storages import StorageWatch
from neusight.recording.tape import Tape


def a_tape() -> Tape:
    tape = Tape()
    tape.is_open = True
    return tape


def work(name: str) -> HostWork:
    return HostWork(name, 1.0)


def test_it_has_what_comes_between_its_begin_and_its_end_in_named_parts() -> None:
    tape = a_tape()
    tape.add(work("before"))
    window = Window(tape, StorageWatch(tape, Attribution()), last_event=0)
    tape.add(work("first"))
    window.part_begins("ProfilerStep#3")
    tape.add(work("second"))
    tape.cut()
    tape.add(work("third"))
    window.part_begins("")

    steps, names = window.end()
    tape.add(work("after"))

    assert [step.entries for step in steps] == [
        (),
        (work("first"),),
        (work("second"), work("third")),
        (Synchronize("synchronize"),),
    ]
    assert names == {2: "ProfilerStep#3"}


def test_equal_parts_in_a_row_are_one_step_that_comes_again() -> None:
    tape = a_tape()
    window = Window(tape, StorageWatch(tape, Attribution()), last_event=0)
    for number in range(3):
        window.part_begins(f"ProfilerStep#{number}")
        tape.add(work("the same"))

    steps, names = window.end()

    assert steps[1] is steps[2] is steps[3]
    assert names == {1: "ProfilerStep#0", 2: "ProfilerStep#1", 3: "ProfilerStep#2"}
