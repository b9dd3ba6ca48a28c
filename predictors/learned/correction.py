"""The trained correction of the physics: which kernels it covers, and how sure it is.

A family is what one network was trained for. What no data cover (backward attention, batched and
TF32 products) has no family and stays physics; GEMMs of other layouts take the network's factor,
as the same kernels run them, but count as physics.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from neusight.predictors.gpu import GPU
from neusight.predictors.kernel import (
    OUTER_SCALED,
    RECURRENT,
    TENSOR_SCALED,
    AttentionSize,
    CollectiveSize,
    ConvolutionSize,
    GemmSize,
    Kernel,
    RowsSize,
)
from neusight.predictors.learned.convolutions import (
    CONVOLUTION_FEATURES,
    GROUPS_FEATURES,
    HOPPER_FEATURES,
    MIOPEN_FEATURES,
)
from neusight.predictors.learned.features import (
    ATTENTION_FEATURES,
    BLOCK_SCALED,
    BY_ROW,
    COLLECTIVE_FEATURES,
    FP32_GEMM_FEATURES,
    GEMM_FEATURES,
    QUANTISATION_FEATURES,
    ROW_FEATURES,
    Features,
)
from neusight.predictors.learned.network import Network, exp_of, load_network
from neusight.predictors.learned.radeon import RADEON, RADEON_SPREAD, RELATIVES, radeon_us
from neusight.predictors.physics.communication.measured import curve_of
from neusight.predictors.physics.communication.system import is_bridged, place_of, system_of
from neusight.predictors.physics.convolution import convolution_timings, shares_lanes
from neusight.predictors.physics.gemm import is_vector_product
from neusight.predictors.physics.packed_weights import PACKED_ROWS
from neusight.predictors.physics.physical_time import PhysicalTime

Floats = NDArray[np.float64]

#: Ends the name of a family's network for GPUs that were not in training.
UNSEEN = "_unseen"

#: Upper ends of the size classes, µs; the last class is open.
SIZE_CLASSES_US = (10.0, 100.0, 1000.0)

#: How much wider the interval is for each feature outside the range of training.
_WIDENING = 1.5
_WIDEST_FACTOR = 4.0

#: How far a network moves the physics outside that range at most, as the logarithm of a factor.
#: data/kernelbench, convolutions on T4 in shapes that no network saw, even half: 20 % off without
#: a limit, 12 to 13 with 0.7 and 1, 16 by the physics alone.
_MOST_OUTSIDE = 1.0

#: GEMMs of layouts that were never measured: the interval of the physics at least.
_UNMEASURED_SPREAD = 0.25

#: Rows whose features are computed at once.
_CHUNK = 2048


#: What is left of the interval of FP32 products where the GPU's own rate was read from whole
#: programs: 80 % of the odd half of data/kernelbench lie within half of what GPUs and architectures
#: left out in turn say (H100, H100 PCIe, L40S); and the least of it.
_OWN_FP32_SHARE = 0.5
_OWN_FP32_LEAST = 0.12


class Adjustment(NamedTuple):
    """What a correction says of one kernel: the factor on the physics' time, the half width of
    the 80 % interval as a share, whether the kernel lies inside what was trained, and whether it
    counts as trained at all."""

    factor: float
    spread: float
    in_range: bool = True
    trained: bool = True


#: A family is kernels that share a network, and so its features.
FAMILIES: dict[str, Features[Any]] = {
    "gemm_16bit": GEMM_FEATURES,
    "gemm_fp8": GEMM_FEATURES,
    "quantisation": QUANTISATION_FEATURES,
    "attention_prefill": ATTENTION_FEATURES,
    "attention_decode": ATTENTION_FEATURES,
    "gemm_fp32": FP32_GEMM_FEATURES,
    "gemm_fp32_pascal": FP32_GEMM_FEATURES,
    "gemm_fp32_amd": FP32_GEMM_FEATURES,
    "convolution_fp32": CONVOLUTION_FEATURES,
    "convolution_miopen": MIOPEN_FEATURES,
    "convolution_groups": GROUPS_FEATURES,
    "convolution_hopper": HOPPER_FEATURES,
    "convolution_volta": CONVOLUTION_FEATURES,
    "rows_fp32": ROW_FEATURES,
    "collective": COLLECTIVE_FEATURES,
}


def family_of(kernel: Kernel, gpu: GPU) -> str | None:
    """The family whose network corrects the kernel on that GPU, None where there is none."""
    size = kernel.size
    if kernel.name == RECURRENT or kernel.variant in PACKED_ROWS:
        return None
    if kernel.dtype.startswith("float4"):
        return None
    if isinstance(size, ConvolutionSize):
        return _convolution_family(kernel, size, gpu)
    if kernel.compute == "fp32" and kernel.dtype == "float32":
        if isinstance(size, GemmSize) and min(size) >= 1:
            if is_vector_product(kernel, gpu):
                return None
            # Libraries differ: rocBLAS, cuBLAS's Maxwell kernels on Pascal, all that came later.
            if gpu.vendor == "amd":
                return "gemm_fp32_amd"
            return "gemm_fp32_pascal" if gpu.compute_capability < _VOLTA else "gemm_fp32"
        if isinstance(size, RowsSize) and kernel.name in _FP32_ROWS and min(size) >= 1:
            return "rows_fp32" if kernel.layout in ("contiguous", "scalar") else None
    if gpu.vendor != "nvidia":
        return None
    if isinstance(size, GemmSize):
        if min(size) < 1 or size.batch != 1 or not gpu.has_matrix_unit(kernel.compute):
            return None
        if kernel.compute in ("bf16", "fp16"):
            return "gemm_16bit" if _has_measured_ratio(gpu) else None
        # The tables' FP8 is of serving kernels. cuBLASLt's best products (data/achievable) are 5 to
        # 23 % faster than the physics and 11 to 51 % faster than what the network makes of it.
        is_outer = kernel.name == OUTER_SCALED and gpu.nvidia_major == _HOPPER
        is_serving = kernel.compute == "fp8" and kernel.name != TENSOR_SCALED and not is_outer
        return "gemm_fp8" if is_serving else None
    if isinstance(size, RowsSize) and kernel.name in _QUANTISATIONS:
        return "quantisation" if min(size) >= 1 else None
    if isinstance(size, AttentionSize):
        return _attention_family(kernel, size, gpu)
    if isinstance(size, CollectiveSize):
        is_measured = not kernel.variant and _is_switched(kernel.name, size, gpu)
        return "collective" if is_measured else None
    return None


def _is_switched(name: str, size: CollectiveSize, gpu: GPU) -> bool:
    """Whether a collective is one of those that were measured: among up to eight GPUs that a
    switch joins at the full rate of their links."""
    measured = name in _COLLECTIVES and 2 <= size.world_size <= _MOST_RANKS and size.num_bytes > 0
    if not measured or not gpu.link_kind.startswith("NVLink") or is_bridged(gpu):
        return False
    place = place_of(size, gpu)
    if place.network is not None or curve_of(name, size, place, system_of(gpu)) is not None:
        return False
    return place.inside.kind == "switch" and place.inside.gbps >= gpu.link_gbps > 0


def _has_measured_ratio(gpu: GPU) -> bool:
    """Whether matrix units outrun ordinary cores as on the GPUs that were measured. Where they run
    at half rate (GeForce, L40), all that feeds them has time to spare: the networks, which learned
    from cards where it has not, make large products with a short K up to 25 % too slow."""
    peaks = gpu.peak_tflops
    return peaks.get("fp16", 0.0) >= _LEAST_MATRIX_RATIO * peaks["fp32"]


#: Least 16-bit peak over FP32's of the measured GPUs: L40S's 3.95 and A40's 4.0.
_LEAST_MATRIX_RATIO = 3.9


_VOLTA = (7, 0)

#: Kernels of ordinary cores whose rows were measured in FP32, forward.
_FP32_ROWS = frozenset({"softmax", "layer_norm"})


def _convolution_family(kernel: Kernel, size: ConvolutionSize, gpu: GPU) -> str | None:
    """MIOpen's in all forms. Groups on data centre GPUs with TF32, as an H100 ran them under torch
    2.11 (on an L40S the physics is nearer: data/kernelbench 7 against 8 to 20 %). Images without
    groups on Hopper's tensor cores, as H100 and H200 ran them under torch 2.11 (of the other GPUs
    in that data L40S gains by that network and A100 loses; patches of images under an older cuDNN,
    as profiles show them, are nearer by the physics). Elsewhere cuDNN's images without groups or
    dilation: where algorithms are found by trial as data/deepbench has them, on ordinary cores of
    GPUs without TF32 and on Volta's tensor cores; else as data/paper_fp32, in FP32: 3 x 3,
    forward, without a stride."""
    if min(size[:4]) < 1 or min(*size.input, *size.output) < 1:
        return None
    if gpu.vendor == "amd":
        return "convolution_miopen" if kernel.compute in _MIOPEN_UNITS else None
    is_plain = size.groups == 1 and len(size.kernel) == 2 and kernel.variant != "dilated"
    is_3x3 = size.kernel == (3, 3) and size.stride == (1, 1) and size.direction == "forward"
    if gpu.compute_capability >= _AMPERE and size.groups > 1:
        is_known = (
            kernel.variant in ("", "fastest")
            and len(size.kernel) == 2
            and len(set(size.kernel)) == 1
            and kernel.compute in _GROUP_UNITS
        )
        return "convolution_groups" if is_known and not shares_lanes(gpu) else None
    if gpu.nvidia_major == _HOPPER and size.groups == 1 and len(size.kernel) <= 2:
        is_known = kernel.compute in _TENSOR_UNITS and kernel.variant != "cudnn_9_1"
        return "convolution_hopper" if is_known else None
    if not is_plain or kernel.compute not in ("fp32", "fp16"):
        return None
    if kernel.variant == "fastest" and gpu.compute_capability < _AMPERE:
        if not gpu.has_matrix_unit(kernel.compute):
            return "convolution_fp32"
        is_measured = gpu.compute_capability == _VOLTA and kernel.layout == "channels_last"
        return "convolution_volta" if is_measured else None
    return "convolution_fp32" if is_3x3 and kernel.dtype == "float32" else None


_MIOPEN_UNITS = ("fp32", "fp16", "bf16")
_TENSOR_UNITS = ("tf32", "fp16", "bf16")
_GROUP_UNITS = (*_TENSOR_UNITS, "fp32")
_AMPERE = (8, 0)
_HOPPER = 9


def _attention_family(kernel: Kernel, size: AttentionSize, gpu: GPU) -> str | None:
    """Forward attention by a library measured on that architecture, or on a similar one."""
    majors = _ATTENTION_MAJORS.get(kernel.variant, ())
    if gpu.nvidia_major not in majors or not gpu.has_matrix_unit(kernel.compute):
        return None
    if size.backward or min(size[:6]) < 1 or size.head_dim != size.head_dim_v:
        return None
    return "attention_decode" if size.seq_q == 1 else "attention_prefill"


#: Compute capabilities (major) on which a library's attention was measured; 12 replaces 8, or
#: 10, whose kernels it runs.
_ATTENTION_MAJORS = {
    "flash_attention": (8, 12),
    "flash_attention_3": (9,),
    "flash_attention_4": (9, 10),
    "cudnn_attention": (10, 12),
}

_COLLECTIVES = frozenset({"all_reduce", "all_gather", "reduce_scatter", "all_to_all"})
#: GPUs of one host that were measured together.
_MOST_RANKS = 8

_QUANTISATIONS = (BY_ROW, "quant_fp8_static")


def _was_measured(kernel: Kernel, gpu: GPU) -> bool:
    """Whether data cover the kernel's layout, and FP32 on that generation; where they do not, the
    kernel takes the factor and stays physics."""
    is_newer = gpu.vendor == "nvidia" and gpu.compute_capability > _NEWEST_FP32
    if kernel.compute == "fp32" and kernel.dtype == "float32" and is_newer:
        return False
    if not isinstance(kernel.size, GemmSize):
        return True
    return kernel.layout == ("nn" if kernel.size.batch > 1 else "nt")


#: Newest GPU in the FP32 tables: A100.
_NEWEST_FP32 = (8, 0)


def knowledge_of(gpu: GPU, network: Network) -> int:
    """The row of `Network.spreads`: each GPU of the training has its own. For unseen GPUs: 0 where
    the network saw the architecture, 2 where not, and one more where the GPU's constants are a
    prior."""
    if network.gpus:
        return network.gpus.index(gpu.model)
    is_new = architecture_of(gpu) not in network.architectures
    return 2 * is_new + (not gpu.constants_origin.startswith("fitted"))


def architecture_of(gpu: GPU) -> str:
    """GPUs whose libraries and units resemble each other, by compute capability."""
    if gpu.vendor == "amd":
        return "AMD"
    major, minor = gpu.compute_capability
    if major in _ARCHITECTURES:
        return _ARCHITECTURES[major]
    return _ARCHITECTURES_OF_MINOR.get((major, minor), f"{major}.{minor}")


#: 12 is Blackwell too, but with GDDR memory and without the tensor memory of 10.
_ARCHITECTURES = {6: "Pascal", 9: "Hopper", 10: "Blackwell", 12: "Blackwell RTX"}
_ARCHITECTURES_OF_MINOR = {
    (7, 0): "Volta",
    (7, 5): "Turing",
    (8, 0): "Ampere",
    (8, 6): "Ampere",
    (8, 9): "Ada",
}


class Trained:
    """A `Correction` by networks, two a family: one that knows the GPUs of its training in detail
    and prices those alone, and a smoother one ("…_unseen"), trained to carry over to others."""

    def __init__(self, networks: Mapping[str, Network], *, sustained: bool = True) -> None:
        self._networks = networks
        self._sustained = sustained

    def factors(
        self, kernels: Sequence[Kernel], gpu: GPU, timings: Sequence[PhysicalTime]
    ) -> list[Adjustment | None]:
        """One adjustment a kernel, None where no network covers it."""
        members: dict[tuple[str, str], list[int]] = {}
        for index, kernel in enumerate(kernels):
            family = family_of(kernel, gpu)
            if family is not None:
                # A chunk shares its unit (bf16, fp16): the physics' terms depend on it.
                members.setdefault((family, kernel.compute), []).append(index)
        found: list[Adjustment | None] = [None] * len(kernels)
        for (family, _), indices in members.items():
            network = self.network_for(family, gpu)
            if network is None:
                continue
            if not network.gpus and architecture_of(gpu) not in network.architectures:
                # Block-scaled FP8 products are written for one architecture (Hopper left out: 83 %
                # off with the network, 14 % without).
                indices = [index for index in indices if kernels[index].name != BLOCK_SCALED]
            adjusted_of = _of_radeon if self._goes_by_relatives(family, gpu) else _adjusted
            for start in range(0, len(indices), _CHUNK):
                chunk = indices[start : start + _CHUNK]
                adjusted = adjusted_of(
                    family,
                    network,
                    [kernels[index] for index in chunk],
                    [timings[index] for index in chunk],
                    gpu,
                )
                for index, adjustment in zip(chunk, adjusted, strict=True):
                    found[index] = adjustment
        return found

    def network_for(self, family: str, gpu: GPU) -> Network | None:
        """The network of a family that prices kernels on that GPU."""
        known = self._networks.get(family)
        if known is not None and (gpu.model in known.gpus or self._goes_by_relatives(family, gpu)):
            return known
        return self._networks.get(family + UNSEEN)

    def _goes_by_relatives(self, family: str, gpu: GPU) -> bool:
        """Whether a busy card's convolutions were measured at the clocks of an idle one."""
        is_cold = family == "convolution_miopen" and gpu.architecture in RADEON
        known = self._networks.get(family)
        return self._sustained and is_cold and known is not None and {*known.gpus} >= RELATIVES


#: Keeps a ratio of times defined, us.
_TINY_US = 1e-9


def _adjusted(
    family: str,
    network: Network,
    kernels: Sequence[Kernel],
    timings: Sequence[PhysicalTime],
    gpu: GPU,
) -> list[Adjustment]:
    features = FAMILIES[family].table(kernels, timings, gpu)
    outside = network.num_outside(features)
    physics_us = np.array([timing.time_us for timing in timings])
    # No kernel is shorter than one that does nothing, whatever the network says of its work.
    least_factors = np.minimum(1.0, gpu.floor_us / np.maximum(physics_us, _TINY_US))
    factors = np.maximum(_factors_by(network, features, outside), least_factors)
    times = physics_us * factors
    classes = np.searchsorted(np.array(SIZE_CLASSES_US), times, side="right")
    widening = np.minimum(_WIDENING**outside, _WIDEST_FACTOR)
    spreads = network.spreads[knowledge_of(gpu, network)][classes] * widening
    least = _UNMEASURED_SPREAD
    is_fp32_product = family.startswith("gemm_fp32")
    if not network.gpus and gpu.fp32_gemm_utilization and is_fp32_product:
        spreads, least = spreads * _OWN_FP32_SHARE, _OWN_FP32_LEAST
    return [
        Adjustment(factor, spread, in_range=missed == 0)
        if _was_measured(kernel, gpu)
        else Adjustment(factor, max(spread, least), in_range=False, trained=False)
        for kernel, factor, spread, missed in zip(
            kernels, factors.tolist(), spreads.tolist(), outside.tolist(), strict=True
        )
    ]


def _factors_by(network: Network, features: Floats, outside: NDArray[np.int64]) -> Floats:
    """Of the physics, in bounds where a kernel lies outside of what the network was fitted to."""
    most = np.where(outside > 0, _MOST_OUTSIDE, np.inf)
    return exp_of(np.clip(network.run(features), -most, most))


def _of_radeon(
    family: str,
    network: Network,
    kernels: Sequence[Kernel],
    timings: Sequence[PhysicalTime],
    gpu: GPU,
) -> list[Adjustment]:
    def priced(chosen: Sequence[Kernel], target: GPU) -> Floats:
        physics = convolution_timings(chosen, target, sustained=True)
        features = FAMILIES[family].table(chosen, physics, target)
        factors = _factors_by(network, features, network.num_outside(features))
        return np.array([timing.time_us for timing in physics]) * factors

    times = np.maximum(gpu.floor_us, radeon_us(kernels, gpu, priced))
    return [
        Adjustment(
            time_us / max(timing.time_us, _TINY_US), RADEON_SPREAD, in_range=False, trained=False
        )
        for time_us, timing in zip(times.tolist(), timings, strict=True)
    ]


def network_text(kernel: Kernel, gpu: GPU) -> str:
    """What the shipped network that corrects a kernel was fitted on, and its error on measurements
    of that kind of data that it was not fitted on; "" where there is none."""
    family = family_of(kernel, gpu)
    network = None if family is None else shipped().network_for(family, gpu)
    if network is None:
        return ""
    known = network.provenance
    where = "this GPU among others" if gpu.model in network.gpus else "other GPUs than this one"
    if len(network.gpus) == 1:
        where = "this GPU"
    errors = list(known.get("mape", {}).values())
    error = f", {median(errors):.0%} off in the median group of rows kept back" if errors else ""
    return f"the network {family} was fitted to {known['num_rows']:,} rows of {where}{error}"


@cache
def shipped(*, sustained: bool = True) -> Trained:
    """The correction that comes with neusight, of a long, busy run or of a short burst."""
    return Trained(shipped_networks(), sustained=sustained)


@cache
def shipped_networks() -> NetworkFolder:
    """The networks that come with neusight, by name."""
    return NetworkFolder(Path(__file__).parents[1] / "weights")


class NetworkFolder(Mapping[str, Network]):
    """The networks of a folder that `neusight fit` wrote, by name; other files are ignored. Each is
    read when it is first asked for, as a program needs a few of them; WeightsError names a damaged
    file."""

    def __init__(self, folder: Path) -> None:
        names = [family + kind for family in FAMILIES for kind in ("", UNSEEN)]
        paths = {name: folder / f"{name}.npz" for name in names}
        self._paths = {name: path for name, path in paths.items() if path.exists()}
        self._read: dict[str, Network] = {}

    def __getitem__(self, name: str) -> Network:
        if name not in self._read:
            self._read[name] = load_network(self._paths[name])
        return self._read[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._paths)

    def __len__(self) -> int:
        return len(self._paths)
