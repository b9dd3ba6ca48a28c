"""A cluster as nccl-tests measured it: read, and made a topology of."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from neusight.predictors.clusters.named import find_topology
from neusight.predictors.clusters.topology import Curve, Topology
from neusight.predictors.errors import CalibrationError, UnknownGPUError
from neusight.predictors.files import shown
from neusight.predictors.formatting import bytes_text
from neusight.predictors.gpu import GPU, find_gpu
from neusight.predictors.measuring.cluster import LevelFit, fitted_topology, held_out_error
from neusight.predictors.measuring.nccl_tests import NcclRun, read_nccl_output
from neusight.predictors.terminal_text import printable_lines


class MeasuredCluster(NamedTuple):
    """A topology made of measurements, on which GPUs, and what each level and collective says."""

    topology: Topology
    gpu: GPU
    levels: tuple[LevelFit, ...]
    held_out: tuple[tuple[Curve, float | None], ...]

    def table(self) -> str:
        """What was fitted and how near it comes, as people read it."""
        lines = [f"{self.topology.name}: {self.gpu.name}, by nccl-tests"]
        for curve, error in self.held_out:
            (first, _), (last, _) = curve.points[0], curve.points[-1]
            words = "" if error is None else f"; every other size from the rest: {error:.0%} off"
            lines.append(
                f"  measured    {curve.op} on {curve.ranks} GPUs of {curve.nodes} nodes, "
                f"{len(curve.points)} sizes from {bytes_text(first)} to {bytes_text(last)}{words}"
            )
        for fit in self.levels:
            before, after = (level.gbps * level.share for level in (fit.before, fit.after))
            lines.append(
                f"  {fit.after.kind:<10}  {after:.3g} GB/s reached ({before:.3g} taken before), "
                f"{fit.after.base_us:.3g} µs ({fit.before.base_us:.3g}) at least; alone "
                f"{fit.error_before:.0%} off before, {fit.error_after:.0%} after"
            )
        return printable_lines(lines)


def calibrate_cluster(
    sources: Sequence[str | Path], gpu: str | None = None, topology: str | None = None
) -> MeasuredCluster:
    """A topology that fits the outputs of nccl-tests in those files.

    `topology` is what is known of the cluster (default: the GPU's reference system), `gpu` the GPU
    where the files name none that is known. CalibrationError, TopologyError, UnknownGPUError.
    """
    runs = [run for source in sources for run in read_nccl_output(source)]
    target = find_gpu(gpu) if gpu is not None else _gpu_of(runs)
    base = None if topology is None else find_topology(topology)
    name = f"{base.name if base is not None else target.name}, measured"
    curves = [run.curve for run in runs]
    found, levels = fitted_topology(base, target, curves, name=name)
    held_out = tuple((curve, held_out_error(curve)) for curve in found.measured)
    return MeasuredCluster(found, target, tuple(levels), held_out)


def _gpu_of(runs: Sequence[NcclRun]) -> GPU:
    """The GPU that all runs name; CalibrationError where they differ or it is unknown."""
    names = sorted({run.gpu for run in runs})
    if len(names) > 1:
        raise CalibrationError(
            f"The outputs of nccl-tests are of different GPUs: {shown(names)}. Calibrate each "
            "cluster by itself."
        )
    try:
        return find_gpu(names[0])
    except UnknownGPUError as error:
        raise CalibrationError(
            f"The outputs of nccl-tests are of {shown(names[0])}, which no known GPU is called. "
            "Say --gpu."
        ) from error
