"""While open, a machine without CUDA answers as the target GPU would; afterwards as before."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from neusight.compatibility.torch_internals import missing, require
from neusight.fake_cuda.checkpoints import install_checkpoints
from neusight.fake_cuda.compiling.compiler import install_compiler
from neusight.fake_cuda.compiling.trial import install_trial
from neusight.fake_cuda.compiling.wrappers import Wrappers
from neusight.fake_cuda.core import enter_cuda_core, record_functions_failure
from neusight.fake_cuda.distributed.peers.link import Link
from neusight.fake_cuda.distributed.peers.waiting_time import DEFAULT_WAIT_S
from neusight.fake_cuda.distributed.rank import Rank
from neusight.fake_cuda.modules import install_modules
from neusight.fake_cuda.nested.construction import install_nested
from neusight.fake_cuda.nvml.installation import install_nvml
from neusight.fake_cuda.overlay.open_handles import install_open_handles
from neusight.fake_cuda.overlay.overlay import Overlay
from neusight.fake_cuda.overlay.python_functions import install_files, install_folder_renames
from neusight.fake_cuda.overlay.spawned import install_spawned
from neusight.fake_cuda.overlay.writers import install_writers
from neusight.fake_cuda.packages import install_packages
from neusight.fake_cuda.patching import Patches
from neusight.fake_cuda.processes.processes import Processes
from neusight.fake_cuda.processes.sent_tensors import install_sent_tensors
from neusight.fake_cuda.processes.starting import install_processes
from neusight.fake_cuda.profiling.profilers import ProgramProfilers, install_profiler
from neusight.fake_cuda.store.store import Store
from neusight.fake_cuda.torch_api.accelerator import install_accelerator
from neusight.fake_cuda.torch_api.clock import SimulatedClock, install_virtual_time
from neusight.fake_cuda.torch_api.covariance import install_covariance
from neusight.fake_cuda.torch_api.cuda_module import install_cuda_module
from neusight.fake_cuda.torch_api.lazy_modules import load_lazy_modules_in
from neusight.fake_cuda.torch_api.native.generators import install_generators
from neusight.fake_cuda.torch_api.native_names import install_native_names
from neusight.fake_cuda.torch_api.overrides import install_overrides
from neusight.fake_cuda.torch_api.simulated_memory import SimulatedMemory
from neusight.fake_cuda.user_extensions.custom_ops import install_custom_ops
from neusight.fake_cuda.user_extensions.dlpack import install_dlpack
from neusight.fake_cuda.user_extensions.gradients import install_gradients
from neusight.fake_cuda.user_extensions.numeric_checks import install_numeric_checks
from neusight.fake_cuda.user_extensions.subclasses import install_subclasses
from neusight.fake_cuda.user_kernels import install_user_kernels
from neusight.predictors.gpu import GPU
from neusight.recording.call_stack import CallStacks
from neusight.recording.dispatch.eager_errors import quiet_fake_kernels
from neusight.recording.dispatch.operator_calls import OperatorCalls
from neusight.recording.dispatch.record_functions import RecordFunctions
from neusight.recording.handlers import HANDLERS
from neusight.recording.recorder import Recorder, RecordingMode
from neusight.timeline.host import HostProfile
from neusight.timeline.launches import Pricing

if not missing("distributed"):
    # Its modules take such names at their top, from a torch that is not patched yet.
    import neusight.fake_cuda.distributed.installation  # noqa: F401  (loaded for later)


@dataclass
class Opening:
    """What the installers below take: whose ops are recorded, for which GPU, and with what.

    What the program does to files goes to `store`, without one where it says: to the user's own, or
    in a process that `has_view` to its copy-on-write view. With `compiles_models` its models are
    compiled, whatever it says. What it starts joins `processes`.
    """

    undo: ExitStack
    recorder: Recorder
    gpu: GPU
    price: Pricing
    host: HostProfile
    on_query: Callable[[str, object], None]
    virtual_time: bool = False
    store: Store | None = None
    has_view: bool = False
    raise_out_of_memory: bool = False
    compiles_models: bool = False
    with_operators: bool = True
    rank: Rank | None = None
    link: Link | None = None
    wait_s: float = DEFAULT_WAIT_S
    processes: Processes | None = None
    stacks: CallStacks = field(default_factory=CallStacks)
    patches: Patches = field(default_factory=Patches)
    wrappers: Wrappers = field(default_factory=Wrappers)

    @cached_property
    def clock(self) -> SimulatedClock:
        """Forecast time, from where it is first asked for."""
        return SimulatedClock(self.recorder, self.price, self.host)

    def on_program_query(self, device_query: str, answer: object) -> None:
        """Records a query of the program, not of Inductor: that has one of its own, `inductor`."""
        if not self.recorder.mode.is_inside:
            self.on_query(device_query, answer)

    @cached_property
    def on_tracked_query(self) -> Callable[[str, object], None]:
        """Records a query, and keeps it with what is compiled by it."""
        return self.wrappers.recording_queries(self.recorder.mode, self.on_query)


@contextmanager
def fake_cuda(recorder: Recorder, gpu: GPU, **settings: Any) -> Iterator[None]:
    """As `enter_fake_cuda`, for the time of a block."""
    with ExitStack() as undo:
        enter_fake_cuda(Opening(undo, recorder, gpu, **settings))
        yield


def enter_fake_cuda(opening: Opening) -> None:
    """From here on programs run on a GPU without its being there, and what they do is recorded.
    `opening.undo` ends it; how to undo a change is recorded there before the change is made."""
    for install in _INSTALLERS:
        install(opening)


def _install_core(on: Opening) -> None:
    on.recorder.handlers.update(HANDLERS)
    enter_cuda_core(on.undo)
    on.undo.enter_context(quiet_fake_kernels())
    on.undo.enter_context(on.patches.undo)


def _install_torch_cuda(on: Opening) -> None:
    memory = SimulatedMemory(on.recorder, on.gpu, raises=on.raise_out_of_memory)
    query = on.on_program_query
    install_cuda_module(on.patches, on.recorder, on.gpu, memory, query, lambda: on.clock)
    install_native_names(on.patches, on.recorder, on.gpu, query)
    install_accelerator(on.patches)
    install_covariance(on.patches, on.recorder.known)
    install_overrides(on.patches, on.recorder, on.gpu, on.on_tracked_query)


def _install_profiler(on: Opening) -> None:
    profilers = ProgramProfilers(
        on.recorder, on.gpu, on.price, on.host, lambda: on.clock, on.stacks, on.rank,
        lambda: _follow_operators(on.recorder.operators),
    )  # fmt: skip
    install_profiler(on.patches, profilers)


def _install_distributed(on: Opening) -> None:
    """Process groups; where this torch lacks what they need, the first one that a program creates
    is an UnsupportedTorchError, and programs on one GPU run as ever."""
    if missing("distributed"):

        def refuse(*args: object, **kwargs: object) -> None:
            require("distributed")

        if on.rank is not None:
            refuse()
        on.patches.set(torch.distributed, "init_process_group", refuse)
        return
    from neusight.fake_cuda.distributed.installation import install_distributed

    install_distributed(
        on.patches, on.recorder, on.gpu, on.on_query, on.rank, on.link, on.wait_s,
        virtual_time=on.virtual_time,
    )  # fmt: skip


def _install_generators(on: Opening) -> None:
    """One for each GPU of the ranks."""
    recorder = on.recorder
    install_generators(on.patches, recorder.devices, recorder.fake_kernels.gpu_generators)


def _install_user_extensions(on: Opening) -> None:
    install_user_kernels(on.patches, on.recorder)
    install_custom_ops(on.patches, on.recorder)
    install_dlpack(on.patches)
    install_gradients(on.patches)
    install_numeric_checks(on.patches, on.recorder)
    install_subclasses(on.patches)


def _install_processes(on: Opening) -> None:
    install_sent_tensors(on.patches)
    renew_readings = install_nvml(on.patches, on.gpu, lambda: on.recorder.devices.count)
    if on.processes is not None:
        on.processes.before_start = renew_readings
        if on.processes.process is None:  # else this one joined at its start
            install_processes(on.patches, on.processes)


def _install_compiling(on: Opening) -> None:
    install_compiler(on.patches, on.recorder, on.gpu, on.on_tracked_query, on.wrappers)
    if on.compiles_models:
        install_trial(on.patches, on.recorder)


def _install_overlay(on: Opening) -> None:
    """Nothing of the user's changes from now on."""
    if on.store is not None:
        overlay = Overlay(on.store)
        install_open_handles(on.patches, overlay)
        install_files(on.patches, overlay)
        install_writers(on.patches, overlay)
        install_spawned(on.patches, overlay)
    if on.has_view and os.geteuid() != 0:
        install_folder_renames(on.patches)


def _install_settings(on: Opening) -> None:
    """What torch and Python set for themselves is so again afterwards."""
    # torch.tensor(..., device="cuda") makes a CPU tensor and moves it; it writes to no GPU.
    lifts: Any = torch._C._set_only_lift_cpu_tensors
    on.undo.callback(lifts, torch._C._only_lift_cpu_tensors())
    lifts(True)
    _raise_recursion_limit(on.undo)
    on.undo.callback(torch.set_rng_state, torch.get_rng_state())
    on.undo.enter_context(torch.autograd.set_multithreading_enabled(False))
    load_lazy_modules_in(on.undo, lambda: _as_before(on.patches))


def _start_recording(on: Opening) -> None:
    recorder = on.recorder
    on.undo.callback(setattr, recorder.tape, "is_open", False)
    recorder.tape.is_open = True
    recorder.hooks.start(on.undo)
    if on.virtual_time:
        install_virtual_time(on.patches, recorder, on.clock)
    on.undo.callback(recorder.operators.stop)
    if on.with_operators:
        _follow_operators(recorder.operators)
    on.undo.enter_context(RecordingMode(recorder))


#: In this order: each finds what those before it changed, and is undone before them.
_INSTALLERS: tuple[Callable[[Opening], None], ...] = (
    _install_core,
    _install_torch_cuda,
    lambda on: install_packages(on.patches, on.recorder.take_over),
    lambda on: install_modules(on.patches, on.recorder),
    _install_profiler,
    _install_distributed,
    _install_generators,
    lambda on: install_nested(on.patches, on.recorder),
    _install_user_extensions,
    _install_processes,
    _install_compiling,
    _install_overlay,
    lambda on: install_checkpoints(on.patches),
    _install_settings,
    _start_recording,
)


def _follow_operators(operators: OperatorCalls) -> None:
    """Operators that the dispatcher calls around ops are recorded, where that is possible."""
    if not record_functions_failure():
        operators.start(RecordFunctions(operators.begins))


@contextmanager
def _as_before(patches: Patches) -> Iterator[None]:
    """Inside, code of torch is loaded as before the forecast, and what it runs is not recorded."""
    with patches.torch_as_it_was(), _disable_current_modes():
        yield


#: Frames of Python for each that a program has of its own. A module's call takes 5 of the
#: interpreter's levels with hooks, 3.5 without (CPython 3.11, torch 2.13).
_FRAMES_WITH_HOOKS = 2


def _raise_recursion_limit(undo: ExitStack) -> None:
    """Modules may nest as deep as without a forecast, though each call has hooks in between."""
    before = sys.getrecursionlimit()
    room = before * _FRAMES_WITH_HOOKS

    def restore() -> None:
        if sys.getrecursionlimit() == room:  # else the program set one of its own
            sys.setrecursionlimit(before)

    undo.callback(restore)
    sys.setrecursionlimit(room)
