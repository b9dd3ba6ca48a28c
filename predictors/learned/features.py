"""Dimensionless features of a kernel on a GPU: what the corrections see, and all that they see.

Sizes, remainders, and ratios of the physics' own terms. No hardware figure and no GPU's name, so
that what is learnt on one GPU means the same on another. Always at burst clocks: one factor serves
burst and sustained.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from neusight.predictors.gpu import GPU
from neusight.predictors.kernel import ConvolutionSize, Kernel, KernelClass
from neusight.predictors.learned.network import log_of
from neusight.predictors.physics.attention import exponentials_per_clock
from neusight.predictors.physics.convolution import implicit_gemm
from neusight.predictors.physics.gemm import gemm_terms, problems_of
from neusight.predictors.physics.physical_time import PhysicalTime
from neusight.predictors.physics.roofline import is_winograd, wire_bytes
from neusight.predictors.physics.tile import Candidates

__all__ = [
    "ATTENTION_FEATURES",
    "BLOCK_SCALED",
    "BY_ROW",
    "COLLECTIVE_FEATURES",
    "CONVOLUTION_FEATURES",
    "FP32_GEMM_FEATURES",
    "GEMM_FEATURES",
    "QUANTISATION_FEATURES",
    "ROW_FEATURES",
    "attention_features",
    "collective_features",
    "convolution_features",
    "fp32_gemm_features",
    "gemm_features",
    "quantisation_features",
    "row_features",
]

Floats = NDArray[np.float64]

#: Name of FP8 products with a scale for each 128 x 128 block (DeepGEMM), a library of their own.
BLOCK_SCALED = "gemm_block_scaled"

#: Name of the kernel that quantises activations to FP8 with a scale a row.
BY_ROW = "quantize_fp8_per_token"

#: Tiles whose waves are features whatever tile the physics chose: libraries choose otherwise.
_PROBED_TILES = ((128, 128), (128, 256), (256, 128), (64, 64), (64, 256))

#: A term below this share of the time is as good as none.
_LEAST_SHARE = 1e-3

GEMM_FEATURES: tuple[str, ...] = (
    "log_m",
    "log_n",
    "log_k",
    "m_mod_8",
    "m_mod_64",
    "m_mod_128",
    "n_mod_8",
    "n_mod_64",
    "n_mod_256",
    "k_mod_8",
    "k_mod_64",
    "log_tile_m",
    "log_tile_n",
    "log_split",
    "fill_m",
    "fill_n",
    "log_waves",
    "wave_fill",
    "log_footprint_per_l2",
    "log_weights_per_l2",
    "log_activations_per_l2",
    "log_floor_share",
    "log_ctas_share",
    "log_math_share",
    "log_l2_share",
    "log_dram_share",
    "log_stages_share",
    "log_split_share",
    *(f"log_waves_{m}x{n}" for m, n in _PROBED_TILES),
    *(f"wave_fill_{m}x{n}" for m, n in _PROBED_TILES),
    *(f"log_time_{m}x{n}" for m, n in _PROBED_TILES),
    "block_scaled",
)


def gemm_features(
    kernels: Sequence[Kernel], timings: Sequence[PhysicalTime], gpu: GPU, compute: str
) -> Floats:
    """One row of `GEMM_FEATURES` a kernel; all of them on the same unit."""
    problems = problems_of(kernels)
    m, n, k = problems.m, problems.n, problems.k
    chosen = np.array(
        [(*(timing.tile or (128, 128)), timing.split_k) for timing in timings], dtype=np.float64
    ).reshape(len(timings), 3)
    tiles = Candidates(chosen[:, 0:1], chosen[:, 1:2], chosen[:, 2:3])
    terms = gemm_terms(problems, tiles, gpu, compute)
    time = terms.time_us()
    weights, activations = problems.weight_bytes, problems.activation_bytes

    def share(term: Floats | float) -> Floats:
        return log_of(np.maximum(term / time, _LEAST_SHARE))

    def filled(size: Floats, edge: Floats | float) -> Floats:
        steps: Floats = size / (np.ceil(size / edge) * edge)
        return steps

    probed = np.array(_PROBED_TILES, dtype=np.float64).T
    probes = Candidates(probed[0:1], probed[1:2], np.ones((1, len(_PROBED_TILES))))
    probe_terms = gemm_terms(problems, probes, gpu, compute)
    columns = [
        log_of(np.maximum(m, 1.0)),
        log_of(np.maximum(n, 1.0)),
        log_of(np.maximum(k, 1.0)),
        np.mod(m, 8) / 8,
        np.mod(m, 64) / 64,
        np.mod(m, 128) / 128,
        np.mod(n, 8) / 8,
        np.mod(n, 64) / 64,
        np.mod(n, 256) / 256,
        np.mod(k, 8) / 8,
        np.mod(k, 64) / 64,
        log_of(tiles.tile_m),
        log_of(tiles.tile_n),
        log_of(tiles.split),
        filled(np.maximum(m, 1.0), tiles.tile_m),
        filled(np.maximum(n, 1.0), tiles.tile_n),
        log_of(np.maximum(terms.waves, _LEAST_WAVES)),
        filled(np.maximum(terms.waves, _LEAST_WAVES), 1.0),
        log_of(np.maximum(weights + activations, 1.0) / gpu.l2_bytes),
        log_of(np.maximum(weights, 1.0) / gpu.l2_bytes),
        log_of(np.maximum(activations, 1.0) / gpu.l2_bytes),
        share(terms.floor_us),
        share(terms.ctas_us),
        share(terms.math_us),
        share(terms.l2_us),
        share(terms.dram_us),
        share(terms.stages_us),
        share(terms.split_us),
        log_of(np.maximum(probe_terms.waves, _LEAST_WAVES)),
        filled(np.maximum(probe_terms.waves, _LEAST_WAVES), 1.0),
        log_of(probe_terms.time_us() / time),
        np.array([[float(kernel.name == BLOCK_SCALED)] for kernel in kernels]),
    ]
    table: Floats = np.concatenate(columns, axis=1)
    return table


#: FP32 products: batched ones (bmm) too.
FP32_GEMM_FEATURES: tuple[str, ...] = (*GEMM_FEATURES, "log_batch", "is_batched")


def fp32_gemm_features(
    kernels: Sequence[Kernel], timings: Sequence[PhysicalTime], gpu: GPU
) -> Floats:
    """One row of `FP32_GEMM_FEATURES` a kernel."""
    batch = np.maximum(np.array([[kernel.size[0]] for kernel in kernels], dtype=np.float64), 1.0)
    table = gemm_features(kernels, timings, gpu, "fp32")
    return np.concatenate([table, log_of(batch), np.where(batch > 1, 1.0, 0.0)], axis=1)


CONVOLUTION_FEATURES: tuple[str, ...] = (
    *GEMM_FEATURES,
    "log_batch",
    "log_in_channels",
    "log_out_channels",
    "log_image",
    "log_taps",
    "log_stride",
    "in_channels_mod_8",
    "out_channels_mod_8",
    "is_winograd",
    "log_time_per_product",
)


def convolution_features(
    kernels: Sequence[Kernel], timings: Sequence[PhysicalTime], gpu: GPU
) -> Floats:
    """One row of `CONVOLUTION_FEATURES` a kernel: those of its implicit product, and its own."""
    sizes = [kernel.size for kernel in kernels]
    products = []
    for size in sizes:
        assert isinstance(size, ConvolutionSize)
        batch, m, n, k = implicit_gemm(size)
        products.append(Kernel.gemm(m, n, k, batch=batch, dtype="float32"))
    table = gemm_features(products, timings, gpu, "fp32")
    own = np.array(
        [
            (
                size.batch,
                size.in_channels,
                size.out_channels,
                math.prod(size.input),
                math.prod(size.kernel),
                math.prod(size.stride),
            )
            for size in sizes
            if isinstance(size, ConvolutionSize)
        ],
        dtype=np.float64,
    )
    flops = np.array([kernel.flops for kernel in kernels], dtype=np.float64)
    time = np.array([timing.time_us for timing in timings])
    peak = gpu.peak_flops("fp32", matrix=True) * 1e-6
    winograd = np.array([float(is_winograd(kernel, gpu)) for kernel in kernels])
    columns = [
        log_of(np.maximum(own, 1.0)),
        np.mod(own[:, 1:3], 8) / 8,
        winograd[:, None],
        log_of(np.maximum(flops, 1.0) / peak / time)[:, None],
    ]
    return np.concatenate([table, *columns], axis=1)


QUANTISATION_FEATURES: tuple[str, ...] = (
    "log_rows",
    "log_width",
    "width_mod_512",
    "log_rows_per_sm",
    "rows_fill",
    "log_bytes_per_l2",
    "log_floor_share",
    "log_dram_share",
    "log_row_share",
    "by_row",
)

#: Bytes per clock of the CTA that owns a row, at which `log_row_share` is stated.
_ROW_BYTES = 24.0


def quantisation_features(
    kernels: Sequence[Kernel], timings: Sequence[PhysicalTime], gpu: GPU
) -> Floats:
    """One row of `QUANTISATION_FEATURES` a kernel."""
    table = np.array(
        [
            (*kernel.size, kernel.num_bytes, kernel.bytes_read, kernel.name == BY_ROW)
            for kernel in kernels
        ],
        dtype=np.float64,
    )
    rows, width, moved, read = (np.maximum(column, 1.0) for column in table.T[:4])
    time = np.array([timing.time_us for timing in timings])
    per_sm = rows / gpu.num_sms
    clock = gpu.clock_hz * 1e-6
    bandwidth = gpu.bandwidth_gbps * 1e3 * gpu.bandwidth_utilization
    columns = [
        log_of(rows),
        log_of(width),
        np.mod(width, 512) / 512,
        log_of(per_sm),
        per_sm / np.ceil(per_sm),
        log_of(moved / gpu.l2_bytes),
        log_of(gpu.floor_us / time),
        log_of(moved / bandwidth / time),
        log_of(np.maximum(1.0, per_sm) * read / rows / (_ROW_BYTES * clock) / time),
        table.T[-1],
    ]
    return np.stack(columns, axis=1)


ROW_FEATURES: tuple[str, ...] = (
    "log_rows",
    "log_width",
    "width_mod_4",
    "is_narrow",
    "log_rows_per_sm",
    "rows_fill",
    "log_bytes_per_l2",
    "log_floor_share",
    "log_dram_share",
    "log_row_share",
    "is_softmax",
)

#: Elements of a row up to which softmax keeps it in a warp's registers (PersistentSoftmax.cuh).
_NARROW_ROW = 1024


def row_features(kernels: Sequence[Kernel], timings: Sequence[PhysicalTime], gpu: GPU) -> Floats:
    """One row of `ROW_FEATURES` a kernel: softmax and layer norm over whole rows."""
    table = np.array(
        [
            (
                *kernel.size,
                kernel.num_bytes,
                kernel.bytes_read,
                kernel.kernel_class is KernelClass.SOFTMAX,
            )
            for kernel in kernels
        ],
        dtype=np.float64,
    )
    rows, width, moved, read = (np.maximum(column, 1.0) for column in table.T[:4])
    time = np.array([timing.time_us for timing in timings])
    per_sm = rows / gpu.num_sms
    bandwidth = gpu.bandwidth_gbps * 1e3 * gpu.bandwidth_utilization
    row_us = np.maximum(1.0, per_sm) * read / rows / (_ROW_BYTES * gpu.clock_hz * 1e-6)
    columns = [
        log_of(rows),
        log_of(width),
        np.where(np.mod(width, 4) == 0, 1.0, 0.0),
        np.where(width <= _NARROW_ROW, 1.0, 0.0),
        log_of(per_sm),
        per_sm / np.ceil(per_sm),
        log_of(moved / gpu.l2_bytes),
        log_of(gpu.floor_us / time),
        log_of(moved / bandwidth / time),
        log_of(row_us / time),
        table.T[-1],
    ]
    return np.stack(columns, axis=1)


ATTENTION_FEATURES: tuple[str, ...] = (
    "log_batch",
    "log_heads",
    "log_group",
    "log_seq_q",
    "log_seq_kv",
    "log_head_dim",
    "head_dim_fill",
    "causal",
    "seq_q_fill_64",
    "seq_q_fill_128",
    "seq_kv_fill_128",
    "log_tiles_per_sm",
    "tiles_fill",
    "log_units_per_sm",
    "units_fill",
    "log_split",
    "log_bytes_per_l2",
    "log_floor_share",
    "log_matrix_share",
    "log_exponential_share",
    "log_dram_share",
    "log_serial_share",
)


def attention_features(
    kernels: Sequence[Kernel], timings: Sequence[PhysicalTime], gpu: GPU
) -> Floats:
    """One row of `ATTENTION_FEATURES` a kernel."""
    table = np.array(
        [
            (*kernel.size, kernel.num_bytes, kernel.flops, timing.time_us, timing.split_k)
            for kernel, timing in zip(kernels, timings, strict=True)
        ],
        dtype=np.float64,
    )
    batch, heads, kv_heads, seq_q, seq_kv, head_dim = table.T[:6]
    causal = table.T[7]
    moved, flops, time, split = table.T[9:]
    peak = gpu.peak_flops(kernels[0].compute, matrix=True) * 1e-6 * gpu.gemm_utilization
    bandwidth = gpu.bandwidth_gbps * 1e3 * gpu.bandwidth_utilization
    exponentials = flops / (4.0 * head_dim)
    rate = exponentials_per_clock(gpu) * gpu.clock_hz * 1e-6 * gpu.num_sms
    tiles = batch * heads * np.ceil(seq_q / 128) / gpu.num_sms
    # Work units of kernels that pack the query heads of a group into one tile.
    units = batch * kv_heads / gpu.num_sms
    serial = seq_kv * np.minimum(seq_q, 128.0) * 4.0 * head_dim / (peak / gpu.num_sms)

    def share(term: Floats) -> Floats:
        return log_of(np.maximum(term / time, _LEAST_SHARE))

    def fill(values: Floats, step: float) -> Floats:
        filled: Floats = values / (np.ceil(values / step) * step)
        return filled

    columns = [
        log_of(batch),
        log_of(heads),
        log_of(heads / kv_heads),
        log_of(seq_q),
        log_of(seq_kv),
        log_of(head_dim),
        fill(head_dim, 64),
        causal,
        fill(seq_q, 64),
        fill(seq_q, 128),
        fill(seq_kv, 128),
        log_of(tiles),
        fill(tiles, 1),
        log_of(units),
        fill(units, 1),
        log_of(split),
        log_of(moved / gpu.l2_bytes),
        share(gpu.floor_us * np.ones_like(time)),
        share(flops / peak),
        share(exponentials / rate),
        share(moved / bandwidth),
        share(serial),
    ]
    return np.stack(columns, axis=1)


_MEASURED_COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")

COLLECTIVE_FEATURES: tuple[str, ...] = (
    "log_ranks",
    "log_wire_per_floor",
    "log_bytes",
    "log_bytes_per_rank",
    "log_wire_share",
    "log_floor_share",
    "is_8_bit",
    *(f"is_{name}" for name in _MEASURED_COLLECTIVES),
)


def collective_features(
    kernels: Sequence[Kernel], timings: Sequence[PhysicalTime], gpu: GPU
) -> Floats:
    """One row of `COLLECTIVE_FEATURES` a kernel."""
    table = np.array(
        [
            (*kernel.size, wire_bytes(kernel), timing.time_us)
            for kernel, timing in zip(kernels, timings, strict=True)
        ],
        dtype=np.float64,
    )
    moved, ranks, _, wire, time = table.T
    wire_us = np.maximum(wire, 1.0) / (gpu.link_gbps * 1e3)
    columns = [
        log_of(ranks),
        log_of(wire_us / gpu.link_floor_us),
        log_of(np.maximum(moved, 1.0)),
        log_of(np.maximum(moved / ranks, 1.0)),
        log_of(np.maximum(wire_us / time, _LEAST_SHARE)),
        log_of(gpu.link_floor_us / time),
        np.array([float(kernel.dtype == "int8") for kernel in kernels]),
        *(
            np.array([float(kernel.name == name) for kernel in kernels])
            for name in _MEASURED_COLLECTIVES
        ),
    ]
    return np.stack(columns, axis=1)


#: Waves of an empty problem, so that their logarithm exists.
_LEAST_WAVES = 1e-3
