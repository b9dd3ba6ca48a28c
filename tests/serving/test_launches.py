"""Kernels of a few recorded forwards become functions of the batch."""

from __future__ import annotations

from dataclasses import replace

import pytest

from neusight.predictors.errors import RecordingError
from neusight.predictors.kernel import GemmSize, Kernel, KernelClass, RowsSize
from neusight.serving.launches import (
    EXPERTS,
    BatchTotals,
    FittedKernel,
    LaunchedKernel,
    RecordedPoint,
    aligned,
    fitted_kernels,
)

BATCHES = [(1, 64, 256), (1, 128, 256), (1, 64, 512), (1, 128, 512), (2, 64, 256)]
HIDDEN, HEADS = 512, 4


def mask(sequences: int, tokens: int, context: int) -> Kernel:
    pairs = sequences * tokens * context
    return Kernel.elementwise("mask", pairs, dtype="bool")


def recorded(*, extra_copy: bool = False, more: int = 0) -> list[RecordedPoint]:
    points = []
    for sequences, tokens, past in BATCHES:
        rows = sequences * tokens
        kernels = [
            Kernel.gemm(rows, 1024, HIDDEN, dtype="bfloat16"),
            Kernel.elementwise("add", rows * HIDDEN, dtype="bfloat16"),
            mask(sequences, tokens, tokens + past),
            Kernel.gemm(tokens, tokens + past, 64, batch=sequences * HEADS, dtype="bfloat16"),
            Kernel.gemm(sequences, 32000, HIDDEN, dtype="bfloat16"),
            Kernel.elementwise("positions", tokens, dtype="int64"),
        ]
        if extra_copy and sequences > 1:
            copied = Kernel.rows(
                KernelClass.COPY, "copy", 1, 64, dtype="bfloat16", bytes_read=8, bytes_written=8
            )
            kernels.insert(4, copied)
        launches = tuple(LaunchedKernel(kernel, "model") for kernel in kernels)
        points.append(RecordedPoint(sequences, tokens, past, launches[: len(launches) - more]))
    return points


def at(kernel: FittedKernel, *batch: tuple[int, int]) -> Kernel:
    """The kernel for sequences of (tokens, context)."""
    totals = BatchTotals(
        len(batch),
        sum(tokens for tokens, _ in batch),
        sum(context for _, context in batch),
        sum(tokens * context for tokens, context in batch),
    )
    return kernel.at(totals)


def test_each_recorded_point_is_given_back() -> None:
    points = recorded()
    for kernel, *launches in zip(
        fitted_kernels(points), *(point.launches for point in points), strict=True
    ):
        for point, launch in zip(points, launches, strict=True):
            if launch.kernel.name != "positions":
                assert kernel.at(point.totals) == launch.kernel


def test_kernels_follow_what_a_ragged_batch_holds() -> None:
    product, add, mask_of, attention, logits, positions = fitted_kernels(recorded())
    batch = ((100, 100), (1, 700), (1, 900))

    assert at(product, *batch) == Kernel.gemm(102, 1024, HIDDEN, dtype="bfloat16")
    assert at(add, *batch) == Kernel.elementwise("add", 102 * HIDDEN, dtype="bfloat16")
    assert at(mask_of, *batch).size == RowsSize(1, 100 * 100 + 700 + 900)
    assert at(logits, *batch) == Kernel.gemm(3, 32000, HIDDEN, dtype="bfloat16")
    assert at(attention, (1, 500), (1, 500)).size == GemmSize(2 * HEADS, 1, 500, 64)
    assert at(positions, *batch).size == RowsSize(1, 102)  # no padding: each token has its own


def test_what_runs_once_the_layers_are_done_grows_with_the_sequences() -> None:
    """Of batches of one size: behind the last product nothing shows what a kernel follows."""
    sequences, vocabulary = 4, 32000
    kernels = [
        Kernel.gemm(sequences, vocabulary, HIDDEN, dtype="bfloat16"),
        Kernel.elementwise("scale", sequences * vocabulary, dtype="bfloat16"),
    ]
    launches = tuple(LaunchedKernel(kernel, "model") for kernel in kernels)
    points = [RecordedPoint(sequences, 16, past, launches) for past in (256, 512, 1024)]

    logits, scale = fitted_kernels(points)

    batch = ((1, 300),) * 8
    assert at(logits, *batch) == Kernel.gemm(8, vocabulary, HIDDEN, dtype="bfloat16")
    assert at(scale, *batch) == Kernel.elementwise("scale", 8 * vocabulary, dtype="bfloat16")


def test_it_is_known_what_a_kernel_depends_on() -> None:
    product, _, mask_of, attention, logits, _ = fitted_kernels(recorded())

    assert product.depends_on == (False, True, False)
    assert logits.depends_on == (True, False, False)
    assert mask_of.depends_on[2]
    assert attention.repeats


def test_few_tokens_read_the_weights_of_few_experts() -> None:
    points = [
        RecordedPoint(
            sequences,
            tokens,
            past,
            (
                LaunchedKernel(
                    Kernel.gemm(
                        sequences * tokens * 2 // 8,
                        64,
                        128,
                        batch=8,
                        dtype="bfloat16",
                        name=EXPERTS,
                    )
                ),
            ),
        )
        for sequences, tokens, past in BATCHES
    ]
    [kernel] = fitted_kernels(points)

    one, many = at(kernel, (1, 1)), at(kernel, (512, 512))

    assert one.size == GemmSize(2, 1, 64, 128)
    assert many.size == GemmSize(8, 128, 64, 128)
    assert one.bytes_read == 2 * 128 * 2 + 2 * 64 * 128 * 2


def test_rows_that_experts_do_not_share_evenly_are_counted_as_they_are() -> None:
    """512 experts of which each token chooses 10: the sizes have 3 and 5 rows for each expert."""
    points = []
    for sequences, tokens, past in BATCHES:
        rows = 10 * sequences * tokens
        kernel = Kernel.gemm(
            -(-rows // 512), 64, 128, batch=512, dtype="bfloat16", name=EXPERTS
        )  # fmt: skip
        kernel = replace(kernel, flops=2 * rows * 64 * 128)
        points.append(RecordedPoint(sequences, tokens, past, (LaunchedKernel(kernel),)))
    [found] = fitted_kernels(points)

    kernel = at(found, *[(1, 1)] * 16)

    assert kernel.size == GemmSize(round(512 * (1 - (1 - 10 / 512) ** 16)), 2, 64, 128)
    assert kernel.flops == 2 * 160 * 64 * 128


def test_a_copy_that_only_some_points_make_is_left_out() -> None:
    points = aligned(recorded(extra_copy=True))

    assert [len(point.launches) for point in points] == [6] * 5
    assert len(fitted_kernels(points)) == 6


def test_a_bias_that_some_points_add_apart_belongs_to_its_product() -> None:
    """Of several sequences the rows of the logits' product lie apart, and torch adds it itself."""
    points = recorded()
    several = points[-1]
    logits = several.launches[4]
    bias = LaunchedKernel(Kernel.elementwise("add", 64000, dtype="bfloat16"), logits.module)
    launches = (*several.launches[:5], bias, *several.launches[5:])
    points[-1] = replace(several, launches=launches)

    assert aligned(points) == recorded()


@pytest.mark.parametrize(
    ("changed", "stated"),
    [
        (recorded(more=1)[1], "launches 6 kernels for 64 tokens and 5 for 128"),
        (
            replace(recorded()[1], launches=recorded()[1].launches[1:]),
            "launches gemm in model for 64 tokens and add in model for 128",
        ),
    ],
)
def test_points_that_take_another_path_are_refused(changed: RecordedPoint, stated: str) -> None:
    points = recorded()
    points[1] = changed

    with pytest.raises(RecordingError, match=f"{stated}.*same path for any number of tokens"):
        fitted_kernels(points)


def test_what_two_sequences_do_not_explain_follows_those_of_one() -> None:
    sizes = (100, 130, 210, 190, 333)
    points = [
        replace(
            point, launches=(LaunchedKernel(Kernel.elementwise("odd", size, dtype="int8"), "m"),)
        )
        for point, size in zip(recorded(), sizes, strict=True)
    ]
    [kernel] = fitted_kernels(points)

    found = [kernel.at(point.totals).size for point in points[:4]]

    assert found == [RowsSize(1, size) for size in sizes[:4]]
