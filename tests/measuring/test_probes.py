"""The designed sample: the same everywhere, every kind in its first round, every probe runs."""

from __future__ import annotations

import hashlib

import pytest
import torch

from neusight.ops.launched import kernels_launched_by
from neusight.predictors.errors import DataError
from neusight.predictors.kernel import ConvolutionSize, GemmSize, Kernel, KernelClass
from neusight.predictors.measuring.probes import (
    Probe,
    needs_gpus,
    prepared,
    quick_sample,
    sample,
    sustained_sample,
)
from neusight.session import forecast_on

#: About what a run measures before all but the first workloads.
FIRST_ROUND = 280


def kind(probe: Probe) -> tuple[str, ...]:
    """The op and all that is no size."""
    return (probe.op, *(value for _, value in probe.arguments if isinstance(value, str)))


def one_of_each(probes: list[Probe]) -> list[Probe]:
    found: dict[tuple[str, ...], Probe] = {}
    for probe in probes:
        found.setdefault(kind(probe), probe)
    return list(found.values())


ONE_OF_EACH = one_of_each([*sample(), *(probe for _, probe in quick_sample()), *sustained_sample()])


def kernels_of(probes: list[Probe]) -> dict[str, tuple[Kernel, ...]]:
    found = {}
    with forecast_on("H100", predictor="roofline"):
        for probe in probes:
            with prepared(probe) as call:
                found[probe.text], unmapped = kernels_launched_by(call)
                assert unmapped == []
    return found


def test_the_sample_is_the_same_each_time_and_each_probe_is_in_it_once() -> None:
    probes = sample()

    assert probes == sample()
    assert len(set(probes)) == len(probes) > 5000
    # What was measured on one machine is found on another by these texts.
    everything = [*probes, *sustained_sample(), *(probe for _, probe in quick_sample(num_gpus=2))]
    texts = "\n".join(probe.text for probe in everything)
    assert hashlib.sha256(texts.encode()).hexdigest()[:16] == "c6cfa726d014dc43"
    assert probes[0].text == (
        "attention dtype=bf16 backend=flash direction=forward causal=1 batch=8 heads=12"
        " kv_heads=12 seq_q=1024 seq_kv=1024 head_dim=64"
    )


def test_a_probe_is_its_text() -> None:
    probes = [*sample(), *sustained_sample(), *(probe for _, probe in quick_sample(num_gpus=2))]

    assert [Probe.parse(probe.text) for probe in probes] == probes


@pytest.mark.parametrize("text", ["", "unheard numel=3", "gelu numel", "gelu =3", "gelu numel="])
def test_what_is_no_probe_is_refused(text: str) -> None:
    with pytest.raises((DataError, ValueError)):
        Probe.parse(text)


def test_the_first_round_has_every_kind() -> None:
    probes = sample()

    assert {kind(probe) for probe in probes[:FIRST_ROUND]} == {kind(probe) for probe in probes}


def test_the_sample_has_every_class_layout_and_precision() -> None:
    probes = sample()
    products = {(probe["dtype"], probe["layout"]) for probe in probes if probe.op == "mm"}
    convolutions = {
        (probe["dtype"], probe["direction"], probe["memory_format"])
        for probe in probes
        if probe.op == "convolution"
    }
    benchmarked = {bool(probe["benchmark"]) for probe in probes if probe.op == "convolution"}

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
    found = kernels_of([probe for probe in ONE_OF_EACH if probe.op != "all_reduce"])

    everything = {kernel.kernel_class for kernels in found.values() for kernel in kernels}
    assert everything == set(KernelClass) - {
        KernelClass.COLLECTIVE,
        KernelClass.CUSTOM,
        KernelClass.UNKNOWN,
    }
    for text, kernels in found.items():
        probe = Probe.parse(text)
        assert kernels, text
        classes = {kernel.kernel_class for kernel in kernels}
        assert KernelClass.UNKNOWN not in classes, text
        if probe.op == "mm":
            (product,) = kernels
            assert product.size == GemmSize(*(probe[name] for name in ("batch", "m", "n", "k")))
            assert (product.layout, product.compute) == (probe["layout"], probe["dtype"])
        if probe.op == "convolution":
            (main,) = (kernel for kernel in kernels if isinstance(kernel.size, ConvolutionSize))
            assert main.name.removeprefix("convolution_").startswith(probe["direction"])
            assert main.compute == probe["dtype"]
            # Contiguous ones are turned around first where the library is faster so.
            assert main.layout == probe["memory_format"] or len(kernels) > 1
        if probe.op == "attention":
            assert KernelClass.ATTENTION in classes
            assert (len(kernels) > 1) == (probe["direction"] == "backward")
            assert probe["backend"] in kernels[0].name or probe["direction"] == "backward"


@pytest.mark.parametrize("direction", ["forward", "data", "weight"])
@pytest.mark.parametrize(
    ("form", "size"),
    [
        ("inputs=8 outputs=16 kernel=3 stride=1 groups=4", (8, 16, 4, (8, 8), (8, 8))),
        ("inputs=8 outputs=16 kernel=2 stride=2 groups=1", (8, 16, 1, (8, 8), (4, 4))),
        ("inputs=8 outputs=16 kernel=3 stride=1 groups=1 dilation=2", (8, 16, 1, (8, 8), (8, 8))),
        ("inputs=8 outputs=16 kernel=3 stride=1 groups=1 dims=3", (8, 16, 1, (8,) * 3, (8,) * 3)),
        ("inputs=8 outputs=16 kernel=5 stride=1 groups=1 dims=1", (8, 16, 1, (8,), (8,))),
        (
            "inputs=8 outputs=16 kernel=2 stride=2 groups=1 transposed=1",
            (16, 8, 1, (16, 16), (8, 8)),
        ),
    ],
)
def test_convolutions_of_every_form_run(
    form: str, size: tuple[object, ...], direction: str
) -> None:
    """Channels, groups, input and output of the kernel; a transposed one is a gradient's."""
    probe = Probe.parse(
        f"convolution dtype=fp32 direction={direction} memory_format=contiguous benchmark=0"
        f" batch=2 {form} image=8"
    )

    (kernels,) = kernels_of([probe]).values()

    (found,) = (kernel.size for kernel in kernels if isinstance(kernel.size, ConvolutionSize))
    assert (*found[1:4], found.input, found.output) == size
    gradients = {"forward": "data_gradient", "data": "forward"}
    plain = {"forward": "forward", "data": "data_gradient"}
    expected = gradients if probe.get("transposed") else plain
    assert found.direction == expected.get(direction, "weight_gradient")


def test_torch_is_as_before_afterwards() -> None:
    before = (
        torch.get_float32_matmul_precision(),
        torch.backends.cudnn.benchmark,
        torch.backends.cudnn.allow_tf32,
        torch.backends.cuda.flash_sdp_enabled(),
    )
    probes = [
        next(probe for probe in sample() if probe.get("benchmark") and probe["dtype"] == "tf32"),
        next(probe for probe in sample() if probe.get("backend") == "efficient"),
        Probe.parse("mm dtype=tf32 layout=nt batch=1 m=8 n=8 k=8"),
    ]

    with forecast_on("H100", predictor="roofline"):
        for probe in probes:
            with prepared(probe) as call:
                call()

    assert before == (
        torch.get_float32_matmul_precision(),
        torch.backends.cudnn.benchmark,
        torch.backends.cudnn.allow_tf32,
        torch.backends.cuda.flash_sdp_enabled(),
    )


def test_the_quick_sample_states_every_constant() -> None:
    one, two = quick_sample(), quick_sample(num_gpus=2)

    assert {kind for kind, _ in one} == {"gemm", "stream", "floor"}
    assert {kind for kind, _ in two} == {"gemm", "stream", "floor", "link"}
    assert {probe["dtype"] for kind, probe in one if kind == "gemm"} == {
        "bf16", "fp16", "tf32", "fp32", "fp8"
    }  # fmt: skip
    assert {needs_gpus(probe) for kind, probe in two if kind == "link"} == {2}
