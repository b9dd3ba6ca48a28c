"""Which kernels calls of ops launch, with their FLOPs and bytes, as tables;
NEUSIGHT_UPDATE_GOLDEN=1 rewrites them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from difflib import unified_diff
from functools import partial
from itertools import pairwise
from typing import Any

from default_values import numbers_by_default
from priced_kernels import described
from recorded_calls import recorded_calls

from neusight.ops import kernels_of
from op_calls import call, kernels, spec
from places import require_golden

#: Calls as a recording holds them, of ops that few programs dispatch and on tensors without
#: elements: an op, what it returns, and its arguments.
MADE = """\
"linear", s(8, 5), input_=s(8, 3), weight=s(5, 3), bias=s(5)
"linear", s(8), input_=s(8, 3), weight=s(3)
"linear_backward", s(8, 3), s(5, 3), s(5), self=s(8, 3), grad_output=s(8, 5), weight=s(5, 3)
"matmul_backward", s(8, 3), s(3, 5), grad=s(8, 5), self=s(8, 3), other=s(3, 5)
"_mixed_dtypes_linear", h(8, 5), input_=h(8, 64), weight=i8(64, 5), scale=h(5), bias=h(5)
"_weight_int8pack_mm", s(8, 5), self=s(8, 64), mat2=i8(5, 64), scales=s(5)
"_weight_int8pack_mm", h(8, 5), self=h(8, 64), mat2=i8(5, 64), scales=h(5)
"_scaled_mm", h(0, 5), self=i8(0, 64), mat2=i8(64, 5), scale_a=s(1), scale_b=s(1)
"_grouped_mm", h(64, 40), self=h(4, 64, 32), mat2=h(32, 40), offs=i(4)
"_grouped_mm", h(0, 40), self=h(0, 32), mat2=h(4, 32, 40), offs=i(4)
"finegrained_fp8::matmul_2d", h(0, 5), input_=h(0, 64), weight=i8(5, 64), scales=s(1)
"finegrained_fp8::matmul_experts", h(0, 5), input_=h(0, 9), weight=i8(4, 5, 9), scales=s(1)
"bitsandbytes::int8_linear_matmul", i(8, 5), A=i8(8, 64), B=i8(5, 64)
"bitsandbytes::int8_scaled_mm", h(0, 5), A=i8(0, 9), B=i8(5, 9), row_stats=s(0), col_stats=s(5)
"bitsandbytes::optimizer_update_32bit", g=s(0), p=s(0), state1=s(0)
"_transform_bias_rescale_qkv", s(3, 2, 4, 9, 16), qkv=s(2, 9, 192), qkv_bias=s(192)
"_sparse_semi_structured_mm", h(0, 5), mat1=h(0, 32), mat1_meta=h(0, 4), mat2=h(64, 5)
"_sparse_semi_structured_addmm", h(8, 5), mat1=h(8, 32), mat1_meta=h(8), mat2=h(64, 5), input_=h(8)
"cudnn_convolution_transpose", large, self=image, weight=s(4, 8, 2, 2), stride=(2, 2)
"slow_conv_transpose2d", large, self=image, weight=s(4, 8, 2, 2), bias=s(8), stride=(2, 2)
"_slow_conv2d_backward", grad_output=wide, self=image, weight=s(8, 4, 1, 1), **all, stride=(1,)
"cudnn_convolution", wide, self=image, weight=s(8, 2, 1, 1), stride=(1, 1)
"conv_tbc", s(5, 0, 8), self=s(5, 0, 4), weight=s(1, 4, 8), bias=s(8)
"_cudnn_attention_forward", packed, query=packed, key=packed, value=packed, cum_seq_q=i(3)
"_cudnn_init_dropout_state", s(1024), dropout=0.5
"_cudnn_rnn_flatten_weight", s(600), weight_arr=(s(64, 9), s(24))
"c10d::check_for_nan", tensor=s(64, 256)
"symm_mem::one_shot_all_reduce", s(64), input_=s(64), reduce_op="sum", group_name="size=8"
"_compute_linear_combination", s(5, 64), input_=s(3, 64), coefficients=s(5, 3)
"repeat_interleave", s(64, 9), overload="self_int", self=s(64, 3), repeats=3
"split_with_sizes_copy", overload="out", self=s(64, 256), out=(s(64, 100), s(64, 156))
"masked_fill", s(0), self=s(0), mask=s(0, dtype="bool"), value=0
"roll", s(0), self=s(0)
"im2col", s(0, 9, 4), self=s(0, 1, 4, 4)
"triton::mine", a=s(0)
"embedding", s(0, 8), weight=s(9, 8), indices=i(0)
"embedding_dense_backward", s(9, 8), grad_output=s(0, 8), indices=i(0), num_weights=9
"_embedding_bag", s(4, 8), weight=s(9, 8), indices=i(0), offsets=i(4)
"searchsorted", i(0), sorted_sequence=s(9), self=s(0)
"bincount", i(7), self=i(0), weights=None
"_foreach_copy_", self=(), src=()
"_fused_adam_", self=(), grads=(), exp_avgs=(), exp_avg_sqs=()
"_foreach_norm", self=()
"_foreach_zero_", self=()
"torchvision::roi_align", s(0, 16, 2, 2), input_=s(2, 16, 32, 32), rois=s(0, 5)
"torchvision::_roi_align_backward", s(2, 16, 32, 32), grad=s(0, 16, 7, 7), rois=s(0, 5)
"native_batch_norm", s(2, 4, 9), input_=s(2, 4, 9), weight=None, bias=None, training=False
"native_batch_norm_backward", image, grad_out=image, input_=image, weight=None, **all, train=False
"native_batch_norm_backward", nil, grad_out=nil, input_=nil, weight=None, **all
"native_group_norm_backward", nil, grad_out=nil, input_=nil, weight=None, N=0, C=4, group=2, **all
"max_pool2d_with_indices_backward", nil, grad_output=nil, self=nil, indices=nil
"_fused_rms_norm", s(0, 64), input_=s(0, 64), normalized_shape=(64,), weight=s(64)
"nll_loss_backward", s(0, 9), grad_output=s(), self=s(0, 9), target=i(0), reduction=1
"topk", s(0, 3), i(0, 3), self=s(0, 9), k=3
"kthvalue", s(0), i(0), self=s(0, 9), k=3, dim=1
"randperm", i(0), n=0
"_ctc_loss", s(1), s(1, 50, 21), log_probs=s(50, 20), targets=i(10)
"_ctc_loss_backward", s(50, 20), grad=s(1), log_probs=s(50, 20), targets=i(9), log_alpha=s(50, 21)
"multinomial", i(0, 3), self=s(0, 9), num_samples=3
"torchvision::nms", i(7), dets=s(130, 4), scores=s(130)
"torchvision::roi_align", s(3, 16, 2, 2), input_=s(2, 16, 32, 32), rois=s(3, 5)
"torchvision::ps_roi_pool", s(3, 16, 7, 7), input_=s(2, 16, 9, 9), rois=s(3, 5), sampling_ratio=3
"torchvision::_roi_align_backward", s(2, 16, 32, 32), grad=s(3, 16, 2, 2), rois=s(3, 5)
"torchvision::_roi_pool_backward", s(2, 16, 9, 9), grad=s(99, 16, 7, 7), rois=s(99, 5)
"torchvision::deform_conv2d", s(34, 8, 7, 7), **deformed, bias=s(8), groups=2
"torchvision::deform_conv2d", s(34, 0, 7, 7), **deformed, bias=s(0), groups=2
"torchvision::_deform_conv2d_backward", s(34, 4, 9, 9), grad=s(34, 8, 7, 7), **deformed, bias=s(8)
"mamba_ssm::selective_scan", h(2, 32, 100), u=h(2, 32, 100), delta=h(2, 32, 100), A=s(32, 16)
"mamba_ssm::selective_scan_backward", h(2, 32, 100), u=h(2, 32, 100), A=s(32, 16)
"mamba_ssm::selective_scan", h(2, 32, 0), u=h(2, 32, 0), A=s(32, 16)
"mamba_ssm::chunk_scan", x=h(2, 100, 8, 32), B=h(2, 100, 4, 16), chunk_size=64
"mamba_ssm::chunk_scan_backward", x=h(2, 50, 8, 32), B=h(2, 50, 1, 9), chunk_size=64
"mamba_ssm::chunk_scan", x=h(2, 0, 8, 32), B=h(2, 0, 4, 16), chunk_size=64
"bitsandbytes::gemm_4bit", h(32, 64), A=h(32, 128), **packed4, blocksize=64
"bitsandbytes::gemm_4bit", h(33, 64), A=h(33, 128), **packed4, blocksize=64
"bitsandbytes::gemm_4bit", h(2, 64), A=h(2, 128), **packed4, blocksize=48
"bitsandbytes::gemm_4bit", h(0, 64), A=h(0, 128), **packed4, blocksize=48
"bitsandbytes::gemv_4bit", h(1, 64), A=h(1, 128), **packed4
"gptqmodel::marlin_gemm", h(8, 64), input_=h(8, 128), qweight=i(8, 128), scales=h(2, 64)
"quanto::unpack", i8(64, 128), self=i8(16, 128), bits=2
"bitsandbytes::int8_scaled_mm", h(8, 5), **in_8bit, bias=h(5)
"bitsandbytes::int8_scaled_mm", s(8, 5), **in_8bit, bias=s(5)
"bitsandbytes::int8_mixed_scaled_mm", h(8, 5), **mixed, outlier_cols=i(3)
"bitsandbytes::int8_mixed_scaled_mm", h(8, 5), **mixed, outlier_cols=i(0)
"bitsandbytes::optimizer_update_8bit_blockwise", g=h(512), p=h(512), state1=i8(512), absmax1=s(2)
"bitsandbytes::optimizer_update_32bit", g=s(64), p=s(64), state1=s(64), state2=s(64), max_unorm=0.5
"bitsandbytes::optimizer_update_32bit", g=s(64), p=s(64), state1=s(64), max_unorm=0.0
"flash_attn::cross_entropy", s(64), logits=h(64, 1000), labels=i(64)
"flash_attn::cross_entropy_backward_inplace", logits=h(64, 1000), labels=i(64)
"causal_conv1d::conv_backward", h(2, 32, 100), x=h(2, 32, 100), dout=h(2, 32, 100)
"flash_attn::norm", h(64, 256), x=h(64, 256), residual=s(64, 256), weight=h(256)
"flash_attn::norm", h(64, 256), x=h(64, 256), weight=h(256), is_rms=False
"flash_attn::norm_backward", h(64, 256), dy=h(64, 256), x=h(64, 256), mean=s(0)
"flash_attn::norm_backward", h(64, 256), dy=h(64, 256), x=h(64, 256), mean=s(64)
"flash_attn::rotary", h(2, 9, 4, 64), x=h(2, 9, 4, 64), cos=h(9, 16), sin=h(9, 16)
"flash_attn::rotary_inplace", x=h(2, 9, 4, 64), cos=h(9, 16), sin=h(9, 16)
"_scaled_dot_product_flash_attention", h(2, 8, 99, 64), **first, is_causal=True
"_scaled_dot_product_flash_attention_backward", h(2, 8, 99, 64), grad_out=s(9), **first
"_flash_attention_forward", h(2, 99, 8, 64), **behind, is_causal=True
"_flash_attention_forward", h(2, 99, 8, 64), **behind, window_size_left=10, window_size_right=20
"_flash_attention_forward", h(2, 99, 8, 64), **behind, window_size_left=10, is_causal=True
"_flash_attention_backward", h(2, 99, 8, 64), grad_out=s(9), **behind, window_size_left=-1
"flash_attn_3::forward", h(2, 99, 8, 64), **behind
"flash_attn::triton_forward", h(2, 99, 8, 64), **behind
"flash_attn::with_kvcache", h(2, 99, 8, 64), **held, length=130, window_size_left=-1
"flash_attn_3::with_kvcache", h(2, 99, 8, 64), **held, length=130, window_size_left=9
"_efficient_attention_forward", s(2, 99, 8, 64), **behind, custom_mask_type=1
"_efficient_attention_forward", s(2, 99, 8, 64), **behind, custom_mask_type=2, bias=h(2, 8, 99, 9)
"_efficient_attention_backward", s(2, 99, 8, 64), grad_out_=h(2, 99, 8, 64), **behind
"_scaled_dot_product_efficient_attention_backward", **first, attn_bias=h(1, 1, 99, 130), **all4
"_scaled_dot_product_efficient_attention_backward", **first, attn_bias=h(2, 8, 99, 130), **all4
"cudnn_convolution_relu", wide, self=image, weight=s(8, 4, 1, 1), bias=s(8), **single
"cudnn_convolution_add_relu", wide, self=image, weight=s(8, 2, 1, 1), z=wide, bias=None, **grouped
"lu_unpack", s(9, 9), s(9, 9), s(9, 9), LU_data=s(9, 9), LU_pivots=i(9)
"_weight_int4pack_mm", h(8, 64), self=h(8, 128), mat2=i(8, 64), qScaleAndZeros=h(4, 64, 2)
"_trilinear", s(8, 5, 6), i1=s(8, 3), i2=s(5, 3, 4), i3=s(8, 4), **expanded
"_cslt_sparse_mm", h(64, 5), compressed_A=h(64, 36), dense_B=h(64, 5)
"_sparse_semi_structured_linear", h(5, 64), input_=h(5, 64), weight=h(64, 32), meta=i(64)
"_sparse_semi_structured_linear", h(0, 64), input_=h(0, 64), weight=h(64, 32), meta=h(64, 4)
"_convert_weight_to_int4pack", i(64, 8), self=i(64, 128), innerKTiles=8
"_cslt_compress", h(64, 36), input_=h(64, 64)
"_upsample_nearest_exact2d_backward", s(2, 4, 9, 9), grad_output=s(2, 4, 18, 27)
"upsample_nearest1d_backward", s(2, 4, 9), grad_output=s(2, 4, 18)
"dist", s(), self=s(64, 9), other=s(64, 9)
"_nested_tensor_from_mask_left_aligned", t=s(4, 9, 8), mask=s(4, 9, dtype="bool")
"_nested_tensor_from_mask", s(20, 8), t=s(4, 9, 8), mask=s(4, 9, dtype="bool")
"to_padded_tensor", s(4, 9, 8), self=s(20, 8), padding=0.0
"_masked_softmax", s(4, 9), self=s(4, 9), mask=s(4, 9, dtype="bool")
"_masked_softmax", s(4, 9), self=s(4, 9), mask=s(4, 9, dtype="bool"), dim=0
"_masked_softmax_backward", s(4, 9), grad_output=s(4, 9), output=s(4, 9), mask=bools
"_masked_scale", s(64, 9), self=s(64, 9), mask=s(64, 9, dtype="bool"), scale=2.0
"_copy_from", s(64), self=s(64, device="cpu"), dst=s(64)
"_copy_from", s(64), self=s(64), dst=h(64)
"neusight::peer_copy", s(64), self=s(64), src=s(64)
"is_nonzero", self=s()
"_pack_padded_sequence", s(30, 8), i(9), input_=s(9, 4, 8), lengths=i(4)
"_pack_padded_sequence_backward", s(9, 4, 8), grad=s(30, 8), input_size=(9, 4, 8)
"allclose", self=s(64, 9), other=s(64, 9)
"isin", s(64, dtype="bool"), overload="Tensor_Tensor", elements=i(64), test=i(3)
"_unsafe_masked_index", s(9, 8), self=s(64, 8), mask=s(9, dtype="bool"), indices=(i(9),), fill=0
"_c10d_functional::all_gather_into_tensor", s(8, 64), input_=s(64), group_name="size=8"
"c10d::allgather_", output_tensors=(s(64), s(64)), input_tensors=(s(64),), process_group="size=2"
"c10d::alltoall_base_", input_=(s(64),), input_split_sizes=(16,) * 4, process_group="size=4"
"c10d::alltoall_", input_tensors=(s(64), s(9)), output_tensors=(s(64), s(9)), process_group="size=2"
"c10d::barrier", tensor=s(1), process_group="size=8"
"c10d::_allgather_base_", output_tensor=(s(8, 64),), input_tensor=(s(64),), process_group="size=8"
"c10d::_reduce_scatter_base_", output_tensor=(s(64),), input_tensor=(s(8, 64),), group="size=8"
"c10d::gather_", output_tensors=(s(64),) * 4, input_tensors=(s(64),), process_group="size=4"
"c10d::gather_", output_tensors=(), input_tensors=(s(64),), process_group="size=4"
"c10d::scatter_", output_tensors=(s(64),), input_tensors=(s(64),) * 4, process_group="size=4"
"_c10d_functional::reduce_scatter_tensor", s(8), input_=(s(64),), group_name="size=8"
"c10d::reduce_scatter_", output_tensors=(s(8),), input_tensors=(s(8),) * 8, process_group="size=8"
"_c10d_functional::batch_p2p_ops", op_list=("isend", "irecv"), tensors=(s(64), s(99))
"_c10d_functional::all_reduce", s(64), input_=(s(64),), reduce_op="sum", group_name="size=8"
"_c10d_functional::wait_tensor", s(64), tensor=s(64)
"fsdp::all_gather_copy_in", s(8, 64), s(64), all_gather_inputs=(h(9), h(55)), rank=0
"fsdp::split_with_sizes_copy", all_gather_output=h(8, 64), out=(h(72), h(440)), dim=1
"index_put", s(9, 8), self=s(9, 8), indices=(i(3),), values=s(3, 8)
"index_put", s(9, 8), self=s(9, 8), indices=(None, i(3)), values=s(9, 3), accumulate=True
"index_put_", s(9, 8), self=s(9, 8), indices=(i(3),), values=s()
"finegrained_fp8::matmul_experts", h(8, 5), input_=h(8, 9), weight=i8(4, 5, 9), scales=s(4)
"finegrained_fp8::matmul_experts", h(2, 5), input_=h(2, 9), weight=i8(4, 5, 9), scales=s(4)
"_grouped_mm", h(4, 64, 40), self=h(4, 64, 32), mat2=h(4, 32, 40)
"_grouped_mm", h(3, 64, 40), self=h(64, 32), mat2=h(32, 40), offs=i(3)
"_grouped_mm", h(64, 40), self=h(64, 32), mat2=h(4, 32, 40), offs=i(4)
"triton::mine", a=s(64), b=h(64, 3), n=7
"jiterator::own", x=i(0), y=s(5)
"_sparse_sparse_matmul", i(10), i(600), s(600), overload="sparse", **sparse, num_products=700
"_sparse_sparse_matmul", i(10), i(600), s(600), overload="sparse", **sparse, num_products=9
"native_batch_norm_backward", image, grad_out=image, input_=image, weight=s(4), **all, train=True
"native_batch_norm_backward", image, grad_out=image, input_=image, weight=s(4), train=True, **bias
"native_batch_norm_backward", nhwc, grad_out=nhwc, input_=nhwc, weight=s(4), **all, train=True
"batch_norm_stats", s(4), s(4), input_=image, eps=1e-5
"batch_norm_gather_stats_with_counts", s(4), s(4), input_=image, mean=s(8, 4), counts=s(8)
"batch_norm_elemt", image, input_=image, weight=s(4), bias=s(4), mean=s(4), invstd=s(4)
"batch_norm_backward_reduce", s(4), s(4), s(4), s(4), grad_out=image, input_=image, mean=s(4)
"batch_norm_backward_elemt", image, grad_out=image, input_=image, mean=s(4), invstd=s(4)
"_weight_norm_interface", s(8, 9), s(8, 1), v=s(8, 9), g=s(8, 1), dim=0
"_weight_norm_interface_backward", s(8, 9), s(8, 1), grad_w=s(8, 9), saved_v=s(8, 9), g=s(8, 1)
"torchvision::deform_conv2d", s(2, 8, 7, 7), **whole, bias=s(8)
"inductor::triton_poi_fused_0", kind="pointwise", numels=(64, 9), **moved, num_operations=3
"inductor::triton_poi_fused_0", kind="pointwise", numels=(64,), **moved, in_out_ptr0=s(9)
"inductor::triton_red_fused_0", kind="reduction", numels=(4, 5, 9), **moved, num_instructions=7
"inductor::triton_per_fused_0", kind="persistent_reduction", numels=(4, 9), **moved, **again
"inductor::triton_poi_fused_0", kind="pointwise", numels=(64,), bytes_read=0, bytes_written=0
"inductor::triton_tem_fused_0", kind="", numels=(), **moved, x=h(9), attention=(*flex, 3, 8, 0)
"inductor::triton_tem_fused_0", kind="", numels=(), **moved, x=h(9), attention=(*flex, 0, 8, 1)
"semi_structured::cutlass_mm", h(64, 16), dense=h(64, 9), **halves, min_cols=16
"semi_structured::cutlass_mm", h(64, 16), dense=h(64, 16), **halves, min_cols=16
"semi_structured::cusparselt_mm", h(64, 64), dense=h(64, 60), **turned, fuse_transpose=True
"semi_structured::cutlass_mm", h(64, 64), dense=h(64, 64), **turned
"mm", c(8, 5), self=c(8, 3), mat2=c(3, 5)
"_scaled_grouped_mm", h(64, 40), self=i8(64, 32), mat2=i8(4, 32, 40), offs=i(4), **scales
"_scaled_grouped_mm", h(2, 40), self=i8(2, 32), mat2=i8(4, 32, 40), offs=i(4), **scales
"native_group_norm", s(4, 6), s(4, 2), s(4, 2), input_=s(4, 6), weight=s(6), bias=s(6), **six
"native_group_norm", s(4, 6, 9), s(4, 2), input_=s(4, 6, 9), weight=None, bias=None, **six
"native_group_norm", s(4, 6, 9), s(4, 2), input_=s(4, 6, 9), weight=s(6), bias=None, **six
"cudnn_convolution", wide, self=gaps, weight=s(8, 4, 1, 1), stride=(1, 1)
"_safe_softmax", s(), self=s(), dim=0
"_safe_softmax", s(4, 9), self=s(4, 9)
"sum", s(4), self=s(4, 2), dim=(1,), overload="dim_IntList"
"sum", s(2), self=s(4, 2), dim=(0,), overload="dim_IntList"
"embedding_dense_backward", s(1, 8), grad_output=s(5, 8), indices=i(5), num_weights=1, **by_count
"_fft_c2c", c(8, 64), self=c(8, 64), dim=(1,)
"_fft_r2c", c(8, 33), self=s(8, 64), dim=(0, 1), normalization=1
"_fft_c2r", s(4097, 9), self=c(4097, 5), dim=(1, 0)
"_fft_c2c", c(1), self=c(1), dim=(0,)
"mm", s(100, 1), overload="sparse", pointers=i(101), plain=i(50), values=s(50), dense=s(60, 1)
"mm", s(100, 2), overload="sparse", pointers=i(101), plain=i(50), values=s(50), dense=s(60, 2), **by
"sparse_mask", s(), overload="sparse", self=s(8, 9), indices=i(2, 1)
"sparse_mask", s(7, 3), overload="sparse", self=s(8, 9, 3), indices=i(2, 7)
"_sparse_mask_projection", s(7, 3), overload="sparse", indices=i(2, 5), values=s(5, 3), mask=i(2, 7)
"fsdp::chunk_cat", tensors=(h(9, 8), h(55)), dim=0, num_chunks=8, out=s(8, 16)
"""


def test_calls_launch_the_kernels_of_the_golden_table() -> None:
    """A call a line, and under it its kernels: what they are, FLOPs, bytes read and written."""
    lines = []
    for text, ops in recorded_calls():
        launched = [kernel for op in ops for kernel in kernels_of(op.signature, op.math)]
        lines += [text, *described(launched)]

    require_golden("op_kernels.txt", lines)


#: Settings of torch that change kernels, each beside those that are recorded.
MODES: tuple[dict[str, Any], ...] = (
    {"cudnn_benchmark": True}, {"deterministic": True}, {"cudnn_enabled": False},
    {"miopen": True}, {"half_dtypes": ()},
)  # fmt: skip


def test_releases_and_settings_launch_other_kernels_as_the_golden_table_has_them() -> None:
    """The calls whose kernels are others than those of the release before, or than as recorded."""
    releases = [launched(torch=(2, minor)) for minor in range(6, 12)]
    lines: list[str] = []
    for minor, (before, after) in enumerate(pairwise(releases), start=7):
        lines += [f"torch 2.{minor}", *difference(before, after)]
    for mode in MODES:
        lines += [str(mode), *difference(releases[-1], launched(torch=(2, 11), **mode))]

    require_golden("kernels_by_release.txt", lines)


def launched(**mode: Any) -> dict[str, list[str]]:
    """The kernels of each call in a mode."""
    return {
        text: list(
            described([k for op in ops for k in kernels_of(op.signature, replace(op.math, **mode))])
        )
        for text, ops in recorded_calls()
    }


def difference(before: dict[str, list[str]], after: dict[str, list[str]]) -> Iterator[str]:
    """The lines of each call that are gone, and those that came."""
    for text, old in before.items():
        if old != after[text]:
            changes = unified_diff(old, after[text], lineterm="", n=0)
            yield text
            yield from (line for line in changes if not line.startswith(("---", "+++", "@@")))


def test_made_calls_launch_the_kernels_of_the_golden_table() -> None:
    s, h = spec, partial(spec, dtype="float16")
    i, i8 = partial(spec, dtype="int64"), partial(spec, dtype="int8")
    names: dict[str, Any] = {
        "call": call, "s": s, "h": h, "i": i, "i8": i8,
        "image": s(2, 4, 9, 9), "wide": s(2, 8, 9, 9), "large": s(2, 8, 18, 18),
        "nil": s(0, 4, 9, 9), "packed": h(18, 4, 64), "all": {"output_mask": (True,) * 3},
        "all4": {"grad_input_mask": (True,) * 4},
        "deformed": {
            "input_": s(34, 4, 9, 9), "weight": s(8, 2, 3, 3), "offset": s(34, 18, 7, 7),
            "mask": s(34, 9, 7, 7),
        },
        "packed4": {"B": i8(64, 64), "shapeB": (64, 128), "absmax": s(128)},
        "in_8bit": {"A": i8(8, 9), "B": i8(5, 9), "row_stats": s(8), "col_stats": s(5)},
        "single": {"stride": (1, 1), "groups": 1}, "grouped": {"stride": (1, 1), "groups": 2},
        "expanded": {"expand1": (1, 3), "expand2": (0,), "expand3": (1, 2), "sumdim": (2, 3)},
        "bools": s(4, 9, dtype="bool"),
        "c": partial(spec, dtype="complex64"), "gaps": s(2, 4, 9, 9)._replace(stride=(0, 0, 0, 1)),
        "moved": {"bytes_read": 1000, "bytes_written": 30},
        "again": {"bytes_read_again": 50, "num_instructions": 7, "along_columns": True},
        "flex": (2, 8, 4, 100, 300, 64, 32),
        "halves": {"packed": h(64, 32), "meta": i(9), "out_features": 64, "min_rows": 32},
        "turned": {
            "packed": h(64, 32), "out_features": 64, "min_rows": 64, "min_cols": 64,
            "should_transpose_dense": True,
        },
        "scales": {"scale_a": (s(64),), "scale_b": (s(4, 40),)},
        "six": {"N": 4, "C": 6, "group": 2},
        "by_count": {"scale_grad_by_freq": True}, "by": {"by_column": True},
        "sparse": {
            "plain": i(50), "values": s(50), "other_plain": i(60), "other_values": s(60),
        },
        "nhwc": s(2, 4, 9, 9, channels_last=True),
        "bias": {"output_mask": (False, False, True)},
        "whole": {
            "input_": s(2, 4, 9, 9), "weight": s(8, 4, 3, 3), "offset": s(2, 18, 7, 7),
            "mask": s(2, 9, 7, 7),
        },
        "mixed": {
            "A": h(8, 9), "CA": i8(8, 9), "CB": i8(5, 9), "SCA": s(8), "SCB": s(5),
        },
        "first": {
            "query": h(2, 8, 99, 64), "key": h(2, 2, 130, 64), "value": h(2, 2, 130, 32),
        },
        "behind": {
            "query": h(2, 99, 8, 64), "key": h(2, 130, 2, 64), "value": h(2, 130, 2, 32),
        },
        "held": {
            "query": h(2, 99, 8, 64), "key_cache": h(2, 500, 2, 64),
            "value_cache": h(2, 500, 2, 32), "is_causal": True, "window_size_right": 0,
        },
    }  # fmt: skip
    lines = []
    for row in MADE.splitlines():
        lines += [row, *described(kernels(eval(f"call({row})", names)))]

    require_golden("made_op_kernels.txt", lines)


def test_what_a_call_leaves_out_is_as_the_golden_table_has_it() -> None:
    """The numbers of formulas by default."""
    require_golden("defaults_ops.txt", numbers_by_default("neusight.ops"))
