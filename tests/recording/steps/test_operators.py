"""Operators of a step: read from what began and ended, and lent to steps like it."""

from __future__ import annotations

import pickle

from neusight.recording.recording import (
    Free,
    MathMode,
    OpCall,
    Operator,
    OpSignature,
    Step,
    StorageRef,
)
from neusight.recording.steps.operators import (
    StepOperators,
    aligned,
    has_operators_of,
    with_operators,
)
from neusight.recording.tape import CallEvent, CallToken

LINEAR, TO, ADD = CallToken("linear"), CallToken("to"), CallToken("add")
NODE = CallToken("MulBackward0", is_node=True)


def operators(*runs: tuple[int, list[CallEvent]], base: int | None = None) -> StepOperators:
    """Those of a step of 7 entries, before which all this happens."""
    log: list[CallEvent] = []
    places: list[int] = []
    for position, events in runs:
        places += (position, len(log))
        log += (len(events), *events)
    return StepOperators(log, places, 7, base)


def test_what_begins_and_ends_nests() -> None:
    found = operators((3, [LINEAR, TO, None]), (5, [None, NODE, 12]), base=10)

    assert tuple(found) == (
        Operator("linear", 3, 5),
        Operator("to", 3, 3, depth=1),
        Operator("MulBackward0", 5, 7, is_node=True, sequence_nr=2),
    )
    assert found and len(found) == 3 and found[0] == Operator("linear", 3, 5)


def test_what_began_in_the_step_before_ends_without_effect() -> None:
    assert tuple(operators((0, [None, ADD, None]))) == (Operator("add", 0, 0),)
    assert not operators((0, [None]))


def test_a_step_is_pickled_with_plain_operators() -> None:
    step = Step("eval", (), operators=operators((0, [ADD, None])))

    assert pickle.loads(pickle.dumps(step)).operators == (Operator("add", 0, 0),)


def call(op: str) -> OpCall:
    return OpCall(OpSignature(op, "", (), ()), MathMode())


def test_a_step_that_was_not_followed_has_those_of_one_with_the_same_ops() -> None:
    followed = Step("eval", (call("aten::mm"),), operators=(Operator("aten::matmul", 0, 1),))
    other = Step("eval", (call("aten::mul"),))
    alike = Step("eval", (call("aten::mm"),), count=3)

    assert [tuple(step.operators) for step in with_operators([followed, other, alike])] == [
        followed.operators,
        (),
        followed.operators,
    ]


def test_a_step_like_another_has_the_operators_around_what_both_have() -> None:
    ops = ["aten::mm", "aten::mul", "aten::relu", "aten::sum"]
    around = (
        Operator("outer", 0, 4),
        Operator("linear", 0, 1, depth=1),
        Operator("norm", 2, 3, depth=1),
        Operator("clamp", 2, 3, depth=2),
    )
    followed = Step("eval", tuple(map(call, ops)), operators=around)
    longer = Step("eval", tuple(map(call, [*ops[:2], "aten::abs", *ops[2:]])))
    other = Step("eval", tuple(map(call, ["aten::mm", "aten::abs", "aten::neg", "aten::sum"])))
    unlike = Step("eval", tuple(map(call, ["aten::abs", "aten::neg"])))

    found = [tuple(step.operators) for step in with_operators([followed, longer, other, unlike])]

    assert found[1] == (
        Operator("outer", 0, 5),
        Operator("linear", 0, 1, depth=1),
        Operator("norm", 3, 4, depth=1),
        Operator("clamp", 3, 4, depth=2),
    )
    assert found[2] == (Operator("outer", 0, 4), Operator("linear", 0, 1, depth=1))
    assert found[3] == ()


def test_steps_are_alike_by_what_comes_in_the_same_order() -> None:
    layer = ["aten::t", "aten::addmm", "aten::relu", "aten::mul", "aten::add", "aten::sum"]
    first = [*layer, "aten::zeros_like", "aten::zeros_like", *layer]
    second = ["aten::zero_", *layer, *layer]

    assert aligned(first, second) == [None, *range(6), *range(8, 14)]
    assert has_operators_of(first, second[1:])
    assert not has_operators_of(first, second)
    assert has_operators_of(first, [*second[1:], "aten::_foreach_mul_", "module_end"])
    assert not has_operators_of(first, [*second[1:], "HostWork"])


def test_an_operator_without_entries_ends_within_the_one_around_it() -> None:
    mm = call("aten::mm")
    around = (Operator("outer", 0, 1), Operator("empty", 1, 1, depth=1), Operator("next", 1, 2))
    followed = Step("eval", (mm, mm), operators=around)
    other = Step("eval", (mm, Free(StorageRef(0, 0)), mm))

    found = with_operators([followed, other])[1]

    assert tuple(found.operators) == (
        Operator("outer", 0, 1),
        Operator("empty", 1, 1, depth=1),
        Operator("next", 2, 3),
    )


def test_memory_between_ops_moves_operators() -> None:
    followed = Step("eval", (call("aten::mm"),), operators=(Operator("aten::matmul", 0, 1),))
    other = Step("eval", (Free(StorageRef(0, 0)), call("aten::mm")))

    found = with_operators([followed, other])[1]

    assert tuple(found.operators) == (Operator("aten::matmul", 1, 2),)
