"""Latency linear in FLOPs, as Li et al. publish it (MICRO 2023, doi 10.1145/3613424.3614277).

Of each class and GPU that was measured, a line over FLOPs; for other GPUs of the vendor, the
throughput is a line over the memory bandwidth. Classes that were not measured take their bytes over
the bandwidth.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from neusight.predictors.errors import WeightsError
from neusight.predictors.files import read_bytes, write_atomically
from neusight.predictors.gpu import GPU
from neusight.predictors.kernel import Kernel, KernelClass
from neusight.predictors.physics.roofline import memory_roofline_us
from neusight.predictors.predictor import Estimate, Origin
from neusight.predictors.published.classes import class_of
from neusight.predictors.published.estimates import estimate_of
from neusight.predictors.registry import register_predictor

Floats = NDArray[np.float64]

#: Version of the file's layout; other versions are refused.
SCHEMA_VERSION = 1

#: Largest file read, bytes: larger ones are refused before they fill the memory.
_MOST_BYTES = 2**20

#: Half width of the interval: the paper's own comparison finds this method about 60 % off
#: (arXiv 2407.13853, section 6).
_SPREAD = 0.6

#: The least throughput that a line over bandwidth may give, as a share of the slowest GPU's.
_LEAST_SHARE = 0.1


#: Iterations of the fit, weighted by the line's own values; it converges in about five.
_ROUNDS = 12


@dataclass(frozen=True)
class FlopLine:
    """time = `start_us` + FLOPs / `flops_per_us`."""

    start_us: float
    flops_per_us: float


@dataclass(frozen=True)
class LinearClass:
    """One class on one vendor: a line for each GPU, and throughput = `base` + `slope` x GB/s."""

    lines: Mapping[str, FlopLine]
    base: float
    slope: float

    def on(self, gpu: GPU) -> FlopLine:
        """The GPU's own line, else one by its bandwidth with the mean start of the others."""
        own = self.lines.get(gpu.model)
        if own is not None:
            return own
        slowest = min(line.flops_per_us for line in self.lines.values())
        throughput = max(self.base + self.slope * gpu.bandwidth_gbps, _LEAST_SHARE * slowest)
        start = sum(line.start_us for line in self.lines.values()) / len(self.lines)
        return FlopLine(start, throughput)


def linear_class_of(kernel: Kernel) -> str | None:
    """NeuSight's classes, and forward convolutions."""
    if kernel.kernel_class is KernelClass.CONVOLUTION:
        return "convolution" if kernel.flops else None
    return class_of(kernel)


def fitted_line(flops: Floats, time_us: Floats) -> FlopLine:
    """The line of least squares over FLOPs, which starts at 0 or later.

    A deviation counts as a share of the line itself, as scores do: in microseconds the few longest
    kernels would set the start of all, and as a share of the label those that came out shortest.

    >>> fitted_line(np.array([0.0, 10.0]), np.array([1.0, 2.0]))
    FlopLine(start_us=1.0, flops_per_us=10.0)
    """
    line = time_us.copy()
    for _ in range(_ROUNDS):
        start, slope = _weighted_line(flops, time_us, 1.0 / (line * line))
        line = start + slope * flops
    return FlopLine(round(start, 6), round(1.0 / slope, 6))


def _weighted_line(flops: Floats, time_us: Floats, weights: Floats) -> tuple[float, float]:
    mean_flops, mean_time = (float(np.average(x, weights=weights)) for x in (flops, time_us))
    centred = flops - mean_flops
    slope = float((weights * centred * time_us).sum() / (weights * centred * centred).sum())
    start = mean_time - slope * mean_flops
    if start >= 0.0 and slope > 0.0:
        return start, slope
    return 0.0, float((weights * flops * time_us).sum() / (weights * flops * flops).sum())


class Linear:
    """The published linear model; fitted on the FP32 tables by `neusight fit`."""

    name = "linear"

    def __init__(self, classes: Mapping[tuple[str, str], LinearClass] | None = None) -> None:
        self._classes = _shipped() if classes is None else classes

    def predict(self, kernels: Sequence[Kernel], gpu: GPU) -> list[Estimate]:
        """One estimate a kernel, in order; WeightsError where the fitted lines are missing."""
        return [self._estimate(kernel, gpu) for kernel in kernels]

    def _estimate(self, kernel: Kernel, gpu: GPU) -> Estimate:
        trained = self._classes.get((gpu.vendor, linear_class_of(kernel) or ""))
        origin: Origin = "fallback"
        time_us = memory_roofline_us(kernel, gpu)
        if trained is not None:
            line = trained.on(gpu)
            time_us, origin = line.start_us + kernel.flops / line.flops_per_us, "trained"
        return estimate_of(
            kernel,
            gpu,
            time_us,
            predictor=self.name,
            origin=origin,
            spread=_SPREAD,
            in_range=trained is not None and gpu.model in trained.lines,
        )


def save_linear(
    classes: Mapping[tuple[str, str], LinearClass], path: Path, *, provenance: Mapping[str, Any]
) -> None:
    """Writes the lines as JSON; equal ones give equal bytes."""
    document = {
        "schema_version": SCHEMA_VERSION,
        "provenance": dict(provenance),
        "classes": [
            {"vendor": vendor, "class": name, **asdict(item)}
            for (vendor, name), item in sorted(classes.items())
        ],
    }
    write_atomically(path, (json.dumps(document, indent=1, sort_keys=True) + "\n").encode())


def load_linear(path: Path) -> dict[tuple[str, str], LinearClass]:
    """The lines that `save_linear` wrote; WeightsError where the file is anything else."""
    try:
        document = json.loads(read_bytes(path, most=_MOST_BYTES))
        if document["schema_version"] != SCHEMA_VERSION:
            raise ValueError(f"its version is {document['schema_version']}, not {SCHEMA_VERSION}")
        return {
            (item["vendor"], item["class"]): LinearClass(
                {gpu: FlopLine(**line) for gpu, line in item["lines"].items()},
                float(item["base"]),
                float(item["slope"]),
            )
            for item in document["classes"]
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise WeightsError(
            f"Weight file {path} cannot be read ({error}); `neusight fit --predictor linear` "
            "writes it again, or install neusight again."
        ) from error


@cache
def _shipped() -> dict[tuple[str, str], LinearClass]:
    return load_linear(Path(__file__).parent / "weights" / "linear.json")


register_predictor("linear", Linear)
