"""Which kernels calls of ops launch, with their FLOPs and bytes, as tables;
NEUSIGHT_UPDATE_GOLDEN=1 rewrites them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from difflib import unified_diff
from functools import partial
from itertools import pairwise
from typing import Any

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
    s, h, i = spec, partial(spec, dtype="float16"), partial(spec, dtype="int64")
    names: dict[str, Any] = {
        "call": call, "s": s, "h": h, "i": i, "i8": partial(spec, dtype="int8"),
        "image": s(2, 4, 9, 9), "wide": s(2, 8, 9, 9), "large": s(2, 8, 18, 18),
        "nil": s(0, 4, 9, 9), "packed": h(18, 4, 64), "all": {"output_mask": (True,) * 3},
    }  # fmt: skip
    lines = []
    for row in MADE.splitlines():
        lines += [row, *described(kernels(eval(f"call({row})", names)))]

    require_golden("made_op_kernels.txt", lines)
