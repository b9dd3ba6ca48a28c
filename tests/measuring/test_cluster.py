"""A topology that fits measurements."""

from __future__ import annotations

from dataclasses import replace

import pytest

from neusight.predictors.clusters.named import find_topology
from neusight.predictors.clusters.topology import Curve, Level, Topology
from neusight.predictors.errors import CalibrationError, TopologyError
from neusight.predictors.gpu import find_gpu
from neusight.predictors.kernel import Kernel
from neusight.predictors.measuring.cluster import fitted_topology, held_out_error
from neusight.predictors.physics.communication.collective import collective_timing

DGX = find_topology("dgx-a100")
GPU = find_gpu("A100")


def times_on(topology: Topology, op: str, ranks: int, nodes: int, sizes: list[int]) -> Curve:
    """What that topology forecasts, as if it had been measured."""
    there = replace(GPU, topology=topology)
    kernels = [Kernel.collective(op, moved, ranks, num_nodes=nodes) for moved in sizes]
    times = [collective_timing(kernel, there).time_us for kernel in kernels]
    return Curve(op, ranks, nodes, tuple(zip(sizes, times, strict=True)))


@pytest.mark.parametrize(("op", "ranks"), [("all_reduce", 16), ("send_recv", 2), ("all_to_all", 4)])
def test_two_sizes_give_share_and_latencies_back(op: str, ranks: int) -> None:
    true = Level("network", 25.0, nics_per_node=8, share=0.37, base_us=23.0, hop_us=11.5)
    curve = times_on(DGX.with_network(true), op, ranks, 2, [2**12, 2**28])

    found, (fit,) = fitted_topology(DGX, GPU, [curve], name="mine")

    assert found.network is not None
    assert found.network.share == pytest.approx(0.37, rel=0.01)
    assert found.network.base_us == pytest.approx(23.0, rel=0.02)
    assert fit.error_after < 0.01 < fit.error_before
    assert found.measured == (curve,)


def test_a_network_faster_than_stated_is_one_of_a_higher_rate() -> None:
    fast = Level("network", 100.0, nics_per_node=8, share=0.9)
    curve = times_on(DGX.with_network(fast), "all_gather", 2, 2, [2**12, 2**28])

    found, _ = fitted_topology(DGX, GPU, [curve], name="mine")

    assert found.network is not None
    assert found.network.gbps * found.network.share == pytest.approx(90.0, rel=0.01)
    assert found.network.share <= 1.0


def test_levels_of_a_pcie_box_are_fitted_by_the_groups_that_span_them() -> None:
    box, gpu = find_topology("pcie-l40s"), find_gpu("L40S")
    eight = Curve("all_reduce", 8, 1, ((2**16, 60.0), (2**26, 14_000.0)))

    found, (fit,) = fitted_topology(box, gpu, [eight], name="mine")

    assert found.inside[:2] == box.inside[:2]
    assert fit.after == found.inside[2]
    kernel = Kernel.collective("all_reduce", 2**26, 8)
    there = replace(gpu, topology=replace(found, measured=()))
    assert collective_timing(kernel, there).time_us == pytest.approx(14_000, rel=0.01)


def test_a_switch_keeps_the_gpus_own_constants_and_the_measurements() -> None:
    inside = Curve("all_reduce", 8, 1, ((2**16, 30.0), (2**26, 500.0)))

    found, fits = fitted_topology(DGX, GPU, [inside], name="mine")

    assert (found.levels, fits, found.measured) == (DGX.levels, [], (inside,))


def test_every_other_size_left_out_judges_a_curve() -> None:
    true = DGX.with_network(Level("network", 25.0, nics_per_node=8, share=0.3))
    curve = times_on(true, "send_recv", 2, 2, [4**at for at in range(6, 14)])

    error = held_out_error(curve)

    assert error is not None
    assert error < 0.01
    assert held_out_error(replace(curve, points=curve.points[:2])) is None


def test_two_runs_of_one_group_are_refused() -> None:
    curve = times_on(DGX, "all_reduce", 16, 2, [2**12, 2**28])

    with pytest.raises(CalibrationError, match="Two runs are of all_reduce on 16 GPUs of 2 nodes"):
        fitted_topology(DGX, GPU, [curve, curve], name="mine")


def test_a_group_that_the_topology_does_not_hold_is_refused() -> None:
    curve = Curve("all_reduce", 32, 2, ((2**12, 10.0), (2**28, 1000.0)))

    with pytest.raises(TopologyError, match="16 ranks on each node"):
        fitted_topology(DGX, GPU, [curve], name="mine")
