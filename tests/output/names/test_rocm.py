"""Names on AMD GPUs as profiles of them show them."""

from __future__ import annotations

import pytest
import torch

import neusight
from neusight.integrations.profiles.aliases import class_of_name
from neusight.output.names.kernel import kernel_display_name
from neusight.output.names.rocm import hip_call, miopen_op
from neusight.output.trace.file import trace_events
from neusight.predictors.gpu import find_gpu
from neusight.predictors.kernel import ConvolutionSize, Kernel, KernelClass
from neusight.predictors.predictor import Estimate


def name_of(kernel: Kernel, gpu: str = "MI300X") -> str:
    estimate = Estimate(5.0, 4.0, 6.0, "compute", "physics", "test", tile=(256, 128))
    return kernel_display_name(kernel, estimate, find_gpu(gpu))


def gemm(dtype: str, **options: object) -> Kernel:
    return Kernel.gemm(512, 512, 512, dtype=dtype, **options)  # type: ignore[arg-type]


def convolution(direction: str, *, groups: int = 1, dtype: str = "bfloat16") -> Kernel:
    size = ConvolutionSize(8, 64, 64, groups, (56, 56), (56, 56), (3, 3), (1, 1), direction)  # type: ignore[arg-type]
    return Kernel.convolution(size, dtype=dtype)


def attention(*, backward: bool) -> Kernel:
    return Kernel.attention(1, 8, 8, 512, 512, 64, causal=True, dtype="bfloat16", backward=backward)


def rows(kind: KernelClass, name: str, dtype: str = "bfloat16") -> Kernel:
    return Kernel.rows(kind, name, 1, 1024, dtype=dtype, bytes_read=4096, bytes_written=4096)


def test_a_kernel_that_inductor_wrote_has_its_own_name() -> None:
    assert name_of(rows(KernelClass.ELEMENTWISE, "triton_poi_fused_0")) == "triton_poi_fused_0"


@pytest.mark.parametrize(
    ("kernel", "gpu", "start"),
    [
        (gemm("bfloat16"), "MI300X", "Cijk_Alik_Bljk_BBS_BH_Bias_HA_S_SAV_UserArgs_MT256x128x64"),
        (gemm("bfloat16", layout="nn"), "MI250", "Cijk_Ailk_Bljk_BBS_BH_Bias"),
        (gemm("float16", layout="tn"), "MI300X", "Cijk_Ailk_Bjlk_HHS_BH_Bias"),
        (gemm("float32"), "MI100", "Cijk_Alik_Bljk_S_B_MT256x128x32_MI16x16x16x1_SN"),
        (gemm("float8_e4m3fnuz", out_dtype="bfloat16"), "MI300X", "Cijk_Alik_Bljk_F8NBS_BH"),
        (gemm("float8_e4m3fn", out_dtype="bfloat16"), "MI355X", "Cijk_Alik_Bljk_F8BS_BH"),
        (convolution("forward"), "MI300X", "igemm_fwd_gtcx3_nhwc_bf16_bx0_ex1_bt256x128x32"),
        (convolution("data_gradient"), "MI210", "igemm_bwd_gtcx2_nhwc_bf16"),
        (convolution("weight_gradient", dtype="float32"), "MI100", "igemm_wrw_gtcx_nhwc_fp32_bx0"),
        (convolution("forward", groups=64), "MI300X", "_ZN2ck16tensor_operation6device"),
        (attention(backward=False), "MI300X", "attn_fwd"),
        (attention(backward=True), "MI300X", "bwd_kernel_dk_dv"),
        (rows(KernelClass.COPY, "nchw_to_nhwc"), "MI300X", "batched_transpose_32x32_half"),
        (rows(KernelClass.COPY, "memcpy_h2d"), "MI300X", "Memcpy HtoD (Host -> Device)"),
        (rows(KernelClass.NORMALIZATION, "batch_norm"), "MI300X",
         "void at::native::batch_norm_transform_input_kernel<c10::BFloat16"),
        (rows(KernelClass.NORMALIZATION, "batch_norm", "float32"), "MI300X",
         "MIOpenBatchNormFwdTrain"),
        (rows(KernelClass.SORT, "sort"), "MI300X", "void rocprim::"),
        (rows(KernelClass.ELEMENTWISE, "add"), "MI300X", "void at::native::vectorized_elementwise"),
    ],
)  # fmt: skip
def test_libraries_are_those_of_rocm(kernel: Kernel, gpu: str, start: str) -> None:
    name = name_of(kernel, gpu)

    assert name.startswith(start)
    assert not any(word in name for word in ("cublas", "cudnn", "cutlass", "nvjet", "sgemm"))


@pytest.mark.parametrize(
    "kernel",
    [
        gemm("bfloat16"),
        *(convolution(way) for way in ("forward", "data_gradient", "weight_gradient")),
        *(convolution(way, groups=64) for way in ("forward", "data_gradient", "weight_gradient")),
        *(attention(backward=backward) for backward in (False, True)),
        rows(KernelClass.NORMALIZATION, "batch_norm"),
        rows(KernelClass.NORMALIZATION, "batch_norm_backward"),
        rows(KernelClass.COPY, "nchw_to_nhwc"),
        rows(KernelClass.SORT, "sort"),
        Kernel.collective("all_reduce", 2**20, 8, dtype="bfloat16"),
    ],
)
def test_a_reader_of_profiles_finds_the_class_in_the_name(kernel: Kernel) -> None:
    assert class_of_name(name_of(kernel)) is kernel.kernel_class


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("SubTensorOpWithScalar1d", KernelClass.ELEMENTWISE),
        ("Im2d2Col_v2", KernelClass.CONVOLUTION),
        ("bwd_preprocess", KernelClass.ATTENTION),
        ("_ZN2ck16tensor_operation6device37kernel_batched_gemm_xdlops_bwd_weightINS_47Gridwise",
         KernelClass.CONVOLUTION),
    ],
)  # fmt: skip
def test_kernels_of_a_profile_on_mi300x_have_a_class(name: str, kind: KernelClass) -> None:
    assert class_of_name(name) is kind


@pytest.mark.parametrize(
    ("name", "kernel", "expected"),
    [
        ("cudaLaunchKernelExC", gemm("bfloat16"), "hipExtModuleLaunchKernel"),
        ("cudaLaunchKernel", convolution("forward"), "hipModuleLaunchKernel"),
        ("cudaLaunchKernel", rows(KernelClass.ELEMENTWISE, "add"), "hipLaunchKernel"),
        ("cuLaunchKernel", rows(KernelClass.ELEMENTWISE, "triton_poi"), "hipModuleLaunchKernel"),
        ("cudaMemcpyAsync", None, "hipMemcpyWithStream"),
        ("cudaStreamSynchronize", None, "hipStreamSynchronize"),
        ("hipFree", None, "hipFree"),
    ],
)
def test_calls_of_the_runtime_are_hip_s(name: str, kernel: Kernel | None, expected: str) -> None:
    assert hip_call(name, kernel) == expected


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("aten::cudnn_batch_norm_backward", "aten::miopen_batch_norm_backward"),
        ("autograd::engine::evaluate_function: CudnnRnnBackward0",
         "autograd::engine::evaluate_function: MiopenRnnBackward0"),
        ("aten::convolution", "aten::convolution"),
    ],
)  # fmt: skip
def test_ops_of_a_rocm_build_are_miopens(name: str, expected: str) -> None:
    assert miopen_op(name) == expected


def test_a_trace_and_a_table_of_an_amd_gpu_name_its_libraries() -> None:
    with neusight.forecast_on("MI300X") as forecast:
        recurrent = torch.nn.LSTM(64, 64).cuda()
        recurrent(torch.zeros(4, 2, 64, device="cuda"))[0].sum().backward()
        torch.cuda.synchronize()
    text = str(trace_events(forecast.timeline, forecast.memory, forecast.gpu)["traceEvents"])
    table = str(forecast.key_averages())

    assert "aten::miopen_rnn" in text
    assert "hipExtModuleLaunchKernel" in text
    assert "Cijk_" in text
    assert "aten::miopen_rnn" in table
    for theirs in ("cudnn", "cublas", "Cudnn", "cudaLaunch", "sgemm"):
        assert theirs not in text + table
