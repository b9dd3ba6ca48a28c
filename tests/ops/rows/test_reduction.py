"""Reductions, scans and losses: what they read and write."""

from __future__ import annotations

from op_calls import call, kernels, spec


def test_a_reduction_has_a_row_a_result() -> None:
    along = kernels(call("sum", spec(64), self=spec(64, 32), dim=(1,), keepdim=False))[0]
    across = kernels(call("sum", spec(32), self=spec(64, 32), dim=(0,), keepdim=False))[0]

    assert along.size == (64, 32)
    assert across.size == (32, 64)
    assert (along.layout, across.layout) == ("contiguous", "strided")


def test_a_loss_reads_one_score_a_target() -> None:
    (kernel,) = kernels(
        call(
            "nll_loss_forward",
            spec(),
            spec(),
            self=spec(128, 50000),
            target=spec(128, dtype="int64"),
            weight=None,
            reduction=1,
            ignore_index=-100,
        )
    )

    assert kernel.bytes_read == 128 * (4 + 8)
