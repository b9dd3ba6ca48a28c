"""Calls without gradients that a program repeats before it trains: run a few times, then only
written on the tape.

An evaluation before the first step of training may be thousands of equal forward passes, which
say no more than the first few. A call repeats the one before where all it does is ops on the GPU
(`CallWatch`), and while nothing that it may read has changed: its arguments, the module, the
variables of the functions that ran, and torch's switches.
"""

from __future__ import annotations

import sys
import weakref
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils import _pytree as pytree

from neusight.recording.attribution import Attribution
from neusight.recording.call_stack import program_line
from neusight.recording.dispatch.math_settings import MathSettings
from neusight.recording.repeats.outputs import (
    CallOutput,
    NewTensor,
    objects_in,
    output_of,
    share_one,
)
from neusight.recording.repeats.purity import CallWatch, context_values
from neusight.recording.repeats.state import COMPILED_CALL, State, plain_value, state_of
from neusight.recording.storages import StorageWatch
from neusight.recording.tape import RepeatedCall, Tape, TapedCall, TapedOp, TapeEntry
from neusight.recording.tensor import ForecastMode, ForecastTensor
from neusight.recording.values.invention import Invention
from neusight.recording.values.known import KnownValues

#: Equal calls that are run before others repeat them: more than the steps after which a program
#: that only infers is ended. The last two are watched.
CALLS_RUN = 8

#: A module whose watched calls did more so often is not watched again.
_MAX_REFUSALS = 3

#: Where the ops come from that `CallWatch` sees.
_SEEN = ("aten::", "prims::", "inductor::")


@dataclass(frozen=True, eq=False)
class _Repetition:
    """How a call is repeated, while the state is this one."""

    call: RepeatedCall
    output: CallOutput
    state: State


@dataclass(eq=False)
class _Calls:
    """The calls of one module that were equal, up to the last one."""

    name: str
    key: object = None
    line: str = ""
    count: int = 0
    num_refusals: int = 0
    watch: CallWatch | None = None
    entries: Sequence[TapeEntry] = ()
    returned: Sequence[weakref.ref[Any]] = ()
    repetition: _Repetition | None = None


@dataclass(eq=False)
class _Watched:
    """The call that is watched now."""

    watch: CallWatch
    calls: _Calls
    inputs: list[Any]
    start: int
    num_cuts: int
    num_invented: int
    before: State | None = None


@dataclass(eq=False)
class RepeatedCalls:
    """Counts equal calls of each outermost module, watches them, and repeats them.

    `handled` are the ops that functions of the recorder run; `is_possible` says whether nothing has
    been trained yet.
    """

    mode: ForecastMode
    tape: Tape
    attribution: Attribution
    storages: StorageWatch
    known: KnownValues
    invention: Invention
    handled: Mapping[Any, object]
    is_possible: Callable[[], bool]
    #: What watches the call that is running, if anything does.
    watch: CallWatch | None = None
    #: Calls that were repeated, by module and line, and how many were made in all.
    num_repeated: Counter[tuple[str, str]] = field(default_factory=Counter)
    num_calls: Counter[tuple[str, str]] = field(default_factory=Counter)
    _math: MathSettings = field(default_factory=MathSettings)
    _of: weakref.WeakKeyDictionary[torch.nn.Module, _Calls] = field(
        default_factory=weakref.WeakKeyDictionary
    )
    _watched: _Watched | None = None
    _installed: weakref.WeakKeyDictionary[torch.nn.Module, Any] = field(
        default_factory=weakref.WeakKeyDictionary
    )
    _repeats: bool = False

    def report(self) -> list[str]:
        """What was not run, a line for each module and place."""
        return [
            f"{count:,} of {self.num_calls[name, line]:,} calls of {name} at {line} are equal to "
            "those before them and were not run again (--steps all runs all)"
            for (name, line), count in self.num_repeated.items()
        ]

    # -- the calls of the program -----------------------------------------------------------------

    def begins(
        self, module: torch.nn.Module, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> None:
        """The program calls a module from outside of any other; after all that the step needs of
        the call is on the tape."""
        if self._repeats:
            return
        key = self._key(args, kwargs) if self.is_possible() else None
        calls = self._of.get(module)
        if key is None:
            if calls is not None:
                calls.key = None
            return
        if calls is None:
            calls = self._of[module] = _Calls(name)
        if calls.key != key:
            calls.key, calls.count, calls.line = key, 0, program_line()
            calls.watch, calls.repetition = None, None
        calls.count += 1
        self.num_calls[name, calls.line] += 1
        if calls.count < CALLS_RUN - 1 or calls.num_refusals >= _MAX_REFUSALS:
            return
        if sys.getprofile() is None and not module._forward_hooks:
            self._start(module, calls, _leaves(args, kwargs))

    def ends(self, module: torch.nn.Module, output: Any) -> bool:
        """It returned; whether the next equal call can repeat it, from now on."""
        watched, self._watched, self.watch = self._watched, None, None
        if watched is None:
            return False
        watched.watch.stop()
        calls, entries = watched.calls, self.tape.entries[watched.start : self.tape.position()]
        before, calls.watch = calls.watch, watched.watch
        entries_before, calls.entries = calls.entries, entries
        returned_before, calls.returned = calls.returned, objects_in(output)
        if (
            watched.watch.reason
            or sys.exc_info()[0] is not None
            or watched.num_cuts != self.tape.num_cuts
            or watched.num_invented != self.invention.num_reads
        ):
            calls.num_refusals += 1
            calls.watch, calls.count = None, 0
            return False
        if before is None:
            return False
        if not share_one(returned_before, calls.returned):
            calls.repetition = self._repetition(watched, before, entries_before, module, output)
        if calls.repetition is None:
            calls.num_refusals += 1
            calls.watch, calls.count = None, 0
        return calls.repetition is not None

    def something_else(self, module: torch.nn.Module | None) -> None:
        """The program calls this, or (None) a function, which may call modules whose calls repeat:
        torch is to find them as they were."""
        if self._repeats or not self._installed:
            return
        parts = None if module is None or torch.is_grad_enabled() else set(module.modules())
        for other in list(self._installed):
            if parts is None or other in parts:
                self._restore(other)

    def restore_all(self) -> None:
        """Calls of modules are as they were."""
        for module in list(self._installed):
            self._restore(module)

    # -- repeating --------------------------------------------------------------------------------

    def install(self, module: torch.nn.Module, call: Callable[..., Any]) -> None:
        """From now on calls of the module come to `call`."""
        if module not in self._installed:
            self._installed[module] = module.__dict__.get(COMPILED_CALL)
            module.__dict__[COMPILED_CALL] = call

    def _restore(self, module: torch.nn.Module) -> None:
        before = self._installed.pop(module)
        if before is None:
            module.__dict__.pop(COMPILED_CALL, None)
        else:
            module.__dict__[COMPILED_CALL] = before

    def find(
        self, module: torch.nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Callable[..., Any] | None:
        """What repeats the call that comes, where it is equal to the one before."""
        calls = self._of.get(module)
        repetition = None if calls is None else calls.repetition
        if calls is None or repetition is None or calls.watch is None or not self.is_possible():
            return None
        if calls.key != self._key(args, kwargs):
            return None
        if repetition.state != state_of([module, *calls.watch.global_values()]):
            return None
        self._repeats = True
        return lambda *args, **kwargs: self._repeat(calls, repetition, _leaves(args, kwargs))

    def repeated(self) -> None:
        """The call that `find` found has been repeated."""
        self._repeats = False

    def _repeat(self, calls: _Calls, repetition: _Repetition, inputs: Sequence[Any]) -> Any:
        numbers: list[int] = []

        def make_tensor(new: NewTensor) -> ForecastTensor:
            made = self.mode.new_tensor(new.shape, new.stride, new.dtype, new.device)
            numbers.append(self.storages.adopt(made))
            return made

        with torch._C._DisableTorchDispatch():
            output = repetition.output.made(inputs, make_tensor)
        self.tape.add_call(TapedCall(repetition.call, tuple(numbers)))
        self.num_repeated[calls.name, calls.line] += 1
        self.num_calls[calls.name, calls.line] += 1
        return output

    # -- watching ---------------------------------------------------------------------------------

    def _start(self, module: torch.nn.Module, calls: _Calls, inputs: list[Any]) -> None:
        before = None
        if calls.watch is not None:
            before = state_of([module, *calls.watch.global_values()])
        self.watch = CallWatch(self.storages, self.handled)
        self._watched = _Watched(
            self.watch, calls, inputs, self.tape.position(), self.tape.num_cuts,
            self.invention.num_reads, before,
        )  # fmt: skip
        self.watch.start()

    def _repetition(
        self,
        watched: _Watched,
        before: CallWatch,
        entries_before: Sequence[TapeEntry],
        module: torch.nn.Module,
        output: Any,
    ) -> _Repetition | None:
        entries = watched.calls.entries
        state = state_of([module, *before.global_values()])
        if state is None or state != watched.before or watched.watch.ran.keys() - before.ran.keys():
            return None
        ops = _ops(entries)
        if ops is None or ops != _ops(entries_before):
            return None
        described = output_of(output, watched.inputs, self._number_of_new)
        if described is None:
            return None
        whole, numbers = described
        call = RepeatedCall.of(entries, numbers)
        return None if call is None else _Repetition(call, whole, state)

    def _number_of_new(self, tensor: ForecastTensor) -> int | None:
        """The number of its storage where that is its own and its values are unknown."""
        num_bytes = tensor.untyped_storage().nbytes()
        is_whole = num_bytes == tensor.numel() * tensor.element_size()
        is_new = is_whole and tensor not in self.known and not tensor.requires_grad
        return self.storages.number_of(tensor) if is_new else None

    def _key(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> object:
        """Equal for equal calls from the same line; None for a call that is never repeated."""
        if torch.is_grad_enabled():
            return None
        described = []
        for leaf in _leaves(args, kwargs):
            if type(leaf) is ForecastTensor and leaf._fake_device.type == "cuda":
                described.append((tuple(leaf.shape), leaf.stride(), leaf.dtype, leaf._fake_device))
            else:
                described.append(plain_value(leaf))
        if None in described:
            return None
        stacks = self.tape.stacks
        place = program_line() if stacks is None else stacks.here()
        return described, sorted(kwargs), place, self._math.now(), _switches()


def _leaves(args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
    return [
        *pytree.tree_leaves(args),
        *pytree.tree_leaves([kwargs[name] for name in sorted(kwargs)]),
    ]


def _ops(entries: Sequence[TapeEntry]) -> list[object] | None:
    found: list[object] = []
    for entry in entries:
        if isinstance(entry, TapedOp):
            if not entry.signature.op.startswith(_SEEN):
                return None
            found.append((entry.signature, entry.math, entry.module, entry.stream))
    return found or None


def _switches() -> tuple[object, ...]:
    """Torch's switches that decide which ops a call launches."""
    cuda: Any = torch.backends.cuda
    return (
        context_values(),
        torch.is_inference_mode_enabled(),
        torch.is_autocast_enabled("cuda"),
        torch.get_autocast_dtype("cuda"),
        torch.get_default_dtype(),
        torch.get_default_device(),
        torch._C._len_torch_dispatch_stack(),
        cuda.flash_sdp_enabled(),
        cuda.mem_efficient_sdp_enabled(),
        cuda.math_sdp_enabled(),
        cuda.cudnn_sdp_enabled(),
    )
