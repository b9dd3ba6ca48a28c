"""What TensorBoard shows of a forecast: the trace for its profiler plugin, scalars and text."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from neusight.integrations.frameworks.tensorboard_text import (
    advice_to_show,
    forecast_markdown,
)
from neusight.output.trace.ranks import RankForecast, worker_of, write_rank_traces
from neusight.predictors.errors import TraceError

if TYPE_CHECKING:
    from neusight.advice.advice import Advice
    from neusight.forecast import Forecast

#: How our event files end, so that those of an earlier forecast can be found and replaced.
_SUFFIX = ".neusight"
_NS_PER_MS = 1e6
_GIB = 2**30


def trace_handler(
    logdir: str | Path,
    worker_name: str | None = None,
    use_gzip: bool = True,
    *,
    advice: Sequence[Advice] | None = None,
) -> Callable[[Forecast], Path]:
    """A handler for `forecast_on(..., on_trace_ready=...)` that writes a trace into `logdir`.

    Mirrors torch.profiler.tensorboard_trace_handler, and adds `write_summary`. Where several ranks
    were run, each has a trace of its own. The handler returns the path of the (first) trace;
    TraceError where the folder cannot be written. A trace of the same worker is replaced. `advice`
    is shown where it is known already; None: what this finds.
    """
    folder = Path(logdir)

    def handle(forecast: Forecast) -> Path:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            path = _write_traces(folder, forecast, worker_name, use_gzip=use_gzip)
            write_summary(forecast, folder, advice=advice)
        except OSError as error:
            raise TraceError(
                f"The trace cannot be written to {folder}: {error.strerror or error}. Choose a "
                "folder that can be written; the forecast itself is not lost."
            ) from error
        return path

    return handle


def _write_traces(
    folder: Path, forecast: Forecast, worker_name: str | None, *, use_gzip: bool
) -> Path:
    """A trace of each rank that was run; the path of the first."""
    ranks = forecast.ranks or (forecast,)
    host = "".join(c if c.isalnum() or c == "-" else "-" for c in socket.gethostname())
    paths = write_rank_traces(
        folder,
        [RankForecast(rank.recording, rank.timeline, rank.memory) for rank in ranks],
        forecast.gpu,
        worker=worker_name or worker_of(forecast.recording, host or "host"),
        use_gzip=use_gzip,
        record_shapes=forecast.options.record_shapes,
        profile_memory=forecast.options.profile_memory,
        with_modules=forecast.options.with_modules,
    )
    for rank, path in zip(ranks, paths, strict=True):
        rank.trace_path = os.fspath(path)
    forecast.trace_path = os.fspath(paths[0])
    return paths[0]


def write_summary(
    forecast: Forecast, logdir: str | Path, *, advice: Sequence[Advice] | None = None
) -> None:
    """Writes TensorBoard's scalars (step time, GPU time, memory, MFU), and as text the verdict,
    what to change (`advice`; None: what this finds) and the summary.

    A point for each step of the timeline, of equal steps the first few; OSError where `logdir`
    cannot be written. What an earlier forecast wrote there is replaced.
    """
    from torch.utils.tensorboard import SummaryWriter

    for stale in Path(logdir).glob(f"events.out.tfevents.*{_SUFFIX}"):
        stale.unlink()
    writer = SummaryWriter(os.fspath(logdir), filename_suffix=_SUFFIX)
    add: Callable[[str, float, int], None] = writer.add_scalar
    index = 0
    try:
        for name, value, index in _scalars(forecast):
            add(f"forecast/{name}", value, index)
        add("forecast/MFU", forecast.mfu, index)
        reported = advice_to_show(forecast) if advice is None else advice
        writer.add_text("forecast", forecast_markdown(forecast, reported), index)
    finally:
        writer.close()


def _scalars(forecast: Forecast) -> Iterator[tuple[str, float, int]]:
    """Name, value and step of each point."""
    memory = _memory_by_step(forecast)
    for step in forecast.timeline.steps:
        if step.replay.step.kind == "setup":
            continue
        index = step.replay.index
        yield "step time (ms)", step.latency_ns / _NS_PER_MS, index
        yield "GPU busy (ms)", step.gpu_busy_ns / _NS_PER_MS, index
        allocated, reserved = memory.get(index, (0, 0))
        yield "peak allocated (GiB)", allocated / _GIB, index
        yield "peak reserved (GiB)", reserved / _GIB, index


def _memory_by_step(forecast: Forecast) -> dict[int, tuple[int, int]]:
    """The most bytes allocated and reserved while each step ran."""
    peaks: dict[int, tuple[int, int]] = {}
    for event in forecast.memory.events:
        allocated, reserved = peaks.get(event.step, (0, 0))
        peaks[event.step] = (max(allocated, event.allocated), max(reserved, event.reserved))
    return peaks
