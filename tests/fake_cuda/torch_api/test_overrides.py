"""Choices that torch makes for a device: attention, recurrent networks, fused ops."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

import neusight
from neusight.fake_cuda.torch_api.attention_choice import AttentionCall
from neusight.fake_cuda.torch_api.overrides import attention_query, attention_query_result
from neusight.predictors.errors import UnmappedOpError
from neusight.predictors.gpu import find_gpu
from neusight.recording.recording import OpCall, Synchronize, TensorSpec
from recorded_programs import entries_of


def calls(name: str, program: Any) -> list[OpCall]:
    with neusight.forecast_on(name) as forecast:
        program()
    return entries_of(forecast, OpCall)


def op_names(name: str, program: Any) -> set[str]:
    return {call.signature.op.removeprefix("aten::") for call in calls(name, program)}


def query(heads: int = 8, head_dim: int = 64, dtype: torch.dtype = torch.float16) -> torch.Tensor:
    return torch.randn(2, heads, 128, head_dim, device="cuda", dtype=dtype)


def attention(q: Any = None, k: Any = None, **options: Any) -> torch.Tensor:
    q = query() if q is None else q
    k = q if k is None else k
    return F.scaled_dot_product_attention(q, k, k, **options)


@pytest.mark.parametrize(
    ("name", "dtype", "expected"),
    [
        ("H100", torch.float16, "_scaled_dot_product_cudnn_attention"),
        ("H100", torch.float32, "_scaled_dot_product_efficient_attention"),
        ("A100", torch.bfloat16, "_scaled_dot_product_flash_attention"),
        ("V100", torch.float16, "_scaled_dot_product_efficient_attention"),
        ("V100", torch.bfloat16, "bmm"),
    ],
)
def test_attention_is_chosen_for_the_target(name: str, dtype: torch.dtype, expected: str) -> None:
    assert expected in op_names(name, lambda: attention(query(dtype=dtype)))


def test_backends_can_be_switched_off_and_ordered() -> None:
    def without_cudnn() -> None:
        torch.backends.cuda.enable_cudnn_sdp(False)
        try:
            attention()
        finally:
            torch.backends.cuda.enable_cudnn_sdp(True)

    def efficient_first() -> None:
        order = [SDPBackend.EFFICIENT_ATTENTION, SDPBackend.FLASH_ATTENTION]
        with sdpa_kernel(order, set_priority=True):
            attention()

    assert "_scaled_dot_product_flash_attention" in op_names("H100", without_cudnn)
    assert "_scaled_dot_product_efficient_attention" in op_names("H100", efficient_first)


@pytest.mark.parametrize(
    ("first", "expected"),
    [
        (SDPBackend.MATH, "bmm"),
        (SDPBackend.FLASH_ATTENTION, "_scaled_dot_product_flash_attention"),
        (SDPBackend.EFFICIENT_ATTENTION, "_scaled_dot_product_efficient_attention"),
        (SDPBackend.CUDNN_ATTENTION, "_scaled_dot_product_cudnn_attention"),
    ],
)
def test_the_backend_that_a_script_sets_first_runs(first: SDPBackend, expected: str) -> None:
    every = [
        SDPBackend.CUDNN_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.FLASH_ATTENTION,
        SDPBackend.MATH,
    ]  # fmt: skip

    def program() -> None:
        others = [backend for backend in every if backend != first]
        with sdpa_kernel([first, *others], set_priority=True):
            attention()

    assert expected in op_names("H100", program)


def test_attention_that_no_enabled_kernel_takes_says_so() -> None:
    with neusight.forecast_on("H100"):
        wide = query(head_dim=512)
        with (
            sdpa_kernel(SDPBackend.FLASH_ATTENTION),
            pytest.raises(RuntimeError, match="No available kernel"),
        ):
            attention(wide)


def test_flash_pads_uneven_heads_and_gives_back_their_size() -> None:
    shapes: list[tuple[int, ...]] = []

    def program() -> None:
        q = query(head_dim=60).requires_grad_()
        out = attention(q)
        shapes.append(tuple(out.shape))
        out.sum().backward()

    names = op_names("A100", program)
    assert shapes == [(2, 8, 128, 60)]
    assert {"constant_pad_nd", "_scaled_dot_product_flash_attention_backward"} <= names


def test_grouped_heads_and_masks_run() -> None:
    shapes: list[tuple[int, ...]] = []

    def program() -> None:
        mask = torch.ones(128, 128, dtype=torch.bool, device="cuda").tril()
        shapes.append(tuple(attention(query(), query(heads=2), enable_gqa=True).shape))
        shapes.append(tuple(attention(query(dtype=torch.float32), attn_mask=mask).shape))
        uneven = torch.zeros(1, 1, 128, 100, device="cuda")
        shapes.append(
            tuple(attention(query(dtype=torch.float32), torch.randn(2, 8, 100, 64, device="cuda"),
                            attn_mask=uneven).shape)
        )  # fmt: skip

    biases = [
        call.signature.by_name.get("attn_bias")
        for call in calls("A100", program)
        if call.signature.op == "aten::_scaled_dot_product_efficient_attention"
    ]
    assert shapes == [(2, 8, 128, 64)] * 3
    rows = [bias.stride[-2] for bias in biases if isinstance(bias, TensorSpec)]
    assert rows == [128, 112]  # padded to a multiple of 16


def test_a_choice_of_attention_is_a_question_to_the_gpu() -> None:
    spec = TensorSpec((2, 8, 128, 64), (65536, 8192, 64, 1), "float16")
    device_query = attention_query(AttentionCall(query=spec, key=spec, value=spec))

    assert attention_query_result(device_query, find_gpu("H100")) == repr("cudnn")
    assert attention_query_result(device_query, find_gpu("A100")) == repr("flash")
    assert attention_query_result("get_device_name", find_gpu("A100")) is None


@pytest.mark.parametrize(
    ("run", "message"),
    [
        (
            lambda: nn.LSTM(4, 4)(torch.randn(3, 2, 4, device="cuda")),
            "Input and parameter tensors are not at the same device, found input tensor at cuda:0 "
            "and parameter tensor at cpu",
        ),
        (
            lambda: nn.RNN(4, 4).cuda()(torch.randn(3, 2, 4)),
            "Input and parameter tensors are not at the same device, found input tensor at cpu and "
            "parameter tensor at cuda:0",
        ),
        (
            lambda: nn.GRU(4, 4).cuda()(torch.randn(3, 2, 4, device="cuda"), torch.zeros(1, 2, 4)),
            "Input and hidden tensors are not at the same device, found input tensor at cuda:0 and "
            "hidden tensor at cpu",
        ),
        (
            lambda: nn.LSTM(4, 4).cuda()(
                torch.randn(3, 2, 4, device="cuda"),
                (torch.zeros(1, 2, 4, device="cuda"), torch.zeros(1, 2, 4, device="cuda").half()),
            ),
            "Input and hidden tensors are not the same dtype, found input tensor with Float and "
            "hidden tensor with Half",
        ),
    ],
)
def test_a_recurrent_network_says_which_tensor_is_elsewhere(run: Any, message: str) -> None:
    with neusight.forecast_on("H100"), pytest.raises(RuntimeError) as caught:
        run()

    assert str(caught.value) == message


@pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")
@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("packed", [False, True])
def test_recurrent_networks_have_the_shapes_of_the_cpu(
    kind: str, bidirectional: bool, packed: bool
) -> None:
    def shapes(device: str) -> list[tuple[int, ...]]:
        options: dict[str, Any] = {"num_layers": 2, "bidirectional": bidirectional, "bias": packed}
        if kind == "LSTM":
            options["proj_size"] = 5
        network = getattr(nn, kind)(8, 16, **options).to(device)
        data: Any = torch.randn(7, 3, 8, device=device)
        if packed:
            data = nn.utils.rnn.pack_padded_sequence(data, [7, 4, 2])
        out, state = network(data)
        out = out.data if packed else out
        out.sum().backward()
        gradients = [tuple(p.grad.shape) for p in network.parameters()]
        states = state if isinstance(state, tuple) else (state,)
        return [tuple(out.shape), *(tuple(s.shape) for s in states), *gradients]

    with neusight.forecast_on("H100"):
        found = shapes("cuda")

    assert found == shapes("cpu")


@pytest.mark.parametrize(
    ("network", "num_gates"),
    [(nn.RNN, 1), (partial(nn.RNN, nonlinearity="relu"), 1), (nn.GRU, 3), (nn.LSTM, 4)],
)
def test_a_recurrent_network_keeps_its_gates_and_two_states_for_backward(
    network: Any, num_gates: int
) -> None:
    found = calls("H100", lambda: network(8, 16).cuda()(torch.ones(7, 3, 8, device="cuda")))

    (call,) = [call for call in found if call.signature.op == "aten::_cudnn_rnn"]
    assert call.signature.output_tensors[3].shape == (7 * 3 * 16 * (num_gates + 2) * 4,)


@pytest.mark.parametrize("is_two_way", [False, True])
def test_a_recurrent_network_states_its_sizes(is_two_way: bool) -> None:
    def program() -> None:
        network = nn.LSTM(8, 16, num_layers=2, proj_size=5, bias=False, bidirectional=is_two_way)
        network.cuda()(torch.ones(7, 3, 8, device="cuda"))

    (call,) = [call for call in calls("H100", program) if call.signature.op == "aten::_cudnn_rnn"]
    sizes = ("weight_stride0", "hidden_size", "proj_size")
    assert [call.signature.by_name[name] for name in sizes] == [3, 16, 5]


def test_a_recurrent_network_in_autocast_computes_in_half() -> None:
    def program() -> None:
        network = nn.GRU(8, 16).cuda()
        with torch.autocast("cuda", dtype=torch.float16):
            network(torch.randn(7, 3, 8, device="cuda"))

    (call,) = [c for c in calls("H100", program) if c.signature.op == "aten::_cudnn_rnn"]
    assert {spec.dtype for spec in call.signature.input_tensors} == {"float16"}


def test_a_fused_norm_has_one_backward_and_the_right_shapes() -> None:
    found: list[Any] = []

    def program() -> None:
        norm = nn.RMSNorm(32, device="cuda", dtype=torch.bfloat16)
        x = torch.randn(4, 8, 32, device="cuda", dtype=torch.bfloat16, requires_grad=True)
        out = norm(x)
        out.sum().backward()
        assert x.grad is not None and norm.weight.grad is not None
        found.extend([out.dtype, tuple(x.grad.shape), tuple(norm.weight.grad.shape)])
        without = F.rms_norm(x, (32,))
        without.sum().backward()

    names = [call.signature.op for call in calls("H100", program)]
    assert found == [torch.bfloat16, (4, 8, 32), (32,)]
    assert names.count("aten::_fused_rms_norm") == 2
    assert names.count("aten::_fused_rms_norm_backward") == 2
    assert "aten::zeros" not in names


def test_ctc_loss_runs() -> None:
    def program() -> None:
        log_probs = torch.randn(20, 2, 5, device="cuda", requires_grad=True).log_softmax(2)
        targets = torch.tensor([[1, 2, 3], [2, 3, 4]], device="cuda")
        lengths = torch.full((2,), 20), torch.full((2,), 3)
        F.ctc_loss(log_probs, targets, *lengths).backward()

    assert "_ctc_loss" in op_names("H100", program)


def test_what_a_call_leaves_out_is_as_torch_has_it() -> None:
    def program() -> None:
        attention()
        lengths = torch.full((2,), 20), torch.full((2,), 3)
        targets = torch.ones(2, 3, dtype=torch.long, device="cuda")
        F.ctc_loss(torch.zeros(20, 2, 5, device="cuda"), targets, *lengths)

    found = calls("H100", program)

    [attended] = [call for call in found if "_cudnn_attention" in call.signature.op]
    [lost] = [call for call in found if call.signature.op == "aten::_ctc_loss"]
    assert attended.signature.by_name.get("dropout_p", 0.0) == 0.0
    assert lost.signature.by_name.get("blank", 0) == 0
    assert "aten::mean" in [call.signature.op for call in found]  # the reduction


@pytest.mark.parametrize(
    "function",
    [
        lambda x: F.grid_sample(x, torch.zeros(2, 5, 6, 2, device="cuda"), align_corners=True),
        lambda x: F.multi_margin_loss(
            x.flatten(1), torch.zeros(2, dtype=torch.long, device="cuda")
        ),
    ],
)
def test_ops_without_a_fake_kernel_in_torch_have_one(function: Any) -> None:
    shapes: list[tuple[int, ...]] = []

    def program() -> None:
        x = torch.randn(2, 3, 8, 8, device="cuda", requires_grad=True)
        function(x).sum().backward()
        assert x.grad is not None
        shapes.append(tuple(x.grad.shape))

    calls("H100", program)
    assert shapes == [(2, 3, 8, 8)]


def test_an_op_whose_result_nobody_knows_is_named_with_its_line() -> None:
    with neusight.forecast_on("H100"):
        x = torch.randn(4, 4, device="cuda")
        with pytest.raises(
            UnmappedOpError, match=r"aten::to_mkldnn at test_overrides.py:\d+ has no fake"
        ):
            x.to_mkldnn()


def test_the_cpu_keeps_its_own_kernels_inside_and_out() -> None:
    torch.manual_seed(0)
    q = torch.randn(1, 2, 4, 8)
    expected = [attention(q), F.rms_norm(q, (8,)), nn.functional.silu(q)]

    with neusight.forecast_on("H100"):
        torch.zeros(1, device="cuda")
        inside = [attention(q), F.rms_norm(q, (8,)), nn.functional.silu(q)]
    after = [attention(q), F.rms_norm(q, (8,)), nn.functional.silu(q)]

    for one, two, three in zip(expected, inside, after, strict=True):
        assert torch.equal(one, two) and torch.equal(one, three)


def test_indices_are_lists_of_single_values_of_the_gpu() -> None:
    with neusight.forecast_on("H100") as forecast:
        first, second = torch.tensor([0, 1], device="cuda")
        table = torch.ones(2, 3, 4, device="cuda")
        rows = table[(first, second), (second, first)]
        mixed = table[:, [first, 2], 1:]
        table[[first, 1], [0, second]] = 0.0

        @torch.compile(backend="eager")
        def picked(x: torch.Tensor) -> torch.Tensor:
            return x[(first, second), (second, first)] + 1

        compiled = picked(table)

    assert rows.shape == compiled.shape == (2, 4)
    assert mixed.shape == (2, 2, 3)
    entries = [entry for step in forecast.recording.steps for entry in step.entries]
    assert sum(isinstance(entry, Synchronize) for entry in entries) >= 7


def test_one_hot_writes_ones_where_a_compiler_compares() -> None:
    def classes(x: torch.Tensor) -> torch.Tensor:
        return F.one_hot(x, 5)

    def program() -> None:
        labels = torch.tensor([1, 2], device="cuda")
        assert classes(labels).tolist() == [[0, 1, 0, 0, 0], [0, 0, 1, 0, 0]]
        assert F.one_hot(labels).shape == (2, 3)
        with pytest.raises(RuntimeError, match="LongTensor"):
            classes(labels.int())
        with pytest.raises(RuntimeError, match="should be positive"):
            F.one_hot(labels, 0)

    assert {"zeros", "scatter_"} <= op_names("H100", program)
    with neusight.forecast_on("H100"):
        labels = torch.ones(2, dtype=torch.long, device="cuda")
        assert torch.vmap(classes)(labels).shape == (2, 5)
        assert torch.compile(classes, backend="aot_eager")(labels).shape == (2, 5)


@pytest.mark.parametrize(
    ("change", "reported"),
    [
        ({"key": torch.float32}, "Expected query, key, and value to have the same dtype"),
        ({"mask": torch.float64}, "Expected attn_mask dtype to be bool or float"),
        ({"mask": torch.bool, "is_causal": True}, "Explicit attn_mask should not be set"),
    ],
)
def test_operands_that_do_not_fit_are_refused_as_torch_does(
    change: dict[str, Any], reported: str
) -> None:
    with neusight.forecast_on("H100"):
        query = torch.ones(1, 2, 8, 64, dtype=torch.bfloat16, device="cuda")
        key = query.to(change.get("key", torch.bfloat16))
        mask = torch.ones(8, 8, device="cuda").to(change["mask"]) if "mask" in change else None
        with pytest.raises(RuntimeError, match=reported):
            torch.nn.functional.scaled_dot_product_attention(
                query, key, query, attn_mask=mask, is_causal=change.get("is_causal", False)
            )


@pytest.mark.parametrize("as_tensors", [True, False])
@pytest.mark.parametrize(("targets", "longest"), [((2, 7), 7), ((9,), 5)])
def test_ctc_keeps_a_blank_around_each_label(
    targets: tuple[int, ...], longest: int, as_tensors: bool
) -> None:
    with neusight.forecast_on("H100"):
        log_probs = torch.zeros(12, 2, 20, device="cuda")
        labels = torch.ones(targets, dtype=torch.long, device="cuda")
        lengths: list[Any] = [[12, 12], [4, 5]]
        if as_tensors:
            lengths = [torch.tensor(values) for values in lengths]
        op: Any = torch.ops.aten._ctc_loss
        loss, alpha = op(log_probs, labels, *lengths)
        shapes = tuple(loss.shape), tuple(alpha.shape)

    assert shapes == ((2,), (2, 12, 2 * longest + 1))


def test_a_network_whose_batch_is_first_gives_steps_that_lie_behind_each_other() -> None:
    with neusight.forecast_on("H100"):
        network = nn.LSTM(8, 16, batch_first=True, bidirectional=True).cuda()
        out, _ = network(torch.zeros(3, 5, 8, device="cuda"))

    assert (tuple(out.shape), out.stride()) == ((3, 5, 32), (32, 3 * 32, 1))
