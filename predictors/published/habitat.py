"""Habitat as published (arXiv 2102.00527): wave scaling from a measured GPU, perceptrons for what
its libraries choose again.

A kernel that other GPUs run as it is takes what it took on the source, scaled by its waves, by the
bandwidth and by the clock (`wave_scaling.py`). Products and convolutions, which are other kernels
on each GPU, take what a perceptron says: eight layers, of the operation's sizes and four figures of
the GPU, one for each of linear layers, batched products, convolutions in two dimensions, their
transposes and LSTMs. Of the last two no measurements are at hand: they have no perceptron.

    habitat = Habitat(source=find_gpu("T4"), measured={kernel: MeasuredLaunch(time_us, launch)})

gives it a source; so does `neusight carry PROFILE --predictor habitat`, with all kernels of a
profile. Without one, kernels that it would scale take their bytes over the bandwidth.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from neusight.predictors.errors import OptionError
from neusight.predictors.gpu import GPU
from neusight.predictors.kernel import ConvolutionSize, GemmSize, Kernel, size_of
from neusight.predictors.learned.network import exp_of, log_of
from neusight.predictors.physics.roofline import memory_roofline_us
from neusight.predictors.predictor import Estimate
from neusight.predictors.published.estimates import estimate_of
from neusight.predictors.published.network_files import NetworkFile, load_networks
from neusight.predictors.published.wave_scaling import LaunchSize, wave_scaled_us
from neusight.predictors.registry import register_predictor

Floats = NDArray[np.float64]

#: Half width of the interval of perceptrons and of bytes over bandwidth: the method's error on GPUs
#: and shapes that it was not trained on is a factor of several (arXiv 2407.13853).
_SPREAD = 2.0

#: The same of scaled kernels: their error from V100 to other GPUs of data/paper_fp32, 80 % quantile
#: of softmax and layer norm on the worst of four (benchmarks/results/carrying.csv).
_SCALED_SPREAD = 0.4

#: The logarithm of a latency in µs stays within these: a nanosecond to an hour.
LOG_RANGE = (-7.0, 22.0)


class MeasuredLaunch(NamedTuple):
    """What a kernel took on the source GPU, µs, and how it was launched there."""

    time_us: float
    launch: LaunchSize


def operation_of(kernel: Kernel) -> str | None:
    """The operation whose perceptron prices the kernel, None where there is none. All are of FP32,
    as the measurements are.

    >>> operation_of(Kernel.gemm(64, 64, 64, dtype="float32"))
    'linear'
    """
    size = kernel.size
    if kernel.compute != "fp32":
        return None
    if isinstance(size, GemmSize) and min(size) >= 1:
        return "bmm" if size.batch > 1 else "linear"
    if not isinstance(size, ConvolutionSize) or len(size.kernel) != 2 or size.groups > 1:
        return None
    return {"forward": "conv2d", "data_gradient": "conv_transpose2d"}.get(size.direction)


def features_of(kernels: Sequence[Kernel], gpu: GPU) -> Floats:
    """Logarithms of the sizes of each operation and of four figures of the GPU: memory in GB,
    bandwidth in GB/s, SMs and peak TFLOP/s; kernels of one operation."""
    target = (
        gpu.memory_bytes / 1e9,
        gpu.bandwidth_gbps,
        float(gpu.num_sms),
        gpu.peak_flops("fp32") / 1e12,
    )
    return log_of(np.array([(*_sizes(kernel), *target) for kernel in kernels], dtype=np.float64))


def _sizes(kernel: Kernel) -> tuple[float, ...]:
    if isinstance(kernel.size, GemmSize):
        return kernel.size
    size = size_of(kernel, ConvolutionSize)
    edges = (size.kernel, size.stride, size.input, size.output)
    return (*size[:3], *(edge[0] for edge in edges))


class Habitat:
    """The published predictor; its perceptrons are trained by `neusight fit --predictor habitat`.

    `measured` gives the time that kernels took on the GPU `source`. OptionError where one of
    the two is given without the other.
    """

    name = "habitat"

    def __init__(
        self,
        networks: Mapping[str, NetworkFile] | None = None,
        *,
        source: GPU | None = None,
        measured: Mapping[Kernel, MeasuredLaunch] | None = None,
    ) -> None:
        if (source is None) != (measured is None):
            raise OptionError(
                "Habitat scales what was measured: give both the GPU `source` and `measured`, its"
                " kernels, or use `neusight carry PROFILE --predictor habitat`."
            )
        self._networks = _shipped() if networks is None else networks
        self._source = source
        self._measured = measured or {}

    def predict(self, kernels: Sequence[Kernel], gpu: GPU) -> list[Estimate]:
        """One estimate a kernel, in order; WeightsError where the trained networks are missing."""
        by_operation: dict[str, list[int]] = {}
        for index, kernel in enumerate(kernels):
            operation = operation_of(kernel)
            if operation in self._networks and gpu.vendor == "nvidia":
                by_operation.setdefault(str(operation), []).append(index)
        found: dict[int, Estimate] = {}
        for operation, indices in by_operation.items():
            network = self._networks[operation]
            inputs = features_of([kernels[index] for index in indices], gpu)
            times = exp_of(np.clip(network.network.run(inputs)[:, 0], *LOG_RANGE))
            for index, time_us in zip(indices, times.tolist(), strict=True):
                known = gpu.model in network.gpus
                found[index] = estimate_of(
                    kernels[index],
                    gpu,
                    time_us,
                    predictor=self.name,
                    origin="trained",
                    spread=_SPREAD,
                    in_range=known,
                )
        return [found.get(index) or self._scaled(item, gpu) for index, item in enumerate(kernels)]

    def _scaled(self, kernel: Kernel, gpu: GPU) -> Estimate:
        """A kernel without a perceptron: from what the source took, else by its bytes."""
        known = self._measured.get(kernel)
        if known is None or self._source is None:
            time_us = memory_roofline_us(kernel, gpu)
            return estimate_of(
                kernel, gpu, time_us, predictor=self.name, origin="fallback", spread=_SPREAD
            )
        time_us = wave_scaled_us(
            known.time_us,
            known.launch,
            source=self._source,
            target=gpu,
            intensity=kernel.flops / max(1, kernel.num_bytes),
            compute=kernel.compute,
        )
        return estimate_of(
            kernel, gpu, time_us, predictor=self.name, origin="physics", spread=_SCALED_SPREAD
        )


@cache
def _shipped() -> dict[str, NetworkFile]:
    return load_networks(Path(__file__).parent / "weights", "habitat")


register_predictor("habitat", Habitat)
