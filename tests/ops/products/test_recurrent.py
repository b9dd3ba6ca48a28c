"""Recurrent networks as the products and gates they consist of."""

from __future__ import annotations

from typing import Any

from neusight.predictors.kernel import KernelClass
from neusight.recording.recording import OpSignature
from op_calls import call, kernels, names, spec


def lstm(op: str, **more: Any) -> OpSignature:
    """5 steps of 2 sequences, 16 to 32, one layer."""
    return call(
        op,
        spec(5, 2, 32),
        input_=spec(5, 2, 16),
        weight=(spec(128, 16), spec(128, 32)),
        mode=2,
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

    assert [k.name for k in launched] == ["gemm"] + ["gemm", "lstm_cell"] * 5
    products = [k.flops for k in launched if k.kernel_class is KernelClass.GEMM]
    assert products == [2 * 10 * 128 * 16] + [2 * 2 * 128 * 32] * 5


def test_an_lstm_backward_has_products_for_inputs_and_weights() -> None:
    launched = names(lstm("_cudnn_rnn_backward", output_mask=(True, True, True, True)))

    assert launched == ["lstm_cell_backward", "gemm"] * 5 + ["gemm", "gemm", "gemm", "sum"]
