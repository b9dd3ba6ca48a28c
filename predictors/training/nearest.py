"""The measured rows that are nearest to a kernel."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from neusight.predictors.gpu import GPU
from neusight.predictors.kernel import (
    AttentionSize,
    CollectiveSize,
    ConvolutionSize,
    GemmSize,
    Kernel,
)
from neusight.predictors.training.dataset import Group

#: What another dtype, layout or name counts, in factors of two of a size.
_OTHER_DTYPE = 2.0
_OTHER_LAYOUT = 1.0
_OTHER_NAME = 4.0


@dataclass(frozen=True)
class NearRow:
    """A measured row of the same GPU and class: its kernel, which a price can be laid beside, its
    time, and how far its sizes are, in factors of two (0: the same kernel)."""

    kernel: Kernel
    measured_us: float
    distance: float


def nearest_rows(kernel: Kernel, gpu: GPU, groups: Sequence[Group]) -> list[NearRow]:
    """The three rows of those groups that are nearest, each shape once."""
    found: dict[Kernel, NearRow] = {}
    for row in _rows_of(kernel, gpu, groups):
        found.setdefault(row.kernel, row)
    return sorted(found.values(), key=lambda row: row.distance)[:3]


def _rows_of(kernel: Kernel, gpu: GPU, groups: Sequence[Group]) -> Iterator[NearRow]:
    for group in groups:
        if group.gpu.model != gpu.model or group.has_overhead:
            continue
        times = group.latency_us.tolist()
        for launches, time_us in zip(group.launches, times, strict=True):
            [*before, measured] = launches
            if not before and measured.kernel_class is kernel.kernel_class:
                distance = _distance(kernel, measured)
                if math.isfinite(distance):
                    yield NearRow(measured, time_us, distance)


def _distance(one: Kernel, other: Kernel) -> float:
    """The distance of two kernels of a class; infinite where they do different things."""
    kinds, sizes = _parts(one)
    other_kinds, other_sizes = _parts(other)
    if kinds != other_kinds or len(sizes) != len(other_sizes):
        return math.inf
    apart = sum(
        abs(math.log2(max(1, a) / max(1, b))) for a, b in zip(sizes, other_sizes, strict=True)
    )
    apart += _OTHER_DTYPE * (one.dtype != other.dtype or one.compute != other.compute)
    apart += _OTHER_LAYOUT * (one.layout != other.layout)
    has_own_size = isinstance(one.size, (GemmSize, ConvolutionSize, AttentionSize))
    # The name distinguishes kernels that move rows.
    return apart + _OTHER_NAME * (one.name != other.name and not has_own_size)


def _parts(kernel: Kernel) -> tuple[tuple[object, ...], tuple[int, ...]]:
    """What must be equal, and the sizes that may differ."""
    size = kernel.size
    if isinstance(size, GemmSize):
        return (), (size.batch, size.m, size.n, size.k)
    if isinstance(size, ConvolutionSize):
        sizes = (size.batch, size.in_channels, size.out_channels, size.groups)
        return (size.direction,), (*sizes, *size.input, *size.kernel, *size.stride)
    if isinstance(size, AttentionSize):
        heads = (size.batch, size.heads, size.kv_heads)
        return (size.causal, size.backward), (*heads, size.seq_q, size.seq_kv, size.head_dim)
    if isinstance(size, CollectiveSize):
        return (kernel.name,), (size.num_bytes, size.world_size, size.num_nodes)
    return (kernel.is_backward, kernel.along_columns), (size.rows, size.width)
