"""The power model: what share of its peak a GPU keeps up."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from neusight.predictors.gpu import find_gpu, gpus
from neusight.predictors.learned.correction import architecture_of
from neusight.predictors.physics.attention import exponentials_per_clock
from neusight.predictors.physics.communication.system import system_of
from neusight.predictors.physics.power import (
    energy_j,
    filled_in,
    has_half_rate,
    limited_share,
    silicon_of,
)
from neusight.predictors.physics.roofline import instructions_per_second
from places import require_golden


def fp32(name: str) -> float:
    share = limited_share(find_gpu(name), matrix=False, sustained=True)
    assert share is not None
    return share


def matrix(name: str, *, sustained: bool) -> float:
    share = limited_share(find_gpu(name), matrix=True, sustained=sustained)
    assert share is not None
    return share


#: Shares of the FP32 peak that large products kept up: data/paper_fp32, data/kernelbench.
MEASURED_FP32 = {"T4": 0.49, "P4": 0.78, "A100-PCIE-40GB": 0.82, "L40S": 0.60,
                 "H100-PCIE-80GB": 0.72, "H100-SXM5-80GB": 0.79}  # fmt: skip


@pytest.mark.parametrize("name", MEASURED_FP32)
def test_fp32_products_come_out_as_measured(name: str) -> None:
    assert fp32(name) == pytest.approx(MEASURED_FP32[name], rel=0.06)


@pytest.mark.parametrize(
    "name",
    ["A100-SXM4-80GB", "A40", "H100-SXM5-80GB", "H200-SXM-141GB", "B200-SXM-180GB",
     "B300-SXM-270GB", "GB200-186GB", "L40S"],
)  # fmt: skip
def test_16_bit_products_come_out_as_fitted_in_bursts_and_sustained(name: str) -> None:
    fitted = find_gpu(name)
    lasting = fitted.gemm_utilization * fitted.sustained_factor

    assert matrix(name, sustained=False) == pytest.approx(fitted.gemm_utilization, rel=0.08)
    assert matrix(name, sustained=True) == pytest.approx(lasting, rel=0.08)


def test_a_lower_power_limit_never_helps() -> None:
    card = find_gpu("L40S")

    shares = [
        limited_share(replace(card, tdp_w=watts), matrix=matrix, sustained=True) or 0.0
        for matrix in (False, True)
        for watts in (700.0, 350.0, 200.0, 72.0, 15.0)
    ]

    assert shares == sorted(shares[:5], reverse=True) + sorted(shares[5:], reverse=True)
    assert shares[0] > 1.5 * shares[3] > 0


@pytest.mark.parametrize(("name", "matrix"), [("L40S", False), ("H100", True), ("T4", True)])
def test_the_share_grows_with_the_power_limit_without_a_jump(name: str, matrix: bool) -> None:
    gpu = find_gpu(name)

    shares = [
        limited_share(replace(gpu, tdp_w=watts / 2), matrix=matrix, sustained=True) or 0.0
        for watts in range(100, 2800)
    ]

    rises = [after - before for before, after in pairwise(shares)]
    assert min(rises) >= -1e-9
    assert max(rises) < 0.01
    assert shares[-1] > 1.5 * shares[0]


def test_a_limit_that_nothing_reaches_leaves_the_ceiling() -> None:
    unbounded = replace(find_gpu("T4"), tdp_w=1000.0)

    assert limited_share(unbounded, matrix=True, sustained=True) == pytest.approx(0.9)
    assert limited_share(unbounded, matrix=True, sustained=False) == pytest.approx(0.9)


def test_a_clock_above_the_boost_is_used_where_power_allows() -> None:
    faster = replace(find_gpu("RTX-3060"), max_clock_mhz=1777 * 1.1)
    slower = replace(faster, max_clock_mhz=0.0)

    shares = [limited_share(gpu, matrix=True, sustained=True) for gpu in (faster, slower)]

    assert shares == [pytest.approx(1.1 * 0.93), pytest.approx(0.93)]


def test_an_unknown_architecture_is_taken_as_the_one_before() -> None:
    newer = replace(find_gpu("RTX-5090"), compute_capability=(13, 0))

    assert silicon_of(newer) == silicon_of(find_gpu("RTX-5090"))
    assert silicon_of(replace(newer, compute_capability=(5, 2))) is None
    assert limited_share(find_gpu("MI210"), matrix=True, sustained=True) is None


@pytest.mark.parametrize("name", gpus())
def test_filling_in_keeps_what_was_measured_and_leaves_no_gap(name: str) -> None:
    gpu = find_gpu(name)

    filled = filled_in(gpu)

    for constant in ("gemm_utilization", "sustained_factor", "fp32_gemm_utilization"):
        known, found = getattr(gpu, constant), getattr(filled, constant)
        is_above_its_datasheet = constant == "gemm_utilization" and has_half_rate(gpu)
        assert 0.2 < found <= (1.05 if is_above_its_datasheet else 1.0)
        assert found == (known or found)
    assert filled_in(filled) == filled


@pytest.mark.parametrize("name", [one for one in gpus() if not find_gpu(one).gemm_utilization])
def test_what_the_power_model_computes_is_stated(name: str) -> None:
    assert "power model" in find_gpu(name).constants_origin


@pytest.mark.parametrize(
    ("name", "flops", "seconds", "busy_s", "joules"),
    [
        ("H100", 0.0, 3.0, 0.0, 243.0),  # half of the 162 W that no FLOP explains
        ("H100", 1e13, 1.0, 0.25, 101.25 + 7.507),
        ("H100", 1e17, 1.0, 1.0, 700.0),  # never more than the limit
        ("A100", 1e13, 1.0, 0.25, 60.0 + 12.351),
        (
            "MI100",
            0.0,
            2.0,
            1.0,
            1.5 * 74.0 + 226.0,
        ),  # the limit while it works, where no energy is known
        ("MI100", 0.0, 1.0, 1.0, 300.0),
    ],
)
def test_a_board_draws_what_its_flops_take_beside_what_it_always_does(
    name: str, flops: float, seconds: float, busy_s: float, joules: float
) -> None:
    assert energy_j(flops, seconds, find_gpu(name), busy_s=busy_s) == pytest.approx(
        joules, rel=1e-5
    )


def test_what_is_computed_of_every_gpu_is_as_the_golden_table_has_it() -> None:
    """Shares of its peak in a burst, sustained, in FP32; joules of a second of 1e13 FLOPs, half
    of it busy; instructions and exponentials; its family; and the system that it is taken for."""
    lines = []
    for name in gpus():
        gpu = find_gpu(name)
        filled, system = filled_in(gpu), system_of(gpu)
        figures = (
            filled.gemm_utilization, filled.sustained_factor, filled.fp32_gemm_utilization,
            energy_j(1e13, 1.0, gpu, busy_s=0.5), instructions_per_second(gpu) / 1e12,
            exponentials_per_clock(gpu),
        )  # fmt: skip
        levels = " ".join(
            f"{level.kind}:{level.ranks}x{level.gbps:g}*{level.share:g}+{level.base_us:g}"
            f"+{level.hop_us:g}/{level.nics_per_node}~{level.spread:g}"
            for level in system.levels
        )
        shown = " ".join(f"{figure:9.5g}" for figure in figures)
        lines.append(
            f"{name:<26}{shown} {architecture_of(gpu):<14} {system.gpus_per_node} {levels}"
        )

    require_golden("gpu_figures.txt", lines)
