"""While open, a machine without CUDA answers as the target GPU would; afterwards as before."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from neusight.compatibility.torch_internals import missing, require
from neusight.fake_cuda.checkpoints import install_checkpoints
from neusight.fake_cuda.compiling.compiler import install_compiler
from neusight.fake_cuda.compiling.trial import install_trial
from neusight.fake_cuda.compiling.wrappers import Wrappers
from neusight.fake_cuda.core import enter_cuda_core, record_functions_failure
from neusight.fake_cuda.distributed.peers.waiting_time import DEFAULT_WAIT_S
from neusight.fake_cuda.modules import install_modules
from neusight.fake_cuda.nested.construction import install_nested
from neusight.fake_cuda.nvml.installation import install_nvml
from neusight.fake_cuda.overlay.folder_renames import install_folder_renames
from neusight.fake_cuda.overlay.open_handles import install_open_handles
from neusight.fake_cuda.overlay.overlay import Overlay
from neusight.fake_cuda.overlay.python_functions import install_files
from neusight.fake_cuda.overlay.spawned import install_spawned
from neusight.fake_cuda.overlay.writers import install_writers
from neusight.fake_cuda.packages import install_packages
from neusight.fake_cuda.patching import Patches
from neusight.fake_cuda.processes.processes import Processes
from neusight.fake_cuda.processes.sent_tensors import install_sent_tensors
from neusight.fake_cuda.processes.starting import install_processes
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
from neusight.recording.dispatch.eager_errors import quiet_fake_kernels
from neusight.recording.dispatch.operator_calls import OperatorCalls
from neusight.recording.dispatch.record_functions import RecordFunctions
from neusight.recording.handlers import HANDLERS
from neusight.recording.recorder import Recorder, RecordingMode

if not missing("distributed"):
    # Its modules take such names at their top, from a torch that is not patched yet.
    import neusight.fake_cuda.distributed.installation  # noqa: F401  (loaded for later)

if TYPE_CHECKING:
    from neusight.fake_cuda.distributed.peers.link import Link
    from neusight.fake_cuda.distributed.rank import Rank
    from neusight.predictors.gpu import GPU
    from neusight.timeline.host import HostProfile
    from neusight.timeline.launches import Pricing


@contextmanager
def fake_cuda(recorder: Recorder, gpu: GPU, **settings: Any) -> Iterator[None]:
    """As `enter_fake_cuda`, for the time of a block."""
    with ExitStack() as undo:
        enter_fake_cuda(undo, recorder, gpu, **settings)
        yield


def enter_fake_cuda(
    undo: ExitStack,
    recorder: Recorder,
    gpu: GPU,
    *,
    price: Pricing,
    host: HostProfile,
    on_query: Callable[[str, object], None],
    virtual_time: bool = False,
    store: Store | None = None,
    has_view: bool = False,
    raise_out_of_memory: bool = False,
    compiles_models: bool = False,
    rank: Rank | None = None,
    link: Link | None = None,
    wait_s: float = DEFAULT_WAIT_S,
    processes: Processes | None = None,
) -> None:
    """From here on programs run on `gpu` without its being there, and `recorder` records what they
    do; what they do to files goes to `store`, without one where they say: to the user's own, or in
    a process that `has_view` to its copy-on-write view. With `compiles_models`
    their models are compiled, whatever they say. What they start joins `processes`. `undo` ends it;
    how to undo a change is recorded there before the change is made."""
    clocks: list[SimulatedClock] = []

    def clock() -> SimulatedClock:
        if not clocks:
            clocks.append(SimulatedClock(recorder, price, host))
        return clocks[0]

    recorder.handlers.update(HANDLERS)
    enter_cuda_core(undo)
    undo.enter_context(quiet_fake_kernels())
    patches = Patches()
    undo.enter_context(patches.undo)
    memory = SimulatedMemory(recorder, gpu, raises=raise_out_of_memory)

    def on_program_query(device_query: str, answer: object) -> None:
        if not recorder.mode.is_inside:  # else Inductor did, of which `inductor` is the question
            on_query(device_query, answer)

    install_cuda_module(patches, recorder, gpu, memory, on_program_query, clock)
    install_native_names(patches, recorder, gpu, on_program_query)
    install_accelerator(patches)
    install_covariance(patches, recorder)
    wrappers = Wrappers()
    on_tracked_query = wrappers.recording_queries(recorder.mode, on_query)
    install_overrides(patches, recorder, gpu, on_tracked_query)
    install_packages(patches)
    install_modules(patches, recorder)
    _install_distributed(patches, recorder, rank, link, wait_s, virtual_time=virtual_time)
    install_generators(patches, recorder)  # one for each GPU, whose number is known from here on
    install_nested(patches, recorder)
    install_user_kernels(patches, recorder)
    _install_user_extensions(patches, recorder)
    install_sent_tensors(patches)
    renew_readings = install_nvml(patches, gpu, lambda: recorder.devices.count)
    if processes is not None:
        processes.before_start = renew_readings
        if processes.process is None:  # else this one joined at its start
            install_processes(patches, processes)
    install_compiler(patches, recorder, gpu, on_tracked_query, wrappers)
    if compiles_models:
        install_trial(patches, recorder)
    _install_overlay(patches, store)
    if has_view and os.geteuid() != 0:
        install_folder_renames(patches)
    install_checkpoints(patches)
    _set_only_lift_cpu_tensors(undo)
    _raise_recursion_limit(undo)
    undo.callback(torch.set_rng_state, torch.get_rng_state())
    undo.enter_context(torch.autograd.set_multithreading_enabled(False))
    load_lazy_modules_in(undo, lambda: _as_before(patches))
    undo.callback(setattr, recorder.tape, "is_open", False)
    recorder.tape.is_open = True
    recorder.hooks.start(undo)
    if virtual_time:
        install_virtual_time(patches, recorder, clock())
    _follow_operators(undo, recorder.operators)
    undo.enter_context(RecordingMode(recorder))


def _follow_operators(undo: ExitStack, operators: OperatorCalls) -> None:
    """Operators that the dispatcher calls around ops are recorded, where that is possible."""
    if not record_functions_failure():
        undo.callback(operators.stop)
        operators.start(RecordFunctions(operators.begins))


@contextmanager
def _as_before(patches: Patches) -> Iterator[None]:
    """Inside, code of torch is loaded as before the forecast, and what it runs is not recorded."""
    with patches.torch_as_it_was(), _disable_current_modes():
        yield


def _install_distributed(
    patches: Patches,
    recorder: Recorder,
    rank: Rank | None,
    link: Link | None,
    wait_s: float,
    *,
    virtual_time: bool,
) -> None:
    """Process groups; where this torch lacks what they need, the first one that a program creates
    is an UnsupportedTorchError, and programs on one GPU run as ever."""
    if missing("distributed"):
        if rank is not None:
            require("distributed")
        patches.set(torch.distributed, "init_process_group", _refuse_process_groups)
        return
    from neusight.fake_cuda.distributed.installation import install_distributed

    install_distributed(patches, recorder, rank, link, wait_s, virtual_time=virtual_time)


def _refuse_process_groups(*args: object, **kwargs: object) -> None:
    require("distributed")


def _install_user_extensions(patches: Patches, recorder: Recorder) -> None:
    install_custom_ops(patches, recorder)
    install_dlpack(patches)
    install_gradients(patches)
    install_numeric_checks(patches, recorder)
    install_subclasses(patches)


def _install_overlay(patches: Patches, store: Store | None) -> None:
    """Nothing of the user's changes from now on."""
    if store is None:
        return
    overlay = Overlay(store)
    install_open_handles(patches, overlay)
    install_files(patches, overlay)
    install_writers(patches, overlay)
    install_spawned(patches, overlay)


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


def _set_only_lift_cpu_tensors(undo: ExitStack) -> None:
    """torch.tensor(..., device="cuda") makes a CPU tensor and moves it; it writes to no GPU."""
    undo.callback(torch._C._set_only_lift_cpu_tensors, torch._C._only_lift_cpu_tensors())
    torch._C._set_only_lift_cpu_tensors(True)
