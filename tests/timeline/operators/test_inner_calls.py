"""What ops call inside: the table against torch's own kernels, where all devices share them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import neusight
from neusight.recording.dispatch.record_functions import RecordFunctions
from neusight.recording.recording import Argument, OpSignature, TensorSpec
from neusight.timeline.operators.inner_calls import CLOSE, LAUNCH, Open, calls_within

aten = torch.ops.aten

#: Ops whose kernel for the CPU calls what that for CUDA does (CompositeExplicitAutograd).
SHARED: dict[str, Callable[[torch.Tensor], object]] = {
    "transpose": lambda x: aten.transpose.int(x, 0, 1),
    "t": lambda x: aten.t.default(x),
    "permute": lambda x: aten.permute.default(x, [1, 0]),
    "expand": lambda x: aten.expand.default(x, [2, 4, 6]),
    "select": lambda x: aten.select.int(x, 0, 1),
    "slice": lambda x: aten.slice.Tensor(x, 0, 0, 2),
    "unsqueeze": lambda x: aten.unsqueeze.default(x, 0),
    "squeeze": lambda x: aten.squeeze.default(x),
    "diagonal": lambda x: aten.diagonal.default(x),
    "unfold": lambda x: aten.unfold.default(x, 0, 2, 1),
    "detach": lambda x: aten.detach.default(x),
    "split": lambda x: aten.split.Tensor(x, 2),
    "split_with_sizes": lambda x: aten.split_with_sizes.default(x, [2, 2]),
    "unbind": lambda x: aten.unbind.int(x),
    "_to_copy": lambda x: aten._to_copy.default(x, dtype=torch.float64),
    "clone": lambda x: aten.clone.default(x),
    "empty_like": lambda x: aten.empty_like.default(x),
    "new_empty": lambda x: aten.new_empty.default(x, [3]),
    "new_ones": lambda x: aten.new_ones.default(x, [3]),
    "new_full": lambda x: aten.new_full.default(x, [3], 1.0),
    "ones_like": lambda x: aten.ones_like.default(x),
    "full_like": lambda x: aten.full_like.default(x, 2.0),
    "rand_like": lambda x: aten.rand_like.default(x),
    "stack": lambda x: aten.stack.default([x, x])[0],
}


def called_on_cpu(op: str, x: torch.Tensor) -> list[str]:
    seen: list[str] = []

    def begins(record: int, number: int, is_node: bool) -> bool:
        seen.append(functions.name_of(record).decode())
        return False

    functions = RecordFunctions(begins)
    functions.switch(True)
    try:
        SHARED[op](x)
    finally:
        functions.switch(False)
    return seen[1:]


@pytest.mark.parametrize("op", SHARED)
def test_an_op_calls_on_the_gpu_what_it_calls_on_the_cpu(op: str) -> None:
    x = torch.rand(4, 6)
    with neusight.forecast_on("H100") as forecast:
        SHARED[op](x.cuda())
    signature = forecast.recording.steps[-1]
    calls = [entry for entry in signature.entries if getattr(entry, "signature", None)]
    named = [one.signature for one in calls if one.signature.op == f"aten::{op}"]  # type: ignore[union-attr]

    opened = [token.name for token in calls_within(named[-1]) if isinstance(token, Open)]
    inside = [name for name in opened if name != "aten::view"]

    on_cpu = [name for name in called_on_cpu(op, x) if name != "aten::view"]
    assert inside == on_cpu[: len(inside)]
    assert len(inside) >= len(on_cpu) or op == "stack"


def test_every_text_of_the_table_is_balanced() -> None:
    from neusight.timeline.operators import inner_calls

    for name in inner_calls._ALWAYS:
        tokens = calls_within(OpSignature(f"aten::{name}", "", (), ()))
        opened = sum(isinstance(token, Open) for token in tokens)
        assert opened == tokens.count(CLOSE), name


def spec(*shape: int, dtype: str = "bfloat16", nhwc: bool = False) -> TensorSpec:
    order = (1, *range(len(shape) - 1, 1, -1), 0) if nhwc else range(len(shape) - 1, -1, -1)
    strides, size = [0] * len(shape), 1
    for dim in order:
        strides[dim] = size
        size *= shape[dim]
    return TensorSpec(shape, tuple(strides), dtype)


def inside(
    op: str, overload: str = "default", outputs: tuple[TensorSpec, ...] = (), **arguments: Argument
) -> str:
    """What an op calls, as the table writes it."""
    text = ""
    tokens = calls_within(OpSignature(f"aten::{op}", overload, tuple(arguments.items()), outputs))
    for token in tokens:
        if token == LAUNCH:
            text += " *"
        else:
            text += f" {token.name[6:]}[" if isinstance(token, Open) else "]"
    return text.replace("[]", "").replace("[ ", "[").strip()


def batch_norm(image: TensorSpec) -> str:
    return inside("native_batch_norm", input=image, training=True)


def convolution_backward(mask: tuple[bool, bool, bool], **changed: Argument) -> str:
    arguments: dict[str, Any] = {
        "grad_output": spec(64, 64, 56, 56, nhwc=True),
        "input": spec(64, 64, 56, 56, nhwc=True), "weight": spec(64, 64, 1, 1, nhwc=True),
        "transposed": False, "groups": 1,
    }  # fmt: skip
    return inside("convolution_backward", output_mask=mask, **{**arguments, **changed})


def convolution(image: TensorSpec, weight: TensorSpec) -> str:
    return inside("convolution", input=image, weight=weight, transposed=False, groups=1)


EMPTY_LIKE = "empty_like[empty_strided]"
CONTIGUOUS = "contiguous[clone[empty_like[empty] copy_[*]]]"
NHWC_WITH_GAPS = TensorSpec((2, 8, 4, 4), (512, 1, 128, 32), "float16")
EXPAND, VIEWS = "expand[as_strided]", "view view view view"
ZEROS = "zeros[empty zero_[fill_[*]]]"


#: As profiles of an H100 with torch 2.11 show them, steps of ResNet-50, ResNeXt, EfficientNet,
#: Swin, a U-Net, BERT, GPT-2, T5, Llama and a mixture of experts.
@pytest.mark.parametrize(
    ("found", "profiled"),
    [
        (
            batch_norm(spec(64, 64, 112, 112, nhwc=True)),
            f"{EMPTY_LIKE} empty empty empty {ZEROS} * * *",
        ),
        (batch_norm(spec(32, 1024, 7, 7, nhwc=True)), f"{EMPTY_LIKE} empty empty * * *"),
        (
            batch_norm(spec(64, 32, 112, 112)),
            f"{EMPTY_LIKE} empty empty reshape[view] * * reshape[view] view *",
        ),
        (convolution_backward((True, True, False)), "to * empty *"),
        (convolution_backward((False, True, False)), "to empty *"),
        (convolution_backward((True, True, True)), "to * empty * sum[as_strided *]"),
        (
            convolution_backward(
                (True, True, False), input=spec(64, 64, 7, 7), weight=spec(64, 1, 3, 3), groups=64
            ),
            "empty empty resize_ * resize_ *",
        ),
        (
            inside(
                "native_layer_norm_backward", input=spec(32, 56, 56, 96), normalized_shape=(96,)
            ),
            "empty empty empty * empty empty * sum[as_strided *] sum[as_strided *]",
        ),
        (
            inside("native_layer_norm_backward", input=spec(8, 512, 768), normalized_shape=(768,)),
            "empty empty empty * *",
        ),
        (
            inside("embedding_dense_backward", indices=spec(512, dtype="int64")),
            f"view {ZEROS} *",
        ),
        (inside("sum", "dim_IntList", self=spec(4, 4), keepdim=True), "*"),
        (
            inside("sum", outputs=(spec(dtype="int64"),), self=spec(4, 4, dtype="bool")),
            "sum[as_strided to[_to_copy[empty_strided copy_[*]]] *]",
        ),
        (inside("pow", "Tensor_Scalar", self=spec(4), exponent=2), "result_type to *"),
        (inside("pow", "Tensor_Scalar", self=spec(4), exponent=1), "result_type to copy_[*]"),
        (inside("div", "Scalar", self=spec(4)), "div[*]"),
        (inside("div", "Tensor", self=spec(4)), ""),
        (
            inside("_foreach_add", "List", outputs=(spec(4), spec(4))),
            "empty_strided empty_strided *",
        ),
        (inside("_foreach_add_", "List", self=(spec(4), spec(4))), ""),
        (
            inside("_scaled_dot_product_cudnn_attention", compute_log_sumexp=True),
            f"_cudnn_attention_forward[empty empty {EMPTY_LIKE} empty *]",
        ),
        (inside("_to_copy", memory_format="channels_last"), "empty copy_[*]"),
        (inside("any", self=spec(1, 1)), "view_as[view] to copy_[*]"),
        (inside("sort", self=spec(8192, dtype="int64")), "sort[copy_[*] *]"),
        (inside("sort", "stable", self=spec(8192, dtype="int64")), "copy_[*] *"),
        (
            inside("sort", "stable", self=spec(2048, dtype="int64"), dim=-1),
            "copy_[*] arange[empty arange[resize_ *]] view copy_[*] copy_[*] *",
        ),
        (inside("mean", self=spec(8, 64)), "mean[as_strided *]"),
        (inside("argmax", self=spec(8, 64), dim=None), "reshape[view] as_strided *"),
        (
            inside("index_select", self=spec(8000, 512), index=spec(2, dtype="int64")),
            "empty resize_ *",
        ),
        (
            inside(
                "native_batch_norm", input=spec(64, 64, 112, 112, dtype="float16"),
                running_mean=spec(64, dtype="float16"), training=False,
            ),
            f"{EMPTY_LIKE} empty empty copy_[*] *",
        ),
        (
            inside("binary_cross_entropy_with_logits", self=spec(16), target=spec(16), reduction=1),
            f"log_sigmoid[log_sigmoid_forward[{EMPTY_LIKE} empty *]] {EMPTY_LIKE} fill_[*] sub_[*] "
            "mul_[*] sub_[*] mean[mean[as_strided *]]",
        ),
        (
            inside(
                "_grouped_mm", self=spec(2048, 3584, dtype="float32"), offs=spec(2, dtype="int32")
            ).count("mm[*]"),
            2,
        ),
        (inside("clamp", self=spec(512, 512), min=1), "to *"),
        (inside("stack", tensors=(spec(4), spec(4)), dim=0), "cat[*] view"),
        (
            inside("stack", tensors=(spec(), spec()), dim=0),
            "unsqueeze[as_strided] unsqueeze[as_strided] cat[*]",
        ),
        (inside("_foreach_norm", "Scalar", outputs=(spec(), spec())), f"{ZEROS} *"),
        (
            inside("masked_fill", self=spec(1, 12, 128, 128), mask=spec(128, 128, dtype="bool")),
            f"{EXPAND} {EXPAND} clone[empty_like[empty] copy_[*]] masked_fill_[{EXPAND} *]",
        ),
        (
            inside("masked_fill", self=spec(128, 128), mask=spec(128, 128, dtype="bool")),
            "clone[empty_like[empty] copy_[*]] masked_fill_[*]",
        ),
        (
            inside("cat", tensors=(spec(8, 512, 16, 16), spec(8, 512, 16, 16, dtype="float32"))),
            "narrow[slice[as_strided]] * narrow[slice[as_strided]] *",
        ),
        (
            inside("native_group_norm", input=spec(8, 128, 64, 64), weight=spec(128), HxW=4096),
            f"empty empty empty * empty empty * {VIEWS} *",
        ),
        (
            inside("native_group_norm_backward", output_mask=(True, True, True)),
            f"empty empty empty empty empty * empty empty empty view view resize_ * * {VIEWS} view "
            "view * *",
        ),
        (
            convolution(spec(8, 128, 64, 64), spec(128, 128, 3, 3, nhwc=True)),
            f"_convolution[{CONTIGUOUS} cudnn_convolution[*]]",
        ),
        (
            convolution(spec(8, 128, 64, 64, nhwc=True), spec(256, 128, 1, 1)),
            "_convolution[cudnn_convolution[*]]",
        ),
        (
            convolution(spec(8, 128, 64, 64, nhwc=True), spec(256, 128, 3, 3)),
            f"_convolution[cudnn_convolution[{CONTIGUOUS} *]]",
        ),
        (
            convolution_backward((True, True, False), grad_output=NHWC_WITH_GAPS),
            f"to {CONTIGUOUS} * {CONTIGUOUS} empty *",
        ),
        (
            convolution_backward((True, True, False), grad_output=spec(64, 64, 56, 56)),
            "to[_to_copy[empty copy_[*]]] * empty *",
        ),
        (
            convolution_backward(
                (True, True, False),
                grad_output=spec(64, 64, 56, 56, nhwc=True),
                input=spec(64, 64, 56, 56),
                weight=spec(64, 64, 3, 3, nhwc=True),
            ),
            f"{CONTIGUOUS} to * empty *",
        ),
        (
            inside(
                "_scaled_dot_product_efficient_attention_backward",
                grad_out_=TensorSpec((1, 2, 4, 8), (64, 8, 16, 1), "bfloat16"),
                grad_input_mask=(True, True, True, True),
            ).partition("_efficient_attention_backward")[2][1:].partition("] transpose")[0],
            "empty empty empty empty slice[as_strided] empty empty zero_[fill_[*]] *",
        ),
        (inside("constant_pad_nd", self=spec(4), pad=(0, 0)), "clone[empty_strided copy_[*]]"),
        (inside("_grouped_mm", self=spec(2048, 3584), offs=spec(2, dtype="int32")), ""),
        (inside("upsample_nearest2d_backward", grad_output=spec(1, 8, 4, 4, nhwc=True)), "*"),
        (
            inside("upsample_nearest2d_backward", grad_output=NHWC_WITH_GAPS),
            f"{CONTIGUOUS} *",
        ),
        (
            inside("index_put", self=spec(8), indices=(spec(2, dtype="int64"),), values=spec(2)),
            "clone[empty_strided copy_[*]] index_put_[_index_put_impl_[*]]",
        ),
        (inside("pow", "Tensor_Tensor", self=spec(4), exponent=spec(4)), ""),
        (
            inside("binary_cross_entropy_with_logits", self=spec(4), pos_weight=spec(4)),
            "",
        ),
        (
            inside("binary_cross_entropy_with_logits", self=spec(4), reduction=2)
            .partition("sub_[*] mul_[*] sub_[*] ")[2],
            "sum[sum[as_strided *]]",
        ),
        (
            inside("isin", "Tensor_Tensor", elements=spec(8, dtype="int64")),
            "fill_[*] unsqueeze[as_strided] view eq[*] any[as_strided *] copy_[*]",
        ),
        (
            inside("isin", "Tensor_Tensor", elements=spec(1, dtype="int64")),
            "fill_[*] unsqueeze[as_strided] view eq[*] any[view_as[view] to copy_[*]] copy_[*]",
        ),
        (
            inside(
                "native_layer_norm_backward",
                input=TensorSpec((8, 16), (1, 8), "float32"), normalized_shape=(16,),
            ),
            f"{CONTIGUOUS} empty empty empty * *",
        ),
        (
            inside("native_group_norm", input=spec(8, 128), weight=spec(128), HxW=1),
            f"empty empty empty * {VIEWS} view view *",
        ),
        (
            inside("native_group_norm", input=spec(8, 128), weight=None, HxW=1),
            f"empty empty empty * {VIEWS} *",
        ),
        (
            inside("native_batch_norm_backward", input=spec(64, 64, 112, 112, nhwc=True)),
            f"empty empty empty empty empty {ZEROS} * {EMPTY_LIKE} *",
        ),
        (
            inside(
                "_index_put_impl_",
                self=spec(8192), indices=(spec(8192, dtype="int64"),), values=spec(8192),
                accumulate=True,
            ).count("contiguous"),
            0,
        ),
    ],
)  # fmt: skip
def test_an_op_calls_what_profiles_show_by_its_arguments(found: object, profiled: object) -> None:
    assert found == profiled


def test_a_recurrent_network_calls_what_a_profile_of_it_has() -> None:
    with neusight.forecast_on("H100") as forecast:
        lstm = torch.nn.LSTM(16, 16, 2, batch_first=True).cuda()
        lstm(torch.ones(4, 8, 16, device="cuda"))[0].sum().backward()
    calls = {
        span.name: calls_within(span.call.signature)
        for span in forecast.timeline.host
        if span.kind == "op" and span.call is not None and "_cudnn_rnn" in span.name
    }

    forward = opened(calls["aten::_cudnn_rnn"])
    backward = opened(calls["aten::_cudnn_rnn_backward"])

    assert forward[:2] == ["transpose", "as_strided"]
    assert forward[-2:] == ["transpose_", "as_strided_"]
    assert forward.count("empty") == 6
    # hy and cy have no gradients; each layer has two matrices and two biases.
    assert (backward.count("zeros_like"), backward.count("resize_as_")) == (2, 8)


def opened(calls: tuple[object, ...]) -> list[str]:
    return [token.name.removeprefix("aten::") for token in calls if isinstance(token, Open)]


@pytest.mark.parametrize("op", ["stack", "_softmax", "native_batch_norm"])
def test_what_depends_on_arguments_is_unknown_for_an_operator_of_a_profile(op: str) -> None:
    assert calls_within(OpSignature(f"aten::{op}", "default", (), ())) == ()


@pytest.mark.parametrize(
    ("channels", "columns", "is_shared"),
    [
        (64, 1792, False),  # 32 columns by 16 threads of 16 rows: 7 of them, or 8
        (64, 1793, True),
        (5, 14336, False),  # 4 columns by 128 threads
        (5, 14337, True),
        (64, 127, False),
        (4096, 1793, True),
    ],
)
def test_ctas_share_a_channel_from_eight_on(channels: int, columns: int, is_shared: bool) -> None:
    found = batch_norm(spec(1, channels, 1, columns, nhwc=True))

    sums = f" empty {ZEROS}" if is_shared else ""
    assert found == f"{EMPTY_LIKE} empty empty{sums} * * *"


LOGITS = (
    f"log_sigmoid[log_sigmoid_forward[{EMPTY_LIKE} empty *]] {EMPTY_LIKE} fill_[*] sub_[*] mul_[*] "
    "sub_[*]"
)


@pytest.mark.parametrize(
    ("reduction", "weights", "expected"),
    [
        (0, (None, None), LOGITS),
        (1, (None, None), f"{LOGITS} mean[mean[as_strided *]]"),
        (2, (None, None), f"{LOGITS} sum[sum[as_strided *]]"),
        (1, (spec(8), None), ""),
        (1, (None, spec(8)), ""),
    ],
)
def test_a_loss_of_logits_is_reduced_as_is_stated(
    reduction: int, weights: tuple[TensorSpec | None, TensorSpec | None], expected: str
) -> None:
    found = inside(
        "binary_cross_entropy_with_logits", self=spec(4, 8), target=spec(4, 8),
        weight=weights[0], pos_weight=weights[1], reduction=reduction,
    )  # fmt: skip

    assert found == expected


@pytest.mark.parametrize(
    ("elements", "found"), [(spec(), "view_as[view] to copy_[*]"), (spec(2), "as_strided *")]
)
def test_one_element_is_looked_for_without_a_reduction(elements: TensorSpec, found: str) -> None:
    assert inside("isin", overload="Tensor_Tensor", elements=elements, test_elements=spec(3)) == (
        f"fill_[*] unsqueeze[as_strided] view eq[*] any[{found}] copy_[*]"
    )
