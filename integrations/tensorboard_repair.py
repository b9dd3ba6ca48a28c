"""A TensorBoard entry point that lets torch-tb-profiler 0.4.3 read traces of today.

The plugin's last release knows neither `cuda_runtime`, `fwdbwd` nor most annotations: operators get
no device time, modules no backward, steps count twice, in real profiles as in forecasts. This maps
them, while a trace is loaded, to the names that the plugin knows; files stay as they are.

TensorBoard imports entry points before it starts any plugin, so importing this module is what
repairs; `Repair` itself shows nothing.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterable
from typing import Any

from tensorboard.plugins import base_plugin

__all__ = ["Repair", "mapped_events", "repair"]

#: Categories of Kineto today, and what torch-tb-profiler calls them.
_CATEGORIES = {
    "cuda_runtime": "runtime",
    "cuda_driver": "runtime",
    "hip_runtime": "runtime",
    "fwdbwd": "forward_backward",
}

#: Annotations that the plugin looks for among operators.
_OPERATOR_ANNOTATIONS = ("enumerate(DataLoader)#", "Optimizer.")

_REPAIRED = "_neusight_repaired"


def mapped_events(events: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The events with categories that the plugin knows; GPU annotations, which it would take for
    steps of their own, are left out."""
    mapped: list[dict[str, Any]] = []
    for event in events:
        category = event.get("cat")
        if category == "gpu_user_annotation":
            continue
        if category in _CATEGORIES:
            event = {**event, "cat": _CATEGORIES[category]}
        elif category == "user_annotation" and event.get("name", "").startswith(
            _OPERATOR_ANNOTATIONS
        ):
            event = {**event, "cat": "cpu_op"}
        mapped.append(event)
    return mapped


def repair() -> None:
    """Wraps the plugin's parser; once, however often it is called, and not without the plugin."""
    try:
        from torch_tb_profiler.profiler import data, loader
    except ImportError:
        return
    profile = data.RunProfileData
    if getattr(profile, _REPAIRED, False):
        return
    original = profile.__init__

    def init(self: Any, worker: str, span: str, trace_json: dict[str, Any]) -> None:
        events = mapped_events(trace_json["traceEvents"])
        original(self, worker, span, {**trace_json, "traceEvents": events})

    profile.__init__ = init
    setattr(profile, _REPAIRED, True)
    # The plugin loads in processes that would not be repaired; threads of this one are.
    loader.Process = threading.Thread
    loader.Queue = queue.Queue


class Repair(base_plugin.TBLoader):  # type: ignore[misc]  # tensorboard has no annotations
    """What TensorBoard loads; it adds no plugin."""

    def load(self, context: Any) -> None:
        """Nothing to show."""
        return


repair()
