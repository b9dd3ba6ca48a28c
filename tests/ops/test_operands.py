"""The words that formulas are made of."""

from __future__ import annotations

import pytest

from neusight.ops.operands import (
    contiguous,
    copy_kernel,
    flags,
    is_dense,
    layout_of,
    memory_kernel,
    new_tensor,
    output,
    per_dim,
    pointwise_kernel,
    read_tensors,
    sum_kernel,
    vector,
    wrap_dim,
    written_tensors,
)
from neusight.predictors.kernel import KernelClass
from neusight.recording.recording import TensorSpec
from op_calls import call, spec, transposed


def test_out_parameters_are_written_and_not_read() -> None:
    x, result = spec(4), spec(4, dtype="float16")
    by_name = call("add", result, overload="out", self=x, other=x, out=result)
    by_list = call("sort", result, overload="values", self=x, values=result)

    assert read_tensors(by_name) == (x, x)
    assert read_tensors(by_list) == (x,)
    assert written_tensors(by_name) == (result,)


def test_an_op_in_place_that_returns_nothing_writes_its_first_tensor() -> None:
    x = spec(4)

    assert written_tensors(call("relu_", self=x, other=spec(8))) == (x,)
    assert written_tensors(call("__iadd__", self=x)) == ()


def test_a_missing_output_is_reported_by_its_number() -> None:
    with pytest.raises(ValueError, match="aten::max has 1 output tensors, not 2"):
        output(call("max", spec(4), self=spec(4)), 1)


def test_tensors_of_the_host_move_no_bytes_of_the_gpu() -> None:
    kernel = memory_kernel(
        KernelClass.ELEMENTWISE, "add", reads=(spec(8), spec(device="cpu")), writes=(spec(8),)
    )

    assert (kernel.bytes_read, kernel.bytes_written, kernel.size) == (32, 32, (1, 8))


def test_a_kernel_has_the_dtype_of_most_that_it_reads_and_writes_its_own() -> None:
    kernel = memory_kernel(
        KernelClass.COPY,
        "cast",
        reads=(spec(4, dtype="int64"), spec(64, dtype="float16")),
        writes=(spec(64),),
    )

    assert (kernel.dtype, kernel.out_dtype) == ("float16", "float32")


def test_pointwise_kernels_run_over_the_largest_tensor_written() -> None:
    (kernel,) = pointwise_kernel("add", (spec(64),), (spec(4, 64), spec(64)))

    assert (kernel.size, kernel.flops) == ((1, 256), 256)
    assert pointwise_kernel("add", (spec(64),), (spec(0),)) == []


def test_equal_bytes_in_one_order_are_a_plain_copy() -> None:
    x = spec(8, 4)

    assert copy_kernel(x, x)[0].name == "memcpy_d2d"
    assert copy_kernel(transposed(spec(4, 8)), x)[0].name == "copy"
    assert copy_kernel(x, spec(8, 4, dtype="float16"))[0].name == "copy"
    assert copy_kernel(x, x, "cat")[0].name == "cat"
    assert copy_kernel(spec(0), spec(0)) == []


def test_one_loop_goes_through_dense_tensors_of_one_order() -> None:
    turned = transposed(spec(4, 8))

    assert layout_of((spec(8, 4), spec(8, 4))) == "contiguous"
    assert layout_of((turned, turned)) == "contiguous"
    assert layout_of((TensorSpec((8, 4), (8, 1), "float32"),)) == "scalar"
    assert layout_of((spec(8), spec(1, 8), spec(8, 1))) == "contiguous"
    assert layout_of((spec(), spec(1))) == "contiguous"


def test_a_loop_computes_indices_where_an_operand_is_broadcast_or_has_gaps() -> None:
    heads = TensorSpec((8, 12, 512, 64), (512 * 768, 64, 768, 1), "bfloat16")

    assert layout_of((spec(64, 32), spec(32), spec(64, 32))) == "scalar"
    assert layout_of((spec(64, 32), spec())) == "scalar"  # a value on the GPU
    assert layout_of((heads, contiguous(heads))) == "scalar"


def test_a_loop_transposes_where_neighbours_lie_apart() -> None:
    keys = TensorSpec((8, 12, 64, 512), (512 * 768, 64, 1, 768), "bfloat16")
    short = TensorSpec((512, 64, 8), (6144, 1, 768), "bfloat16")  # 8 rows, each 64 in a row

    assert layout_of((keys, contiguous(keys))) == "strided"
    assert layout_of((transposed(spec(512, 512)), spec(512, 512))) == "strided"
    assert layout_of((short, contiguous(short))) == "scalar"
    assert layout_of((keys, keys)) == "contiguous"  # both in the same order


def test_dense_is_without_gaps_or_overlap() -> None:
    assert is_dense(spec(2, 3, 4, 5, channels_last=True))
    assert not is_dense(TensorSpec((4, 4), (0, 1), "float32"))
    assert spec(2, 3, 4, 5, channels_last=True).is_dense_channels_last
    assert spec(64, 16, 1, 1).is_dense_channels_last
    assert not spec(2, 3, 4, 5).is_dense_channels_last
    assert not spec(4, 5).is_dense_channels_last


def test_dimensions_count_from_the_back_too() -> None:
    assert (wrap_dim(-1, 3), wrap_dim(1, 3), wrap_dim(-1, 0)) == (2, 1, 0)


def test_one_value_stands_for_every_dimension() -> None:
    assert per_dim((2,), 3) == (2, 2, 2)
    assert per_dim((1, 2), 2) == (1, 2)
    assert per_dim((), 2) == (1, 1)


def test_flags_that_are_not_given_are_set() -> None:
    assert flags((False,), 3) == (False, True, True)
    assert flags((True, False, True, True), 3) == (True, False, True)


def test_a_contiguous_tensor_has_its_last_dimension_together() -> None:
    assert new_tensor((2, 3, 4), "float16", "cpu") == TensorSpec(
        (2, 3, 4), (12, 4, 1), "float16", "cpu"
    )
    assert new_tensor((2, 0, 4), "float32", "cuda").stride == (4, 4, 1)
    assert vector(5, "int64") == new_tensor((5,), "int64", "cuda")


def test_a_tensor_made_contiguous_keeps_all_but_its_strides() -> None:
    pinned = TensorSpec((4, 8), (1, 4), "float32", "cpu", is_pinned=True)

    assert contiguous(pinned) == TensorSpec((4, 8), (8, 1), "float32", "cpu", is_pinned=True)


def test_a_sum_has_a_row_for_each_element_that_it_gives() -> None:
    kernel = sum_kernel(spec(4, 64), vector(64, "float32"))

    assert (kernel.name, kernel.size) == ("sum", (64, 4))
    assert (kernel.bytes_read, kernel.bytes_written) == (1024, 256)
