"""Recurrent networks as the products and gates they consist of."""

from __future__ import annotations

from typing import Any

import pytest

from neusight.predictors.kernel import RECURRENT, KernelClass
from neusight.recording.recording import OpSignature
from op_calls import call, kernels, names, spec


def lstm(op: str, *, mode: int = 2, **more: Any) -> OpSignature:
    """5 steps of 2 sequences, 16 to 32, one layer."""
    return call(
        op,
        spec(5, 2, 32),
        input_=spec(5, 2, 16),
        weight=(spec(128, 16), spec(128, 32)),
        mode=mode,
        hidden_size=32,
        proj_size=0,
        num_layers=1,
        batch_first=False,
        dropout=0.0,
        train=True,
        bidirectional=False,
        batch_sizes=(),
        **more,
    )


def test_an_lstm_is_one_product_for_all_inputs_then_a_product_and_gates_a_step() -> None:
    launched = kernels(lstm("_cudnn_rnn"))

    assert [k.name for k in launched] == ["gemm"] + [RECURRENT, "lstm_cell"] * 5
    products = [k.flops for k in launched if k.kernel_class is KernelClass.GEMM]
    assert products == [2 * 10 * 128 * 16] + [2 * 2 * 128 * 32] * 5


def test_an_lstm_backward_has_products_for_inputs_and_weights() -> None:
    launched = names(lstm("_cudnn_rnn_backward", output_mask=(True, True, True, True)))

    assert launched == ["lstm_cell_backward", RECURRENT] * 5 + ["gemm", "gemm", "gemm", "sum"]


def test_gates_and_state_are_read_and_state_is_written() -> None:
    """A step of 2 sequences: 4 gates of 32 twice (from input and state) and the state in, hidden
    and cell state out."""
    cell = kernels(lstm("_cudnn_rnn"))[2]

    assert (cell.bytes_read, cell.bytes_written) == (4 * (2 * 2 * 128 + 64), 2 * 4 * 64)


def network(mode: int, op: str = "_cudnn_rnn", **more: Any) -> list[str]:
    options: dict[str, Any] = {
        "weight": (), "mode": mode, "hidden_size": 32, "proj_size": 0, "num_layers": 1,
        "batch_first": True, "dropout": 0.0, "train": True, "bidirectional": False,
        "batch_sizes": (),
    }  # fmt: skip
    options.update(more)
    return names(call(op, spec(2, 5, 32), input_=spec(2, 5, 16), **options))


def test_the_mode_states_the_cell() -> None:
    assert network(0)[3] == network(1)[3] == "rnn_cell"
    assert network(2)[3] == "lstm_cell"
    assert network(3)[3] == "gru_cell"


@pytest.mark.parametrize(("mode", "num_gates"), [(0, 1), (1, 1), (2, 4), (3, 3)])
def test_a_product_has_the_columns_of_all_gates(mode: int, num_gates: int) -> None:
    first, *_ = kernels(lstm("_cudnn_rnn", mode=mode))

    assert first.flops == 2 * 10 * (num_gates * 32) * 16


def test_layers_directions_and_dropout_add_up() -> None:
    """Batch first: 5 steps. A layer and direction is a product and 5 of a product and a cell."""
    one = ["gemm", *[RECURRENT, "gru_cell"] * 5]

    assert network(3) == ["copy", *one]
    assert network(3, bidirectional=True) == ["copy", *one * 2]
    assert network(3, num_layers=2, dropout=0.1) == ["copy", *one, "dropout", *one]
    assert network(3, num_layers=2, dropout=0.1, train=False) == ["copy", *one * 2]


def branches(op: str = "_cudnn_rnn", *, steps: int = 20, **more: Any) -> list[tuple[int, ...]]:
    """On which streams the kernels of a time step's product and the gemms run, a run once."""
    options: dict[str, Any] = {
        "weight": (), "mode": 2, "hidden_size": 32, "proj_size": 0, "num_layers": 2,
        "batch_first": False, "dropout": 0.0, "train": True, "bidirectional": False,
        "batch_sizes": (),
    }  # fmt: skip
    options.update(more)
    launched = kernels(call(op, spec(steps, 2, 32), input_=spec(steps, 2, 16), **options))
    found = [kernel.branches for kernel in launched]
    return [item for item, before in zip(found, [None, *found], strict=False) if item != before]


def test_a_layer_follows_the_one_before_by_eight_steps() -> None:
    """H200, benchmarks/measured: the products of the inputs and the steps of each layer have
    streams of their own. 20 steps are 3 parts; a layer's begins with that of the one before."""
    of_first = [(1,), (2, 1), (2,)]
    of_second = [(4, 2), (5, 4), (5,)]

    assert branches() == of_first + of_second + of_first + of_second + of_first + of_second
    assert branches(num_layers=1) == [()]
    assert branches(steps=8) == of_first + of_second


def test_directions_run_beside_each_other_and_the_next_layer_behind_both() -> None:
    first, second = [(1,), (2, 1), (2,)], [(4,), (5, 4), (5,)]

    assert branches(steps=8, num_layers=1, bidirectional=True) == first + second
    assert branches(steps=8, bidirectional=True)[6] == (7, 2, 5)


def test_a_gradient_begins_with_the_last_layer_and_ends_with_the_weights() -> None:
    found = branches("_cudnn_rnn_backward", steps=8, output_mask=(True, True, True, True))

    last = [(5,), (4, 5), (6, 5), (6,)]
    assert found == [*last, (2, 4), (2,), (1, 2), (3, 2), (3,)]


def test_a_batch_first_is_copied_to_be_a_time_step_after_another() -> None:
    """H100, lstm_bf16 (benchmarks/measured/h100): a copy forward; backward the input twice, for its
    gradient and the weights', and the gradient of the output."""
    backward = {"output_mask": (True, True, True, True), "train": True}

    assert network(2).count("copy") == 1
    assert network(2, op="_cudnn_rnn_backward", **backward).count("copy") == 3
    assert network(2, batch_first=False).count("copy") == 0


def test_packed_sequences_have_a_step_a_length_and_a_projection_a_product() -> None:
    assert network(2, batch_sizes=(2, 2, 1)) == ["gemm", *[RECURRENT, "lstm_cell"] * 3]
    assert network(2, proj_size=8) == ["copy", "gemm", *[RECURRENT, "lstm_cell", RECURRENT] * 5]


def test_a_fused_cell_sums_its_bias_gradient() -> None:
    gates = spec(2, 128)
    backward = call(
        "_thnn_fused_lstm_cell_backward_impl", gates, spec(2, 32), spec(128),
        grad_hy=spec(2, 32), workspace=gates, has_bias=True,
    )  # fmt: skip

    cell, bias = kernels(backward)
    assert cell.name == "lstm_cell_backward"
    assert (bias.name, bias.bytes_read, bias.bytes_written) == ("sum", 1024, 512)
