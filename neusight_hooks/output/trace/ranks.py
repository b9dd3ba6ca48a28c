"""The traces of several ranks: a file each in one folder, on one clock."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from typing_extensions import Unpack

from neusight.memory.placement import MemoryTimeline
from neusight.output.trace.file import TraceOptions, begins_of, write_trace
from neusight.predictors.gpu import GPU
from neusight.recording.recording import Recording
from neusight.timeline.spans import Timeline

#: TensorBoard's plugin reads worker and span from `<worker>.<digits>.pt.trace.json`; a forecast is
#: one span.
SPAN = "1"


class RankForecast(NamedTuple):
    """The recording of one rank, its timeline and its memory."""

    recording: Recording
    timeline: Timeline
    memory: MemoryTimeline | None


def worker_of(recording: Recording, host: str = "host") -> str:
    """TensorBoard's name of the process: a host and the rank, by which it groups them. Of many
    ranks the hosts are numbered, else it is `host`.

    >>> worker_of(Recording((), "H100", "2.13", world_size=16, rank=11, gpus_per_node=8), "mine")
    'node1_11'
    >>> worker_of(Recording((), "H100", "2.13"), "mine")
    'mine_0'
    """
    if recording.world_size > 1:
        host = f"node{recording.rank // recording.gpus_per_node}"
    return f"{host}_{recording.rank}"


def rank_of(recording: Recording) -> TraceOptions:
    """Which of how many ranks a trace is of."""
    return TraceOptions(
        rank=recording.rank,
        world_size=recording.world_size,
        gpus_per_node=recording.gpus_per_node,
    )


def write_rank_traces(
    folder: str | Path,
    ranks: Sequence[RankForecast],
    gpu: GPU,
    *,
    worker: str = "",
    use_gzip: bool = True,
    **options: Unpack[TraceOptions],
) -> list[Path]:
    """Writes a trace for each rank into `folder`, which must be there, and returns their paths.

    Times of all count from the same moment. `worker` names the first of them, where it is not to be
    called as the others are; `options` are those of `trace_events`. TraceError where a file cannot
    be written.
    """
    begins_ns = begins_of([rank.timeline for rank in ranks])
    paths: list[Path] = []
    for rank in ranks:
        name = worker if worker and not paths else worker_of(rank.recording)
        path = Path(folder) / f"{name}.{SPAN}.pt.trace.json{'.gz' if use_gzip else ''}"
        own: TraceOptions = {"begins_ns": begins_ns, **rank_of(rank.recording), **options}
        write_trace(path, rank.timeline, rank.memory, gpu, **own)
        paths.append(path)
    return paths
