"""The trained correction of the physics: which kernels it covers, and how sure it is.

A family is what one network was trained for. What no data cover (backward attention, batched and
TF32 products) has no family and stays physics; GEMMs of other layouts take the network's factor,
as the same kernels run them, but count as physics.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from neusight.predictors.features import (
    BY_ROW,
    GEMM_FEATURES,
    QUANTISATION_FEATURES,
    gemm_features,
    quantisation_features,
)
from neusight.predictors.gpu import GPU
from neusight.predictors.kernel import GemmSize, Kernel, KernelClass, RowsSize
from neusight.predictors.network import Network, exp_of, load_network
from neusight.predictors.predictor import Timing

__all__ = [
    "FAMILIES",
    "SIZE_CLASSES_US",
    "Adjustment",
    "Family",
    "Trained",
    "family_of",
    "knowledge_of",
    "shipped",
]

Floats = NDArray[np.float64]

#: Upper ends of the size classes, µs; the last class is open.
SIZE_CLASSES_US = (10.0, 100.0, 1000.0)

#: How much wider the interval is for each feature outside the range of training.
_WIDENING = 1.5
_WIDEST_FACTOR = 4.0

#: GEMMs of layouts that were never measured: the interval of the physics at least.
_UNMEASURED_SPREAD = 0.25

#: Rows whose features are computed at once.
_CHUNK = 2048


class Adjustment(NamedTuple):
    """What a correction says of one kernel: the factor on the physics' time, the half width of
    the 80 % interval as a share, whether the kernel lies inside what was trained, and whether it
    counts as trained at all."""

    factor: float
    spread: float
    in_range: bool = True
    trained: bool = True


class Family(NamedTuple):
    """Kernels that share a network: its features, and their names."""

    names: tuple[str, ...]
    features: Callable[[Sequence[Kernel], Sequence[Timing], GPU], Floats]


def _gemm_features(kernels: Sequence[Kernel], timings: Sequence[Timing], gpu: GPU) -> Floats:
    return gemm_features(kernels, timings, gpu, kernels[0].compute)


FAMILIES: dict[str, Family] = {
    "gemm_16bit": Family(GEMM_FEATURES, _gemm_features),
    "gemm_fp8": Family(GEMM_FEATURES, _gemm_features),
    "quantisation": Family(QUANTISATION_FEATURES, quantisation_features),
}


def family_of(kernel: Kernel, gpu: GPU) -> str | None:
    """The family whose network corrects the kernel on that GPU, None where there is none."""
    if gpu.vendor != "nvidia":
        return None
    size = kernel.size
    if isinstance(size, GemmSize):
        if min(size) < 1 or size.batch != 1 or not gpu.has_matrix_unit(kernel.compute):
            return None
        if kernel.compute in ("bf16", "fp16"):
            return "gemm_16bit"
        return "gemm_fp8" if kernel.compute == "fp8" else None
    if isinstance(size, RowsSize) and kernel.name in _QUANTISATIONS:
        return "quantisation" if min(size) >= 1 else None
    return None


_QUANTISATIONS = (BY_ROW, "quant_fp8_static")


def _was_measured(kernel: Kernel) -> bool:
    """Whether data cover the kernel's layout; the others take the factor and stay physics."""
    return kernel.kernel_class is not KernelClass.GEMM or kernel.layout == "nt"


def knowledge_of(gpu: GPU, network: Network) -> int:
    """The row of `Network.spreads`: each GPU of the training has its own, then comes the one of
    unseen GPUs whose constants were measured, last that of GPUs whose constants are a prior."""
    if gpu.name in network.gpus:
        return network.gpus.index(gpu.name)
    return -2 if gpu.constants_origin.startswith("fitted") else -1


class Trained:
    """A `Correction` by networks, one a family."""

    def __init__(self, networks: dict[str, Network]) -> None:
        self._networks = networks

    def factors(
        self, kernels: Sequence[Kernel], gpu: GPU, timings: Sequence[Timing]
    ) -> list[Adjustment | None]:
        """One adjustment a kernel, None where no network covers it."""
        members: dict[tuple[str, str], list[int]] = {}
        for index, kernel in enumerate(kernels):
            family = family_of(kernel, gpu)
            if family in self._networks:
                # A chunk shares its unit (bf16, fp16): the physics' terms depend on it.
                members.setdefault((str(family), kernel.compute), []).append(index)
        found: list[Adjustment | None] = [None] * len(kernels)
        for (family, _), indices in members.items():
            for start in range(0, len(indices), _CHUNK):
                chunk = indices[start : start + _CHUNK]
                adjusted = _adjusted(
                    family,
                    self._networks[family],
                    [kernels[index] for index in chunk],
                    [timings[index] for index in chunk],
                    gpu,
                )
                for index, adjustment in zip(chunk, adjusted, strict=True):
                    found[index] = adjustment
        return found


def _adjusted(
    family: str,
    network: Network,
    kernels: Sequence[Kernel],
    timings: Sequence[Timing],
    gpu: GPU,
) -> list[Adjustment]:
    features = FAMILIES[family].features(kernels, timings, gpu)
    factors = exp_of(network.run(features))
    times = np.array([timing.time_us for timing in timings]) * factors
    classes = np.searchsorted(np.array(SIZE_CLASSES_US), times, side="right")
    outside = network.num_outside(features)
    widening = np.minimum(_WIDENING**outside, _WIDEST_FACTOR)
    spreads = network.spreads[knowledge_of(gpu, network)][classes] * widening
    return [
        Adjustment(factor, spread, in_range=missed == 0)
        if _was_measured(kernel)
        else Adjustment(factor, max(spread, _UNMEASURED_SPREAD), in_range=False, trained=False)
        for kernel, factor, spread, missed in zip(
            kernels, factors.tolist(), spreads.tolist(), outside.tolist(), strict=True
        )
    ]


@cache
def shipped() -> Trained:
    """The correction that comes with neusight, read once; WeightsError names a damaged file."""
    return Trained(load_folder(Path(__file__).parent / "weights"))


def load_folder(folder: Path) -> dict[str, Network]:
    """The networks of a folder that `neusight fit` wrote, by family; others are not looked at."""
    return {
        family: load_network(folder / f"{family}.npz")
        for family in FAMILIES
        if (folder / f"{family}.npz").exists()
    }
