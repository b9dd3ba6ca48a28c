"""What was measured of a cluster, instead of what the physics says of it."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from itertools import accumulate

from neusight.predictors.clusters.placement import GroupPlacement, placement_of
from neusight.predictors.clusters.topology import Curve, Topology
from neusight.predictors.kernel import CollectiveSize

#: Half width of the 80 % interval between measured sizes: where those are a factor of 4 apart,
#: 89 % of data/modern's rows of two nodes lie within (69 to 99 % by GPU, collective and group).
_SPREAD = 0.2
#: Between sizes further apart than this factor, and beyond them, collectives change their algorithm
#: unseen: where two sizes are given, a factor of 1,024 apart, 84 % of those rows lie within this.
_NEAR = 8.0
_FAR_SPREAD = 0.5


def curve_of(
    op: str, size: CollectiveSize, place: GroupPlacement, topology: Topology
) -> Curve | None:
    """The measurements of that collective by a group that lies alike; None where there are none."""
    for curve in topology.measured:
        if curve.op == op and curve.ranks == size.world_size:
            theirs = CollectiveSize(0, curve.ranks, curve.nodes)
            if placement_of(theirs, topology) == place:
                return curve
    return None


def measured_us(curve: Curve, num_bytes: int, physics: Callable[[int], float]) -> float:
    """The time by the measurements; beyond them as `physics` (µs of a number of bytes) goes on."""
    least, most = curve.points[0][0], curve.points[-1][0]
    if least < num_bytes < most:
        return interpolated_us(curve, num_bytes)
    end = least if num_bytes <= least else most
    return interpolated_us(curve, end) * physics(num_bytes) / physics(end)


def interpolated_us(curve: Curve, num_bytes: int) -> float:
    """The time of a size between the least and the most that was measured: on a straight line
    between two sizes, so that two give a base and a bandwidth, and never falling."""
    sizes = [moved for moved, _ in curve.points]
    times = list(accumulate((time_us for _, time_us in curve.points), max))
    if num_bytes == sizes[-1]:
        return times[-1]
    after = bisect_right(sizes, num_bytes)
    share = (num_bytes - sizes[after - 1]) / (sizes[after] - sizes[after - 1])
    return times[after - 1] + share * (times[after] - times[after - 1])


def measured_spread(curve: Curve, num_bytes: int) -> float:
    """Half width of the 80 % interval of that: narrow where sizes near by were measured."""
    sizes = [moved for moved, _ in curve.points]
    before = max((size for size in sizes if size <= num_bytes), default=0)
    after = min((size for size in sizes if size >= num_bytes), default=0)
    near = before and after and after <= before * _NEAR
    return _SPREAD if near else _FAR_SPREAD
