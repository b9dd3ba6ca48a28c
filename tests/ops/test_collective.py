"""Collectives: how many ranks, and how many bytes."""

from __future__ import annotations

from neusight.ops import map_op
from neusight.predictors.kernel import Kernel
from op_calls import MATH, call, kernels, spec


def test_shapes_tell_the_ranks_of_a_gather() -> None:
    (kernel,) = kernels(
        call(
            "c10d::_allgather_base_",
            output_tensor=spec(32),
            input_tensor=spec(4),
            process_group="g",
        )
    )

    assert kernel == Kernel.collective("all_gather", 128, 8, dtype="float32")


def test_a_group_tells_its_size_and_nodes() -> None:
    (kernel,) = kernels(
        call("c10d::allreduce_", tensors=(spec(16),), process_group="default size=16 nodes=2")
    )

    assert kernel == Kernel.collective("all_reduce", 64, 16, dtype="float32", num_nodes=2)


def test_a_group_of_unknown_size_is_reported() -> None:
    mapping = map_op(call("c10d::allreduce_", tensors=(spec(16),), process_group="g"), MATH)

    assert not mapping.is_mapped
    assert "does not tell its size" in mapping.reason


def test_a_group_of_one_launches_nothing() -> None:
    gathered = call(
        "_c10d_functional::all_gather_into_tensor",
        spec(4),
        input_=spec(4),
        group_size=1,
        group_name="g",
    )

    assert kernels(gathered) == ()
