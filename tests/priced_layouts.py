"""A model of eight blocks, and the record of one of them, priced in round numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from neusight.integrations.layouts.block import BlockOf, BlockRecord
from neusight.integrations.layouts.layout import ModelShape, StepLoad
from neusight.integrations.layouts.pricing import LayoutPricer
from neusight.predictors.gpu import GPU, find_gpu
from neusight.predictors.kernel import Kernel
from neusight.predictors.predictor import Estimate

H100 = find_gpu("H100")
SHAPE = ModelShape("Model", 8, 16, 16, 100_000_000, 200_000_000, has_stages=True)
STEP = StepLoad(8 * 8 * 4096, 4096)
GEMM = Kernel.gemm(4096, 4096, 4096)
RECORD = BlockRecord(
    micro_batch=1,
    kernels=(
        ("block", False, GEMM),
        ("block", True, GEMM),
        ("block", True, GEMM),
        ("again", True, GEMM),
    ),
    kept_bytes=2**30,
    input_bytes=2**25,
    edge_bytes=2**30,
    host_us=(0.0, 0.0),
)


def tenths(kernels: list[Kernel]) -> list[Estimate]:
    """100 µs a product, 1 µs a collective."""
    return [
        Estimate(100.0, 90.0, 110.0, "compute", "physics", "test")
        if kernel.flops
        else Estimate(1.0, 0.9, 1.1, "communication", "physics", "test")
        for kernel in kernels
    ]


class Tenths:
    """The same as a predictor."""

    name = "tenths"

    def predict(self, kernels: Sequence[Kernel], gpu: GPU) -> list[Estimate]:
        return tenths(list(kernels))


def recorded(
    work: Callable[[BlockOf], object], wanted: Sequence[BlockOf], *, at_once: int
) -> Iterator[tuple[int, BlockRecord | str]]:
    """`RECORD` of each block, but of those that two ranks split."""
    for place, of in enumerate(wanted):
        yield place, "it broke" if of.tensor == 2 else RECORD


PRICER = LayoutPricer(SHAPE, STEP, H100, tenths, gpus_per_node=8, storage_gbps=2.0)
