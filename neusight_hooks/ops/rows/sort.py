"""Sorting: radix sorts by passes, segmented sorts, top-k and what is built on them."""

from __future__ import annotations

from neusight.ops.operands import (
    ceil_div,
    copy_kernel,
    fill_kernel,
    itemsize,
    kernel_name,
    memcpy_d2h,
    memory_kernel,
    output,
    pointwise_kernel,
    vector,
    wrap_dim,
    written_tensors,
)
from neusight.ops.registry import register_op
from neusight.ops.rows.reduction import reduce_kernel
from neusight.predictors.kernel import Kernel, KernelClass, Variant
from neusight.recording.recording import OpSignature, TensorSpec

#: Bits that one pass of CUB's onesweep radix sort orders (cub/device/dispatch/tuning, 8 on sm_70+).
_BITS_A_PASS = 8

#: Counters of one digit, a value each.
_COUNTERS = 2**_BITS_A_PASS

#: Bytes of keys that CUB sorts in one thread block (single-tile policy: 256 threads, 19 keys of 4
#: bytes each or 9 of 8). H100: 2,048 of 8 bytes by one, 4,096 by passes.
_SINGLE_TILE_BYTES = 256 * 19 * 4

#: The longest rows that torch sorts in one thread block (sortKeyValueInplace, Sort.cu).
_SMALL_SORT = 4096

#: Rows from this length on are sorted one after the other (sort_stable_kernel, SortStable.cu).
_LARGE_SEGMENT = 1_000_000

#: Fewer segments than this use CUB's segmented sort, more a full sort of (segment, key).
_FEW_SEGMENTS = 128


def radix_sort(
    num_keys: int, *, key: str, value: str | None = None, bits: int | None = None
) -> list[Kernel]:
    """CUB's radix sort of keys (and values): histogram, scan, then a pass for each 8 bits."""
    if num_keys == 0:
        return []
    keys = vector(num_keys, key)
    pairs = (keys, vector(num_keys, value)) if value else (keys,)
    if num_keys * itemsize(key) <= _SINGLE_TILE_BYTES:
        return [_sort_in_place("radix_sort_single_tile", pairs, 1, num_keys)]
    width = min(bits, 8 * itemsize(key)) if bits else 8 * itemsize(key)
    passes = max(1, ceil_div(width, _BITS_A_PASS))
    counts = vector(_COUNTERS * passes, "int64")
    histogram = memory_kernel(
        KernelClass.SORT, "radix_sort_histogram", reads=(keys,), writes=(counts,), width=num_keys
    )
    scan = _sort_in_place("radix_sort_scan", (counts,), 1, counts.numel)
    return [histogram, scan] + [_sort_in_place("radix_sort_pass", pairs, 1, num_keys)] * passes


def _sort_in_place(
    name: str,
    tensors: tuple[TensorSpec, ...],
    rows: int,
    width: int,
    *,
    variant: Variant = "",
) -> Kernel:
    """A step of a sort that reads and writes the same tensors, or a copy of them."""
    return memory_kernel(
        KernelClass.SORT, name, reads=tensors, writes=tensors, rows=rows, width=width,
        variant=variant,
    )  # fmt: skip


def _sort_short_rows(tensors: tuple[TensorSpec, ...], rows: int, width: int) -> Kernel:
    """Rows that a warp or a CTA sorts each (sortKeyValueInplace)."""
    return _sort_in_place("sort_rows", tensors, rows, width, variant="sorted_rows")


def select_flagged(flags: TensorSpec, num_selected: int) -> list[Kernel]:
    """Count, the count read by the host, then the positions: the steps of nonzero (Nonzero.cu)."""
    count = vector(1, "int32", flags.device)
    positions = vector(num_selected, "int64", flags.device)
    return [
        memory_kernel(
            KernelClass.REDUCTION, "count_nonzero", reads=(flags,), writes=(count,), rows=1
        ),
        memcpy_d2h(count),
        memory_kernel(KernelClass.REDUCTION, "scan_init", width=1),
        memory_kernel(
            KernelClass.REDUCTION,
            "select_flagged",
            reads=(flags,),
            writes=(positions,),
            width=flags.numel,
        ),
    ]


def deterministic_order(num_keys: int, num_targets: int | None, device: str) -> list[Kernel]:
    """Indices sorted together with where they came from: the first half of every sorted scatter.
    None: by all their bits, however many targets there are."""
    indices = vector(num_keys, "int64", device)
    bits = None if num_targets is None else max(1, num_targets.bit_length())
    return pointwise_kernel("arange", (), (indices,)) + radix_sort(
        num_keys, key="int64", value="int64", bits=bits
    )


def _rows_and_width(source: TensorSpec, dim: int) -> tuple[int, int]:
    if not source.shape:
        return 1, 1
    width = source.shape[wrap_dim(dim, len(source.shape))]
    return source.numel // max(1, width), width


def _sort_rows(source: TensorSpec, rows: int, width: int) -> list[Kernel]:
    """Values with their positions, a row at a time (sort_stable_kernel)."""
    if rows * width == 0:
        return []
    values = vector(rows * width, source.dtype, source.device)
    positions = vector(rows * width, "int64")
    pairs = (values, positions)
    numbered = pointwise_kernel("arange", (), (positions,))
    if width <= _SMALL_SORT:
        copies = copy_kernel(source, values)
        return copies + numbered + [_sort_short_rows(pairs, rows, width)]
    if rows == 1 or width >= _LARGE_SEGMENT:
        return numbered + radix_sort(width, key=source.dtype, value="int64") * rows
    if rows < _FEW_SEGMENTS:
        passes = ceil_div(8 * itemsize(source.dtype), _BITS_A_PASS)
        return numbered + [_sort_in_place("segmented_sort", pairs, rows, width)] * passes
    by_key = radix_sort(rows * width, key=source.dtype, value="int64")
    by_segment = radix_sort(rows * width, key="int32", value="int64", bits=rows.bit_length())
    return numbered + by_key + by_segment + pointwise_kernel("sort_gather", pairs, pairs)


@register_op("aten::sort", "aten::argsort", "aten::msort")
def sort_values(call: OpSignature, *, self: TensorSpec, dim: int = -1) -> list[Kernel]:
    """A sort of values with their indices."""
    return _sort_rows(self, *_rows_and_width(self, dim))


@register_op("aten::kthvalue", "aten::median", "aten::nanmedian")
def kthvalue(call: OpSignature, *, self: TensorSpec, dim: int | None = None) -> list[Kernel]:
    """Radix selection in one block a row (gatherKthValue, gatherMedian); without a dimension, the
    median of all."""
    rows, width = (1, self.numel) if dim is None else _rows_and_width(self, dim)
    return _select(kernel_name(call), self, written_tensors(call), rows, width)


def _select(
    name: str,
    source: TensorSpec,
    writes: tuple[TensorSpec, ...],
    rows: int,
    width: int,
    *,
    variant: Variant = "",
) -> list[Kernel]:
    """One kernel that reads each row once a digit of its keys (RADIX_BITS = 2, but early out)."""
    if rows * width == 0:
        return []
    return [
        memory_kernel(
            KernelClass.SORT,
            name,
            reads=(source,),
            writes=writes,
            rows=rows,
            width=width,
            variant=variant,
            selects=True,
        )
    ]


@register_op("aten::mode")
def mode(call: OpSignature, *, self: TensorSpec, dim: int = -1) -> list[Kernel]:
    """A sort of each row, then the longest run."""
    rows, width = _rows_and_width(self, dim)
    return _sort_rows(self, rows, width) + reduce_kernel("mode", (self,), written_tensors(call))


#: Most slices for which torch's top-k of this slice length takes several blocks a slice
#: (should_use_multiblock, TensorTopK.cu): (slices at most, length at least).
_MULTI_BLOCK = ((20, 20000), (40, 10000), (80, 8000), (199, 5000), (799, 3000), (4000, 800))

#: Slice length from which the multi-block top-k is taken for any number of slices.
_MULTI_BLOCK_LENGTH = 400

#: Up to this many slices of at least this length top-k is a full sort (should_use_sort).
_SORT_SLICES, _SORT_LENGTH = 10, 100_000


def _is_multi_block(slices: int, length: int) -> bool:
    for most_slices, least_length in _MULTI_BLOCK:
        if slices <= most_slices:
            return length >= least_length
    return length >= _MULTI_BLOCK_LENGTH


@register_op("aten::topk")
def topk(
    call: OpSignature, *, self: TensorSpec, dim: int = -1, sorted: bool = True
) -> list[Kernel]:
    """Radix selection by one or several blocks a slice, then a sort of the k values."""
    writes = written_tensors(call)
    rows, width = _rows_and_width(self, dim)
    return _topk(self, writes, rows, width, is_sorted=sorted)


def _topk(
    source: TensorSpec,
    writes: tuple[TensorSpec, ...],
    rows: int,
    width: int,
    *,
    is_sorted: bool,
) -> list[Kernel]:
    if rows * width == 0 or not writes or not writes[0].numel:
        return []
    if source.dtype != "bool" and rows <= _SORT_SLICES and width >= _SORT_LENGTH:
        parts = [k for part in writes for k in copy_kernel(part, part)]
        return _sort_rows(source, rows, width) + parts
    if _is_multi_block(rows, width):
        kernels = _digit_counts(source, rows, width)
        kernels += _select("topk", source, writes, rows, width, variant="top_k_pass")
    else:
        kernels = _select("topk", source, writes, rows, width, variant="top_k")
    if is_sorted and writes[0].numel > rows:
        kernels.append(_sort_short_rows(writes, rows, writes[0].numel // rows))
    return kernels


def _digit_counts(source: TensorSpec, rows: int, width: int) -> list[Kernel]:
    """The multi-block search of the k-th value: its digits one after the other, by counting."""
    counts = vector(_COUNTERS * rows, "int32", source.device)
    a_digit = _select("topk_digit", source, (counts,), rows, width, variant="top_k_pass")
    a_digit += _select(
        "topk_digit_counts", counts, (counts,), rows, _COUNTERS, variant="top_k_pass"
    )
    scan = memory_kernel(KernelClass.REDUCTION, "topk_scan", reads=(counts,), writes=(counts,))
    return [
        *fill_kernel(counts),
        *a_digit * itemsize(source.dtype),
        scan,
    ]


@register_op("aten::_unique2", "aten::_unique")
def unique(
    call: OpSignature,
    *,
    self: TensorSpec,
    return_inverse: bool = False,
    return_counts: bool = False,
) -> list[Kernel]:
    """A full sort, the borders of runs, a scan, the compaction; its size is read by the host."""
    keys = vector(self.numel, self.dtype, self.device)
    positions = "int64" if return_inverse or return_counts else None
    kernels = radix_sort(self.numel, key=self.dtype, value=positions)
    return kernels + _compact_runs(call, keys, return_inverse)


@register_op("aten::unique_consecutive")
def unique_consecutive(
    call: OpSignature, *, self: TensorSpec, return_inverse: bool = False
) -> list[Kernel]:
    """As unique, without the sort."""
    return _compact_runs(call, self, return_inverse)


@register_op("aten::unique_dim", "aten::unique_dim_consecutive")
def unique_dim(
    call: OpSignature, *, self: TensorSpec, dim: int = 0, return_inverse: bool = False
) -> list[Kernel]:
    """Positions sorted by comparing slices (Thrust merge sort), then the runs."""
    dim = wrap_dim(dim, len(self.shape))
    slices = self.shape[dim] if self.shape else 1
    positions = vector(slices, "int64", self.device)
    merges = max(1, (max(1, slices) - 1).bit_length())
    step = memory_kernel(
        KernelClass.SORT, "merge_sort_pass", reads=(self, positions), writes=(positions,)
    )
    kernels = pointwise_kernel("arange", (), (positions,)) + [step] * merges
    return kernels + _compact_runs(call, positions, return_inverse)


def _compact_runs(call: OpSignature, keys: TensorSpec, wants_inverse: bool) -> list[Kernel]:
    if not keys.numel:
        return []
    kernels: list[Kernel] = []
    if wants_inverse:
        borders = vector(keys.numel, "int64", keys.device)
        kernels += pointwise_kernel("run_borders", (keys,), (borders,))
        kernels.append(
            memory_kernel(KernelClass.REDUCTION, "cumsum", reads=(borders,), writes=(borders,))
        )
        kernels += pointwise_kernel("scatter", (borders, borders), (borders,), scatters=True)
    kernels.append(memory_kernel(KernelClass.REDUCTION, "scan_init", width=1))
    kernels.append(
        memory_kernel(
            KernelClass.REDUCTION,
            "unique",
            reads=(keys,),
            writes=written_tensors(call)[:1],
            width=keys.numel,
        )
    )
    return [*kernels, memcpy_d2h(vector(1, "int64", keys.device))]


@register_op("aten::randperm")
def randperm(call: OpSignature) -> list[Kernel]:
    """Random keys, a sort of the numbers by them, and the shuffle of equal keys (Randperm.cu)."""
    target = output(call)
    keys = vector(target.numel, "int64", target.device)
    if not target.numel:
        return []
    bits = min(64, 3 * target.numel.bit_length() + 2)
    return [
        *pointwise_kernel("random", (), (keys,)),
        *pointwise_kernel("arange", (), (target,)),
        *radix_sort(target.numel, key="int64", value=target.dtype, bits=bits),
        *pointwise_kernel("randperm_duplicates", (keys,), (target,)),
    ]


@register_op("aten::multinomial")
def multinomial(
    call: OpSignature, *, self: TensorSpec, num_samples: int = 1, replacement: bool = False
) -> list[Kernel]:
    """Without replacement, or one draw: top-k of p / Exp(1), after checks that the host reads.

    With replacement and several draws: normalized, scanned and searched.
    """
    result = output(call)
    if not self.numel:
        return []
    if replacement and num_samples > 1:
        return _searched_draws(self, result)
    kernels = [
        *_probability_checks(self),
        *pointwise_kernel("exponential", (), (self,)),
        *pointwise_kernel("div", (self, self), (self,)),
    ]
    if num_samples == 1:
        return kernels + reduce_kernel("argmax", (self,), (result,))
    rows, width = _rows_and_width(self, -1)
    values = result._replace(dtype=self.dtype)
    return kernels + _topk(self, (values, result), rows, width, is_sorted=True)


def _searched_draws(weights: TensorSpec, result: TensorSpec) -> list[Kernel]:
    """Uniform numbers, searched in the cumulated probabilities of each row."""
    rows, width = _rows_and_width(weights, -1)
    sums = vector(rows, weights.dtype, weights.device)
    cumulated = memory_kernel(
        KernelClass.REDUCTION,
        "cumsum",
        reads=(weights,),
        writes=(weights,),
        rows=rows,
        width=width,
    )
    return [
        *reduce_kernel("sum", (weights,), (sums,)),
        *pointwise_kernel("div", (weights, sums), (weights,)),
        cumulated,
        *pointwise_kernel("uniform", (), (result,)),
        *pointwise_kernel("multinomial", (weights, result), (result,)),
    ]


def _probability_checks(weights: TensorSpec) -> list[Kernel]:
    """Whether all are finite and none is negative, then whether a row is zero: the host reads
    both answers."""
    rows, _ = _rows_and_width(weights, -1)
    flag = vector(1, "bool", weights.device)
    sums = vector(rows, weights.dtype, weights.device)
    zeros = vector(rows, "bool")
    return [
        *reduce_kernel("max", (weights,), (vector(1, weights.dtype),)),
        *pointwise_kernel("lt", (flag,), (flag,)),
        *reduce_kernel("min", (weights,), (vector(1, weights.dtype),)),
        *pointwise_kernel("ge", (flag,), (flag,)),
        *pointwise_kernel("bitwise_and", (flag, flag), (flag,)),
        memcpy_d2h(flag),
        *reduce_kernel("sum", (weights,), (sums,)),
        *pointwise_kernel("eq", (sums,), (zeros,)),
        *(reduce_kernel("sum", (zeros,), (flag,)) if len(weights.shape) > 1 else []),
        memcpy_d2h(flag),
    ]
