"""Habitat's wave scaling: the paper's equation on one kernel."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neusight.predictors.gpu import find_gpu, gpus
from neusight.predictors.published.wave_scaling import (
    LaunchSize,
    memory_share,
    wave_scaled_us,
    wave_size,
)

V100, T4, A100 = (find_gpu(name) for name in ("V100-SXM2-32GB", "T4", "A100-PCIE-40GB"))
NVIDIA = [name for name in gpus() if find_gpu(name).vendor == "nvidia"]


@given(st.sampled_from(NVIDIA), st.integers(1, 10**6), st.integers(1, 32), st.floats(0.0, 1e4))
def test_on_the_same_gpu_nothing_changes(
    name: str, num_ctas: int, warps: int, intensity: float
) -> None:
    gpu = find_gpu(name)
    launch = LaunchSize(num_ctas, 32 * warps, 40)
    scaled = wave_scaled_us(7.0, launch, source=gpu, target=gpu, intensity=intensity)
    assert scaled == pytest.approx(7.0)


def test_a_kernel_of_bytes_scales_by_bandwidth_where_there_are_many_waves() -> None:
    launch = LaunchSize(10**6, 256)
    scaled = wave_scaled_us(100.0, launch, source=V100, target=A100, intensity=0.0)
    assert scaled == pytest.approx(100.0 * V100.bandwidth_gbps / A100.bandwidth_gbps, rel=1e-3)


def test_the_bandwidth_is_the_one_that_a_gpu_reaches() -> None:
    """A T4 streams with 76 % of its datasheet's bandwidth, a V100 with 93 %."""
    launch = LaunchSize(10**6, 256)
    reached = [gpu.bandwidth_gbps * gpu.bandwidth_utilization for gpu in (V100, T4)]
    scaled = wave_scaled_us(100.0, launch, source=V100, target=T4, intensity=0.0)
    assert scaled == pytest.approx(100.0 * reached[0] / reached[1], rel=1e-3)
    assert scaled > 1.1 * 100.0 * V100.bandwidth_gbps / T4.bandwidth_gbps


def test_a_kernel_of_arithmetic_scales_by_cores_and_clock() -> None:
    launch = LaunchSize(10**6, 256)
    scaled = wave_scaled_us(100.0, launch, source=V100, target=A100, intensity=1e9)
    rates = [wave_size(launch, gpu) * gpu.boost_clock_mhz for gpu in (V100, A100)]
    assert scaled == pytest.approx(100.0 * rates[0] / rates[1], rel=1e-3)


def test_what_fills_less_than_a_wave_does_not_scale_by_the_number_of_cores() -> None:
    launch = LaunchSize(40, 256)
    scaled = wave_scaled_us(10.0, launch, source=V100, target=A100, intensity=1e9)
    assert scaled == pytest.approx(10.0 * V100.boost_clock_mhz / A100.boost_clock_mhz, rel=1e-6)


@given(st.floats(0.0, 1e3), st.floats(1.0, 300.0))
def test_the_share_of_memory_falls_with_the_intensity(intensity: float, balance: float) -> None:
    share = memory_share(intensity, balance)
    assert 0.0 <= share <= 1.0
    assert memory_share(intensity * 1.5 + 1.0, balance) < share


def test_registers_and_shared_memory_limit_the_wave() -> None:
    assert wave_size(LaunchSize(1, 256), A100) == 8 * A100.num_sms
    assert wave_size(LaunchSize(1, 256, registers_per_thread=255), A100) == A100.num_sms
    half = A100.shared_memory_per_sm_bytes // 2
    assert wave_size(LaunchSize(1, 256, 0, half), A100) == 2 * A100.num_sms
    assert wave_size(LaunchSize(1, 1024, 255, 10**9), T4) == T4.num_sms


def test_an_sm_holds_no_more_ctas_than_its_architecture_lets_it() -> None:
    small = LaunchSize(10**6, 32)

    held = {name: wave_size(small, gpu) / gpu.num_sms for name, gpu in GENERATIONS.items()}

    assert held == {"P100": 32, "T4": 16, "A100": 32, "A40": 16, "L4": 24, "H100": 32}


GENERATIONS = {name: find_gpu(name) for name in ("P100", "T4", "A100", "A40", "L4", "H100")}
