"""Collectives: how many ranks, and how many bytes."""

from __future__ import annotations

from typing import Any

import pytest

from neusight.ops import map_op
from neusight.predictors.kernel import Kernel
from op_calls import MATH, call, kernels, names, spec


@pytest.mark.parametrize(
    ("op", "arguments", "expected"),
    [
        (
            "c10d::_allgather_base_",
            {"output_tensor": spec(32), "input_tensor": spec(4), "process_group": "g"},
            Kernel.collective("all_gather", 128, 8, dtype="float32"),
        ),
        (
            "c10d::_reduce_scatter_base_",
            {"output_tensor": spec(4), "input_tensor": spec(32), "process_group": "g"},
            Kernel.collective("reduce_scatter", 128, 8, dtype="float32"),
        ),
        (
            "c10d::allreduce_",
            {"tensors": (spec(16),), "process_group": "default size=16 nodes=2"},
            Kernel.collective("all_reduce", 64, 16, dtype="float32", num_nodes=2),
        ),
        (
            "c10d::allreduce_",
            {
                "tensors": (spec(16),),
                "process_group": "size=4 nodes=4 per_node=8 name=dp ranks=0..24/8",
            },
            Kernel.collective(
                "all_reduce", 64, 4, dtype="float32", num_nodes=4, ranks="0..24/8", gpus_per_node=8
            ),
        ),
        (  # however large the group
            "c10d::send",
            {"tensors": (spec(16),), "process_group": "size=64 nodes=8"},
            Kernel.collective("send_recv", 64, 2, dtype="float32", num_nodes=2),
        ),
    ],
)
def test_shapes_or_the_group_state_the_ranks(
    op: str, arguments: dict[str, Any], expected: Kernel
) -> None:
    assert kernels(call(op, **arguments)) == (expected,)


@pytest.mark.parametrize(
    "ranks", ["", "0..", "..", "3..0", "0..9/0", "0,,1", "0..99999999999", "a", "0;1"]
)
def test_ranks_that_are_none_are_left_out(ranks: str) -> None:
    group = f"size=4 nodes=2 per_node=8 name=dp ranks={ranks}"

    (kernel,) = kernels(call("c10d::allreduce_", tensors=(spec(16),), process_group=group))

    assert kernel == Kernel.collective("all_reduce", 64, 4, dtype="float32", num_nodes=2)


def test_a_group_of_unknown_size_is_reported() -> None:
    mapping = map_op(call("c10d::allreduce_", tensors=(spec(16),), process_group="g"), MATH)

    assert not mapping.is_mapped
    assert "does not state its size" in mapping.reason


def test_a_group_of_one_launches_nothing() -> None:
    gathered = call(
        "_c10d_functional::all_gather_into_tensor",
        spec(4),
        input_=spec(4),
        group_size=1,
        group_name="g",
    )

    assert kernels(gathered) == ()


def test_lists_of_shares_are_copied_out_of_one_buffer_or_into_it() -> None:
    share, shares = (spec(4),), ((spec(4), spec(4)),)
    gather = call("c10d::allgather_", output_tensors=shares, input_tensors=share, process_group="g")
    scatter = call(
        "c10d::reduce_scatter_", output_tensors=share, input_tensors=shares, process_group="g"
    )

    assert names(gather) == ["all_gather", "memcpy_d2d", "memcpy_d2d"]
    assert names(scatter) == ["memcpy_d2d", "memcpy_d2d", "reduce_scatter"]


def test_a_functional_sum_copies_its_input_first() -> None:
    arguments = {"reduce_op": "sum", "group_name": "size=4"}

    assert names(call("_c10d_functional::all_reduce", spec(8), input_=spec(8), **arguments)) == [
        "memcpy_d2d",
        "all_reduce",
    ]
    assert names(call("_c10d_functional::all_reduce_", spec(8), input_=spec(8), **arguments)) == [
        "all_reduce"
    ]


def test_an_exchange_states_its_ranks_by_lists_or_splits() -> None:
    parts = (spec(4), spec(4), spec(4))
    lists = call("c10d::alltoall_", output_tensors=parts, input_tensors=parts, process_group="g")
    splits = call(
        "_c10d_functional::all_to_all_single",
        spec(12),
        input_=spec(12),
        output_split_sizes=(4, 4, 4),
        input_split_sizes=(4, 4, 4),
        group_name="g",
    )

    assert kernels(lists) == (Kernel.collective("all_to_all", 48, 3, dtype="float32"),)
    assert kernels(splits) == kernels(lists)


def test_a_rank_that_gathers_knows_all_shares_and_the_others_their_own() -> None:
    shares = ((spec(4), spec(4)),)
    root = call("c10d::gather_", output_tensors=shares, input_tensors=(spec(4),), process_group="g")
    other = call("c10d::gather_", output_tensors=(), input_tensors=(spec(4),),
                 process_group="size=2")  # fmt: skip

    assert kernels(root) == kernels(other)
    assert kernels(root) == (Kernel.collective("gather", 32, 2, dtype="float32"),)


def test_a_barrier_sums_one_number() -> None:
    assert names(call("c10d::barrier", tensor=spec(), process_group="size=2")) == [
        "fill",
        "all_reduce",
    ]
    assert names(call("_c10d_functional::wait_tensor", spec(4), tensor=spec(4))) == []


def test_a_batch_of_transfers_is_one_kernel_of_the_busier_direction() -> None:
    (kernel,) = kernels(
        call(
            "_c10d_functional::batch_p2p_ops",
            op_list=("isend", "irecv", "irecv"),
            peer_list=(1, 1, 1),
            tag_list=(0, 0, 0),
            tensors=(spec(16), spec(16), spec(16)),
            group_name="size=2 nodes=1 name=0 ranks=0,1",
        )
    )

    assert kernel == Kernel.collective("send_recv", 128, 2, dtype="float32")


@pytest.mark.parametrize(
    ("numel", "launched"),
    [
        (1024, ["memcpy_d2d", "all_reduce"]),
        (256 * 1024, ["memcpy_d2d", "all_reduce", "memcpy_d2d"]),
    ],
)
def test_torchs_own_sum_inside_a_node_copies_its_result_back_in_two_shots(
    numel: int, launched: list[str]
) -> None:
    group = "size=8 nodes=1 per_node=8 intra_node=1 name=tp ranks=0..7"
    data = spec(numel, dtype="bfloat16")

    found = kernels(call("c10d::allreduce_", tensors=(data,), reduce_op="sum", process_group=group))

    assert [kernel.name for kernel in found] == launched
    assert found[1].variant == ("two_shot" if len(launched) > 2 else "one_shot")
