"""Dynamo traces programs on forecast tensors as it does those on a GPU's."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from neusight.fake_cuda import inlined
from neusight.fake_cuda.modules import forget_forecast_state
from neusight.fake_cuda.patching import Patches
from neusight.interrupts import runs_the_program
from neusight.recording.hooks import ProgramHooks
from neusight.recording.recorder import Recorder, RecordingMode
from neusight.recording.tensor import ForecastTensor


def install_tracing(patches: Patches, recorder: Recorder) -> None:
    """Dynamo takes a forecast tensor for a plain one, and looks into few lines of neusight."""
    # Else Inductor's own modes propagate constants on a real device.
    patches.set(FakeTensorMode, "avoid_device_init", property(lambda mode: True))
    _install_tensors(patches)
    _install_skipping(patches)
    _install_frames(patches, recorder)
    _install_guards(patches)
    _install_optimizers(patches, recorder)


def _install_tensors(patches: Patches) -> None:
    from torch._dynamo.variables import builder
    from torch._subclasses.meta_utils import MetaTensorDescriber

    # Without these, every op on such a tensor is a graph break.
    wrappers = builder.VariableBuilder._type_dispatch()
    patches.put(wrappers, ForecastTensor, builder.VariableBuilder.wrap_tensor)
    infer = builder.infer_subclass_type

    def infer_subclass_type(value: Any) -> Any:
        return None if type(value) is ForecastTensor else infer(value)

    describe = MetaTensorDescriber.describe_tensor

    def describe_tensor(self: Any, tensor: Any, **kwargs: Any) -> Any:
        description = describe(self, tensor, **kwargs)
        if type(tensor) is ForecastTensor:  # else sizes become symbols of another mode
            object.__setattr__(description, "fake_mode", None)
        return description

    patches.set(builder, "infer_subclass_type", infer_subclass_type)
    patches.set(MetaTensorDescriber, "describe_tensor", describe_tensor)


#: What of neusight is compiled with the program: answers that it asks for, and what replaces
#: packages (a folder; Dynamo compares how names begin).
_LOOKED_INTO = (inlined.__file__, f"{Path(inlined.__file__).parents[1] / 'stubs'}/")


def _install_skipping(patches: Patches) -> None:
    from torch._dynamo import trace_rules

    before = list(trace_rules.SKIP_DIRS)
    looked_into: set[str] = trace_rules.get_legacy_mod_inlinelist()

    def restore() -> None:
        trace_rules.SKIP_DIRS[:] = before
        trace_rules._recompile_re()
        looked_into.difference_update(_LOOKED_INTO)

    patches.on_restore(restore)
    trace_rules.add("neusight")
    looked_into.update(_LOOKED_INTO)
    _skip_with_all_they_call(patches)


def _skip_with_all_they_call(patches: Patches) -> None:
    """What neusight calls of others (weakref, contextlib) is no part of the program either."""
    from torch._C._dynamo.eval_frame import reset_code, set_code_exec_strategy

    types: Any = import_module("torch._dynamo.types")

    doors: tuple[Any, ...] = (
        RecordingMode.__torch_dispatch__,
        ForecastTensor.__torch_dispatch__,
        ProgramHooks._enter_module,
        ProgramHooks._leave_module,
        ProgramHooks._enter_optimizer,
    )
    for function in doors:
        code = function.__code__
        patches.undo.callback(reset_code, code)
        set_code_exec_strategy(
            code, types.FrameExecStrategy(types.FrameAction.SKIP, types.FrameAction.SKIP)
        )


def _install_frames(patches: Patches, recorder: Recorder) -> None:
    """Compiling is nothing that the program does on its GPU; hooks of ours are not traced."""
    from torch._dynamo import convert_frame

    compile_frame: Callable[..., Any] = convert_frame._compile

    @runs_the_program  # torch's compiler is no more ours than the program: Ctrl-C may end it
    def compile_without_us(*args: Any, **kwargs: Any) -> Any:
        doing = recorder.while_doing("tracing for torch.compile")
        with recorder.mode.inside(), recorder.hooks.away(), doing:
            return compile_frame(*args, **kwargs)

    patches.set(convert_frame, "_compile", compile_without_us)
    torch_modules = torch.nn.modules.module
    has_hooks: Callable[[], bool] = torch_modules._has_any_global_hook

    def has_other_hooks() -> bool:
        with recorder.hooks.away():  # else torch warns that they run once more
            return has_hooks()

    patches.set(torch_modules, "_has_any_global_hook", has_other_hooks)


#: Where torch keeps the hooks of all modules, ours among them; each as it ends a guard's name or
#: stands in it.
_GLOBAL_HOOKS = ("._global_forward_hooks", "._global_forward_pre_hooks")


def _install_guards(patches: Patches) -> None:
    """No graph is compiled again because hooks of ours are there: it was traced without them. A
    module with hooks of its own (tensor parallelism) asks whether all modules have some."""
    from torch._dynamo.guards import CheckFunctionManager

    make: Callable[..., None] = CheckFunctionManager.__init__

    def make_without_hooks(self: Any, code: Any, graph: Any, *args: Any, **kwargs: Any) -> None:
        kept = [
            guard
            for guard in graph.guards.inner
            if not any(name in guard.name for name in _GLOBAL_HOOKS)
        ]
        graph.guards.inner = type(graph.guards.inner)(kept)
        make(self, code, graph, *args, **kwargs)

    patches.set(CheckFunctionManager, "__init__", make_without_hooks)


def _install_optimizers(patches: Patches, recorder: Recorder) -> None:
    """While it traces a step, Dynamo really makes the optimizer's state, with all modes off."""
    from torch._dynamo.variables.optimizer import OptimizerVariable

    call: Callable[..., Any] = OptimizerVariable.call_method
    stepped: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()

    def call_method(self: Any, tx: Any, name: str, *args: Any, **kwargs: Any) -> Any:
        if name != "_init_group":
            return call(self, tx, name, *args, **kwargs)
        stepped.add(self.value)
        with recorder.mode.outside(), RecordingMode(recorder):
            return call(self, tx, name, *args, **kwargs)

    def forget() -> None:
        for optimizer in stepped:
            forget_forecast_state(optimizer)

    patches.on_restore(forget)
    patches.set(OptimizerVariable, "call_method", call_method)
