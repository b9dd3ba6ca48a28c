"""Convolutions of Radeon cards, by how their clocks and MIOpen's kernels differ from the data's."""

from __future__ import annotations

import pytest

from neusight.predictors.gpu import find_gpu
from neusight.predictors.kernel import ConvolutionSize, Kernel, Pass
from neusight.predictors.tiled import Tiled

#: A layer of a ResNet, and three like it.
AREA = ConvolutionSize(16, 64, 64, 1, (56, 56), (56, 56), (3, 3), (1, 1), "forward")
POINTS = AREA._replace(kernel=(1, 1))
DEPTHWISE = AREA._replace(groups=64)
WIDE = AREA._replace(in_channels=512, out_channels=512)


def time_us(
    gpu: str, layer: ConvolutionSize, direction: Pass = "forward", dtype: str = "float32"
) -> float:
    kernel = Kernel.convolution(layer._replace(direction=direction), dtype=dtype)
    [found] = Tiled().predict([kernel], find_gpu(gpu))
    return found.latency_us


@pytest.mark.parametrize("gpu", ["RX 5700", "RX 6800", "RX 7700S"])
def test_a_gradient_of_points_takes_as_much_longer_as_in_the_database(gpu: str) -> None:
    """Of 64 channels or fewer MIOpen has no tuned kernel for the weights' gradient on RDNA."""
    assert time_us(gpu, POINTS, "weight_gradient") > 2.5 * time_us(gpu, POINTS)
    assert time_us("MI25", POINTS, "weight_gradient") < 2.0 * time_us("MI25", POINTS)


@pytest.mark.parametrize("direction", ["forward", "data_gradient"])
def test_depthwise_layers_take_as_long_as_compute_units_and_clocks_say(direction: Pass) -> None:
    card, newest = find_gpu("RX 6800"), find_gpu("MI300X")
    units = newest.num_sms / card.num_sms * newest.boost_clock_mhz / card.boost_clock_mhz

    found = time_us("RX 6800", DEPTHWISE, direction)

    assert found == pytest.approx(units * time_us("MI300X", DEPTHWISE, direction), rel=0.01)


def test_few_channels_leave_compute_units_empty_in_a_depthwise_weight_gradient() -> None:
    """32 channels are 64 workgroups: an MI300X has 304 units for them, an RX 6800 60."""
    few = DEPTHWISE._replace(groups=32, in_channels=32, out_channels=32)

    on_few, on_many = (time_us(gpu, few, "weight_gradient") for gpu in ("RX 6800", "MI300X"))

    assert on_few / on_many == pytest.approx(64 / 60 * 2100 / 2105, rel=0.02)


def test_sixteen_bits_halve_a_forward_pass_and_hardly_a_weight_gradient() -> None:
    gradients = [time_us("RX 6800", AREA, "weight_gradient", x) for x in ("float32", "float16")]

    assert time_us("RX 6800", AREA, dtype="float16") < 0.65 * time_us("RX 6800", AREA)
    assert 0.7 < gradients[1] / gradients[0] <= 1.0


def test_products_use_the_matrix_instructions_of_rdna_3_and_other_kernels_do_not() -> None:
    products = WIDE._replace(kernel=(1, 1))

    assert time_us("RX 7700S", products, dtype="float16") < 0.4 * time_us("RX 7700S", products)
    assert time_us("RX 7700S", WIDE, dtype="float16") > 0.45 * time_us("RX 7700S", WIDE)


@pytest.mark.parametrize(
    ("layer", "direction", "factor"),
    [
        (POINTS, "forward", 1.7),
        (POINTS, "weight_gradient", 3.5),
        (AREA, "forward", 3.6),
        (AREA, "weight_gradient", 10.0),
    ],
)
def test_rdna_1_is_slower_in_16_bit_than_in_fp32(
    layer: ConvolutionSize, direction: Pass, factor: float
) -> None:
    """data/torchvision_cnn: networks on an RX 5700 take 1 to 4 times as long, gradients 3 to 8."""
    plain, half = (time_us("RX 5700", layer, direction, x) for x in ("float32", "float16"))

    assert half / plain == pytest.approx(factor, rel=0.1)
