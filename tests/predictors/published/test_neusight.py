"""NeuSight as published: tiles, waves, a learned utilization, and what bounds it."""

from __future__ import annotations

import math

import numpy as np
import pytest

from neusight.predictors.gpu import GPU, find_gpu
from neusight.predictors.kernel import Kernel, KernelClass
from neusight.predictors.physics.roofline import flop_roofline_us, memory_roofline_us
from neusight.predictors.predictor import Estimate
from neusight.predictors.published.integer_network import IntegerNetwork
from neusight.predictors.published.neusight import (
    FEATURES,
    NeuSight,
    features_of,
    ideal_us,
    shape_of,
    tilings,
    utilization,
)
from neusight.predictors.published.trained_class import TileTable, TrainedClass
from neusight.predictors.registry import find_predictor

V100 = find_gpu("V100-PCIE-32GB")  # 80 SMs
H100, MI210 = find_gpu("H100"), find_gpu("MI210")
TILE = np.array([[128, 64]])


def logit(share: float) -> float:
    return math.log(share / (1.0 - share))


def constant(alpha: float, beta: float) -> IntegerNetwork:
    """A network that gives the same alpha and beta whatever it is asked."""
    width = len(FEATURES)
    return IntegerNetwork(
        np.full(width, -100.0),
        np.full(width, 100.0),
        np.zeros(width),
        np.ones(width),
        ((np.zeros((2, width), dtype=np.int8), np.ones(2), np.array([logit(alpha), logit(beta)])),),
    )


def trained(name: str, *, alpha: float = 0.8, beta: float = 0.3) -> NeuSight:
    table = TileTable(((V100.name, 7.0, 80),), np.array([0]), np.array([[1, 512, 512, 512]]), TILE)
    provenance = {"gpus": [V100.name]}
    item = TrainedClass("nvidia", name, constant(alpha, beta), table, 0.1, 0.4, provenance)
    return NeuSight({("nvidia", name): item})


def price(predictor: NeuSight, kernel: Kernel) -> Estimate:
    [estimate] = predictor.predict([kernel], V100)
    return estimate


def test_a_product_takes_whole_waves_of_tiles_at_the_utilization_of_the_network() -> None:
    """1,024 x 1,024 is 8 x 16 tiles, 2 waves on 80 SMs; intensity is far above the balance."""
    kernel = Kernel.gemm(1024, 1024, 4096, dtype="float32")
    estimate = price(trained("fully_connected"), kernel)

    tile_flops = 2 * 128 * 64 * 4096
    peak = V100.peak_flops("fp32", matrix=True) / 80
    share = 0.8 - 0.3 / 2
    assert estimate.latency_us == pytest.approx(2 * tile_flops / (peak * share) * 1e6, abs=1e-3)
    assert (estimate.num_ctas, estimate.num_waves, estimate.tile) == (128, 2.0, (128, 64))
    assert estimate.origin == "trained"


def test_a_thin_product_is_bound_by_the_bytes_of_the_whole_kernel() -> None:
    kernel = Kernel.gemm(64, 8192, 16, dtype="float32")
    tiling = tilings([kernel], np.array([[64, 64]]))

    [found] = ideal_us([kernel], tiling, V100)

    waves = math.ceil(128 / 80)
    assert found == pytest.approx(memory_roofline_us(kernel, V100) * waves * 80 / 128)


def test_utilization_grows_with_waves_and_never_reaches_zero() -> None:
    outputs = np.array([[logit(0.8), logit(0.3)]] * 3)
    assert utilization(outputs, np.array([1.0, 3.0, 1e9])) == pytest.approx([0.5, 0.7, 0.8])
    assert utilization(np.array([[-40.0, 40.0]]), np.array([1.0]))[0] > 0.0


def test_the_features_are_logarithms_of_a_tile_over_an_sm() -> None:
    kernel = Kernel.gemm(1024, 1024, 512, dtype="float32")
    tiling = tilings([kernel], TILE)
    found = dict(
        zip(FEATURES, np.exp(features_of([kernel], tiling, V100))[0].tolist(), strict=True)
    )

    moved = 4 * ((128 + 64) * 512 + 128 * 64)
    assert found["tile_bytes_over_sm_bandwidth"] == pytest.approx(
        moved / (V100.bandwidth_gbps * 1e9 / 80)
    )
    assert found["bytes_of_all_waves_over_sm_l2"] == pytest.approx(2 * moved / (V100.l2_bytes / 80))


def test_rows_are_cut_by_elements() -> None:
    kernel = Kernel.elementwise("relu", 1000, dtype="float32")
    tiling = tilings([kernel], np.array([[256, 1]]))
    assert tiling.num_tiles.tolist() == [4]
    assert tiling.tile_bytes.tolist() == [8 * 256]
    assert shape_of(kernel) == (1, 1, 1000, 1)


def test_a_fused_kernel_is_one_with_all_flops_and_the_bytes_at_its_border() -> None:
    def fused(kind: KernelClass, flops: int) -> Kernel:
        return Kernel.rows(
            kind, "triton_fused", 1, 2**20, dtype="float32", bytes_read=4 * 2**20,
            bytes_written=4 * 2**20, flops=flops, variant="fused",
        )  # fmt: skip

    many = fused(KernelClass.ELEMENTWISE, 12 * 2**20)
    estimate = price(trained("elementwise"), many)
    assert estimate.origin == "trained"
    assert estimate.latency_us >= memory_roofline_us(many, V100)
    norm = price(trained("layer_norm"), fused(KernelClass.REDUCTION, 8 * 2**20))
    assert norm.origin == "trained"


def test_what_has_no_class_takes_its_bytes_over_the_bandwidth() -> None:
    copy = Kernel.rows(
        KernelClass.COPY, "copy", 1, 2**20, dtype="float32", bytes_read=2**22, bytes_written=2**22
    )
    estimate = price(trained("bmm"), copy)
    assert estimate.latency_us == pytest.approx(memory_roofline_us(copy, V100), abs=1e-3)
    assert estimate.origin == "fallback"


def test_a_gpu_that_was_left_out_has_the_wider_interval() -> None:
    kernel = Kernel.gemm(2048, 2048, 2048, dtype="float32")
    known, unknown = (trained("fully_connected").predict([kernel], gpu)[0] for gpu in (V100, H100))
    assert known.high_us / known.latency_us == pytest.approx(1.1, rel=1e-4)
    assert unknown.high_us / unknown.latency_us == pytest.approx(1.4, rel=1e-4)


KERNELS = [
    Kernel.gemm(2048, 1024, 1024, dtype="float32"),
    Kernel.gemm(128, 128, 64, batch=192, dtype="float32"),
    Kernel.elementwise("add", 2**22, dtype="float32", num_inputs=2),
    Kernel.rows(
        KernelClass.SOFTMAX, "softmax", 8192, 512, dtype="float32", variant="softmax",
        bytes_read=2**24, bytes_written=2**24,
    ),
    Kernel.rows(
        KernelClass.NORMALIZATION, "layer_norm", 8192, 1024, dtype="float32",
        variant="layer_norm", bytes_read=2**25, bytes_written=2**25,
    ),
]  # fmt: skip


@pytest.mark.parametrize("target", [V100, H100, MI210], ids=lambda target: target.name)
def test_the_shipped_weights_price_every_class_between_the_bound_and_twenty_times_it(
    target: GPU,
) -> None:
    found = find_predictor("neusight").predict(KERNELS, target)
    for kernel, estimate in zip(KERNELS, found, strict=True):
        bound = max(flop_roofline_us(kernel, target), memory_roofline_us(kernel, target))
        assert estimate.origin == "trained"
        assert flop_roofline_us(kernel, target) <= estimate.latency_us * 1.001
        assert 0.5 * bound < estimate.latency_us < 20 * bound
        assert estimate.low_us <= estimate.latency_us <= estimate.high_us


def test_prices_do_not_depend_on_what_is_priced_beside_them() -> None:
    predictor = find_predictor("neusight")
    together = predictor.predict(KERNELS * 3, V100)
    alone = [predictor.predict([kernel], V100)[0] for kernel in KERNELS]
    assert together == alone * 3
