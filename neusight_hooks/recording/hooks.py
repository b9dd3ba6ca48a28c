"""The hooks by which torch says what the program does: modules, optimizers, annotations."""

from __future__ import annotations

import functools
import sys
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import count
from types import FrameType
from typing import Any, NamedTuple

import torch
from torch._C._dynamo.eval_frame import set_eval_frame
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
    register_module_module_registration_hook,
)
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.hooks import RemovableHandle

from neusight.recording.attribution import Attribution
from neusight.recording.call_stack import CallStack
from neusight.recording.dispatch.torchscript import is_traced, untraced
from neusight.recording.inputs.inputs import StepInputs
from neusight.recording.inputs.loaders import follow_loaders
from neusight.recording.recording import stepped_optimizer
from neusight.recording.repeats.calls import RepeatedCalls
from neusight.recording.steps.cutter import StepCutter
from neusight.recording.storages import StorageWatch
from neusight.recording.tape import Listeners, Tape
from neusight.recording.tensor import ForecastMode

#: What torch.compile puts between a module and what it wraps it in.
_COMPILED = "._orig_mod"

#: The steps of torch's own profiler, which the trace numbers by itself.
_PROFILER_STEP = "ProfilerStep#"

#: Where torch.fx defines the classes of its graphs, and what lies between one and its caller.
_GRAPHS = "torch.fx.graph_module"
#: Where torch calls modules.
_MODULE = "torch.nn.modules.module"
_CALLING = (_GRAPHS, "torch.nn.modules.", "neusight.")


class _ModulePlace(NamedTuple):
    """The path of a module, and which of the modules with that path it is."""

    path: str
    instance: int


class ProgramHooks:
    """Follows modules, optimizers and annotations of the main thread: marks them on the tape, names
    modules by their paths, and says what their storages are for."""

    def __init__(
        self,
        mode: ForecastMode,
        tape: Tape,
        attribution: Attribution,
        storages: StorageWatch,
        cutter: StepCutter,
        inputs: StepInputs,
        repeats: RepeatedCalls,
    ) -> None:
        #: Where in the program each module was made, by its path; only with call stacks.
        self.made: dict[str, CallStack] = {}
        #: What enters the program's steps.
        self.inputs = inputs
        #: Called where a step of torch's profiler begins, with its name, and ("") where it ends.
        self.on_profiler_step = Listeners[[str]]()
        self._in_function = False
        #: Outermost modules that returned since the last compiled function was called.
        self._num_calls = 0
        self._mode = mode
        self._tape = tape
        self._attribution = attribution
        self._storages = storages
        self._cutter = cutter
        self._repeats = repeats
        self._threads = tape.threads
        self._has_stepped = False  # an optimizer, on whatever thread
        #: Whether the outermost module that runs is a graph that torch calls for itself.
        self._is_of_torch = False
        self._optimizers: list[torch.optim.Optimizer] = []
        self._handles: list[RemovableHandle] = []
        self._places: weakref.WeakKeyDictionary[torch.nn.Module, _ModulePlace] = (
            weakref.WeakKeyDictionary()
        )
        self._num_of_path: Counter[str] = Counter()
        #: Names of outermost modules that have parameters.
        self._roots: weakref.WeakKeyDictionary[torch.nn.Module, str] = weakref.WeakKeyDictionary()
        self._made: weakref.WeakKeyDictionary[torch.nn.Module, CallStack] = (
            weakref.WeakKeyDictionary()
        )

    def start(self, undo: ExitStack) -> None:
        """Registers the hooks; `undo` removes them."""
        self._attribution.start()
        self._handles += [
            register_module_forward_pre_hook(_uncompiled(self._enter_module)),
            register_module_forward_hook(_uncompiled(self._leave_module), always_call=True),
            register_optimizer_step_pre_hook(_uncompiled(self._enter_optimizer)),
        ]
        for handle in self._handles:
            undo.callback(handle.remove)
        undo.callback(self._repeats.restore_all)
        follow_loaders(undo, self.inputs, lambda: self.is_elsewhere)
        if self._tape.stacks is not None:
            undo.callback(register_module_module_registration_hook(self._record_made).remove)

    def hide(self, handle: RemovableHandle) -> None:
        """Has torch not see another hook of ours either while it compiles."""
        self._handles.append(handle)

    @contextmanager
    def away(self) -> Iterator[None]:
        """Torch does not see these hooks in here: it would compile them with the program."""
        taken = []
        for handle in self._handles:
            for reference in (handle.hooks_dict_ref, *handle.extra_dict_ref):
                hooks = reference()
                if hooks is not None and handle.id in hooks:
                    taken.append((hooks, handle.id, hooks.pop(handle.id)))
        try:
            yield
        finally:
            for hooks, number, hook in taken:
                hooks[number] = hook

    @property
    def is_elsewhere(self) -> bool:
        """Whether this is another thread than the program's main one, or neusight's own work."""
        return threading.get_ident() != self._threads.main or self._mode.is_inside

    # -- modules ----------------------------------------------------------------------------------

    def around(self, module: torch.nn.Module, call: Callable[..., Any]) -> Callable[..., Any]:
        """The call of a module, with hooks of ours for which torch leaves no place."""

        def run(*args: Any, **kwargs: Any) -> Any:
            is_observed = self._tape.is_open
            if is_observed:
                self._enter_module(module, args, kwargs)
            result = None
            try:
                result = call(*args, **kwargs)
                return result
            finally:
                if is_observed:
                    self._leave_module(module, args, result)

        return run

    def _repeating(self, module: torch.nn.Module) -> Callable[..., Any]:
        """The call of a module whose equal calls repeat what the last of them did."""
        reference = weakref.ref(module)
        compiled: Callable[..., Any] | None = module._compiled_call_impl

        def call(*args: Any, **kwargs: Any) -> Any:
            module = reference()
            assert module is not None
            run: Callable[..., Any] = module._call_impl if compiled is None else compiled
            is_outermost = self._tape.is_open and self._attribution.is_outside()
            if not is_outermost or self._in_function or self.is_elsewhere or is_traced():
                return run(*args, **kwargs)
            compiles = set_eval_frame(None)
            try:
                repeat = self._repeats.find(module, args, kwargs)
                if repeat is not None:
                    return self.around(module, repeat)(*args, **kwargs)
            finally:
                self._repeats.repeated()
                set_eval_frame(compiles)
            return run(*args, **kwargs)

        return call

    def around_function(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """A compiled function. Where the program calls it from outside of any module and of other
        such functions, its inputs are recorded, and it ends a step as a module does."""

        @functools.wraps(function)
        def run(*args: Any, **kwargs: Any) -> Any:
            is_observed = self._tape.is_open and not self.is_elsewhere and not self._in_function
            if not is_observed or not self._attribution.is_outside() or _is_torch(sys._getframe(1)):
                return function(*args, **kwargs)
            has_input = self.inputs.function_begins(function, run.__name__, args, kwargs)
            self._in_function = True
            self._num_calls = 0
            self._repeats.something_else(None)
            result = None
            try:
                self._cutter.function_begins()
                result = function(*args, **kwargs)
                return result
            finally:
                self._in_function = False
                if has_input:
                    self.inputs.call_ends(result)
                if not self._num_calls:  # modules that it called where its graph broke end steps
                    self._cutter.function_ends(function, run.__name__)

        return run

    def _enter_module(
        self, module: torch.nn.Module, args: Any, kwargs: dict[str, Any] | None = None
    ) -> None:
        if self.is_elsewhere:
            return
        if self._attribution.is_outside():
            self._is_of_torch = _is_called_by_torch(module)
            if not self._is_of_torch:
                self._repeats.something_else(module)
                self._cutter.outermost_forward_begins(module)
                kwargs = _arguments_by_keyword() if kwargs is None else kwargs
                self.inputs.module_begins(module, _class_name(module), args, kwargs)
            self._name_all(module)
        place = self._places.get(module)
        if place is None:
            place = self._placed(module, f"{self._attribution.module}.{_class_name(module)}")
        path, instance = place
        is_outermost = self._attribution.is_outside()
        self._attribution.enter_module(path)
        self._tape.mark("module_begin", path, type(module).__name__, instance)
        if is_outermost and not self._is_of_torch and not self._in_function:
            kwargs = _arguments_by_keyword() if kwargs is None else kwargs
            self._repeats.begins(module, _class_name(module), args, kwargs)

    def _leave_module(self, module: torch.nn.Module, args: Any, output: Any) -> None:
        if self.is_elsewhere or self._attribution.is_outside():
            return
        path = self._attribution.leave_module()
        if self._attribution.is_outside() and self._repeats.ends(module, output):
            self._repeats.install(module, self._repeating(module))
        self._tape.mark("module_end", path, type(module).__name__)
        if self._attribution.is_outside() and not self._is_of_torch:
            self.inputs.call_ends(output)
            self._num_calls += 1
            self._cutter.outermost_forward_ends(module)

    def _name_all(self, root: torch.nn.Module) -> None:
        if root in self._places:
            return
        name = self._root_name(root)
        for path, module in root.named_modules():
            if module not in self._places:
                full = f"{name}.{path}" if path else name
                place = self._placed(module, full.replace(_COMPILED, ""))
                self._mark_storages_of(module)
                if module in self._made:
                    self.made[place.path] = self._made[module]

    def _root_name(self, root: torch.nn.Module) -> str:
        """The name of its class, with a number where another module that is there has that name.
        Modules without parameters have none: programs make losses in each step."""
        name, root = _class_name(root), getattr(root, "_orig_mod", root)
        if next(root.parameters(), None) is None:
            return name
        if root not in self._roots:
            taken = set(self._roots.values())
            names = (f"{name}_{number}" if number else name for number in count())
            self._roots[root] = next(free for free in names if free not in taken)
        return self._roots[root]

    def _placed(self, module: torch.nn.Module, path: str) -> _ModulePlace:
        """The place of a module that is new."""
        place = self._places[module] = _ModulePlace(path, self._num_of_path[path])
        self._num_of_path[path] += 1
        return place

    def _mark_storages_of(self, module: torch.nn.Module) -> None:
        for kind, held in (("parameter", module._parameters), ("buffer", module._buffers)):
            for tensor in held.values():
                if tensor is not None:
                    self._storages.mark(tensor, kind)

    def _record_made(self, parent: torch.nn.Module, name: str, module: Any) -> None:
        """A module becomes part of another one, for the first time on the line that made it."""
        stacks = self._tape.stacks
        if stacks is not None and module is not None and not self.is_elsewhere:
            self._made.setdefault(module, stacks.here())

    # -- annotations and optimizers, whose steps torch annotates ----------------------------------

    def enter_annotation(self, name: str) -> None:
        """A record_function begins."""
        if self.is_elsewhere:
            return
        if name.startswith(_PROFILER_STEP):
            self.on_profiler_step(name)
        else:
            self._tape.mark("annotation_begin", name)

    def leave_annotation(self, name: str, *, failed: bool) -> None:
        """It ends, by an exception where `failed`."""
        if self.is_elsewhere:
            return
        if name.startswith(_PROFILER_STEP):
            self.on_profiler_step("")
            return
        self._tape.mark("annotation_end", name)
        if stepped_optimizer(name) and self._optimizers:
            optimizer = self._optimizers.pop()
            is_within_other = bool(self._optimizers)
            self._attribution.leave_optimizer(is_within_other=is_within_other)
            if not failed:
                self._cutter.optimizer_ends(optimizer, is_within_other=is_within_other)

    def follow_optimizer(self, *, steps: bool = False) -> None:
        """An optimizer is made, or steps: the first thread in which one does is where the program
        trains, and is followed as its main one."""
        if self._has_stepped or self._mode.is_inside or not self._attribution.is_outside():
            return
        self._has_stepped = steps
        if self._threads.follow():
            self._attribution.start()

    def _enter_optimizer(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> Any:
        self.follow_optimizer(steps=True)
        if self.is_elsewhere:
            return None
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                self._storages.mark(parameter, "parameter")
                if parameter.grad is not None:
                    self._storages.mark(parameter.grad, "gradient")
        self._cutter.optimizer_begins(optimizer)
        self._optimizers.append(optimizer)
        self._attribution.enter_optimizer()
        outside = self._attribution.outside_optimizer
        if len(args) > 1 and callable(args[1]):
            return (args[0], outside(args[1]), *args[2:]), kwargs
        if callable(kwargs.get("closure")):
            return args, {**kwargs, "closure": outside(kwargs["closure"])}
        return None


def _uncompiled(hook: Callable[..., Any]) -> Callable[..., Any]:
    """The hook, with Dynamo off (it compiles what is called in a module that it could not), and
    without a trace of it."""

    def run(*args: Any, **kwargs: Any) -> Any:
        if is_traced() is not None:
            with untraced():
                return hook(*args, **kwargs)
        compiles = set_eval_frame(None)
        try:
            return hook(*args, **kwargs)
        finally:
            set_eval_frame(compiles)

    return run


def _is_called_by_torch(module: torch.nn.Module) -> bool:
    """Whether it is a graph that torch made and calls for itself, such as the score_mod of flex
    attention: its return ends no step of the program."""
    if type(module).__module__ != _GRAPHS:
        return False
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_globals.get("__name__", "").startswith(_CALLING):
        frame = frame.f_back
    return frame is not None and _is_torch(frame)


def _is_torch(frame: FrameType) -> bool:
    return str(frame.f_globals.get("__name__")).startswith("torch.")


def _arguments_by_keyword() -> dict[str, Any]:
    """Those of the module's call that runs hooks now: torch passes them to no hook of all modules
    (`inner` in nn/modules/module.py, 2.13); none where its names have moved."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_globals.get("__name__") != _MODULE:
        frame = frame.f_back
    found = None if frame is None else frame.f_locals.get("kwargs")
    return found if isinstance(found, dict) else {}


def _class_name(module: torch.nn.Module) -> str:
    """The name of its class; of a compiled module, that of what was compiled."""
    return type(getattr(module, "_orig_mod", module)).__name__
