"""The program's own torch.profiler: it shows the forecast of what runs in its window.

Torch makes its tables, calls its handlers and follows its schedule as ever. Kineto, the library in
C++ that would give it events and write its file, sees no GPU here and is not started.
"""

from __future__ import annotations

import inspect
import json
import warnings
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, ParamSpec, TypeVar

import torch
from torch.autograd import profiler
from torch.profiler import ProfilerActivity

from neusight.fake_cuda.distributed.rank import Rank
from neusight.fake_cuda.patching import Patches
from neusight.fake_cuda.profiling.memory_profile import MemoryProfile
from neusight.fake_cuda.profiling.results import ProfileResults, Shown
from neusight.fake_cuda.torch_api.clock import SimulatedClock
from neusight.predictors.gpu import GPU
from neusight.recording.call_stack import CallStacks
from neusight.recording.dispatch.python_functions import PythonFunctions
from neusight.recording.recorder import Recorder
from neusight.recording.recording import Recording, Step
from neusight.recording.steps.window import Window
from neusight.recording.tape import EnoughSteps
from neusight.timeline.host import HostProfile
from neusight.timeline.launches import Pricing
from neusight.timeline.ranks.contention import schedule_beside
from neusight.timeline.spans import Timeline
from neusight.timeline.steps import Moment

P = ParamSpec("P")
R = TypeVar("R")

#: What a profiler must be made with to show memory by category, as torch says it.
_NEEDED_FOR_MEMORY = ("record_shapes", "profile_memory", "with_stack")
_NO_SWITCHING = (
    "toggle_collection_dynamic() of the program's profiler does nothing in a forecast: all of what "
    "it was made to show is shown"
)


class _OpenWindow(NamedTuple):
    """A window, what the streams held when it opened, and what is to be shown of it."""

    window: Window
    since: Moment
    shown: Shown


@dataclass(eq=False, repr=False)
class ProgramProfilers:
    """The profilers that the program runs, each with the window that it has open."""

    recorder: Recorder
    gpu: GPU
    price: Pricing
    host: HostProfile
    clock: Callable[[], SimulatedClock]
    stacks: CallStacks
    rank: Rank | None
    follow_operators: Callable[[], None]
    #: What the program adds to the file of the window that opened last, by name.
    metadata: dict[str, object] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._windows: dict[int, _OpenWindow] = {}
        #: Ends what is recorded for windows alone, when none is open.
        self._undo = ExitStack()
        self.recorder.hooks.on_profiler_step.subscribe(self._step)

    def begin(self, profile: Any) -> None:
        recorder, shown = self.recorder, Shown.of(profile)
        operators, tape = recorder.operators, recorder.tape
        if not operators.is_possible:
            self._undo.callback(operators.stop)
            self.follow_operators()
        functions = None
        if shown.stacks and tape.stacks is None:
            functions = PythonFunctions(self.stacks)
            self._undo.callback(setattr, tape, "stacks", None)
            tape.stacks = self.stacks
        self._undo.callback(operators.end_profile, functions)
        operators.profile(functions)
        since = self.clock().now()
        window = Window(tape, recorder.storages, since.streams.last_event)
        self._windows[id(profile)] = _OpenWindow(window, since, shown)
        self.metadata = {}

    def end(self, profile: Any) -> ProfileResults:
        """It closes: what ran in it. RuntimeError where none is open, as Kineto raises it."""
        if id(profile) not in self._windows:
            raise RuntimeError("Can't disable Kineto profiler when it's not running")
        opened = self._windows.pop(id(profile))
        steps, step_names = opened.window.end()
        if not self._windows:
            self._undo.close()
        self.recorder.cutter.waits_for_profiler = False

        def schedule(recording: Recording) -> Timeline:
            return schedule_beside(recording, self.price, self.host, self.gpu, since=opened.since)

        return ProfileResults(
            self._recording(steps), schedule, self.gpu, opened.shown, step_names, self.metadata
        )

    def _recording(self, steps: tuple[Step, ...]) -> Recording:
        rank = self.rank
        return Recording(
            steps,
            gpu=self.gpu.name,
            torch_version=self.recorder.torch_version,
            world_size=1 if rank is None else rank.world_size,
            rank=0 if rank is None else rank.index,
            gpus_per_node=1 if rank is None else rank.gpus_per_node,
            options=dict(self.recorder.options),
        )

    def _step(self, name: str) -> None:
        """A step of the profiler's schedule begins, or ("") ends."""
        for opened in self._windows.values():
            opened.window.part_begins(name)


def install_profiler(patches: Patches, profilers: ProgramProfilers) -> None:
    """Has torch's profilers show windows of the recording. step() says where steps end."""
    _install_windows(patches, profilers)
    _install_schedules(patches, profilers)
    _install_memory_timelines(patches, profilers.recorder)
    activities = {ProfilerActivity.CPU, ProfilerActivity.CUDA}
    for module in (torch.autograd, profiler):
        patches.set(module, "_supported_activities", lambda: set(activities))

    def add_metadata(key: str, value: str) -> None:
        profilers.metadata[key] = value
        with suppress(ValueError):  # of what is no JSON Kineto makes a broken file
            profilers.metadata[key] = json.loads(value)

    patches.set(torch.autograd, "_add_metadata_json", add_metadata)


def _install_windows(patches: Patches, profilers: ProgramProfilers) -> None:
    untyped: Any = profiler  # torch's own functions have no annotations
    profile = untyped.profile
    recorder = profilers.recorder
    original_leave, original_disable = profile.__exit__, untyped._disable_profiler
    closing: list[tuple[Any, str | None]] = []  # with the devices that they show

    def prepare(self: Any) -> None:
        self.entered = True
        profilers.clock()  # from now on it is known what streams hold

    def start(self: Any) -> None:
        self.entered = True
        recorder.cutter.waits_for_profiler = True
        with recorder.mode.inside():
            profilers.begin(self)

    def disable() -> Any:
        if not closing:
            return original_disable()
        closed, device = closing[-1]
        closed.use_device = device
        with recorder.mode.inside():
            results = profilers.end(closed)
        # Tables and files may be asked for when the forecast has ended.
        closed._parse_kineto_results = _inside(recorder, results.function_events)
        closed.export_chrome_trace = _inside(recorder, results.save)
        return results

    def leave(self: Any, kind: Any, error: Any, traceback: Any) -> bool:
        if self.enabled:
            closing.append((self, self.use_device))
            self.use_device = None  # the program without a profiler does not wait for the GPU here
            try:
                original_leave(self, kind, error, traceback)
            finally:
                self.use_device = closing.pop()[1]
        return isinstance(error, EnoughSteps)

    def toggle(self: Any, *args: Any) -> None:
        recorder.warn_once(_NO_SWITCHING)

    patches.set(profile, "_prepare_trace", prepare)
    patches.set(profile, "_start_trace", start)
    patches.set(profile, "__exit__", leave)
    patches.set(profiler, "_disable_profiler", disable)
    patches.set(profile, "toggle_collection_dynamic", toggle)


def _inside(recorder: Recorder, function: Callable[P, R]) -> Callable[P, R]:
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        with recorder.mode.inside():
            return function(*args, **kwargs)

    return run


def _install_schedules(patches: Patches, profilers: ProgramProfilers) -> None:
    profile: Any = torch.profiler.profile
    recorder = profilers.recorder
    original_start, original_step = profile.start, profile.step
    original_stop, original_leave = profile.stop, profile.__exit__

    def start(self: Any) -> None:
        recorder.cutter.waits_for_profiler = True
        profilers.clock()
        original_start(self)

    def step(self: Any) -> None:
        recorder.cutter.explicit_step()
        original_step(self)

    def stop(self: Any) -> None:
        original_stop(self)
        recorder.cutter.waits_for_profiler = False

    def leave(self: Any, kind: Any, error: Any, traceback: Any) -> bool:
        original_leave(self, kind, error, traceback)
        return isinstance(error, EnoughSteps)  # what the program does with the results is to run

    patches.set(profile, "start", start)
    patches.set(profile, "step", step)
    patches.set(profile, "stop", stop)
    patches.set(profile, "__exit__", leave)


def _install_memory_timelines(patches: Patches, recorder: Recorder) -> None:
    """Has torch make its timelines of memory of what a window shows. (Torch 2.13 says that a later
    release is without them.)"""
    scheduled: Any = torch.profiler.profile
    if not hasattr(scheduled, "_memory_profile"):
        return
    original_stop, original_memory = scheduled.stop, scheduled._memory_profile
    original_export = scheduled.export_memory_timeline

    def stop(self: Any) -> None:
        original_stop(self)
        if _has_window(self):
            # May be asked for when the forecast has ended, and torch knows of no GPU any more.
            self._memory_profile = partial(memory_profile, self)
            self.export_memory_timeline = partial(_export_memory, self, original_export)

    def memory_profile(self: Any) -> Any:
        if not _has_window(self):
            return original_memory(self)
        return _inside(recorder, _memory_profile_of)(self)

    patches.set(scheduled, "stop", stop)
    patches.set(scheduled, "_memory_profile", memory_profile)


def _has_window(profile: Any) -> bool:
    return isinstance(getattr(profile.profiler, "kineto_results", None), ProfileResults)


def _memory_profile_of(profile: Any) -> MemoryProfile:
    """The memory of a profiler's window; ValueError where it was not made to show it."""
    missing = [f"{option}=True" for option in _NEEDED_FOR_MEMORY if not getattr(profile, option)]
    if missing:
        raise ValueError(f"{', '.join(missing)} required for memory profiling.")
    results: ProfileResults = profile.profiler.kineto_results
    return results.memory_profile()


def _export_memory(
    profile: Any, export: Callable[..., None], path: str, device: str | None = None
) -> None:
    if message := getattr(export, "__deprecated__", ""):
        warnings.warn(message, FutureWarning, stacklevel=2)
    inspect.unwrap(export)(profile, path, device or "cuda:0")
