"""Grids on a GPU: what a CTA takes of an SM, how many run at once, waves and occupancy."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from neusight.predictors.gpu import find_gpu
from neusight.predictors.kernel import KernelClass
from neusight.predictors.physics.launch_geometry import (
    LaunchGeometry,
    ctas_per_sm,
    effective_waves,
    geometry_of,
)

H100 = find_gpu("H100")


def test_ctas_per_sm_are_the_tightest_limit() -> None:
    assert ctas_per_sm(H100, threads_per_cta=1024) == 2
    assert ctas_per_sm(H100, threads_per_cta=128, registers_per_thread=255) == 2
    assert ctas_per_sm(H100, threads_per_cta=128, shared_memory_bytes=100_000) == 2
    assert ctas_per_sm(H100, threads_per_cta=32) == 32
    assert ctas_per_sm(H100, threads_per_cta=10**6) == 1


def test_waves_are_ctas_over_all_that_run_at_once() -> None:
    launch = geometry_of(KernelClass.ELEMENTWISE, H100, num_ctas=4224, threads_per_cta=128)

    assert launch == LaunchGeometry(
        num_ctas=4224,
        threads_per_cta=128,
        registers_per_thread=32,
        shared_memory_bytes=0,
        ctas_per_sm=16,
        num_waves=2.0,
        occupancy=1.0,
    )


def test_a_products_tile_takes_registers_for_its_sums_and_memory_for_its_stages() -> None:
    launch = geometry_of(
        KernelClass.GEMM, H100, num_ctas=528, threads_per_cta=256, tile=(128, 128), itemsize=2.0
    )

    assert launch == LaunchGeometry(
        num_ctas=528,
        threads_per_cta=256,
        registers_per_thread=128,
        shared_memory_bytes=98304,
        ctas_per_sm=2,
        num_waves=2.0,
        occupancy=0.25,
    )


@pytest.mark.parametrize(
    ("kernel_class", "threads", "registers", "at_once"),
    [
        (KernelClass.COLLECTIVE, 512, 96, 1),
        (KernelClass.OPTIMIZER, 128, 64, 8),
        (KernelClass.SOFTMAX, 128, 32, 16),
        (KernelClass.CONVOLUTION, 256, 32, 8),
    ],
)
def test_without_a_tile_the_class_determines_the_registers(
    kernel_class: KernelClass, threads: int, registers: int, at_once: int
) -> None:
    launch = geometry_of(kernel_class, H100, num_ctas=1000, threads_per_cta=threads)

    assert (launch.registers_per_thread, launch.ctas_per_sm) == (registers, at_once)
    assert launch.num_waves == 1000 / (132 * at_once)


def test_one_cta_of_attention_fills_an_sm() -> None:
    for name, threads in (("H100", 384), ("A100", 128), ("T4", 128)):
        launch = geometry_of(
            KernelClass.ATTENTION,
            find_gpu(name),
            num_ctas=1,
            threads_per_cta=threads,
            tile=(128, 128),
            itemsize=2.0,
        )

        assert launch.ctas_per_sm == 1


def test_few_ctas_leave_most_of_the_gpu_empty() -> None:
    launch = geometry_of(KernelClass.COPY, H100, num_ctas=66, threads_per_cta=128)

    assert launch.occupancy == 0.5 * 4 / 64
    assert launch.num_waves == 66 / (132 * 16)


def test_a_launch_has_at_least_one_cta_and_at_most_1024_threads() -> None:
    launch = geometry_of(KernelClass.COPY, H100, num_ctas=0, threads_per_cta=5000)

    assert (launch.num_ctas, launch.threads_per_cta) == (1, 1024)


def test_tail_wave_costs_a_whole_wave_at_full_tail_cost() -> None:
    waves = np.array([0.3, 1.0, 1.01, 2.5])

    assert effective_waves(waves, 1.0).tolist() == [1.0, 1.0, 2.0, 3.0]


def test_without_tail_cost_a_part_costs_its_share() -> None:
    assert effective_waves(np.array([0.3, 2.5]), 0.0).tolist() == [1.0, 2.5]


@given(st.floats(0, 1e9), st.floats(0, 1e6), st.floats(0, 1))
def test_more_waves_never_cost_less(waves: float, more: float, tail_cost: float) -> None:
    pair = effective_waves(np.array([waves, waves + more]), tail_cost)

    assert pair[1] >= pair[0] * (1 - 1e-12)
