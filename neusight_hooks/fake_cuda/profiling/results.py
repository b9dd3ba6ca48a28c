"""What a profiler of the program shows of a window: a trace file, and the events of its tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from neusight.fake_cuda.profiling.memory_profile import MemoryProfile
from neusight.memory.placement import MemoryTimeline, memory_on
from neusight.output.events import function_events
from neusight.output.trace.file import (
    BASE_TIME_NS,
    begins_of,
    read_events,
    save_trace_text,
    text_of,
    trace_text,
)
from neusight.predictors.errors import ForecastStateError
from neusight.predictors.gpu import GPU
from neusight.recording.recording import Recording
from neusight.timeline.spans import Timeline

#: Categories of a trace's events that need ProfilerActivity.CUDA, and those that need CPU.
_OF_DEVICE = frozenset(
    {"kernel", "gpu_memcpy", "gpu_memset", "gpu_user_annotation", "cuda_runtime", "cuda_driver",
     "ac2g"}
)  # fmt: skip
_OF_HOST = frozenset(
    {"cpu_op", "user_annotation", "python_function", "fwdbwd", "cpu_instant_event"}
)


@dataclass(frozen=True)
class Shown:
    """What a profiler of the program was made to show."""

    host: bool
    device: bool
    shapes: bool
    memory: bool
    stacks: bool

    @staticmethod
    def of(profile: Any) -> Shown:
        """What a torch.autograd.profiler.profile was made to show."""
        return Shown(
            host=profile.use_cpu,
            device=profile.use_device == "cuda",
            shapes=profile.record_shapes,
            memory=profile.profile_memory,
            stacks=profile.with_stack,
        )


@dataclass(eq=False, repr=False)
class ProfileResults:
    """What torch's profiler keeps in the place of Kineto's results: the forecast of a window."""

    _recording: Recording
    _schedule: Callable[[Recording], Timeline]
    _gpu: GPU
    _shown: Shown
    _step_names: Mapping[int, str]
    _metadata: Mapping[str, object]

    @cached_property
    def _timeline(self) -> Timeline:
        return self._schedule(self._recording)

    @cached_property
    def _memory(self) -> MemoryTimeline | None:
        return memory_on(self._recording, self._gpu) if self._shown.memory else None

    def function_events(self, *args: Any, **kwargs: Any) -> list[Any]:
        """torch's events, of which it makes its tables."""
        shown = self._shown
        found = function_events(
            self._timeline, self._gpu, self._memory, operators=True, step_names=self._step_names,
            shows_host=shown.host, shows_device=shown.device,
        )  # fmt: skip
        for event in () if shown.shapes else found:
            event.input_shapes = None
        return found

    def save(self, path: str, *args: Any, **kwargs: Any) -> None:
        shown, recording = self._shown, self._recording
        header, events = trace_text(
            self._timeline, self._memory, self._gpu,
            rank=recording.rank,
            world_size=recording.world_size,
            gpus_per_node=recording.gpus_per_node,
            max_steps=len(recording.steps),
            record_shapes=shown.shapes,
            profile_memory=shown.memory,
            with_modules=shown.stacks,
            step_names=self._step_names,
        )  # fmt: skip
        hidden = {*(() if shown.host else _OF_HOST), *(() if shown.device else _OF_DEVICE)}
        if hidden:
            kept = [event for event in read_events(events) if event.get("cat") not in hidden]
            events = [text_of(kept)]
        save_trace_text(Path(path), {**self._metadata, **header}, events)

    def memory_profile(self) -> MemoryProfile:
        """Of what torch makes its timeline of memory."""
        assert self._memory is not None
        timeline, recording = self._timeline, self._recording
        first_ns = begins_of([timeline], max_steps=len(recording.steps))

        def time_ns(mark: int) -> int:
            return BASE_TIME_NS + timeline.memory_ns[mark] - first_ns

        before = timeline.steps[0].replay.index
        device = recording.rank % recording.gpus_per_node
        return MemoryProfile(self._memory, time_ns, before=before, device=device)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        raise ForecastStateError(
            f"Kineto's results have no {name} in a forecast. export_chrome_trace(), events(), "
            "key_averages() and export_memory_timeline() of the program's profiler show it."
        )
