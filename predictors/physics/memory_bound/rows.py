"""Kernels of which a CTA takes one row: how long it takes it, and how many CTAs an SM holds."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

from neusight.predictors.gpu import GPU
from neusight.predictors.kernel import DTYPE_BYTES, Kernel, KernelClass, RowsSize, size_of
from neusight.predictors.physics.launch_geometry import ctas_per_sm
from neusight.predictors.physics.memory_bound.kinds import (
    BATCH_NORM_READS,
    MemoryKind,
    is_wide_softmax,
)
from neusight.predictors.physics.roofline import L2_REACH, cold_share


class RowCta(NamedTuple):
    """A CTA that takes one row: its threads, the clocks it costs whatever its row, and the clocks
    of each step of so many elements, where it is alone on its SM (`fixed_clocks`, `step_clocks`)
    and where others fill the SM beside it (`sm_fixed_clocks`, `sm_clocks`, of the SM's time)."""

    threads: int
    fixed_clocks: float
    step: float
    step_clocks: float
    sm_clocks: float = 0.0
    sm_fixed_clocks: float = 0.0


#: Softmax of rows beyond a warp's registers: 1024 threads, two reductions over them. In a full SM,
#: whose time as many CTAs share as it holds, H100, RTX 3090 and A100 take 3900-5500 clocks for 2048
#: and 4096 elements (data/fused_ops_baselines, kernelbench 95); alone, on H100, eleven of 1 to 217
#: rows (benchmarks/measured/h100), of which ten are within 20 % so: a fit, nothing checks it.
_SOFTMAX = RowCta(1024, 300.0, 1.0, 0.5, sm_clocks=0.68, sm_fixed_clocks=2500.0)

#: The same where a row's bytes are no multiple of 16: no copy of the row in shared memory, three
#: passes element by element. 16 bit, H100, rows of 3137 and 5185: 8720 and 12000 clocks
#: (data/profiled_kernels); float32 by the physics alone on A100, V100, T4 and P4 (data/paper_fp32,
#: torch 2.1, which had no such copy at all: error 17, 10, 13, 7 % without networks).
_SCALAR_SOFTMAX_OF_HALVES = RowCta(1024, 3700.0, 1.0, 1.6)
_SCALAR_SOFTMAX = RowCta(1024, 2000.0, 1.0, 1.3)

#: The gradient of rows that are copied to shared memory (cunn_SoftMaxBackwardSmem: rows of whole 16
#: bytes that fit into what a CTA has without asking for more): nothing is read again. H100, 5 rows
#: of 13368 and 8 of 7664 in 16 bits (benchmarks/measured/h100).
_SOFTMAX_GRADIENT_IN_SHARED = RowCta(1024, 1000.0, 1.0, 0.15)
_SHARED_BYTES = 48 * 1024
_ALIGNED_BYTES = 16

#: MI300X takes 1.6-1.7 times the clocks for the same rows of 16 bits (data/profiled_kernels), and
#: MI100 and MI210 as many in float32 (data/paper_fp32).
_AMD_SOFTMAX = 1.65

#: Layer and RMS norm: 128 threads, four elements each (vectorized_layer_norm_kernel). Alone on its
#: SM a step of both passes takes two latencies of DRAM: 1850-1970 clocks on H100, A100, L40S and
#: T4 in rows of 4 million elements (data/kernelbench 40). Of a full SM's time, H100, 16 bit: rows
#: of 64, 256 and 1024 270, 320 and 570, of 4096 less than 1590 (benchmarks/measured/h100); 768 and
#: 1024 540 (data/profiled_kernels).
_LAYER_NORM = RowCta(128, 0.0, 512.0, 1900.0, 175.0, 170.0)

#: 32-bit values take more of a full SM, RMS norms less of either, and so do the gradients of inputs
#: (layer_norm_grad_input_kernel). H100, rows of 64 and 256 (benchmarks/measured/h100): 365 and 425;
#: 155 and 177, one row of 4096 1470 a step; 190-220, 990 a step.
_LAYER_NORM_OF_FLOATS = _LAYER_NORM._replace(sm_fixed_clocks=240.0)
_RMS_NORM = RowCta(128, 0.0, 512.0, 1470.0, 120.0, 50.0)
_NORM_GRADIENT = RowCta(128, 0.0, 512.0, 990.0, 110.0, 100.0)

#: The gradient of a norm's weight: a CTA takes 32 columns and goes down all rows, so many a step
#: (GammaBetaBackwardCUDAKernelTemplate), which takes so many clocks. H100, 284 to 1462 columns:
#: layer norm 1350-1850, RMS norm 1140-1380, whatever the dtype. From more rows than that on, and
#: with fewer columns than half the SMs hold, CTAs share the rows, too.
_WEIGHT_GRADIENT_COLUMNS = 32
_WEIGHT_GRADIENT_ROWS = 256
_WEIGHT_GRADIENT_CLOCKS = {"layer_norm": 1600.0, "rms_norm": 1250.0}
_WEIGHT_GRADIENT_SHARED_ROWS = 65536

#: On AMD 256 threads; of the SM's time 600 clocks a row and 0.9 an element (MI210 rows of 330 to
#: 1150, data/paper_fp32; MI300X 768 and 1024, and 16384 alone, data/profiled_kernels).
_AMD_LAYER_NORM = RowCta(256, 0.0, 1024.0, 1300.0, 900.0)
_AMD_LAYER_NORM_ROW = 600.0

#: Moments of a group or a channel, element by element: a CTA of 512 threads, of one warp for short
#: rows (RowwiseMomentsCUDAKernel, batch_norm_collect_statistics_kernel). Short rows: 2000 clocks
#: (data/kernelbench 62, 75 and 88 over 30: H100 1700-3500, L40S less). A step waits for its loads:
#: from the L2 480 clocks (H200, 64 groups of 1,024 to 32,768 in FP16), from DRAM 930 (H100, 256
#: groups of 32,768), by how many times the bytes go into a quarter of the L2 (UNets in
#: `benchmarks/measured`; judged on the statistics of EfficientNet's batch norms); in an SM that
#: CTAs fill, 265 each (H100, group_norm there in bf16; FP32, not used, -6 to -18 %). MI300X 1300 a
#: step (data/profiled_kernels).
_MOMENTS = RowCta(512, 2000.0, 512.0, 480.0, sm_clocks=265.0)
_MOMENTS_FROM_DRAM = 930.0
_MOMENTS_L2_SHARE = 0.25
_MOMENTS_OF_A_WARP = RowCta(32, 2000.0, 512.0, 0.0)

#: The gradient of a batch norm in 16 bits on AMD, where torch takes its own kernel
#: (batch_norm_backward_kernel): a CTA a channel, whose step of 1024 threads takes 1400 clocks, the
#: latencies of both passes. Read off one row of data/profiled_kernels on MI300X (16 x 8192, 11.4
#: µs); not used: 128 x 1024 (6.3 µs, forecast 7.0), and five of an older torch, whose 256 threads
#: take four times the steps: 7.3 to 396 µs, 3 to 16 % off so.
_AMD_BATCH_NORM_GRADIENT = RowCta(1024, 0.0, 1024.0, 1400.0)

#: The same kernel on NVIDIA: 512 threads, an element each, two passes of `_MOMENTS`' latency each.
#: Not read off, but held against the steps of VGG with and without batch norm in FP16
#: (data/torchvision_cnn): on V100, 2060, TITAN RTX and 2080 Ti its share of the step was a quarter
#: to a third too short.
_BATCH_NORM_GRADIENT = RowCta(512, 0.0, 512.0, 1900.0)

#: Share of the L2 that the rows in work take when half of what is read again comes from DRAM, and
#: how sharply: A100 keeps rows of 64 KiB and loses those of 128 (data/fused_ops_baselines), V100
#: loses half at 20 KiB (data/paper_fp32).
_REACH = 0.5
_SHARPNESS = 6

#: Threads of a CTA that goes through long rows in loops, by Inductor's own choice of 16 warps for
#: blocks of 2048 elements (torch/_inductor/runtime/triton_heuristics.py).
_FUSED_THREADS = 512

#: Norms of torch, whose CTAs are known.
_OF_TORCH = frozenset({"layer_norm", "rms_norm"})

#: Passes beyond the first in which a wide softmax reads all it was given: the maximum, the sum, the
#: result; backward the sum and the result, of which log-softmax reads one tensor alone.
_PASSES_AGAIN = 2.0
_PASSES_AGAIN_BACKWARD = {"softmax": 1.0, "log_softmax": 0.5}

#: Width at which other norms over rows (data/modern, kernels of serving engines), and AMD's, read
#: half of the most again.
_NORM_HALF_WIDTH = 1200.0

#: Share of an SM's shared memory that the rows in work take when a layer norm reads half of the
#: most again. float32 on V100, A100, P100 and T4 (data/paper_fp32); H100's 16 and 32 bits of 4096
#: agree (benchmarks/measured/h100: 0.3 and 0.8 read again).
_NORM_REACH = 0.8


#: Batch norm by cuDNN, images as NCHW: a CTA a channel. It reads a channel once where that fits
#: into half of an SM's shared memory (bn_fw_tr_1C11_singleread. V100, 96 KB: 25 KB forward and 13
#: KB backward, not 50 and 100; H100, 228 KB: 100 KB forward, not 200, and 50 KB backward, not 100).
#: Where it does not, 16-bit values take as long as these of 32 bits at least (H100, ResNet-50's
#: layers of 56 and 112 pixels in `benchmarks/measured/h100/workloads`, FP16 over FP32: forward
#: 1.1-1.25 with 64 channels, 0.9 with 256, backward 0.95 and 0.78), and CTAs that fill all SMs wait
#: for DRAM alone (512 channels of 28 pixels). What each channel costs its SM whatever its size, and
#: how many of these CTAs keep an SM's loads going. A public profile of ResNet-50's training on
#: V100, layers of 64 to 2048 channels.
_SINGLE_READ_SHARE = 0.5
_LOOPED_BYTES = {False: 5, True: 4}
_CHANNEL_CLOCKS = 1800.0
_CHANNELS_AT_ONCE = 2

#: Clocks that an element takes of its SM where a channel is read once: in 32 bits, in 16, in 16 by
#: vectors; forward and backward. H100, torch 2.11, `batch_norm` in profiles.jsonl.gz of
#: `benchmarks/measured/h100`: read off maps of 2048 channels, and lowered by an eighth to a fifth
#: where all 28 were seen beside their DRAM, so these are a fit: forward 31 -> 7 % off in the
#: median, backward 24 -> 5. Whole steps judge (ResNet-50 in FP16 -7 -> -5 %, in FP32 -2 -> 0). A
#: profile on V100, under an older cuDNN, shows fewer.
_AMPERE = (8, 0)
_ELEMENT_CLOCKS = {False: (0.8, 0.68, 0.38), True: (1.3, 1.02, 0.52)}

#: As NHWC all SMs share all channels (CUDNN_BATCHNORM_SPATIAL_PERSISTENT) and keep what fits into
#: their shared memory, this share of it, for the second pass. A prior.
_KEPT_SHARE = 0.75


def reads_again(kernel: Kernel, kind: MemoryKind, gpu: GPU) -> float:
    """How often the input is read again, as far as caches do not answer."""
    size = size_of(kernel, RowsSize)
    if is_wide_softmax(kernel):
        if _is_in_shared(kernel, size, gpu):
            return 0.0
        backward = _PASSES_AGAIN_BACKWARD if kernel.is_backward else {}
        passes = backward.get(kernel.variant, _PASSES_AGAIN)
        return passes * _missed_share(kernel, size, gpu)
    if is_cudnn_batch_norm(kernel, gpu):
        return kind.extra_reads * _read_twice(kernel, size, gpu)
    is_norm = kernel.kernel_class is KernelClass.NORMALIZATION
    if is_norm and not kernel.is_backward and kernel.variant not in BATCH_NORM_READS:
        return kind.extra_reads * _norm_missed_share(kernel, size, gpu)
    return kind.extra_reads


def _is_in_shared(kernel: Kernel, size: RowsSize, gpu: GPU) -> bool:
    """Whether the gradient of a softmax keeps its rows in shared memory."""
    row_bytes = size.width * DTYPE_BYTES[kernel.dtype]
    is_short = row_bytes < _SHARED_BYTES and row_bytes % _ALIGNED_BYTES == 0
    return kernel.is_backward and is_short and gpu.vendor == "nvidia"


def _norm_missed_share(kernel: Kernel, size: RowsSize, gpu: GPU) -> float:
    """Of the rows that an SM has in work, the share that has left its L1."""
    if kernel.variant not in _OF_TORCH or gpu.vendor == "amd":
        ratio = size.width / _NORM_HALF_WIDTH
        return ratio * ratio / (1.0 + ratio * ratio)
    in_work = ctas_per_sm(gpu, threads_per_cta=_LAYER_NORM.threads) * size.width
    ratio = in_work * DTYPE_BYTES[kernel.dtype] / (_NORM_REACH * gpu.shared_memory_per_sm_bytes)
    return ratio * ratio / (1.0 + ratio * ratio)


def is_cudnn_batch_norm(kernel: Kernel, gpu: GPU) -> bool:
    """Whether one kernel of cuDNN's normalizes a batch, or gives all gradients of that."""
    return kernel.variant == "batch_norm" and gpu.vendor == "nvidia"


def _read_twice(kernel: Kernel, size: RowsSize, gpu: GPU) -> float:
    """The share of its input that a batch norm of cuDNN reads a second time."""
    tensors = 2 if kernel.is_backward else 1
    channel_bytes = tensors * size.width * DTYPE_BYTES[kernel.dtype]
    if not kernel.along_columns:
        return float(channel_bytes > _SINGLE_READ_SHARE * gpu.shared_memory_per_sm_bytes)
    kept = _KEPT_SHARE * gpu.num_sms * gpu.shared_memory_per_sm_bytes
    return max(0.0, 1.0 - kept / max(1, channel_bytes * size.rows))


def _missed_share(kernel: Kernel, size: RowsSize, gpu: GPU) -> float:
    """Of the rows in work, the share that has left the L2 before it is read again."""
    tensors = 2 if kernel.is_backward else 1
    at_once = gpu.num_sms * ctas_per_sm(gpu, threads_per_cta=_SOFTMAX.threads)
    return _lost_share(at_once * tensors * size.width * DTYPE_BYTES[kernel.dtype], gpu)


def missed_again(kernel: Kernel, gpu: GPU) -> float:
    """Of what the loops of a fused kernel read again, the share that has left the L2."""
    if not kernel.bytes_read_again:
        return 0.0
    size = size_of(kernel, RowsSize)
    at_once = gpu.num_sms * ctas_per_sm(gpu, threads_per_cta=_FUSED_THREADS)
    return _lost_share(min(1.0, at_once / max(1, size.rows)) * kernel.bytes_read_again, gpu)


def _lost_share(in_work: float, gpu: GPU) -> float:
    """The share that leaves the L2 of so many bytes of rows in work."""
    ratio = (in_work / (_REACH * gpu.l2_bytes)) ** _SHARPNESS
    return ratio / (1.0 + ratio) if math.isfinite(ratio) else 1.0


def row_us(kernel: Kernel, kind: MemoryKind, gpu: GPU) -> float:
    """The time of the CTAs that own whole rows, µs; 0 where rows are shared."""
    size = size_of(kernel, RowsSize)
    cta = _cta_of(kernel, size, gpu)
    if cta is not None:
        return _clocks(cta, size, gpu) * 1e6 / gpu.clock_hz
    if is_cudnn_batch_norm(kernel, gpu) and kind.row_bytes:
        return _batch_norm_clocks(kernel, size, kind, gpu) * 1e6 / gpu.clock_hz
    if not kind.row_bytes:
        return _clocks_of_variant(kernel, size, gpu) * 1e6 / gpu.clock_hz
    row = size.width * DTYPE_BYTES[kernel.dtype] * (1.0 + kind.extra_reads)
    rounds = max(1.0, size.rows / gpu.num_sms)
    return rounds * row * 1e6 / (kind.row_bytes * gpu.clock_hz)


def _batch_norm_clocks(kernel: Kernel, size: RowsSize, kind: MemoryKind, gpu: GPU) -> float:
    """The channels of an SM one after the other, or so many at once."""
    itemsize = DTYPE_BYTES[kernel.dtype]
    is_read_once = not _read_twice(kernel, size, gpu)
    if not is_read_once and itemsize <= 2:
        itemsize = _LOOPED_BYTES[kernel.is_backward]
    row = size.width * itemsize * (1.0 + kind.extra_reads)
    of_an_sm = max(1.0, size.rows / gpu.num_sms)
    rounds = max(1.0, size.rows / (_CHANNELS_AT_ONCE * gpu.num_sms))
    clocks = rounds * row / kind.row_bytes
    if is_read_once and not kernel.along_columns and gpu.compute_capability >= _AMPERE:
        by_vectors = 2 if kernel.layout != "scalar" else 1
        element = _ELEMENT_CLOCKS[kernel.is_backward][by_vectors if itemsize <= 2 else 0]
        clocks = max(clocks, of_an_sm * size.width * element)
    return of_an_sm * _CHANNEL_CLOCKS + clocks


def fills_sms(kernel: Kernel, gpu: GPU) -> bool:
    """Whether every SM has as many channels of a batch norm as it takes at once."""
    return size_of(kernel, RowsSize).rows >= _CHANNELS_AT_ONCE * gpu.num_sms


#: A scan along rows (tensor_kernel_scan_innermost_dim): 512 threads of a CTA take several rows, 16
#: to 512 threads along each, more the longer the rows and the fewer; two elements a thread a step.
#: Clocks of a step alone and of the SM's time: H100 1700-1800, four CTAs 4180 (data/kernelbench 89,
#: v0 and v0.1; judged on 90 and 92).
_SCAN = RowCta(512, 0.0, 2.0, 1700.0, 1045.0)
_SCAN_THREADS = (16.0, 512.0)


def _scan_clocks(size: RowsSize, gpu: GPU) -> float:
    """The waves of a scan, each as long as its steps."""
    along = math.sqrt(_SCAN.threads * size.width / max(1, size.rows))
    along = min(max(along, _SCAN_THREADS[0]), _SCAN_THREADS[1])
    steps = max(1.0, size.width / (_SCAN.step * along))
    num_ctas = max(1.0, size.rows * along / _SCAN.threads)
    of_an_sm = ctas_per_sm(gpu, threads_per_cta=_SCAN.threads)
    waves = math.ceil(num_ctas / (gpu.num_sms * of_an_sm))
    beside = min(max(1.0, num_ctas / gpu.num_sms), of_an_sm)
    return waves * steps * max(_SCAN.step_clocks, beside * _SCAN.sm_clocks)


#: Clocks of an SM that an output of a pooling takes, and one of its taps: H100, windows of 8, 16,
#: 27 taps 3.2-3.5, 4.9-5.3, 7.7-8.6 (data/kernelbench 41 to 43, judged on 44 and 46); MI300X 1.6
#: times as many (data/profiled_kernels).
_POOL_OUTPUT = 1.0
_POOL_TAP = 0.28
_AMD_POOL = 1.6

#: The gradient of a maximum in NCHW takes as many times that: H100, images of 28 pixels and more
#: (benchmarks/measured/h100) 1.43-1.6, of 14 1.7; in NHWC 0.9-1.2.
_POOL_GRADIENT = 1.5

#: The same of avg_pool2d's gradient, for an input and a window that it lies in: four divisions of
#: integers find the first and the last. Read off the largest kernel of DenseNet-121 in FP32 on H100
#: (one window) and that of Inception v3 on H200 (nine; benchmarks/measured), judged on the other
#: eleven, in both layouts and 16 and 32 bits: within 4 %.
_AVERAGE_GRADIENT = 3.7
_AVERAGE_GRADIENT_WINDOW = 0.37


def _pool_clocks(kernel: Kernel, size: RowsSize, gpu: GPU) -> float:
    each, tap = _POOL_OUTPUT, _POOL_TAP
    if kernel.variant == "average_pool_gradient":
        each, tap = _AVERAGE_GRADIENT, _AVERAGE_GRADIENT_WINDOW
    clocks = size.rows * (each + tap * size.width) / gpu.num_sms
    if gpu.vendor == "amd":
        return clocks * _AMD_POOL
    is_slow = kernel.variant == "max_pool_gradient" and kernel.layout != "channels_last"
    return clocks * (_POOL_GRADIENT if is_slow else 1.0)


#: Clocks of an index that a thread looks up after another, in a gather of few rows: the latencies
#: of index and row. RTX A6000 950; H100, not used, 1130 (data/llm_layers, embedding of 1 to 16
#: tokens, torch 2.6).
_INDEX_CLOCKS = 950.0

#: Clocks of an SM that each row costs which a CTA gathers (vectorized_gather_kernel). H100, 65,000
#: to 131,000 rows of 128 to 512 bytes (benchmarks/measured/h100): 141-145.
_GATHERED_ROW_CLOCKS = 143.0

#: Threads of a CTA that reduces rows, and of a warp, loads of a thread at a time (Reduce.cuh:
#: MAX_NUM_THREADS, vt0). With more values a thread than so many times the rows of its CTA, or than
#: that, all threads of a CTA share a row; with as many still, CTAs do.
_REDUCTION_THREADS = 512
_WARP = 32
_REDUCTION_LOADS = 4
_VALUES_PER_ROW = 16
_MOST_VALUES = 256
_LEAST_VALUES = 16


class _ReductionStep(NamedTuple):
    """Clocks of a thread for each step of loads out of the L2, and what DRAM adds to it; of the
    SM's time for each step of a CTA, and for what its threads do with each other in the end."""

    clocks: float
    dram_clocks: float
    sm_clocks: float
    sm_end_clocks: float


#: H100, 72 reductions of rows in benchmarks/measured/h100 (`sum_rows`, `max_rows`, `norm_rows`,
#: `argmax_rows`): the first two out of 1 to 32 rows, the others out of 40,000 and more. float32
#: sums of 4 to 16 rows of 4096 (data/llm_layers, an RMS norm's mean): 330 on RTX A6000, 440 on
#: H100.
_SUM_OF_HALVES = _ReductionStep(220.0, 270.0, 100.0, 660.0)
_SUM = _ReductionStep(340.0, 550.0, 100.0, 660.0)
_STEPS = {
    "extremum": _ReductionStep(420.0, 450.0, 225.0, 900.0),
    "with_index": _ReductionStep(770.0, 300.0, 450.0, 1250.0),
}

#: Clocks that CTAs of the same row take to add up what they found, through memory: H100, sums of
#: 0.3 to 12 million values 3 to 4 µs more than their bytes.
_SHARED_ROW_CLOCKS = 6000.0


def _reduction_clocks(kernel: Kernel, size: RowsSize, gpu: GPU) -> float:
    """The steps of a thread along its row, in waves, or of the SMs (setReduceConfig)."""
    sums = _SUM_OF_HALVES if DTYPE_BYTES[kernel.dtype] <= 2 else _SUM
    step = _STEPS.get(kernel.variant, sums)
    across = min(_WARP, _power_below(size.width))
    rows = min(_power_below(size.rows), _REDUCTION_THREADS // across)
    across = min(_power_below(size.width), _REDUCTION_THREADS // rows)
    values = -(-size.width // across)
    num_ctas, ctas_of_row = -(-size.rows // rows), 1
    if values >= min(rows * _VALUES_PER_ROW, _MOST_VALUES):
        values, num_ctas = -(-values // rows), size.rows
        if values >= _MOST_VALUES:
            at_once = gpu.num_sms * ctas_per_sm(gpu, threads_per_cta=_REDUCTION_THREADS)
            enough = min(-(-at_once // size.rows), -(-values // _LEAST_VALUES))
            ctas_of_row = max(enough, -(-values // _MOST_VALUES))
            values, num_ctas = -(-values // ctas_of_row), size.rows * ctas_of_row
    steps = math.ceil(values / _REDUCTION_LOADS)
    a_step = step.clocks + step.dram_clocks * cold_share(kernel.num_bytes, gpu)
    waves = num_ctas / (gpu.num_sms * ctas_per_sm(gpu, threads_per_cta=_REDUCTION_THREADS))
    alone = max(1.0, waves) * (step.sm_end_clocks + steps * a_step)
    of_sms = max(1.0, num_ctas / gpu.num_sms) * (step.sm_end_clocks + steps * step.sm_clocks)
    return max(alone, of_sms) + (_SHARED_ROW_CLOCKS if ctas_of_row > 1 else 0.0)


#: Reductions whose neighbours in memory are of different outputs (setReduceConfig): outputs of a
#: load at best, values a thread before other rows of the CTA help, and before other CTAs do, values
#: that a thread keeps then.
_COLUMN_VECTOR = 4
_COLUMN_VALUES_PER_ROW = 16
_MOST_COLUMN_VALUES = 256
_LEAST_COLUMN_VALUES = 16
#: Clocks of a step of four loads out of the L2 and what DRAM adds. H100, 27 sums over rows in
#: benchmarks/measured/h100 (`sum_columns`): 10 to 183 values a thread 0.2 µs a step in the L2 and
#: 0.5-0.55 beyond.
_COLUMN_STEP_CLOCKS = 350.0
_COLUMN_DRAM_CLOCKS = 560.0
#: What follows once the values are read: that the CTA's rows of threads add up, of 16 bits; that
#: the last CTA of a column waits for the others, and adds up their sums in steps, dearer ones where
#: some of its columns are none. Every second of 58 such sums in the steps of
#: benchmarks/measured/h100, in the order of their sizes; on the others and on H200's the median
#: error is 9 %.
_COLUMN_HALVES_CLOCKS = 1300.0
_COLUMN_WAIT_CLOCKS = 4000.0
_COLUMN_SUM_CLOCKS = {True: 540.0, False: 800.0}


class _ColumnSum(NamedTuple):
    """How a sum over rows is divided: values of a thread, threads beside it that share a column
    (1: none), CTAs that do, and whether the columns fill their CTAs."""

    values: int
    down: int
    ctas: int
    is_full: bool


def _column_sum(size: RowsSize, gpu: GPU) -> _ColumnSum:
    """`size.rows` outputs of `size.width` values each."""
    vector = _COLUMN_VECTOR if size.rows % _COLUMN_VECTOR == 0 else 1
    threads = _REDUCTION_THREADS // vector
    across = min(_WARP, _power_below(size.rows // vector))
    down = min(threads // across, _power_below(size.width))
    is_full = size.rows % (vector * across) == 0
    values = size.width
    if values < down * _COLUMN_VALUES_PER_ROW and values < _MOST_COLUMN_VALUES:
        return _ColumnSum(values, 1, 1, is_full)
    values = -(-values // down)
    ctas = 1
    if values >= _MOST_COLUMN_VALUES:
        columns = -(-size.rows // (vector * across))
        at_once = gpu.num_sms * ctas_per_sm(gpu, threads_per_cta=threads)
        enough = min(-(-at_once // columns), -(-values // _LEAST_COLUMN_VALUES))
        ctas = max(enough, -(-values // _MOST_COLUMN_VALUES))
    return _ColumnSum(-(-values // ctas), down, ctas, is_full)


def _column_clocks(kernel: Kernel, size: RowsSize, gpu: GPU) -> float:
    """The steps of a thread that goes down its columns."""
    step_clocks = _COLUMN_STEP_CLOCKS + _COLUMN_DRAM_CLOCKS * cold_share(kernel.num_bytes, gpu)
    return math.ceil(_column_sum(size, gpu).values / _REDUCTION_LOADS) * step_clocks


def shared_columns_us(kernel: Kernel, gpu: GPU) -> float:
    """What a sum over rows takes once all values are read, µs; 0 for all other kernels."""
    is_sum = kernel.kernel_class is KernelClass.REDUCTION and kernel.variant in _REDUCTIONS
    if not (is_sum and kernel.along_columns and gpu.vendor == "nvidia"):
        return 0.0
    _, down, ctas, is_full = _column_sum(size_of(kernel, RowsSize), gpu)
    clocks = _COLUMN_HALVES_CLOCKS if down > 1 and DTYPE_BYTES[kernel.dtype] <= 2 else 0.0
    if ctas > 1:
        clocks += _COLUMN_WAIT_CLOCKS + math.ceil(ctas / down) * _COLUMN_SUM_CLOCKS[is_full]
    return clocks * 1e6 / gpu.clock_hz


def _power_below(value: int) -> int:
    """The largest power of two up to a value, at least 1."""
    return 1 << (max(1, value).bit_length() - 1)


#: Clocks that a thread takes for each value whose place it keeps too, one after the other, and the
#: columns of a CTA, where neighbours are not of one row. Argmax of 16 x 256 x 256 along the middle
#: (data/kernelbench 51) adds 9.4 µs to the sum on H100 SXM, 9 to 10 on A100, 1.5 on L40S, whose
#: host hides it, 30 on T4; judged on max, argmin and min (49, 52, 53).
_INDEXED_CLOCKS = 1100.0
_INDEXED_COLUMNS = 32


#: Clocks of an SM that a plane takes, however few its pixels: a CTA of 64 threads goes through it.
#: H100, planes of 49 and 196 pixels, 16 and 32 bit: 142-146 (benchmarks/measured/h100).
_PLANE_CLOCKS = 144.0

#: Clocks of a thread of a bilinear resampling for a channel of an image, one after the other: four
#: loads, which wait for DRAM. H100, 196 to 50,000 threads: 580-715.
_RESAMPLED_CLOCKS = 690.0


#: Sums a channel over less than eight steps of so many rows have a CTA alone for 32 channels, which
#: goes through them 16 at a time (flexible_launch_configs, Normalization.cuh); clocks of 16 rows by
#: whether gradients are summed. ResNeXt-50 in bf16 on H100 (benchmarks/measured), 1,024 channels of
#: 1,568 rows; 2,048 were not used: 29.2 and 21.2 us.
_FEW_ROWS = 8 * 256
_ROWS_AT_ONCE = 16
_FEW_ROWS_CLOCKS = {False: 500.0, True: 330.0}

#: Variants of reductions whose threads are known, and of windows that slide.
_REDUCTIONS = frozenset({"", "extremum", "with_index"})
_POOLS = frozenset({"pool", "max_pool_gradient", "average_pool_gradient"})


def _clocks_of_variant(kernel: Kernel, size: RowsSize, gpu: GPU) -> float:
    """Of kernels whose threads share rows in ways of their own."""
    if kernel.variant == "scan":
        return _scan_clocks(size, gpu)
    if kernel.variant == "by_plane" and gpu.vendor == "nvidia":
        return size.rows * _PLANE_CLOCKS / gpu.num_sms
    is_few = kernel.along_columns and size.width < _FEW_ROWS  # a CTA alone sums channels
    if kernel.variant == "batch_norm_sums" and is_few and gpu.vendor == "nvidia":
        return math.ceil(size.width / _ROWS_AT_ONCE) * _FEW_ROWS_CLOCKS[kernel.is_backward]
    if kernel.variant == "bilinear" and kernel.layout != "channels_last":
        return size.rows * _RESAMPLED_CLOCKS
    if kernel.variant == "small_index":
        return (size.rows - 1) * _INDEX_CLOCKS
    if kernel.variant == "whole_rows":
        return size.rows * _GATHERED_ROW_CLOCKS / gpu.num_sms
    if kernel.kernel_class is KernelClass.REDUCTION and kernel.variant in _REDUCTIONS:
        return _clocks_of_reduction(kernel, size, gpu)
    if kernel.variant in _POOLS:
        return _pool_clocks(kernel, size, gpu)
    if gpu.vendor == "amd":
        return 0.0
    if kernel.variant in _OF_TORCH and kernel.is_backward and kernel.along_columns:
        return _weight_gradient_clocks(kernel, size, gpu)
    if kernel.variant in _CLOCKS_OF_SORTS:
        return _CLOCKS_OF_SORTS[kernel.variant](kernel, size, gpu)
    return 0.0


def _clocks_of_reduction(kernel: Kernel, size: RowsSize, gpu: GPU) -> float:
    if not kernel.along_columns:
        return _reduction_clocks(kernel, size, gpu)
    clocks = _column_clocks(kernel, size, gpu) if gpu.vendor == "nvidia" else 0.0
    if kernel.variant == "with_index":  # the threads of a CTA keep the places; full SMs hide it
        values = min(size.width * _INDEXED_COLUMNS / _REDUCTION_THREADS, _MOST_VALUES)
        clocks = values * _INDEXED_CLOCKS + clocks
    return clocks


#: Clocks that a row costs an SM which a CTA sorts (radixSortKVInPlace), by the elements up to which
#: its size goes, and an element; what a CTA takes alone. H100, 16 bits, 43, 172 to 1024 and 4096
#: elements (benchmarks/measured/h100). Shorter rows are sorted by a warp.
_SORTED_ROWS = {32: (100.0, 0.0, 2500.0), 128: (700.0, 0.0, 7000.0), 1024: (2800.0, 1.7, 36000.0)}
_LONGEST_SORTED_ROW = (15000.0, 0.0, 44000.0)


def _sorted_row_clocks(kernel: Kernel, size: RowsSize, gpu: GPU) -> float:
    fixed, by_element, alone = next(
        (found for width, found in _SORTED_ROWS.items() if size.width <= width), _LONGEST_SORTED_ROW
    )
    return max(alone, size.rows / gpu.num_sms * (fixed + by_element * size.width))


#: A top-k of one CTA a row (sbtopk::gatherTopK) reads the row once for two bits of its keys: clocks
#: of a pass, of each further round of its 1024 threads at most, and of the SM for a thread in all.
#: H100, 16 bits, rows of 8 to 5370 (benchmarks/measured/h100).
_TOP_K_PASS = 1500.0
_TOP_K_ROUND = 900.0
_TOP_K_THREAD = 14.0
_TOP_K_THREADS = 1024
_TOP_K_BITS = 2


def _top_k_clocks(kernel: Kernel, size: RowsSize, gpu: GPU) -> float:
    """The passes of a CTA over its row, or the threads of an SM."""
    passes = 8 * DTYPE_BYTES[kernel.dtype] / _TOP_K_BITS
    threads = min(_TOP_K_THREADS, -(-size.width // _WARP) * _WARP)
    rounds = -(-size.width // threads)
    alone = passes * (_TOP_K_PASS + _TOP_K_ROUND * (rounds - 1))
    return max(alone, size.rows / gpu.num_sms * _TOP_K_THREAD * threads * rounds)


def _weight_gradient_clocks(kernel: Kernel, size: RowsSize, gpu: GPU) -> float:
    """The steps of a CTA down its columns, of which `size.rows` are `size.width` long."""
    ctas = -(-size.rows // _WEIGHT_GRADIENT_COLUMNS)
    if size.width > _WEIGHT_GRADIENT_SHARED_ROWS and ctas < gpu.num_sms / 2:
        return 0.0
    steps = size.width / _WEIGHT_GRADIENT_ROWS
    return steps * _WEIGHT_GRADIENT_CLOCKS[kernel.variant] * max(1.0, ctas / gpu.num_sms)


#: What a row costs an SM in each pass of a top-k whose rows several CTAs share, and a CTA alone.
_SELECTED_ROW_CLOCKS = 500.0
_SELECTING_CLOCKS = 7000.0


def _selecting_clocks(kernel: Kernel, size: RowsSize, gpu: GPU) -> float:
    return max(_SELECTING_CLOCKS, size.rows / gpu.num_sms * _SELECTED_ROW_CLOCKS)


_CLOCKS_OF_SORTS: dict[str, Callable[[Kernel, RowsSize, GPU], float]] = {
    "sorted_rows": _sorted_row_clocks,
    "top_k": _top_k_clocks,
    "top_k_pass": _selecting_clocks,
}


def _clocks(cta: RowCta, size: RowsSize, gpu: GPU) -> float:
    """The CTAs of a GPU one round after the other, or the time that they take of each SM."""
    at_once = gpu.num_sms * ctas_per_sm(gpu, threads_per_cta=cta.threads)
    steps = math.ceil(size.width / cta.step)
    alone = cta.fixed_clocks + steps * cta.step_clocks
    of_sm = cta.sm_fixed_clocks + steps * cta.sm_clocks
    return max(max(1.0, size.rows / at_once) * alone, size.rows / gpu.num_sms * of_sm)


def _cta_of(kernel: Kernel, size: RowsSize, gpu: GPU) -> RowCta | None:
    is_amd = gpu.vendor == "amd"
    if is_wide_softmax(kernel) and kernel.layout != "strided":
        cta = _SOFTMAX
        if _is_in_shared(kernel, size, gpu):
            cta = _SOFTMAX_GRADIENT_IN_SHARED
        elif kernel.layout == "scalar":
            is_short = is_amd or DTYPE_BYTES[kernel.dtype] <= 2
            cta = _SCALAR_SOFTMAX_OF_HALVES if is_short else _SCALAR_SOFTMAX
        shared = 1.0 / ctas_per_sm(gpu, threads_per_cta=cta.threads)
        cta = cta._replace(
            sm_clocks=shared * cta.sm_clocks, sm_fixed_clocks=shared * cta.sm_fixed_clocks
        )
        return _slower(cta, _AMD_SOFTMAX) if is_amd else cta
    if kernel.kernel_class is not KernelClass.NORMALIZATION or kernel.along_columns:
        return None
    if kernel.is_backward:
        return _gradient_cta(kernel, is_amd=is_amd)
    if kernel.variant in _OF_TORCH:
        if is_amd:
            return _amd_layer_norm(size)
        if kernel.variant == "rms_norm":
            return _RMS_NORM
        return _LAYER_NORM if DTYPE_BYTES[kernel.dtype] <= 2 else _LAYER_NORM_OF_FLOATS
    if kernel.variant in ("group_norm", "batch_norm_sums"):
        return _moments_cta(kernel, size, gpu)
    return None


def _moments_cta(kernel: Kernel, size: RowsSize, gpu: GPU) -> RowCta:
    if size.width < _MOMENTS.step:
        return _MOMENTS_OF_A_WARP
    missed, step = 1.0, _MOMENTS.step_clocks
    if gpu.vendor == "nvidia":
        missed = cold_share(kernel.bytes_read * L2_REACH / _MOMENTS_L2_SHARE, gpu)
    return _MOMENTS._replace(step_clocks=step + missed * (_MOMENTS_FROM_DRAM - step))


def _gradient_cta(kernel: Kernel, *, is_amd: bool) -> RowCta | None:
    if not is_amd:
        if kernel.variant in _OF_TORCH:
            return _NORM_GRADIENT
        return _BATCH_NORM_GRADIENT if kernel.variant == "batch_norm_gradients" else None
    is_batch_norm = kernel.variant in ("batch_norm", "batch_norm_gradients")
    is_own = is_batch_norm and DTYPE_BYTES[kernel.dtype] <= 2
    return _AMD_BATCH_NORM_GRADIENT if is_own else None


def _slower(cta: RowCta, factor: float) -> RowCta:
    threads, fixed_clocks, step, *others = cta
    return RowCta(threads, factor * fixed_clocks, step, *(factor * clocks for clocks in others))


def _amd_layer_norm(size: RowsSize) -> RowCta:
    """A row costs its SM a fixed time too."""
    steps = max(1.0, size.width / _AMD_LAYER_NORM.step)
    return _AMD_LAYER_NORM._replace(
        sm_clocks=_AMD_LAYER_NORM.sm_clocks + _AMD_LAYER_NORM_ROW / steps
    )
