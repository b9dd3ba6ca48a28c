"""Where one step ends and the next begins, found without the script's help; equal steps folded."""

from __future__ import annotations

import weakref
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, cast

import torch

from neusight.recording import (
    Alloc,
    Entry,
    EventRecord,
    EventWait,
    Free,
    HostWork,
    Mark,
    OpCall,
    Phase,
    Step,
    StepKind,
    StorageRef,
    Synchronize,
)

if TYPE_CHECKING:
    from neusight.recorder import Recorder

__all__ = ["EnoughSteps", "StepCutter"]

StorageKind = Literal["activation", "parameter", "gradient", "optimizer_state", "buffer"]

#: Forward passes with gradients, but without a backward among them, after which a script is taken
#: to infer: a GAN runs its networks a few times before the first backward, and some programs call
#: one layer after the other.
_FORWARDS_OF_INFERENCE = 32

#: Estimates of CPU work that differ by less than this ratio are the same work: augmentations that
#: draw numbers run some ops more or less each step.
_SAME_CPU_WORK = 1.5


class EnoughSteps(BaseException):
    """Ends the script from inside: enough steady steps were recorded."""


class StepCutter:
    """Cuts the recorder's entries into steps.

    A step ends (a) where the script says so, else (b) with the optimizer step that closes a cycle,
    else (c) when the outermost module returns and nothing is trained. What comes before the first
    forward is the setup. `steady_steps` ends the script after that many steps beyond the first.

    While it listens, entries are raw, for speed: a tuple is an op, a list an allocation, an int the
    number of a storage that was freed. `_settled` makes them what a `Step` holds.
    """

    def __init__(self, recorder: Recorder, steady_steps: int | None) -> None:
        self.steps: list[Step] = []
        #: Set by the first op of a backward pass in the open step.
        self.backward_seen = False
        #: While a CUDA graph is captured nothing happens yet.
        self.is_paused = False
        self._recorder = recorder
        self._steady_steps = steady_steps
        self._num_train = 0
        self._num_eval = 0
        self._index = 0
        self._explicit = False
        self._enough = False
        self._before_first_forward = True
        # Optimizers that stepped since the last cut, and the cycle in which they take turns.
        self._cycle: list[int] = []
        self._pattern: list[int] = []
        self._end_of_cycle = 0
        # Ends of forward passes that may turn out to be inference.
        self._forward_ends: list[int] = []
        self._infers = False
        self._optimizers: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()
        self._trained: set[int] = set()
        self._homes: dict[int, tuple[int, int]] = {}
        # What storages of steps before turned out to be for, by their homes.
        self._late_kinds: dict[tuple[int, int], StorageKind] = {}
        self._last_raw: list[Any] = []
        self._last_freed: dict[int, tuple[int, int]] = {}
        self._last_event = 0
        self._calls: dict[Any, OpCall] = {}

    # -- what happens in the script -------------------------------------------------------------

    def optimizer_created(self, optimizer: torch.optim.Optimizer) -> None:
        """A script with an optimizer is going to train, even if it evaluates first."""
        self._optimizers.add(optimizer)
        self._note_trained(optimizer)

    def explicit_step(self) -> None:
        """The script (or its profiler) says that a step ends here; from now on only it does."""
        if not self._explicit:
            self._explicit = True
            if self.steps and self.steps[-1].kind != "setup" and not self._has_forward():
                self._reopen()
        self._close()

    def outermost_forward_begins(self) -> None:
        """A module is called from outside any other."""
        self._raise_again()
        if self._is_deaf or self._recorder.attribution.phase != "forward":
            return
        if self._before_first_forward:
            self._before_first_forward = False
            if any(type(entry) is tuple for entry in self._recorder.open_entries):
                self._close(kind="setup")
        elif self.backward_seen:
            self._forward_ends.clear()
        elif self._infers or len(self._forward_ends) >= _FORWARDS_OF_INFERENCE:
            self._infers = not self._optimizers
            if self._infers:
                self._close_forwards()

    def outermost_forward_ends(self, module: torch.nn.Module) -> None:
        """It returned."""
        if self._is_deaf or self._recorder.attribution.phase != "forward":
            return
        if torch.is_grad_enabled():
            if not self.backward_seen and not self._cycle:
                self._forward_ends.append(len(self._recorder.open_entries))
            return
        if self._trained and (module.training or not self._is_trained(module)):
            return  # a teacher or a generator inside a training step
        if self._cycle:  # validation after the first training step, whose cycle is not known yet
            self._pattern = list(self._cycle)
            self._close(upto=self._end_of_cycle)
        self._close()

    def optimizer_begins(self, optimizer: torch.optim.Optimizer) -> None:
        """An optimizer is about to step."""
        self._raise_again()
        self._infers = False
        self._forward_ends.clear()
        self._note_trained(optimizer)
        self._turn_begins(id(optimizer))

    def optimizer_ends(self, optimizer: torch.optim.Optimizer) -> None:
        """It has stepped."""
        self._turn_ends(id(optimizer))

    def graph_begins(self, graph: int) -> None:
        """A captured CUDA graph is about to be launched."""
        self._raise_again()
        self._turn_begins(graph)

    def graph_ends(self, graph: int, phases: set[Phase]) -> None:
        """It was launched: one with an optimizer in it steps, one with a forward alone infers."""
        if "optimizer" in phases:
            self._turn_ends(graph)
        elif phases == {"forward"} and not self._trained and not self._is_deaf:
            self._close()

    @property
    def _is_deaf(self) -> bool:
        return self._explicit or self.is_paused

    def _turn_begins(self, number: int) -> None:
        if not self._is_deaf and number in self._cycle:
            self._pattern = list(self._cycle)
            self._close(upto=self._end_of_cycle)

    def _turn_ends(self, number: int) -> None:
        if self._is_deaf:
            return
        self._before_first_forward = False
        self._cycle.append(number)
        self._end_of_cycle = len(self._recorder.open_entries)
        if self._cycle == self._pattern:
            self._close()

    def finish(self) -> None:
        """The block ends: what is open becomes the last step."""
        self._steady_steps = None
        self._recorder.flush()
        if self._forward_ends and not self.backward_seen and not self._optimizers:
            self._close_forwards()
        if self._cycle and self._end_of_cycle < len(self._recorder.open_entries):
            self._close(upto=self._end_of_cycle)
        if any(type(entry) is not int for entry in self._recorder.open_entries):
            self._close(kind=None if self._has_forward() or not self.steps else "setup")
        self._correct_kinds()

    # -- cutting --------------------------------------------------------------------------------

    def _note_trained(self, optimizer: torch.optim.Optimizer) -> None:
        for group in optimizer.param_groups:
            self._trained.update(map(id, group["params"]))

    def _is_trained(self, module: torch.nn.Module) -> bool:
        return any(id(parameter) in self._trained for parameter in module.parameters())

    def _has_forward(self) -> bool:
        """Whether a module ran since the last cut."""
        return any(
            isinstance(entry, Mark) and entry.kind == "module_begin"
            for entry in self._recorder.open_entries
        )

    def _close_forwards(self) -> None:
        done = 0
        for end in list(self._forward_ends):
            self._close(upto=end - done, may_stop=False)
            done = end
        self._stop_if_enough()

    def _close(
        self, kind: StepKind | None = None, upto: int | None = None, may_stop: bool = True
    ) -> None:
        recorder = self._recorder
        recorder.drain()
        upto = len(recorder.open_entries) if upto is None else upto
        raw = recorder.open_entries[:upto]
        del recorder.open_entries[:upto]
        recorder.forget_drained(upto)
        recorder.step_ends()
        self._cycle, self._end_of_cycle, self._forward_ends = [], 0, []
        self.backward_seen = False
        if not raw:
            return
        step = Step(kind or _kind_of(raw), tuple(self._settled(raw)))
        self._last_raw = raw
        self._index += 1
        if self.steps and _are_equal(self.steps[-1], step):
            self.steps[-1] = replace(self.steps[-1], count=self.steps[-1].count + 1)
        else:
            self.steps.append(step)
        self._num_train += step.kind == "train"
        self._num_eval += step.kind == "eval"
        if may_stop:
            self._stop_if_enough()

    def _stop_if_enough(self) -> None:
        if self._steady_steps is None:
            return
        trains = self._num_train > 0 or len(self._optimizers) > 0
        counted = self._num_train if trains else self._num_eval
        if counted > self._steady_steps:
            self._enough = True
            self._raise_again()

    def _raise_again(self) -> None:
        """A bare `except:` in the script may have swallowed the end; this one is as good. Ops alone
        do not raise: clean-up code after the end may need some."""
        if self._enough and self._steady_steps is not None:
            raise EnoughSteps

    def _reopen(self) -> None:
        last = self.steps.pop()
        if last.count > 1:
            self.steps.append(replace(last, count=last.count - 1))
        self._index -= 1
        self._num_train -= last.kind == "train"
        self._num_eval -= last.kind == "eval"
        own = [number for number, home in self._homes.items() if home[0] == self._index]
        for number in own:
            del self._homes[number]
        self._homes.update(self._last_freed)
        self._last_event -= sum(type(entry) is EventRecord for entry in self._last_raw)
        self._recorder.reopen(self._last_raw)

    # -- what storages are for

    def kind_known(self, number: int, kind: str) -> None:
        """A storage turned out to be for this, perhaps after its step was closed."""
        home = self._homes.get(number)
        if home is not None:
            self._late_kinds[home] = cast("StorageKind", kind)

    def _correct_kinds(self) -> None:
        first = 0
        for position, step in enumerate(self.steps):
            last = first + step.count
            kinds = {
                ordinal: kind
                for (index, ordinal), kind in self._late_kinds.items()
                if first <= index < last
            }
            if kinds:
                self.steps[position] = replace(
                    step, entries=tuple(_corrected(entry, kinds) for entry in step.entries)
                )
            first = last

    # -- from raw entries to those of a step ----------------------------------------------------

    def _settled(self, raw: list[Any]) -> list[Entry]:
        """Raw entries as they are kept: numbers relative to the step, equal op calls shared."""
        base = _first_sequence(raw)
        first_event = self._last_event
        self._last_freed = {}
        entries: list[Entry] = []
        freed: list[Free] = []
        ordinal = 0
        for entry in raw:
            kind = type(entry)
            if freed and kind is not int:
                # Storages freed together go in the order of addresses where a table of C++ drops
                # them (autocast's copies of weights), another one in each run; the order of such
                # frees has no effect.
                freed.sort(key=_storage_of)
                entries += freed
                freed = []
            if kind is tuple:
                entries.append(self.call_of(entry, base))
            elif kind is list:
                number, num_bytes, module, op, phase, stack = entry
                self._homes[number] = (self._index, ordinal)
                storage_kind = self._kind_of_storage(number, phase)
                entries.append(Alloc(ordinal, num_bytes, module, op, phase, storage_kind, stack))
                ordinal += 1
            elif kind is int:
                home = self._homes.pop(entry, None)
                self._recorder.kinds.pop(entry, None)
                if home is not None:
                    if home[0] != self._index:
                        self._last_freed[entry] = home
                    freed.append(Free(StorageRef(self._index - home[0], home[1])))
            elif kind is EventRecord:
                self._last_event = max(self._last_event, entry.event)
                entries.append(replace(entry, event=entry.event - first_event))
            elif kind is EventWait or (kind is Synchronize and entry.event is not None):
                # An event of an earlier step gets a number below 1.
                entries.append(replace(entry, event=entry.event - first_event))
            else:
                entries.append(entry)
        freed.sort(key=_storage_of)
        return entries + freed

    def call_of(self, raw: tuple[Any, ...], base: int | None) -> OpCall:
        """The op call of a raw entry, one object for all equal ones."""
        signature, math, module, phase, stream, sequence, node, stack = raw
        relative = None if sequence is None or base is None else sequence - base
        key = (id(signature), id(math), module, phase, stream, relative, node, id(stack))
        call = self._calls.get(key)
        if call is None:
            call = OpCall(signature, math, module, phase, stream, relative, node, stack)
            self._calls[key] = call
        return call

    def _kind_of_storage(self, number: int, phase: str) -> StorageKind:
        kind = self._recorder.kinds.get(number)
        if kind is not None:
            return cast("StorageKind", kind)
        if phase == "optimizer" and self._recorder.is_alive(number):
            return "optimizer_state"
        return "activation"


def _corrected(entry: Entry, kinds: dict[int, StorageKind]) -> Entry:
    if isinstance(entry, Alloc) and entry.kind == "activation" and entry.ordinal in kinds:
        return replace(entry, kind=kinds[entry.ordinal])
    return entry


def _storage_of(free: Free) -> StorageRef:
    return free.storage


def _kind_of(raw: list[Any]) -> StepKind:
    for entry in raw:
        if type(entry) is tuple and entry[3] != "forward":
            return "train"
    return "eval"


def _first_sequence(raw: list[Any]) -> int | None:
    """The lowest autograd number of the step's forward; of its backward, if it has no forward."""
    numbers = [(bool(e[6]), e[5]) for e in raw if type(e) is tuple and e[5] is not None]
    return min(numbers)[1] if numbers else None


def _are_equal(first: Step, second: Step) -> bool:
    """The same work; what the CPU does in between is an estimate and need not be the same."""
    if first.kind != second.kind or len(first.entries) != len(second.entries):
        return False
    if first.entries == second.entries:
        return True
    return all(
        one is other
        or one == other
        or (isinstance(one, HostWork) and isinstance(other, HostWork) and _is_same_work(one, other))
        for one, other in zip(first.entries, second.entries, strict=True)
    )


def _is_same_work(first: HostWork, second: HostWork) -> bool:
    low, high = sorted([first.duration_us, second.duration_us])
    return first.name == second.name == "cpu ops" and high <= low * _SAME_CPU_WORK
