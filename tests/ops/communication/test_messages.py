"""What calls of torch.distributed say to NCCL."""

from __future__ import annotations

from typing import Any

import pytest

from neusight.ops.communication.messages import Message, ProcessGroup, group_in, messages_of
from op_calls import call, spec

WORLD = "size=4 nodes=1 name=0 ranks=0..3"
EVERYBODY = ProcessGroup("0", (0, 1, 2, 3))
PAIR = ProcessGroup("7", (1, 5))


@pytest.mark.parametrize(
    ("text", "ranks"),
    [("0..7", range(8)), ("1..25/8", (1, 9, 17, 25)), ("3,5,6", (3, 5, 6)), ("4", (4,))],
)
def test_ranks_are_read_as_they_were_written(text: str, ranks: Any) -> None:
    assert group_in(f"size=9 nodes=1 name=tp ranks={text}") == ProcessGroup("tp", tuple(ranks))


def test_a_group_without_ranks_says_so() -> None:
    with pytest.raises(ValueError, match="does not state its ranks"):
        group_in("size=8 nodes=1")


@pytest.mark.parametrize(
    ("op", "arguments", "expected"),
    [
        ("c10d::allreduce_", {"tensors": (spec(8), spec(4))}, ("allreduce", 12, 12)),
        (
            "c10d::_allgather_base_",
            {"output_tensor": spec(32), "input_tensor": spec(8)},
            ("_allgather_base", 8, 32),
        ),
        (
            "c10d::_reduce_scatter_base_",
            {"output_tensor": spec(8), "input_tensor": spec(32)},
            ("_reduce_scatter_base", 32, 8),
        ),
        (
            "c10d::allgather_",
            {"output_tensors": ((spec(8),) * 4,), "input_tensors": (spec(8),)},
            ("all_gather", 8, 32),
        ),
        ("c10d::gather_", {"output_tensors": (), "input_tensors": (spec(8),)}, ("gather", 8, 32)),
        ("c10d::scatter_", {"output_tensors": (spec(8),), "input_tensors": ()}, ("scatter", 32, 8)),
        ("c10d::barrier", {"tensor": spec(1)}, ("barrier", 1, 1)),
    ],
)
def test_what_goes_in_and_out_is_counted_in_elements(
    op: str, arguments: dict[str, Any], expected: tuple[str, int, int]
) -> None:
    (message,) = messages_of(call(op, process_group=WORLD, **arguments))

    assert message == Message(expected[0], EVERYBODY, expected[1], expected[2], "float32")


def test_a_functional_op_gives_what_it_returns() -> None:
    gathered = call(
        "_c10d_functional::all_gather_into_tensor",
        spec(32, dtype="bfloat16"),
        input_=spec(8, dtype="bfloat16"),
        group_size=4,
        group_name=WORLD,
    )

    (message,) = messages_of(gathered)

    assert message == Message("_allgather_base", EVERYBODY, 8, 32, "bfloat16")
    assert message.sent_bytes == 16


def test_an_exchange_says_how_it_is_dealt_out_where_it_is_uneven() -> None:
    tensors: dict[str, Any] = {"output": spec(6), "input": spec(8), "process_group": WORLD}

    (even,) = messages_of(call("c10d::alltoall_base_", **tensors))
    (uneven,) = messages_of(
        call(
            "c10d::alltoall_base_",
            **tensors,
            output_split_sizes=(1, 1, 2, 2),
            input_split_sizes=(2, 2, 2, 2),
        )
    )

    assert (even.name, even.sent_splits) == ("all_to_all", ())
    assert (uneven.name, uneven.sent_splits, uneven.received_splits) == (
        "all_to_allv",
        (2, 2, 2, 2),
        (1, 1, 2, 2),
    )


def test_a_transfer_has_a_peer_and_a_tag() -> None:
    pair = "size=2 nodes=1 name=7 ranks=1,5"

    (sent,) = messages_of(call("c10d::send", tensors=(spec(8),), process_group=pair, dst=5, tag=3))
    (received,) = messages_of(
        call("c10d::recv_", tensors=(spec(8),), process_group=pair, src=5, tag=3)
    )

    assert sent == Message("send", PAIR, 8, 8, "float32", peer=5, tag=3)
    assert received == Message("recv", PAIR, 8, 8, "float32", peer=5, tag=3)
    assert sent.is_transfer and received.is_transfer


def test_a_batch_is_a_message_for_each_transfer() -> None:
    batch = call(
        "_c10d_functional::batch_p2p_ops",
        op_list=("isend", "irecv"),
        peer_list=(2, 0),
        tag_list=(0, 1),
        tensors=(spec(8), spec(4)),
        group_name="size=3 nodes=1 name=pp ranks=0..2",
    )

    found = messages_of(batch)

    assert [(m.name, m.peer, m.tag, m.sent) for m in found] == [
        ("send", 2, 0, 8),
        ("recv", 0, 1, 4),
    ]


@pytest.mark.parametrize("group", ["g", "size=8 nodes=1"])
def test_nothing_is_said_where_the_ranks_are_not_known(group: str) -> None:
    assert messages_of(call("c10d::allreduce_", tensors=(spec(8),), process_group=group)) == ()


def test_other_ops_say_nothing() -> None:
    assert messages_of(call("relu", spec(8), self=spec(8))) == ()
    assert messages_of(call("c10d::wait", process_group=WORLD)) == ()
