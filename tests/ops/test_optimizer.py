"""Multi-tensor kernels: how tensors share launches, and what these move."""

from __future__ import annotations

from neusight.ops.optimizer import launches
from op_calls import call, kernels, names, spec


def test_a_launch_is_full_at_2240_blocks() -> None:
    split = launches([65536 * 2241], 1)

    assert [sum(count for _, count in launch.parts) for launch in split] == [65536 * 2240, 65536]


def test_a_launch_is_full_at_its_most_tensors_by_depth() -> None:
    assert len(launches([1] * 252, 4)) == 1
    assert len(launches([1] * 253, 4)) == 2
    assert launches([0, 0], 1) == []


def test_foreach_ops_are_one_launch_for_a_small_model() -> None:
    parameters, gradients = (spec(10), spec(20)), (spec(10), spec(20))

    (kernel,) = kernels(call("_foreach_add_", overload="List", self=parameters, other=gradients))

    assert kernel.name == "multi_tensor_add"
    assert (kernel.bytes_read, kernel.bytes_written) == (2 * 30 * 4, 30 * 4)


def test_lists_that_do_not_match_are_done_one_by_one() -> None:
    halves = (spec(10, dtype="bfloat16"), spec(20, dtype="bfloat16"))

    assert names(
        call("_foreach_add_", overload="List", self=(spec(10), spec(20)), other=halves)
    ) == ["add", "add"]


def test_steps_on_the_host_launch_nothing() -> None:
    steps = (spec(device="cpu"),) * 3

    assert kernels(call("_foreach_add_", overload="Scalar", self=steps, scalar=1)) == ()


def test_fused_adam_reads_four_tensors_and_writes_three() -> None:
    lists = (spec(1000),)
    (kernel,) = kernels(
        call(
            "_fused_adamw_",
            self=lists,
            grads=lists,
            exp_avgs=lists,
            exp_avg_sqs=lists,
            max_exp_avg_sqs=(),
            state_steps=(spec(),),
            lr=0.1,
            grad_scale=None,
            found_inf=None,
        )
    )

    assert kernel.name == "fused_adamw"
    assert (kernel.bytes_read, kernel.bytes_written) == (16000, 12000)
