"""Where one step ends and the next begins, found without the script's help; equal steps folded."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

import torch

from neusight.recording import (
    Alloc,
    Entry,
    Free,
    OpCall,
    Step,
    StepKind,
    StorageRef,
)

if TYPE_CHECKING:
    from neusight.recorder import Recorder

__all__ = ["EnoughSteps", "StepCutter"]


class EnoughSteps(BaseException):
    """Ends the script from inside: enough steady steps were recorded."""


class StepCutter:
    """Cuts the recorder's entries into steps.

    A step ends (a) where the script says so, else (b) with the optimizer step that closes a cycle,
    else (c) when the outermost module returns without a gradient being wanted. What comes before
    the first forward is the setup. `steady_steps` ends the script after that many steps beyond the
    first.
    """

    def __init__(self, recorder: Recorder, steady_steps: int | None) -> None:
        self.steps: list[Step] = []
        self._recorder = recorder
        self._steady_steps = steady_steps
        self._num_train = 0
        self._num_eval = 0
        self._index = 0
        self._explicit = False
        self._setup_is_open = True
        self._cycle: list[int] = []
        self._pattern: list[int] = []
        self._candidate = 0
        self._inference_candidate: int | None = None
        self._backward_seen = False
        self._optimizers: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()
        self._trained: set[int] = set()
        self._homes: dict[int, tuple[int, int]] = {}
        self._last_raw: list[Any] = []
        self._calls: dict[Any, OpCall] = {}

    # -- what happens in the script -------------------------------------------------------------

    def optimizer_created(self, optimizer: torch.optim.Optimizer) -> None:
        """A script with an optimizer is going to train, even if it evaluates first."""
        self._optimizers.add(optimizer)

    def explicit_step(self) -> None:
        """The script (or its profiler) says that a step ends here; from now on only it does."""
        if not self._explicit:
            self._explicit = True
            if self.steps and self.steps[-1].kind != "setup" and not self._has_forward():
                self._reopen()
        self._close()

    def outermost_forward_begins(self) -> None:
        """A module is called from outside any other."""
        if self._explicit:
            return
        if self._setup_is_open:
            self._setup_is_open = False
            if any(type(entry) is tuple for entry in self._recorder.open_entries):
                self._close(kind="setup")
        elif self._inference_candidate is not None and not self._backward_seen:
            self._close(upto=self._inference_candidate)
        self._inference_candidate = None

    def outermost_forward_ends(self, module: torch.nn.Module) -> None:
        """It returned."""
        if self._explicit or self._recorder.attribution.phase != "forward":
            return
        if torch.is_grad_enabled():
            if not self._backward_seen and not self._cycle:
                self._inference_candidate = len(self._recorder.open_entries)
            return
        if self._trained and (module.training or not self._is_trained(module)):
            return  # a teacher or a generator inside a training step
        self._close()

    def optimizer_begins(self, optimizer: torch.optim.Optimizer) -> None:
        """An optimizer is about to step."""
        self._backward_seen = True
        self._setup_is_open = False
        self._inference_candidate = None
        for group in optimizer.param_groups:
            self._trained.update(id(parameter) for parameter in group["params"])
        if self._explicit:
            return
        if id(optimizer) in self._cycle:
            self._pattern = list(self._cycle)
            self._close(upto=self._candidate)

    def optimizer_ends(self, optimizer: torch.optim.Optimizer) -> None:
        """It has stepped."""
        if self._explicit:
            return
        self._cycle.append(id(optimizer))
        self._candidate = len(self._recorder.open_entries)
        if self._cycle == self._pattern:
            self._close()

    def finish(self) -> None:
        """The block ends: what is open becomes the last step."""
        self._recorder.flush()
        if self._inference_candidate is not None and not self._backward_seen:
            self._close(upto=self._inference_candidate, may_stop=False)
        if self._cycle and self._candidate < len(self._recorder.open_entries):
            self._close(upto=self._candidate, may_stop=False)
        if any(type(entry) is not int for entry in self._recorder.open_entries):
            kind: StepKind | None = None if self._has_forward() or not self.steps else "setup"
            self._close(kind=kind, may_stop=False)

    # -- cutting --------------------------------------------------------------------------------

    def _is_trained(self, module: torch.nn.Module) -> bool:
        return any(id(parameter) in self._trained for parameter in module.parameters())

    def _has_forward(self) -> bool:
        return any(
            type(entry) is tuple and entry[3] != "optimizer"
            for entry in self._recorder.open_entries
            if type(entry) is not tuple or len(entry[0].output_tensors) > 0
        ) and any(getattr(entry, "kind", "") == "module_begin" for entry in self._recorder.open_entries)

    def _close(
        self, kind: StepKind | None = None, upto: int | None = None, may_stop: bool = True
    ) -> None:
        recorder = self._recorder
        recorder.flush()
        recorder.drain()
        upto = len(recorder.open_entries) if upto is None else upto
        raw = recorder.open_entries[:upto]
        del recorder.open_entries[:upto]
        recorder.forget_drained(upto)
        self._cycle, self._candidate, self._inference_candidate = [], 0, None
        if not raw:
            return
        step = Step(kind or _kind_of(raw), tuple(self._settled(raw)))
        self._last_raw = raw
        self._index += 1
        if self.steps and self.steps[-1].kind == step.kind and self.steps[-1].entries == step.entries:
            last = self.steps[-1]
            self.steps[-1] = Step(last.kind, last.entries, last.count + 1)
        else:
            self.steps.append(step)
        self._num_train += step.kind == "train"
        self._num_eval += step.kind == "eval"
        if may_stop:
            self._stop_if_enough()

    def _stop_if_enough(self) -> None:
        if self._steady_steps is None:
            return
        counted = self._num_train
        if not self._num_train and not self._optimizers:
            counted = self._num_eval
        if counted > self._steady_steps:
            self._steady_steps = None
            raise EnoughSteps

    def _reopen(self) -> None:
        last = self.steps.pop()
        if last.count > 1:
            self.steps.append(Step(last.kind, last.entries, last.count - 1))
        self._index -= 1
        self._num_train -= last.kind == "train"
        self._num_eval -= last.kind == "eval"
        self._recorder.reopen(self._last_raw)

    def _settled(self, raw: list[Any]) -> list[Entry]:
        """Raw entries as they are kept: numbers relative to the step, equal op calls shared."""
        base = min(
            (entry[5] for entry in raw if type(entry) is tuple and entry[5] is not None and not entry[6]),
            default=None,
        )
        if base is None:
            base = min((e[5] for e in raw if type(e) is tuple and e[5] is not None), default=0)
        entries: list[Entry] = []
        ordinal = 0
        for entry in raw:
            kind = type(entry)
            if kind is tuple:
                entries.append(self.call_of(entry, base))
            elif kind is list:
                number, num_bytes, module, op, phase = entry
                self._homes[number] = (self._index, ordinal)
                entries.append(
                    Alloc(ordinal, num_bytes, module, op, phase, self._kind_of_storage(number, phase))
                )
                ordinal += 1
            elif kind is int:
                home = self._homes.pop(entry, None)
                if home is not None:
                    entries.append(Free(StorageRef(self._index - home[0], home[1])))
            else:
                entries.append(entry)
        return entries

    def call_of(self, raw: tuple[Any, ...], base: int | None) -> OpCall:
        """The op call of a raw entry, one object for all equal ones."""
        signature, math, module, phase, stream, sequence, node = raw
        relative = None if sequence is None or base is None else sequence - base
        key = (id(signature), id(math), module, phase, stream, relative, node)
        call = self._calls.get(key)
        if call is None:
            call = OpCall(signature, math, module, phase, stream, relative, node)
            self._calls[key] = call
        return call

    def _kind_of_storage(self, number: int, phase: str) -> Any:
        kind = self._recorder.kinds.get(number)
        if kind is not None:
            return kind
        if phase == "optimizer" and self._recorder.is_alive(number):
            return "optimizer_state"
        return "activation"


def _kind_of(raw: list[Any]) -> StepKind:
    for entry in raw:
        if type(entry) is tuple and entry[3] != "forward":
            return "train"
    return "eval"
