"""Where TensorBoard's profiler plugin looks for traces."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from neusight.predictors.errors import TraceError

if TYPE_CHECKING:
    from neusight.forecast import Forecast

__all__ = ["trace_handler"]

#: The plugin reads worker and span from `<worker>.<digits>.pt.trace.json`; a forecast is one span.
_SPAN = "1"


def trace_handler(
    logdir: str | Path, worker_name: str | None = None, use_gzip: bool = True
) -> Callable[[Forecast], Path]:
    """A handler for `forecast_on(..., on_trace_ready=...)` that writes a trace into `logdir`.

    Mirrors torch.profiler.tensorboard_trace_handler. The handler returns the path it wrote;
    TraceError where the folder cannot be written. A trace of the same worker is replaced.
    """
    folder = Path(logdir)
    suffix = ".gz" if use_gzip else ""

    def handle(forecast: Forecast) -> Path:
        worker = worker_name or f"{_host_name()}_0"
        path = folder / f"{worker}.{_SPAN}.pt.trace.json{suffix}"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            forecast.export_chrome_trace(path)
        except OSError as error:
            raise TraceError(
                f"The trace cannot be written to {folder}: {error.strerror or error}. Choose a "
                "folder that can be written; the forecast itself is not lost."
            ) from error
        forecast.trace_path = os.fspath(path)
        return path

    return handle


def _host_name() -> str:
    return "".join(c if c.isalnum() or c == "-" else "-" for c in socket.gethostname()) or "host"
