"""How long a kernel takes that moves bytes: floor, L2, DRAM, and how fast its loads are issued."""

from __future__ import annotations

from math import prod

from neusight.predictors.gpu import GPU
from neusight.predictors.kernel import (
    DTYPE_BYTES,
    HOST_COPIES,
    PEER_COPY,
    Kernel,
    KernelClass,
    RowsSize,
    size_of,
)
from neusight.predictors.physics.launch_geometry import geometry_of
from neusight.predictors.physics.memory_bound.kinds import MemoryKind, kind_of
from neusight.predictors.physics.memory_bound.rows import (
    fills_sms,
    is_cudnn_batch_norm,
    missed_again,
    reads_again,
    row_us,
    shared_columns_us,
)
from neusight.predictors.physics.physical_time import Bound, PhysicalTime, smooth_maximum
from neusight.predictors.physics.roofline import (
    cold_share,
    flop_roofline_us,
    instructions_per_second,
)

#: DRAM bytes per clock and SM of the GPUs on which the issue rates were read (A100, H100). B200 has
#: 28 and issues in proportion (static fp8 quantisation: 25 against 18 on H100).
_REFERENCE_DRAM_BYTES = 14.0

#: Streams of a GB and more reach more of the bandwidth than the `bandwidth_utilization` that was
#: read on smaller ones, by this share, half of it at so many bytes: data/modern, static fp8
#: quantisation on H100 and H200 (0 % at 0.3 GB, 3 at 0.75, 6 at 2). B200, B300 and GB200 do too
#: (6 % at 2 GB); A100, A40 and L40S do not.
_LONG_STREAM_GAIN = 0.07
_LONG_STREAM_BYTES = 0.8e9
_LONG_STREAM_MAJORS = (9, 10)

#: Share of a stream's bandwidth that fused kernels which go by tiles (NHWC to NCHW and back) reach
#: from GDDR memory: a tile's lines are short and lie in as many pages. L40S, eight rows of four
#: programs of data/kernelbench of which such kernels are a fifth and more, even half: these take
#: 0.93-1.49 times as long as streams, in the median 1.32. From HBM as long (28 rows, 0.98).
_TILED_GDDR_SHARE = 0.76
#: NVIDIA's architectures with GDDR memory (compute capability).
_GDDR = frozenset({(7, 5), (8, 6), (8, 9), (12, 0)})

#: Clocks of a CTA that starts, waits for its first loads and ends; added to the floor.
_CTA_CLOCKS = 600.0

#: Cats by vectors: each tensor has as many CTAs as the widest, a thread a load of 16 bytes (of 8
#: where values of 16 bit lie in NHWC), at most so many an SM (getCatGridContig, cuda/Shape.cu).
_CATS_OF_VECTORS = ("contiguous", "channels_last")
_CAT_CTAS_OF_SM = 32
#: Clocks from one of these CTAs to the next on the whole GPU, most without work where one tensor is
#: much wider: 0.61 ns each on H100, by DenseNet-121's cats of 2 to 25 maps of 14 x 14 in FP32
#: (measured here; those of 28 x 28 and 7 x 7, in NHWC and on H200 were not used).
_CAT_CTA_CLOCKS = 1.1

#: Bandwidth of a host copy as a share of the link's datasheet rate (pinned memory), and its floor.
_HOST_LINK_SHARE = 0.82
_HOST_COPY_FLOOR_US = 1.2
#: The same of a copy between two GPUs over NVLink. A prior: CUDA's sample p2pBandwidthLatencyTest
#: shows some 270 of A100's 300 and 390 of H100's 450e9 bytes per second, one way.
_PEER_LINK_SHARE = 0.88

#: Arithmetic of these kernels reaches this share of the ordinary cores' peak. A prior.
_ALU_SHARE = 0.5

#: Instructions an element of a general power costs (logarithm and exponential in full precision).
#: data/paper_fp32: V100 hides them behind its bandwidth, A100 does not within its L2; AMD nowhere.
_POWER_INSTRUCTIONS = {"nvidia": 38.0, "amd": 172.0}

#: Half width of the 80 % interval: on long streams, where rows are reduced, and below `_SHORT_US`
#: or for irregular kinds. The first two so that four of five programs of data/kernelbench that such
#: kernels dominate lie inside, on the even half.
_SPREAD = 0.09
_ROWS_SPREAD = 0.2
_OF_ROWS = frozenset({KernelClass.REDUCTION, KernelClass.SOFTMAX, KernelClass.NORMALIZATION})
_WIDE_SPREAD = 0.35
_SHORT_US = 10.0
#: Scans of state-space models, whose instructions were counted and never measured. A prior.
_SCAN_SPREAD = 0.6
#: Factorizations, whose steps were counted in their algorithms and never measured. A prior.
_STEPS_SPREAD = 0.8
_IRREGULAR = frozenset(
    {KernelClass.GATHER, KernelClass.SORT, KernelClass.CUSTOM, KernelClass.UNKNOWN}
)

#: Threads of a CTA and elements of a thread in PyTorch's vectorized kernels (thread_constants.h).
_THREADS = 128
_ELEMENTS_PER_THREAD = 4


def memory_bound_timing(kernel: Kernel, gpu: GPU) -> PhysicalTime:
    """The time of one kernel whose size is rows by width."""
    if kernel.name in HOST_COPIES or kernel.name == PEER_COPY:
        return _link_copy(kernel, gpu)
    kind = kind_of(kernel, gpu.vendor)
    kind = kind._replace(extra_reads=reads_again(kernel, kind, gpu))
    memory_us = _memory_us(kernel, kind, gpu)
    compute_us = max(_arithmetic_us(kernel, gpu), kernel.num_steps * gpu.floor_us)
    floor_us = gpu.floor_us * kind.floor_factor + _CTA_CLOCKS / gpu.clock_hz * 1e6
    cat_ctas = _cat_ctas(kernel, gpu)
    launch_us = cat_ctas * _CAT_CTA_CLOCKS / gpu.clock_hz * 1e6
    time_us = floor_us + smooth_maximum(*memory_us, compute_us, launch_us)
    time_us += shared_columns_us(kernel, gpu)
    num_ctas = cat_ctas or _num_ctas(kernel)
    launch = geometry_of(kernel.kernel_class, gpu, num_ctas=num_ctas, threads_per_cta=_THREADS)
    return PhysicalTime(
        time_us=time_us,
        bound=_bound(max(memory_us), compute_us, max(floor_us, launch_us)),
        spread=_spread(kernel, time_us),
        num_ctas=launch.num_ctas,
        threads_per_cta=launch.threads_per_cta,
        num_waves=launch.num_waves,
    )


def _memory_us(kernel: Kernel, kind: MemoryKind, gpu: GPU) -> tuple[float, ...]:
    """Each thing that moving its bytes takes."""
    issue_us, dram_us, elements_us = _traffic_us(kernel, kind, gpu)
    rows_us = row_us(kernel, kind, gpu)
    is_filled = kind.extra_reads and fills_sms(kernel, gpu)
    if is_cudnn_batch_norm(kernel, gpu) and rows_us and not is_filled:
        return issue_us, _queued(dram_us, rows_us), elements_us
    return issue_us, dram_us, elements_us, rows_us


def _queued(dram_us: float, rows_us: float) -> float:
    """What few CTAs take that wait for a DRAM which they nearly fill: half more than either alone
    where both take as long. 64 channels on V100 (a public profile) 0.91 to 1.05 of that, on H100
    SXM and PCIe (data/kernelbench 73) 0.97 and 0.92; 16 on H100 wait for themselves alone (72)."""
    both = dram_us + rows_us
    return (both * both - dram_us * rows_us) / both


def _traffic_us(kernel: Kernel, kind: MemoryKind, gpu: GPU) -> tuple[float, float, float]:
    """What it takes to issue the loads and stores, to move them through DRAM, and to handle each
    element."""
    moved = kernel.num_bytes + kind.extra_reads * kernel.bytes_read + kernel.bytes_read_again
    # An SM keeps more in flight on a GPU whose DRAM feeds it more bytes a clock.
    dram_bytes_per_clock = gpu.bandwidth_gbps * 1e9 / (gpu.num_sms * gpu.clock_hz)
    issue_bytes = kind.issue_bytes * max(1.0, dram_bytes_per_clock / _REFERENCE_DRAM_BYTES)
    issue_us = moved * 1e6 / (issue_bytes * gpu.num_sms * gpu.clock_hz)
    share = (gpu.stream_utilization or gpu.bandwidth_utilization) * _long_stream(moved, gpu)
    bandwidth = gpu.bandwidth_gbps * 1e3 * share * kind.dram_share * _tiled_share(kernel, gpu)
    from_l2 = kernel.bytes_read_again * (1.0 - missed_again(kernel, gpu))
    footprint = kernel.num_bytes - kernel.bytes_in_place
    dram_us = (moved - from_l2) * cold_share(footprint, gpu) / bandwidth
    return issue_us, dram_us, _elements_us(kernel, kind, gpu)


def _long_stream(num_bytes: float, gpu: GPU) -> float:
    """How much more of the bandwidth a long stream reaches."""
    if gpu.nvidia_major not in _LONG_STREAM_MAJORS:
        return 1.0
    ratio = num_bytes / _LONG_STREAM_BYTES
    return 1.0 + _LONG_STREAM_GAIN * ratio * ratio / (1.0 + ratio * ratio)


def _tiled_share(kernel: Kernel, gpu: GPU) -> float:
    is_tiled = kernel.variant == "fused" and kernel.along_columns
    is_pointwise = kernel.kernel_class is KernelClass.ELEMENTWISE
    is_gddr = gpu.vendor == "nvidia" and gpu.compute_capability in _GDDR
    return _TILED_GDDR_SHARE if is_tiled and is_pointwise and is_gddr else 1.0


def _arithmetic_us(kernel: Kernel, gpu: GPU) -> float:
    counted_us = kernel.num_instructions * 1e6 / instructions_per_second(gpu)
    flops_us = flop_roofline_us(kernel, gpu) / _ALU_SHARE + _power_us(kernel, gpu)
    return max(counted_us, flops_us)


def _power_us(kernel: Kernel, gpu: GPU) -> float:
    """The arithmetic of a general power: an instruction is half a fused multiply-add's FLOPs."""
    if kernel.name != "pow":
        return 0.0
    instructions = prod(size_of(kernel, RowsSize)) * _POWER_INSTRUCTIONS[gpu.vendor]
    return instructions * 1e6 / (gpu.peak_flops("fp32") / 2.0)


def _elements_us(kernel: Kernel, kind: MemoryKind, gpu: GPU) -> float:
    """The instructions of a loop over elements, where they limit it."""
    if not kind.elements:
        return 0.0
    return prod(size_of(kernel, RowsSize)) * 1e6 / (kind.elements * gpu.num_sms * gpu.clock_hz)


def _link_copy(kernel: Kernel, gpu: GPU) -> PhysicalTime:
    """From or to the host, or from another GPU, over NVLink where there is any."""
    num_bytes = max(kernel.bytes_read, kernel.bytes_written)
    bytes_a_us = (gpu.pcie_gbps or _DEFAULT_PCIE_GBPS) * 1e3 * _HOST_LINK_SHARE
    if kernel.name == PEER_COPY and gpu.link_gbps:
        bytes_a_us = gpu.link_gbps * 1e3 * _PEER_LINK_SHARE
    copy_us = num_bytes / bytes_a_us
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
    if kernel.num_steps:
        return _STEPS_SPREAD
    if kernel.variant == "state_space":
        return _SCAN_SPREAD
    if time_us < _SHORT_US or kernel.kernel_class in _IRREGULAR:
        return _WIDE_SPREAD
    return _ROWS_SPREAD if kernel.kernel_class in _OF_ROWS else _SPREAD


def _cat_ctas(kernel: Kernel, gpu: GPU) -> int:
    """The CTAs of a cat by vectors, those that find nothing to do included; 0 of other kernels."""
    if not kernel.num_parts or kernel.layout not in _CATS_OF_VECTORS or gpu.vendor != "nvidia":
        return 0
    item = DTYPE_BYTES.get(kernel.dtype, 1.0)
    load_bytes = 8 if item == 2 and kernel.layout == "channels_last" else 16
    of_cta = _THREADS * max(1, int(load_bytes / item))
    of_tensor = -(-kernel.widest_part // of_cta)
    return kernel.num_parts * min(of_tensor, _CAT_CTAS_OF_SM * gpu.num_sms)


def _num_ctas(kernel: Kernel) -> int:
    size = size_of(kernel, RowsSize)
    if kernel.kernel_class in (KernelClass.NORMALIZATION, KernelClass.SOFTMAX):
        return max(1, size.rows)
    return max(1, -(-size.rows * size.width // (_THREADS * _ELEMENTS_PER_THREAD)))
