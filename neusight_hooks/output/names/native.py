"""What PyTorch's own kernels are called in a profile."""

from __future__ import annotations

from neusight.predictors.gpu import GPU
from neusight.predictors.kernel import DTYPE_BYTES, Kernel, KernelClass, RowsSize

CPP_TYPE = {
    "float32": "float",
    "float64": "double",
    "float16": "c10::Half",
    "bfloat16": "c10::BFloat16",
    "int64": "long",
    "int32": "int",
    "int16": "short",
    "int8": "signed char",
    "uint8": "unsigned char",
    "bool": "bool",
    "complex64": "c10::complex<float>",
    "complex128": "c10::complex<double>",
}
#: The same in cuDNN's kernels.
_CUDNN_TYPE = {"float16": "__half", "bfloat16": "__nv_bfloat16"}
_FUNCTORS = {
    "add": "at::native::CUDAFunctor_add<{t}>",
    "sub": "at::native::CUDAFunctor_add<{t}>",
    "mul": "at::native::BinaryFunctor<{t}, {t}, {t}, "
    "at::native::binary_internal::MulFunctor<{t}> >",
    "div": "at::native::BinaryFunctor<{t}, {t}, {t}, "
    "at::native::binary_internal::DivFunctor<{t}> >",
    "fill": "at::native::FillFunctor<{t}>",
    "zero": "at::native::FillFunctor<{t}>",
    "gelu": "at::native::GeluCUDAKernelImpl(at::TensorIteratorBase&, at::native::GeluType)"
    "::{{lambda()#2}}",
    "gelu_backward": "at::native::GeluBackwardCUDAKernelImpl(at::TensorIteratorBase&, "
    "at::native::GeluType)::{{lambda()#2}}",
    "silu": "at::native::(anonymous namespace)::silu_kernel(at::TensorIteratorBase&)"
    "::{{lambda()#1}}",
    "group_norm": "at::native::(anonymous namespace)::GroupNormKernelImplInternal<{t}>",
    "group_norm_backward": "at::native::(anonymous namespace)::"
    "GroupNormBackwardKernelImplInternal<{t}>",
    "relu": "at::native::(anonymous namespace)::launch_clamp_scalar(at::TensorIteratorBase&, "
    "c10::Scalar, c10::Scalar, at::native::detail::ClampLimits)::{{lambda()#1}}",
    "threshold_backward": "at::native::BinaryFunctor<{t}, {t}, {t}, at::native::"
    "(anonymous namespace)::threshold_kernel_impl<{t}>(at::TensorIteratorBase&, {t}, {t})>",
    "copy": "at::native::direct_copy_kernel_cuda(at::TensorIteratorBase&)::{{lambda()#3}}",
}
#: Types that contiguous casts to have kernels of their own for.
_CASTS = ("float16", "bfloat16")
#: torch's own, forward and backward, by variant; of NHWC images with a word more.
_BATCH_NORMS = {
    "batch_norm_sums": (
        "void at::native::batch_norm_collect_statistics{cl}_kernel<at::native::Var, {t}, float>",
        "void at::native::batch_norm_backward_reduce{cl}_kernel<{t}, float>",
    ),
    "batch_norm_gradients": (
        "void at::native::batch_norm_transform_input{cl}_kernel<{t}, float>",
        "void at::native::batch_norm_backward_kernel<{t}, float, float, int>",
    ),
    "batch_norm_join": (
        "void at::native::batch_norm_reduce_statistics_kernel<{t}, float>",
        "void at::native::batch_norm_backward_reduce{cl}_kernel<{t}, float>",
    ),
}
#: The same where an elementwise kernel of ours is one of theirs (`by_channel`, `by_plane`).
_BATCH_NORM_MAPS = {
    "batch_norm": "void at::native::batch_norm_transform_input{cl}_kernel<{t}, float>",
    "batch_norm_backward": "void at::native::batch_norm_backward_elemt{cl}_kernel<{t}, float>",
}
_ANONYMOUS = "void at::native::(anonymous namespace)::"
_RANDOM = (
    f"{_ANONYMOUS}distribution_elementwise_grid_stride_kernel<{{t}}, 4, "
    "at::native::templates::cuda::distribution_nullary_kernel>"
)
_INDEX_SELECT = f"{_ANONYMOUS}indexSelectLargeIndex<{{t}}, long, unsigned int, 2, 2, -2, true>"
#: Kernels of PyTorch that have a name of their own (aten/src/ATen/native/cuda).
_OWN_NAMES = {
    "embedding": _INDEX_SELECT,
    "gather": "void at::native::vectorized_gather_kernel<16, long>",
    "roll": "void at::native::roll_cuda_kernel<{t}>",
    "arange": "void (anonymous namespace)::elementwise_kernel_with_index<int, "
    "at::native::arange_cuda_out>",
    "embedding_backward": f"{_ANONYMOUS}compute_grad_weight<{{t}}, long>",
    "embedding_dense_backward": f"{_ANONYMOUS}embedding_backward_feature_kernel"
    "<{t}, float, long>",
    "sum_and_scatter": f"{_ANONYMOUS}sum_and_scatter<{{t}}, long>",
    "index_add": f"{_ANONYMOUS}indexFuncLargeIndex<{{t}}, long, unsigned int, 2, 2, -2, true>",
    "index_put_accumulate": f"{_ANONYMOUS}indexing_backward_kernel<{{t}}, 4>",
    "max_pool": f"{_ANONYMOUS}max_pool_forward_{{m}}<{{t}}, int>",
    "max_pool_backward": f"{_ANONYMOUS}max_pool_backward_{{m}}<{{t}}, float>",
    "avg_pool": f"{_ANONYMOUS}avg_pool2d_out_cuda_frame{{n}}<{{t}}, float>",
    "avg_pool_backward": f"{_ANONYMOUS}avg_pool2d_backward_out_cuda_frame{{n}}<{{t}}, float, int>",
    "group_norm_moments": f"{_ANONYMOUS}RowwiseMomentsCUDAKernel<{{t}}>",
    "group_norm_factors": f"{_ANONYMOUS}ComputeFusedParamsCUDAKernel<{{t}}>",
    "group_norm_backward_sums": f"{_ANONYMOUS}ComputeInternalGradientsCUDAKernel<{{t}}>",
    "group_norm_backward_factors": f"{_ANONYMOUS}ComputeBackwardFusedParamsCUDAKernel<{{t}}>",
    "group_norm_backward_weight": f"{_ANONYMOUS}GammaBetaBackwardCUDAKernel1<{{t}}>",
    "layer_norm_backward_weight": f"{_ANONYMOUS}GammaBetaBackwardCUDAKernelTemplate"
    "<{t}, float, 32u, 32u, 256u, false, true, false>",
    "radix_sort_pass": "void at_cuda_detail::cub::DeviceRadixSortOnesweepKernel<{t}, long>",
    "radix_sort_histogram": "void at_cuda_detail::cub::DeviceRadixSortHistogramKernel<{t}, long>",
    "radix_sort_scan": "void at_cuda_detail::cub::DeviceRadixSortExclusiveSumKernel<{t}, long>",
    "radix_sort_single_tile": "void at_cuda_detail::cub::DeviceRadixSortSingleTileKernel"
    "<{t}, long>",
    "sort_rows": "void at::native::radixSortKVInPlace<-2, -1, 64, 32, {t}, long, unsigned int>",
    "nll_loss_backward": f"{_ANONYMOUS}nll_loss_backward_reduce_cuda_kernel_2d<{{t}}, float, long>",
    "sum": "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<{t}, "
    "at::native::func_wrapper_t<{t}, at::native::sum_functor<{t}, float, {t}> >, unsigned int, "
    "{t}, 4, 4> >",
    "mean": "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<{t}, "
    "at::native::MeanOps<{t}, float, float, {t}>, unsigned int, {t}, 4, 4> >",
    "index_select": _INDEX_SELECT,
    "dropout": f"{_ANONYMOUS}fused_dropout_kernel_vec<{{t}}, float, unsigned int, 1, 4, bool>",
    "rand": _RANDOM,
    "randn": _RANDOM,
    "randint": _RANDOM,
    "uniform": _RANDOM,
    "normal": _RANDOM,
    "cumsum": "void at::native::tensor_kernel_scan_innermost_dim<{t}, std::plus<{t}> >",
    "topk": "void at::native::sbtopk::gatherTopK<{t}, unsigned int, 2, false>",
    "nchw_to_nhwc": "void cudnn::engines_precompiled::nchwToNhwcKernel<{c}, {c}, float, "
    "false, true, (cudnnKernelDataType_t)0>",
    "nhwc_to_nchw": "void cudnn::engines_precompiled::nhwcToNchwKernel<{c}, {c}, float, "
    "true, false, (cudnnKernelDataType_t)0>",
    "nll_loss": f"{_ANONYMOUS}nll_loss_forward_reduce_cuda_kernel_2d<{{t}}, float, long>",
}
#: Softmax over at most so many elements takes a warp a row (PersistentSoftmax.cuh).
_WARP_SOFTMAX = 1024
#: Where elements of 2 bytes go eight at a time (launch_vectorized_kernel, CUDALoops.cuh).
_WIDE_VECTORS = ((9, 0), (10, 0))


def native_display_name(kernel: Kernel, gpu: GPU) -> str:
    """The name of one of PyTorch's own kernels, or of cuDNN's batch norms."""
    t = CPP_TYPE.get(kernel.dtype, "float")
    name, kind = kernel.name, kernel.kernel_class
    if name == "cat":
        return _cat(kernel)
    if name in _OWN_NAMES:
        is_nhwc = kernel.layout == "channels_last"
        return _OWN_NAMES[name].format(
            t=t,
            c=_CUDNN_TYPE.get(kernel.dtype, t),
            m="nhwc" if is_nhwc else "nchw",
            n="_nhwc" if is_nhwc else "",
        )
    if kind is KernelClass.NORMALIZATION:
        return _normalization(kernel, t)
    if kind is KernelClass.SOFTMAX:
        return _softmax(kernel, t)
    if kind in _OF_KIND:
        return _OF_KIND[kind].format(t=t, name=name)
    return _pointwise(kernel, t, gpu)


#: Of a class without a name of its own.
_OF_KIND = {
    KernelClass.REDUCTION: "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<{t}, "
    "{name}_functor> >",
    KernelClass.OPTIMIZER: f"{_ANONYMOUS}multi_tensor_apply_kernel<at::native::(anonymous "
    "namespace)::TensorListMetadata<4>, {name}<{t}, 4> >",
    KernelClass.GATHER: f"{_ANONYMOUS}{{name}}_kernel<{{t}}, long, unsigned int, 2, 2, -2, true>",
    KernelClass.SORT: "void at_cuda_detail::cub::DeviceRadixSortOnesweepKernel<{name}, {t}, long>",
}


def _cat(kernel: Kernel) -> str:
    """Parts of 16 bytes are moved as such (profiles of torch 2.11)."""
    num_bytes = int(DTYPE_BYTES.get(kernel.dtype, 4))
    is_whole = kernel.layout == "contiguous"
    name, words = ("_vectorized", f", 16, {16 // num_bytes}") if is_whole else ("", "")
    return (
        f"{_ANONYMOUS}CatArrayBatchedCopy{name}<at::native::(anonymous namespace)"
        f"::OpaqueType<{num_bytes}u>, unsigned int, 2, 128, 1{words}>"
    )


def _normalization(kernel: Kernel, t: str) -> str:
    if kernel.variant == "layer_norm":
        forward, backward = (
            "vectorized_layer_norm_kernel",
            "layer_norm_grad_input_kernel_vectorized",
        )
        return f"{_ANONYMOUS}{backward if kernel.is_backward else forward}<{t}, float>"
    if kernel.variant == "batch_norm":
        return _cudnn_batch_norm(kernel)
    if kernel.variant in _BATCH_NORMS:
        return _BATCH_NORMS[kernel.variant][kernel.is_backward].format(
            t=t, cl="_channels_last" if kernel.along_columns else ""
        )
    return f"{_ANONYMOUS}{kernel.name}_kernel<{t}, float>"


def _cudnn_batch_norm(kernel: Kernel) -> str:
    """cuDNN's, of NCHW or NHWC images (profiles of torch 2.11 on H100)."""
    c = _CUDNN_TYPE.get(kernel.dtype, CPP_TYPE.get(kernel.dtype, "float"))
    if kernel.along_columns:
        direction = "bwtr" if kernel.is_backward else "fwtr"
        return f"void cudnn::batchnorm_{direction}_nhwc_semiPersist<{c}, float, {c}, 512, 16>"
    if kernel.is_backward:
        return f"void cudnn::bn_bw_1C11_kernel_new<{c}, float, float2, 512, true, 1>"
    return f"void cudnn::bn_fw_tr_1C11_kernel_NCHW<{c}, float, int, 512, true, 1, true>"


def _softmax(kernel: Kernel, t: str) -> str:
    if isinstance(kernel.size, RowsSize) and kernel.size.width <= _WARP_SOFTMAX:
        role = "softmax_warp_backward" if kernel.is_backward else "softmax_warp_forward"
        power = max(0, kernel.size.width - 1).bit_length()
        is_log = str(kernel.variant == "log_softmax").lower()
        return f"void (anonymous namespace)::{role}<{t}, {t}, float, {power}, {is_log}, false>"
    role = "cunn_SoftMaxBackward" if kernel.is_backward else "cunn_SoftMaxForward"
    return f"{_ANONYMOUS}{role}<8, {t}, float, {t}, at::native::{kernel.name}>"


def _pointwise(kernel: Kernel, t: str, gpu: GPU) -> str:
    if kernel.name in _BATCH_NORM_MAPS and kernel.variant in ("by_channel", "by_plane"):
        last = "_channels_last" if kernel.variant == "by_channel" else ""
        return _BATCH_NORM_MAPS[kernel.name].format(t=t, cl=last)
    is_cast = kernel.name == "copy" and kernel.bytes_read != kernel.bytes_written
    is_wide = gpu.vendor == "nvidia" and gpu.compute_capability in _WIDE_VECTORS
    num_bytes = DTYPE_BYTES.get(kernel.dtype, 4)
    width = 8 if is_wide and num_bytes <= 2 else 4
    name = f"{kernel.dtype}_copy" if is_cast and kernel.dtype in _CASTS else kernel.name
    functor = _FUNCTORS.get(name, "at::native::{n}_kernel_cuda(at::TensorIteratorBase&)"
                            "::{{lambda()#1}}").format(t=t, n=name)  # fmt: skip
    if kernel.variant == "mixed_types" or (is_cast and kernel.layout == "scalar"):
        return f"void at::native::unrolled_elementwise_kernel<{functor}, std::array<char*, 2ul>, 4>"
    if kernel.layout in ("strided", "scalar", "channels_last"):
        return (
            f"void at::native::elementwise_kernel<128, {2 if num_bytes >= 4 else 4}, "
            f"at::native::gpu_kernel_impl_nocast<{functor}> >"
        )
    return (
        f"void at::native::vectorized_elementwise_kernel<{width}, {functor}, "
        f"std::array<char*, 2ul> >(int, {functor}, std::array<char*, 2ul>)"
    )
