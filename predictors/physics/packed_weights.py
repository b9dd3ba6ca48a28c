"""How long a product takes whose weight is stored in fewer bits and unpacked inside the kernel.

Few rows stream the packed weight and its scales, as fast as the DRAM gives them or, by tinygemm, as
its warps ask for them. More rows multiply at the rate of the activations'
dtype, and the same threads unpack the weight once for each group of rows that share it; each group
reads the packed weight again from the L2. aten::_weight_int8pack_mm has one thread an output.
"""

from __future__ import annotations

from dataclasses import replace

from neusight.predictors.gpu import GPU
from neusight.predictors.kernel import DTYPE_BYTES, GemmSize, Kernel, size_of
from neusight.predictors.physics.physical_time import Bound, PhysicalTime, smooth_maximum
from neusight.predictors.physics.power import filled_in
from neusight.predictors.physics.roofline import flop_roofline_us

#: Rows of the activations that share one unpacked weight, by variant: Marlin's and CUTLASS's tiles,
#: tinygemm's (kM of ATen/native/cuda/int4mm.cu), and kernels that compute each row alone.
PACKED_ROWS: dict[str, int] = {
    "packed_tiles": 64,
    "packed_16_rows": 16,
    "packed_rows": 1,
    "packed_outputs": 1,
}

#: Instructions a thread executes to unpack a weight: a mask or a permutation and a fused multiply
#: and add, each for a pair of 16-bit values. Counted in Marlin's and tinygemm's conversion.
_UNPACK_INSTRUCTIONS = 1.0
#: Rows up to which the kernels stream the weight; with more they are tiled as plain products are.
_MOST_STREAMED_ROWS = 64
#: Threads of which an SM issues an instruction a clock: four schedulers of a warp each.
_ISSUED_THREADS = 128
#: Bytes per clock and SM that the L2 gives (that of tiled products, `GemmConstants.l2_bytes`).
_L2_BYTES = 101.0
#: Footprint, in units of the L2, at which half of the weight leaves it, displaced by those of other
#: layers (that of plain products, `GemmConstants.weight_reach`).
_WEIGHT_REACH = 0.106

#: tinygemm (tinygemm_m16n8k16_chunk_kernel): a CTA of eight warps has 8 columns; in an iteration a
#: warp loads 128 of their weights (eight k-tiles of 16) and uses them before it loads more, so that
#: each costs a latency of the DRAM. Its tiles of A and B take about 90 registers a thread, which
#: leaves room for two CTAs on an SM.
_CTA_COLUMNS = 8
_WEIGHTS_AN_ITERATION = 8 * 128
_CTAS_AT_ONCE = 2

#: That latency, and the instructions of a thread to unpack a weight for a tile of rows and to
#: multiply it by each row. An H100 under torch 2.11, `int4pack_mm` in profiles.jsonl.gz of
#: `benchmarks/measured/h100`: read off two layers (28672 x 8192, 128256 x 4096), 1 to 256 rows;
#: five others judge: 58 -> 10 % off in the median, and groups of 32 in one row 17 to 40 too fast.
_LATENCY_CLOCKS = 1040.0
_TILE_UNPACK_INSTRUCTIONS = 5.6
_ROW_INSTRUCTIONS = 1.9

#: aten::_weight_int8pack_mm (weight_int8pack_mm_kernel): a thread an output, which goes through its
#: row of weights one by one: clocks of a step, multiplications a clock and SM, of two rows at
#: least. The same H100, `int8pack_mm`: 7 layers of 1, 4 and 16 rows, a fit.
_STEP_CLOCKS = 65.0
_OUTPUTS_MULTIPLICATIONS = 2.0
_LEAST_ROWS = 2

#: Half width of the 80 % interval. A prior: no table has such kernels of Marlin's and CUTLASS's.
SPREAD = 0.4


def packed_timing(kernel: Kernel, gpu: GPU, tiled: PhysicalTime) -> PhysicalTime:
    """The time of a product with a packed weight; `tiled` is that of a plain product whose weight
    has as many bytes."""
    size = size_of(kernel, GemmSize)
    rows = PACKED_ROWS[kernel.variant]
    passes = -(-size.m // rows)
    clocks = gpu.num_sms * gpu.clock_hz * 1e-6  # of all SMs, per µs
    weight_bytes = kernel.bytes_read - size.m * size.k * DTYPE_BYTES[kernel.dtype]
    ratio = kernel.num_bytes / (_WEIGHT_REACH * gpu.l2_bytes)
    leaving_share = ratio * ratio / (1.0 + ratio * ratio)

    dram_us = kernel.num_bytes * leaving_share / gpu.dram_bytes_per_us
    if kernel.variant == "packed_outputs":
        outputs_us = gpu.floor_us + max(dram_us, _outputs_us(size, gpu))
        return replace(tiled, time_us=outputs_us, bound="compute", spread=SPREAD)
    l2_us = passes * max(0.0, weight_bytes) / (_L2_BYTES * clocks)
    unpack_us = passes * size.n * size.k * _UNPACK_INSTRUCTIONS / (_ISSUED_THREADS * clocks)
    known, has_unit = filled_in(gpu), gpu.has_matrix_unit(kernel.compute)
    utilization = known.gemm_utilization if has_unit else known.fp32_gemm_utilization
    arithmetic_us = flop_roofline_us(kernel, gpu) / utilization
    stream_us = max(dram_us, l2_us)
    work_us = smooth_maximum(stream_us, unpack_us + arithmetic_us)
    if kernel.variant == "packed_16_rows":
        instructions = passes * _TILE_UNPACK_INSTRUCTIONS + size.m * _ROW_INSTRUCTIONS
        issue_us = size.n * size.k * instructions / (_ISSUED_THREADS * clocks)
        stream_us = smooth_maximum(stream_us, _waiting_us(size, gpu))
        work_us = max(stream_us, issue_us, arithmetic_us)
        unpack_us = issue_us
    elif size.m > _MOST_STREAMED_ROWS:  # tiles and waves, and the unpacking in the same threads
        work_us = max(work_us, tiled.time_us + unpack_us)
    is_streaming = stream_us >= unpack_us + arithmetic_us
    bound: Bound = "memory" if is_streaming else "compute"
    if work_us < gpu.floor_us:
        bound = "launch"
    return replace(tiled, time_us=gpu.floor_us + work_us, bound=bound, spread=SPREAD)


def _outputs_us(size: GemmSize, gpu: GPU) -> float:
    """A thread an output: its steps one after the other, or the multiplications of all."""
    rows = max(_LEAST_ROWS, size.m)
    together = rows * size.n * size.k / (_OUTPUTS_MULTIPLICATIONS * gpu.num_sms)
    return max(size.k * _STEP_CLOCKS, together) * 1e6 / gpu.clock_hz


def _waiting_us(size: GemmSize, gpu: GPU) -> float:
    """What tinygemm's warps wait for the weight's loads, one after the other; more tiles of rows
    find it in the L2, while others compute."""
    num_ctas = -(-size.n // _CTA_COLUMNS)
    waves = max(1.0, num_ctas / (gpu.num_sms * _CTAS_AT_ONCE))
    iterations = -(-size.k // _WEIGHTS_AN_ITERATION)
    return waves * iterations * _LATENCY_CLOCKS * 1e6 / gpu.clock_hz
