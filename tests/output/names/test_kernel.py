"""Names as profiles of real GPUs show them, for every class of kernels."""

from __future__ import annotations

import pytest

from neusight.output.names.kernel import kernel_display_name, launched_name
from neusight.predictors.gpu import find_gpu
from neusight.predictors.kernel import ConvolutionSize, Kernel, KernelClass, Layout, Variant
from neusight.predictors.predictor import Estimate
from neusight.recording.recording import MathMode, OpCall, OpSignature, TensorSpec
from timelines import kernel_span


def name_of(
    kernel: Kernel,
    gpu: str = "A100",
    *,
    tile: tuple[int, int] | None = (128, 64),
    split_k: int = 1,
) -> str:
    estimate = Estimate(5.0, 4.0, 6.0, "compute", "physics", "test", tile=tile, split_k=split_k)
    return kernel_display_name(kernel, estimate, find_gpu(gpu))


def gemm(dtype: str, *, compute: str | None = None, layout: str = "nt") -> Kernel:
    return Kernel.gemm(512, 512, 512, dtype=dtype, compute=compute, layout=layout)  # type: ignore[arg-type]


def convolution(direction: str, *, groups: int = 1) -> ConvolutionSize:
    return ConvolutionSize(8, 64, 64, groups, (56, 56), (56, 56), (3, 3), (1, 1), direction)  # type: ignore[arg-type]


def rows(kernel_class: KernelClass, name: str, **options: object) -> Kernel:
    settings = {"dtype": "float32", "bytes_read": 4096, "bytes_written": 4096, **options}
    return Kernel.rows(kernel_class, name, 1, 1024, **settings)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("gpu", "kernel", "name"),
    [
        ("V100", gemm("float16"), "volta_fp16_s884gemm_fp16_128x64_ldg8_f2f_tn"),
        ("T4", gemm("float16"), "turing_fp16_s1688gemm_fp16_128x64_ldg8_f2f_tn"),
        ("V100", gemm("float32"), "volta_sgemm_128x64_tn"),
        ("A100", gemm("float32"), "ampere_sgemm_128x64_tn"),
        ("A100", gemm("bfloat16"),
         "ampere_bf16_s16816gemm_bf16_128x64_ldg8_f2f_stages_64x4_tn"),
        ("A100", gemm("float32", compute="tf32"),
         "ampere_sgemm_tf32_s1688gemm_128x64_ldg4_stages_32x3_tn"),
        ("A100", gemm("float64"), "cutlass_80_tensorop_d884gemm_128x64_16x3_tn_align1"),
        ("A100", gemm("int8"), "ampere_i16832gemm_int8_128x64_ldg16_stages_128x3_tn"),
        ("H100", gemm("bfloat16"), "nvjet_sm90_tst_128x64_64x4_1x2_h_bz_coopA_TNT"),
        ("H100", gemm("float16", layout="tn"), "nvjet_sm90_hsh_128x64_64x4_1x2_h_bz_coopA_NTN"),
        ("H100", gemm("float32", compute="tf32"),
         "sm90_xmma_gemm_f32f32_tf32f32_f32_tn_n_tilesize128x64x32_warpgroupsize1x1x1"
         "_execute_segment_k_off_kernel__5x_cublas"),
        ("H100", gemm("float32"), "sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize128x64x8_stage3"
         "_warpsize2x2x1_ffma_aligna4_alignc4_execute_kernel__5x_cublas"),
        ("H100", gemm("int8"),
         "void cutlass::Kernel2<cutlass_80_tensorop_i16832gemm_s8_128x64_tn_align16>"),
        ("H100", Kernel.gemm(512, 50257, 768),
         "void cutlass::Kernel2<cutlass_75_tensorop_bf16_s1688gemm_bf16_128x64_tn_align1>"
         "(cutlass_75_tensorop_bf16_s1688gemm_bf16_128x64_tn_align1::Params)"),
        ("B200", gemm("bfloat16"), "nvjet_tst_128x64_64x4_2x1_v_bz_TNN"),
        ("B200", gemm("float16"), "nvjet_hsh_128x64_64x4_2x1_v_bz_TNN"),
    ],
)  # fmt: skip
def test_a_product_is_called_as_cublas_calls_it_on_that_architecture(
    gpu: str, kernel: Kernel, name: str
) -> None:
    assert name_of(kernel, gpu) == name


@pytest.mark.parametrize(
    ("ours", "theirs"), [("nt", "tn"), ("nn", "nn"), ("tn", "nt"), ("tt", "tt")]
)
def test_cublas_names_operands_as_columns(ours: str, theirs: str) -> None:
    assert name_of(gemm("float32", layout=ours)) == f"ampere_sgemm_128x64_{theirs}"


def test_split_k_shows_in_the_name_and_a_tile_that_nobody_chose_is_the_usual_one() -> None:
    assert "_bz_splitK_" in name_of(gemm("bfloat16"), "H100", split_k=4)
    assert name_of(gemm("float32"), tile=None) == "ampere_sgemm_128x128_tn"


@pytest.mark.parametrize(
    ("direction", "short", "segments"),
    [
        ("forward", "fprop_implicit_gemm", "off"),
        ("data_gradient", "dgrad_implicit_gemm", "off"),
        ("weight_gradient", "wgrad_indexed_implicit_gemm", "on"),
    ],
)
def test_a_convolution_says_which_way_it_goes(direction: str, short: str, segments: str) -> None:
    kernel = Kernel.convolution(convolution(direction), dtype="float16", layout="channels_last")

    assert name_of(kernel, "H100") == (
        f"sm90_xmma_{short}_f16f16_f16f32_f32_nhwckrsc_nhwc_tilesize128x64x64_warpgroupsize1x1x1"
        f"_g1_execute_segment_k_{segments}_kernel__5x_cudnn"
    )


@pytest.mark.parametrize(
    ("gpu", "direction", "dtype", "compute", "name"),
    [
        ("A100", "forward", "float32", "fp32",
         "ampere_scudnn_winograd_128x128_ldg1_ldg4_relu_tile148t_nt_v1"),
        ("A100", "weight_gradient", "float32", "fp32",
         "void cudnn::winograd_nonfused::winogradWgradOutput4x4<float, float>"),
        ("V100", "weight_gradient", "float32", "tf32",
         "volta_scudnn_128x64_stridedB_splitK_interior_nn_v1"),
        ("P100", "data_gradient", "float32", "tf32",
         "maxwell_scudnn_128x64_stridedB_interior_nn_v1"),
        ("P100", "data_gradient", "float16", "fp16",
         "void cudnn::detail::dgrad_engine<__half, 512, 6, 5, 3, 3, 3, false>"),
        ("A100", "forward", "float64", "fp64",
         "void implicit_convolve_sgemm<double, double, 128, 6, 7, 3, 3, 5, 1, false, true, true>"),
    ],
)  # fmt: skip
def test_a_convolution_without_matrix_units_runs_on_ordinary_cores(
    gpu: str, direction: str, dtype: str, compute: str, name: str
) -> None:
    size = convolution(direction)
    if direction != "forward" and gpu != "A100":  # five taps are no Winograd's
        size = size._replace(kernel=(5, 5))
    kernel = Kernel.convolution(size, dtype=dtype, compute=compute, layout="contiguous")

    assert name_of(kernel, gpu) == name


@pytest.mark.parametrize(
    ("gpu", "dtype", "compute", "name"),
    [
        ("P100", "float32", "tf32", "maxwell_sgemm_128x64_tn"),
        ("T4", "float32", "tf32", "volta_sgemm_128x64_tn"),
        ("P100", "float16", "fp16", "maxwell_fp16_sgemm_fp16_128x64_tn"),
    ],
)
def test_a_product_takes_no_unit_that_the_gpu_lacks(
    gpu: str, dtype: str, compute: str, name: str
) -> None:
    assert name_of(gemm(dtype, compute=compute), gpu) == name


_OWN = "void at::native::(anonymous namespace)::conv_depthwise2d_"


@pytest.mark.parametrize(
    ("direction", "kernel", "layout", "name"),
    [
        ("forward", (3, 3), "contiguous", _OWN + "forward_kernel<3, float, int>"),
        ("forward", (7, 7), "contiguous", _OWN + "forward_kernel_generic<float, int>"),
        ("data_gradient", (5, 5), "contiguous", _OWN + "backward_kernel<5, 1, float, int>"),
        ("data_gradient", (3, 5), "contiguous", _OWN + "backward_kernel<0, 1, float, int>"),
        ("weight_gradient", (3, 3), "contiguous", _OWN + "grad_weight_kernel<float, unsigned int>"),
        ("forward", (3, 3), "channels_last", "conv2d_c1_k1_nhwc_specialized"),
        ("data_gradient", (3, 3), "channels_last", "dgrad2d_c1_k1_nhwc_specialized"),
        ("weight_gradient", (3, 3), "channels_last", "wgrad2d_c1_k1_nhwc"),
    ],
)
def test_a_depthwise_convolution_is_pytorchs_own_and_of_channels_last_images_cudnns(
    direction: str, kernel: tuple[int, int], layout: Layout, name: str
) -> None:
    size = convolution(direction, groups=64)._replace(kernel=kernel)

    assert name_of(Kernel.convolution(size, dtype="float32", layout=layout)) == name


@pytest.mark.parametrize(
    ("gpu", "prefix"), [("V100", "sm70_"), ("A100", "sm80_"), ("H100", "sm90_"), ("B200", "sm100_")]
)
def test_cudnn_names_the_architecture(gpu: str, prefix: str) -> None:
    kernel = Kernel.convolution(convolution("forward"), dtype="float16")

    assert name_of(kernel, gpu).startswith(f"{prefix}xmma_fprop")


@pytest.mark.parametrize(
    ("library", "backward", "part"),
    [
        ("flash_attention", False, "pytorch_flash::flash_fwd_kernel<"),
        ("flash_attention", True, "flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel<"),
        ("cudnn_attention", False, "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_"),
        ("cudnn_attention", True, "cudnn_generated_fort_native_sdpa_sm90_flash_bprop_"),
        ("flash_attention_triton", False, "_fwd_kernel"),
        ("flash_attention_triton", True, "_bwd_kernel"),
        ("efficient_attention", False, "fmha_cutlassF_bf16_aligned_64x128_rf_sm80("),
        ("efficient_attention", True, "fmha_cutlassB_bf16_aligned_64x128_rf_sm80("),
    ],
)
def test_attention_is_called_by_its_library(library: Variant, backward: bool, part: str) -> None:
    kernel = Kernel.attention(
        1, 8, 8, 512, 512, 64, causal=True, dtype="bfloat16", backward=backward, name=library
    )  # fmt: skip

    assert part in name_of(kernel, "H100")


@pytest.mark.parametrize(
    ("gpu", "library", "part"),
    [
        ("P100", "efficient_attention", "_rf_sm50("),
        ("T4", "efficient_attention", "_rf_sm75("),
        ("RTX 4090", "efficient_attention", "_rf_sm80("),
        ("A100", "cudnn_attention", "_sdpa_sm80_flash_fprop"),
        ("B200", "cudnn_attention", "_sdpa_sm100_flash_fprop"),
    ],
)
def test_attention_names_the_architecture_that_it_was_built_for(
    gpu: str, library: Variant, part: str
) -> None:
    kernel = Kernel.attention(1, 8, 8, 512, 512, 64, causal=True, dtype="float16", name=library)

    assert part in name_of(kernel, gpu)


def test_flash_attention_names_head_type_and_mask() -> None:
    kernel = Kernel.attention(1, 8, 8, 512, 512, 96, causal=True, dtype="float16")

    assert name_of(kernel) == (
        "void pytorch_flash::flash_fwd_kernel<pytorch_flash::Flash_fwd_kernel_traits<96, 128, 128, "
        "4, false, false, cutlass::half_t>, false, true>(pytorch_flash::Flash_fwd_params)"
    )


@pytest.mark.parametrize(
    ("operation", "dtype", "name"),
    [
        ("all_reduce", "bfloat16", "AllReduce_Sum_bf16_RING_LL"),
        ("all_reduce", "int64", "AllReduce_Sum_u64_RING_LL"),
        ("reduce_scatter", "float32", "ReduceScatter_Sum_f32_RING_LL"),
        ("reduce", "bool", "Reduce_Sum_u8_RING_LL"),
        ("all_gather", "float16", "AllGather_RING_LL"),
        ("broadcast", "float16", "Broadcast_RING_LL"),
        ("all_to_all", "float32", "SendRecv"),
        ("send_recv", "bfloat16", "SendRecv"),
        ("scatter", "float32", "SendRecv"),
    ],
)
def test_a_collective_is_named_as_nccl_names_it(operation: str, dtype: str, name: str) -> None:
    kernel = Kernel.collective(operation, 2**20, 8, dtype=dtype)

    assert name_of(kernel) == f"ncclDevKernel_{name}(ncclDevKernelArgsStorage<4096ul>)"


def test_copies_are_named_by_their_way() -> None:
    names = [
        name_of(rows(KernelClass.COPY, name))
        for name in ("memcpy_h2d", "memcpy_d2h", "memcpy_d2d", "memset")
    ]

    assert names == [
        "Memcpy HtoD (Pageable -> Device)",
        "Memcpy DtoH (Device -> Pageable)",
        "Memcpy DtoD (Device -> Device)",
        "Memset (Device)",
    ]


def test_pointwise_kernels_show_functor_type_and_whether_they_vectorize() -> None:
    dense = Kernel.elementwise("add", 1024, dtype="bfloat16")
    strided = rows(KernelClass.ELEMENTWISE, "add", layout="strided")

    assert name_of(dense) == (
        "void at::native::vectorized_elementwise_kernel<4, "
        "at::native::CUDAFunctor_add<c10::BFloat16>, std::array<char*, 2ul> >"
        "(int, at::native::CUDAFunctor_add<c10::BFloat16>, std::array<char*, 2ul>)"
    )
    assert name_of(dense, "H100").startswith("void at::native::vectorized_elementwise_kernel<8, ")
    assert name_of(strided) == (
        "void at::native::elementwise_kernel<128, 2, "
        "at::native::gpu_kernel_impl_nocast<at::native::CUDAFunctor_add<float>> >"
    )
    assert "my_op_kernel_cuda(" in name_of(Kernel.elementwise("my_op", 8, dtype="float32"))


@pytest.mark.parametrize(
    ("kernel_class", "op", "part"),
    [
        (KernelClass.COPY, "cat", "CatArrayBatchedCopy_vectorized<at::native::(anonymous"),
        (KernelClass.GATHER, "embedding", "indexSelectLargeIndex<float, long,"),
        (KernelClass.GATHER, "scatter", "::scatter_kernel<float, long,"),
        (KernelClass.REDUCTION, "sum", "reduce_kernel<512, 1, at::native::ReduceOp<float, at::"),
        (KernelClass.OPTIMIZER, "fused_adam", "multi_tensor_apply_kernel<at::native::(anonymous"),
        (KernelClass.SORT, "sort", "DeviceRadixSortOnesweepKernel<sort, float, long>"),
        (KernelClass.SORT, "topk", "sbtopk::gatherTopK<float,"),
    ],
)  # fmt: skip
def test_pytorchs_own_kernels_are_named_by_their_templates(
    kernel_class: KernelClass, op: str, part: str
) -> None:
    assert part in name_of(rows(kernel_class, op))


@pytest.mark.parametrize(
    ("kernel_class", "variant", "is_backward", "part"),
    [
        (KernelClass.NORMALIZATION, "layer_norm", False, "::vectorized_layer_norm_kernel<float,"),
        (KernelClass.NORMALIZATION, "layer_norm", True,
         "::layer_norm_grad_input_kernel_vectorized<float, float>"),
        (KernelClass.NORMALIZATION, "batch_norm", False, "cudnn::bn_fw_tr_1C11_kernel_NCHW<float"),
        (KernelClass.NORMALIZATION, "batch_norm", True, "cudnn::bn_bw_1C11_kernel_new<float"),
        (KernelClass.NORMALIZATION, "batch_norm_sums", True, "batch_norm_backward_reduce_kernel<"),
        (KernelClass.NORMALIZATION, "rms_norm", False, "::ours_kernel<float, float>"),
        (KernelClass.NORMALIZATION, "group_norm", False, "::ours_kernel<float, float>"),
        (KernelClass.SOFTMAX, "softmax", False,
         "softmax_warp_forward<float, float, float, 10, false, false>"),
        (KernelClass.SOFTMAX, "softmax", True, "softmax_warp_backward<float, float, float, 10, f"),
        (KernelClass.SOFTMAX, "log_softmax", False,
         "softmax_warp_forward<float, float, float, 10, true, false>"),
        (KernelClass.SOFTMAX, "log_softmax", True,
         "softmax_warp_backward<float, float, float, 10, true, false>"),
    ],
)  # fmt: skip
def test_norms_and_softmax_are_named_by_their_kind_and_pass(
    kernel_class: KernelClass, variant: Variant, is_backward: bool, part: str
) -> None:
    kernel = rows(kernel_class, "ours", variant=variant, is_backward=is_backward)

    assert part in name_of(kernel)


@pytest.mark.parametrize(
    ("kernel", "part"),
    [
        (rows(KernelClass.NORMALIZATION, "ours", variant="batch_norm", along_columns=True),
         "cudnn::batchnorm_fwtr_nhwc_semiPersist<float, float, float, 512, 16>"),
        (rows(KernelClass.NORMALIZATION, "ours", variant="batch_norm", along_columns=True,
              is_backward=True),
         "cudnn::batchnorm_bwtr_nhwc_semiPersist<float, float, float, 512, 16>"),
        (rows(KernelClass.ELEMENTWISE, "batch_norm", variant="by_channel"),
         "batch_norm_transform_input_channels_last_kernel<float, float>"),
        (rows(KernelClass.ELEMENTWISE, "batch_norm_backward", variant="by_plane"),
         "batch_norm_backward_elemt_kernel<float, float>"),
    ],
)  # fmt: skip
def test_a_batch_norm_says_in_which_order_images_lie(kernel: Kernel, part: str) -> None:
    assert part in name_of(kernel)


def test_a_softmax_over_more_than_1024_elements_takes_a_block_a_row() -> None:
    def named(width: int, *, is_backward: bool = False) -> str:
        kernel = Kernel.rows(
            KernelClass.SOFTMAX, "softmax", 8, width, dtype="bfloat16", bytes_read=64,
            bytes_written=64, variant="softmax", is_backward=is_backward,
        )  # fmt: skip
        return name_of(kernel)

    assert "softmax_warp_forward" in named(1024)
    assert "cunn_SoftMaxForward<8, c10::BFloat16," in named(1025)
    assert "cunn_SoftMaxBackward<8, c10::BFloat16," in named(1025, is_backward=True)


@pytest.mark.parametrize(("is_pinned", "memory"), [(False, "Pageable"), (True, "Pinned")])
def test_a_copy_from_pinned_memory_says_so(is_pinned: bool, memory: str) -> None:
    source = TensorSpec((8,), (1,), "float32", "cpu", is_pinned)
    target = TensorSpec((8,), (1,), "float32")
    signature = OpSignature("aten::_to_copy", "default", (("self", source),), (target,))
    span = kernel_span(rows(KernelClass.COPY, "memcpy_h2d"), call=OpCall(signature, MathMode()))

    name = launched_name(kernel_display_name(span.kernel, span.estimate, find_gpu("A100")), span)

    assert name == f"Memcpy HtoD ({memory} -> Device)"
