"""Operators of a step: read from what began and ended, and lent to steps like it."""

from __future__ import annotations

import pickle
from dataclasses import replace

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
    Run,
    StepOperators,
    aligned,
    has_operators_of,
    ops_of,
    with_operators,
)
from neusight.recording.tape import (
    CallEvent,
    CallToken,
    PythonCall,
    TapedCalls,
    TapedFunctions,
)

LINEAR, TO, ADD = CallToken("linear"), CallToken("to"), CallToken("add")
NODE = CallToken("MulBackward0", is_node=True)


def operators(*runs: tuple[int, list[CallEvent]]) -> StepOperators:
    """Those of a step of 7 entries, before which all this happens; from the fourth on ops in a node
    of number 2."""
    in_node = OpCall(OpSignature("aten::mul", "", (), ()), MathMode(), sequence_nr=2, node="Mul")
    entries = (*[call("aten::mul")] * 3, *[in_node] * 4)
    written = [(position, TapedCalls(tuple(events), ())) for position, events in runs]
    return StepOperators(written, entries)


def test_what_begins_and_ends_nests() -> None:
    found = operators((3, [LINEAR, TO, None]), (5, [None, NODE, 0]))

    assert tuple(found) == (
        Operator("linear", 3, 5),
        Operator("to", 3, 3, depth=1),
        Operator("MulBackward0", 5, 7, is_node=True, sequence_nr=2),
    )
    assert found and len(found) == 3 and found[0] == Operator("linear", 3, 5)


def test_what_began_in_the_step_before_ends_without_effect() -> None:
    assert tuple(operators((0, [None, ADD, None]))) == (Operator("add", 0, 0),)
    assert not operators((0, [None]))


def function(name: str, first: int, last: int, depth: int = 0) -> Operator:
    return Operator(name, first, last, depth, is_function=True)


def test_operators_lie_in_the_functions_that_call_them() -> None:
    outer, inner = PythonCall("train", 0), PythonCall("loss", 8)
    runs: list[Run] = [
        (0, TapedFunctions((outer,))), (0, TapedCalls((LINEAR,), ())),
        (1, TapedFunctions((outer,))),
        (2, TapedFunctions((outer, inner))), (2, TapedCalls((None, TO), ())),
        (3, TapedFunctions((outer, inner._replace(called_at=9)))), (3, TapedCalls((None,), ())),
    ]  # fmt: skip

    assert tuple(StepOperators(runs, (call("aten::mul"),) * 4)) == (
        function("train", 0, 4),
        Operator("linear", 0, 2, 1),
        function("loss", 2, 3, 1),
        Operator("to", 2, 3, 2),
        function("loss", 3, 4, 1),
    )


def test_functions_begin_where_they_run_though_no_operator_begins_there() -> None:
    runs: list[Run] = [(0, TapedFunctions((PythonCall("loss", 0),))), (2, TapedFunctions(()))]

    assert tuple(StepOperators(runs, (call("aten::mul"),) * 4)) == (function("loss", 0, 2),)


def test_an_operator_that_runs_python_ends_with_the_function_around_it() -> None:
    outer, inner = PythonCall("train", 0), PythonCall("mine", 8)
    runs: list[Run] = [
        (0, TapedFunctions((outer,))), (0, TapedCalls((LINEAR,), ())),
        (1, TapedFunctions((outer, inner))), (1, TapedCalls((TO,), ())),
        (2, TapedFunctions(())), (2, TapedCalls((ADD,), ())),
        (3, TapedFunctions(())), (3, TapedCalls((None, None, None), ())),
    ]  # fmt: skip

    assert tuple(StepOperators(runs, (call("aten::mul"),) * 4)) == (
        function("train", 0, 2),
        Operator("linear", 0, 2, 1),
        function("mine", 1, 2, 2),
        Operator("to", 1, 2, 3),
        Operator("add", 2, 3),
    )


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


def test_operators_are_not_looked_for_in_a_step_that_was_not_followed() -> None:
    ops = ["aten::t", "aten::addmm", "aten::relu", "aten::mul", "aten::add", "aten::sum"]
    entries = tuple(map(call, ops))
    own = (Operator("aten::linear", 0, 2),)
    before, followed = Step("train", entries), Step("train", entries, operators=own)
    after = Step("train", (*entries, call("aten::abs")))

    found = with_operators([before, followed, after])

    assert [tuple(step.operators) for step in found] == [own] * 3


def test_ops_of_other_threads_are_between_those_of_the_main_one() -> None:
    elsewhere = replace(call("aten::relu"), thread=1)
    own = (Operator("aten::linear", 0, 2),)
    followed = Step("train", (call("aten::t"), call("aten::addmm")), operators=own)
    other = Step("train", (call("aten::t"), elsewhere, call("aten::addmm")))

    assert ops_of(other) == ops_of(followed)
    assert tuple(with_operators([followed, other])[1].operators) == (
        Operator("aten::linear", 0, 3),
    )


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
