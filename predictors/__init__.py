"""Kernels, GPUs, and how long a kernel takes on a GPU."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from neusight.predictors.clusters.named import find_topology, topologies
from neusight.predictors.clusters.topology import Level, Topology
from neusight.predictors.errors import (
    CalibrationError,
    NeusightError,
    RegistrationError,
    TopologyError,
    UnknownGPUError,
    UnknownPredictorError,
    UnsupportedKernelError,
)
from neusight.predictors.gpu import GPU, find_gpu, gpus, register_gpu
from neusight.predictors.kernel import (
    AttentionSize,
    CollectiveSize,
    ConvolutionSize,
    GemmSize,
    Kernel,
    KernelClass,
    RowsSize,
)
from neusight.predictors.predictor import Estimate, Predictor
from neusight.predictors.registry import find_predictor, predict, register_predictor

if TYPE_CHECKING:
    from neusight.predictors.measuring.calibration import Calibration, Measurement
    from neusight.predictors.roofline import Roofline
    from neusight.predictors.tiled import Tiled

__all__ = [
    "GPU",
    "AttentionSize",
    "Calibration",
    "CalibrationError",
    "CollectiveSize",
    "ConvolutionSize",
    "Estimate",
    "GemmSize",
    "Kernel",
    "KernelClass",
    "Level",
    "Measurement",
    "NeusightError",
    "Predictor",
    "RegistrationError",
    "Roofline",
    "RowsSize",
    "Tiled",
    "Topology",
    "TopologyError",
    "UnknownGPUError",
    "UnknownPredictorError",
    "UnsupportedKernelError",
    "find_gpu",
    "find_predictor",
    "find_topology",
    "gpus",
    "predict",
    "register_gpu",
    "register_predictor",
    "topologies",
]


#: Predictors load on first use: they need numpy, looking up a GPU does not.
_LAZY = {
    "Calibration": "neusight.predictors.measuring.calibration",
    "Measurement": "neusight.predictors.measuring.calibration",
    "Roofline": "neusight.predictors.roofline",
    "Tiled": "neusight.predictors.tiled",
}


def __getattr__(name: str) -> object:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_LAZY[name]), name)
