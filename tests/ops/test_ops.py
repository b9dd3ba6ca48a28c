"""Which kernels ops launch, worked by hand; no torch needed."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from neusight.ops import is_mapped, kernels_of, map_op, mapped_ops, register_op, unregister_op
from neusight.ops.optimizer import launches
from neusight.predictors.errors import RegistrationError
from neusight.predictors.kernel import Kernel, KernelClass
from neusight.recording.recording import Argument, MathMode, OpSignature, TensorSpec

MATH = MathMode()


def spec(
    *shape: int, dtype: str = "float32", device: str = "cuda", channels_last: bool = False
) -> TensorSpec:
    """A dense tensor."""
    order = [*range(len(shape))]
    if channels_last:
        order = [0, *range(2, len(shape)), 1]
    strides = [0] * len(shape)
    step = 1
    for dim in reversed(order):
        strides[dim] = step
        step *= shape[dim]
    return TensorSpec(shape, tuple(strides), dtype, device)


def transposed(tensor: TensorSpec) -> TensorSpec:
    """The .t() of a matrix."""
    return tensor._replace(shape=tensor.shape[::-1], stride=tensor.stride[::-1])


def call(op: str, *outputs: Argument, overload: str = "default", **arguments: Any) -> OpSignature:
    """A signature of an aten op."""
    name = op if "::" in op else f"aten::{op}"
    arguments = {("input" if key == "input_" else key): v for key, v in arguments.items()}
    return OpSignature(name, overload, tuple(arguments.items()), outputs)


def kernels(signature: OpSignature, math: MathMode = MATH) -> tuple[Kernel, ...]:
    """The kernels of an op that must be mapped."""
    mapping = map_op(signature, math)
    assert mapping.is_mapped, mapping.reason
    return mapping.kernels


def names(signature: OpSignature, math: MathMode = MATH) -> list[str]:
    return [kernel.name for kernel in kernels(signature, math)]


# -- the registry ---------------------------------------------------------------


def test_importing_the_ops_does_not_import_torch() -> None:
    code = (
        "import sys, neusight.ops; assert 'torch' not in sys.modules and 'numpy' not in sys.modules"
    )

    subprocess.run([sys.executable, "-c", code], check=True)


def test_an_op_registered_by_name_is_mapped_until_it_is_forgotten() -> None:
    @register_op("testlib::twice")
    def twice(signature: OpSignature, math: MathMode) -> list[Kernel]:
        return [Kernel.elementwise("twice", signature.tensor("x").numel, dtype="float32")] * 2

    try:
        assert names(call("testlib::twice", spec(4), x=spec(4))) == ["twice", "twice"]
    finally:
        unregister_op("testlib::twice")

    assert not is_mapped("testlib::twice")


def test_an_overload_goes_before_its_op() -> None:
    register_op("testlib::pick")(lambda signature, math: [])
    register_op("testlib::pick.special")(
        lambda signature, math: [Kernel.elementwise("special", 1, dtype="float32")]
    )
    try:
        plain = kernels_of(call("testlib::pick", x=spec(4)), MATH)
        special = kernels_of(call("testlib::pick", overload="special", x=spec(4)), MATH)
    finally:
        unregister_op("testlib::pick")
        unregister_op("testlib::pick.special")

    assert plain == ()
    assert [kernel.name for kernel in special] == ["special"]


def test_packets_and_overloads_of_torch_are_known_by_their_names() -> None:
    class Packet:
        _qualified_op_name = "testlib::packet"

    class Schema:
        name = "testlib::packet"
        overload_name = ""

    class Overload:
        _schema = Schema()

    try:
        register_op(Packet())(lambda signature, math: [])
        register_op(Overload())(lambda signature, math: [])

        assert {"testlib::packet", "testlib::packet.default"} <= set(mapped_ops())
    finally:
        unregister_op(Packet())
        unregister_op(Overload())


def test_an_op_is_registered_once() -> None:
    with pytest.raises(RegistrationError, match="aten::mm is registered already"):
        register_op("aten::mm")(lambda signature, math: [])


def test_two_names_in_one_registration_must_differ() -> None:
    with pytest.raises(RegistrationError, match="registered already"):
        register_op("testlib::same", "testlib::same")(lambda signature, math: [])


@pytest.mark.parametrize("packet", ["mm", "::mm", "aten::", "aten::mm (Tensor)", 3, None])
def test_what_is_no_op_is_refused(packet: object) -> None:
    with pytest.raises(RegistrationError, match="register_op takes"):
        register_op(packet)


def test_an_unknown_op_is_one_kernel_that_moves_all_its_tensors() -> None:
    mapping = map_op(call("mylib::magic", spec(8), x=spec(4), y=spec(2, 2)), MATH)

    (kernel,) = mapping.kernels
    assert not mapping.is_mapped
    assert mapping.reason == "no function is registered for it"
    assert kernel.kernel_class is KernelClass.UNKNOWN
    assert (kernel.name, kernel.bytes_read, kernel.bytes_written) == ("mylib::magic", 32, 32)


def test_a_formula_that_fails_falls_back_and_says_why() -> None:
    mapping = map_op(call("mm", spec(2, 2), self=None, mat2=None), MATH)

    assert not mapping.is_mapped
    assert "argument self is not a tensor" in mapping.reason
    assert mapping.kernels[0].kernel_class is KernelClass.UNKNOWN


def test_ops_on_the_host_launch_nothing() -> None:
    on_host = spec(4, device="cpu")

    assert kernels(call("add", on_host, self=on_host, other=on_host)) == ()
    assert kernels(call("mylib::magic", on_host, x=on_host)) == ()


def test_views_launch_nothing() -> None:
    assert kernels(call("view", spec(4), self=spec(2, 2), size=(4,))) == ()
    assert kernels(call("transpose_", spec(2, 2), self=spec(2, 2), dim0=0, dim1=1)) == ()


# -- products ---------------------------------------------------------------


def test_a_linear_is_one_product_with_its_weight_transposed_and_its_bias_inside() -> None:
    weight = transposed(spec(256, 64, dtype="bfloat16"))
    signature = call(
        "addmm",
        spec(128, 256, dtype="bfloat16"),
        self=spec(256, dtype="bfloat16"),
        mat1=spec(128, 64, dtype="bfloat16"),
        mat2=weight,
        beta=1,
        alpha=1,
    )

    assert kernels(signature) == (
        Kernel.gemm(128, 256, 64, dtype="bfloat16", layout="nt", bias=True),
    )


def test_a_matrix_added_is_copied_first_and_read_again() -> None:
    signature = call(
        "addmm", spec(8, 4), self=spec(8, 4), mat1=spec(8, 2), mat2=spec(2, 4), beta=1, alpha=1
    )

    copy, gemm = kernels(signature)
    assert copy.name == "memcpy_d2d"
    assert gemm.bytes_read == 4 * (8 * 2 + 2 * 4 + 8 * 4)


def test_layouts_follow_from_strides() -> None:
    def layout(left: TensorSpec, right: TensorSpec) -> str:
        (kernel,) = kernels(call("mm", spec(8, 4), self=left, mat2=right))
        return kernel.layout

    assert layout(spec(8, 2), spec(2, 4)) == "nn"
    assert layout(spec(8, 2), transposed(spec(4, 2))) == "nt"
    assert layout(transposed(spec(2, 8)), spec(2, 4)) == "tn"
    assert layout(transposed(spec(2, 8)), transposed(spec(4, 2))) == "tt"


def test_a_matrix_with_gaps_both_ways_is_copied_for_cublas() -> None:
    gaps = TensorSpec((8, 2), (8, 2), "float32")

    assert names(call("mm", spec(8, 4), self=gaps, mat2=spec(2, 4))) == ["copy", "gemm"]


def test_tf32_products_are_float32_where_the_program_allows_it() -> None:
    signature = call("mm", spec(8, 4), self=spec(8, 2), mat2=spec(2, 4))

    assert kernels(signature)[0].compute == "fp32"
    assert kernels(signature, MathMode(matmul_tf32=True))[0].compute == "tf32"


def test_an_expanded_batch_needs_no_copy() -> None:
    shared = TensorSpec((16, 2, 4), (0, 4, 1), "float32")

    (kernel,) = kernels(call("bmm", spec(16, 8, 4), self=spec(16, 8, 2), mat2=shared))

    assert kernel.flops == 2 * 16 * 8 * 4 * 2


def test_empty_products_launch_nothing_and_products_over_nothing_are_zeros() -> None:
    assert kernels(call("mm", spec(0, 4), self=spec(0, 2), mat2=spec(2, 4))) == ()
    assert names(call("mm", spec(8, 4), self=spec(8, 0), mat2=spec(0, 4))) == ["fill"]


def test_grouped_products_count_every_row_once() -> None:
    half = "bfloat16"
    signature = call(
        "_grouped_mm",
        spec(100, 32, dtype=half),
        self=spec(100, 64, dtype=half),
        mat2=spec(8, 64, 32, dtype=half),
        offs=spec(8, dtype="int32"),
        bias=None,
        out_dtype=None,
    )

    setup, gemm = kernels(signature)
    assert setup.name == "grouped_gemm_setup"
    assert gemm.flops == 2 * 100 * 64 * 32


def test_packed_four_bit_operands_count_two_elements_a_byte() -> None:
    signature = call(
        "_scaled_mm",
        spec(16, 32, dtype="bfloat16"),
        self=spec(16, 8, dtype="float4_e2m1fn_x2"),
        mat2=transposed(spec(32, 8, dtype="float4_e2m1fn_x2")),
        scale_a=spec(1),
        scale_b=spec(1),
        bias=None,
        out_dtype="bfloat16",
    )

    (kernel,) = kernels(signature)
    assert kernel.flops == 2 * 16 * 32 * 16
    assert kernel.bytes_read == 16 * 8 + 32 * 8 + 8
    assert kernel.compute == "fp8"


# -- convolutions ---------------------------------------------------------------


def convolution(dtype: str, *, channels_last: bool = False, bias: bool = False) -> OpSignature:
    """8 images of 16 x 32 x 32 to 64 channels by 3 x 3."""
    return call(
        "convolution",
        spec(8, 64, 32, 32, dtype=dtype, channels_last=channels_last),
        input_=spec(8, 16, 32, 32, dtype=dtype, channels_last=channels_last),
        weight=spec(64, 16, 3, 3, dtype=dtype, channels_last=channels_last),
        bias=spec(64, dtype=dtype) if bias else None,
        stride=(1, 1),
        padding=(1, 1),
        dilation=(1, 1),
        transposed=False,
        output_padding=(0, 0),
        groups=1,
    )


def test_a_convolution_counts_every_tap() -> None:
    (kernel,) = kernels(convolution("float32"))

    assert kernel.flops == 2 * 8 * 64 * 32 * 32 * 16 * 9
    assert (kernel.compute, kernel.layout) == ("tf32", "contiguous")
    assert kernels(convolution("float32"), MathMode(cudnn_tf32=False))[0].compute == "fp32"


def test_half_precision_images_in_nchw_are_turned_and_turned_back() -> None:
    assert names(convolution("bfloat16", bias=True)) == [
        "nchw_to_nhwc",
        "nchw_to_nhwc",
        "convolution_forward",
        "nhwc_to_nchw",
        "add",
    ]
    assert names(convolution("bfloat16", channels_last=True)) == ["convolution_forward"]


def test_gradients_of_a_convolution_are_those_asked_for() -> None:
    def gradients(*mask: bool) -> list[str]:
        signature = call(
            "convolution_backward",
            None,
            None,
            None,
            grad_output=spec(8, 64, 32, 32),
            input_=spec(8, 16, 32, 32),
            weight=spec(64, 16, 3, 3),
            bias_sizes=(64,),
            stride=(1, 1),
            padding=(1, 1),
            dilation=(1, 1),
            transposed=False,
            output_padding=(0, 0),
            groups=1,
            output_mask=mask,
        )
        return names(signature)

    both = ["convolution_data_gradient", "convolution_weight_gradient"]
    assert gradients(True, True, True) == [*both, "sum"]
    assert gradients(False, True, False) == both[1:]


def test_a_transposed_convolution_is_the_data_gradient_of_another() -> None:
    signature = call(
        "convolution",
        spec(4, 8, 16, 16),
        input_=spec(4, 32, 8, 8),
        weight=spec(32, 8, 4, 4),
        bias=None,
        stride=(2, 2),
        padding=(1, 1),
        dilation=(1, 1),
        transposed=True,
        output_padding=(0, 0),
        groups=1,
    )

    (kernel,) = kernels(signature)
    assert kernel.name == "convolution_data_gradient"
    assert kernel.flops == 2 * 4 * 32 * 8 * 8 * 8 * 16


# -- attention ---------------------------------------------------------------


def attention(op: str, kv_heads: int = 8, **more: Any) -> OpSignature:
    """2 sequences of 128, 8 heads of 64, in bf16."""
    query = spec(2, 8, 128, 64, dtype="bfloat16")
    key = spec(2, kv_heads, 128, 64, dtype="bfloat16")
    return call(op, query, query=query, key=key, value=key, is_causal=True, **more)


def test_flash_attention_is_one_kernel() -> None:
    (kernel,) = kernels(attention("_scaled_dot_product_flash_attention"))

    assert kernel == Kernel.attention(2, 8, 8, 128, 128, 64, causal=True, dtype="bfloat16")


def test_flash_backward_prepares_and_converts_and_sums_grouped_heads() -> None:
    op = "_scaled_dot_product_flash_attention_backward"

    plain = ["attention_delta", "flash_attention_backward", "attention_convert_dq"]
    assert names(attention(op)) == plain
    assert names(attention(op, kv_heads=2)) == [*plain, "sum", "sum"]


def test_packed_sequences_are_taken_as_equally_long() -> None:
    packed = spec(256, 8, 64, dtype="bfloat16")
    signature = call(
        "_flash_attention_forward",
        packed,
        query=packed,
        key=packed,
        value=packed,
        cum_seq_q=spec(5, dtype="int32"),
        cum_seq_k=spec(5, dtype="int32"),
        max_q=100,
        max_k=100,
        is_causal=False,
    )

    (kernel,) = kernels(signature)
    assert kernel == Kernel.attention(4, 8, 8, 64, 64, 64, causal=False, dtype="bfloat16")


def test_a_bias_is_read_by_efficient_attention() -> None:
    op = "_scaled_dot_product_efficient_attention"
    bias = spec(1, 1, 128, 128, dtype="bfloat16")

    with_bias, without = kernels(attention(op, attn_bias=bias)), kernels(attention(op))

    assert with_bias[0].bytes_read - without[0].bytes_read == bias.num_bytes


# -- memory-bound ops ---------------------------------------------------------------


def test_a_broadcast_operand_is_read_once() -> None:
    (kernel,) = kernels(call("add", spec(64, 32), self=spec(64, 32), other=spec(32), alpha=1))

    assert (kernel.name, kernel.bytes_read, kernel.bytes_written) == ("add", 4 * 2080, 4 * 2048)
    assert kernel.layout == "strided"


def test_in_place_and_out_forms_move_the_same() -> None:
    x = spec(64, 32)
    plain = kernels(call("mul", x, self=x, other=x))

    assert kernels(call("mul_", x, self=x, other=x)) == plain
    assert kernels(call("mul", x, overload="out", self=x, other=x, out=x)) == plain


def test_a_scalar_tensor_on_the_host_is_not_read() -> None:
    (kernel,) = kernels(call("mul", spec(8), self=spec(8), other=spec(device="cpu")))

    assert kernel.bytes_read == 32


def test_dropout_writes_a_byte_of_mask() -> None:
    (kernel,) = kernels(
        call(
            "native_dropout",
            spec(100),
            spec(100, dtype="bool"),
            input_=spec(100),
            p=0.1,
            train=True,
        )
    )

    assert (kernel.bytes_read, kernel.bytes_written) == (400, 500)


def test_fills_only_write() -> None:
    (kernel,) = kernels(call("zero_", spec(100), self=spec(100)))

    assert (kernel.name, kernel.bytes_read, kernel.bytes_written) == ("fill", 0, 400)


def test_a_masked_fill_copies_first_unless_in_place() -> None:
    x, mask = spec(8, 8), spec(8, 8, dtype="bool")

    assert names(call("masked_fill", x, self=x, mask=mask, value=0)) == [
        "memcpy_d2d",
        "masked_fill",
    ]
    assert names(call("masked_fill_", x, self=x, mask=mask, value=0)) == ["masked_fill"]


def test_a_reduction_has_a_row_a_result() -> None:
    along = kernels(call("sum", spec(64), self=spec(64, 32), dim=(1,), keepdim=False))[0]
    across = kernels(call("sum", spec(32), self=spec(64, 32), dim=(0,), keepdim=False))[0]

    assert along.size == (64, 32)
    assert across.size == (32, 64)
    assert (along.layout, across.layout) == ("contiguous", "strided")


def test_a_loss_reads_one_score_a_target() -> None:
    (kernel,) = kernels(
        call(
            "nll_loss_forward",
            spec(),
            spec(),
            self=spec(128, 50000),
            target=spec(128, dtype="int64"),
            weight=None,
            reduction=1,
            ignore_index=-100,
        )
    )

    assert kernel.bytes_read == 128 * (4 + 8)


def test_softmax_rows_run_along_its_dimension() -> None:
    (kernel,) = kernels(
        call("_softmax", spec(2, 3, 5), self=spec(2, 3, 5), dim=1, half_to_float=False)
    )

    assert kernel.kernel_class is KernelClass.SOFTMAX
    assert kernel.size == (10, 3)
    assert kernel.layout == "strided"


def test_layer_norm_has_two_kernels_backward() -> None:
    x, column, statistic = spec(128, 768), spec(768), spec(128, 1)

    rows, columns = kernels(
        call(
            "native_layer_norm_backward",
            x,
            column,
            column,
            grad_out=x,
            input_=x,
            normalized_shape=(768,),
            mean=statistic,
            rstd=statistic,
            weight=column,
            bias=column,
            output_mask=(True, True, True),
        )
    )

    assert (rows.name, rows.size) == ("layer_norm_backward", (128, 768))
    assert (columns.name, columns.size) == ("layer_norm_backward_weight", (768, 128))
    assert columns.bytes_written == 2 * 768 * 4


def test_cudnn_batch_norm_is_one_kernel_and_the_native_one_three() -> None:
    x, column = spec(8, 16, 4, 4), spec(16)
    arguments: dict[str, Any] = {
        "input_": x,
        "weight": column,
        "bias": column,
        "running_mean": column,
        "running_var": column,
        "training": True,
    }

    assert names(call("cudnn_batch_norm", x, column, column, **arguments)) == ["batch_norm"]
    assert names(call("native_batch_norm", x, column, column, **arguments)) == [
        "batch_norm_statistics",
        "batch_norm_update",
        "batch_norm",
    ]


def test_an_embedding_reads_the_rows_it_takes() -> None:
    (kernel,) = kernels(
        call(
            "embedding",
            spec(8, 512),
            weight=spec(50000, 512),
            indices=spec(8, dtype="int64"),
            padding_idx=-1,
        )
    )

    assert kernel.bytes_read == 8 * 512 * 4 + 8 * 8
    assert kernel.bytes_written == 8 * 512 * 4


def embedding_backward(count: int) -> list[str]:
    return names(
        call(
            "embedding_dense_backward",
            spec(50257, 64),
            grad_output=spec(count, 64),
            indices=spec(count, dtype="int64"),
            num_weights=50257,
            padding_idx=-1,
            scale_grad_by_freq=False,
        )
    )


def test_an_embedding_gradient_of_few_rows_needs_no_sort() -> None:
    assert embedding_backward(3072) == ["fill", "embedding_dense_backward"]


def test_an_embedding_gradient_of_many_rows_is_sorted_by_the_bits_of_its_vocabulary() -> None:
    launched = embedding_backward(8192)

    assert launched.count("radix_sort_pass") == 2  # 50257 has 16 bits
    assert launched[-2:] == ["embedding_backward", "sum_and_scatter"]


def test_an_accumulating_index_put_is_sorted() -> None:
    x, i, v = spec(100, 4), spec(10, dtype="int64"), spec(10, 4)

    plain = names(call("index_put_", x, self=x, indices=(i,), values=v, accumulate=False))
    adding = names(call("index_put_", x, self=x, indices=(i,), values=v, accumulate=True))

    assert plain == ["index_put"]
    assert "radix_sort_single_tile" in adding
    assert adding[-1] == "index_put_accumulate"


def test_a_mask_is_turned_into_positions_which_the_host_waits_for() -> None:
    launched = names(
        call(
            "index", spec(50), overload="Tensor", self=spec(100), indices=(spec(100, dtype="bool"),)
        )
    )

    assert "memcpy_d2h" in launched
    assert launched[-1] == "index"


# -- copies ---------------------------------------------------------------


def to_copy(source: TensorSpec, target: TensorSpec) -> list[str]:
    return names(call("_to_copy", target, self=source, dtype=None, device=None))


def test_copies_go_by_the_bus_the_engine_or_a_kernel() -> None:
    host, gpu = spec(64, device="cpu"), spec(64)

    assert to_copy(host, gpu) == ["memcpy_h2d"]
    assert to_copy(gpu, host) == ["memcpy_d2h"]
    assert to_copy(gpu, spec(64, dtype="bfloat16")) == ["copy"]
    assert names(call("clone", gpu, self=gpu)) == ["memcpy_d2d"]
    assert names(call("clone", spec(8, 8), self=transposed(spec(8, 8)))) == ["copy"]


def test_a_strided_tensor_is_made_dense_before_it_leaves() -> None:
    gaps = TensorSpec((8,), (2,), "float32")

    assert to_copy(gaps, spec(8, device="cpu")) == ["copy", "memcpy_d2h"]


def test_item_reads_one_element() -> None:
    (kernel,) = kernels(call("_local_scalar_dense", 1.0, self=spec()))

    assert (kernel.name, kernel.bytes_read) == ("memcpy_d2h", 4)


def test_a_repeat_reads_its_source_once() -> None:
    (kernel,) = kernels(call("repeat", spec(4, 8), self=spec(8), repeats=(4, 1)))

    assert (kernel.bytes_read, kernel.bytes_written) == (32, 128)


def test_a_concatenation_takes_128_tensors_a_launch() -> None:
    parts = (spec(4),) * 129

    first, second = kernels(call("cat", spec(516), tensors=parts, dim=0))

    assert (first.bytes_read, second.bytes_read) == (128 * 16, 16)
    assert first.bytes_written + second.bytes_written == 516 * 4


# -- multi-tensor kernels ---------------------------------------------------------------


def test_a_launch_is_full_at_2240_blocks() -> None:
    split = launches([65536 * 2241], 1)

    assert [sum(count for _, count in launch.parts) for launch in split] == [65536 * 2240, 65536]


def test_a_launch_is_full_at_its_most_tensors_by_depth() -> None:
    assert len(launches([1] * 252, 4)) == 1
    assert len(launches([1] * 253, 4)) == 2
    assert launches([0, 0], 1) == []


def test_foreach_ops_are_one_launch_for_a_small_model() -> None:
    parameters, gradients = (spec(10), spec(20)), (spec(10), spec(20))

    (kernel,) = kernels(call("_foreach_add_", overload="List", self=parameters, other=gradients))

    assert kernel.name == "multi_tensor_add"
    assert (kernel.bytes_read, kernel.bytes_written) == (2 * 30 * 4, 30 * 4)


def test_lists_that_do_not_match_are_done_one_by_one() -> None:
    halves = (spec(10, dtype="bfloat16"), spec(20, dtype="bfloat16"))

    assert names(
        call("_foreach_add_", overload="List", self=(spec(10), spec(20)), other=halves)
    ) == ["add", "add"]


def test_steps_on_the_host_launch_nothing() -> None:
    steps = (spec(device="cpu"),) * 3

    assert kernels(call("_foreach_add_", overload="Scalar", self=steps, scalar=1)) == ()


def test_fused_adam_reads_four_tensors_and_writes_three() -> None:
    lists = (spec(1000),)
    (kernel,) = kernels(
        call(
            "_fused_adamw_",
            self=lists,
            grads=lists,
            exp_avgs=lists,
            exp_avg_sqs=lists,
            max_exp_avg_sqs=(),
            state_steps=(spec(),),
            lr=0.1,
            grad_scale=None,
            found_inf=None,
        )
    )

    assert kernel.name == "fused_adamw"
    assert (kernel.bytes_read, kernel.bytes_written) == (16000, 12000)


# -- recurrent networks ---------------------------------------------------------------


def lstm(op: str, **more: Any) -> OpSignature:
    """5 steps of 2 sequences, 16 to 32, one layer."""
    return call(
        op,
        spec(5, 2, 32),
        input_=spec(5, 2, 16),
        weight=(spec(128, 16), spec(128, 32)),
        mode=2,
        hidden_size=32,
        proj_size=0,
        num_layers=1,
        batch_first=False,
        dropout=0.0,
        train=True,
        bidirectional=False,
        batch_sizes=(),
        **more,
    )


def test_an_lstm_is_one_product_for_all_inputs_then_a_product_and_gates_a_step() -> None:
    launched = kernels(lstm("_cudnn_rnn"))

    assert [k.name for k in launched] == ["gemm"] + ["gemm", "lstm_cell"] * 5
    products = [k.flops for k in launched if k.kernel_class is KernelClass.GEMM]
    assert products == [2 * 10 * 128 * 16] + [2 * 2 * 128 * 32] * 5


def test_an_lstm_backward_has_products_for_inputs_and_weights() -> None:
    launched = names(lstm("_cudnn_rnn_backward", output_mask=(True, True, True, True)))

    assert launched == ["lstm_cell_backward", "gemm"] * 5 + ["gemm", "gemm", "gemm", "sum"]


# -- collectives ---------------------------------------------------------------


def test_shapes_tell_the_ranks_of_a_gather() -> None:
    (kernel,) = kernels(
        call(
            "c10d::_allgather_base_",
            output_tensor=spec(32),
            input_tensor=spec(4),
            process_group="g",
        )
    )

    assert kernel == Kernel.collective("all_gather", 128, 8, dtype="float32")


def test_a_group_tells_its_size_and_nodes() -> None:
    (kernel,) = kernels(
        call("c10d::allreduce_", tensors=(spec(16),), process_group="default size=16 nodes=2")
    )

    assert kernel == Kernel.collective("all_reduce", 64, 16, dtype="float32", num_nodes=2)


def test_a_group_of_unknown_size_is_reported() -> None:
    mapping = map_op(call("c10d::allreduce_", tensors=(spec(16),), process_group="g"), MATH)

    assert not mapping.is_mapped
    assert "does not tell its size" in mapping.reason


def test_a_group_of_one_launches_nothing() -> None:
    gathered = call(
        "_c10d_functional::all_gather_into_tensor",
        spec(4),
        input_=spec(4),
        group_size=1,
        group_name="g",
    )

    assert kernels(gathered) == ()


@pytest.mark.parametrize(
    ("exponent", "name"), [(2, "pow_by_products"), (0.5, "pow_by_products"), (2.5, "pow")]
)
def test_a_power_costs_its_logarithm_only_where_products_do_not_do(
    exponent: float, name: str
) -> None:
    tensor = spec(128)

    assert names(call("pow", tensor, self=tensor, exponent=exponent)) == [name]
    assert names(call("pow", tensor, self=tensor, exponent=tensor)) == ["pow"]


def test_norms_of_whole_rows_are_contiguous_whatever_their_weights() -> None:
    source, row, column = spec(64, 256), spec(64, 1), spec(256)
    forward = call(
        "native_layer_norm", source, row, row,
        input=source, normalized_shape=(256,), weight=column, bias=column, eps=1e-5,
    )  # fmt: skip
    turned = spec(256, 64)._replace(shape=(64, 256), stride=(1, 64))
    strided = call(
        "native_layer_norm", source, row, row,
        input=turned, normalized_shape=(256,), weight=column, bias=column, eps=1e-5,
    )  # fmt: skip

    assert [kernel.layout for kernel in kernels(forward)] == ["contiguous"]
    assert [kernel.layout for kernel in kernels(strided)] == ["strided"]
