"""What an op costs the host, and what it launches."""

from __future__ import annotations

from dataclasses import replace

import pytest

from neusight.predictors.kernel import RECURRENT, Kernel
from neusight.predictors.predictor import Estimate
from neusight.recording.recording import Argument, MathMode, OpCall, OpSignature, TensorSpec
from neusight.timeline.host import CLOUD, PLAIN, PROFILED, dispatch_us
from neusight.timeline.launches import OpPlans, is_pinned_copy, nanoseconds

PAGEABLE = TensorSpec((1024, 1024), (1024, 1), "float32", "cpu")


def call(op: str = "aten::relu", arguments: tuple[tuple[str, Argument], ...] = ()) -> OpCall:
    return OpCall(OpSignature(op, "default", arguments, ()), MathMode())


RELU = Kernel.elementwise("relu", 1024, dtype="float32")
GEMM = Kernel.gemm(64, 64, 64, dtype="float32")
ESTIMATE = Estimate(2.5, 2.5, 2.5, "memory", "physics", "test")


def test_microseconds_become_whole_nanoseconds() -> None:
    assert [nanoseconds(us) for us in (0.0, 1.2344, 2.5)] == [0, 1234, 2500]


def test_most_of_a_dispatch_lies_before_the_launch() -> None:
    op_call = call()
    total_ns = nanoseconds(dispatch_us(op_call, (RELU.kernel_class,), host=PLAIN))

    plan = OpPlans(lambda asked: ((RELU, ESTIMATE),), PLAIN).plan_of(op_call)

    assert plan.before_ns + plan.after_ns == total_ns
    assert plan.before_ns == round(0.85 * total_ns)
    assert plan.between_ns == 0


def test_more_kernels_cost_the_host_between_their_launches() -> None:
    plan = OpPlans(lambda asked: ((RELU, ESTIMATE), (RELU, ESTIMATE)), PLAIN).plan_of(call())

    assert plan.between_ns == nanoseconds(PLAIN.extra_kernel_us) > 0
    assert [launch.duration_ns for launch in plan.launches] == [2500, 2500]


def test_a_recurrent_network_is_launched_in_a_loop_of_the_librarys_own() -> None:
    step = Kernel.gemm(16, 64, 64, dtype="float32", name=RECURRENT)

    plan = OpPlans(lambda asked: ((step, ESTIMATE), (RELU, ESTIMATE)), PLAIN).plan_of(call())

    loop_ns = nanoseconds(PLAIN.loop_us)
    assert [launch.call_ns + plan.between_ns for launch in plan.launches] == [loop_ns] * 2
    assert PLAIN.loop_us == CLOUD.loop_us < PROFILED.loop_us


def test_the_streams_that_a_library_uses_are_counted() -> None:
    kernels = [replace(RELU, branches=branches) for branches in ((), (2,), (3, 2))]

    plan = OpPlans(lambda asked: tuple((item, ESTIMATE) for item in kernels), PLAIN).plan_of(call())

    assert plan.num_branches == 3


@pytest.mark.parametrize(
    ("kernel", "name"), [(RELU, "cudaLaunchKernel"), (GEMM, "cudaLaunchKernelExC")]
)
def test_a_launch_bears_the_runtime_function_that_profiles_show(kernel: Kernel, name: str) -> None:
    plan = OpPlans(lambda asked: ((kernel, ESTIMATE),), PLAIN).plan_of(call())

    [launch] = plan.launches
    assert launch.name == name
    assert launch.call_ns == nanoseconds(PLAIN.launch_us)


def test_equal_calls_are_planned_once() -> None:
    asked: list[OpCall] = []

    def price(one: OpCall) -> tuple[tuple[Kernel, Estimate], ...]:
        asked.append(one)
        return ((RELU, ESTIMATE),)

    plans, op_call = OpPlans(price, PLAIN), call()

    assert plans.plan_of(op_call) is plans.plan_of(op_call)
    assert asked == [op_call]


def test_a_copy_from_the_host_is_pinned_as_its_tensor_is() -> None:
    assert not is_pinned_copy(call("aten::_to_copy", (("self", PAGEABLE),)).signature)
    pinned = PAGEABLE._replace(is_pinned=True)
    assert is_pinned_copy(call("aten::_to_copy", (("self", pinned),)).signature)
    assert is_pinned_copy(call("aten::_local_scalar_dense").signature)
