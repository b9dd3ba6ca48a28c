"""Ops that launch nothing: views, metadata and empty memory."""

from __future__ import annotations

from neusight.ops.operands import op_names
from neusight.ops.registry import register_op
from neusight.predictors.kernel import Kernel
from neusight.recording.recording import OpSignature

#: Views by their schema (an argument is aliased, none is written), and what allocates memory or
#: answers about a tensor without a kernel.
VIEWS: tuple[str, ...] = op_names(
    """
    _assert_scalar _assert_tensor_metadata _autocast_to_full_precision
    _autocast_to_reduced_precision _coalesced _conj _debug_has_internal_overlap _dimI _dimV
    _empty_affine_quantized _functional_assert_scalar _functional_sym_constrain_range
    _functional_sym_constrain_range_for_size _fused_sdp_choice _fw_primal
    _has_compatible_shallow_copy_type _has_same_storage_numel _indices _is_zerotensor
    _lazy_clone _linalg_check_errors _make_dep_token _make_dual _neg_view
    _nested_get_jagged_dummy _nested_get_lengths _nested_get_max_seqlen _nested_get_min_seqlen
    _nested_get_offsets _nested_get_ragged_idx _nested_get_values _nested_tensor_size
    _nested_tensor_storage_offsets _nested_tensor_strides _nested_view_from_buffer
    _nested_view_from_jagged _nnz _pin_memory _print _reshape_alias _resize_output
    _shape_as_tensor _sparse_broadcast_to _test_autograd_multiple_dispatch_view _unsafe_view
    _use_cudnn_ctc_loss _use_miopen_ctc_loss _values _version adjoint alias as_strided
    broadcast_to ccol_indices chunk col_indices conj contiguous crow_indices data dense_dim
    detach diagonal empty empty_like empty_permuted empty_quantized empty_strided expand
    expand_as flatten imag indices is_coalesced is_complex is_contiguous is_floating_point
    is_inference is_leaf is_non_overlapping_and_dense is_nonoverlapping_and_dense is_pinned
    is_same_size is_set_to is_strides_like_format layout lift lift_fresh movedim narrow
    new_empty new_empty_strided numel permute prim_layout q_per_channel_axis q_scale
    q_zero_point qscheme real record_stream requires_grad_ reshape_as resize resize_as
    resize_as_sparse resolve_conj resolve_neg result_type retain_grad row_indices select set
    set_data size slice slice_inverse sparse_dim sparse_resize sparse_resize_and_clear split
    split_with_sizes squeeze storage_offset stride swapaxes swapdims sym_constrain_range
    sym_constrain_range_for_size sym_is_contiguous sym_numel sym_size sym_storage_offset
    sym_stride t tensor_split transpose unbind unfold unsafe_chunk unsafe_split
    unsafe_split_with_sizes unsqueeze values view view_as view_as_complex view_as_real
    """
)


#: The same of other namespaces: marks of the profiler, questions to a tensor.
_OTHERS = (
    "prim::device",
    "prim::layout",
    "profiler::_record_function_enter",
    "profiler::_record_function_enter_new",
    "profiler::_record_function_exit",
)


@register_op(*(f"aten::{name}" for name in VIEWS), *_OTHERS)
def no_kernels(call: OpSignature) -> list[Kernel]:
    """Nothing is launched."""
    return []
