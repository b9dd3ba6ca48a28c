"""Programs of several ranks written down by hand, on hosts that cost nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

from neusight.predictors.kernel import Kernel
from neusight.predictors.predictor import Estimate
from neusight.recording.recording import (
    Entry,
    MathMode,
    OpCall,
    OpSignature,
    Recording,
    Step,
    TensorSpec,
)
from neusight.timeline.host import PLAIN

_NO_COSTS: dict[str, Any] = {f.name: 0.0 for f in fields(PLAIN) if f.name.endswith("_us")}
#: A host of which nothing takes time.
FREE = replace(PLAIN, name="free", **_NO_COSTS)
_MATH = MathMode()
_SIGNATURES: dict[tuple[object, ...], OpSignature] = {}


def _call(op: str, *arguments: tuple[str, object], stream: int = 0, line: int = 1) -> OpCall:
    key = (op, *arguments)
    signature = _SIGNATURES.get(key)
    if signature is None:
        signature = _SIGNATURES[key] = OpSignature(op, "default", arguments, ())  # type: ignore[arg-type]
    return OpCall(signature, _MATH, stream=stream, stack=(f"train.py:{line}",))


def spec(elements: int = 8) -> TensorSpec:
    return TensorSpec((elements,), (1,), "float32")


def work(us: float, *, stream: int = 0) -> OpCall:
    """A kernel of so many microseconds."""
    return _call("test::work", ("us", us), stream=stream)


def group_text(ranks: str, name: str = "0") -> str:
    return f"size=2 nodes=1 name={name} ranks={ranks}"


def reduce(
    ranks: str = "0..1", *, elements: int = 8, line: int = 1, name: str = "0", stream: int = 0
) -> OpCall:
    """An all-reduce of 10 µs."""
    return _call(
        "c10d::allreduce_",
        ("tensors", (spec(elements),)),
        ("process_group", group_text(ranks, name)),
        stream=stream,
        line=line,
    )


def gather(ranks: str = "0..1", *, line: int = 1) -> OpCall:
    """An all-gather of 10 µs."""
    return _call(
        "c10d::_allgather_base_",
        ("output_tensor", spec(16)),
        ("input_tensor", spec(8)),
        ("process_group", group_text(ranks)),
        line=line,
    )


def send(peer: int, own: int, *, stream: int = 0, line: int = 1) -> OpCall:
    """A transfer of 10 µs to another rank."""
    return _transfer("c10d::send", "dst", peer, own, stream, line)


def receive(peer: int, own: int, *, stream: int = 0, line: int = 1) -> OpCall:
    """One from another rank."""
    return _transfer("c10d::recv_", "src", peer, own, stream, line)


def _transfer(op: str, end: str, peer: int, own: int, stream: int, line: int) -> OpCall:
    ranks = f"{min(peer, own)},{max(peer, own)}"
    return _call(
        op,
        ("tensors", (spec(),)),
        ("process_group", group_text(ranks)),
        (end, peer),
        stream=stream,
        line=line,
    )


def batch(own: int, *transfers: tuple[str, int], line: int = 1) -> OpCall:
    """Transfers of 10 µs that are launched as one: ("isend" or "irecv", peer)."""
    peers = tuple(peer for _, peer in transfers)
    return _call(
        "_c10d_functional::batch_p2p_ops",
        ("op_list", tuple(kind for kind, _ in transfers)),
        ("peer_list", peers),
        ("tag_list", (0,) * len(transfers)),
        ("tensors", tuple(spec() for _ in transfers)),
        ("group_name", group_text(",".join(map(str, sorted({own, *peers}))))),
        line=line,
    )


def price(call: OpCall) -> tuple[tuple[Kernel, Estimate], ...]:
    us = call.signature.by_name.get("us", 10.0)
    assert isinstance(us, float)
    estimate = Estimate(us, us, us, "memory", "physics", "test")
    if call.signature.op == "test::work":
        return ((Kernel.elementwise("relu", 1024, dtype="float32"), estimate),)
    return ((Kernel.collective("all_reduce", 1024, 8), estimate),)


def free_transfers(call: OpCall) -> tuple[tuple[Kernel, Estimate], ...]:
    """The same with transfers that take (almost) no time."""
    ((kernel, estimate),) = price(call)
    if call.signature.op == "test::work":
        return ((kernel, estimate),)
    return ((kernel, replace(estimate, latency_us=0.0, low_us=0.0, high_us=0.0)),)


def program(rank: int, *steps: Sequence[Entry], count: int = 1) -> Recording:
    """What a rank did, each step so many times."""
    return Recording(
        tuple(Step("train", tuple(entries), count) for entries in steps),
        gpu="H100",
        torch_version="2.13",
        world_size=64,
        rank=rank,
    )
