"""A topology made to fit what was measured of a cluster: shares and latencies of its levels, and
the measurements themselves."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from neusight.predictors.clusters.placement import GroupPlacement, placement_of
from neusight.predictors.clusters.topology import Curve, Level, Topology
from neusight.predictors.errors import CalibrationError
from neusight.predictors.gpu import GPU
from neusight.predictors.kernel import CollectiveSize
from neusight.predictors.physics.communication.collective import physical_us
from neusight.predictors.physics.communication.measured import interpolated_us
from neusight.predictors.physics.communication.system import system_of

#: Rounds in which the share is fitted to the largest size and the latency to the smallest.
_ROUNDS = 4

#: Halvings of an interval: far finer than any measurement.
_HALVINGS = 40

#: Between these, a share of the rate and a multiple of the latencies are looked for.
_SHARES = (1e-4, 1e3)
_MULTIPLES = (1e-4, 1e4)


@dataclass(frozen=True)
class LevelFit:
    """What measurements say of a level: before and after, and the mean error over all their sizes
    of the level's own figures, before and after."""

    before: Level
    after: Level
    error_before: float
    error_after: float


def fitted_topology(
    base: Topology | None, gpu: GPU, curves: Sequence[Curve], *, name: str
) -> tuple[Topology, list[LevelFit]]:
    """The topology with what the curves say, and what that is level by level.

    Each level of PCIe or a network gets the share of its rate that the largest sizes reach and the
    latencies of the smallest, the mean over the groups that span it; switches and meshes keep what
    the GPU's own constants say. All curves are kept beside. CalibrationError where two are of one
    group, TopologyError where the topology joins no such group.
    """
    groups = [(curve.op, curve.ranks, curve.nodes) for curve in curves]
    twice = next((group for group in groups if groups.count(group) > 1), None)
    if twice is not None:
        raise CalibrationError(
            f"Two runs are of {twice[0]} on {twice[1]} GPUs of {twice[2]} nodes. Give one of them."
        )
    topology = replace(base or system_of(gpu), name=name, reference_of=(), measured=())
    spanned = _spanned(topology, curves)
    fits: list[LevelFit] = []
    for index, of_level in sorted(spanned.items()):
        fit = _fitted_level(topology, gpu, index, of_level)
        if fit is not None:
            levels = (*topology.levels[:index], fit.after, *topology.levels[index + 1 :])
            topology = replace(topology, levels=levels)
            fits.append(fit)
    kept = tuple(sorted(curves, key=lambda curve: (curve.op, curve.ranks, curve.nodes)))
    sources = {name: text for name, text in topology.sources.items() if "share" not in name}
    sources["measured"] = "nccl-tests of this cluster (`neusight calibrate`): points, shares, µs"
    return replace(topology, measured=kept, sources=sources), fits


def held_out_error(curve: Curve) -> float | None:
    """The mean error on every other size of a curve, forecast from the rest; None where fewer than
    three were measured."""
    kept = (*curve.points[:-1:2], curve.points[-1])
    rest = [point for point in curve.points if point not in kept]
    if not rest:
        return None
    alone = replace(curve, points=kept)
    errors = [abs(interpolated_us(alone, moved) / took_us - 1) for moved, took_us in rest]
    return sum(errors) / len(errors)


def _spanned(topology: Topology, curves: Sequence[Curve]) -> dict[int, list[Curve]]:
    """The curves by the level that their groups span."""
    found: dict[int, list[Curve]] = {}
    for curve in curves:
        place = _place(topology, curve)
        level = place.inside if place.network is None else place.network
        found.setdefault(topology.levels.index(level), []).append(curve)
    return found


def _place(topology: Topology, curve: Curve) -> GroupPlacement:
    per_node = curve.ranks // curve.nodes
    topology.require_space(per_node)
    return placement_of(CollectiveSize(0, curve.ranks, curve.nodes), topology)


def _fitted_level(
    topology: Topology, gpu: GPU, index: int, curves: Sequence[Curve]
) -> LevelFit | None:
    """The level with what its curves say; None where the GPU's constants price it."""
    level = topology.levels[index]
    if level.kind in ("switch", "mesh"):
        return None

    def times_us(tried: Level, curve: Curve) -> list[float]:
        changed = replace(
            topology, levels=(*topology.levels[:index], tried, *topology.levels[index + 1 :])
        )
        place = _place(changed, curve)
        size = CollectiveSize(0, curve.ranks, curve.nodes)
        return [
            physical_us(curve.op, size._replace(num_bytes=moved), gpu, place)
            for moved, _ in curve.points
        ]

    pairs = [_fitted_to(level, curve, times_us) for curve in curves]
    share = math.exp(sum(math.log(found) for found, _ in pairs) / len(pairs))
    multiple = math.exp(sum(math.log(found) for _, found in pairs) / len(pairs))
    # Groups that were not measured stay uncertain: those of data/modern's A100 cluster, each from
    # the others' share and latencies, come out 26 to 89 % off.
    found = _with(level, share, multiple)
    figures: dict[str, Any] = {name: float(f"{getattr(found, name):.4g}") for name in _FITTED}
    after = replace(found, **figures, spread=min(level.spread, Level.spread))
    before_error, after_error = (
        _mean_error(curves, partial(times_us, tried)) for tried in (level, after)
    )
    return LevelFit(level, after, before_error, after_error)


def _fitted_to(
    level: Level, curve: Curve, times_us: Callable[[Level, Curve], list[float]]
) -> tuple[float, float]:
    """The multiples of rate and latencies with which the largest and the smallest size come out."""
    (_, small_us), (_, large_us) = curve.points[0], curve.points[-1]

    def is_fast_enough(share: float, multiple: float) -> bool:
        return times_us(_with(level, share, multiple), curve)[-1] <= large_us

    def is_slow_enough(share: float, multiple: float) -> bool:
        return times_us(_with(level, share, multiple), curve)[0] >= small_us

    share = multiple = 1.0
    for _ in range(_ROUNDS):
        share = _found(partial(is_fast_enough, multiple=multiple), _SHARES)
        multiple = _found(partial(is_slow_enough, share), _MULTIPLES)
    return share, multiple


def _with(level: Level, share: float, multiple: float) -> Level:
    reached = level.share * share
    return replace(
        level,
        gbps=level.gbps * max(1.0, reached),
        share=min(1.0, reached),
        base_us=level.base_us * multiple,
        hop_us=level.hop_us * multiple,
    )


#: What is fitted of a level.
_FITTED = ("gbps", "share", "base_us", "hop_us")


def _found(holds: Callable[[float], bool], limits: tuple[float, float]) -> float:
    """The least number in those limits, on a logarithmic scale, from which on something holds."""
    low, high = (math.log(limit) for limit in limits)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2.0
        low, high = (low, middle) if holds(math.exp(middle)) else (middle, high)
    return math.exp(high)


def _mean_error(curves: Sequence[Curve], times_us: Callable[[Curve], list[float]]) -> float:
    errors = [
        abs(time_us / took_us - 1.0)
        for curve in curves
        for time_us, (_, took_us) in zip(times_us(curve), curve.points, strict=True)
    ]
    return sum(errors) / len(errors)
