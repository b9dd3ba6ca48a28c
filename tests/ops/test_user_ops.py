"""A script's own functions for its ops reach another process as values."""

from __future__ import annotations

import pickle
from collections.abc import Iterator

import pytest

from neusight.ops import formulas, is_mapped, map_op, register_op, unregister_op
from neusight.ops.user_ops import UserOps, register_user_ops, user_ops_of
from neusight.predictors.kernel import Kernel
from neusight.recording.recording import MathMode, OpCall, OpSignature, Recording, Step, TensorSpec


def call(size: int, op: str = "mine::double_", overload: str = "default") -> OpCall:
    spec = TensorSpec((size,), (1,), "float32")
    return OpCall(OpSignature(op, overload, (("x", spec),), (spec,)), MathMode())


def kernels(signature: OpSignature, math: MathMode) -> list[Kernel]:
    return [Kernel.elementwise("double", signature.tensor("x").numel, dtype="float32")]


@pytest.fixture
def registered() -> Iterator[Recording]:
    before = formulas()
    yield Recording((Step("train", (call(8), call(4, "mine::other"), call(8)), 3),), "T4", "2.13")
    for name in formulas().keys() - before.keys():
        unregister_op(name)


def test_kernels_come_back_for_the_recorded_calls(registered: Recording) -> None:
    before = formulas()
    register_op("mine::double")(kernels)

    ops = user_ops_of(registered, before)
    unregister_op("mine::double")
    register_user_ops(pickle.loads(pickle.dumps(ops)))

    found = map_op(call(8).signature, MathMode())
    assert (found.kernels, found.is_mapped) == (tuple(kernels(call(8).signature, MathMode())), True)
    assert list(ops.kernels) == [(call(8).signature, MathMode())]


def test_other_sizes_count_as_unmapped(registered: Recording) -> None:
    register_user_ops(UserOps(("mine::double",)))

    found = map_op(call(16).signature, MathMode())

    assert not found.is_mapped
    assert "was not asked for these shapes" in found.reason


def test_what_was_known_before_is_exchanged(registered: Recording) -> None:
    register_op("mine::double")(lambda signature, math: [])
    before = formulas()
    unregister_op("mine::double")
    register_op("mine::double")(kernels)

    ops = user_ops_of(registered, before)
    register_user_ops(ops)

    assert ops.names == ("mine::double",)
    assert len(map_op(call(8).signature, MathMode()).kernels) == 1


def test_a_script_that_registers_nothing_has_nothing(registered: Recording) -> None:
    assert user_ops_of(registered, formulas()) == UserOps()


def test_a_function_that_fails_leaves_its_op_unmapped(registered: Recording) -> None:
    before = formulas()

    def fails(signature: OpSignature, math: MathMode) -> list[Kernel]:
        raise ZeroDivisionError

    register_op("mine::double")(fails)

    ops = user_ops_of(registered, before)

    assert (ops.names, dict(ops.kernels)) == (("mine::double",), {})
    assert is_mapped("mine::double")
