"""Names of kernels and runtime calls on AMD GPUs: hipBLASLt, rocBLAS, MIOpen, CK, AOTriton, RCCL.

Their forms are those of profiles that torch writes on MI300X (data/profiled_kernels).
"""

from __future__ import annotations

from neusight.predictors.gpu import GPU
from neusight.predictors.kernel import (
    AttentionSize,
    ConvolutionSize,
    Kernel,
    KernelClass,
)
from neusight.predictors.predictor import Estimate

_DEFAULT_TILE = (128, 128)
#: Copies, where the host's side is always called so.
_COPIES = {
    "memcpy_h2d": "Memcpy HtoD (Host -> Device)",
    "memcpy_d2h": "Memcpy DtoH (Device -> Host)",
    "memcpy_d2d": "Memcpy DtoD (Device -> Device)",
    "memcpy_p2p": "Memcpy PtoP (Device -> Device)",
    "memset": "Memset (Device)",
}
#: Tensile's indices of columns: A is transposed where l comes first, B where j does. A Linear (our
#: "nt", B stored [n, k]) has A transposed.
_INDICES = {"nt": "Alik_Bljk", "nn": "Ailk_Bljk", "tn": "Ailk_Bjlk", "tt": "Alik_Bjlk"}
#: Tensile's letters of operands, result and sums, and how deep a tile is.
_PRODUCTS = {
    "fp64": ("DB", 16), "fp32": ("S_B", 32), "tf32": ("S_MX_B", 32), "fp16": ("HHS_BH", 64),
    "bf16": ("BBS_BH", 64), "fp8": ("F8BS_BH", 128), "int8": ("I8II_BH", 64),
}  # fmt: skip
#: 8-bit floats of MI300 have a letter more.
_FNUZ = "F8NBS_BH"
#: The first architecture number that has hipBLASLt's kernels; before it they are rocBLAS'.
_HIPBLASLT_SINCE = "90a"
#: MIOpen's assembly kernels by architecture, and its words for a direction.
_IGEMM = {"gfx908": "gtcx", "gfx90a": "gtcx2"}
_DIRECTIONS = {"forward": "fwd", "data_gradient": "bwd", "weight_gradient": "wrw"}
_IGEMM_TYPES = {"bf16": "bf16", "fp16": "fp16"}
#: Convolutions of groups are Composable Kernel's, whose names profiles show as the linker has them.
_CK_GROUPED = {
    "forward": "_ZN2ck16tensor_operation6device12_GLOBAL__N_139"
    "kernel_grouped_conv_fwd_xdl_cshuffle_v3INS_28GridwiseGemm_xdl_cshuffle_v3",
    "data_gradient": "_ZN2ck16tensor_operation6device12_GLOBAL__N_138"
    "kernel_grouped_conv_bwd_data_multiple_d_xdl_cshuffleINS_34GridwiseGemmMultipleD_xdl_cshuffle",
    "weight_gradient": "_ZN2ck16tensor_operation6device37kernel_batched_gemm_xdlops_bwd_weight"
    "INS_47GridwiseGemm_bk0mk1_bk0nk1_mn_xdlops_bwd_weight",
}
#: What has a name of its own, by the name of the kernel.
_OWN_NAMES = {
    "nchw_to_nhwc": "batched_transpose_32x32_{bits}",
    "nhwc_to_nchw": "batched_transpose_32x32_{bits}",
    "im2col": "Im2d2Col_v2",
}
#: Batch norms by the kernel's name: those of 32 bits are MIOpen's, of 16 bits PyTorch's own.
_MIOPEN_NORMS = {
    "batch_norm_statistics": "MIOpenBatchNormFwdTrainSpatialMeanVariance",
    "batch_norm": "MIOpenBatchNormFwdTrainSpatialNorm",
    "batch_norm_backward": "MIOpenBatchNormBwdSpatial",
}
_OWN_NORMS = {
    "batch_norm_statistics": "void at::native::batch_norm_collect_statistics_kernel"
    "<at::native::Var, {t}, {t}, float, int>",
    "batch_norm": "void at::native::batch_norm_transform_input_kernel<{t}, {t}, float, true, int>",
    "batch_norm_backward": "void at::native::batch_norm_backward_kernel<{t}, {t}, float, int>",
}
_SORT = (
    "void rocprim::ROCPRIM_400400_NS::detail::trampoline_kernel<rocprim::ROCPRIM_400400_NS::"
    "default_config, rocprim::ROCPRIM_400400_NS::detail::radix_sort_onesweep_config_selector<{t}, "
    "long>, {n}>"
)
_RCCL = "ncclDevKernel_Generic(ncclDevKernelArgsStorage<4096ul>)"
_CPP_TYPES = {"float16": "c10::Half", "bfloat16": "c10::BFloat16", "float64": "double",
              "int64": "long", "int32": "int"}  # fmt: skip


def rocm_display_name(kernel: Kernel, estimate: Estimate, gpu: GPU) -> str | None:
    """The name that a profile of an AMD GPU shows; None where it is the one of a CUDA build
    (PyTorch's own kernels, Triton's).

    >>> from neusight.predictors.gpu import find_gpu
    >>> estimate = Estimate(5, 4, 6, "compute", "physics", "roofline", tile=(128, 64))
    >>> product = Kernel.gemm(512, 512, 512, dtype="bfloat16")
    >>> rocm_display_name(product, estimate, find_gpu("MI300X"))[:48]
    'Cijk_Alik_Bljk_BBS_BH_Bias_HA_S_SAV_UserArgs_MT1'
    """
    if kernel.name in _COPIES:
        return _COPIES[kernel.name]
    if kernel.kernel_class is KernelClass.COLLECTIVE:
        return _RCCL  # one kernel for all; what it does stands in its arguments
    if kernel.name.startswith("triton_"):
        return None
    if kernel.kernel_class is KernelClass.GEMM:
        return _gemm(kernel, estimate, gpu)
    if isinstance(kernel.size, ConvolutionSize):
        return _convolution(kernel, kernel.size, estimate, gpu)
    if isinstance(kernel.size, AttentionSize):
        return "bwd_kernel_dk_dv" if kernel.size.backward else "attn_fwd"
    if kernel.kernel_class is KernelClass.SORT:
        return _SORT.format(t=_CPP_TYPES.get(kernel.dtype, "float"), n=kernel.name)
    is_half = kernel.dtype in ("float16", "bfloat16")
    own = (_OWN_NAMES | (_OWN_NORMS if is_half else _MIOPEN_NORMS)).get(kernel.name)
    t = _CPP_TYPES.get(kernel.dtype, "float")
    return None if own is None else own.format(bits="half" if is_half else "dword", t=t)


def _architecture(gpu: GPU) -> str:
    return gpu.gcn_arch_name.partition(":")[0]


def _gemm(kernel: Kernel, estimate: Estimate, gpu: GPU) -> str:
    """As Tensile names it: indices, types, the tile, the matrix core's instruction."""
    tile_m, tile_n = estimate.tile or _DEFAULT_TILE
    types, depth = _PRODUCTS.get(kernel.compute, _PRODUCTS["fp32"])
    if kernel.dtype.endswith("fnuz"):
        types = _FNUZ
    indices = _INDICES.get(kernel.layout, "Alik_Bljk")
    number = _architecture(gpu).removeprefix("gfx")
    tile = f"MT{tile_m}x{tile_n}x{depth}"
    if number < _HIPBLASLT_SINCE:  # rocBLAS
        split = f"GSU{estimate.split_k}"
        return f"Cijk_{indices}_{types}_{tile}_MI16x16x16x1_SN_1LDSB0_{split}_ISA{number}"
    return (
        f"Cijk_{indices}_{types}_Bias_HA_S_SAV_UserArgs_{tile}_MI16x16x1_SN_LDSB1_GSUAMB"
        f"_ISA{number}_WS{gpu.warp_size}"
    )


def _convolution(kernel: Kernel, size: ConvolutionSize, estimate: Estimate, gpu: GPU) -> str:
    """MIOpen's implicit GEMM; of groups Composable Kernel's."""
    if size.groups > 1:
        return _CK_GROUPED[size.direction]
    tile_m, tile_n = estimate.tile or _DEFAULT_TILE
    family = _IGEMM.get(_architecture(gpu), "gtcx3")
    dtype = _IGEMM_TYPES.get(kernel.compute, "fp32")
    return (
        f"igemm_{_DIRECTIONS[size.direction]}_{family}_nhwc_{dtype}_bx0_ex{int(dtype != 'fp32')}"
        f"_bt{tile_m}x{tile_n}x32_wt32x32x8_ws1x1_wr2x2"
    )


# -- ops and runtime calls -------------------------------------------------------------------------

#: What a ROCm build calls ops that a forecast records by their names in a CUDA build.
_MIOPEN_OPS = (
    ("aten::_cudnn_rnn", "aten::miopen_rnn"),
    ("aten::cudnn_batch_norm", "aten::miopen_batch_norm"),
    ("CudnnRnnBackward", "MiopenRnnBackward"),
    ("CudnnBatchNormBackward", "MiopenBatchNormBackward"),
)


def miopen_op(name: str) -> str:
    """The name of an op, or of a node of autograd's, on ROCm.

    >>> miopen_op("aten::_cudnn_rnn_backward")
    'aten::miopen_rnn_backward'
    """
    for of_cuda, of_rocm in _MIOPEN_OPS:
        if of_cuda in name:
            return name.replace(of_cuda, of_rocm)
    return name


#: HIP's functions in place of CUDA's whose names differ by more than their beginning.
_HIP_CALLS = {"cuLaunchKernel": "hipModuleLaunchKernel", "cudaMemcpyAsync": "hipMemcpyWithStream"}


def hip_call(name: str, kernel: Kernel | None) -> str:
    """HIP's function in place of CUDA's; what launches a kernel goes by whose it is: Tensile and
    MIOpen load theirs as modules, and so does AOTriton.

    >>> hip_call("cudaDeviceSynchronize", None)
    'hipDeviceSynchronize'
    """
    if name.startswith("cudaLaunchKernel") and kernel is not None:
        if kernel.kernel_class is KernelClass.GEMM:
            return "hipExtModuleLaunchKernel"
        if isinstance(kernel.size, (AttentionSize, ConvolutionSize)):
            return "hipModuleLaunchKernel"
        return "hipLaunchKernel"
    if name in _HIP_CALLS:
        return _HIP_CALLS[name]
    return f"hip{name.removeprefix('cuda')}" if name.startswith("cuda") else name
