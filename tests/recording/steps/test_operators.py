"""Operators of a step: read from what began and ended, and lent to steps like it."""

from __future__ import annotations

import pickle

from neusight.recording.recording import MathMode, OpCall, Operator, OpSignature, Step
from neusight.recording.steps.operators import StepOperators, with_operators
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


def test_pickled_operators_are_put_together() -> None:
    found = operators((0, [ADD, None]))

    assert pickle.loads(pickle.dumps(found)) == (Operator("add", 0, 0),)


def call(op: str) -> OpCall:
    return OpCall(OpSignature(op, "", (), ()), MathMode())


def test_a_step_that_was_not_followed_has_those_of_one_with_the_same_ops() -> None:
    followed = Step("eval", (call("aten::mm"),), operators=(Operator("aten::matmul", 0, 1),))
    other = Step("eval", (call("aten::mul"),))
    alike = Step("eval", (call("aten::mm"),), count=3)

    assert [step.operators for step in with_operators([followed, other, alike])] == [
        followed.operators,
        (),
        followed.operators,
    ]
