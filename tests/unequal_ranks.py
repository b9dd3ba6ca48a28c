"""Two ranks that reduce their gradients together, of which the second computes for longer."""

from __future__ import annotations

from neusight.memory.placement import memory_of
from neusight.output.trace.ranks import RankForecast
from neusight.predictors.kernel import Kernel
from neusight.predictors.predictor import Estimate
from neusight.recording.recording import (
    Entry,
    EventWait,
    MathMode,
    OpCall,
    OpSignature,
    Recording,
    Step,
    Synchronize,
    TensorSpec,
)
from neusight.timeline.host import PLAIN
from neusight.timeline.ranks.together import schedule_together
from timelines import on_communicator

#: What a product takes on each rank, and a collective once both have come, µs.
PRODUCT_US = (100.0, 160.0)
COLLECTIVE_US = 50.0
NUM_COLLECTIVES = 4
NUM_STEPS = 5
NUM_BYTES = 2**22

_GRADIENT = TensorSpec((NUM_BYTES // 4,), (1,), "float32")
_REDUCED = OpSignature(
    "c10d::allreduce_",
    "default",
    (("tensors", (_GRADIENT,)), ("process_group", "size=2 nodes=2 name=0 ranks=0,1")),
    (_GRADIENT,),
)


def _price(call: OpCall) -> tuple[tuple[Kernel, Estimate], ...]:
    if call.signature.op == "aten::mm":
        us = call.signature.by_name["us"]
        assert isinstance(us, float)
        kernel, bound = Kernel.gemm(512, 512, 512), "compute"
    else:
        kernel = Kernel.collective("all_reduce", NUM_BYTES, 2, dtype="float32", num_nodes=2)
        us, bound = COLLECTIVE_US, "communication"
    return ((kernel, Estimate(us, us, us, bound, "physics", "test")),)  # type: ignore[arg-type]


def _program(rank: int) -> Recording:
    product = OpSignature("aten::mm", "default", (("x", _GRADIENT), ("us", PRODUCT_US[rank])), ())
    entries: list[Entry] = []
    for number in range(NUM_COLLECTIVES):
        entries.append(OpCall(product, MathMode(), "", "backward", 0, number, "MmBackward0"))
        reduced = OpCall(_REDUCED, MathMode(), "", "backward", 0, number, "MmBackward0")
        entries += on_communicator(reduced, number)
    entries += [EventWait(2 * NUM_COLLECTIVES, 0), Synchronize("synchronize")]
    step = Step("train", tuple(entries), NUM_STEPS)
    return Recording((step,), "H100", "2.13", world_size=2, rank=rank, gpus_per_node=1)


def unequal_ranks() -> list[RankForecast]:
    """Both, one on each of two hosts."""
    recordings = [_program(rank) for rank in range(2)]
    timelines = schedule_together(recordings, _price, PLAIN)
    return [
        RankForecast(recording, timeline, memory_of(recording))
        for recording, timeline in zip(recordings, timelines, strict=True)
    ]
