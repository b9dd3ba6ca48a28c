"""Operators of a step: read from what began and ended, and lent to steps like it."""

from __future__ import annotations

from neusight.recording.recording import MathMode, OpCall, Operator, OpSignature, Step
from neusight.recording.steps.operators import OperatorTree, with_operators
from neusight.recording.tape import CallToken


def test_what_begins_and_ends_nests() -> None:
    tree = OperatorTree(base=10)
    tree.read([CallToken("linear"), CallToken("to"), None], 3)
    tree.read([None, CallToken("MulBackward0", is_node=True, sequence_nr=12)], 5)

    assert tree.close(7) == (
        Operator("linear", 3, 5),
        Operator("to", 3, 3, depth=1),
        Operator("MulBackward0", 5, 7, is_node=True, sequence_nr=2),
    )


def test_what_began_in_the_step_before_ends_without_effect() -> None:
    tree = OperatorTree(base=None)
    tree.read([None, CallToken("add"), None], 0)

    assert tree.close(1) == (Operator("add", 0, 0),)


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
