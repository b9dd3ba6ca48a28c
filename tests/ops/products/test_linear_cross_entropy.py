"""The last Linear and its cross entropy in one op, a chunk of rows at a time."""

from __future__ import annotations

from typing import Any

from neusight.predictors.kernel import Kernel
from op_calls import call, kernels, spec


def loss(rows: int, chunk: int, **wanted: Any) -> tuple[Kernel, ...]:
    """Rows of 64 into 1000 classes, in bf16."""
    half: dict[str, Any] = {"dtype": "bfloat16"}
    return kernels(
        call(
            "torch_nn::_linear_cross_entropy_batch_chunked",
            spec(),
            input_=spec(rows, 64, **half),
            linear_weight=spec(1000, 64, **half),
            target=spec(rows, dtype="int64"),
            linear_bias=None,
            batch_chunk_size=chunk,
            **wanted,
        )
    )


def test_a_loss_alone_is_logits_softmax_and_a_pick() -> None:
    product, softmax, pick = loss(128, 0)

    assert (product.name, product.flops) == ("gemm", 2 * 128 * 1000 * 64)
    assert (softmax.bytes_read, softmax.bytes_written) == (2 * 128_000, 2 * 128_000)
    assert (pick.bytes_read, pick.bytes_written) == (2 * 4 * 128, 4 * 128)


def test_the_last_chunk_holds_what_is_left() -> None:
    launched = loss(300, 128)

    assert [kernel.flops for kernel in launched if kernel.name == "gemm"] == [
        2 * 128 * 1000 * 64,
        2 * 128 * 1000 * 64,
        2 * 44 * 1000 * 64,
    ]


def test_each_gradient_asked_for_is_a_product_or_a_sum() -> None:
    launched = loss(
        128,
        0,
        compute_input_grad=True,
        compute_linear_weight_grad=True,
        compute_linear_bias_grad=True,
    )

    assert [kernel.name for kernel in launched] == [
        "gemm",
        "log_softmax",
        "nll_loss",
        "softmax_gradient",
        "gemm",
        "gemm",
        "sum",
    ]
    assert {kernel.flops for kernel in launched if kernel.name == "gemm"} == {2 * 128 * 1000 * 64}
    assert (launched[-1].bytes_read, launched[-1].bytes_written) == (256_000, 2_000)
