"""The names of kernels in a profile, as cuBLAS, cuDNN, PyTorch and NCCL give them.

Those of ROCm's libraries are in `rocm`, PyTorch's own in `native`.
"""

from __future__ import annotations

from dataclasses import replace

from neusight.output.names.native import CPP_TYPE, native_display_name
from neusight.output.names.rocm import rocm_display_name
from neusight.predictors.gpu import GPU
from neusight.predictors.kernel import (
    HOST_COPIES,
    AttentionSize,
    ConvolutionSize,
    Kernel,
    KernelClass,
)
from neusight.predictors.physics.gemm import is_unaligned
from neusight.predictors.physics.roofline import is_winograd
from neusight.predictors.predictor import Estimate
from neusight.timeline.launches import is_pinned_copy
from neusight.timeline.spans import KernelSpan

#: cuBLAS names operands as columns: a Linear (our "nt", B stored [n, k]) is its "tn".
_CUBLAS_LAYOUT = {"nt": "tn", "nn": "nn", "tn": "nt", "tt": "tt"}
#: NCCL has a kernel of its own for each reduction and type, as a ring or as a tree, and one for all
#: transfers. Other protocols (LL128, Simple) and algorithms (NVLS, NVLS_TREE) run inside these and
#: leave no mark in the name (best_kernel, src/device/generate.py of NCCL since 2.19).
_NCCL_REDUCTIONS = {
    "all_reduce": "AllReduce",
    "reduce_scatter": "ReduceScatter",
    "reduce": "Reduce",
}
_NCCL_COPIES = {"all_gather": "AllGather_RING_LL", "broadcast": "Broadcast_RING_LL"}
#: Signed integers are added as unsigned ones; a bool travels as a byte.
_NCCL_TYPE = {
    "float32": "f32", "float64": "f64", "float16": "f16", "bfloat16": "bf16",
    "float8_e4m3fn": "f8e4m3", "float8_e5m2": "f8e5m2", "int64": "u64", "int32": "u32",
    "int8": "u8", "uint8": "u8", "bool": "u8",
}  # fmt: skip
_COPIES = {
    "memcpy_h2d": "Memcpy HtoD (Pageable -> Device)",
    "memcpy_d2h": "Memcpy DtoH (Device -> Pageable)",
    "memcpy_d2d": "Memcpy DtoD (Device -> Device)",
    "memcpy_p2p": "Memcpy PtoP (Device -> Device)",
    "memset": "Memset (Device)",
}
_FLASH = frozenset({"flash_attention", "flash_attention_3", "flash_attention_4"})
_DEFAULT_TILE = (128, 128)
_HOPPER = 9


def kernel_display_name(kernel: Kernel, estimate: Estimate, gpu: GPU) -> str:
    """The name as a profile of that GPU would show it, as near as a forecast can know.

    >>> from neusight.predictors.gpu import find_gpu
    >>> estimate = Estimate(5, 4, 6, "compute", "physics", "roofline", tile=(128, 64))
    >>> kernel_display_name(Kernel.gemm(512, 512, 512, dtype="float32"), estimate, find_gpu("A100"))
    'ampere_sgemm_128x64_tn'
    """
    if kernel.compute == "tf32" and not gpu.has_matrix_unit("tf32"):
        kernel = replace(kernel, compute="fp32")
    if gpu.vendor == "amd" and (own := rocm_display_name(kernel, estimate, gpu)) is not None:
        return own
    if kernel.name in _COPIES:
        return _COPIES[kernel.name]
    if kernel.name.startswith("triton_"):
        return kernel.name  # as Inductor named it
    if kernel.kernel_class is KernelClass.GEMM:
        return _gemm(kernel, estimate, gpu)
    if isinstance(kernel.size, ConvolutionSize):
        return _convolution(kernel, kernel.size, estimate, gpu)
    if isinstance(kernel.size, AttentionSize):
        return _attention(kernel, kernel.size, gpu)
    if kernel.kernel_class is KernelClass.COLLECTIVE:
        function = _NCCL_COPIES.get(kernel.name, "SendRecv")  # so all-to-all, gather and scatter
        if kernel.name in _NCCL_REDUCTIONS:
            kind = _NCCL_TYPE.get(kernel.dtype, "f32")
            function = f"{_NCCL_REDUCTIONS[kernel.name]}_Sum_{kind}_RING_LL"
        return f"ncclDevKernel_{function}(ncclDevKernelArgsStorage<4096ul>)"
    return native_display_name(kernel, gpu)


def launched_name(name: str, span: KernelSpan) -> str:
    """The name of a kernel, or that of a copy from or to pinned memory, where the span is one."""
    is_pinned = span.kernel.name in HOST_COPIES and is_pinned_copy(span.call.signature)
    return name.replace("Pageable", "Pinned") if is_pinned else name


def _gemm(kernel: Kernel, estimate: Estimate, gpu: GPU) -> str:
    tile_m, tile_n = estimate.tile or _DEFAULT_TILE
    layout = _CUBLAS_LAYOUT.get(kernel.layout, "tn")
    compute, (major, minor) = kernel.compute, gpu.compute_capability
    if compute == "fp64":
        return f"cutlass_80_tensorop_d884gemm_{tile_m}x{tile_n}_16x3_{layout}_align1"
    if major >= 10 and compute in ("bf16", "fp16", "fp8"):
        messages = {"bf16": "tst", "fp16": "hsh", "fp8": "qqtst"}[compute]
        order = layout.upper() + "N"
        return f"nvjet_{messages}_{tile_m}x{tile_n}_64x4_2x1_v_bz_{order}"
    if major == _HOPPER:
        is_split = estimate.split_k > 1
        return _gemm_on_hopper(kernel, (tile_m, tile_n), layout, gpu, is_split=is_split)
    if compute in ("bf16", "fp16"):
        return _half_gemm(compute, (major, minor), f"{tile_m}x{tile_n}", layout)
    if compute == "tf32":
        return f"ampere_sgemm_tf32_s1688gemm_{tile_m}x{tile_n}_ldg4_stages_32x3_{layout}"
    if compute == "int8":
        return f"ampere_i16832gemm_int8_{tile_m}x{tile_n}_ldg16_stages_128x3_{layout}"
    return f"{_generation(gpu)}_sgemm_{tile_m}x{tile_n}_{layout}"


#: The last word of nvjet, cuBLAS's products on Hopper, for its layouts (profiles of torch 2.11).
_NVJET_ORDERS = {"tn": "TNT", "nn": "NNT", "nt": "NTN", "tt": "TTT"}


def _gemm_on_hopper(
    kernel: Kernel, tile: tuple[int, int], layout: str, gpu: GPU, *, is_split: bool
) -> str:
    """As profiles of torch 2.11 on H100 and H200 have them."""
    size, compute = f"{tile[0]}x{tile[1]}", kernel.compute
    if compute in ("bf16", "fp16") and is_unaligned(kernel, gpu):
        name = f"cutlass_75_tensorop_{compute}_s1688gemm_{compute}_{size}_{layout}_align1"
        return f"void cutlass::Kernel2<{name}>({name}::Params)"
    if compute in ("bf16", "fp16", "fp8"):
        types = {"bf16": "tst", "fp16": "hsh", "fp8": "qqtst"}[compute]
        how = "splitK" if is_split else "coopA"
        return f"nvjet_sm90_{types}_{size}_64x4_1x2_h_bz_{how}_{_NVJET_ORDERS[layout]}"
    if compute == "int8":
        return f"void cutlass::Kernel2<cutlass_80_tensorop_i16832gemm_s8_{size}_{layout}_align16>"
    if compute == "fp32":
        return (
            f"sm80_xmma_gemm_f32f32_f32f32_f32_{layout}_n_tilesize{size}x8_stage3"
            "_warpsize2x2x1_ffma_aligna4_alignc4_execute_kernel__5x_cublas"
        )
    how = "split_k" if is_split else "segment_k_off"
    return (
        f"sm90_xmma_gemm_f32f32_tf32f32_f32_{layout}_n_tilesize{size}x32"
        f"_warpgroupsize1x1x1_execute_{how}_kernel__5x_cublas"
    )


def _generation(gpu: GPU) -> str:
    """The word for kernels of ordinary cores; those of Pascal are Maxwell's."""
    major = gpu.compute_capability[0]
    return "maxwell" if major < 7 else "volta" if major == 7 else "ampere"


def _half_gemm(compute: str, capability: tuple[int, int], tile: str, layout: str) -> str:
    """A 16-bit product before Hopper."""
    if capability[0] < 7:
        return f"maxwell_fp16_sgemm_fp16_{tile}_{layout}"
    if capability[0] == 7:
        family, shape = ("turing", "s1688") if capability[1] == 5 else ("volta", "s884")
        stages = ""
    else:
        family, shape, stages = "ampere", "s16816", "_stages_64x4"
    return f"{family}_{compute}_{shape}gemm_{compute}_{tile}_ldg8_f2f{stages}_{layout}"


def _convolution(kernel: Kernel, size: ConvolutionSize, estimate: Estimate, gpu: GPU) -> str:
    tile_m, tile_n = estimate.tile or _DEFAULT_TILE
    role = {"forward": "fprop", "data_gradient": "dgrad", "weight_gradient": "wgrad"}
    direction = role[size.direction]
    memory = "nhwc" if kernel.layout == "channels_last" else "nchw"
    if size.is_depthwise:
        return _depthwise_convolution(kernel, size, direction)
    if kernel.compute == "fp64" or not gpu.has_matrix_unit(kernel.compute):
        return _convolution_on_cores(kernel, direction, (tile_m, tile_n), gpu)
    if gpu.nvidia_major == _HOPPER and size.groups == 1:
        return _convolution_on_hopper(kernel, direction, (tile_m, tile_n))
    major, minor = gpu.compute_capability
    architecture = f"sm{major}{minor}" if major == 7 else f"sm{min(major, 10)}0"
    types = {
        "bf16": "bf16bf16_bf16f32_f32",
        "fp16": "f16f16_f16f32_f32",
        "tf32": "tf32f32_tf32f32_f32",
    }.get(kernel.compute, "f16f16_f16f32_f32")
    suffix = "cudnn_infer" if direction == "fprop" else "cudnn_train"
    return (
        f"{architecture}_xmma_{direction}_implicit_gemm_indexed_{types}_nhwckrsc_{memory}"
        f"_tilesize{tile_m}x{tile_n}x32_stage3_warpsize2x2x1_g{size.groups}"
        f"_tensor16x8x16_execute_kernel_{suffix}"
    )


def _convolution_on_hopper(kernel: Kernel, direction: str, tile: tuple[int, int]) -> str:
    """As profiles of torch 2.11 on H100 and H200 have them; images that lie otherwise are turned
    to NHWC before."""
    types, depth = {
        "tf32": ("f32f32_tf32f32_f32", 32),
        "bf16": ("bf16bf16_bf16f32_f32", 64),
    }.get(kernel.compute, ("f16f16_f16f32_f32", 64))
    is_weights = direction == "wgrad"
    role = "wgrad_indexed_implicit_gemm" if is_weights else f"{direction}_implicit_gemm"
    return (
        f"sm90_xmma_{role}_{types}_nhwckrsc_nhwc_tilesize{tile[0]}x{tile[1]}x{depth}"
        f"_warpgroupsize1x1x1_g1_execute_segment_k_{'on' if is_weights else 'off'}"
        "_kernel__5x_cudnn"
    )


#: Kernels of cuDNN for ordinary cores that read any type (profiles of ResNet-50 on V100).
_ENGINES = {
    "fprop": "void implicit_convolve_sgemm<{t}, {t}, 128, 6, 7, 3, 3, 5, 1, false, true, true>",
    "dgrad": "void cudnn::detail::dgrad_engine<{t}, 512, 6, 5, 3, 3, 3, false>",
    "wgrad": "void cudnn::cnn::wgrad_alg0_engine<{t}, 128, 6, 7, 3, 3, 5, false, 512>",
}
#: What the names of its kernels for FP32 say of each pass (the same).
_SCUDNN_ROLES = {
    "fprop": "relu_interior",
    "dgrad": "stridedB_interior",
    "wgrad": "stridedB_splitK_interior",
}


def _convolution_on_cores(kernel: Kernel, direction: str, tile: tuple[int, int], gpu: GPU) -> str:
    """cuDNN's kernels without matrix units."""
    if kernel.compute != "fp32":
        return _ENGINES[direction].format(t={"float64": "double"}.get(kernel.dtype, "__half"))
    name = f"{_generation(gpu)}_scudnn"
    if is_winograd(kernel, gpu) and direction == "wgrad":
        return "void cudnn::winograd_nonfused::winogradWgradOutput4x4<float, float>"
    if is_winograd(kernel, gpu):
        return f"{name}_winograd_128x128_ldg1_ldg4_relu_tile148t_nt_v1"
    return f"{name}_{tile[0]}x{tile[1]}_{_SCUDNN_ROLES[direction]}_nn_v1"


def _depthwise_convolution(kernel: Kernel, size: ConvolutionSize, direction: str) -> str:
    """cuDNN's of channels_last images (a profile of MobileNet v2 in FP16, torch 2.11), else torch's
    own (DepthwiseConv2d.cu), with templates of the filters and strides that it has."""
    if kernel.layout == "channels_last":
        cudnn_name = direction.replace("fprop", "conv")
        return f"{cudnn_name}2d_c1_k1_nhwc{'_specialized' if direction != 'wgrad' else ''}"
    t = CPP_TYPE.get(kernel.dtype, "float")
    edges, steps = set(size.kernel), set(size.stride)
    edge = max(edges) if len(edges) == 1 and edges <= {1, 3, 5} else 0
    step = max(steps) if len(steps) == 1 and steps <= {1, 2} else 0
    name, parameters = {
        "fprop": ("forward_kernel", [edge, t, "int"])
        if edge
        else ("forward_kernel_generic", [t, "int"]),
        "dgrad": ("backward_kernel", [edge, step, t, "int"]),
        "wgrad": ("grad_weight_kernel", [t, "unsigned int"]),
    }[direction]
    arguments = ", ".join(map(str, parameters))
    return f"void at::native::(anonymous namespace)::conv_depthwise2d_{name}<{arguments}>"


#: The architectures that cuDNN generates attention for, by compute capability (major).
_SDPA_UNITS = {8: "sm80", 9: "sm90"}
#: The architectures that torch builds its memory-efficient attention for (mem_eff_attention).
_EFFICIENT_BUILDS = ((5, 0), (7, 0), (7, 5), (8, 0))


def _attention(kernel: Kernel, size: AttentionSize, gpu: GPU) -> str:
    if kernel.variant in _FLASH:
        return _flash_attention(kernel, size)
    if kernel.variant == "flash_attention_triton":
        return "_bwd_kernel" if size.backward else "_fwd_kernel"
    if kernel.variant == "cudnn_attention":
        direction = "bprop" if size.backward else "fprop"
        unit = _SDPA_UNITS.get(gpu.nvidia_major, "sm100")
        knobs = "_wgmma_f16_knob_7_64x128" if unit == "sm90" else ""
        return f"cudnn_generated_fort_native_sdpa_{unit}_flash_{direction}{knobs}"
    short = {"bfloat16": "bf16", "float16": "f16"}.get(kernel.dtype, "f32")
    direction = "B" if size.backward else "F"
    built = max(one for one in _EFFICIENT_BUILDS if one <= max(gpu.compute_capability, (5, 0)))
    build = f"sm{built[0]}{built[1]}"
    return (
        f"fmha_cutlass{direction}_{short}_aligned_64x128_rf_{build}(PyTorchMemEffAttention::Params)"
    )


def _flash_attention(kernel: Kernel, size: AttentionSize) -> str:
    t = "cutlass::bfloat16_t" if kernel.dtype == "bfloat16" else "cutlass::half_t"
    causal = str(size.causal).lower()
    if size.backward:
        traits = f"Flash_bwd_kernel_traits<{size.head_dim}, 64, 128, 8, 2, 4, 4, false, false, {t}>"
        return (
            "void pytorch_flash::flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel"
            f"<pytorch_flash::{traits}, false, {causal}>(pytorch_flash::Flash_bwd_params)"
        )
    traits = f"Flash_fwd_kernel_traits<{size.head_dim}, 128, 128, 4, false, false, {t}>"
    return (
        f"void pytorch_flash::flash_fwd_kernel<pytorch_flash::{traits}, false, {causal}>"
        "(pytorch_flash::Flash_fwd_params)"
    )
