"""Habitat: perceptrons for products and convolutions, wave scaling for what was measured."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from neusight.predictors.errors import OptionError, WeightsError
from neusight.predictors.gpu import find_gpu
from neusight.predictors.kernel import ConvolutionSize, Kernel, KernelClass, Pass
from neusight.predictors.physics.roofline import flop_roofline_us, memory_roofline_us
from neusight.predictors.published.habitat import (
    Habitat,
    MeasuredLaunch,
    features_of,
    operation_of,
)
from neusight.predictors.published.integer_network import IntegerNetwork
from neusight.predictors.published.network_files import NetworkFile, load_networks
from neusight.predictors.published.wave_scaling import LaunchSize, wave_scaled_us
from neusight.predictors.registry import find_predictor

T4, V100, H100, MI210 = (find_gpu(name) for name in ("T4", "V100-PCIE-32GB", "H100", "MI210"))
LINEAR = Kernel.gemm(512, 512, 512, dtype="float32")
ADD = Kernel.elementwise("add", 2**22, dtype="float32", num_inputs=2)


def convolution(direction: Pass = "forward", *, groups: int = 1) -> Kernel:
    size = ConvolutionSize(8, 64, 64, groups, (56, 56), (56, 56), (3, 3), (1, 1), direction)
    return Kernel.convolution(size, dtype="float32")


def constant(operation: str, time_us: float, num_features: int) -> dict[str, NetworkFile]:
    """A perceptron that gives one time for everything."""
    network = IntegerNetwork(
        np.zeros(num_features),
        np.full(num_features, 1e6),
        np.zeros(num_features),
        np.ones(num_features),
        ((np.zeros((1, num_features), dtype=np.int8), np.ones(1), np.array([math.log(time_us)])),),
    )
    return {operation: NetworkFile("habitat", operation, network, (T4.name,), {}, {})}


@pytest.mark.parametrize(
    ("kernel", "operation"),
    [
        (LINEAR, "linear"),
        (Kernel.gemm(64, 64, 64, batch=12, dtype="float32"), "bmm"),
        (Kernel.gemm(64, 64, 64, dtype="bfloat16"), None),
        (convolution(), "conv2d"),
        (convolution(direction="data_gradient"), "conv_transpose2d"),
        (convolution(direction="weight_gradient"), None),
        (convolution(groups=64), None),
        (ADD, None),
    ],
)
def test_perceptrons_price_the_operations_that_libraries_choose_by_gpu(
    kernel: Kernel, operation: str | None
) -> None:
    assert operation_of(kernel) == operation


def test_a_perceptron_gives_the_time_on_gpus_of_its_vendor() -> None:
    predictor = Habitat(constant("linear", 5000.0, 8))
    [known], [unknown], [amd] = (predictor.predict([LINEAR], gpu) for gpu in (T4, V100, MI210))
    assert known.latency_us == pytest.approx(5000.0, rel=1e-3)
    assert (known.origin, known.in_range, unknown.in_range) == ("trained", True, False)
    assert amd.origin == "fallback"


def test_no_price_is_below_the_peak() -> None:
    [estimate] = Habitat(constant("linear", 0.01, 8)).predict([LINEAR], T4)
    assert estimate.latency_us >= flop_roofline_us(LINEAR, T4) * 0.999


def test_what_was_measured_on_the_source_is_scaled_by_waves() -> None:
    launch = LaunchSize(8192, 256)
    predictor = Habitat({}, source=V100, measured={ADD: MeasuredLaunch(60.0, launch)})

    [estimate] = predictor.predict([ADD], T4)

    scaled = wave_scaled_us(
        60.0, launch, source=V100, target=T4, intensity=ADD.flops / ADD.num_bytes
    )
    assert estimate.latency_us == pytest.approx(scaled, abs=1e-3)
    assert estimate.origin == "physics"


def test_without_a_source_bytes_go_over_the_bandwidth() -> None:
    [estimate] = Habitat({}).predict([ADD], T4)
    assert estimate.latency_us == pytest.approx(memory_roofline_us(ADD, T4), abs=1e-3)
    assert estimate.origin == "fallback"


def test_a_source_without_its_kernels_says_how_to_give_them() -> None:
    with pytest.raises(OptionError, match="neusight carry PROFILE --predictor habitat"):
        Habitat({}, source=T4)


def test_the_features_are_sizes_and_four_figures_of_the_gpu() -> None:
    [found] = np.exp(features_of([LINEAR], T4)).tolist()
    assert found[:4] == pytest.approx([1.0, 512.0, 512.0, 512.0])
    assert found[5:7] == pytest.approx([T4.bandwidth_gbps, 40.0])
    assert features_of([convolution()], T4).shape == (1, 11)


def test_the_shipped_perceptrons_price_products_and_convolutions() -> None:
    kernels = [LINEAR, Kernel.gemm(256, 256, 64, batch=64, dtype="float32"), convolution()]
    for kernel, estimate in zip(
        kernels, find_predictor("habitat").predict(kernels, V100), strict=True
    ):
        bound = max(flop_roofline_us(kernel, V100), memory_roofline_us(kernel, V100))
        assert estimate.origin == "trained"
        assert 0.3 * bound < estimate.latency_us < 30 * bound
    assert kernels[0].kernel_class is KernelClass.GEMM


def test_a_folder_of_other_weights_is_refused(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match="no weights of the predictor 'habitat'"):
        load_networks(tmp_path, "habitat")
