"""HolisticTraceAnalysis reads a forecast as it reads a profile, and finds the timeline's figures.

It needs pandas before 3: where it is not installed beside neusight, give the Python of an
environment that has it in NEUSIGHT_HTA_PYTHON.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import compiled_net
import pytest
import torch
from unequal_ranks import unequal_ranks

import neusight
from neusight.output.trace.file import trace_events
from neusight.output.trace.ranks import RankForecast, write_rank_traces
from neusight.predictors.gpu import find_gpu
from neusight.predictors.kernel import Kernel, KernelClass
from neusight.predictors.predictor import Estimate
from neusight.recording.recording import (
    Entry,
    MathMode,
    OpCall,
    OpSignature,
    Recording,
    Step,
    TensorSpec,
)
from neusight.timeline.host import PLAIN
from neusight.timeline.spans import KernelSpan, Timeline
from neusight.timeline.steps import schedule
from places import ROOT
from timelines import on_communicator, save_trace

HERE = Path(__file__).parent
SPEC = TensorSpec((64,), (1,), "float32")


def python_with_hta() -> str:
    """A Python that can import hta; skips the test where there is none."""
    named = os.environ.get("NEUSIGHT_HTA_PYTHON") or ROOT / ".venv-hta/bin/python"
    if Path(named).exists():
        return str(named)
    try:
        importlib.metadata.version("HolisticTraceAnalysis")
        pandas = importlib.metadata.version("pandas")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip(
            "HolisticTraceAnalysis is not installed: pip install HolisticTraceAnalysis 'pandas<3' "
            "into an environment of its own and name its Python in NEUSIGHT_HTA_PYTHON"
        )
    if int(pandas.partition(".")[0]) >= 3:
        pytest.skip(f"HolisticTraceAnalysis needs pandas before 3, here is {pandas}")
    return sys.executable


class Analysis(NamedTuple):
    """What HTA found, and the timeline it was given."""

    found: dict[str, Any]
    timeline: Timeline

    @property
    def kernels(self) -> list[KernelSpan]:
        """Those of the steps that HTA looks at: all but the last."""
        steps = [step for step in self.timeline.steps if step.replay.step.kind != "setup"]
        return [
            kernel
            for step in steps[:-1]
            for kernel in self.timeline.kernels[step.first_kernel : step.last_kernel]
        ]


def analysis_of(timeline: Timeline, folder: Path, *, num_ranks: int = 1) -> Analysis:
    for rank in range(num_ranks):
        trace = trace_events(timeline, None, find_gpu("H100"), rank=rank, world_size=num_ranks)
        save_trace(folder / f"host_{rank}.1.pt.trace.json.gz", trace)
    return Analysis(figures_of(folder), timeline)


def figures_of(folder: Path) -> dict[str, Any]:
    """What HTA finds in the traces of a folder."""
    run = subprocess.run(
        [python_with_hta(), str(HERE / "hta_figures.py"), str(folder)],
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stderr[-3000:]
    found: dict[str, Any] = json.loads(run.stdout)
    return found


def train() -> None:
    from torch import nn

    model = nn.Sequential(nn.Linear(2048, 2048), nn.GELU(), nn.Linear(2048, 2048)).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(5):
        inputs = torch.randn(512, 2048).cuda()
        with torch.profiler.record_function("forward pass"):
            loss = model(inputs).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


@pytest.fixture(scope="module")
def training(tmp_path_factory: pytest.TempPathFactory) -> Analysis:
    python_with_hta()
    with neusight.forecast_on("H100") as forecast:
        train()
    return analysis_of(forecast.timeline, tmp_path_factory.mktemp("training"))


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Analysis:
    python_with_hta()
    forecast = compiled_net.train(lambda net: torch.compile(net))
    return analysis_of(forecast.timeline, tmp_path_factory.mktemp("compiled"))


def gradients_while_computing() -> tuple[Entry, ...]:
    """Ten products; after each but the last a collective runs beside the next."""

    def op(name: str, number: int) -> OpCall:
        signature = OpSignature(name, "default", (("x", SPEC),), (SPEC,))
        return OpCall(signature, MathMode(), "", "backward", 0, number, "MmBackward0")

    products = [op("aten::mm", number) for number in range(10)]
    reduced = [op("c10d::allreduce_", number) for number in range(10)]
    entries: list[Entry] = [products[0]]
    for number, product in enumerate(products[1:]):
        entries += [*on_communicator(reduced[number], number), product]
    return tuple(entries)


def price(call: OpCall) -> tuple[tuple[Kernel, Estimate], ...]:
    if call.signature.op == "aten::mm":
        return ((Kernel.gemm(512, 512, 512), Estimate(80, 80, 80, "compute", "physics", "test")),)
    estimate = Estimate(50, 50, 50, "communication", "physics", "test")
    return ((Kernel.collective("all_reduce", 2**22, 2), estimate),)


@pytest.fixture(scope="module")
def distributed(tmp_path_factory: pytest.TempPathFactory) -> Analysis:
    python_with_hta()
    step = Step("train", gradients_while_computing(), 4)
    recording = Recording((step,), gpu="H100", torch_version="2")
    timeline = schedule(recording, price, PLAIN)
    return analysis_of(timeline, tmp_path_factory.mktemp("distributed"), num_ranks=2)


class RanksAnalysis(NamedTuple):
    """What HTA found of two ranks of which the second is slower, and what it was given."""

    found: dict[str, Any]
    ranks: list[RankForecast]


@pytest.fixture(scope="module")
def unequal(tmp_path_factory: pytest.TempPathFactory) -> RanksAnalysis:
    python_with_hta()
    folder, ranks = tmp_path_factory.mktemp("ranks"), unequal_ranks()
    write_rank_traces(folder, ranks, find_gpu("H100"))
    return RanksAnalysis(figures_of(folder), ranks)


def union_us(kernels: Iterable[KernelSpan]) -> float:
    total = reached = 0
    for start, end in sorted((kernel.start_ns, kernel.end_ns) for kernel in kernels):
        total += max(0, end - max(start, reached))
        reached = max(reached, end)
    return total / 1000


def is_collective(kernel: KernelSpan) -> bool:
    return kernel.kernel.kernel_class is KernelClass.COLLECTIVE


def is_memory(kernel: KernelSpan) -> bool:
    return kernel.kernel.name.startswith("mem")


@pytest.mark.parametrize("name", ["training", "distributed", "compiled"])
def test_the_temporal_breakdown_is_that_of_the_timeline(
    name: str, request: pytest.FixtureRequest
) -> None:
    analysis: Analysis = request.getfixturevalue(name)
    row = analysis.found["temporal"][0]

    kernels = analysis.kernels
    computing = [k for k in kernels if not is_collective(k) and not is_memory(k)]
    busy_us = union_us(kernels)
    whole_us = (max(k.end_ns for k in kernels) - min(k.start_ns for k in kernels)) / 1000
    assert row["kernel_time(us)"] == pytest.approx(whole_us, abs=0.1)
    assert row["idle_time(us)"] == pytest.approx(whole_us - busy_us, abs=0.1)
    assert row["compute_time(us)"] == pytest.approx(union_us(computing), abs=0.1)
    assert row["non_compute_time(us)"] == pytest.approx(busy_us - union_us(computing), abs=0.1)


@pytest.mark.parametrize("name", ["training", "distributed", "compiled"])
def test_kernels_are_distinguished_by_their_names(
    name: str, request: pytest.FixtureRequest
) -> None:
    analysis: Analysis = request.getfixturevalue(name)
    found = {row["kernel_type"]: row["sum"] for row in analysis.found["kernels"]}

    kinds: tuple[tuple[str, Callable[[KernelSpan], bool]], ...] = (
        ("COMMUNICATION", is_collective),
        ("MEMORY", is_memory),
        ("COMPUTATION", lambda k: not is_collective(k) and not is_memory(k)),
    )
    assert "OTHER" not in found
    for kind, belongs in kinds:
        own = [kernel for kernel in analysis.kernels if belongs(kernel)]
        reported = sum(us for types, us in found.items() if kind in types.split(" overlapping "))
        reported /= len(analysis.found["ranks"])
        # Each piece is cut to whole us; where another kind begins or ends, a new piece begins.
        assert 0 <= union_us(own) - reported <= 2 * len(own)


def test_each_launch_has_its_kernel_and_delay(training: Analysis) -> None:
    launches = {row["correlation"]: row for row in training.found["launches"]}
    spans = {s.correlation: s for s in training.timeline.host if s.kind == "launch"}

    by_correlation = {k.correlation: k for k in training.kernels}
    assert set(launches) == {
        number
        for number, kernel in by_correlation.items()
        if spans[number].name.startswith(("cudaLaunchKernel", "cudaMem"))
    }
    for number, row in launches.items():
        kernel, launch = by_correlation[number], spans[number]
        assert row["gpu_duration"] == pytest.approx(kernel.duration_ns / 1000, abs=0.01)
        assert row["cpu_duration"] == pytest.approx(launch.duration_ns / 1000, abs=0.01)
        # A copy from pageable memory runs while its call still brings the bytes.
        delay_us = max(0, kernel.start_ns - launch.end_ns) / 1000
        assert row["launch_delay"] == pytest.approx(delay_us, abs=0.02)


def test_the_queue_is_as_long_as_what_was_launched_and_has_not_ended(training: Analysis) -> None:
    found = max(row["queue_length"] for row in training.found["queue"])

    starts = {s.correlation: s.start_ns for s in training.timeline.host if s.kind == "launch"}
    changes = [(starts[k.correlation], 1) for k in training.kernels]
    changes += [(k.start_ns, -1) for k in training.kernels]
    waiting = longest = 0
    for _, change in sorted(changes):
        waiting += change
        longest = max(longest, waiting)
    assert found == longest > 1


def test_idle_time_is_laid_to_the_host_or_to_gaps_between_kernels(training: Analysis) -> None:
    idle = {row["idle_category"]: row["idle_time"] for row in training.found["idle"]}

    (temporal,) = training.found["temporal"]
    assert set(idle) == {"host_wait", "kernel_wait", "other"}
    assert sum(idle.values()) == pytest.approx(temporal["idle_time(us)"], rel=0.01)


def test_the_rank_of_a_file_is_found(training: Analysis, distributed: Analysis) -> None:
    assert training.found["ranks"] == [0]
    assert distributed.found["ranks"] == [0, 1]


def test_communication_overlaps_as_in_the_timeline(distributed: Analysis) -> None:
    row = distributed.found["overlap"][0]

    steps = distributed.timeline.steps[:-1]
    whole = sum(step.communication_ns for step in steps)
    exposed = sum(step.exposed_communication_ns for step in steps)
    assert row["comp_comm_overlap_pctg"] == pytest.approx(100 * (1 - exposed / whole), abs=0.1)


def test_annotations_cover_the_kernels_launched_in_them(training: Analysis) -> None:
    found = {row["name"]: row for row in training.found["annotations"]}

    assert {"forward pass", "Optimizer.step#AdamW.step"} <= set(found)
    assert not any(name.startswith("ProfilerStep") for name in found)
    assert found["forward pass"]["mean (us)"] > 0


def test_copies_to_the_gpu_have_a_bandwidth(training: Analysis) -> None:
    rates = [row["memory_bw_gbps"] for row in training.found["bandwidth"]]

    (copy, *_) = [k for k in training.kernels if k.kernel.name == "memcpy_h2d"]
    assert max(rates) == pytest.approx(512 * 2048 * 4 / copy.duration_ns, rel=0.01)


@pytest.mark.parametrize("name", ["training", "distributed"])
def test_the_critical_path_is_found(name: str, request: pytest.FixtureRequest) -> None:
    analysis: Analysis = request.getfixturevalue(name)

    assert analysis.found["critical_path_found"]
    shares = analysis.found["critical_path"]
    assert sum(shares.values()) == pytest.approx(100)
    assert shares["gpu_compute_bound"] > 50


def test_the_slower_rank_is_the_straggler(unequal: RanksAnalysis) -> None:
    assert unequal.found["stragglers"] == [1]


def test_waiting_for_a_slower_rank_is_communication_that_nothing_covers(
    unequal: RanksAnalysis,
) -> None:
    rows = {row["rank"]: row for row in unequal.found["overlap"]}

    assert sorted(rows) == unequal.found["ranks"] == [0, 1]
    for rank, given in enumerate(unequal.ranks):
        steps = given.timeline.steps[:-1]
        whole = sum(step.communication_ns for step in steps)
        exposed = sum(step.exposed_communication_ns for step in steps)
        overlap = rows[rank]["comp_comm_overlap_pctg"]
        assert overlap == pytest.approx(100 * (1 - exposed / whole), abs=0.1)
    assert rows[0]["comp_comm_overlap_pctg"] < rows[1]["comp_comm_overlap_pctg"] - 10


def test_kernels_are_summed_over_all_ranks(unequal: RanksAnalysis) -> None:
    kinds = {row["kernel_type"]: row["sum"] for row in unequal.found["kernels"]}

    reported = sum(us for kind, us in kinds.items() if "COMMUNICATION" in kind)
    given = [
        kernel
        for rank in unequal.ranks
        for step in rank.timeline.steps[:-1]
        for kernel in rank.timeline.kernels[step.first_kernel : step.last_kernel]
        if is_collective(kernel)
    ]
    assert reported == pytest.approx(sum(kernel.duration_ns for kernel in given) / 1000, rel=0.02)
