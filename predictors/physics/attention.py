"""How long fused attention takes: pairs of query and key tiles, products and exponentials.

The two add up: measured shares of peak are 1/(1/u + exponential/matrix) on Hopper, Blackwell (16
exponentials per clock and SM) and Blackwell Ultra (32) alike (data/modern).
The constants were fitted on a sample of data/modern (2,700 rows, 7 GPUs, windowless, head dimension
up to 256), whose labels hold the wrapper kernels of serving libraries.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from neusight.predictors.gpu import GPU
from neusight.predictors.kernel import DTYPE_BYTES, AttentionSize, Kernel, KernelClass, size_of
from neusight.predictors.physics.gemm import utilization_of
from neusight.predictors.physics.launch_geometry import geometry_of
from neusight.predictors.physics.physical_time import PhysicalTime, smooth_maximum
from neusight.predictors.physics.roofline import dram_us

#: Rows of a query tile and of a key tile.
TILE_Q = 128
TILE_KV = 128

#: Rows that a CTA works on where there are no more queries than that (decode): Blackwell's kernels
#: swap the operands and go down to 16, FlashAttention-2 and -3 pad to 64.
SMALL_TILES_Q = (64,)
SMALL_TILES_Q_BLACKWELL = (16, 64)

#: The memory-efficient kernels take keys by 64 too where there are no more (CUTLASS's fused
#: attention: blocks of 64 x 64), and keep sums of rows longer than 128 elements in global memory:
#: what is left of their throughput then. Read off data/kernelbench, head dimension 1024 in FP16 on
#: H100 SXM and PCIe (8.5 and 13.3 ms of what would be 4.7 and 7.1).
SMALL_TILE_KV_EFFICIENT = 64
LONGEST_KEPT_HEAD_DIM = 128
SPILLED_SHARE = 0.55

#: Exponentials per clock and SM (CUDA C++ Programming Guide, arithmetic throughput: 16; doubled on
#: compute capability 10.3, NVIDIA Blackwell Ultra white paper).
EXPONENTIALS_PER_CLOCK = 16.0
EXPONENTIALS_PER_CLOCK_103 = 32.0

#: Head dimensions are padded to a multiple of this by every kernel.
HEAD_DIM_STEP = 32

#: Parts into which keys and values may be cut, each a CTA of its own (FlashDecoding).
KV_SPLITS = (1, 2, 4, 8, 16, 32, 64, 128)


class _Implementation(NamedTuple):
    """Matrix throughput of an implementation, as a share of the GPU's large-GEMM throughput, by
    compute capability major; `backward` is what the backward pass reaches of the forward's.
    `times` is how many times as long a pair of tiles takes as both say, forward and backward."""

    before_hopper: float
    hopper: float
    blackwell: float
    backward: float
    times: tuple[float, float] = (1.0, 1.0)


#: FlashAttention-2 is what PyTorch ships as "flash"; on Hopper it reaches 0.35 of peak
#: (arXiv 2407.08608, abstract), on Ampere and Ada as fitted on data/modern (vLLM); on
#: Blackwell and for backward a prior.
_FLASH_2 = _Implementation(before_hopper=0.95, hopper=0.54, blackwell=0.33, backward=0.75)
#: Kernels made for the architecture: FlashAttention-3 and -4, cuDNN, TensorRT-LLM (data/modern).
_NATIVE = _Implementation(before_hopper=0.95, hopper=1.17, blackwell=1.25, backward=0.75)
#: The memory-efficient kernels of xFormers in PyTorch. A prior.
_EFFICIENT = _Implementation(before_hopper=0.6, hopper=0.35, blackwell=0.2, backward=0.6)
#: The Triton template of torch's flex attention: 0.90 of FlashAttention-2 forward and 0.85
#: backward, as its authors measured on an A100 ("FlexAttention: The Flexibility of PyTorch with the
#: Performance of FlashAttention", pytorch.org/blog/flexattention, 2024-08-07). A prior: there are
#: no data of it here.
_FLEX_OF_FLASH_2 = 0.90
_FLEX_BACKWARD_OF_FLASH_2 = 0.85
_FLEX = _Implementation(
    before_hopper=_FLASH_2.before_hopper * _FLEX_OF_FLASH_2,
    hopper=_FLASH_2.hopper * _FLEX_OF_FLASH_2,
    blackwell=_FLASH_2.blackwell * _FLEX_OF_FLASH_2,
    backward=_FLASH_2.backward * _FLEX_BACKWARD_OF_FLASH_2 / _FLEX_OF_FLASH_2,
)

#: The first FlashAttention written in Triton (`flash_attn.flash_attn_triton`, the "triton" of
#: MosaicML's models): FlashAttention-2 "is around 1.3-1.5x faster than FlashAttention in Triton in
#: the forward pass and around 2x faster in the backward pass" on A100 (arXiv 2307.08691, section
#: 4.1). Of the backward pass 1.6, 1.8 and 2.0 were tried on every other row of llm-foundry's
#: programs of fewer than 128 GPUs (14 rows; 1.8: 2.6 % off, 2.0: 4.5); the others are kept back.
#: On other GPUs the same ratios, a prior.
_FIRST_TRITON = _FLASH_2._replace(times=(1.4, 1.8))

#: AOTriton, behind both fused backends of torch on AMD: share of the large-GEMM throughput. Read
#: off one shape on MI300X (4429 tokens in 76 heads of 64, data/profiled_kernels: 1360 µs, 895
#: before); not used: ViT's and BERT's, 31.2 and 27.3 µs, forecast 22.1 before and 26.5 now. Of
#: flex attention and of older chips a prior.
_AOTRITON_SHARE = 0.55
#: Head dimensions beyond this are kept in part outside of registers, as above: one of 512 takes
#: 2960 µs on MI300X, forecast 3110 with `SPILLED_SHARE` as it is (1030 before).
_AOTRITON_LONGEST_HEAD_DIM = 256

_IMPLEMENTATIONS = {
    "flash_attention": _FLASH_2,
    "flash_attention_3": _NATIVE,
    "flash_attention_4": _NATIVE,
    "cudnn_attention": _NATIVE,
    "efficient_attention": _EFFICIENT,
    "flex_attention": _FLEX,
    "flash_attention_triton": _FIRST_TRITON,
}

#: Floor of an attention kernel, as a multiple of the shortest kernel. This and the three below were
#: fitted on 160 rows of each GPU and phase of data/modern, without the kernels that the serving
#: libraries launch before it: mean error 19 %, by GPU and phase 12-26.
_FLOOR_FACTOR = 2.7

#: Clocks of a CTA that loads its queries, fills its pipeline and writes its result.
_CTA_CLOCKS = 6050.0

#: Share of the longest CTA's time that the tail adds to the average SM's.
_TAIL_SHARE = 0.35

#: FlashAttention-2 forward on Hopper and Blackwell: one CTA of four warps reaches half of an SM's
#: matrix throughput, and with a causal mask the longest CTAs start last. The share of the longest
#: CTA's time that adds to the average SM's, and the floor, read off data/llm_layers (H100, 32
#: heads; 16 heads were kept back).
_FLASH_2_TAIL_SHARE = 1.4
_FLASH_2_ALONE = 2.0
_FLASH_2_FLOOR_FACTOR = 1.0
_FLASH_2_MAJORS = (9, 10)


class _Measured(NamedTuple):
    """An implementation in 16 bits where its kernels were measured alone: the share of the
    large-GEMM throughput that its products reach; clocks of a CTA beside its pairs of tiles; how
    many times as long as the exponentials its work on the cores takes (0: the products hide it),
    and where keys take one tile; what head dimensions are padded to a multiple of; the share of
    the longest CTA's time that the tail adds, without and with a causal mask."""

    share: float
    cta_clocks: float = _CTA_CLOCKS
    core_work: float = 1.0
    core_work_of_a_tile: float = 1.0
    head_dim_step: int = HEAD_DIM_STEP
    tail_shares: tuple[float, float] = (_TAIL_SHARE, _TAIL_SHARE)


#: By name and whether backward, on Hopper: 15 shapes each of cuDNN and of the memory-efficient
#: kernels, 44 and 29 of FlashAttention-2 (benchmarks/measured/h100, bf16; fp16 was not used).
_ON_HOPPER = {
    ("cudnn_attention", False): _Measured(2.0, 2000.0, tail_shares=(0.0, 0.6)),
    ("cudnn_attention", True): _Measured(0.843),
    ("flash_attention", False): _Measured(0.4425, core_work=0.0, core_work_of_a_tile=0.0),
    ("flash_attention", True): _Measured(0.478, 15_500.0, 2.4, 2.4),
    ("efficient_attention", False): _Measured(0.35, 2600.0, 3.9, 3.9, head_dim_step=64),
    ("efficient_attention", True): _Measured(0.245, 2600.0, 9.8, 1.0, head_dim_step=64),
}
_HOPPER = 9

#: The same on Ampere and Ada, where neither side is longer than 128: clocks of a CTA of 64 queries,
#: and of each 64 keys of 128 elements (RTX A6000, 32 heads; 16 were kept back), two CTAs an SM. The
#: serving kernels of data/modern, which the networks were fitted to, take twice as long there.
_SHORT_LENGTH = 128
_SHORT_TILE = 64
_SHORT_CTA_CLOCKS = 1980.0
_SHORT_TILE_CLOCKS = 4140.0
_SHORT_HEAD_DIM = 128
_SHORT_CTAS_AN_SM = 2

#: Clocks for adding up the parts of a split.
_SPLIT_CLOCKS = 17_600.0

#: Half width of the 80 % interval (data/modern: libraries differ by 8-25 %); backward was never
#: measured.
_SPREAD = 0.3
_BACKWARD_SPREAD = 0.4


def visible_tile_pairs(size: AttentionSize) -> int:
    """Pairs of a query and a key tile of one head; causal from the lower right corner."""
    rows, columns = -(-size.seq_q // TILE_Q), -(-size.seq_kv // TILE_KV)
    if not size.causal or rows <= 1:
        return rows * columns
    if columns >= rows:
        return rows * (columns - rows) + rows * (rows + 1) // 2
    return columns * (columns + 1) // 2


def attention_timing(kernel: Kernel, gpu: GPU, *, sustained: bool) -> PhysicalTime:
    """The time of one fused attention kernel, forward or backward."""
    size = size_of(kernel, AttentionSize)
    clock = gpu.clock_hz * 1e-6
    pair_us = _pair_us(kernel, size, gpu, sustained=sustained)
    heads = size.batch * size.heads
    columns, rows = -(-size.seq_kv // TILE_KV), -(-size.seq_q // TILE_Q)
    measured = _measured(kernel, size, gpu)
    cta_us = (measured.cta_clocks if measured else _CTA_CLOCKS) / clock
    num_tiles, longest = (columns, rows) if size.backward else (rows, columns)
    total_us = heads * (visible_tile_pairs(size) * pair_us + num_tiles * cta_us) / gpu.num_sms
    if not size.backward and size.kv_heads:
        total_us = min(total_us, _packed_us(kernel, size, gpu, sustained=sustained))
    moving_us = dram_us(kernel.num_bytes, gpu)
    # The forward of FlashAttention-2 on a GPU that it was not written for.
    is_newer = gpu.nvidia_major in _FLASH_2_MAJORS
    is_flash_2 = kernel.variant == "flash_attention" and is_newer and not size.backward
    tail_share = measured.tail_shares[size.causal] if measured else _TAIL_SHARE
    best_us, split = min(
        (
            smooth_maximum(
                _busy_us(
                    total_us, -(-longest // parts) * pair_us, cta_us, size, is_flash_2, tail_share
                ),
                moving_us,
            )
            + _split_clocks(size, gpu, parts) / clock,
            parts,
        )
        for parts in KV_SPLITS
    )
    floor_us = gpu.floor_us * (_FLASH_2_FLOOR_FACTOR if is_flash_2 else _FLOOR_FACTOR)
    is_memory_bound = moving_us > max(total_us, best_us / 2)
    launch = geometry_of(
        KernelClass.ATTENTION,
        gpu,
        num_ctas=heads * num_tiles * split,
        # Two math groups and one that loads from Hopper on, four warps before.
        threads_per_cta=384 if gpu.nvidia_major >= _HOPPER else 128,
        tile=(TILE_Q, TILE_KV),
        itemsize=DTYPE_BYTES[kernel.dtype],
    )
    return PhysicalTime(
        time_us=floor_us + best_us,
        bound="launch" if best_us < floor_us else "memory" if is_memory_bound else "compute",
        spread=_BACKWARD_SPREAD if size.backward else _SPREAD,
        tile=(TILE_Q, TILE_KV),
        split_k=split,
        num_ctas=launch.num_ctas,
        threads_per_cta=launch.threads_per_cta,
        num_waves=launch.num_waves,
        at_most_us=_short_us(kernel, size, gpu),
    )


def _measured(kernel: Kernel, size: AttentionSize, gpu: GPU) -> _Measured | None:
    """What was measured of this implementation on this architecture, in 16 bits."""
    if gpu.nvidia_major != _HOPPER or DTYPE_BYTES[kernel.dtype] > 2:
        return None
    return _ON_HOPPER.get((kernel.variant, size.backward))


def _short_us(kernel: Kernel, size: AttentionSize, gpu: GPU) -> float:
    """What torch's FlashAttention-2 takes at most where the sequences are short; else infinite."""
    is_short = max(size.seq_q, size.seq_kv) <= _SHORT_LENGTH and min(size[:5]) >= 1
    is_of_torch = kernel.variant == "flash_attention" and kernel.layout == "contiguous"
    if not (is_short and gpu.nvidia_major == 8 and is_of_torch) or size.backward:
        return math.inf
    rows, columns = -(-size.seq_q // _SHORT_TILE), -(-size.seq_kv // _SHORT_TILE)
    waves = -(-size.batch * size.heads * rows // (_SHORT_CTAS_AN_SM * gpu.num_sms))
    depth = max(size.head_dim, size.head_dim_v) / _SHORT_HEAD_DIM
    clocks = _SHORT_CTA_CLOCKS + columns * _SHORT_TILE_CLOCKS * depth
    return gpu.floor_us + waves * clocks / (gpu.clock_hz * 1e-6)


def _busy_us(
    total_us: float,
    chain_us: float,
    cta_us: float,
    size: AttentionSize,
    is_flash_2: bool,
    tail_share: float,
) -> float:
    """Until the last CTA has ended, of the average SM's time and that of the longest CTA: its
    chain of pairs of tiles, and the rest of it."""
    longest_us = chain_us + cta_us
    if not is_flash_2:
        return max(total_us, longest_us) + tail_share * longest_us
    if size.causal:
        return total_us + _FLASH_2_TAIL_SHARE * longest_us
    return max(total_us, _FLASH_2_ALONE * chain_us + cta_us) + _TAIL_SHARE * chain_us


def _split_clocks(size: AttentionSize, gpu: GPU, parts: int) -> float:
    if parts == 1:
        return 0.0
    return _SPLIT_CLOCKS + 2.0 * parts * (size.batch * size.heads) * size.seq_q / gpu.num_sms


def _packed_us(kernel: Kernel, size: AttentionSize, gpu: GPU, *, sustained: bool) -> float:
    """Total time where the query heads that share keys are rows of one tile (decode with GQA)."""
    group = -(-size.heads // size.kv_heads)
    packed = size._replace(heads=size.kv_heads, seq_q=size.seq_q * group, causal=False)
    pair_us = _pair_us(kernel, packed, gpu, sustained=sustained)
    cta_us = -(-packed.seq_q // TILE_Q) * _CTA_CLOCKS / gpu.clock_hz * 1e6
    heads = size.batch * packed.heads
    return heads * (visible_tile_pairs(packed) * pair_us + cta_us) / gpu.num_sms


#: Products in TF32 that make one of FP32 (CUTLASS, OpMultiplyAddFastF32: three), as efficient
#: attention computes from compute capability 8.0 on (PyTorch, gemm_kernel_utils.h), with what
#: splitting the operands adds forward, and what backward hides more than it does in 16 bits: H100,
#: benchmarks/measured/h100, 15 rows each.
TF32_PRODUCTS_OF_FP32 = {False: 3.5, True: 2.5}


def _pair_us(kernel: Kernel, size: AttentionSize, gpu: GPU, *, sustained: bool) -> float:
    implementation = _IMPLEMENTATIONS.get(kernel.variant, _FLASH_2)
    measured = _measured(kernel, size, gpu)
    step = measured.head_dim_step if measured else HEAD_DIM_STEP
    head_dim = -(-size.head_dim // step) * step
    head_dim_v = -(-size.head_dim_v // step) * step
    depth = 3 * head_dim + 2 * head_dim_v if size.backward else head_dim + head_dim_v
    small = SMALL_TILES_Q_BLACKWELL if gpu.nvidia_major == 10 else SMALL_TILES_Q
    queries = next((rows for rows in small if size.seq_q <= rows), TILE_Q)
    is_efficient = kernel.variant == "efficient_attention"
    is_short = is_efficient and size.seq_kv <= SMALL_TILE_KV_EFFICIENT
    scores = queries * (SMALL_TILE_KV_EFFICIENT if is_short else TILE_KV)
    compute, peak = kernel.compute, gpu.peak_flops(kernel.compute, matrix=True)
    if is_efficient and compute == "fp32" and gpu.has_matrix_unit("tf32"):
        compute, peak = "tf32", gpu.peak_flops("tf32", matrix=True)
        peak /= TF32_PRODUCTS_OF_FP32[size.backward]
    sm_peak = peak * 1e-6 / gpu.num_sms
    share = measured.share if measured else _share(implementation, gpu)
    reached = min(1.0, utilization_of(gpu, compute, sustained=sustained) * share)
    if size.backward and not measured:
        reached *= (_FLASH_2 if gpu.vendor == "amd" else implementation).backward
    if size.head_dim_v > _longest_kept_head_dim(gpu, is_efficient=is_efficient):
        reached *= SPILLED_SHARE
    matrix_us = 2.0 * scores * depth / (sm_peak * reached)
    exponential_us = scores / (exponentials_per_clock(gpu) * gpu.clock_hz * 1e-6)
    if measured:
        core_work = measured.core_work if size.seq_kv > TILE_KV else measured.core_work_of_a_tile
        return max(matrix_us + core_work * exponential_us, exponential_us)
    return implementation.times[size.backward] * (matrix_us + exponential_us)


def exponentials_per_clock(gpu: GPU) -> float:
    """Exponentials that one SM computes in a clock."""
    is_b300 = gpu.vendor == "nvidia" and gpu.compute_capability == (10, 3)
    return EXPONENTIALS_PER_CLOCK_103 if is_b300 else EXPONENTIALS_PER_CLOCK


def _longest_kept_head_dim(gpu: GPU, *, is_efficient: bool) -> float:
    if gpu.vendor == "amd":
        return _AOTRITON_LONGEST_HEAD_DIM
    return LONGEST_KEPT_HEAD_DIM if is_efficient else math.inf


def _share(implementation: _Implementation, gpu: GPU) -> float:
    if gpu.vendor == "amd":
        return _AOTRITON_SHARE * (_FLEX_OF_FLASH_2 if implementation is _FLEX else 1.0)
    if gpu.nvidia_major < _HOPPER or gpu.nvidia_major >= 12:
        return implementation.before_hopper
    return implementation.hopper if gpu.nvidia_major == _HOPPER else implementation.blackwell
