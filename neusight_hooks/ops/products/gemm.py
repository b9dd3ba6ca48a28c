"""Matrix products: cuBLAS GEMMs with their layouts, bias epilogues and the copies around them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod
from typing import NamedTuple

from neusight.ops.operands import (
    ceil_div,
    contiguous,
    copy_kernel,
    fill_kernel,
    is_in_place,
    itemsize,
    memory_kernel,
    num_bytes,
    output,
    pointwise_kernel,
    read_tensors,
    sum_kernel,
    wrap_dim,
    written_tensors,
)
from neusight.ops.registry import register_op
from neusight.predictors.kernel import (
    OUTER_SCALED,
    TENSOR_SCALED,
    Kernel,
    KernelClass,
    Layout,
    Variant,
    compute_of,
)
from neusight.recording.recording import Argument, MathMode, OpSignature, TensorSpec

#: Elements in one torch.float4_e2m1fn_x2 (two 4-bit values to the byte).
_FP4_PER_BYTE = 2


def compute_for_matmul(dtype: str, math: MathMode) -> str:
    """The arithmetic of a cuBLAS product: TF32 for float32 where the program allows it."""
    if dtype in ("float32", "complex64") and math.matmul_tf32:
        return "tf32"
    return "fp8" if dtype.startswith("float4") else compute_of(dtype)


def _is_row_major(spec: TensorSpec) -> bool:
    """Rows of the last two dimensions are contiguous, at any leading dimension."""
    rows, columns = spec.shape[-2:]
    return (columns == 1 or spec.stride[-1] == 1) and (
        rows == 1 or spec.stride[-2] >= max(1, columns)
    )


def _is_column_major(spec: TensorSpec) -> bool:
    rows, columns = spec.shape[-2:]
    return (rows == 1 or spec.stride[-2] == 1) and (columns == 1 or spec.stride[-1] >= max(1, rows))


def _orientation(spec: TensorSpec) -> str:
    """ "n" stored as written, "t" stored transposed, "" neither (cuBLAS needs a copy).

    A matrix with one row or column is both; its strides decide, as in prepare_matrix_for_cublas.
    """
    row, column = _is_row_major(spec), _is_column_major(spec)
    if row and column:
        return "t" if spec.stride[-2] == 1 and spec.stride[-1] != 1 else "n"
    return "n" if row else "t" if column else ""


def _layout(left: TensorSpec, right: TensorSpec) -> Layout:
    """How the operands are stored; one that is copied first is stored as written."""
    layouts: dict[str, Layout] = {"nn": "nn", "nt": "nt", "tn": "tn", "tt": "tt"}
    return layouts[(_orientation(left) or "n") + (_orientation(right) or "n")]


def unfit_operands(operands: Sequence[TensorSpec]) -> list[TensorSpec]:
    """The operands that cuBLAS cannot read as matrices, which are copied first."""
    return [spec for spec in operands if not _orientation(spec)]


def matmul_kernels(
    left: TensorSpec,
    right: TensorSpec,
    result: TensorSpec,
    math: MathMode,
    *,
    bias: bool = False,
    accumulate: bool = False,
    name: str = "gemm",
) -> list[Kernel]:
    """left[..., m, k] @ right[..., k, n], with the copies of operands that are not matrices.

    `bias` adds a vector in the epilogue; `accumulate` also reads the result (beta != 0).
    """
    (m, k), n = left.shape[-2:], right.shape[-1]
    batch = prod(left.shape[:-2])
    if batch * m * n == 0:
        return []
    if k == 0:
        return fill_kernel(result)
    copies = [
        kernel
        for spec in unfit_operands((left, right))
        for kernel in copy_kernel(spec, contiguous(spec))
    ]
    gemm = _gemm(left, right, result, math, bias=bias, name=name)
    if accumulate:
        gemm = replace(gemm, bytes_read=gemm.bytes_read + gemm.bytes_written)
    return [*copies, gemm]


def _gemm(
    left: TensorSpec,
    right: TensorSpec,
    result: TensorSpec,
    math: MathMode,
    *,
    bias: bool,
    name: str,
) -> Kernel:
    """cuBLAS's kernel for two operands that it can read."""
    gemm = Kernel.gemm(
        left.shape[-2],
        right.shape[-1],
        left.shape[-1],
        batch=prod(left.shape[:-2]),
        dtype=left.dtype,
        out_dtype=result.dtype,
        compute=compute_for_matmul(left.dtype, math),
        layout=_layout(left, right),
        bias=bias,
        name=name,
    )
    if left.dtype in ("complex64", "complex128"):  # four real products to the complex one
        gemm = replace(gemm, flops=4 * gemm.flops)
    return gemm


@register_op("aten::mm", "aten::bmm", "aten::_int_mm")
def mm(call: OpSignature, math: MathMode, *, self: TensorSpec, mat2: TensorSpec) -> list[Kernel]:
    """One product; batched for bmm."""
    result = written_tensors(call)
    return matmul_kernels(self, mat2, result[0] if result else self, math)


@register_op("aten::addmm", "aten::_addmm_activation")
def addmm(
    call: OpSignature,
    math: MathMode,
    *,
    self: TensorSpec,
    mat1: TensorSpec,
    mat2: TensorSpec,
    beta: float = 1,
) -> list[Kernel]:
    """A product with the bias in its epilogue, or added to a copied matrix."""
    return _added_product(call, math, added=self, left=mat1, right=mat2, beta=beta)


@register_op("aten::baddbmm")
def baddbmm(
    call: OpSignature,
    math: MathMode,
    *,
    self: TensorSpec,
    batch1: TensorSpec,
    batch2: TensorSpec,
    beta: float = 1,
) -> list[Kernel]:
    """A batched product on top of a copied tensor; with beta = 0 nothing is copied."""
    return _added_product(call, math, added=self, left=batch1, right=batch2, beta=beta)


def _added_product(
    call: OpSignature,
    math: MathMode,
    *,
    added: TensorSpec,
    left: TensorSpec,
    right: TensorSpec,
    beta: float,
) -> list[Kernel]:
    result = output(call)
    if beta == 0:
        return matmul_kernels(left, right, result, math)
    if beta == 1 and _has_bias_epilogue(added, left, right):
        return matmul_kernels(left, right, result, math, bias=True)
    copies = [] if is_in_place(call) else copy_kernel(added, result)
    return copies + matmul_kernels(left, right, result, math, accumulate=True)


def _has_bias_epilogue(bias: TensorSpec, left: TensorSpec, right: TensorSpec) -> bool:
    """A plain bias vector goes to cublasLt: isInputCompliesAddmmCudaLt (cuda/Blas.cpp)."""
    return (
        len(bias.shape) == 1
        and len(left.shape) == 2
        and bias.is_contiguous
        and bias.shape[0] == right.shape[1]
        and min(right.shape) > 1
        and left.dtype in ("float64", "float32", "float16", "bfloat16")
    )


@register_op("aten::addbmm")
def addbmm(
    call: OpSignature, math: MathMode, *, self: TensorSpec, batch1: TensorSpec, batch2: TensorSpec
) -> list[Kernel]:
    """A product per batch entry, each added to the last (ATen/native/LinearAlgebra.cpp)."""
    result = output(call)
    left, right = _without_batch(batch1), _without_batch(batch2)
    kernels = [] if is_in_place(call) else copy_kernel(self, result)
    for _ in range(batch1.shape[0]):
        kernels += matmul_kernels(left, right, result, math, accumulate=True)
    return kernels


def _without_batch(spec: TensorSpec) -> TensorSpec:
    return TensorSpec(spec.shape[1:], spec.stride[1:], spec.dtype, spec.device)


def matrix(rows: int, columns: int, like: TensorSpec, *, transposed: bool = False) -> TensorSpec:
    """A matrix of the type of another tensor, stored by rows, or by columns where transposed."""
    stride = (1, rows) if transposed else (columns, 1)
    return TensorSpec((rows, columns), stride, like.dtype, like.device)


@register_op("aten::linear")
def linear(
    call: OpSignature,
    math: MathMode,
    *,
    input: TensorSpec,
    weight: TensorSpec,
    bias: TensorSpec | None = None,
) -> list[Kernel]:
    """A Linear as one op (inference mode): x times the transposed weight, bias in the epilogue."""
    return linear_kernels(input, weight, output(call), math, bias=bias is not None)


def linear_kernels(
    source: TensorSpec, weight: TensorSpec, result: TensorSpec, math: MathMode, *, bias: bool
) -> list[Kernel]:
    """A Linear on the rows of [..., in], of a weight [out, in]."""
    n, k = weight.shape[-2:] if len(weight.shape) > 1 else (1, weight.shape[0])
    left = matrix(prod(source.shape[:-1]), k, source)
    right = matrix(k, n, weight, transposed=True)
    return matmul_kernels(left, right, result, math, bias=bias)


@register_op("aten::linear_backward")
def linear_backward(
    call: OpSignature,
    math: MathMode,
    *,
    self: TensorSpec,
    grad_output: TensorSpec,
    weight: TensorSpec,
) -> list[Kernel]:
    """The gradients of input (grad W), weight (gradᵀ x) and bias (a column sum)."""
    n, k = weight.shape
    rows = prod(self.shape[:-1])
    grad = matrix(rows, n, grad_output)
    turned = matrix(n, rows, grad_output, transposed=True)
    kernels = matmul_kernels(grad, matrix(n, k, weight), self, math)
    kernels += matmul_kernels(turned, matrix(rows, k, self), weight, math)
    bias = TensorSpec((n,), (1,), grad.dtype, grad.device)
    kernels.append(
        memory_kernel(
            KernelClass.REDUCTION, "sum", reads=(grad,), writes=(bias,), rows=n, width=rows
        )
    )
    return kernels


@register_op("aten::matmul_backward")
def matmul_backward(
    call: OpSignature, math: MathMode, *, grad: TensorSpec, self: TensorSpec, other: TensorSpec
) -> list[Kernel]:
    """grad otherᵀ and selfᵀ grad."""
    return matmul_kernels(grad, transposed(other), self, math) + matmul_kernels(
        transposed(self), grad, other, math
    )


def transposed(spec: TensorSpec) -> TensorSpec:
    """The tensor with its last two dimensions exchanged."""
    shape = (*spec.shape[:-2], spec.shape[-1], spec.shape[-2])
    stride = (*spec.stride[:-2], spec.stride[-1], spec.stride[-2])
    return TensorSpec(shape, stride, spec.dtype, spec.device)


@register_op("aten::dot", "aten::vdot")
def dot(call: OpSignature, *, self: TensorSpec, **others: Argument) -> list[Kernel]:
    """cuBLAS dot: a kernel of partial sums and one that adds them; vdot conjugates one side."""
    reads, result = read_tensors(call), output(call)
    partial = memory_kernel(
        KernelClass.REDUCTION, "dot", reads=reads, writes=(result,), width=self.numel
    )
    return [partial, memory_kernel(KernelClass.REDUCTION, "dot_reduce", writes=(result,), width=1)]


@register_op("aten::mv")
def mv(call: OpSignature, math: MathMode, *, self: TensorSpec, vec: TensorSpec) -> list[Kernel]:
    """A matrix times a vector."""
    return _gemv(self, vec, output(call), math)


@register_op("aten::addmv")
def addmv(
    call: OpSignature, math: MathMode, *, self: TensorSpec, mat: TensorSpec, vec: TensorSpec
) -> list[Kernel]:
    """A matrix times a vector, added to a copied vector."""
    result = output(call)
    copies = [] if is_in_place(call) else copy_kernel(self, result)
    return copies + _gemv(mat, vec, result, math)


def _gemv(
    matrix: TensorSpec, vector: TensorSpec, result: TensorSpec, math: MathMode
) -> list[Kernel]:
    column = TensorSpec((vector.shape[0], 1), (max(1, vector.stride[0]), 1), vector.dtype)
    return matmul_kernels(matrix, column, result, math, name="gemv")


#: Release of torch in which cuBLASLt was seen to compute products with a scale a row and a column
#: (`benchmarks/measured/h100`); before, torch's own CUTLASS kernels did.
_OUTER_SCALES_SINCE = (2, 11)


@register_op("aten::_scaled_mm", "aten::_scaled_mm_v2")
def scaled_mm(
    call: OpSignature,
    math: MathMode,
    *,
    self: TensorSpec,
    mat2: TensorSpec,
    scale_a: tuple[TensorSpec, ...] = (),
    scale_b: tuple[TensorSpec, ...] = (),
    bias: TensorSpec | None = None,
    scale_result: TensorSpec | None = None,
) -> list[Kernel]:
    """A product of scaled 8-bit (or packed 4-bit) floats, which reads the scales too."""
    (m, k), n = self.shape, mat2.shape[-1]
    packed = _FP4_PER_BYTE if self.dtype.startswith("float4") else 1
    if m * n * k == 0:
        return []
    is_whole = all(scale.numel == 1 for scale in scale_a + scale_b)
    by_row = OUTER_SCALED if math.torch >= _OUTER_SCALES_SINCE else "scaled_gemm_by_row"
    gemm = Kernel.gemm(
        m,
        n,
        k * packed,
        dtype=self.dtype,
        out_dtype=output(call).dtype,
        compute=compute_for_matmul(self.dtype, math),
        layout=_layout(self, mat2),
        bias=bias is not None,
        name=TENSOR_SCALED if is_whole else by_row,
    )
    unpacked_bytes = (m * k + n * k) * itemsize(self.dtype) * (packed - 1)
    read = gemm.bytes_read - unpacked_bytes + num_bytes(scale_a + scale_b)
    return [replace(gemm, bytes_read=read)]


@register_op("finegrained_fp8::matmul_2d")
def block_scaled_mm(
    call: OpSignature, math: MathMode, *, input: TensorSpec, weight: TensorSpec, scales: TensorSpec
) -> list[Kernel]:
    """A product with a weight of 8-bit floats and scales of its blocks, which quantizes its rows as
    it reads them."""
    m, (n, k) = prod(input.shape[:-1]), weight.shape
    if m * n * k == 0:
        return []
    gemm = Kernel.gemm(
        m,
        n,
        k,
        dtype=weight.dtype,
        out_dtype=output(call).dtype,
        compute=compute_for_matmul(weight.dtype, math),
        name="scaled_gemm_by_row",
    )
    return [replace(gemm, bytes_read=num_bytes((input, weight, scales)))]


@register_op("aten::_grouped_mm", "aten::_scaled_grouped_mm", "aten::_scaled_grouped_mm_v2")
def grouped_mm(
    call: OpSignature,
    math: MathMode,
    *,
    self: TensorSpec,
    mat2: TensorSpec,
    offs: TensorSpec | None = None,
    bias: TensorSpec | None = None,
    scale_a: tuple[TensorSpec, ...] = (),
    scale_b: tuple[TensorSpec, ...] = (),
    scale_result: TensorSpec | None = None,
) -> list[Kernel]:
    """Products of groups whose sizes are on the GPU: a kernel that sets up, one that multiplies; in
    float16 and float32 a product for each group.

    The groups are taken as equal; FLOPs and bytes are those of the whole, without the matrices of
    groups that get no row.
    """
    groups = max(1, offs.shape[-1] if offs else self.shape[0])
    problem = _grouped_problem(self, mat2, groups)
    if problem.flops == 0:
        return []
    if self.dtype in ("float16", "float32"):
        return [_group_gemm(problem, self, mat2, math)] * problem.groups
    setup = memory_kernel(
        KernelClass.ELEMENTWISE, "grouped_gemm_setup", reads=(offs,), width=groups
    )
    gemm = _grouped_gemm(problem, self, mat2, output(call), math)
    read = num_bytes((self, *scale_a)) + num_bytes((mat2, *scale_b)) * problem.groups // groups
    return [setup, replace(gemm, bytes_read=read)]


@register_op("finegrained_fp8::matmul_experts")
def block_scaled_experts(
    call: OpSignature, math: MathMode, *, input: TensorSpec, weight: TensorSpec, scales: TensorSpec
) -> list[Kernel]:
    """Products of the rows of each expert, as `block_scaled_mm`; experts are taken as equal."""
    experts, n, k = weight.shape
    right = matrix(k, n, weight, transposed=True)
    problem = _grouped_problem(input, right._replace(shape=(experts, k, n)), experts)
    if problem.flops == 0:
        return []
    left = input._replace(dtype=weight.dtype)
    gemm = _grouped_gemm(problem, left, right, output(call), math)
    read = input.num_bytes + num_bytes((weight, scales)) * problem.groups // experts
    return [replace(gemm, bytes_read=read)]


class _GroupedProblem(NamedTuple):
    """The product of one group, the number of groups and the FLOPs of all."""

    m: int
    n: int
    k: int
    groups: int
    flops: int


def _grouped_problem(left: TensorSpec, right: TensorSpec, groups: int) -> _GroupedProblem:
    """Which dimension the groups share: two matrices are ragged in k, a matrix and a batch in the
    matrix's rows or columns; two batches are a plain batched product."""
    m, k, n = left.shape[-2], left.shape[-1], right.shape[-1]
    flops = 2 * m * n * k
    if len(left.shape) == 2 and len(right.shape) == 2:
        return _GroupedProblem(m, n, ceil_div(k, groups), groups, flops)
    if len(left.shape) == 2:
        groups = min(groups, max(1, m))
        return _GroupedProblem(ceil_div(m, groups), n, k, groups, flops)
    if len(right.shape) == 2:
        return _GroupedProblem(m, ceil_div(n, groups), k, groups, flops)
    return _GroupedProblem(m, n, k, groups, groups * flops)


def _group_gemm(
    problem: _GroupedProblem, left: TensorSpec, right: TensorSpec, math: MathMode
) -> Kernel:
    """The product of one group."""
    return Kernel.gemm(
        problem.m,
        problem.n,
        problem.k,
        dtype=left.dtype,
        compute=compute_for_matmul(left.dtype, math),
        layout=_layout(left, right),
    )


def _grouped_gemm(
    problem: _GroupedProblem,
    left: TensorSpec,
    right: TensorSpec,
    result: TensorSpec,
    math: MathMode,
) -> Kernel:
    """All groups as one batch, with the FLOPs and the output of the whole."""
    gemm = Kernel.gemm(
        problem.m,
        problem.n,
        problem.k,
        batch=problem.groups,
        dtype=left.dtype,
        out_dtype=result.dtype,
        compute=compute_for_matmul(left.dtype, math),
        layout=_layout(left, right),
        name="grouped_gemm",
    )
    return replace(gemm, flops=problem.flops, bytes_written=result.num_bytes)


@register_op("aten::_foreach_mm")
def foreach_mm(
    call: OpSignature,
    math: MathMode,
    *,
    self: tuple[TensorSpec, ...],
    mat2: tuple[TensorSpec, ...],
) -> list[Kernel]:
    """A product a pair."""
    pairs = zip(self, mat2, written_tensors(call), strict=True)
    return [k for left, right, result in pairs for k in matmul_kernels(left, right, result, math)]


@register_op("aten::_weight_int8pack_mm")
def int8_weight_mm(
    call: OpSignature, *, self: TensorSpec, mat2: TensorSpec, scales: TensorSpec
) -> list[Kernel]:
    """A product with a weight of 8-bit integers and a scale a column, by a plain kernel in FP32."""
    result = output(call)
    left, scale, wide = (spec._replace(dtype="float32") for spec in (self, scales, result))
    kernels = packed_weight_kernels(left, (mat2, scale), wide, "packed_outputs")
    if self.dtype == "float32":
        return kernels
    casts = [*copy_kernel(self, left), *copy_kernel(scales, scale)]
    return [*casts, *kernels, *copy_kernel(wide, result)]


@register_op("aten::_weight_int4pack_mm")
def int4_weight_mm(
    call: OpSignature, *, self: TensorSpec, mat2: TensorSpec, qScaleAndZeros: TensorSpec
) -> list[Kernel]:
    """A product with a weight of 4-bit integers, a scale and a zero a group."""
    return packed_weight_kernels(self, (mat2, qScaleAndZeros), output(call), "packed_16_rows")


@register_op("aten::_mixed_dtypes_linear")
def mixed_dtypes_linear(
    call: OpSignature,
    *,
    input: TensorSpec,
    weight: TensorSpec,
    scale: TensorSpec,
    bias: TensorSpec | None = None,
) -> list[Kernel]:
    """A Linear with a quantized weight (CUTLASS)."""
    return packed_weight_kernels(input, (weight, scale, bias), output(call), "packed_tiles")


def packed_weight_kernels(
    left: TensorSpec,
    weight: Sequence[TensorSpec | None],
    result: TensorSpec,
    variant: Variant,
    name: str = "packed_weight_gemm",
) -> list[Kernel]:
    """A product with a quantized weight that is unpacked inside the kernel; `weight` is the packed
    weight and all that is read with it, once."""
    m, k, n = prod(left.shape[:-1]), left.shape[-1], result.shape[-1]
    if m * n * k == 0:
        return []
    return [
        Kernel.gemm(
            m,
            n,
            k,
            dtype=left.dtype,
            out_dtype=result.dtype,
            weight_bytes=num_bytes(weight),
            variant=variant,
            name=name,
        )
    ]


@register_op("aten::_trilinear")
def trilinear(
    call: OpSignature,
    *,
    i1: TensorSpec,
    i2: TensorSpec,
    i3: TensorSpec,
    expand1: tuple[int, ...],
    expand2: tuple[int, ...],
    expand3: tuple[int, ...],
    unroll_dim: int = 1,
) -> list[Kernel]:
    """nn.Bilinear's sum of triple products: two multiplications and a sum an unrolled slice.

    ATen/native/Linear.cpp: for each index of `unroll_dim`, i1 * i2 * i3 summed over `sumdim`.
    """
    sizes = _unrolled_sizes((i1, i2, i3), (expand1, expand2, expand3))
    slices = sizes[wrap_dim(unroll_dim, len(sizes))]
    elements = prod(sizes) // max(1, slices)
    slab = TensorSpec((elements,), (1,), i1.dtype, i1.device)
    result = output(call)
    a_slice = [
        *pointwise_kernel("mul", (i1, i3), (slab,)),
        *pointwise_kernel("mul", (slab, i2), (slab,)),
        sum_kernel(slab, result),
        *pointwise_kernel("add", (result, result), (result,)),
    ]
    return fill_kernel(result) + a_slice * slices


def _unrolled_sizes(operands: Sequence[TensorSpec], expands: Sequence[Sequence[int]]) -> list[int]:
    """The sizes of the product of the operands, each with its expanded dimensions put in."""
    rank = len(operands[0].shape) + len(expands[0])
    sizes = [1] * rank
    for operand, expanded in zip(operands, expands, strict=True):
        shape = iter(operand.shape)
        for dim in range(rank):
            if dim not in expanded:
                sizes[dim] = max(sizes[dim], next(shape))
    return sizes


@register_op("aten::_euclidean_dist")
def euclidean_dist(
    call: OpSignature, math: MathMode, *, x1: TensorSpec, x2: TensorSpec
) -> list[Kernel]:
    """cdist through a product: squared norms, two concatenations, mm, clamp and sqrt."""
    result = output(call)
    kernels: list[Kernel] = []
    for operand in (x1, x2):
        norms = TensorSpec(operand.shape[:-1], operand.stride[:-1], operand.dtype, operand.device)
        kernels += pointwise_kernel("pow", (operand,), (operand,))
        kernels.append(sum_kernel(operand, norms))
        kernels += copy_kernel(operand, operand, "cat")
    kernels += matmul_kernels(x1, transposed(x2), result, math)
    kernels += pointwise_kernel("clamp_min", (result,), (result,))
    return kernels + pointwise_kernel("sqrt", (result,), (result,))
