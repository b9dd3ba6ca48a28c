"""Collectives between nodes, over PCIe and in switches that reduce, beside data/modern's rows.

    python benchmarks/clusters.py             prints them, and writes results/clusters.csv

A group's rows are all sizes of one GPU, collective and number of ranks. Where sizes are given to
`neusight calibrate`'s fit, only the others are scored.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from tables import write_table

from neusight.predictors import Tiled
from neusight.predictors.clusters.topology import Curve, Topology
from neusight.predictors.gpu import GPU, find_gpu
from neusight.predictors.kernel import Kernel
from neusight.predictors.measuring.cluster import fitted_topology

RESULTS = Path(__file__).parent / "results" / "clusters.csv"
ROWS = Path(__file__).parents[2] / "shared" / "data" / "modern" / "collectives.parquet"

#: GPUs by the names of the rows.
GPUS = {
    "a100_sxm": "A100-SXM4-80GB",
    "h100_sxm": "H100-SXM5-80GB",
    "h200_sxm": "H200-SXM-141GB",
    "b200_sxm": "B200-SXM-180GB",
    "b300_sxm": "B300-SXM-270GB",
    "a40": "A40",
    "l40s": "L40S",
    "a100_pcie_nvlink_pair": "A100-PCIE-80GB",
    "h100_pcie_nvlink_pair": "H100-PCIE-80GB",
}
OPS = {"alltoall": "all_to_all"}

#: Sizes that are given: two, or a sweep by a factor of 4, bytes.
TWO = (2**16, 2**26)
SWEEP = tuple(4**exponent for exponent in range(6, 14))

#: Sizes nearer than this to one that is given are the same one.
SAME = 0.1


class Group(NamedTuple):
    """The rows of one GPU, collective and number of ranks on so many nodes."""

    gpu: GPU
    op: str
    ranks: int
    nodes: int
    sizes: np.ndarray[Any, Any]
    times: np.ndarray[Any, Any]

    def given(self, sizes: Iterable[int]) -> Curve:
        """Those sizes as nccl-tests would tell them: the median of the rows near each."""
        points = {}
        for size in sizes:
            near = np.abs(self.sizes / size - 1.0) < SAME
            chosen = near if near.any() else np.arange(len(self.sizes)) == self._nearest(size)
            points[int(min(size, self.sizes.max()))] = float(np.median(self.times[chosen]))
        return Curve(self.op, self.ranks, self.nodes, tuple(sorted(points.items())))

    def error(self, topology: Topology | None = None, *, without: Sequence[int] = ()) -> float:
        """Mean error in percent on the sizes that were not given."""
        gpu = self.gpu if topology is None else replace(self.gpu, topology=topology)
        rest = ~np.isin(self.sizes, without)
        kernels = [
            Kernel.collective(self.op, int(size), self.ranks, dtype="float16", num_nodes=self.nodes)
            for size in self.sizes[rest]
        ]
        times = np.array([estimate.latency_us for estimate in Tiled().predict(kernels, gpu)])
        return 100.0 * float(np.abs(times / self.times[rest] - 1.0).mean())

    def _nearest(self, size: int) -> int:
        return int(np.argmin(np.abs(self.sizes - size)))


class Line(NamedTuple):
    """Mean errors over the sizes of a group, in percent."""

    gpu: str
    collective: str
    ranks: int
    nodes: int
    sizes: int
    error_percent: float
    error_after_two_sizes_percent: float | None = None
    error_after_sweep_percent: float | None = None


def groups(rows: pd.DataFrame) -> list[Group]:
    """The groups of these rows, the median of each size."""
    keys = ["gpu", "op", "num_gpus", "num_nodes"]
    found = []
    for (gpu, op, ranks, nodes), part in rows.groupby(keys, observed=True):
        times = part.groupby("message_bytes").latency_us.median()
        name = OPS.get(str(op), str(op))
        found.append(
            Group(
                find_gpu(GPUS[str(gpu)]), name, int(ranks), int(nodes),
                times.index.to_numpy(), times.to_numpy(),
            )
        )  # fmt: skip
    return found


def two_nodes(rows: pd.DataFrame) -> Iterator[Line]:
    """The reference network, and what two sizes or a sweep give."""
    for group in groups(rows[rows.num_nodes == 2]):
        errors = [group.error()]
        for given in (TWO, SWEEP):
            curve = group.given(given)
            topology, _ = fitted_topology(None, group.gpu, [curve], name="measured")
            errors.append(group.error(topology, without=[size for size, _ in curve.points]))
        yield Line(group.gpu.name, group.op, group.ranks, 2, len(group.sizes), *errors)


def one_node(rows: pd.DataFrame, gpus: Sequence[str], least: int = 0) -> Iterator[Line]:
    """Each collective and number of ranks, sizes from `least` bytes on."""
    chosen = rows[(rows.num_nodes == 1) & rows.gpu.isin(gpus) & (rows.message_bytes >= least)]
    for group in groups(chosen):
        yield Line(group.gpu.name, group.op, group.ranks, 1, len(group.sizes), group.error())


def main() -> None:
    """Prints all, and keeps what ACCURACY.md shows."""
    table = pd.read_parquet(ROWS)
    table = table[table.op != "all_reduce_custom"]
    nccl = table[table.source.str.contains("nccl-tests") & (table.dtype == "fp16")]
    shown = [*two_nodes(table), *one_node(nccl, ["l40s"])]
    errors = (["" if error is None else f"{error:.1f}" for error in line[5:]] for line in shown)
    rows = ((*line[:5], *own) for line, own in zip(shown, errors, strict=True))
    write_table(RESULTS, Line._fields, rows)
    pairs = table[table.source.str.contains("pairwise") & (table.op == "all_reduce")]
    switched = one_node(nccl[nccl.op == "all_reduce"], list(GPUS), least=2**26)
    bridged = one_node(pairs, ["a100_pcie_nvlink_pair", "h100_pcie_nvlink_pair"], least=2**21)
    for line in (*shown, *switched, *bridged):
        print(*line)


if __name__ == "__main__":
    main()
