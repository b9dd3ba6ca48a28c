"""Multi-tensor kernels: how tensors share launches, and what these move."""

from __future__ import annotations

import pytest

from neusight.ops import map_op
from neusight.ops.optimizer import FUSED_OPTIMIZERS, launches
from op_calls import MATH, call, kernels, names, spec


def test_a_launch_is_full_at_2240_blocks() -> None:
    split = launches([65536 * 2241], 1)

    assert [sum(count for _, count in launch.parts) for launch in split] == [65536 * 2240, 65536]


def test_a_launch_is_full_at_its_most_tensors_by_depth() -> None:
    assert len(launches([1] * 252, 4)) == 1
    assert len(launches([1] * 253, 4)) == 2
    assert launches([0, 0], 1) == []


def test_lists_that_do_not_match_are_done_one_by_one() -> None:
    halves = (spec(10, dtype="bfloat16"), spec(20, dtype="bfloat16"))

    assert names(
        call("_foreach_add_", overload="List", self=(spec(10), spec(20)), other=halves)
    ) == ["add", "add"]


def test_steps_on_the_host_launch_nothing() -> None:
    steps = (spec(device="cpu"),) * 3

    assert kernels(call("_foreach_add_", overload="Scalar", self=steps, scalar=1)) == ()


@pytest.mark.parametrize(
    ("optimizer", "bytes_read", "bytes_written", "operations"),
    [("Adam", 16, 12, 16), ("AdamW", 16, 12, 16), ("SGD", 12, 8, 5), ("Adagrad", 12, 8, 7)],
)
def test_a_fused_step_reads_every_list_and_writes_all_but_the_gradients(
    optimizer: str, bytes_read: int, bytes_written: int, operations: int
) -> None:
    """A float of each list an element."""
    (kernel,) = kernels(FUSED_OPTIMIZERS[optimizer].step((spec(300), spec(700))))

    assert kernel.name == f"fused_{optimizer.lower()}"
    assert (kernel.bytes_read, kernel.bytes_written) == (1000 * bytes_read, 1000 * bytes_written)
    assert kernel.flops == 1000 * operations


def test_gradients_unscaled_on_the_way_are_written_too() -> None:
    (kernel,) = kernels(
        call("_fused_sgd_", self=(spec(1000),), grads=(spec(1000),), momentum_buffer_list=(),
             grad_scale=spec())
    )  # fmt: skip

    assert (kernel.bytes_read, kernel.bytes_written) == (8000, 8000)


def test_parameters_without_gradients_are_reported() -> None:
    mapping = map_op(
        call("_fused_sgd_", self=(spec(4), spec(4)), grads=(spec(4),), momentum_buffer_list=()),
        MATH,
    )

    assert (mapping.is_mapped, mapping.reason) == (
        False,
        "ValueError: 2 parameters but 1 gradients",
    )


def test_a_norm_of_many_tensors_has_a_partial_sum_a_chunk() -> None:
    """100000 floats are two chunks of 65536, 10 are one: a table of 2 by 2 partial sums, zeroed."""
    x, y = spec(100_000), spec(10)

    fill, norm, cleanup = kernels(call("_foreach_norm", spec(), spec(), self=(x, y), ord=2))

    assert (fill.bytes_written, cleanup.bytes_read, cleanup.bytes_written) == (16, 16, 8)
    assert (norm.bytes_read, norm.bytes_written, norm.flops) == (4 * 100_010, 12, 2 * 100_010)


def test_copies_of_lists_cast_and_leave_the_gpu_one_by_one() -> None:
    wide, half = (spec(8), spec(24)), (spec(8, dtype="float16"), spec(24, dtype="float16"))
    on_host = (spec(8, device="cpu"), spec(24, device="cpu"))

    (cast,) = kernels(call("_foreach_copy_", self=wide, src=half))
    assert (cast.name, cast.bytes_read, cast.bytes_written) == ("multi_tensor_copy", 64, 128)
    assert names(call("_foreach_copy_", self=wide, src=on_host)) == ["memcpy_h2d"] * 2
