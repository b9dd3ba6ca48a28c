"""What a trace says of collectives: kernels, annotations, parameters and groups."""

from __future__ import annotations

from typing import Any

import pytest

from neusight.output.trace.file import trace_events
from neusight.predictors.gpu import find_gpu
from neusight.predictors.kernel import Kernel
from neusight.predictors.predictor import Estimate
from neusight.recording.recording import Entry, MathMode, OpCall, OpSignature, Recording, Step
from neusight.timeline.host import PLAIN
from neusight.timeline.launches import Pricing
from neusight.timeline.steps import schedule
from op_calls import call, spec

WORLD = "size=4 nodes=2 name=0 ranks=0..3"
TP = "size=2 nodes=1 name=1 ranks=2,3"
PP = "size=2 nodes=2 name=2 ranks=1,3"

REDUCED = call("c10d::allreduce_", tensors=(spec(64), spec(64)), process_group=WORLD)
GATHERED = call(
    "c10d::_allgather_base_", output_tensor=spec(64), input_tensor=spec(32), process_group=TP
)
SENT = call("c10d::send", tensors=(spec(16),), process_group=PP, dst=1, tag=0)
BATCH = call(
    "_c10d_functional::batch_p2p_ops",
    op_list=("isend", "irecv"),
    peer_list=(1, 1),
    tag_list=(0, 0),
    tensors=(spec(16), spec(8)),
    group_name=PP,
)
GATHERED_LIST = call(
    "c10d::allgather_",
    output_tensors=((spec(8),) * 2,),
    input_tensors=(spec(8),),
    process_group=TP,
)

KERNELS = {
    "c10d::allreduce_": (Kernel.collective("all_reduce", 512, 4, dtype="float32"),),
    "c10d::_allgather_base_": (Kernel.collective("all_gather", 256, 2, dtype="float32"),),
    "c10d::send": (Kernel.collective("send_recv", 64, 2, dtype="float32"),),
    "_c10d_functional::batch_p2p_ops": (Kernel.collective("send_recv", 64, 2, dtype="float32"),),
    "c10d::allgather_": (
        Kernel.collective("all_gather", 64, 2, dtype="float32"),
        Kernel.elementwise("copy", 8, dtype="float32"),
        Kernel.elementwise("copy", 8, dtype="float32"),
    ),
}


def price(op: OpCall) -> tuple[tuple[Kernel, Estimate], ...]:
    estimate = Estimate(10, 10, 10, "communication", "physics", "test")
    return tuple((kernel, estimate) for kernel in KERNELS[op.signature.op])


PRICE: Pricing = price


def op(signature: OpSignature, stream: int = 0) -> OpCall:
    return OpCall(signature, MathMode(), "", "forward", stream)


def trace_of(*signatures: OpSignature, count: int = 1) -> dict[str, Any]:
    """What rank 3 of four, two a host, writes of a program that calls these in each step."""
    entries: tuple[Entry, ...] = tuple(op(signature) for signature in signatures)
    recording = Recording((Step("train", entries, count),), gpu="H100", torch_version="2")
    timeline = schedule(recording, PRICE, PLAIN)
    return trace_events(timeline, None, find_gpu("H100"), rank=3, world_size=4, gpus_per_node=2)


def of(trace: dict[str, Any], category: str, prefix: str) -> list[dict[str, Any]]:
    return [
        event
        for event in trace["traceEvents"]
        if event.get("cat") == category and event["ph"] == "X" and event["name"].startswith(prefix)
    ]


def kernels(trace: dict[str, Any]) -> list[dict[str, Any]]:
    return of(trace, "kernel", "nccl")


def test_a_kernel_says_what_its_call_said() -> None:
    (kernel,) = kernels(trace_of(GATHERED))

    reported = {key: kernel["args"][key] for key in (
        "Collective name", "In msg nelems", "Out msg nelems", "Group size", "dtype",
        "In split size", "Out split size", "Process Group Name", "Process Group Description",
        "Process Group Ranks", "Seq",
    )}  # fmt: skip
    assert reported == {
        "Collective name": "_allgather_base",
        "In msg nelems": 32,
        "Out msg nelems": 64,
        "Group size": 2,
        "dtype": "Float",
        "In split size": "[]",
        "Out split size": "[]",
        "Process Group Name": "1",
        "Process Group Description": "undefined",
        "Process Group Ranks": "[2, 3]",
        "Seq": 1,
    }


def test_the_gpu_is_that_of_the_rank_on_its_host() -> None:
    trace = trace_of(GATHERED)

    (kernel,) = kernels(trace)
    assert (kernel["pid"], kernel["args"]["device"]) == (1, 1)
    assert [device["id"] for device in trace["deviceProperties"]] == [0, 1]
    assert of(trace, "cpu_op", "record_param_comms")[0]["args"]["Rank"] == 3


def test_calls_of_a_group_are_numbered_through_steps_that_are_folded_away() -> None:
    trace = trace_of(REDUCED, GATHERED, REDUCED, count=100)

    numbers: dict[str, list[int]] = {"0": [], "1": []}
    for kernel in kernels(trace):
        numbers[kernel["args"]["Process Group Name"]].append(kernel["args"]["Seq"])
    steps = [int(e["name"].partition("#")[2]) for e in of(trace, "user_annotation", "Profiler")]
    assert numbers["1"] == [step + 1 - steps[0] for step in steps]
    assert numbers["0"] == [n for last in numbers["1"] for n in (2 * last - 1, 2 * last)]


def test_a_transfer_says_who_sends_to_whom() -> None:
    trace = trace_of(SENT)

    (kernel,) = kernels(trace)
    assert kernel["name"].startswith("ncclDevKernel_SendRecv(")
    assert (kernel["args"]["Src Rank"], kernel["args"]["Dst Rank"]) == (3, 1)
    assert len(of(trace, "user_annotation", "nccl:send 3->1")) == 1


def test_a_batch_is_one_kernel_and_notes_each_transfer() -> None:
    trace = trace_of(BATCH)

    (kernel,) = kernels(trace)
    assert kernel["args"]["Collective name"] == "coalesced"
    assert (kernel["args"]["In msg nelems"], kernel["args"]["Out msg nelems"]) == (16, 8)
    (around,) = of(trace, "user_annotation", "nccl:coalesced")
    calls = of(trace, "cpu_op", "record_param_comms")
    assert [event["args"]["Collective name"] for event in calls] == ["send", "recv"]
    assert [event["args"]["Dst Rank"] for event in calls] == [1, 3]
    reached = around["ts"]
    for event in calls:
        assert reached < event["ts"]
        reached = event["ts"] + event["dur"]
    assert reached < around["ts"] + around["dur"]


@pytest.mark.parametrize("signature", [REDUCED, GATHERED, GATHERED_LIST, SENT, BATCH])
def test_only_the_kernel_of_nccl_is_tied_to_its_annotation(signature: OpSignature) -> None:
    trace = trace_of(signature)

    (annotation,) = of(trace, "user_annotation", "nccl:")
    number = annotation["args"]["External id"]
    tied = [e["name"] for e in of(trace, "kernel", "") if e["args"]["External id"] == number]
    assert len(tied) == 1 and tied[0].startswith("ncclDevKernel")
    launches = [e for e in of(trace, "cuda_runtime", "") if e["args"]["External id"] == number]
    (launch,) = launches
    assert annotation["ts"] < launch["ts"]
    assert launch["ts"] + launch["dur"] < annotation["ts"] + annotation["dur"]


def test_bytes_are_those_that_the_rank_puts_in() -> None:
    trace = trace_of(REDUCED, GATHERED, BATCH)

    shapes = {
        event["name"]: (event["args"]["Input Dims"], event["args"]["Input type"])
        for event in of(trace, "user_annotation", "nccl:")
    }
    assert shapes == {
        "nccl:all_reduce": ([[128]], ["float"]),
        "nccl:all_gather": ([[32]], ["float"]),
        "nccl:coalesced": ([[16]], ["float"]),
    }


def test_every_group_that_communicates_is_described() -> None:
    info = trace_of(GATHERED, BATCH)["distributedInfo"]

    assert {key: info[key] for key in ("backend", "rank", "world_size", "pg_count")} == {
        "backend": "nccl",
        "rank": 3,
        "world_size": 4,
        "pg_count": 3,
    }
    groups = [(group["pg_name"], group["pg_desc"], group["ranks"]) for group in info["pg_config"]]
    assert groups == [
        ("0", "default_pg", [0, 1, 2, 3]),
        ("1", "undefined", [2, 3]),
        ("2", "undefined", [1, 3]),
    ]


def test_a_group_of_transfers_has_all_that_take_part_in_it() -> None:
    def sent(peer: int) -> OpSignature:
        pair = f"size=4 nodes=2 name=5 ranks={min(peer, 3)},{max(peer, 3)}"
        return call("c10d::send", tensors=(spec(16),), process_group=pair, dst=peer, tag=0)

    groups = trace_of(sent(2), sent(1), sent(2))["distributedInfo"]["pg_config"]

    assert [group["ranks"] for group in groups if group["pg_name"] == "5"] == [[1, 2, 3]]


def test_a_long_list_of_ranks_is_cut_as_a_profile_cuts_it() -> None:
    wide = "size=64 nodes=8 name=0 ranks=0..63"
    (kernel,) = kernels(trace_of(call("c10d::allreduce_", tensors=(spec(64),), process_group=wide)))

    assert kernel["args"]["Process Group Ranks"].endswith(", 28, 29, ...]")
    assert kernel["args"]["Group size"] == 64
