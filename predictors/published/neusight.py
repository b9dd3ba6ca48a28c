"""NeuSight as published (arXiv 2407.13853): tiles, waves and a learned utilization.

A kernel is cut into the tiles that its library would use, taken from a table of measured launches
by the nearest shape. All tiles of a wave run at once, one an SM:

    waves       = ceil(tiles / SMs)
    roofline    = min(peak FLOP/s of an SM, FLOPs / bytes of the kernel x bandwidth of an SM)
    utilization = alpha - beta / waves
    latency     = waves x FLOPs of a tile / (roofline x utilization)

A perceptron of eight layers gives alpha and beta, each through a sigmoid, from five ratios of what
a tile asks to what an SM has (`FEATURES`); there is one for each of five classes: batched
products, fully connected layers, elementwise kernels, softmax and layer norm. A fused kernel counts
as one kernel, with the FLOPs of all that it stands for and the bytes that cross its border.
Everything else takes its bytes over the bandwidth.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from math import prod
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from neusight.predictors.gpu import GPU
from neusight.predictors.kernel import GemmSize, Kernel, KernelClass, RowsSize, size_of
from neusight.predictors.learned.network import exp_of, log_of
from neusight.predictors.physics.roofline import memory_roofline_us
from neusight.predictors.predictor import Estimate
from neusight.predictors.published.classes import class_of
from neusight.predictors.published.estimates import estimate_of
from neusight.predictors.published.trained_class import TrainedClass, load_classes
from neusight.predictors.registry import register_predictor

Floats = NDArray[np.float64]

#: What a network sees of a kernel, as natural logarithms: what a tile asks of an SM over what the
#: SM has, for the caches what its SM is asked over all waves, and the tile's intensity
#: over the SM's balance (the paper's table of features).
FEATURES = (
    "tile_flops_over_sm_flops",
    "tile_bytes_over_sm_bandwidth",
    "bytes_of_all_waves_over_sm_l2",
    "bytes_of_all_waves_over_sm_memory",
    "tile_intensity_over_sm_balance",
)

#: Share of the link that collectives reach (the paper's distributed cases: bytes of a ring over
#: 72 % of the link).
_LINK_SHARE = 0.72

#: Half width of the interval of kernels without a network: bytes over bandwidth is 52 % off on
#: data/modern.
_FALLBACK_SPREAD = 1.0

#: The least utilization: far below any that was measured; latencies stay finite.
LEAST_UTILIZATION = 1e-3


class Tiling(NamedTuple):
    """How kernels are cut, an entry a kernel: what a tile computes and moves, and how many."""

    tile_flops: Floats
    tile_bytes: Floats
    num_tiles: Floats

    def waves_on(self, gpu: GPU) -> Floats:
        """The number of waves; the last one may not fill all SMs."""
        waves: Floats = np.ceil(self.num_tiles / gpu.num_sms)
        return waves


def shape_of(kernel: Kernel) -> tuple[int, int, int, int]:
    """The key of the table of tiles: batch, m, n, k of a product, else rows and width."""
    if isinstance(kernel.size, GemmSize):
        return kernel.size
    return (1, *size_of(kernel, RowsSize), 1)


def tilings(kernels: Sequence[Kernel], tiles: NDArray[np.int64]) -> Tiling:
    """The kernels cut into `tiles` (m, n of a product; elements of the output otherwise, and 1)."""
    flops, moved, count = (np.empty(len(kernels)) for _ in range(3))
    for index, (kernel, (rows, columns)) in enumerate(zip(kernels, tiles.tolist(), strict=True)):
        size = kernel.size
        if isinstance(size, GemmSize):
            elements = size.batch * ((size.m + size.n) * size.k + size.m * size.n)
            item = kernel.num_bytes / max(1, elements)
            flops[index] = 2.0 * rows * columns * size.k
            moved[index] = item * ((rows + columns) * size.k + rows * columns)
            count[index] = size.batch * -(-size.m // rows) * -(-size.n // columns)
        else:
            elements = prod(size_of(kernel, RowsSize))
            inside = min(rows, elements)
            count[index] = -(-elements // inside)
            flops[index] = kernel.flops * (inside / elements)
            moved[index] = max(1.0, kernel.num_bytes * (inside / elements))
    return Tiling(flops, moved, count)


def features_of(kernels: Sequence[Kernel], tiling: Tiling, gpu: GPU) -> Floats:
    """The five features of each kernel on the GPU, rows x `FEATURES`."""
    peak = _sm_flops(kernels, gpu)
    bandwidth = _sm_bandwidth(gpu)
    of_all_waves = tiling.waves_on(gpu) * tiling.tile_bytes
    columns = (
        tiling.tile_flops / peak,
        tiling.tile_bytes / bandwidth,
        of_all_waves / (gpu.l2_bytes / gpu.num_sms),
        of_all_waves / (gpu.memory_bytes / gpu.num_sms),
        tiling.tile_flops / tiling.tile_bytes * bandwidth / peak,
    )
    return np.stack([log_of(column) for column in columns], axis=1)


def ideal_us(kernels: Sequence[Kernel], tiling: Tiling, gpu: GPU) -> Floats:
    """The latency of each kernel at a utilization of one, µs: whole waves at the roofline."""
    moved = np.array([max(1, kernel.num_bytes) for kernel in kernels], dtype=np.float64)
    intensity = tiling.num_tiles * tiling.tile_flops / moved
    roofline = np.minimum(_sm_flops(kernels, gpu), intensity * _sm_bandwidth(gpu))
    found: Floats = tiling.waves_on(gpu) * tiling.tile_flops / roofline * 1e6
    return found


def utilization(outputs: Floats, waves: Floats) -> Floats:
    """alpha - beta / waves, where a network's two outputs give alpha and beta."""
    alpha, beta = (1.0 / (1.0 + exp_of(-np.clip(outputs, -30.0, 30.0)))).T
    found: Floats = np.maximum(alpha - beta / waves, LEAST_UTILIZATION)
    return found


def _sm_flops(kernels: Sequence[Kernel], gpu: GPU) -> Floats:
    peaks = [
        gpu.peak_flops(kernel.compute, matrix=kernel.kernel_class is KernelClass.GEMM)
        for kernel in kernels
    ]
    return np.array(peaks) / gpu.num_sms


def _sm_bandwidth(gpu: GPU) -> float:
    return gpu.bandwidth_gbps * 1e9 / gpu.num_sms


class NeuSight:
    """The published predictor, trained on that paper's tables by `neusight fit`."""

    name = "neusight"

    def __init__(self, classes: dict[tuple[str, str], TrainedClass] | None = None) -> None:
        self._classes = _shipped() if classes is None else classes

    @property
    def trained_gpus(self) -> set[str]:
        """The GPUs whose measurements any class was trained on."""
        return {gpu for item in self._classes.values() for gpu in item.provenance["gpus"]}

    def predict(self, kernels: Sequence[Kernel], gpu: GPU) -> list[Estimate]:
        """One estimate a kernel, in order; WeightsError where the trained classes are missing."""
        found: dict[int, Estimate] = {}
        by_class: dict[str, list[int]] = {}
        for index, kernel in enumerate(kernels):
            name = class_of(kernel)
            if name is None or (gpu.vendor, name) not in self._classes:
                found[index] = _memory_bound(kernel, gpu)
            else:
                by_class.setdefault(name, []).append(index)
        for name, indices in by_class.items():
            chosen = [kernels[index] for index in indices]
            found.update(zip(indices, self._priced(name, chosen, gpu), strict=True))
        return [found[index] for index in range(len(kernels))]

    def _priced(self, name: str, kernels: Sequence[Kernel], gpu: GPU) -> list[Estimate]:
        trained = self._classes[(gpu.vendor, name)]
        tiles = trained.tiles.nearest([shape_of(kernel) for kernel in kernels], gpu)
        tiling = tilings(kernels, tiles)
        outputs = trained.network.run(features_of(kernels, tiling, gpu))
        waves = tiling.waves_on(gpu)
        times = ideal_us(kernels, tiling, gpu) / utilization(outputs, waves)
        spread = trained.spread_on(gpu)
        return [
            _estimate(kernel, gpu, time, spread, tile, num_waves, num_tiles)
            for kernel, time, tile, num_waves, num_tiles in zip(
                kernels,
                times.tolist(),
                tiles.tolist(),
                waves.tolist(),
                tiling.num_tiles.tolist(),
                strict=True,
            )
        ]


def _estimate(
    kernel: Kernel,
    gpu: GPU,
    time_us: float,
    spread: float,
    tile: Sequence[int],
    num_waves: float,
    num_tiles: float,
) -> Estimate:
    found = estimate_of(
        kernel,
        gpu,
        time_us,
        predictor=NeuSight.name,
        origin="trained",
        spread=spread,
        in_range=kernel.dtype == "float32",
    )
    return replace(
        found,
        tile=(tile[0], tile[1]) if kernel.kernel_class is KernelClass.GEMM else None,
        num_ctas=int(num_tiles),
        num_waves=num_waves,
    )


def _memory_bound(kernel: Kernel, gpu: GPU) -> Estimate:
    """Bytes over bandwidth: the paper's price of all other kernels, and the least of any."""
    time_us = memory_roofline_us(kernel, gpu)
    if kernel.kernel_class is KernelClass.COLLECTIVE:
        time_us /= _LINK_SHARE
    found = estimate_of(
        kernel, gpu, time_us, predictor=NeuSight.name, origin="fallback", spread=_FALLBACK_SPREAD
    )
    if kernel.kernel_class is not KernelClass.COLLECTIVE:
        found = replace(found, bound="memory")
    return replace(found, low_us=found.latency_us)


@cache
def _shipped() -> dict[tuple[str, str], TrainedClass]:
    return load_classes(Path(__file__).parent / "weights")


register_predictor("neusight", NeuSight)
