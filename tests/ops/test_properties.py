"""What holds for every op, whatever its shapes."""

from __future__ import annotations

import math

from hypothesis import given, settings
from hypothesis import strategies as st

from neusight.ops import kernels_of, map_op, mapped_ops
from neusight.ops.elements.elementwise import FILLS, POINTWISE, RANDOM
from neusight.ops.operands import is_dense, layout_of
from neusight.ops.optimizer import FOREACH, launches
from neusight.ops.rows.reduction import REDUCTIONS
from neusight.predictors.kernel import Kernel
from neusight.recording.recording import Argument, MathMode, OpSignature, TensorSpec

MATH = MathMode()
PROPERTY = settings(max_examples=200)

dtypes = st.sampled_from(
    ("float32", "bfloat16", "float16", "float64", "int64", "bool", "complex64")
)
shapes = st.lists(st.integers(0, 70), max_size=4).map(tuple)


@st.composite
def tensors(draw: st.DrawFn) -> TensorSpec:
    """Tensors of any layout: dense, permuted, expanded or with gaps."""
    shape = draw(shapes)
    order = draw(st.permutations(range(len(shape))))
    strides, step = [0] * len(shape), 1
    for dim in order:
        strides[dim] = draw(st.sampled_from((step, step, step, 2 * step, 0)))
        step *= max(1, 2 * shape[dim] if strides[dim] == 2 * step else shape[dim])
    device = draw(st.sampled_from(("cuda", "cuda", "cuda", "cpu")))
    return TensorSpec(shape, tuple(strides), draw(dtypes), device)


numbers = st.integers(-3, 300) | st.floats(-2, 2) | st.booleans() | st.none()
values: st.SearchStrategy[Argument] = st.one_of(
    tensors(),
    numbers,
    st.lists(tensors(), max_size=4).map(tuple),
    st.lists(st.integers(0, 5), max_size=4).map(tuple),
    st.sampled_from(("mean", "sum", "cuda", "size=4", "")),
)
#: Names that formulas ask for, so that odd values reach them.
NAMES = [
    "self",
    "input",
    "weight",
    "bias",
    "other",
    "mat1",
    "mat2",
    "batch1",
    "batch2",
    "grad_output",
    "grad_out",
    "query",
    "key",
    "value",
    "dim",
    "index",
    "indices",
    "values",
    "source",
    "src",
    "target",
    "tensors",
    "stride",
    "padding",
    "dilation",
    "groups",
    "transposed",
    "output_mask",
    "normalized_shape",
    "N",
    "C",
    "group",
    "kernel_size",
    "mode",
    "hidden_size",
    "num_layers",
    "batch_sizes",
    "grads",
    "exp_avgs",
    "exp_avg_sqs",
    "process_group",
    "group_size",
    "mask",
    "k",
    "num_samples",
    "num_weights",
    "reduction",
]
calls = st.builds(
    OpSignature,
    st.sampled_from(mapped_ops()).map(lambda name: name.partition(".")[0]),
    st.sampled_from(("default", "out", "Tensor", "Scalar")),
    st.dictionaries(st.sampled_from(NAMES), values, max_size=9).map(lambda d: tuple(d.items())),
    st.lists(values, max_size=3).map(tuple),
)


def assert_sane(kernels: tuple[Kernel, ...]) -> None:
    for kernel in kernels:
        sizes = (kernel.flops, kernel.bytes_read, kernel.bytes_written)
        assert all(isinstance(size, int) and size >= 0 and math.isfinite(size) for size in sizes)
        assert kernel.name
        assert kernel.key


@given(calls)
@settings(PROPERTY, max_examples=350)
def test_no_arguments_make_the_registry_raise(call: OpSignature) -> None:
    mapping = map_op(call, MATH)

    assert_sane(mapping.kernels)
    assert mapping.is_mapped or mapping.reason


@given(calls)
@PROPERTY
def test_equal_calls_launch_equal_kernels(call: OpSignature) -> None:
    again = OpSignature(call.op, call.overload, call.arguments, call.outputs)

    assert kernels_of(call, MATH) == kernels_of(again, MATH)


@given(st.sampled_from((*POINTWISE, *FILLS, *RANDOM)), tensors(), tensors())
@PROPERTY
def test_pointwise_ops_write_their_result_once(
    name: str, left: TensorSpec, right: TensorSpec
) -> None:
    result = left._replace(device="cuda")
    call = OpSignature(f"aten::{name}", "default", (("self", left), ("other", right)), (result,))

    mapping = map_op(call, MATH)

    assert mapping.is_mapped
    assert_sane(mapping.kernels)
    assert len(mapping.kernels) == (1 if result.numel else 0)
    assert sum(kernel.bytes_written for kernel in mapping.kernels) in (0, result.num_bytes)


@given(st.sampled_from(REDUCTIONS), tensors())
@PROPERTY
def test_reductions_read_their_input_once(name: str, source: TensorSpec) -> None:
    source = source._replace(device="cuda")
    result = TensorSpec((), (), source.dtype)
    call = OpSignature(f"aten::{name}", "default", (("self", source),), (result,))

    mapping = map_op(call, MATH)

    assert mapping.is_mapped
    assert_sane(mapping.kernels)
    assert len(mapping.kernels) == 1
    assert mapping.kernels[0].bytes_read == (source.num_bytes if source.numel else 0)


@given(st.lists(st.integers(0, 500_000_000), max_size=30), st.integers(1, 5))
@PROPERTY
def test_launches_hold_every_element_once(sizes: list[int], depth: int) -> None:
    cut = launches(sizes, depth)

    totals = [0] * len(sizes)
    for launch in cut:
        assert sum(-(-count // 65536) for _, count in launch.parts) <= 2240
        for position, count in launch.parts:
            totals[position] += count
    assert totals == sizes


@given(st.sampled_from(FOREACH), st.lists(st.integers(0, 5000), min_size=1, max_size=20))
@PROPERTY
def test_foreach_ops_read_and_write_every_tensor(name: str, sizes: list[int]) -> None:
    tensors_ = tuple(TensorSpec((size,), (1,), "float32") for size in sizes)
    call = OpSignature(f"aten::_foreach_{name}_", "default", (("self", tensors_),), ())

    mapping = map_op(call, MATH)

    assert mapping.is_mapped
    assert sum(kernel.bytes_written for kernel in mapping.kernels) == 4 * sum(sizes)


@given(
    st.tuples(*[st.integers(0, 300)] * 3),
    st.booleans(),
    st.booleans(),
    st.sampled_from(("mm", "bmm")),
)
@PROPERTY
def test_products_count_two_flops_a_multiplication(
    size: tuple[int, int, int], left_t: bool, right_t: bool, op: str
) -> None:
    m, n, k = size

    def matrix(rows: int, columns: int, is_transposed: bool) -> TensorSpec:
        stride = (1, rows) if is_transposed else (columns, 1)
        if op == "mm":
            return TensorSpec((rows, columns), stride, "float16")
        return TensorSpec((3, rows, columns), (rows * columns, *stride), "float16")

    arguments = (("self", matrix(m, k, left_t)), ("mat2", matrix(k, n, right_t)))
    mapping = map_op(OpSignature(f"aten::{op}", "default", arguments, (matrix(m, n, False),)), MATH)

    assert mapping.is_mapped
    flops = sum(kernel.flops for kernel in mapping.kernels if kernel.name == "gemm")
    assert flops == 2 * m * n * k * (1 if op == "mm" else 3)


@given(tensors())
@PROPERTY
def test_a_dense_tensor_is_one_flat_loop(spec: TensorSpec) -> None:
    if is_dense(spec) and spec.numel > 1:
        assert layout_of((spec, spec)) == "contiguous"
