"""Ops on sparse tensors, by the tensors that they are made of: cuSPARSE's products and torch's own
kernels around them. They are recorded as the overload "sparse" of their ops."""

from __future__ import annotations

from neusight.ops.operands import (
    ceil_div,
    copy_kernel,
    fill_kernel,
    itemsize,
    memcpy_d2h,
    memory_kernel,
    output,
    pointwise_kernel,
    vector,
)
from neusight.ops.registry import register_op
from neusight.ops.rows.sort import radix_sort, select_flagged
from neusight.predictors.kernel import Kernel, KernelClass
from neusight.recording.recording import Argument, OpSignature, TensorSpec


def _gathering(
    name: str,
    result: TensorSpec,
    *,
    num_nonzeros: int,
    width: int,
    reads: tuple[TensorSpec | None, ...],
    again: TensorSpec | None = None,
    flops: int = 0,
) -> list[Kernel]:
    """A kernel that fetches a row for each non-zero: `reads` once, and rows of `again` as often as
    they are read. Not measured: its interval is as wide as that of other gathers."""
    if not num_nonzeros or not width:
        return fill_kernel(result) if result.numel else []
    once = sum(spec.num_bytes for spec in reads if spec is not None)
    fetched = num_nonzeros * width * itemsize(again.dtype) if again is not None else 0
    repeated = max(0, fetched - (again.num_bytes if again is not None else 0))
    first = min(fetched, again.num_bytes) if again is not None else 0
    return [
        Kernel.rows(
            KernelClass.GATHER,
            name,
            num_nonzeros,
            width,
            dtype=result.dtype,
            bytes_read=once + first,
            bytes_written=result.num_bytes,
            bytes_read_again=repeated,
            flops=flops,
        )
    ]


@register_op("aten::mm.sparse", "aten::addmm.sparse", "aten::mv.sparse")
def spmm(
    call: OpSignature,
    *,
    pointers: TensorSpec,
    plain: TensorSpec,
    values: TensorSpec,
    dense: TensorSpec,
    added: TensorSpec | None = None,
    by_column: bool = False,
) -> list[Kernel]:
    """cuSPARSE's SpMM (SpMV for a vector): a row of the dense matrix for each non-zero, and one of
    the result for each row. A matrix by columns is multiplied transposed, with atomic additions."""
    result = output(call)
    name = "spmv" if dense.shape[-1] == 1 else "spmm"
    before = copy_kernel(added, result) if added is not None else []
    if by_column:
        before = before or fill_kernel(result)
    size, width = values.numel, dense.shape[-1]
    reads = (pointers, plain, values, added)
    return before + _gathering(
        name, result, num_nonzeros=size, width=width, reads=reads, again=dense,
        flops=2 * size * width,
    )  # fmt: skip


@register_op("aten::bmm.sparse")
def sparse_bmm(
    call: OpSignature, *, plain: TensorSpec, values: TensorSpec, dense: TensorSpec, rows: int
) -> list[Kernel]:
    """An SpMM each, after the ends of the matrices were sought and read (bmm_out_sparse_cuda)."""
    batch = dense.shape[0]
    result = output(call)
    one = result._replace(shape=result.shape[1:], stride=result.stride[1:])
    matrix = dense._replace(shape=dense.shape[1:], stride=dense.stride[1:])
    share = ceil_div(values.shape[0], max(1, batch))
    search = memory_kernel(
        KernelClass.GATHER, "search_end_matrix_indices", reads=(plain,), width=batch
    )
    width, reads = dense.shape[2], (vector(2 * share, "int64"), vector(share, values.dtype))
    product = _gathering(
        "spmm", one, num_nonzeros=share, width=width, reads=reads, again=matrix,
        flops=2 * share * width,
    )  # fmt: skip
    return [search, memcpy_d2h(vector(batch, "int64"))] + product * batch


@register_op("aten::_sparse_sparse_matmul.sparse")
def spgemm(
    call: OpSignature,
    *,
    plain: TensorSpec,
    values: TensorSpec,
    other_plain: TensorSpec,
    other_values: TensorSpec,
    num_products: int,
) -> list[Kernel]:
    """cuSPARSE's SpGEMM: an estimate of the work, the pattern, and the numbers. Each goes through
    the rows of the second matrix that the non-zeros of the first ask for."""
    inputs = (plain, values, other_plain, other_values)
    numbers = output(call, 2)
    read = sum(spec.num_bytes for spec in inputs)
    pair = itemsize(values.dtype) + itemsize(plain.dtype)
    again = max(0, num_products * pair - read)
    kernels = [
        memory_kernel(KernelClass.GATHER, "spgemm_estimate", reads=(plain,), width=plain.numel)
    ]
    for name, result in (("spgemm_pattern", output(call, 1)), ("spgemm_numbers", numbers)):
        kernels.append(
            Kernel.rows(
                KernelClass.GATHER,
                name,
                max(1, num_products),
                1,
                dtype=values.dtype,
                bytes_read=read,
                bytes_written=result.num_bytes,
                bytes_read_again=again,
                flops=2 * num_products,
            )
        )
    return [*kernels[:2], memcpy_d2h(vector(1, "int64")), kernels[2]]


@register_op("aten::sparse_sampled_addmm.sparse")
def sddmm(
    call: OpSignature,
    *,
    plain: TensorSpec,
    pointers: TensorSpec,
    mat1: TensorSpec,
    mat2: TensorSpec,
    added: TensorSpec,
) -> list[Kernel]:
    """cuSPARSE's SDDMM: a row and a column for each non-zero."""
    result, inner = output(call), mat1.shape[-1]
    return copy_kernel(added, result) + _gathering(
        "sddmm",
        result,
        num_nonzeros=result.numel,
        width=inner,
        reads=(plain, pointers, mat1, added),
        again=mat2,
        flops=2 * result.numel * inner,
    )


@register_op("aten::_coalesce.sparse")
def coalesce(call: OpSignature, *, indices: TensorSpec, values: TensorSpec) -> list[Kernel]:
    """One number a coordinate, sorted, each kept once, values added up, and numbers taken apart
    again (_coalesce_sparse_cuda in SparseCUDATensor.cu)."""
    number = vector(indices.shape[1], "int64")
    merged, summed = output(call), output(call, 1)
    flat = [
        *pointwise_kernel("mul", (indices,), (indices,)),
        memory_kernel(KernelClass.REDUCTION, "sum", reads=(indices,), writes=(number,)),
    ]
    kept = vector(merged.shape[1], "int64")
    unique = memory_kernel(
        KernelClass.SORT, "unique_by_key", reads=(number, number), writes=(kept, kept),
        width=number.numel,
    )  # fmt: skip
    sums = memory_kernel(
        KernelClass.GATHER, "coalesce_values", reads=(number, kept, values), writes=(summed,),
        rows=max(1, summed.shape[0]), width=max(1, values.numel // max(1, summed.shape[0])),
    )  # fmt: skip
    apart = pointwise_kernel("remainder", (kept,), (kept,)) * max(0, merged.shape[0] - 1)
    return [
        *flat,
        *pointwise_kernel("arange", (), (number,)),
        *radix_sort(number.numel, key="int64", value="int64"),
        unique,
        memcpy_d2h(vector(1, "int64")),
        sums,
        *apart,
    ]


@register_op("aten::_convert_indices_from_coo_to_csr.sparse")
def coo_to_csr(call: OpSignature, *, rows: TensorSpec) -> list[Kernel]:
    """Where each row begins (convert_indices_from_coo_to_csr_cuda)."""
    return pointwise_kernel("convert_indices_from_coo_to_csr", (rows,), (output(call),))


@register_op("aten::_convert_indices_from_csr_to_coo.sparse")
def csr_to_coo(call: OpSignature, *, pointers: TensorSpec, plain: TensorSpec) -> list[Kernel]:
    """The row of each non-zero, beside its column."""
    half = vector(plain.numel, "int64")
    return copy_kernel(plain, half) + pointwise_kernel(
        "convert_indices_from_csr_to_coo", (pointers,), (half,)
    )


def _scattered(
    name: str, indices: tuple[TensorSpec | None, ...], values: TensorSpec
) -> list[Kernel]:
    """Values that are added where they stand: what was there is read too."""
    if not values.numel:
        return []
    read = sum(spec.num_bytes for spec in indices if spec is not None)
    rows = max(1, values.shape[0])
    return [
        Kernel.rows(
            KernelClass.GATHER,
            name,
            rows,
            max(1, values.numel // rows),
            dtype=values.dtype,
            bytes_read=read + 2 * values.num_bytes,
            bytes_written=values.num_bytes,
            flops=values.numel,
            layout="scalar",
            scatters=True,
        )
    ]


@register_op("aten::_to_dense.sparse")
def to_dense(
    call: OpSignature, *, plain: TensorSpec, values: TensorSpec, pointers: TensorSpec | None = None
) -> list[Kernel]:
    """Values added into zeros, which were filled before."""
    return _scattered("sparse_to_dense", (plain, pointers), values)


@register_op("aten::add_.sparse")
def add_to_dense(
    call: OpSignature, *, self: TensorSpec, indices: TensorSpec, values: TensorSpec
) -> list[Kernel]:
    """Values added to a dense tensor where they stand (add_out_dense_sparse_cuda): those of rows
    of an embedding's gradient, say."""
    return _scattered("sparse_add_to_dense", (indices,), values)


@register_op("aten::_to_sparse.sparse")
def from_dense(call: OpSignature, *, self: TensorSpec) -> list[Kernel]:
    """Where a tensor is not zero, and what it has there (dense_to_sparse: nonzero and a gather)."""
    values = [spec for spec in call.output_tensors if spec.device != "cpu"][-1]
    flags = self._replace(dtype="bool")
    kernels = pointwise_kernel("ne", (self,), (flags,)) + select_flagged(flags, values.shape[0])
    return kernels + _gathering(
        "index",
        values,
        num_nonzeros=values.shape[0],
        width=max(1, values.numel // max(1, values.shape[0])),
        reads=(vector(values.shape[0], "int64"), values),
    )


@register_op("aten::sparse_mask.sparse")
def sparse_mask(call: OpSignature, *, self: TensorSpec, indices: TensorSpec) -> list[Kernel]:
    """What a dense tensor has at coordinates: one number a coordinate, and a gather."""
    values = output(call)
    rows = max(1, values.shape[0] if values.shape else 1)
    return _gathering(
        "index_select",
        values,
        num_nonzeros=rows if values.numel else 0,
        width=max(1, values.numel // rows),
        reads=(indices, values),
    )


@register_op("aten::_sparse_mask_projection.sparse")
def mask_projection(
    call: OpSignature, *, indices: TensorSpec, values: TensorSpec, mask: TensorSpec
) -> list[Kernel]:
    """Coordinates sought among those of another tensor (a binary search), and gathered."""
    result = output(call)
    return _gathering(
        "sparse_mask",
        result,
        num_nonzeros=mask.shape[1],
        width=max(1, result.numel // max(1, mask.shape[1])),
        reads=(indices, mask, values),
    )


@register_op("aten::mul.sparse", "aten::add.sparse")
def two_patterns(call: OpSignature, **others: Argument) -> list[Kernel]:
    """Two patterns laid upon each other: one goes through both, counts, and goes through again."""
    inputs = [spec for spec in call.input_tensors if spec.device != "cpu"]
    outputs = [spec for spec in call.output_tensors if spec.device != "cpu"]
    width = max(1, sum(spec.shape[-1] for spec in inputs if spec.shape))
    name = call.op.removeprefix("aten::")
    count = memory_kernel(
        KernelClass.GATHER, f"sparse_{name}_count", reads=inputs[::2], width=width
    )
    merge = memory_kernel(
        KernelClass.GATHER, f"sparse_{name}", reads=inputs, writes=outputs, width=width,
        dtype=outputs[-1].dtype,
    )  # fmt: skip
    return [count, memcpy_d2h(vector(1, "int64")), merge]


@register_op(
    "aten::_sparse_softmax.sparse",
    "aten::_sparse_log_softmax.sparse",
    "aten::_sparse_softmax_backward_data.sparse",
    "aten::_sparse_log_softmax_backward_data.sparse",
)
def sparse_softmax(
    call: OpSignature, *, indices: TensorSpec, values: TensorSpec, grad: TensorSpec | None = None
) -> list[Kernel]:
    """Non-zeros sorted by their pool (a row of the matrix), and a kernel over the pools, which goes
    through the values thrice (cuda/SoftMax.cu under sparse)."""
    number = vector(values.shape[0], "int64")
    name = call.op.removeprefix("aten::_")
    pools = memory_kernel(
        KernelClass.GATHER,
        name,
        reads=(values, values, values, grad, number),
        writes=(output(call),),
        rows=max(1, values.shape[0]),
        width=max(1, values.numel // max(1, values.shape[0])),
    )
    return [
        *pointwise_kernel("mul", (indices,), (number,)),
        *radix_sort(number.numel, key="int64", value="int64"),
        pools,
    ]
