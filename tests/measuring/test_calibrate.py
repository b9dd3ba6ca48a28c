"""Measurements made from a known model give that model back; few and noisy ones do no harm."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from neusight.predictors import GPU, Kernel, KernelClass, find_gpu
from neusight.predictors.errors import CalibrationError
from neusight.predictors.measuring.calibrate import fit_calibration
from neusight.predictors.measuring.calibration import Calibration, Measurement, with_constants
from neusight.predictors.registry import find_predictor, predict
from neusight.predictors.tiled import Tiled

Distortion = Callable[[Kernel, float], float]


def kernels(count: int, seed: int = 0) -> list[Kernel]:
    """Products, streams and norms, small to large, `count` of each."""
    draw = random.Random(seed)
    found = []
    for _ in range(count):
        m, n, k = (1 << draw.randint(6, 13) for _ in range(3))
        found.append(Kernel.gemm(m, n, k, layout=draw.choice(["nt", "nn", "tn"])))
        elements = 1 << draw.randint(8, 27)
        found.append(Kernel.elementwise("add", elements, dtype="bfloat16", num_inputs=2))
        rows, width = 1 << draw.randint(4, 14), 1 << draw.randint(6, 12)
        found.append(layer_norm(rows, width))
    return found


def layer_norm(rows: int, width: int) -> Kernel:
    return Kernel.rows(
        KernelClass.NORMALIZATION,
        "layer_norm",
        rows,
        width,
        dtype="bfloat16",
        bytes_read=2 * rows * width,
        bytes_written=2 * rows * width,
    )


def measured(
    items: list[Kernel],
    truth: GPU,
    *,
    noise: float = 0.0,
    distort: Distortion = lambda kernel, time_us: time_us,
    seed: int = 1,
) -> list[Measurement]:
    """What a GPU with the constants of `truth` would take for each."""
    draw = np.random.default_rng(seed)
    return [
        Measurement(
            (kernel,),
            distort(kernel, estimate.latency_us) * math.exp(float(draw.normal(0.0, noise))),
        )
        for kernel, estimate in zip(items, predict(items, truth), strict=True)
    ]


def error_on(items: list[Kernel], samples: list[Measurement], made: Calibration | None) -> float:
    target = find_gpu("L4")
    base = find_predictor()
    chosen = base if made is None else made.applied_to(base, target)
    found = chosen.predict(items, target)
    return float(
        np.mean([abs(e.latency_us / s.latency_us - 1) for e, s in zip(found, samples, strict=True)])
    )


TRUTH = {"gemm_utilization": 0.66, "bandwidth_utilization": 0.78, "floor_us": 2.0}


@pytest.mark.parametrize("name", ["L4", "H100", "B200"])
def test_the_constants_of_a_known_model_come_back_within_two_percent(name: str) -> None:
    truth = with_constants(find_gpu(name), TRUTH)

    made = fit_calibration(measured(kernels(40), truth), name)

    for constant, value in TRUTH.items():
        assert made.constants[constant] == pytest.approx(value, rel=0.02)
    assert made.source["loo_error_after"] < 0.005


def test_links_and_ordinary_cores_have_constants_of_their_own() -> None:
    draw = random.Random(0)
    items = [
        Kernel.collective(op, 1 << draw.randint(8, 30), ranks)
        for op in ("all_reduce", "all_gather", "reduce_scatter")
        for ranks in (2, 4, 8)
        for _ in range(4)
    ]
    sizes = [[1 << draw.randint(7, 12) for _ in range(3)] for _ in range(30)]
    items += [Kernel.gemm(m, n, k, dtype="float32") for m, n, k in sizes]
    truth = {"link_floor_us": 22.0, "fp32_gemm_utilization": 0.7}

    made = fit_calibration(measured(items, with_constants(find_gpu("H100"), truth)), "H100")

    for constant, value in truth.items():
        assert made.constants[constant] == pytest.approx(value, rel=0.02)


def test_noise_costs_no_more_than_itself() -> None:
    truth = with_constants(find_gpu("L4"), TRUTH)
    samples = measured(kernels(40), truth, noise=0.08)

    made = fit_calibration(samples, "L4")

    for constant, value in TRUTH.items():
        assert made.constants[constant] == pytest.approx(value, rel=0.08)
    assert made.source["loo_error_after"] < 0.08 < made.source["loo_error_before"]


def test_ten_shapes_help_with_shapes_that_nobody_measured() -> None:
    truth = with_constants(find_gpu("L4"), TRUTH)
    others = kernels(30, seed=9)
    unseen = measured(others, truth)

    made = fit_calibration(measured(kernels(4), truth, noise=0.03)[:10], "L4")

    assert error_on(others, unseen, made) < 0.6 * error_on(others, unseen, None)


def test_outliers_move_little() -> None:
    truth = with_constants(find_gpu("L4"), TRUTH)
    samples = measured(kernels(40), truth, noise=0.02)
    samples[::12] = [replace(sample, latency_us=8 * sample.latency_us) for sample in samples[::12]]

    made = fit_calibration(samples, "L4")

    for constant, value in TRUTH.items():
        assert made.constants[constant] == pytest.approx(value, rel=0.05)
    for row in made.corrections:
        assert row.factor == pytest.approx(1.0, abs=0.06)


def test_a_class_that_is_slower_gets_its_own_factor() -> None:
    def slow_norms(kernel: Kernel, time_us: float) -> float:
        return time_us * (1.4 if kernel.kernel_class is KernelClass.NORMALIZATION else 1.0)

    made = fit_calibration(measured(kernels(30), find_gpu("L4"), distort=slow_norms), "L4")

    rows = {row.kernel_class: row for row in made.corrections}
    assert rows["normalization"].factor == pytest.approx(1.4, rel=0.03)
    assert rows["normalization"].loo_error_before == pytest.approx(0.286, abs=0.01)
    assert rows["normalization"].loo_error_after < 0.03
    assert rows["elementwise"].factor == pytest.approx(1.0, abs=0.02)


def test_a_correction_may_depend_on_size() -> None:
    def worse_when_large(kernel: Kernel, time_us: float) -> float:
        return time_us * (time_us / 30.0) ** 0.15 if is_norm(kernel) else time_us

    def is_norm(kernel: Kernel) -> bool:
        return kernel.kernel_class is KernelClass.NORMALIZATION

    made = fit_calibration(measured(kernels(40), find_gpu("L4"), distort=worse_when_large), "L4")

    [norms] = [row for row in made.corrections if row.kernel_class == "normalization"]
    assert norms.slope == pytest.approx(0.15, abs=0.04)


def test_a_variant_that_differs_gets_its_own_row() -> None:
    def slow_tn(kernel: Kernel, time_us: float) -> float:
        return time_us * (1.3 if kernel.layout == "tn" else 1.0)

    made = fit_calibration(measured(kernels(40), find_gpu("L4"), distort=slow_tn), "L4")

    rows = {(row.kernel_class, row.variant): row for row in made.corrections}
    other = rows["gemm", ""].factor
    assert rows["gemm", "tn"].factor / other == pytest.approx(1.3, rel=0.05)


def test_pure_noise_teaches_nothing_that_makes_left_out_problems_worse() -> None:
    for seed in range(5):
        samples = measured(kernels(8, seed), find_gpu("L4"), noise=0.2, seed=seed)

        made = fit_calibration(samples, "L4")

        assert made.source["loo_error_after"] <= made.source["loo_error_before"]
        for row in made.corrections:
            assert row.loo_error_after <= row.loo_error_before
            assert row.is_applied or row.factor == 1.0


def test_few_samples_are_shrunk_towards_what_is_shipped() -> None:
    items = [layer_norm(1 << 12, 1 << size) for size in (9, 10, 11, 12)]
    factors = []
    for count in (2, 4):
        samples = measured(items[:count], find_gpu("H100"), distort=lambda kernel, time: 2.0 * time)
        [row] = fit_calibration(samples, "H100").corrections
        factors.append(row.factor)

    assert 1.0 < factors[0] < factors[1] < 2.01


def test_one_problem_measured_often_proves_nothing() -> None:
    samples = measured(
        [layer_norm(64, 64)] * 20, find_gpu("H100"), distort=lambda kernel, time: 3 * time
    )

    made = fit_calibration(samples, "H100")

    assert [row.is_applied for row in made.corrections] == [False]
    assert made.source["num_measurements"] == 20 and made.source["num_problems"] == 1


def test_the_interval_covers_what_was_left_out() -> None:
    truth = with_constants(find_gpu("L4"), TRUTH)
    others = kernels(60, seed=5)
    unseen = measured(others, truth, noise=0.1, seed=3)

    made = fit_calibration(measured(kernels(60), truth, noise=0.1), "L4")
    found = made.applied_to(find_predictor(), find_gpu("L4")).predict(others, find_gpu("L4"))

    inside = [e.low_us <= s.latency_us <= e.high_us for e, s in zip(found, unseen, strict=True)]
    assert 0.7 <= sum(inside) / len(inside) <= 0.95


def test_bursts_and_sustained_runs_distinguish_the_clocks() -> None:
    truth = replace(find_gpu("L4"), gemm_utilization=0.7, sustained_factor=0.8)
    items = [kernel for kernel in kernels(40) if kernel.kernel_class is KernelClass.GEMM]
    samples = [
        Measurement((kernel,), estimate.latency_us, sustained=sustained)
        for sustained in (False, True)
        for kernel, estimate in zip(
            items, Tiled(sustained=sustained).predict(items, truth), strict=True
        )
    ]

    made = fit_calibration(samples, "L4")

    assert made.constants["gemm_utilization"] == pytest.approx(0.7, rel=0.02)
    assert made.constants["sustained_factor"] == pytest.approx(0.8, rel=0.02)


def test_several_launches_count_together() -> None:
    pair = (layer_norm(4096, 1024), layer_norm(1, 1024))
    total = sum(estimate.latency_us for estimate in predict(pair, "H100"))

    made = fit_calibration([Measurement(pair, total)], "H100")

    assert made.source["loo_error_before"] == pytest.approx(0.0, abs=1e-6)


def test_a_predictor_without_constants_is_corrected_by_class() -> None:
    made = fit_calibration(measured(kernels(20), find_gpu("A100")), "A100", predictor="roofline")

    assert made.predictor == "roofline" and not made.constants
    assert made.source["loo_error_after"] <= made.source["loo_error_before"]
    [gemms] = [row for row in made.corrections if row.kernel_class == "gemm" and not row.variant]
    assert gemms.is_applied and gemms.loo_error_after < gemms.loo_error_before


def test_the_order_of_samples_changes_nothing() -> None:
    samples = measured(kernels(12), with_constants(find_gpu("L4"), TRUTH), noise=0.1)
    shuffled = random.Random(4).sample(samples, len(samples))

    assert fit_calibration(samples, "L4") == fit_calibration(shuffled, "L4")


def test_what_the_gpu_cannot_run_is_left_out_and_said() -> None:
    fp8 = Measurement((Kernel.gemm(256, 256, 256, dtype="float8_e4m3fn"),), 5.0)
    samples = [*measured(kernels(3), find_gpu("V100")), fp8]

    made = fit_calibration(samples, "V100")

    assert "1 problems" in made.source["left_out"] and "fp8" in made.source["left_out"]
    with pytest.raises(CalibrationError, match=r"nothing to calibrate V100.*no fp8 unit"):
        fit_calibration([fp8], "V100")


def test_a_host_alone_can_be_learnt(tmp_path: Path) -> None:
    made = fit_calibration([], "H100", profiled_host={"op_us": 6.0})

    made.save(tmp_path / "c.json")

    assert Calibration.load(tmp_path / "c.json") == made
    assert made.headline() == "calibrated to the host that was measured"
    assert "profiled: op 6.0 µs" in made.table()


@pytest.mark.parametrize("time_us", [0.0, -1.0, math.nan, math.inf])
def test_an_impossible_duration_is_refused_by_its_place(time_us: float) -> None:
    good = measured(kernels(1), find_gpu("L4"))

    with pytest.raises(CalibrationError, match="Measurement 3 took"):
        fit_calibration([*good, Measurement((layer_norm(8, 8),), time_us)], "L4")


def test_a_sample_of_no_kernels_and_no_samples_are_refused() -> None:
    with pytest.raises(CalibrationError, match="Measurement 0 launched no kernel"):
        fit_calibration([Measurement((), 1.0)], "L4")
    with pytest.raises(CalibrationError, match="no measurements were given"):
        fit_calibration([], "L4")
