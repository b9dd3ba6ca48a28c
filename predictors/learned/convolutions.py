"""Features of convolutions: their own sizes, the product that they are, and the physics' terms."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import NamedTuple

import numpy as np

from neusight.predictors.gpu import GPU
from neusight.predictors.kernel import DTYPE_BYTES, ConvolutionSize, Kernel
from neusight.predictors.learned.features import Features, Floats, flags, log_of_counts
from neusight.predictors.learned.network import log_of
from neusight.predictors.physics.convolution import implicit_gemm, with_issue_of_convolutions
from neusight.predictors.physics.physical_time import PhysicalTime
from neusight.predictors.physics.power import filled_in

#: Spatial dimensions of a volume; images have a depth of one.
_DIMENSIONS = 3

#: Edges of the tiles whose number per SM is a feature: small and large ones of the libraries.
_TILE_EDGES = (32, 64, 128)

#: Steps of channels in which the libraries' kernels go: vectors, instructions, tiles.
_CHANNEL_STEPS = (4, 8, 32, 64)

_LEAST_SHARE = 1e-3
_LEAST_TILES = 1e-4


class _Convolutions(NamedTuple):
    """Convolutions on one GPU as arrays, one entry each; `spatial` arrays have a row a dimension:
    depth, height, width. Times in µs."""

    kernels: Sequence[Kernel]
    sizes: Sequence[ConvolutionSize]
    gpu: GPU
    batch: Floats
    groups: Floats
    #: Of a group.
    in_channels: Floats
    out_channels: Floats
    input: Floats
    output: Floats
    taps: Floats
    stride: Floats
    #: The product of a group.
    m: Floats
    n: Floats
    k: Floats
    #: Operands and result per byte of the L2.
    footprint: Floats
    matrix_us: Floats
    ordinary_us: Floats
    dram_us: Floats
    #: The smooth roofline of these and the floor.
    bound_us: Floats
    physics_us: Floats


def _convolutions_of(
    kernels: Sequence[Kernel], times: Sequence[PhysicalTime], gpu: GPU
) -> _Convolutions:
    sizes = [kernel.size for kernel in kernels if isinstance(kernel.size, ConvolutionSize)]
    gpu = with_issue_of_convolutions(gpu)
    target = filled_in(gpu)
    flops = np.array([kernel.flops for kernel in kernels], dtype=np.float64)
    moved = np.array([kernel.num_bytes for kernel in kernels], dtype=np.float64)
    compute = kernels[0].compute
    matrix_us = flops * 1e6 / gpu.peak_flops(compute, matrix=True)
    ordinary_us = flops * 1e6 / (gpu.peak_flops("fp32") * target.fp32_gemm_utilization)
    if compute == "fp32" and not gpu.has_matrix_unit("fp32"):
        matrix_us = ordinary_us
    dram_us = moved / (gpu.bandwidth_gbps * 1e3)
    batch, inputs, outputs, groups = np.array([size[:4] for size in sizes], dtype=np.float64).T
    products = np.array([implicit_gemm(size) for size in sizes], dtype=np.float64).T
    return _Convolutions(
        kernels=kernels,
        sizes=sizes,
        gpu=gpu,
        batch=batch,
        groups=groups,
        in_channels=inputs / groups,
        out_channels=outputs / groups,
        input=_spatial([size.input for size in sizes]),
        output=_spatial([size.output for size in sizes]),
        taps=_spatial([size.kernel for size in sizes]),
        stride=_spatial([size.stride for size in sizes]),
        m=products[1],
        n=products[2],
        k=products[3],
        footprint=moved / gpu.l2_bytes,
        matrix_us=matrix_us,
        ordinary_us=ordinary_us,
        dram_us=dram_us,
        bound_us=gpu.floor_us + np.sqrt(matrix_us * matrix_us + dram_us * dram_us),
        physics_us=np.array([time.time_us for time in times]),
    )


def _spatial(values: Sequence[tuple[int, ...]]) -> Floats:
    filled = [(1,) * (_DIMENSIONS - len(value)) + tuple(value) for value in values]
    result: Floats = np.array(filled, dtype=np.float64).reshape(len(values), _DIMENSIONS).T
    return result


# -- columns -------------------------------------------------------------------------------------

_Column = tuple[str, Callable[[_Convolutions], Floats]]


def _share(term: Floats | float, seen: _Convolutions) -> Floats:
    return log_of(np.maximum(term / seen.bound_us, _LEAST_SHARE))


def _axis(name: str, spatial: Callable[[_Convolutions], Floats]) -> tuple[_Column, ...]:

    def column(index: int) -> Callable[[_Convolutions], Floats]:
        return lambda seen: log_of_counts(spatial(seen)[index])

    axes = ("depth", "height", "width")
    return tuple((f"log_{name}_{axis}", column(index)) for index, axis in enumerate(axes))


def _tiles_per_sm(seen: _Convolutions, edge: int) -> Floats:
    tiles = seen.groups * np.ceil(seen.m / edge) * np.ceil(seen.n / edge)
    result: Floats = np.maximum(tiles / seen.gpu.num_sms, _LEAST_TILES)
    return result


def _tile_columns(edge: int) -> tuple[_Column, ...]:
    def fill(seen: _Convolutions) -> Floats:
        waves = _tiles_per_sm(seen, edge)
        result: Floats = waves / np.ceil(waves)
        return result

    return (
        (f"log_waves_{edge}", lambda seen: log_of(_tiles_per_sm(seen, edge))),
        (f"wave_fill_{edge}", fill),
    )


def _step_columns(step: int) -> tuple[_Column, ...]:
    return (
        (f"in_channels_mod_{step}", lambda seen: np.mod(seen.in_channels, step) / step),
        (f"out_channels_mod_{step}", lambda seen: np.mod(seen.out_channels, step) / step),
    )


def _pass_column(direction: str) -> _Column:
    return f"is_{direction}", lambda seen: flags(size.direction == direction for size in seen.sizes)


def _padding(seen: _Convolutions) -> Floats:
    """Pixels of a row that the taps reach outside of the image."""
    reach = (seen.output[2] - 1.0) * seen.stride[2] + seen.taps[2]
    outside: Floats = np.maximum(reach - seen.input[2], 0.0)
    return outside


def _architecture_column(name: str, *architectures: str) -> _Column:
    """Libraries have separate kernels for each architecture."""
    return f"is_{name}", lambda seen: np.full(
        len(seen.sizes), float(seen.gpu.architecture in architectures)
    )


_COLUMNS: tuple[_Column, ...] = (
    ("log_batch", lambda seen: log_of_counts(seen.batch)),
    ("log_in_channels", lambda seen: log_of_counts(seen.in_channels)),
    ("log_out_channels", lambda seen: log_of_counts(seen.out_channels)),
    *_axis("input", lambda seen: seen.input),
    *_axis("output", lambda seen: seen.output),
    *_axis("taps", lambda seen: seen.taps),
    *_axis("stride", lambda seen: seen.stride),
    ("log_padding", lambda seen: log_of_counts(1.0 + _padding(seen))),
    ("is_point", lambda seen: flags(prod(size.kernel) == 1 for size in seen.sizes)),
    ("is_3x3", lambda seen: flags(size.kernel == (3, 3) for size in seen.sizes)),
    *(_pass_column(name) for name in ("forward", "data_gradient", "weight_gradient")),
    ("log_m", lambda seen: log_of_counts(seen.m)),
    ("log_n", lambda seen: log_of_counts(seen.n)),
    ("log_k", lambda seen: log_of_counts(seen.k)),
    *(column for step in _CHANNEL_STEPS for column in _step_columns(step)),
    *(column for edge in _TILE_EDGES for column in _tile_columns(edge)),
    ("log_footprint_per_l2", lambda seen: log_of(np.maximum(seen.footprint, _LEAST_TILES))),
    ("log_matrix_share", lambda seen: _share(seen.matrix_us, seen)),
    ("log_ordinary_share", lambda seen: _share(seen.ordinary_us, seen)),
    ("log_dram_share", lambda seen: _share(seen.dram_us, seen)),
    ("log_floor_share", lambda seen: _share(seen.gpu.floor_us, seen)),
    ("log_physics_share", lambda seen: _share(seen.physics_us, seen)),
)

#: cuDNN on GPUs without TF32: images, without groups.
CONVOLUTION_FEATURES: Features[_Convolutions] = Features(
    (
        *_COLUMNS,
        ("is_fastest", lambda seen: flags(one.variant == "fastest" for one in seen.kernels)),
        ("is_16_bit", lambda seen: flags(DTYPE_BYTES[one.dtype] <= 2 for one in seen.kernels)),
        _architecture_column("maxwell", "Maxwell"),
        # Pascal's data centre die (GP100), with SMs of 64 lanes as Volta's.
        ("is_p100", lambda seen: flags([seen.gpu.compute_capability == (6, 0)] * len(seen.sizes))),
        _architecture_column("volta", "Volta"),
        _architecture_column("turing", "Turing"),
        _architecture_column("newer", "Ampere", "Ada", "Hopper", "Blackwell"),
    ),
    _convolutions_of,
)


#: Convolutions in all forms: images and volumes, groups, either layout, three dtypes.
_FORMS: tuple[_Column, ...] = (
    ("log_groups", lambda seen: log_of_counts(seen.groups)),
    ("is_depthwise", lambda seen: flags(size.is_depthwise for size in seen.sizes)),
    ("is_volume", lambda seen: flags(len(size.kernel) > 2 for size in seen.sizes)),
    ("is_dilated", lambda seen: flags(one.variant == "dilated" for one in seen.kernels)),
    ("is_channels_last", lambda seen: flags(one.layout == "channels_last" for one in seen.kernels)),
    ("is_fp16", lambda seen: flags(one.dtype == "float16" for one in seen.kernels)),
    ("is_bf16", lambda seen: flags(one.dtype == "bfloat16" for one in seen.kernels)),
)

#: cuDNN's and torch's own of groups, on GPUs with TF32.
GROUPS_FEATURES: Features[_Convolutions] = Features(
    (
        *_COLUMNS,
        *_FORMS,
        ("is_fastest", lambda seen: flags(one.variant == "fastest" for one in seen.kernels)),
        ("is_tf32", lambda seen: flags(one.compute == "tf32" for one in seen.kernels)),
        ("log_taps_area", lambda seen: log_of_counts(seen.taps.prod(axis=0))),
        ("log_area", lambda seen: log_of_counts(seen.output.prod(axis=0))),
    ),
    _convolutions_of,
)

#: Steps of pixels in which planes of NCHW images fill vectors.
_PIXEL_STEPS = (4, 8)


def _pixel_column(step: int) -> _Column:
    return f"pixels_mod_{step}", lambda seen: np.mod(seen.output.prod(axis=0), step) / step


#: cuDNN's of images without groups on Hopper, whose transforms depend on what planes fill.
HOPPER_FEATURES: Features[_Convolutions] = Features(
    (*GROUPS_FEATURES.columns, *(_pixel_column(step) for step in _PIXEL_STEPS)),
    _convolutions_of,
)

#: MIOpen.
MIOPEN_FEATURES: Features[_Convolutions] = Features(
    (
        *_COLUMNS,
        *_FORMS,
        _architecture_column("vega", "Vega"),
        _architecture_column("rdna", "RDNA", "RDNA2", "RDNA3"),
        _architecture_column("cdna_1", "CDNA"),
        _architecture_column("cdna_2", "CDNA2"),
        _architecture_column("cdna_3", "CDNA3", "CDNA4"),
    ),
    _convolutions_of,
)
