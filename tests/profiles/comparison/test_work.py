"""Kernels of a step are gathered by operator call, class and problem, and paired."""

from __future__ import annotations

import pytest

from neusight.integrations.profiles.aliases import ProblemSize
from neusight.integrations.profiles.comparison.work import Work, matched, work_of
from neusight.integrations.profiles.reading.profile import (
    DeviceEvent,
    HostOp,
    Profile,
    ProfileStep,
)
from neusight.predictors.kernel import KernelClass

GEMM = "volta_sgemm_128x64_nt"


def kernel(name: str, *, op: int = 0, kernel_class: str = "", num_bytes: int = 0) -> DeviceEvent:
    return DeviceEvent(
        "kernel", name, 0, 5, 0, 7, op=op, num_bytes=num_bytes, kernel_class=kernel_class
    )


def work(ops: list[HostOp], *events: DeviceEvent) -> list[Work]:
    step = ProfileStep("s", 0, 1, 1, events)
    return work_of(Profile("", "", False, True, (step,), tuple(ops), events, ()), step)


def op(name: str, *shapes: tuple[int, ...]) -> HostOp:
    return HostOp(name, 0, 1, "1/1", shapes)


def test_kernels_of_no_operator_are_work_of_their_own() -> None:
    copy = kernel("Memcpy DtoD", op=-1, num_bytes=64)

    assert work([], copy, copy, kernel("odd", op=-1)) == [
        Work(KernelClass.COPY, ProblemSize("", (64,)), "", 1, 5),
        Work(KernelClass.COPY, ProblemSize("", (64,)), "", 1, 5),
        Work(KernelClass.UNKNOWN, ProblemSize("", ()), "", 1, 5),
    ]


@pytest.mark.parametrize(
    ("kernel_class", "expected"),
    [("softmax", KernelClass.SOFTMAX), ("", KernelClass.GEMM), ("newer", KernelClass.UNKNOWN)],
)
def test_the_class_that_a_forecast_states_is_taken(
    kernel_class: str, expected: KernelClass
) -> None:
    [found] = work([op("aten::x", (4,))], kernel(GEMM, kernel_class=kernel_class))

    assert found.kind is expected


@pytest.mark.parametrize(("shapes", "has_size"), [((), False), (((),), False), (((2, 3),), True)])
def test_profiles_record_no_sizes_of_lists(
    shapes: tuple[tuple[int, ...], ...], has_size: bool
) -> None:
    adam = kernel("multi_tensor_apply_kernel")

    assert work([op("aten::_fused_adam_", *shapes)], adam)[0].has_size is has_size


def test_an_operator_without_shapes_has_no_size_and_one_of_a_number_has() -> None:
    assert not work([op("aten::mm")], kernel(GEMM))[0].has_size
    assert work([op("aten::mm", ())], kernel(GEMM))[0].has_size


DATA, WEIGHT = "data gradient", "weight gradient"


@pytest.mark.parametrize(
    ("names", "kinds"),
    [
        (["sm80_xmma_dgrad", "sm80_xmma_wgrad"], [DATA, WEIGHT]),
        (["nchwToNhwc", "sm80_xmma_dgrad", "nchwToNhwc", "wgrad_alg0"],
         [DATA, DATA, WEIGHT, WEIGHT]),
        (["sm80_xmma_wgrad", "nhwcToNchw"], [WEIGHT, WEIGHT]),
        ([GEMM, GEMM], [DATA, WEIGHT]),
        ([GEMM, "wgrad_alg0"], [DATA, WEIGHT]),
        (["sm80_xmma_dgrad", GEMM], [DATA, WEIGHT]),
        ([GEMM], [""]),
    ],
)  # fmt: skip
def test_kernels_of_a_backward_belong_to_one_of_its_gradients(
    names: list[str], kinds: list[str]
) -> None:
    """Of plain products the data's comes first."""
    backward = op("aten::convolution_backward", (2, 16, 8, 8), (2, 4, 8, 8), (16, 4, 3, 3))
    expected = dict.fromkeys(kinds)

    found = work([backward], *map(kernel, names))

    assert [item.size.kind for item in found] == list(expected)
    assert [item.num_kernels for item in found] == [kinds.count(kind) for kind in expected]


def made(kind: KernelClass, size: int, op: str, *, has_size: bool = True) -> Work:
    return Work(kind, ProblemSize("", (size,)), op, 1, 1, has_size)


G, S, U = KernelClass.GEMM, KernelClass.SOFTMAX, KernelClass.UNKNOWN


@pytest.mark.parametrize(
    ("measured", "forecast", "pairs"),
    [
        # of equal sizes those of the same operator first
        ([made(G, 1, "mm"), made(G, 1, "addmm")], [made(G, 1, "addmm"), made(G, 1, "x")],
         {(1, 0), (0, 1)}),
        # other sizes are no partners, other classes neither
        ([made(G, 1, "mm"), made(S, 1, "mm")], [made(G, 2, "mm"), made(G, 1, "x")], {(0, 1)}),
        # without sizes: of the same operator first, then by class
        ([made(G, 1, "mm", has_size=False), made(G, 2, "mv", has_size=False)],
         [made(G, 3, "mv"), made(G, 4, "x")], {(1, 0), (0, 1)}),
        ([made(U, 1, "odd"), made(U, 1, "odd", has_size=False)], [made(U, 1, "odd")], set()),
    ],
)  # fmt: skip
def test_work_is_paired_by_size_then_by_class(
    measured: list[Work], forecast: list[Work], pairs: set[tuple[int, int]]
) -> None:
    found, left, ours_left = matched(measured, forecast)

    assert {(measured.index(one), forecast.index(other)) for one, other in found} == pairs
    assert left == [one for at, one in enumerate(measured) if at not in {m for m, _ in pairs}]
    assert ours_left == [one for at, one in enumerate(forecast) if at not in {f for _, f in pairs}]
