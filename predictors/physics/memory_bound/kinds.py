"""What sets families of memory-bound kernels apart: how fast they issue, what they read again."""

from __future__ import annotations

from typing import NamedTuple

from neusight.predictors.kernel import (
    DTYPE_BYTES,
    SERIAL_SUM,
    Kernel,
    KernelClass,
    RowsSize,
    size_of,
)


class MemoryKind(NamedTuple):
    """What sets one family of memory-bound kernels apart from others.

    `issue_bytes`: bytes an SM moves a clock at most, by how wide and how many its loads are.
    `extra_reads`: how often the input is read again. `floor_factor`: its shortest duration, as a
    multiple of the GPU's. `row_bytes`: bytes a clock of the one CTA that owns a row (0: rows are
    shared among CTAs). `dram_share`: bandwidth as a share of streaming. `elements`: how many an SM
    handles a clock at most, whatever their size, where each costs instructions (0: no limit).
    """

    issue_bytes: float
    extra_reads: float = 0.0
    floor_factor: float = 1.0
    row_bytes: float = 0.0
    dram_share: float = 1.0
    elements: float = 0.0


#: A layer norm reads its input again, the wider the row the less of it is still in the L1: most
#: (data/paper_fp32: 0.4 below 1024, 1.2 from 3000 on).
_NORM_MOST_READS = 1.25

#: Issue rates: simple vectorized kernels 15-25 B/clk/SM L2-hot (data/modern: add 15-17, static fp8
#: quantisation 12-25), norms and per-row quantisation 6-12, old embedding kernels 2.4. Re-reads:
#: data/paper_fp32 (rows beyond L2, overhead subtracted): layer norm 1.3-1.7 times its compulsory
#: bytes, softmax of wide rows 1.5 and none for narrow ones.
_STREAM = MemoryKind(issue_bytes=18.0)
_KINDS: dict[KernelClass, MemoryKind] = {
    KernelClass.ELEMENTWISE: _STREAM,
    KernelClass.COPY: _STREAM,
    KernelClass.REDUCTION: MemoryKind(issue_bytes=14.0, floor_factor=1.5),
    KernelClass.SOFTMAX: MemoryKind(issue_bytes=13.0, floor_factor=1.3),
    KernelClass.NORMALIZATION: MemoryKind(
        issue_bytes=13.0, extra_reads=_NORM_MOST_READS, floor_factor=1.6, row_bytes=24.0
    ),
    KernelClass.GATHER: MemoryKind(issue_bytes=16.0, floor_factor=1.2, dram_share=0.85),
    KernelClass.SORT: MemoryKind(issue_bytes=5.0, floor_factor=2.0, dram_share=0.7),
    KernelClass.OPTIMIZER: MemoryKind(issue_bytes=14.0, floor_factor=1.5, dram_share=0.97),
    KernelClass.CUSTOM: _STREAM,
    KernelClass.UNKNOWN: MemoryKind(issue_bytes=8.0, floor_factor=1.2, dram_share=0.9),
}

#: Elements a clock and SM of a loop that computes the indices of each element, or casts it: H100,
#: 16 bit, 13 such kernels 1.3-2.0 (data/profiled_kernels); division by a scalar tensor in float32
#: as fast (data/kernelbench 37); MI300X 1.0-1.2. Its shortest duration, as a multiple of the GPU's:
#: 2.4-3.0 µs where vectorized kernels take 1.4-1.8 (data/profiled_kernels, H100).
_SCALAR_ELEMENTS = {"nvidia": 1.5, "amd": 1.1}
_SCALAR_FLOOR = 1.5

#: The same in float32, and where operands of several floating types are each cast: H100, kernels of
#: a million elements and more in the steps of `benchmarks/measured`: 2.1 (add_) to 3.4 (division by
#: a scalar) in the L2, less beside DRAM (data/kernelbench, even half); 0.9-1.05. H200, not used:
#: 2.5-3.5 and 0.9-1.2.
_SCALAR_FLOAT32_ELEMENTS = 2.0
_MIXED_ELEMENTS = 1.05

#: Elements of 16 bits a clock and CU of AMD's pointwise kernels, which take four at once whatever
#: their size (MI300X, ten kernels in its caches 1.0-1.7, the least for sigmoid and silu, and 1.6
#: beyond, data/profiled_kernels); float32 is never bound by it (data/paper_fp32).
_AMD_HALVES = 1.8

#: The same of those that exponentiate: silu of 17 to 268 million elements 1.09-1.2 (of 8 million
#: less). Not read off: gelu of 77 million 1.2, sigmoid of 21 million 1.15.
_AMD_EXPONENTIALS = 1.2
_EXPONENTIATES = frozenset({"silu", "sigmoid", "gelu", "tanh", "exp", "elu", "mish", "softplus",
                            "silu_backward", "gelu_backward", "mish_backward"})  # fmt: skip

#: The same where neighbours lie apart: each costs a sector of 32 bytes from the L2 (H100, 16 bit:
#: copies and cats of 0.6 to 19 million elements, 0.50-0.54; MI300X 0.19-0.3).
_TRANSPOSED_ELEMENTS = {"nvidia": 0.53, "amd": 0.2}

#: A cat that takes one element at a time has two CTAs of 512 threads an SM, an element in flight a
#: thread (H100 1.17 contiguous, 0.86 strided; MI300X 1.1 and 0.7; data/kernelbench 92 on H100 PCIe,
#: float32, 0.99).
_CAT_ELEMENTS = 1.0

#: A cat in NHWC loads vectors and stores elements, each where its own index says (alignedK_contig):
#: H100, DenseNet-121 in FP16, maps of 56 x 56, by one more tensor (measured here).
_CAT_NHWC_ELEMENTS = 1.75

#: Elements a clock and SM of a gather that finds the place of each element again: 0.50-0.52 on A100
#: in float32 (data/fused_ops_baselines, embedding forward, even rows), 0.60 on H100 and 0.66 on
#: MI300X in bf16 (data/profiled_kernels, index_select).
_GATHER_ELEMENTS = 0.55

#: Rows gathered by wide loads, a CTA a row, reach the whole bandwidth of a stream (H100, 16384 rows
#: of 8 KB, benchmarks/measured/h100).
_GATHER_OF_ROWS = MemoryKind(issue_bytes=16.0, floor_factor=1.2)

#: Elements a clock and SM of kernels whose arithmetic takes longer than their bytes. H100
#: (benchmarks/measured/h100): numbers of a normal distribution, 6 to 270 million, 1.75-1.95; masks
#: of a dropout 2.2-2.6; parameters of a fused AdamW in 16 bits 0.70-0.78.
_ELEMENTS: dict[str, float] = {"normal_numbers": 1.85, "dropout": 2.8, "fused_adam": 0.78}

#: The same of error functions in 16 bits, whose bytes do not hide their arithmetic: 5 to 77 million
#: elements in the steps of benchmarks/measured; median errors on H100 6 and 1 %, on H200 -4 and -1.
_ERROR_FUNCTIONS = {"gelu": 3.7, "gelu_backward": 2.7}

#: Shortest durations of the kernels of CUB's radix sort, as multiples of the GPU's: each ranks its
#: keys in shared memory, and a pass waits for the counts of the CTAs before. 64-bit keys in the
#: steps of benchmarks/measured, H100 and H200: one tile of 1,024 to 2,048 4.9-5.3 µs, passes of
#: 4,096 to 16,384 5.8-6.3, of 262,144 7.7, the sums of all digits 1.1-1.4.
_SORT_FLOORS = {"radix_sort_single_tile": 3.1, "radix_sort_pass": 3.8, "radix_sort_scan": 0.8}

#: Kernels that add where others add too: an atomic an element, which the L2 takes at about that
#: rate a clock and SM. A prior.
_SCATTER = MemoryKind(issue_bytes=12.0, floor_factor=1.5, dram_share=0.6, elements=0.6)

#: The same of 16 bits, which are added by comparing and exchanging: H100, 6 to 200 million elements
#: (benchmarks/measured/h100, scatter_add_rows) 0.24-0.26.
_ADDED_HALVES = 0.26

#: Kernels of the copy engine or the driver; a device copy and a fill by the widest stores.
_BULK = {"memcpy_d2d": 26.0, "memset": 30.0}

#: cuDNN's and MIOpen's copies between NCHW and NHWC: a CTA (row) a tile of 32 x 32 elements, full
#: or not. What an SM spends on a tile, clocks: H100 in bf16 and A100 in FP32, tiles of three
#: channels 305-340 (data/profiled_kernels; a profile of ResNet-50's training on A100). Where tiles
#: are full, A100 and V100 reach their whole streaming bandwidth (0.87-0.89 and 0.88 of the peak in
#: profiles of ResNet-50), so nothing is lost there.
#: MIOpen's choose their tile by the matrix (batched_transpose_256x4_half to 4x256), so their time
#: goes by bytes: 4.5 a clock and CU from the caches, 0.44 of a stream's bandwidth. Fitted to every
#: second of 88 transposes on MI300X in the order of their bytes (data/profiled_kernels): mean
#: |log error| 22 %, on the others 24 % (31 and 31 % before).
_TRANSPOSES = frozenset({"nchw_to_nhwc", "nhwc_to_nchw"})
_TRANSPOSE_CLOCKS = 330.0
_TRANSPOSE_TILE = 1024
AMD_TRANSPOSE_SHARE = 0.44
_AMD_TRANSPOSE = MemoryKind(issue_bytes=4.5, dram_share=AMD_TRANSPOSE_SHARE)

#: One CTA a row reads the row's digits several times (kthvalue: 2 bits at a time, early out). A
#: prior. Of a top-k `rows.py` counts the passes; where several CTAs take a row each pass is a
#: kernel of its own, which handles so many elements a clock and SM (H100, rows of 30,000 to 128,000
#: in 16 bits, benchmarks/measured/h100: 1.4-1.9).
_SELECTION = MemoryKind(issue_bytes=8.0, extra_reads=4.0, floor_factor=3.0, row_bytes=24.0)
_SELECTIONS = {
    "top_k": MemoryKind(issue_bytes=8.0, floor_factor=2.0),
    "top_k_pass": MemoryKind(issue_bytes=8.0, floor_factor=2.0, elements=1.75),
}

#: Clocks of a round of a sum that one CTA makes: it loads a target and, when that is there, its
#: score. Far apart in DRAM: A100, 16384 targets of 4096 to 16384 classes, 512 rounds in 512 to 575
#: µs (data/fused_ops_baselines, the even half). In the L2, where two loads take some 300 each: a
#: prior.
_SERIAL_CLOCKS = {"strided": 1450.0, "contiguous": 700.0}

#: Softmax rows up to which a warp keeps the row in registers (PersistentSoftmax.cuh), elements.
_PERSISTENT_SOFTMAX = 1024

#: Issue rate of softmax of wider rows, whose instructions are counted a CTA (`rows.py`).
_WIDE_SOFTMAX_ISSUE = 30.0

#: Shortest duration of a norm beside its CTAs' steps (layer norm on H100, rows of 512 to 1024:
#: 3.1-4.0 µs, data/profiled_kernels), and the norms whose steps are counted (`rows.py`).
_COUNTED_FLOOR = 1.1
_COUNTED = frozenset({"layer_norm", "rms_norm", "group_norm", "batch_norm_sums"})

#: Batch norm goes through its input twice, forward and backward (backward is the whole of its two
#: inputs), a CTA a channel; `rows.py` says when it does not. Its statistics alone, and the sums of
#: its gradient, take one pass.
#: Bandwidth of cuDNN's kernels, which take all three: 0.83 to 0.87 of the peak with many channels
#: (a public profile of ResNet-50's training on V100), as a stream; of the others 0.55 with 128
#: (H100). Bytes a clock of the one CTA, both passes: 16 and 32 channels 8.4-9.4 on H100, 6.8 on
#: A100 (data/kernelbench 52 and 73, judged on 72 and level 3's 13); of each of a gradient's two
#: operands 3.3 (16 to 96 channels of MobileNet v2 on H100, benchmarks/measured/h100/workloads;
#: judged on ResNet-50, ResNeXt-50 and DenseNet-121). On AMD half of the first, a prior.
BATCH_NORM_READS = {"batch_norm": 1.0, "batch_norm_gradients": 1.0, "batch_norm_sums": 0.0}
_BATCH_NORM_DRAM_SHARES = {("nvidia", "batch_norm"): 0.97}
_BATCH_NORM_DRAM_SHARE = 0.65
_BATCH_NORM_ROW_BYTES = {False: 8.5, True: 3.3}
_AMD_BATCH_NORM_ROW_BYTES = {False: 8.5, True: 4.25}
#: Elements a clock and SM of cuDNN's kernels of NHWC images (batchnorm_fwtr_nhwc_semiPersist and
#: bwtr) by whether they take gradients, and channels of a tile, up to 128 channels and beyond.
#: MobileNet v2 in FP16 on H100 (benchmarks/measured/h100/workloads); judged on DenseNet-121.
_NHWC_BATCH_NORM_ELEMENTS = {False: 1.6, True: 1.2}
_NHWC_BATCH_NORM_TILES = (32, 64)

#: Bandwidth of a fused reduction whose rows are columns: a tile of 64 columns reads short pieces
#: that lie far apart. data/kernelbench 47 and 51, even half, H100 SXM and PCIe: 0.89-1.04; judged
#: on 48, 49, 52 and 53.
_FUSED_COLUMNS_DRAM_SHARE = 0.93

#: Reads of a norm's input gradient: both operands twice, the second time mostly from L2.
_NORM_BACKWARD_READS = 0.35


#: Elements a clock and SM that kernels reach which go plane by plane, and the share of a stream's
#: bandwidth. H100 (benchmarks/measured/h100, batch_norm_eval and batch_norm, images of 28 pixels
#: and more, the even half): 16 bit 1.6-1.8, float32 0.85-0.87 of the bandwidth.
_BY_PLANE = MemoryKind(issue_bytes=18.0, dram_share=0.87, elements=1.75)

#: Elements a clock and SM of resampling kernels, an output a thread each, by whether images are
#: stored as NHWC (H100, the same folder: 16 outputs each, all within 8 % but the smallest).
_RESAMPLED = {
    ("nearest", True): 0.69,
    ("nearest", False): 1.6,
    ("bilinear", True): 0.47,
    ("bilinear", False): 1.26,
}

#: The same of torch's own batch norms of channels that lie side by side, by whether they take
#: gradients: sums a channel of 16 bits (batch_norm_collect_statistics_channels_last and
#: backward_reduce), and the pass that applies them (transform_input and backward_elemt), of which
#: few channels make too few CTAs. ResNet-50 in bf16 on H100 (benchmarks/measured, batch of 64);
#: judged on H200, there also in inference, and on ResNeXt-50.
_CHANNELS_LAST_SUMS = {False: 1.3, True: 1.75}
_CHANNELS_LAST_PASS = {False: 2.9, True: 2.3}
_FEW_CHANNELS = 64
_FEW_CHANNELS_SHARE = 0.65


def kind_of(kernel: Kernel, vendor: str = "nvidia") -> MemoryKind:
    """The family of a memory-bound kernel, by its class, what it does, its width and layout."""
    kind = _kind_of_contiguous(kernel, vendor)
    if vendor == "amd" and kernel.name in _TRANSPOSES:
        return _AMD_TRANSPOSE
    if vendor == "amd" and kind == _STREAM and DTYPE_BYTES[kernel.dtype] <= 2:
        exponentiates = kernel.name in _EXPONENTIATES
        kind = kind._replace(elements=_AMD_EXPONENTIALS if exponentiates else _AMD_HALVES)
    if vendor == "nvidia" and kernel.name in _ERROR_FUNCTIONS and DTYPE_BYTES[kernel.dtype] <= 2:
        kind = kind._replace(elements=_ERROR_FUNCTIONS[kernel.name])
    if kernel.variant == "cat" and kernel.layout == "channels_last" and vendor == "nvidia":
        return kind._replace(elements=_CAT_NHWC_ELEMENTS)
    # What the kernel does may say more than its class and layout.
    is_named = kernel.name in _BULK or kernel.name == SERIAL_SUM
    is_special = is_named or kernel.scatters or kernel.selects
    if kernel.layout not in ("scalar", "strided") or is_special:
        return kind
    floor_factor = max(kind.floor_factor, _SCALAR_FLOOR)
    if kernel.layout == "strided":
        return kind._replace(elements=_TRANSPOSED_ELEMENTS[vendor], floor_factor=floor_factor)
    elements = _SCALAR_ELEMENTS[vendor]
    if vendor == "nvidia" and kernel.variant == "mixed_types":
        elements = _MIXED_ELEMENTS
    elif vendor == "nvidia" and kernel.dtype == kernel.out_dtype == "float32":
        elements = _SCALAR_FLOAT32_ELEMENTS
    if kernel.kernel_class is KernelClass.GATHER:
        elements = _GATHER_ELEMENTS
    elif kernel.variant == "cat":
        elements = _CAT_ELEMENTS
    return kind._replace(elements=elements, floor_factor=floor_factor)


def _kind_of_contiguous(kernel: Kernel, vendor: str) -> MemoryKind:
    if kernel.variant == "by_channel" and vendor == "nvidia":
        return _STREAM._replace(elements=_channels_last_pass(kernel))
    if kernel.variant == "by_plane" and vendor == "nvidia":
        return _BY_PLANE
    is_channels_last = kernel.layout == "channels_last"
    if kernel.variant in ("nearest", "bilinear"):
        return _STREAM._replace(elements=_RESAMPLED[kernel.variant, is_channels_last])
    if kernel.name in _BULK:
        return _STREAM._replace(issue_bytes=_BULK[kernel.name])
    if kernel.name in _TRANSPOSES:
        tile_bytes = _TRANSPOSE_TILE * DTYPE_BYTES[kernel.dtype]
        return _STREAM._replace(row_bytes=tile_bytes / _TRANSPOSE_CLOCKS)
    if kernel.name == SERIAL_SUM:
        clocks = _SERIAL_CLOCKS[kernel.layout]
        return _STREAM._replace(row_bytes=DTYPE_BYTES[kernel.dtype] / clocks, floor_factor=1.5)
    if kernel.scatters:
        is_half = kernel.flops > 0 and DTYPE_BYTES[kernel.dtype] <= 2
        return _SCATTER._replace(elements=_ADDED_HALVES) if is_half else _SCATTER
    if kernel.selects:
        return _SELECTIONS.get(kernel.variant, _SELECTION)
    if kernel.variant == "whole_rows":
        return _GATHER_OF_ROWS
    if vendor == "nvidia" and kernel.variant in _ELEMENTS:
        kind = _KINDS.get(kernel.kernel_class, _STREAM)
        return kind._replace(elements=_ELEMENTS[kernel.variant])
    kind = _KINDS.get(kernel.kernel_class, _KINDS[KernelClass.UNKNOWN])
    if kernel.name in _SORT_FLOORS:
        return kind._replace(floor_factor=_SORT_FLOORS[kernel.name])
    is_of_columns = kernel.variant == "fused" and kernel.along_columns
    if is_of_columns and kernel.kernel_class is KernelClass.REDUCTION:
        return kind._replace(dram_share=_FUSED_COLUMNS_DRAM_SHARE)
    if is_wide_softmax(kernel):
        return kind._replace(issue_bytes=_WIDE_SOFTMAX_ISSUE)
    if kernel.kernel_class is KernelClass.NORMALIZATION:
        return _kind_of_norm(kernel, kind, vendor)
    return kind


def is_wide_softmax(kernel: Kernel) -> bool:
    """Whether a row of a softmax is shared by the threads of a whole CTA."""
    is_softmax = kernel.kernel_class is KernelClass.SOFTMAX
    return is_softmax and size_of(kernel, RowsSize).width > _PERSISTENT_SOFTMAX


def _kind_of_norm(kernel: Kernel, kind: MemoryKind, vendor: str) -> MemoryKind:
    if kernel.variant in _COUNTED and not (kernel.is_backward or kernel.along_columns):
        kind = kind._replace(floor_factor=_COUNTED_FLOOR)
    if kernel.along_columns:
        kind = kind._replace(extra_reads=0.0, row_bytes=0.0)
    elif kernel.is_backward:
        kind = kind._replace(extra_reads=_NORM_BACKWARD_READS)
    elif kernel.variant == "group_norm":  # moments, in one pass
        kind = kind._replace(extra_reads=0.0)
    is_half = DTYPE_BYTES[kernel.dtype] <= 2
    is_in_columns = kernel.along_columns and vendor == "nvidia"
    if kernel.variant == "batch_norm_sums" and is_in_columns and is_half:
        return kind._replace(elements=_CHANNELS_LAST_SUMS[kernel.is_backward])
    if kernel.variant == "batch_norm" and is_in_columns:
        kind = kind._replace(elements=_nhwc_batch_norm_elements(kernel))
    if kernel.variant in BATCH_NORM_READS:
        again = BATCH_NORM_READS[kernel.variant]
        row_bytes = _AMD_BATCH_NORM_ROW_BYTES if vendor == "amd" else _BATCH_NORM_ROW_BYTES
        share = _BATCH_NORM_DRAM_SHARES.get((vendor, kernel.variant), _BATCH_NORM_DRAM_SHARE)
        return kind._replace(
            extra_reads=again,
            dram_share=share,
            row_bytes=0.0 if kernel.along_columns else row_bytes[kernel.is_backward],
        )
    return kind


def _channels_last_pass(kernel: Kernel) -> float:
    """How many elements an SM handles a clock that applies a batch norm row by row of channels."""
    is_backward = kernel.name.endswith("backward")
    share = _FEW_CHANNELS_SHARE if size_of(kernel, RowsSize).rows <= _FEW_CHANNELS else 1.0
    return _CHANNELS_LAST_PASS[is_backward] * share


def _nhwc_batch_norm_elements(kernel: Kernel) -> float:
    """How many an SM handles a clock, of whole tiles of channels."""
    channels = size_of(kernel, RowsSize).rows
    tile = _NHWC_BATCH_NORM_TILES[channels > 128]
    return _NHWC_BATCH_NORM_ELEMENTS[kernel.is_backward] * channels / (-(-channels // tile) * tile)
