"""The tape keeps what was recorded in order, for steps, followers and captured graphs."""

from __future__ import annotations

import pytest

from neusight.recording.recording import (
    EventRecord,
    EventWait,
    HostWork,
    Mark,
    MathMode,
    OpSignature,
    Synchronize,
)
from neusight.recording.tape import (
    Listeners,
    RepeatedCall,
    RunawayLoop,
    Tape,
    TapedAlloc,
    TapedFree,
    TapedOp,
    TapeEntry,
)

ADD = TapedOp(OpSignature("aten::add", "Tensor", (), ()), MathMode())
MUL = TapedOp(OpSignature("aten::mul", "Tensor", (), ()), MathMode(), stream=1)
ALLOC, FREE = TapedAlloc(0, 512), TapedFree(0)


def tape_of(*entries: TapeEntry, max_ops: int | None = None) -> Tape:
    tape = Tape(max_ops)
    tape.is_open = True
    for entry in entries:
        if isinstance(entry, TapedOp):
            tape.add_op(entry)
        else:
            tape.add(entry)
    return tape


def no_calls(does: object, op: TapedOp | None) -> None:
    """No operator began."""


def test_entries_stand_in_the_order_in_which_they_came() -> None:
    tape = tape_of(ADD, ALLOC, EventRecord(1, 0), FREE)

    assert tape.entries == [ADD, ALLOC, EventRecord(1, 0), FREE]
    assert tape.gpu_ops == 1


def test_ops_on_the_cpu_become_one_entry_before_the_next_one() -> None:
    tape = tape_of(ADD)

    tape.add_cpu_op(1.5)
    tape.add_cpu_op(2.25)
    tape.add_op(MUL)

    assert tape.entries == [ADD, HostWork("cpu ops", 3.75, count=2), MUL]
    assert (tape.cpu_ops, tape.gpu_ops) == (2, 2)


def test_the_position_comes_after_work_of_the_cpu_that_is_pending() -> None:
    tape = tape_of(ADD)
    tape.add_cpu_op(1.5)

    assert tape.position() == 2
    assert tape.entries[1] == HostWork("cpu ops", 1.5, count=1)


def test_a_closed_tape_takes_no_marks() -> None:
    tape = tape_of()
    tape.is_open = False

    tape.mark("module_begin", "Net")

    assert tape.entries == []


def test_operators_are_complete_once_no_entry_is_left_from_before_they_were_written() -> None:
    tape = tape_of(ADD, MUL)
    tape.write_calls(no_calls)
    tape.add_op(MUL)
    found = []

    for _ in range(3):
        found.append(tape.has_all_calls())
        tape.cut(1)

    assert found == [False, False, True]


def test_entries_stay_complete_after_operators_are_no_longer_written() -> None:
    tape = tape_of()
    tape.write_calls(no_calls)
    tape.add_op(ADD)
    tape.add_op(MUL)
    tape.write_calls(None)
    tape.add_op(MUL)

    found = [tape.has_all_calls(1), tape.has_all_calls(2), tape.has_all_calls()]
    tape.cut(1)

    assert found == [True, True, False]
    assert (tape.has_all_calls(1), tape.has_all_calls()) == (True, False)


@pytest.mark.parametrize("is_followed", [True, False])
def test_entries_that_are_put_back_are_as_complete_as_they_were(is_followed: bool) -> None:
    tape = tape_of()
    tape.write_calls(no_calls if is_followed else None)
    tape.add_op(MUL)
    taken = tape.cut()
    tape.write_calls(no_calls)

    tape.put_back(taken)

    assert tape.has_all_calls() is is_followed


def test_equal_marks_are_one_object() -> None:
    tape = tape_of()

    for _ in range(2):
        tape.mark("module_begin", "Net.inner", "Linear")

    assert tape.entries == [Mark("module_begin", "Net.inner", "Linear")] * 2
    assert tape.entries[0] is tape.entries[1]


def test_a_wait_names_the_line_that_waits() -> None:
    tape = tape_of()

    tape.synchronize("item", stream=3)

    (entry,) = tape.entries
    assert isinstance(entry, Synchronize)
    assert (entry.reason, entry.stream, entry.event) == ("item", 3, None)
    assert entry.source.startswith("test_tape.py:")


# -- reading and cutting ---------------------------------------------------------------------------


def test_followers_read_each_entry_once_though_steps_are_cut_between() -> None:
    tape = tape_of(ADD, ALLOC)
    read: list[TapeEntry] = []
    tape.followers.append(read.extend)

    tape.drain()
    tape.add_op(MUL)
    taken = tape.cut(1)
    tape.add(FREE)
    tape.drain()

    assert taken == [ADD]
    assert tape.entries == [ALLOC, MUL, FREE]
    assert read == [ADD, ALLOC, MUL, FREE]


def test_what_is_put_back_is_not_read_again() -> None:
    tape = tape_of(ADD, MUL)
    read: list[TapeEntry] = []
    tape.followers.append(read.extend)

    taken = tape.cut()
    tape.add(FREE)
    tape.put_back(taken)
    tape.drain()

    assert tape.entries == [ADD, MUL, FREE]
    assert read == [ADD, MUL, FREE]


def test_too_many_ops_without_a_cut_stop_the_script_and_again_after_it_cleaned_up() -> None:
    tape = tape_of(*[ADD] * 3, max_ops=3)

    with pytest.raises(RunawayLoop, match=r"stopped after 4 ops at test_tape\.py"):
        tape.add_op(ADD)
    for _ in range(1000):
        tape.add_op(ADD)
    with pytest.raises(RunawayLoop, match="stopped after 1005 ops"):
        tape.add_op(ADD)


def test_ops_are_counted_from_zero_after_a_cut() -> None:
    tape = tape_of(*[ADD] * 3, max_ops=3)

    tape.cut()
    for _ in range(3):
        tape.add_op(ADD)

    with pytest.raises(RunawayLoop):
        tape.add_op(ADD)


# -- CUDA graphs -----------------------------------------------------------------------------------


def test_what_is_captured_is_taken_off_but_for_allocations() -> None:
    tape = tape_of(ADD, MUL, ALLOC, EventRecord(1, 0), EventWait(1, 1), FREE)

    captured = tape.take_launched(1)

    assert captured == [MUL, EventRecord(1, 0), EventWait(1, 1)]
    assert tape.entries == [ADD, ALLOC, FREE]
    assert tape.gpu_ops == 1


def test_a_launch_counts_the_ops_that_were_captured() -> None:
    tape = tape_of(ADD)

    tape.launch([MUL, EventRecord(1, 0), MUL])

    assert tape.entries == [ADD, MUL, EventRecord(1, 0), MUL]
    assert tape.gpu_ops == 3


# -- listeners -------------------------------------------------------------------------------------


def test_listeners_are_called_in_the_order_in_which_they_subscribed() -> None:
    event, calls = Listeners[[int]](), list[str]()
    event.subscribe(lambda number: calls.append(f"first {number}"))
    event.subscribe(lambda number: calls.append(f"second {number}"))

    event(7)

    assert calls == ["first 7", "second 7"]


def test_one_that_unsubscribed_is_not_called_and_the_others_are() -> None:
    event, calls = Listeners[[]](), list[str]()
    end = event.subscribe(lambda: calls.append("first"))
    event.subscribe(lambda: calls.append("second"))

    end()
    event()
    end()

    assert calls == ["second"]
    assert event


def test_a_listener_may_unsubscribe_while_it_is_called() -> None:
    event, calls = Listeners[[]](), list[str]()

    def once() -> None:
        end()
        calls.append("once")

    end = event.subscribe(once)
    event.subscribe(lambda: calls.append("always"))

    event()
    event()

    assert calls == ["once", "always", "always"]


def test_a_function_that_subscribes_again_is_called_once() -> None:
    event, calls = Listeners[[int]](), list[int]()

    for _ in range(2):
        event.subscribe(calls.append)
    event(1)

    assert calls == [1]


@pytest.mark.parametrize(
    ("entries", "outputs", "repeats"),
    [
        ([ALLOC, ADD, Synchronize("copy"), HostWork("cpu ops", 1.0)], [0], True),
        ([ALLOC, ADD, FREE], [], True),
        ([ALLOC, ADD], [], False),
        ([ADD, FREE], [], False),
        ([ADD, Synchronize("item")], [], False),
        ([ADD, HostWork("sleep", 1.0)], [], False),
    ],
    ids=["an output", "nothing", "more than it returns", "what others made", "a read", "a sleep"],
)
def test_a_call_that_does_more_than_work_and_return_is_not_repeated(
    entries: list[TapeEntry], outputs: list[int], repeats: bool
) -> None:
    found = RepeatedCall.of(entries, outputs)

    assert (found is not None) is repeats
    if found is not None:
        assert (found.num_ops, found.num_allocs, found.ordinals) == (1, 1, tuple(outputs))
