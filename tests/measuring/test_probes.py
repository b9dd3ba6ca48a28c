"""The designed sample: the same everywhere, every kind in its first round, every case runs."""

from __future__ import annotations

import pytest
import torch

from neusight.ops.launched import kernels_launched_by
from neusight.predictors.errors import DataError
from neusight.predictors.kernel import ConvolutionSize, GemmSize, Kernel, KernelClass
from neusight.predictors.measuring.probes import (
    Case,
    needs_gpus,
    prepared,
    quick_sample,
    sample,
    sustained_sample,
)
from neusight.session import forecast_on

#: About what a run measures before all but the first workloads.
FIRST_ROUND = 240


def kind(case: Case) -> tuple[str, ...]:
    """The op and all that is no size."""
    return (case.op, *(value for _, value in case.arguments if isinstance(value, str)))


def one_of_each(cases: list[Case]) -> list[Case]:
    found: dict[tuple[str, ...], Case] = {}
    for case in cases:
        found.setdefault(kind(case), case)
    return list(found.values())


ONE_OF_EACH = one_of_each([*sample(), *(case for _, case in quick_sample()), *sustained_sample()])


def kernels_of(cases: list[Case]) -> dict[str, tuple[Kernel, ...]]:
    found = {}
    with forecast_on("H100", predictor="roofline"):
        for case in cases:
            with prepared(case) as call:
                found[case.text], unmapped = kernels_launched_by(call)
                assert unmapped == []
    return found


def test_the_sample_is_the_same_each_time_and_each_case_is_in_it_once() -> None:
    cases = sample()

    assert cases == sample()
    assert len(set(cases)) == len(cases) > 5000
    assert cases[0].text == (
        "attention dtype=bf16 backend=flash direction=forward causal=1 batch=8 heads=12"
        " kv_heads=12 seq_q=1024 seq_kv=1024 head_dim=64"
    )


def test_a_case_is_its_text() -> None:
    cases = [*sample(), *sustained_sample(), *(case for _, case in quick_sample(num_gpus=2))]

    assert [Case.parse(case.text) for case in cases] == cases


@pytest.mark.parametrize("text", ["", "unheard numel=3", "gelu numel", "gelu =3", "gelu numel="])
def test_what_is_no_case_is_refused(text: str) -> None:
    with pytest.raises((DataError, ValueError)):
        Case.parse(text)


def test_the_first_round_has_every_kind() -> None:
    cases = sample()

    assert {kind(case) for case in cases[:FIRST_ROUND]} == {kind(case) for case in cases}


def test_the_sample_has_every_class_layout_and_precision() -> None:
    cases = sample()
    products = {(case["dtype"], case["layout"]) for case in cases if case.op == "mm"}
    convolutions = {
        (case["dtype"], case["direction"], case["memory_format"])
        for case in cases
        if case.op == "convolution"
    }
    benchmarked = {bool(case["benchmark"]) for case in cases if case.op == "convolution"}

    assert products == {
        (dtype, layout)
        for dtype in ("bf16", "fp16", "tf32", "fp32")
        for layout in ("nt", "nn", "tn")
    } | {("fp8", "nt")}
    assert convolutions == {
        (dtype, direction, memory_format)
        for dtype in ("bf16", "fp16", "tf32", "fp32")
        for direction in ("forward", "data", "weight")
        for memory_format in ("contiguous", "channels_last")
    }
    assert benchmarked == {True, False}


def test_every_kind_runs_and_launches_what_it_is_named_after() -> None:
    found = kernels_of([case for case in ONE_OF_EACH if case.op != "all_reduce"])

    everything = {kernel.kernel_class for kernels in found.values() for kernel in kernels}
    assert everything == set(KernelClass) - {KernelClass.UNKNOWN, KernelClass.COLLECTIVE}
    for text, kernels in found.items():
        case = Case.parse(text)
        assert kernels, text
        classes = {kernel.kernel_class for kernel in kernels}
        assert KernelClass.UNKNOWN not in classes, text
        if case.op == "mm":
            (product,) = kernels
            assert product.size == GemmSize(*(case[name] for name in ("batch", "m", "n", "k")))
            assert (product.layout, product.compute) == (case["layout"], case["dtype"])
        if case.op == "convolution":
            (main,) = (kernel for kernel in kernels if isinstance(kernel.size, ConvolutionSize))
            assert main.name.removeprefix("convolution_").startswith(case["direction"])
            assert main.compute == case["dtype"]
            # Contiguous ones are turned around first where the library is faster so.
            assert main.layout == case["memory_format"] or len(kernels) > 1
        if case.op == "attention":
            assert KernelClass.ATTENTION in classes
            assert (len(kernels) > 1) == (case["direction"] == "backward")
            assert case["backend"] in kernels[0].name or case["direction"] == "backward"


def test_torch_is_as_before_afterwards() -> None:
    before = (
        torch.get_float32_matmul_precision(),
        torch.backends.cudnn.benchmark,
        torch.backends.cudnn.allow_tf32,
        torch.backends.cuda.flash_sdp_enabled(),
    )
    cases = [
        next(case for case in sample() if case.get("benchmark") and case["dtype"] == "tf32"),
        next(case for case in sample() if case.get("backend") == "efficient"),
        Case.parse("mm dtype=tf32 layout=nt batch=1 m=8 n=8 k=8"),
    ]

    with forecast_on("H100", predictor="roofline"):
        for case in cases:
            with prepared(case) as call:
                call()

    assert before == (
        torch.get_float32_matmul_precision(),
        torch.backends.cudnn.benchmark,
        torch.backends.cudnn.allow_tf32,
        torch.backends.cuda.flash_sdp_enabled(),
    )


def test_the_quick_sample_tells_every_constant() -> None:
    one, two = quick_sample(), quick_sample(num_gpus=2)

    assert {kind for kind, _ in one} == {"gemm", "stream", "floor"}
    assert {kind for kind, _ in two} == {"gemm", "stream", "floor", "link"}
    assert {case["dtype"] for kind, case in one if kind == "gemm"} == {
        "bf16", "fp16", "tf32", "fp32", "fp8"
    }  # fmt: skip
    assert {needs_gpus(case) for kind, case in two if kind == "link"} == {2}
