"""Compiles the models of an unmodified program: the gain from torch.compile."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import nn

from neusight.fake_cuda.patching import Patches
from neusight.recording.recorder import Recorder
from neusight.recording.recording import TRIAL_OPTION


def install_trial(patches: Patches, recorder: Recorder) -> None:
    """From its first call on, each module that the program calls outside of any other, and that has
    parameters on the GPU, runs as `torch.compile(module)`. All else stays: losses without
    parameters, optimizers, and what is compiled already."""
    trial = _Replacements(patches, recorder)
    call = trial.call

    def compiled_instead(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        stub = trial.stub(self)  # `bool()` of it is its length
        return call(self if stub is None else stub, *args, **kwargs)

    patches.set(nn.Module, "__call__", compiled_instead)


class _Replacements:
    """Compiles modules, and keeps which in `Recording.options`."""

    def __init__(self, patches: Patches, recorder: Recorder) -> None:
        #: The call of a module as torch has it.
        self.call: Callable[..., Any] = nn.Module.__call__
        self._patches = patches
        self._recorder = recorder
        # Each holds its module, so a model that the program drops lives on to the forecast's end.
        self._stubs: WeakKeyDictionary[nn.Module, nn.Module | None] = WeakKeyDictionary()
        self._names: Counter[str] = Counter()

    def stub(self, module: nn.Module) -> nn.Module | None:
        """The compiled module, if the program itself calls the module and it is compiled."""
        recorder = self._recorder
        if recorder.mode.is_inside or not recorder.tape.is_open:
            return None
        if not recorder.attribution.is_outside():
            return None
        if module not in self._stubs:
            self._stubs[module] = self._compiled(module) if _is_to_compile(module) else None
        return self._stubs[module]

    def _compiled(self, module: nn.Module) -> nn.Module | None:
        with self._as_ever():
            compiled: Any = torch.compile(module)
        if compiled is module:  # torch's internals have moved
            return None
        if not self._names:
            self._keep_from_dynamo()
        self._names[type(module).__name__] += 1
        self._recorder.options[TRIAL_OPTION] = ", ".join(
            name if count == 1 else f"{count} {name}" for name, count in self._names.items()
        )
        stub: nn.Module = compiled
        return stub

    def _keep_from_dynamo(self) -> None:
        """Dynamo finds the call of a module as torch has it."""
        from torch._dynamo import convert_frame

        compile_frame: Callable[..., Any] = convert_frame._compile

        def compile_as_ever(*args: Any, **kwargs: Any) -> Any:
            with self._as_ever():
                return compile_frame(*args, **kwargs)

        self._patches.set(convert_frame, "_compile", compile_as_ever)

    @contextmanager
    def _as_ever(self) -> Iterator[None]:
        ours: Callable[..., Any] = nn.Module.__call__
        setattr(nn.Module, "__call__", self.call)  # noqa: B010  (mypy knows no such assignment)
        try:
            yield
        finally:
            setattr(nn.Module, "__call__", ours)  # noqa: B010


def _is_to_compile(module: nn.Module) -> bool:
    is_compiled = module._compiled_call_impl is not None or "_orig_mod" in module._modules
    return not is_compiled and any(
        parameter.device.type == "cuda" for parameter in module.parameters()
    )
