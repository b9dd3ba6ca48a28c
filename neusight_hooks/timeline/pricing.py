"""From op calls to priced kernels: the registry and a predictor, asked once for equal calls.

A calibration changes the predictor and the host before they are asked.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from neusight.ops import map_op
from neusight.ops.math_mode import math_mode_on
from neusight.predictors.clusters.topology import Topology
from neusight.predictors.errors import CalibrationError, UnsupportedKernelError
from neusight.predictors.gpu import GPU
from neusight.predictors.kernel import Kernel
from neusight.predictors.measuring.calibration import Calibrated, Calibration
from neusight.predictors.predictor import Estimate, Predictor
from neusight.recording.recording import MathMode, OpCall, OpSignature, Recording
from neusight.timeline.host import (
    HOST_COSTS,
    HOSTS,
    PROFILED,
    PROFILED_OLDER,
    HostProfile,
)

#: Ends the name of a host whose costs were measured.
CALIBRATED_HOST = ", calibrated"
_PROFILED = (PROFILED.name, PROFILED_OLDER.name)

#: A host that was measured differs from itself by this share (runs on one machine, a day apart,
#: data/kernelbench v0 of L40S).
_SAME_HOST = 0.1

#: Floats of 8 bits with the same bits for the exponent.
_KINDS = {
    "float8_e4m3": ("float8_e4m3fn", "float8_e4m3fnuz"),
    "float8_e5m2": ("float8_e5m2", "float8_e5m2fnuz"),
}

Priced = tuple[tuple[Kernel, Estimate], ...]


class Pricer:
    """Says for an op call which kernels it launches on `gpu` and how long each takes.

    `topology` is the system that the GPU is in (None: its reference system). `unmapped` collects
    the ops that no registered function knows, with the reason.
    """

    def __init__(self, gpu: GPU, predictor: Predictor, topology: Topology | None = None) -> None:
        self.gpu = gpu if topology is None else replace(gpu, topology=topology)
        self.predictor = predictor
        self.unmapped: dict[str, str] = {}
        self._kernels: dict[tuple[int, int], tuple[Kernel, ...]] = {}
        self._priced: dict[tuple[int, int], Priced] = {}
        self._estimates: dict[Kernel, Estimate] = {}
        self._keep: list[tuple[OpSignature, MathMode]] = []

    def __call__(self, call: OpCall) -> Priced:
        """The kernels of a call in launch order, with their estimates."""
        key = (id(call.signature), id(call.math))
        if key not in self._priced:
            kernels = self._kernels_of(call)
            self._price(kernels)
            self._priced[key] = tuple((kernel, self._estimates[kernel]) for kernel in kernels)
        return self._priced[key]

    def prepare(self, recording: Recording) -> None:
        """Prices all kernels of a recording in one batch."""
        self._price(
            kernel
            for step in recording.steps
            for entry in step.entries
            if isinstance(entry, OpCall)
            for kernel in self._kernels_of(entry)
        )

    def _kernels_of(self, call: OpCall) -> tuple[Kernel, ...]:
        key = (id(call.signature), id(call.math))
        kernels = self._kernels.get(key)
        if kernels is None:
            mapping = map_op(call.signature, math_mode_on(self.gpu, call.math))
            if not mapping.is_mapped:
                self.unmapped.setdefault(call.signature.op, mapping.reason)
            kernels = self._kernels[key] = mapping.kernels
            self._keep.append((call.signature, call.math))  # identities must not be used again
        return kernels

    def _price(self, kernels: Iterable[Kernel]) -> None:
        fresh = [kernel for kernel in dict.fromkeys(kernels) if kernel not in self._estimates]
        if fresh:
            _refuse_formats(fresh, self.gpu)
            estimates = self.predictor.predict(fresh, self.gpu)
            self._estimates.update(zip(fresh, estimates, strict=True))


#: tinygemm multiplies by m16n8k16 on bfloat16 (ATen/native/cuda/int4mm.cu).
_TILE_PACKED_SINCE = (8, 0)


def _refuse_formats(kernels: Iterable[Kernel], gpu: GPU) -> None:
    """UnsupportedKernelError where a product is of numbers that the GPU does not multiply: floats
    of 4 or 8 bits, and tile-packed integers of 4."""
    is_tile_packed = gpu.vendor != "nvidia" or gpu.compute_capability >= _TILE_PACKED_SINCE
    for kernel in kernels:
        if kernel.dtype.startswith("float4") and not gpu.multiplies(kernel.dtype):
            raise UnsupportedKernelError(
                f"{gpu.name} does not multiply {kernel.dtype}. Blackwell GPUs do, as B200: choose"
                " one, or quantize to 8 bits."
            )
        if kernel.variant == "packed_16_rows" and not is_tile_packed:
            raise UnsupportedKernelError(
                f"{gpu.name} does not run _weight_int4pack_mm, which needs compute capability 8.0."
                " Choose an A100 or newer, or quantize to 8 bits."
            )
        has_unit = kernel.compute == "fp8" and "fp8" in gpu.peak_tflops
        if has_unit and not gpu.multiplies(kernel.dtype):
            bits = kernel.dtype.removesuffix("fnuz").removesuffix("fn")
            own = next(name for name in _KINDS[bits] if gpu.multiplies(name))
            raise UnsupportedKernelError(
                f"{gpu.name} does not multiply {kernel.dtype}; its kind of them is {own}."
                " Programs choose by torch.cuda.get_device_properties(0).gcnArchName."
            )


# -- calibration -----------------------------------------------------------------------------------


def read_calibration(calibration: Calibration | str | Path | None) -> Calibration | None:
    """The calibration, read from its file where that is given; CalibrationError."""
    if calibration is None or isinstance(calibration, Calibration):
        return calibration
    return Calibration.load(calibration)


def calibrated(predictor: Predictor, gpu: GPU, calibration: Calibration | None) -> Predictor:
    """The predictor with what is known of that GPU; CalibrationError where it is of another."""
    return predictor if calibration is None else calibration.applied_to(predictor, gpu)


def calibration_of(predictor: Predictor) -> Calibration | None:
    """What `calibrated` gave it."""
    return predictor.calibration if isinstance(predictor, Calibrated) else None


def uncalibrated(predictor: Predictor) -> Predictor:
    """The predictor as it was before."""
    return predictor.base if isinstance(predictor, Calibrated) else predictor


def measured_host(host: HostProfile, calibration: Calibration) -> HostProfile:
    """The host with the costs that were measured of it, plain or profiled; else as it is."""
    costs = None
    if host.name in _PROFILED:
        costs = calibration.profiled_host
    elif host.name in HOSTS:
        costs = calibration.plain_host
    if not costs:
        return host
    unknown = sorted(set(costs) - set(HOST_COSTS))
    if unknown:
        raise CalibrationError(
            f"The calibration names a cost of the host that this neusight does not know "
            f"({unknown[0]}). Calibrate again from the same measurements."
        )
    changed: dict[str, Any] = {
        **costs,
        "name": host.name + CALIBRATED_HOST,
        "fastest": 1.0 - _SAME_HOST,
        "slowest": 1.0 + _SAME_HOST,
    }
    return replace(host, **changed)
