"""Measurements of a cluster in place of the physics."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neusight.predictors import Tiled
from neusight.predictors.clusters.named import find_topology
from neusight.predictors.clusters.topology import Curve
from neusight.predictors.gpu import GPU, find_gpu
from neusight.predictors.kernel import Kernel
from neusight.predictors.physics.communication.collective import collective_timing
from neusight.predictors.physics.communication.measured import measured_spread, measured_us

CURVE = Curve("all_reduce", 16, 2, ((2**16, 100.0), (2**20, 200.0), (2**26, 8000.0)))


def measured(curve: Curve = CURVE) -> GPU:
    topology = replace(find_topology("dgx-h100"), measured=(curve,))
    return replace(find_gpu("H100"), topology=topology)


def test_what_was_measured_comes_out_as_it_was() -> None:
    for num_bytes, time_us in CURVE.points:
        kernel = Kernel.collective("all_reduce", num_bytes, 16, num_nodes=2)
        assert collective_timing(kernel, measured()).time_us == pytest.approx(time_us)


def test_between_two_sizes_lies_a_base_and_a_bandwidth() -> None:
    line = Curve("all_reduce", 16, 2, ((1000, 20.0), (101_000, 120.0)))

    assert measured_us(line, 51_000, float) == pytest.approx(70.0)


def test_beyond_them_it_goes_on_as_the_physics_do() -> None:
    line = Curve("all_reduce", 16, 2, ((1000, 20.0), (2000, 30.0)))

    assert measured_us(line, 500, lambda moved: 3.0 + moved) == pytest.approx(20 * 503 / 1003)
    assert measured_us(line, 4000, lambda moved: 3.0 + moved) == pytest.approx(30 * 4003 / 2003)


@given(st.lists(st.floats(1.0, 1e6), min_size=2, max_size=9), st.integers(1, 2**30))
def test_more_bytes_are_never_faster_whatever_was_measured(times: list[float], first: int) -> None:
    """Noise makes longer messages shorter; a forecast does not."""
    curve = Curve("all_reduce", 16, 2, tuple((4**at * 1024, us) for at, us in enumerate(times)))
    sizes = sorted({first, 2 * first, *(moved for moved, _ in curve.points)})

    found = [measured_us(curve, moved, lambda moved: 10.0 + moved / 1e4) for moved in sizes]

    assert all(before <= after * (1 + 1e-12) for before, after in pairwise(found))


def test_only_a_group_that_lies_alike_takes_it() -> None:
    plain = replace(find_gpu("H100"), topology=find_topology("dgx-h100"))
    alike = Kernel.collective("all_reduce", 2**20, 16, ranks="16..31", gpus_per_node=8)
    others = [
        Kernel.collective("all_gather", 2**20, 16, num_nodes=2),
        Kernel.collective("all_reduce", 2**20, 8, num_nodes=2),
        Kernel.collective("all_reduce", 2**20, 16, ranks="0..120/8", gpus_per_node=8),
    ]

    assert collective_timing(alike, measured()).time_us == pytest.approx(200.0)
    for kernel in others:
        assert collective_timing(kernel, measured()) == collective_timing(kernel, plain)


def test_the_interval_is_narrow_where_sizes_near_by_were_measured() -> None:
    near, far = (measured_spread(CURVE, moved) for moved in (2**20, 2**23))
    plain = Tiled().predict([Kernel.collective("all_reduce", 2**20, 16, num_nodes=2)], measured())

    assert near < far
    assert plain[0].high_us == pytest.approx(200 * (1 + near), rel=1e-3)


def test_what_was_measured_inside_a_node_is_not_corrected_again() -> None:
    """The shipped networks correct the physics, not measurements."""
    inside = Curve("all_reduce", 8, 1, ((2**20, 55.0), (2**26, 400.0)))
    kernel = Kernel.collective("all_reduce", 2**20, 8)

    (estimate,) = Tiled().predict([kernel], measured(inside))

    assert estimate.latency_us == 55.0
