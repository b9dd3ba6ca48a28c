"""benchmarks/layers_of_steps.py: which kernels of a backward operator belong to which gradient."""

from __future__ import annotations

import importlib
from types import ModuleType

import pytest

from neusight.predictors.kernel import ConvolutionSize, Kernel
from places import ROOT

IMAGE = ConvolutionSize(2, 64, 64, 1, (8, 8), (8, 8), (3, 3), (1, 1), "data_gradient")
DATA = Kernel.convolution(IMAGE, dtype="float32", compute="tf32")
WEIGHT = Kernel.convolution(
    IMAGE._replace(direction="weight_gradient"), dtype="float32", compute="tf32"
)


@pytest.fixture
def layers(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module("layers_of_steps")


@pytest.mark.parametrize(
    ("names", "num_data"),
    [
        (("sm90_dgrad", "sm90_wgrad"), 1),
        (("nchwToNhwcKernel", "sm90_dgrad", "nhwcToNchwKernel", "Memset", "sm90_wgrad"), 3),
        (("sm90_dgrad", "nchwToNhwcKernel", "cutlass_gemm_nt"), 1),
        (("cutlass_gemm_nn", "Memset", "cutlass_gemm_nt", "splitKreduce_kernel"), 1),
        (("cutlass_gemm_nn", "sm90_wgrad", "reduce_wgrad_nchw_helper"), 1),
    ],
)
def test_one_gradient_ends_where_the_others_kernels_begin(
    layers: ModuleType, names: tuple[str, ...], num_data: int
) -> None:
    events = [layers.Event(name, 1.0) for name in names]

    parts = layers._parts([DATA, WEIGHT], events)

    assert parts == [(DATA, events[:num_data]), (WEIGHT, events[num_data:])]


@pytest.mark.parametrize(
    "names", [("gemm_a", "gemm_b", "gemm_c"), ("sm90_wgrad", "sm90_dgrad"), ("gemm_a",)]
)
def test_what_is_not_clear_is_left_out(layers: ModuleType, names: tuple[str, ...]) -> None:
    assert layers._parts([DATA, WEIGHT], [layers.Event(name, 1.0) for name in names]) is None


def test_transforms_that_are_kernels_of_their_own_are_not_counted_twice(
    layers: ModuleType,
) -> None:
    half = Kernel.convolution(IMAGE, dtype="float16", layout="channels_last")
    events = [layers.Event(name, 1.0) for name in ("nchwToNhwcKernel", "sm90_dgrad")]

    assert layers._own(half, events, has_transforms=True) == events[1:]
    assert layers._own(half, events, has_transforms=False) == events
    assert layers._own(DATA, events, has_transforms=True) == events
