"""How long a kernel takes that moves bytes: floor, L2, DRAM, and how fast its loads are issued."""

from __future__ import annotations

import math
from typing import NamedTuple

from neusight.predictors.gpu import GPU
from neusight.predictors.kernel import DTYPE_BYTES, HOST_COPIES, Kernel, KernelClass, RowsSize
from neusight.predictors.physics.launch_geometry import geometry_of
from neusight.predictors.physics.physical_time import Bound, PhysicalTime
from neusight.predictors.physics.roofline import flop_roofline_us

__all__ = ["MemoryKind", "cold_share", "kind_of", "memory_bound_timing"]


class MemoryKind(NamedTuple):
    """What sets one family of memory-bound kernels apart from others.

    `issue_bytes`: bytes an SM moves a clock at most, by how wide and how many its loads are.
    `extra_reads`: how often the input is read again. `floor_factor`: its shortest duration, as a
    multiple of the GPU's. `row_bytes`: bytes a clock of the one CTA that owns a row (0: rows are
    shared among CTAs). `dram_share`: bandwidth as a share of streaming.
    """

    issue_bytes: float
    extra_reads: float = 0.0
    floor_factor: float = 1.0
    row_bytes: float = 0.0
    dram_share: float = 1.0


#: A layer norm reads its input again, the wider the row the less of it is still in the L1: most,
#: and the width at which it is half of that (data/paper_fp32: 0.4 below 1024, 1.2 from 3000 on).
_NORM_MOST_READS = 1.25
_NORM_HALF_WIDTH = 1200.0

#: Issue rates: simple vectorized kernels 15-25 B/clk/SM L2-hot (data/modern: add 15-17, static fp8
#: quantisation 12-25), norms and per-row quantisation 6-12, old embedding kernels 2.4. Re-reads:
#: data/paper_fp32 (rows beyond L2, overhead subtracted): layer norm 1.3-1.7 times its compulsory
#: bytes, softmax of wide rows 1.5 and none for narrow ones.
_STREAM = MemoryKind(issue_bytes=18.0)
_STRIDED = MemoryKind(issue_bytes=7.0, dram_share=0.7)
_KINDS: dict[KernelClass, MemoryKind] = {
    KernelClass.ELEMENTWISE: _STREAM,
    KernelClass.COPY: _STREAM,
    KernelClass.REDUCTION: MemoryKind(issue_bytes=14.0, floor_factor=1.5),
    KernelClass.SOFTMAX: MemoryKind(issue_bytes=13.0, floor_factor=1.3, row_bytes=24.0),
    KernelClass.NORMALIZATION: MemoryKind(
        issue_bytes=13.0, extra_reads=_NORM_MOST_READS, floor_factor=1.6, row_bytes=24.0
    ),
    KernelClass.GATHER: MemoryKind(issue_bytes=8.0, floor_factor=1.2, dram_share=0.85),
    KernelClass.SORT: MemoryKind(issue_bytes=5.0, floor_factor=2.0, dram_share=0.7),
    KernelClass.OPTIMIZER: MemoryKind(issue_bytes=14.0, floor_factor=1.5, dram_share=0.97),
    KernelClass.UNKNOWN: MemoryKind(issue_bytes=8.0, floor_factor=1.2, dram_share=0.9),
}

#: DRAM bytes per clock and SM of the GPUs on which the issue rates were read (A100, H100). B200 has
#: 28 and issues in proportion (static fp8 quantisation: 25 against 18 on H100).
_REFERENCE_DRAM_BYTES = 14.0

#: Kernels that add where others add too: atomics or sorted segments. Their issue rate is a prior.
_SCATTER = MemoryKind(issue_bytes=3.0, floor_factor=1.5, dram_share=0.6)

#: Kernels of the copy engine or the driver; a device copy and a fill by the widest stores.
_BULK = {"memcpy_d2d": 26.0, "memset": 30.0}

#: One CTA a row reads the row's digits several times (topk: 2 bits at a time, early out). A prior.
_SELECTION = MemoryKind(issue_bytes=8.0, extra_reads=4.0, floor_factor=3.0, row_bytes=24.0)

#: Softmax rows up to which a warp keeps the row in registers (PersistentSoftmax.cuh), elements.
_PERSISTENT_SOFTMAX = 1024

#: How often softmax of wider rows reads its input again, forward and backward: at least so often,
#: and the rest from DRAM once the rows in work leave the L2; half of it does at that share of the
#: L2. Rows in work: two CTAs an SM. data/paper_fp32: 0.3-0.9 while they fit, 1.3-2.2 beyond.
_WIDE_SOFTMAX_READS = 0.6
_WIDE_SOFTMAX_MISSES = 1.6
_WIDE_SOFTMAX_REACH = 0.35
_ROWS_IN_WORK = 2.0

#: Batch norm goes through its input twice, forward and backward, at less than streaming bandwidth
#: (cuDNN on V100, a public ResNet-50 profile; backward is the whole of its two inputs).
#: Its statistics alone, and the sums of its gradient, take one pass.
_BATCH_NORM_READS = {"batch_norm": 1.0, "batch_norm_sums": 0.0}
_BATCH_NORM_DRAM_SHARE = 0.87

#: Reads of a norm's input gradient: both operands twice, the second time mostly from L2.
_NORM_BACKWARD_READS = 0.35

#: Footprint, in units of the L2, at which half of the traffic reaches DRAM (fitted on data/modern
#: static fp8 quantisation and adds of 6 GPUs).
L2_REACH = 0.75

#: Clocks of a CTA that starts, waits for its first loads and ends; added to the floor.
_CTA_CLOCKS = 600.0

#: Bandwidth of a host copy as a share of the link's datasheet rate (pinned memory), and its floor.
_HOST_LINK_SHARE = 0.82
_HOST_COPY_FLOOR_US = 1.2

#: Arithmetic of these kernels reaches this share of the ordinary cores' peak. A prior.
_ALU_SHARE = 0.5

#: Instructions an element of a general power costs (logarithm and exponential in full precision).
#: data/paper_fp32: V100 hides them behind its bandwidth, A100 does not within its L2; AMD nowhere.
_POWER_INSTRUCTIONS = {"nvidia": 38.0, "amd": 172.0}

#: Half width of the 80 % interval: on long streams, and below `_SHORT_US` or for irregular kinds.
_SPREAD = 0.15
_WIDE_SPREAD = 0.35
_SHORT_US = 10.0
_IRREGULAR = frozenset({KernelClass.GATHER, KernelClass.SORT, KernelClass.UNKNOWN})

#: Threads of a CTA and elements of a thread in PyTorch's vectorized kernels (thread_constants.h).
_THREADS = 128
_ELEMENTS_PER_THREAD = 4


def cold_share(footprint_bytes: float, gpu: GPU) -> float:
    """Share of the traffic that reaches DRAM, 0 to 1: the footprint against the L2, smoothly."""
    ratio = footprint_bytes / (L2_REACH * gpu.l2_bytes)
    squares = ratio * ratio
    return squares / (1.0 + squares)


def kind_of(kernel: Kernel) -> MemoryKind:
    """The family of a memory-bound kernel, by its class, what it does, its width and layout."""
    kind = _kind_of_contiguous(kernel)
    if kernel.layout != "strided" or _is_special(kernel):
        return kind
    return kind._replace(
        issue_bytes=min(kind.issue_bytes, _STRIDED.issue_bytes),
        dram_share=min(kind.dram_share, _STRIDED.dram_share),
    )


def _is_special(kernel: Kernel) -> bool:
    """Whether what the kernel does says more than its class and layout."""
    return kernel.name in _BULK or kernel.scatters or kernel.selects


def _kind_of_contiguous(kernel: Kernel) -> MemoryKind:
    if kernel.name in _BULK:
        return _STREAM._replace(issue_bytes=_BULK[kernel.name])
    if kernel.scatters:
        return _SCATTER
    if kernel.selects:
        return _SELECTION
    kind = _KINDS.get(kernel.kernel_class, _KINDS[KernelClass.UNKNOWN])
    if kernel.kernel_class is KernelClass.SOFTMAX and _is_wide(kernel):
        return kind._replace(extra_reads=_WIDE_SOFTMAX_READS + _WIDE_SOFTMAX_MISSES)
    if kernel.kernel_class is KernelClass.NORMALIZATION:
        return _kind_of_norm(kernel, kind)
    return kind


def _is_wide(kernel: Kernel) -> bool:
    return isinstance(kernel.size, RowsSize) and kernel.size.width > _PERSISTENT_SOFTMAX


def _kind_of_norm(kernel: Kernel, kind: MemoryKind) -> MemoryKind:
    if kernel.along_columns:
        kind = kind._replace(extra_reads=0.0, row_bytes=0.0)
    elif kernel.is_backward:
        kind = kind._replace(extra_reads=_NORM_BACKWARD_READS)
    if kernel.variant in _BATCH_NORM_READS:
        again = _BATCH_NORM_READS[kernel.variant]
        kind = kind._replace(extra_reads=again, dram_share=_BATCH_NORM_DRAM_SHARE)
    return kind


def memory_bound_timing(kernel: Kernel, gpu: GPU) -> PhysicalTime:
    """The time of one kernel whose size is rows by width."""
    if kernel.name in HOST_COPIES:
        return _host_copy(kernel, gpu)
    kind = _kind_on(kernel, gpu)
    moved = kernel.num_bytes + kind.extra_reads * kernel.bytes_read
    issue_us = moved * 1e6 / (kind.issue_bytes * _issue_scale(gpu) * gpu.num_sms * gpu.clock_hz)
    bandwidth = gpu.bandwidth_gbps * 1e3 * gpu.bandwidth_utilization * kind.dram_share
    dram_us = moved * cold_share(kernel.num_bytes, gpu) / bandwidth
    compute_us = flop_roofline_us(kernel, gpu) / _ALU_SHARE + _power_us(kernel, gpu)
    row_us = _row_us(kernel, kind, gpu)
    stream_us = smooth_maximum(issue_us, dram_us, compute_us, row_us)
    floor_us = gpu.floor_us * kind.floor_factor + _CTA_CLOCKS / gpu.clock_hz * 1e6
    time_us = floor_us + stream_us
    launch = geometry_of(
        kernel.kernel_class, gpu, num_ctas=_num_ctas(kernel), threads_per_cta=_THREADS
    )
    return PhysicalTime(
        time_us=time_us,
        bound=_bound(max(issue_us, dram_us, row_us), compute_us, floor_us),
        spread=_spread(kernel, time_us),
        num_ctas=launch.num_ctas,
        threads_per_cta=launch.threads_per_cta,
        num_waves=launch.num_waves,
    )


def _kind_on(kernel: Kernel, gpu: GPU) -> MemoryKind:
    """The family, with the extra reads that are left on that GPU."""
    kind = kind_of(kernel)
    return kind._replace(extra_reads=_extra_reads(kernel, kind, gpu))


def _extra_reads(kernel: Kernel, kind: MemoryKind, gpu: GPU) -> float:
    """How often the input is read again, as far as caches do not answer."""
    if not isinstance(kernel.size, RowsSize) or not kind.extra_reads:
        return kind.extra_reads
    width = float(kernel.size.width)
    is_norm = kernel.kernel_class is KernelClass.NORMALIZATION
    if is_norm and not kernel.is_backward and kernel.variant not in _BATCH_NORM_READS:
        half = _NORM_HALF_WIDTH * _NORM_HALF_WIDTH
        return kind.extra_reads * width * width / (width * width + half)
    if kernel.kernel_class is KernelClass.SOFTMAX:
        in_work = gpu.num_sms * _ROWS_IN_WORK * width * DTYPE_BYTES[kernel.dtype]
        ratio = in_work / (_WIDE_SOFTMAX_REACH * gpu.l2_bytes)
        return _WIDE_SOFTMAX_READS + _WIDE_SOFTMAX_MISSES * ratio * ratio / (1.0 + ratio * ratio)
    return kind.extra_reads


def _issue_scale(gpu: GPU) -> float:
    """How much more an SM keeps in flight on a GPU whose DRAM feeds it more bytes a clock."""
    dram_bytes_per_clock = gpu.bandwidth_gbps * 1e9 / (gpu.num_sms * gpu.clock_hz)
    return max(1.0, dram_bytes_per_clock / _REFERENCE_DRAM_BYTES)


def _power_us(kernel: Kernel, gpu: GPU) -> float:
    """The arithmetic of a general power: an instruction is half a fused multiply-add's FLOPs."""
    if kernel.name != "pow" or not isinstance(kernel.size, RowsSize):
        return 0.0
    instructions = kernel.size.rows * kernel.size.width * _POWER_INSTRUCTIONS[gpu.vendor]
    return instructions * 1e6 / (gpu.peak_flops("fp32") / 2.0)


def _row_us(kernel: Kernel, kind: MemoryKind, gpu: GPU) -> float:
    """The time of the CTAs that own whole rows, where few rows leave SMs idle."""
    size = kernel.size
    if not kind.row_bytes or not isinstance(size, RowsSize):
        return 0.0
    row = size.width * DTYPE_BYTES[kernel.dtype] * (1.0 + kind.extra_reads)
    rounds = max(1.0, size.rows / gpu.num_sms)
    return rounds * row * 1e6 / (kind.row_bytes * gpu.clock_hz)


def smooth_maximum(*terms: float) -> float:
    """A little more than the largest term, by how near the others are (4-norm); never less."""
    largest = max(terms)
    if largest <= 0.0:
        return 0.0
    total = 0.0
    for term in terms:
        square = (term / largest) * (term / largest)
        total += square * square
    return largest * math.sqrt(math.sqrt(total))


def _host_copy(kernel: Kernel, gpu: GPU) -> PhysicalTime:
    num_bytes = max(kernel.bytes_read, kernel.bytes_written)
    link = (gpu.pcie_gbps or _DEFAULT_PCIE_GBPS) * 1e3 * _HOST_LINK_SHARE
    copy_us = num_bytes / link
    return PhysicalTime(
        time_us=_HOST_COPY_FLOOR_US + copy_us,
        bound="memory" if copy_us > _HOST_COPY_FLOOR_US else "launch",
        spread=_WIDE_SPREAD,
        threads_per_cta=1,
    )


#: PCIe 3.0 x16, one direction, where a GPU names no host link, 1e9 bytes per second.
_DEFAULT_PCIE_GBPS = 16.0


def _bound(memory_us: float, compute_us: float, floor_us: float) -> Bound:
    if max(memory_us, compute_us) < floor_us:
        return "launch"
    return "compute" if compute_us > memory_us else "memory"


def _spread(kernel: Kernel, time_us: float) -> float:
    if time_us < _SHORT_US or kernel.kernel_class in _IRREGULAR:
        return _WIDE_SPREAD
    return _SPREAD


def _num_ctas(kernel: Kernel) -> int:
    size = kernel.size
    if not isinstance(size, RowsSize):
        return 1
    if kernel.kernel_class in (KernelClass.NORMALIZATION, KernelClass.SOFTMAX):
        return max(1, size.rows)
    return max(1, -(-size.rows * size.width // (_THREADS * _ELEMENTS_PER_THREAD)))
