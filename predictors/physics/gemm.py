"""How long a matrix product takes: the best of the tiles and split-K factors a library may choose.

For each candidate, the time is a floor, plus the CTAs' start and end, plus a smooth maximum of
arithmetic, L2 traffic, DRAM traffic and the latency of the K loop, plus the sum over the parts of
K. Each term never falls when m, n, k or batch grows, so neither does the least over a fixed set of
candidates. Only additions, products, quotients and square roots: bit-equal on every machine.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from neusight.predictors.gpu import GPU
from neusight.predictors.kernel import (
    DTYPE_BYTES,
    OUTER_SCALED,
    GemmSize,
    Kernel,
    KernelClass,
    size_of,
)
from neusight.predictors.physics.launch_geometry import effective_waves, geometry_of
from neusight.predictors.physics.packed_weights import PACKED_ROWS, packed_timing
from neusight.predictors.physics.physical_time import Bound, PhysicalTime, smooth_maximum
from neusight.predictors.physics.power import filled_in
from neusight.predictors.physics.roofline import cold_share
from neusight.predictors.physics.tile import (
    NUM_STAGES,
    SPLITS,
    STAGE_DEPTH,
    Candidates,
    candidates,
    threads_of,
)

Floats = NDArray[np.float64]


class GemmConstants(NamedTuple):
    """The constants of the GEMM physics, the same on every GPU.

    Fitted on a sample of data/modern (8,000 bf16 and fp16 burst rows of 8 GPUs, balanced over
    duration) on mean |log error|: 8-11 % per GPU (L40S 15 %). Fitted without the
    GPU and its siblings: 8-11 % (L40S, whose large L2 no other shows, 29 %) with the GPU's own
    constants, 9-15 % (L40S 33 %) with priors for them too.
    """

    #: What 1/m + 1/n of a tile costs its arithmetic, elements, at 4096 FLOP per clock and SM.
    tile_penalty: float = 190.0
    #: Bytes per clock and SM that the L2 gives when all SMs load.
    l2_bytes: float = 101.0
    #: Clocks of one K stage that no other work hides.
    stage_clocks: float = 96.0
    #: Clocks to start and end a CTA (prologue and epilogue).
    cta_clocks: float = 2510.0
    #: Clocks for each result of a CTA that is written when its loop is over, hidden by no other.
    result_clocks: float = 0.0
    #: Whether a burst has no more power than the limit.
    is_limited: bool = False
    #: Share of a whole wave that an empty place in the last wave costs.
    tail_cost: float = 0.14
    #: Footprint, in units of the L2, at which half of the activations leave it.
    activation_reach: float = 0.29
    #: The same for weights, which other layers' weights displace.
    weight_reach: float = 0.106
    #: Clocks to synchronize and add the parts of a split K.
    split_clocks: float = 4370.0
    #: DRAM bandwidth of GEMM loads, as a share of a streaming copy's.
    dram_share: float = 0.93
    #: Share of the shorter of arithmetic and DRAM traffic that the longer one does not hide.
    exposed_share: float = 0.0
    #: Floor of a GEMM, as a multiple of the GPU's shortest kernel.
    floor_factor: float = 0.86
    #: FP8 utilization as a share of the 16-bit one. A prior: measured rows hold the quantisation.
    fp8_share: float = 0.9


CONSTANTS = GemmConstants()

#: hipBLASLt's products in 16 and 8 bits, whose workgroups do not write one tile while they compute
#: the next, and which the power limit holds in a program of a second too. A wave of 8192 x 2432
#: results takes 11 us beyond its steps along K on MI300X, and the steps what the limit allows:
#: products of stable-diffusion-3.5 in data/profiled_kernels (16 of 15 us and more: 21 -> 6 % off in
#: the median). The four other programs, 21 products not used for it: 23 -> 7 %.
_AMD_CONSTANTS = CONSTANTS._replace(result_clocks=0.35, is_limited=True)

#: The same for ordinary cores (FP32 without TF32), whose kernels start faster and re-read more from
#: DRAM. Fitted on mean |log error| over 1,400 linear and bmm rows each of V100, T4 and A100 in
#: data/paper_fp32: linear 7-14 %, bmm 14-23 %. Terms the data say nothing about stay as above; so
#: does the cost of a split, as skinny products, which need one, are not among them. A CTA loads,
#: multiplies and stores in turn, so `exposed_share`: a product with K of 256 (data/kernelbench, the
#: even half) takes 12.6, 11.0, 13.0 and 192 ms on H100 PCIe, SXM, L40S and T4, where arithmetic
#: alone takes 11.1, 8.0, 8.8 and 165 and DRAM alone 2.3, 1.4, 5.3 and 30.
SIMT_CONSTANTS = CONSTANTS._replace(
    tile_penalty=185.0,
    l2_bytes=85.0,
    cta_clocks=117.0,
    tail_cost=0.18,
    activation_reach=0.39,
    exposed_share=0.75,
)

#: Of Hopper the even half says 2.2 (SXM) and 0.7 (PCIe) of K of 256; K of 32 and 64, not used, come
#: out 12 % too fast with 0.75 and 5 % with this.
_HOPPER_SIMT_CONSTANTS = SIMT_CONSTANTS._replace(exposed_share=1.0)
_HOPPER = 9

#: The same for implicit products of convolutions, whose kernels overlap loads and arithmetic.
CONVOLUTION_CONSTANTS = SIMT_CONSTANTS._replace(dram_share=0.68, exposed_share=0.0)

#: In how many parts FP32 libraries cut a long K: K of 131072 with 256 x 256 results runs at the
#: full rate of the GPU (data/kernelbench, H100, L40S, A100), so all SMs are busy.
_SIMT_SPLITS = (*SPLITS, 32, 64)

#: Batched FP32 products (cublasSgemmStridedBatched): the tile of nearly all of them from this
#: compute capability on, and the least area before, as kernel names in data/paper_fp32 have it.
_BATCHED_TILE = (128, 128)
_BATCHED_TILE_SINCE = (8, 0)
_BATCHED_LEAST_AREA = 64 * 64
#: From this one on tiles are narrower along an edge of so many results at most: half of what 128 x
#: 128 takes on H100 for 16384 x 32 results a batch (data/kernelbench, level 3's 31); not used: 64 x
#: 64, 64 x 16 and 3 x 1024 of 48 and 49, 40 to 58 % too slow before, 8 to 13 % so.
_BATCHED_NARROW = 64
_BATCHED_NARROW_SINCE = (9, 0)
#: Results of a batch up to this edge have kernels of their own (gemmSN of cuBLAS): as the smallest
#: tile. A prior.
_SMALL_BATCHED_EDGE = 16
_SMALL_BATCHED_TILE = (32, 32)

#: Tile edges at which `tile_penalty` costs nothing: the largest tile common to all libraries.
_REFERENCE_EDGES = 1 / 128 + 1 / 256

#: FLOP per clock and SM at which `tile_penalty` is stated (Hopper, 16 bit).
_REFERENCE_FLOPS_PER_CLOCK = 4096.0

#: Bytes of one partial sum of a split K (FP32).
_PARTIAL_SUM_BYTES = 4.0

#: Half width of the 80 % interval, share: about the 90th percentile of the error on data/modern; it
#: covers 81-96 % of the bf16 and fp16 rows, as unfitted layouts and types are to fit in too.
SPREAD = 0.2
#: The same below which launch effects rule (< 10 µs).
SMALL_SPREAD = 0.3
SMALL_US = 10.0

#: Products of a matrix and a vector on ordinary cores: share of a stream's bandwidth, bytes per
#: clock and SM out of the L2, floor, rows of a CTA and its threads. Priors, as other reductions.
_VECTOR_DRAM_SHARE = 0.9
_VECTOR_ISSUE_BYTES = 14.0
_VECTOR_FLOOR_FACTOR = 1.5
_VECTOR_ROWS = 4
_VECTOR_THREADS = 128
VECTOR_SPREAD = 0.35

#: Rows priced at once: their tables stay in the processor's cache.
_CHUNK = 1024


class GemmProblems(NamedTuple):
    """Matrix products as columns of shape (number of problems, 1), all float64."""

    batch: Floats
    m: Floats
    n: Floats
    k: Floats
    #: Bytes of an element of the inputs.
    itemsize: Floats
    #: Arithmetic takes this many times as long as in a plain product.
    slowdown: Floats
    #: Compulsory bytes of weights (read once a step) and of activations (read or written).
    weight_bytes: Floats
    activation_bytes: Floats


class GemmTimes(NamedTuple):
    """What `price_gemms` found: one entry a problem."""

    time_us: Floats
    best: NDArray[np.intp]
    compute_us: Floats
    memory_us: Floats


class GemmTerms(NamedTuple):
    """What the time of a product is made of, µs, by problem (rows) and candidate (columns)."""

    floor_us: float
    #: CTAs over SMs.
    waves: Floats
    math_us: Floats
    l2_us: Floats
    dram_us: Floats
    stages_us: Floats
    ctas_us: Floats
    split_us: Floats
    exposed_share: float = 0.0

    def time_us(self) -> Floats:
        """The sum of floor, CTAs, the smooth maximum of what overlaps, what does not, the split."""
        largest = np.maximum(
            np.maximum(self.math_us, self.l2_us), np.maximum(self.stages_us, self.dram_us)
        )
        largest = np.maximum(largest, _TINY_US)
        total = (
            _fourth(self.math_us / largest)
            + _fourth(self.l2_us / largest)
            + _fourth(self.dram_us / largest)
            + _fourth(self.stages_us / largest)
        )
        in_turn = self.exposed_share * np.minimum(
            self.dram_us, np.maximum(self.math_us, self.l2_us)
        )
        time: Floats = (
            self.floor_us
            + self.ctas_us
            + largest * np.sqrt(np.sqrt(total))
            + in_turn
            + self.split_us
        )
        return time


def gemm_terms(
    problems: GemmProblems,
    tiles: Candidates,
    gpu: GPU,
    compute: str,
    *,
    constants: GemmConstants,
    sustained: bool = False,
) -> GemmTerms:
    """The terms of each product under each tile and split; columns of both broadcast."""
    tile_m, tile_n, split = tiles
    batch, m, n, k, itemsize, slowdown, weight_bytes, activation_bytes = problems

    clock = gpu.clock_hz * 1e-6  # clocks per µs
    sm_peak = gpu.peak_flops(compute, matrix=True) * 1e-6 / gpu.num_sms  # FLOP per µs and SM
    is_limited = sustained or constants.is_limited
    utilization = utilization_of(gpu, compute, constants=constants, sustained=is_limited)
    penalty = constants.tile_penalty * (sm_peak / clock) / _REFERENCE_FLOPS_PER_CLOCK
    edges = 1.0 / tile_m + 1.0 / tile_n
    efficiency = np.minimum(1.0, (1.0 + penalty * _REFERENCE_EDGES) / (1.0 + penalty * edges))

    rows, columns = np.ceil(m / tile_m), np.ceil(n / tile_n)
    num_ctas = batch * rows * columns * split
    waves = num_ctas / gpu.num_sms
    felt = effective_waves(waves, constants.tail_cost)
    stages = np.maximum(1.0, np.ceil(k * itemsize / (2 * STAGE_DEPTH * split)))
    depth = stages * (2 * STAGE_DEPTH) / itemsize

    reached = sm_peak * utilization * efficiency / slowdown
    math = felt * (2.0 * tile_m * tile_n * depth / reached)
    loaded = (tile_m + tile_n) * depth * itemsize  # bytes a CTA loads
    l2_load = num_ctas * loaded / (constants.l2_bytes * clock * gpu.num_sms)
    in_turn = felt / np.minimum(waves, _resident(tiles, itemsize, batch, gpu)).clip(1.0)
    latency = in_turn * (stages * (constants.stage_clocks / clock))

    footprint = weight_bytes + activation_bytes
    dram_bytes = weight_bytes * _leaving_share(
        footprint, constants.weight_reach * gpu.l2_bytes
    ) + activation_bytes * _leaving_share(footprint, constants.activation_reach * gpu.l2_bytes)
    bandwidth = gpu.dram_bytes_per_us * constants.dram_share
    partial_bytes = batch * m * n * (2.0 * _PARTIAL_SUM_BYTES) * split
    partial_us = constants.split_clocks / clock + partial_bytes / (
        constants.l2_bytes * clock * gpu.num_sms
    )
    return GemmTerms(
        floor_us=(gpu.gemm_floor_us or gpu.floor_us) * constants.floor_factor,
        waves=waves,
        math_us=math,
        l2_us=l2_load,
        dram_us=dram_bytes / bandwidth,
        stages_us=latency,
        ctas_us=in_turn
        * ((constants.cta_clocks + constants.result_clocks * tile_m * tile_n) / clock),
        split_us=np.where(split > 1, partial_us, 0.0),
        exposed_share=constants.exposed_share,
    )


def _resident(tiles: Candidates, itemsize: Floats, batch: Floats, gpu: GPU) -> Floats:
    """CTAs of a batched product that run at once on an SM and hide each other's latencies: as many
    as their stages in shared memory let. Single products are stated as if one did (`CONSTANTS`)."""
    stages_bytes = (tiles.tile_m + tiles.tile_n) * (STAGE_DEPTH * NUM_STAGES) * itemsize
    fitting = np.floor(gpu.shared_memory_per_sm_bytes / stages_bytes)
    is_batched = (batch > 1) & (gpu.vendor == "nvidia")
    resident: Floats = np.where(is_batched, np.maximum(1.0, fitting), 1.0)
    return resident


def constants_of(gpu: GPU, compute: str, *, is_convolution: bool = False) -> GemmConstants:
    """The constants of the unit that computes the products."""
    if gpu.has_matrix_unit(compute):
        is_of_hipblaslt = gpu.vendor == "amd" and not is_convolution and compute != "fp32"
        return _AMD_CONSTANTS if is_of_hipblaslt else CONSTANTS
    if is_convolution:
        return CONVOLUTION_CONSTANTS
    return _HOPPER_SIMT_CONSTANTS if gpu.nvidia_major >= _HOPPER else SIMT_CONSTANTS


def price_gemms(
    problems: GemmProblems,
    gpu: GPU,
    compute: str,
    *,
    sustained: bool,
    is_convolution: bool,
) -> GemmTimes:
    """The time of each product by its best candidate, µs; `best` indexes `candidates`."""
    tiles = _candidates_of(gpu, compute, is_convolution=is_convolution)
    constants = constants_of(gpu, compute, is_convolution=is_convolution)
    terms = gemm_terms(problems, tiles, gpu, compute, sustained=sustained, constants=constants)
    time = terms.time_us()
    if not (is_convolution or gpu.has_matrix_unit(compute)) and gpu.vendor == "nvidia":
        time = np.where((problems.batch > 1) & ~_serves_batches(tiles, gpu, problems), np.inf, time)
    best = np.argmin(time, axis=1)
    every = np.arange(len(best))
    return GemmTimes(
        time_us=time[every, best],
        best=best,
        compute_us=terms.math_us[every, best],
        memory_us=np.maximum(terms.dram_us, terms.l2_us)[every, best],
    )


def _candidates_of(gpu: GPU, compute: str, *, is_convolution: bool) -> Candidates:
    """What the libraries of that unit choose from: FP8 products with a scale a row or a block
    (CUTLASS, DeepGEMM) never split K: 1 x 256 x 65536 takes 100 µs on H100 and B200 alike."""
    if not gpu.has_matrix_unit(compute):
        return candidates(matrix_unit=False, splits=SPLITS if is_convolution else _SIMT_SPLITS)
    return candidates(matrix_unit=True, splits=(1,) if compute == "fp8" else SPLITS)


def _serves_batches(tiles: Candidates, gpu: GPU, problems: GemmProblems) -> NDArray[np.bool_]:
    """Which candidates cuBLAS considers for a batched product on ordinary cores."""
    if gpu.compute_capability >= _BATCHED_TILE_SINCE:
        serves = (tiles.tile_m == _BATCHED_TILE[0]) & (tiles.tile_n == _BATCHED_TILE[1])
    else:
        serves = tiles.tile_m * tiles.tile_n >= _BATCHED_LEAST_AREA
    if gpu.compute_capability >= _BATCHED_NARROW_SINCE:
        edges = ((tiles.tile_m, problems.m), (tiles.tile_n, problems.n))
        rows, columns = (
            np.where(size <= _BATCHED_NARROW, edge == _BATCHED_NARROW, edge == _BATCHED_TILE[0])
            for edge, size in edges
        )
        serves = rows & columns
    is_small_tile = (tiles.tile_m == _SMALL_BATCHED_TILE[0]) & (
        tiles.tile_n == _SMALL_BATCHED_TILE[1]
    )
    is_small = (problems.m <= _SMALL_BATCHED_EDGE) & (problems.n <= _SMALL_BATCHED_EDGE)
    serves = serves | (is_small_tile & is_small)
    found: NDArray[np.bool_] = serves & (tiles.split == 1)
    return found


#: Keeps the ratio of terms defined where all are 0, µs.
_TINY_US = 1e-9


def _fourth(values: Floats) -> Floats:
    squares = values * values
    return squares * squares


def _leaving_share(footprint: Floats, reach_bytes: float) -> Floats:
    """Share of the traffic that reaches DRAM: 0 for a small footprint, 1/2 at `reach_bytes`, 1."""
    ratio = footprint / reach_bytes
    squares = ratio * ratio
    return squares / (1.0 + squares)


def utilization_of(
    gpu: GPU, compute: str, *, sustained: bool, constants: GemmConstants = CONSTANTS
) -> float:
    """Share of peak that a large GEMM reaches on this GPU and unit: measured, else what its power
    limit allows.

    The FP32 share was measured in loops of long kernels: it is the sustained one as it is.
    """
    known = filled_in(gpu)
    if not gpu.has_matrix_unit(compute):
        return known.fp32_gemm_utilization
    share = known.gemm_utilization * (constants.fp8_share if compute == "fp8" else 1.0)
    return share * (known.sustained_factor if sustained and compute != "fp32" else 1.0)


#: What arithmetic on tensor cores takes where rows of a matrix do not start at 16 bytes: wide loads
#: and stores are out. GPT-2's vocabulary padded from 50257 to 50304 made its training a quarter
#: faster on A100 (nanoGPT), which is 1.8 times for the three products of the vocabulary.
UNALIGNED_FACTOR = 1.7
_ALIGNED_BYTES = 16

#: Loads and stores of unaligned matrices a clock and SM, each as wide as the rows are aligned. Read
#: off two products of data/profiled_kernels (timesformer-base, rows of 3137: 2.15 and 2.41 on H100,
#: 1.2 and 1.8 on MI300X); owlv2-large, rows of 5185, was not used: 1.7 and 2.2, 2.0 and 1.5.
_UNALIGNED_ACCESSES = {"nvidia": 2.2, "amd": 1.6}


def is_unaligned(kernel: Kernel, gpu: GPU) -> bool:
    """Whether a product on matrix cores has a matrix whose rows do not start at 16 bytes.

    >>> from neusight.predictors.gpu import find_gpu
    >>> [is_unaligned(Kernel.gemm(64, n, 768), find_gpu("H100")) for n in (50257, 50304)]
    [True, False]
    """
    return _unaligned_accesses(kernel, gpu) > 0.0


def unaligned_us(kernel: Kernel, gpu: GPU, time_us: float) -> float:
    """The time of a product with unaligned rows that would take `time_us` without: arithmetic
    without wide loads, or the narrow loads and stores themselves, whichever is longer."""
    accesses = _unaligned_accesses(kernel, gpu) / _UNALIGNED_ACCESSES[gpu.vendor]
    narrow_us = accesses * 1e6 / (gpu.num_sms * gpu.clock_hz)
    work_us = max(0.0, time_us - gpu.floor_us)
    if gpu.nvidia_major >= _HOPPER:
        rate = _older_kernels_flops(kernel, gpu) * gpu.num_sms * gpu.clock_hz
        slowed_us = max(work_us, kernel.flops * 1e6 / rate)
    else:
        slowed_us = work_us * (UNALIGNED_FACTOR if gpu.vendor == "nvidia" else 1.0)
    return time_us - work_us + max(slowed_us, narrow_us)


#: FLOP per clock and SM of what cuBLAS falls back on from Hopper on, whose own kernels load by
#: 16 bytes: kernels of Ampere for 16-bit rows aligned to 4 bytes (cutlass_80_tensorop_..._align2)
#: and for TF32. The even half of `benchmarks/measured/h100`, products of 30 us and more: 1058;
#: 446-557, median 510. The odd half, not used: 1048-1106, 404-572.
_OLDER_KERNELS_FLOPS = {4: 1058.0, 8: 1058.0}
_OLDER_TF32_FLOPS = 510.0

#: The same of kernels of Turing for rows aligned to 2 bytes (cutlass_75_tensorop_..._align1), in
#: their loop; clocks of an SM for each element of a result without aligned rows, stored one by one
#: when the loop is over. In a batch, instead, the steps of K that the rest of a tile takes as long
#: as, but no longer than the loop (data/profiled_kernels, K of 64). Then the edge of a tile, and of
#: a narrow side in a batch; the rows and columns below which nothing was measured, and the least
#: steps of K of a part where a few tiles share theirs. The even half of `benchmarks/measured/h100`,
#: by shape, products of 15 us and more, 18 rows: 29 -> 6 % off in the median against one rate for
#: all; the odd half, 8 rows not used: 21 -> 6.
_NARROW_FLOPS = 620.0
_NARROW_STORE_CLOCKS = 1.2
_NARROW_BATCH_START = 225.0
_NARROW_EDGE = 128
_NARROW_BATCH_EDGE = 64
_NARROW_LEAST_EDGE = 16
_NARROW_LEAST_K = 256

#: FLOP per clock and SM of cuBLAS's products of 8-bit integers from Hopper on, by kernels of Ampere
#: (cutlass_80_tensorop_i16832gemm_s8_128x128), and the edge of their tiles, of which few rows take
#: half. `int_mm` in profiles.jsonl.gz of `benchmarks/measured/h100`: the rate of 1024 rows of three
#: layers; fewer rows, of which some chose the tiles' waves: 29 -> 19 % off in the median.
_OLDER_INT8_FLOPS = 3900.0
_OLDER_INT8_TILE = 128

#: FP8 products with a scale a row and a column (nvjet_sm90_qqtst_128x128_128x6_..._ovscale): the
#: edge of their tiles, also along K, and clocks of a step. The same file, `scaled_mm_rowwise`: one
#: row of 4096 x 4096 and 4096 x 14336; 47 others judge: 19 -> 13 % off in the median.
_OUTER_TILE = 128
_OUTER_STEP_CLOCKS = 740.0


def _older_kernels_flops(kernel: Kernel, gpu: GPU) -> float:
    """FLOP per clock and SM of the kernels for the alignment of a product's rows."""
    if kernel.compute == "tf32":
        return _OLDER_TF32_FLOPS
    itemsize = int(DTYPE_BYTES[kernel.dtype])
    axes = {*_ROW_ENDS.get(kernel.layout, ("m", "k")), "n"}
    alignment = min(
        math.gcd(getattr(kernel.size, axis) * itemsize, _ALIGNED_BYTES) for axis in axes
    )
    if alignment <= 2:
        return _narrow_flops(kernel, gpu)
    return _OLDER_KERNELS_FLOPS.get(alignment, math.inf)


def _narrow_flops(kernel: Kernel, gpu: GPU) -> float:
    """What rows aligned to 2 bytes leave, of tiles and waves that the product fills."""
    size = size_of(kernel, GemmSize)
    if min(size.m, size.n) < _NARROW_LEAST_EDGE:
        return _NARROW_FLOPS
    is_batch = size.batch > 1
    sides = (size.m, size.n)
    edges = [
        _NARROW_BATCH_EDGE if is_batch and side <= _NARROW_BATCH_EDGE else _NARROW_EDGE
        for side in sides
    ]
    rows, columns = (math.ceil(side / edge) for side, edge in zip(sides, edges, strict=True))
    num_tiles = size.batch * rows * columns
    num_parts = max(1, min(gpu.num_sms // num_tiles, size.k // _NARROW_LEAST_K))
    num_ctas = num_tiles * num_parts
    waves = num_ctas / (math.ceil(num_ctas / gpu.num_sms) * gpu.num_sms)
    filled = size.m * size.n / (rows * columns * math.prod(edges))
    rate = _NARROW_FLOPS * filled * waves
    if is_batch:
        return rate * size.k / (size.k + min(size.k, _NARROW_BATCH_START))
    if size.n % (_ALIGNED_BYTES / DTYPE_BYTES[kernel.dtype]):
        rate /= 1.0 + rate * _NARROW_STORE_CLOCKS / (2.0 * max(1, size.k))
    return rate


def _unaligned_accesses(kernel: Kernel, gpu: GPU) -> float:
    """Loads and stores of the matrices whose rows are not aligned, each matrix once."""
    size = kernel.size
    if not isinstance(size, GemmSize) or not gpu.has_matrix_unit(kernel.compute):
        return 0.0
    step = max(1, int(_ALIGNED_BYTES / DTYPE_BYTES[kernel.dtype]))
    # The rows of A [m, k], B [n, k] and the result [m, n], as the layout stores them.
    first, second = _ROW_ENDS.get(kernel.layout, ("m", "k"))
    matrices = ((first, size.m * size.k), (second, size.n * size.k), ("n", size.m * size.n))
    return size.batch * sum(
        elements / math.gcd(getattr(size, axis), step)
        for axis, elements in matrices
        if getattr(size, axis) % step
    )


#: What a bias added in the same kernel costs a product that has one wave of CTAs on Hopper, µs;
#: with more waves the epilogue of one hides behind the next. addmm of 5 to 141 rows in three
#: programs of data/profiled_kernels (owlv2-large, timesformer-base, bert-small): 1.4 to 3.1 beyond
#: what the same product takes without (data/modern, and mm there); vit-base, not used, 3.0 to 4.6.
_BIAS_US = 2.4


def bias_us(kernel: Kernel, gpu: GPU, num_waves: float) -> float:
    """What the bias of a product on tensor cores adds to its time, µs."""
    size = kernel.size
    if not isinstance(size, GemmSize) or gpu.nvidia_major != _HOPPER:
        return 0.0
    if not gpu.has_matrix_unit(kernel.compute) or kernel.compute == "fp8":
        return 0.0
    operands = (size.m + size.n) * size.k * DTYPE_BYTES[kernel.dtype]
    added_bytes = kernel.bytes_read - operands
    is_biased = size.batch == 1 and 0 < added_bytes <= size.n * DTYPE_BYTES[kernel.out_dtype]
    return _BIAS_US / max(1.0, num_waves) if is_biased else 0.0


_ROW_ENDS: dict[str, tuple[str, str]] = {"nt": ("k", "k"), "nn": ("k", "n"), "tn": ("m", "n")}


def problems_of(kernels: Sequence[Kernel], gpu: GPU) -> GemmProblems:
    """GEMM kernels as columns, as that GPU's libraries compute them."""
    rows = []
    for kernel in kernels:
        size = size_of(kernel, GemmSize)
        # Of one of the k elements of a row: two share a byte of float4_e2m1fn_x2.
        itemsize = DTYPE_BYTES[kernel.dtype] / (2 if kernel.dtype == "float4_e2m1fn_x2" else 1)
        # A Linear's weight is the second operand, forward (nt) and for the data gradient (nn).
        has_weight = size.batch == 1 and kernel.layout in ("nt", "nn")
        weights = size.n * size.k * itemsize if has_weight else 0.0
        if kernel.variant in PACKED_ROWS:
            weights = max(0.0, kernel.bytes_read - size.m * size.k * itemsize)
        activations = max(0.0, kernel.num_bytes - weights)
        rows.append((*size, itemsize, _slowdown(kernel, size, gpu), weights, activations))
    return columns(rows)


#: Hopper's matrix units take TF32 operands along K alone (PTX ISA, wgmma: transposes exist for
#: 16-bit types), so a product whose operands lie otherwise is rearranged on the way. Measured over
#: expected time of products of 50 us and more, the even half of `benchmarks/measured/h100`; the odd
#: half, not used: 1.11, 1.19, 1.74.
HOPPER_TF32_SLOWDOWN = {"nt": 1.06, "nn": 1.26, "tn": 1.74}


def _slowdown(kernel: Kernel, size: GemmSize, gpu: GPU) -> float:
    """How many times as long the arithmetic takes as in a plain product of two matrices."""
    if kernel.compute == "tf32" and gpu.nvidia_major == _HOPPER:
        return HOPPER_TF32_SLOWDOWN.get(kernel.layout, 1.0)
    if kernel.compute != "fp32" or gpu.has_matrix_unit("fp32"):
        return 1.0
    if kernel.layout != "nt" and size.batch == 1:
        return 1.0
    return 1.0 / gpu.fp32_nt_share


def columns(rows: Sequence[tuple[float, ...]]) -> GemmProblems:
    """Rows of `GemmProblems`' fields as its columns."""
    table = np.array(rows, dtype=np.float64).reshape(len(rows), len(GemmProblems._fields))
    return GemmProblems(*(table[:, index : index + 1] for index in range(table.shape[1])))


def gemm_timings(kernels: Sequence[Kernel], gpu: GPU, *, sustained: bool) -> list[PhysicalTime]:
    """The time of each GEMM kernel, in order."""
    found = timings_of_problems(
        problems_of(kernels, gpu),
        [kernel.compute for kernel in kernels],
        gpu,
        sustained=sustained,
    )
    return [
        _of_its_kind(kernel, gpu, timing) for kernel, timing in zip(kernels, found, strict=True)
    ]


def _of_its_kind(kernel: Kernel, gpu: GPU, tiled: PhysicalTime) -> PhysicalTime:
    """The time of a product that is not computed as a plain tiled one, else that of the tiles."""
    if kernel.variant in PACKED_ROWS:
        return packed_timing(kernel, gpu, tiled)
    if kernel.name == OUTER_SCALED and gpu.nvidia_major == _HOPPER:
        return replace(tiled, time_us=max(tiled.time_us, _outer_scaled_us(kernel, gpu)))
    is_of_cublas = kernel.compute == "int8" and kernel.out_dtype == "int32"
    if is_of_cublas and gpu.nvidia_major >= _HOPPER:
        return replace(tiled, time_us=max(tiled.time_us, _older_int8_us(kernel, gpu)))
    return _vector_timing(kernel, gpu) if is_vector_product(kernel, gpu) else tiled


def _outer_scaled_us(kernel: Kernel, gpu: GPU) -> float:
    """Tiles of one size, whose steps along K follow each other, beside the weight's stream."""
    size = size_of(kernel, GemmSize)
    tiles = math.ceil(size.m / _OUTER_TILE) * math.ceil(size.n / _OUTER_TILE)
    steps = math.ceil(tiles / gpu.num_sms) * math.ceil(size.k / _OUTER_TILE)
    serial_us = steps * _OUTER_STEP_CLOCKS * 1e6 / gpu.clock_hz
    return gpu.floor_us + smooth_maximum(serial_us, kernel.num_bytes / gpu.dram_bytes_per_us)


def _older_int8_us(kernel: Kernel, gpu: GPU) -> float:
    """Waves of tiles at the rate of Ampere's kernels."""
    size = size_of(kernel, GemmSize)
    edge = min(_OLDER_INT8_TILE, max(_OLDER_INT8_TILE // 2, size.m))
    tiles = size.batch * math.ceil(size.m / edge) * math.ceil(size.n / _OLDER_INT8_TILE)
    flops = 2.0 * edge * _OLDER_INT8_TILE * size.k * math.ceil(tiles / gpu.num_sms)
    return gpu.floor_us + flops * 1e6 / (_OLDER_INT8_FLOPS * gpu.clock_hz)


def is_vector_product(kernel: Kernel, gpu: GPU) -> bool:
    """Whether a kernel multiplies one matrix and one vector on ordinary cores, which reads the
    matrix as a stream and has no tiles (cuBLAS: gemv, or dot kernels).

    >>> from neusight.predictors.gpu import find_gpu
    >>> is_vector_product(Kernel.gemm(256, 1, 4096, dtype="float32"), find_gpu("H100"))
    True
    """
    size = kernel.size
    if not isinstance(size, GemmSize) or gpu.has_matrix_unit(kernel.compute):
        return False
    return size.batch == 1 and 1 in (size.m, size.n)


def _vector_timing(kernel: Kernel, gpu: GPU) -> PhysicalTime:
    bandwidth = gpu.dram_bytes_per_us * _VECTOR_DRAM_SHARE
    dram_us = kernel.num_bytes * cold_share(kernel.num_bytes, gpu) / bandwidth
    issue_us = kernel.num_bytes * 1e6 / (_VECTOR_ISSUE_BYTES * gpu.num_sms * gpu.clock_hz)
    floor_us = gpu.floor_us * _VECTOR_FLOOR_FACTOR
    stream_us = smooth_maximum(dram_us, issue_us)
    size = size_of(kernel, GemmSize)
    launch = geometry_of(
        KernelClass.GEMM,
        gpu,
        num_ctas=-(-max(size.m, size.n) // _VECTOR_ROWS),
        threads_per_cta=_VECTOR_THREADS,
    )
    return PhysicalTime(
        time_us=floor_us + stream_us,
        bound="memory" if stream_us > floor_us else "launch",
        spread=VECTOR_SPREAD,
        num_ctas=launch.num_ctas,
        threads_per_cta=launch.threads_per_cta,
        num_waves=launch.num_waves,
    )


def timings_of_problems(
    problems: GemmProblems,
    computes: Sequence[str],
    gpu: GPU,
    *,
    sustained: bool,
    is_convolution: bool = False,
) -> list[PhysicalTime]:
    """The time of each matrix product, in order; `computes` names the unit of each."""
    results: dict[int, PhysicalTime] = {}
    for compute in sorted(set(computes)):
        members = [index for index, unit in enumerate(computes) if unit == compute]
        for start in range(0, len(members), _CHUNK):
            chunk = members[start : start + _CHUNK]
            picked = GemmProblems(*(column[chunk] for column in problems))
            times = price_gemms(
                picked, gpu, compute, sustained=sustained, is_convolution=is_convolution
            )
            for position, index in enumerate(chunk):
                results[index] = _timing(
                    picked, times, position, gpu, compute, is_convolution=is_convolution
                )
    return [results[index] for index in range(len(computes))]


def _timing(
    problems: GemmProblems,
    times: GemmTimes,
    position: int,
    gpu: GPU,
    compute: str,
    *,
    is_convolution: bool,
) -> PhysicalTime:
    table = _candidates_of(gpu, compute, is_convolution=is_convolution)
    best = int(times.best[position])
    tile = (int(table.tile_m[0, best]), int(table.tile_n[0, best]))
    split = int(table.split[0, best])
    rows = -(-int(problems.m[position, 0]) // tile[0])
    columns = -(-int(problems.n[position, 0]) // tile[1])
    launch = geometry_of(
        KernelClass.CONVOLUTION if is_convolution else KernelClass.GEMM,
        gpu,
        num_ctas=int(problems.batch[position, 0]) * rows * columns * split,
        threads_per_cta=threads_of(tile),
        tile=tile,
        itemsize=float(problems.itemsize[position, 0]),
    )
    time_us = float(times.time_us[position])
    return PhysicalTime(
        time_us=time_us,
        bound=_bound(float(times.compute_us[position]), float(times.memory_us[position]), time_us),
        spread=SMALL_SPREAD if time_us < SMALL_US else SPREAD,
        tile=tile,
        split_k=split,
        num_ctas=launch.num_ctas,
        threads_per_cta=launch.threads_per_cta,
        num_waves=launch.num_waves,
    )


def _bound(compute_us: float, memory_us: float, time_us: float) -> Bound:
    """What most of the time is, or "launch" where neither arithmetic nor memory is half of it."""
    if max(compute_us, memory_us) < time_us / 2:
        return "launch"
    return "compute" if compute_us >= memory_us else "memory"
