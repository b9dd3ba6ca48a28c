"""Where one step ends and the next begins, found without the script's help; equal steps folded."""

from __future__ import annotations

import weakref
from collections.abc import Hashable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, cast

import torch

from neusight.recording.recording import (
    Alloc,
    Entry,
    EventRecord,
    EventWait,
    Free,
    HostWork,
    Mark,
    OpCall,
    OpSignature,
    Phase,
    Step,
    StepKind,
    StorageRef,
    Synchronize,
)
from neusight.recording.turns import TurnNames, Turns, repetition

if TYPE_CHECKING:
    from neusight.recording.recorder import Recorder

__all__ = ["EnoughSteps", "StepCutter"]

StorageKind = Literal["activation", "parameter", "gradient", "optimizer_state", "buffer"]

#: Forward passes with gradients, but without a backward among them, after which a script is taken
#: to infer: a GAN runs its networks a few times before the first backward, and some programs call
#: one layer after the other.
_FORWARDS_OF_INFERENCE = 32

#: Rounds of forward and backward without an optimizer, after which a script is taken to train by
#: hand: an optimizer made before the block is first heard of when it steps, and gradients may be
#: accumulated until then.
_ROUNDS_BY_HAND = 32

#: Ops recorded in search of a longer cycle before turns that repeat are taken for it (about a
#: second), and how many times the ops of the first turn at least: a rollout is followed by updates.
_LEAST_PATIENCE_OPS = 50_000
_PATIENCE = 4

#: How often ops must repeat to be the steps of a loop without modules: fewer may be one thing.
_LEAST_REPEATS = 4

#: Estimates of CPU work that differ by less than this ratio are the same work: augmentations that
#: draw numbers run some ops more or less each step.
_SAME_CPU_WORK = 1.5


class EnoughSteps(BaseException):
    """Ends the script from inside: enough steady steps were recorded."""


class StepCutter:
    """Cuts the recorder's entries into steps.

    A step ends (a) where the script says so, else (b) with the optimizer step that closes a cycle,
    else (c) where a forward follows a backward and there is no optimizer, else (d) when the
    outermost module returns and nothing is trained, else (e) where the ops of a loop repeat. What
    makes a cycle is found by `Turns`. What comes before the first forward is the setup.
    `steady_steps` ends the script after that many steps beyond the first.

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
        # What may end a step: optimizers that stepped, rounds of forward and backward without an
        # optimizer, and modules that returned. Only one of them has open turns at a time.
        self._updates = Turns()
        self._rounds = Turns(starts_differently=True)
        self._returns = Turns(starts_differently=True)
        self._deadline = 0
        self._ops_at_cut = 0
        self._num_rounds = 0
        self._round_start = 0
        # Calls without gradients of what is trained, since an optimizer stepped: a rollout.
        self._rolled_out = 0
        self._names = TurnNames()
        self._repeats = ""
        # Ends of forward passes that may turn out to be inference.
        self._forward_ends: list[tuple[int, int]] = []
        self._infers = False
        self._optimizers: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()
        self._stepped: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()
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
            # What was cut before the script spoke is none of the steps that it means.
            self.steps = [replace(step, kind="setup") for step in self.steps]
            self._num_train = self._num_eval = 0
            for turns in (self._updates, self._rounds, self._returns):
                turns.clear()
        self._close()
        self._stop_if_enough()

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
            self.round_ends()
        elif self._infers or len(self._forward_ends) >= _FORWARDS_OF_INFERENCE:
            self._infers = not self._optimizers
            if self._infers:
                self._take_forwards()
        elif self._returns and torch.is_grad_enabled():
            self._cut(self._returns.flush())

    def round_ends(self) -> None:
        """A forward follows a backward, which ends a step where no optimizer does."""
        self._forward_ends.clear()
        if self._is_deaf or self._has_optimizer:
            return
        end = self._here()
        ops = self._recorder.open_entries[self._round_start : end]
        token = tuple(entry[0].op for entry in ops if type(entry) is tuple)
        self.backward_seen = False
        self._num_rounds += 1
        self._round_start = end
        # A script that is ended early was heard from its start, with all its optimizers.
        knows_all = self._steady_steps is not None or self._num_rounds >= _ROUNDS_BY_HAND
        self._take(self._rounds, token, end, may_decide=knows_all)

    def outermost_forward_ends(self, module: torch.nn.Module) -> None:
        """It returned."""
        if self._is_deaf or self._recorder.attribution.phase != "forward":
            return
        if torch.is_grad_enabled():
            if not self.backward_seen and not self._updates:
                self._forward_ends.append((self._here(), self._names.of_module(module)))
            return
        if self._is_within_training(module):
            return
        # Validation after training whose cycle may not be known yet.
        self._cut(self._updates.flush())
        self._cut(self._rounds.flush())
        self._take(self._returns, self._names.of_module(module), self._here())

    def optimizer_begins(self, optimizer: torch.optim.Optimizer) -> None:
        """An optimizer is about to step."""
        self._raise_again()
        self._infers = False
        self._forward_ends.clear()
        self._rounds.clear()
        self._note_trained(optimizer)
        if not self._is_deaf:
            self._cut(self._returns.flush())

    def optimizer_ends(self, optimizer: torch.optim.Optimizer) -> None:
        """It has stepped."""
        self._stepped.add(optimizer)
        self._turn_ends(self._names.of_optimizer(optimizer))

    def graph_begins(self) -> None:
        """A captured CUDA graph is about to be launched."""
        self._raise_again()

    def graph_ends(self, graph: int, phases: set[Phase]) -> None:
        """It was launched: one with an optimizer in it steps, one with a forward alone infers."""
        turn = self._names.of_graph(graph)
        if "optimizer" in phases:
            self._turn_ends(turn)
        elif phases == {"forward"} and not self._trained and not self._is_deaf:
            self._take(self._returns, turn, self._here())

    @property
    def _is_deaf(self) -> bool:
        return self._explicit or self.is_paused

    @property
    def _has_optimizer(self) -> bool:
        return bool(self._trained) or len(self._optimizers) > 0

    def _here(self) -> int:
        """The position after all that happened so far."""
        self._recorder.flush()
        return len(self._recorder.open_entries)

    def _is_within_training(self, module: torch.nn.Module) -> bool:
        """A call without gradients, but of a teacher or a generator inside a training step, or to
        gather what the model then learns from."""
        if not self._trained:
            return self._num_rounds > 0 and module.training
        if not module.training:
            return not self._is_trained(module)
        if self._rolled_out or self._is_trained(module):
            self._rolled_out += 1
        return True

    def _turn_ends(self, turn: int) -> None:
        if self._is_deaf:
            return
        self._before_first_forward = False
        rolled_out, self._rolled_out = self._rolled_out > 0, 0
        waits = any(optimizer not in self._stepped for optimizer in self._optimizers)
        self._take(self._updates, (turn, rolled_out), self._here(), may_decide=not waits)

    def _take(self, turns: Turns, token: Hashable, end: int, *, may_decide: bool = True) -> None:
        found = turns.take(token, end, may_decide=may_decide)
        if not found and not turns.pattern and self._is_late(turns):
            found = turns.settle()
        if turns is self._rounds and found:
            found = self._without_setup(found)
        self._cut(found)

    def _is_late(self, turns: Turns) -> bool:
        """Whether the period of the open turns has been looked for long enough."""
        num_ops = self._recorder.gpu_ops
        if len(turns) == 1:
            first = num_ops - self._ops_at_cut
            self._deadline = num_ops + max(_LEAST_PATIENCE_OPS, _PATIENCE * first)
        if num_ops < self._deadline:
            return False
        self._deadline = num_ops + _LEAST_PATIENCE_OPS
        return True

    def finish(self) -> None:
        """The block ends: what is open becomes the last step."""
        self._steady_steps = None
        self._recorder.flush()
        if self._forward_ends and not self.backward_seen and not self._optimizers:
            self._take_forwards()
        self._cut(self._updates.flush())
        self._cut(self._without_setup(self._rounds.flush(is_cut_short=True)))
        self._cut(self._returns.flush())
        if not self._explicit and all(step.kind == "setup" for step in self.steps):
            self._cut_repeated()
        if any(type(entry) is not int for entry in self._recorder.open_entries):
            entries = self._recorder.open_entries
            is_round = self._num_rounds > 0 and _kind_of(entries) == "train"
            works = is_round or self._has_forward() or not self.steps
            self._close(kind=None if works else "setup")
        self._correct_kinds()

    @property
    def step_is(self) -> str:
        """What was taken for a step, in words."""
        if self._explicit:
            return "what the script says, from one step() to the next"
        if self._num_train and self._updates.pattern:
            turns = cast("tuple[tuple[int, bool], ...]", self._updates.pattern)
            words = self._names.words([turn for turn, _ in turns], of="step")
            rolls_out = any(rolled_out for _, rolled_out in turns)
            return f"calls without gradients, then {words}" if rolls_out else words
        if self._num_train and self._rounds.pattern:
            times = len(self._rounds.pattern)
            passes = "forward and backward" if times == 1 else f"{times} times forward and backward"
            return f"{passes}, up to the next forward (no torch.optim)"
        if self._num_eval and self._returns.pattern:
            turns_of_calls = cast("tuple[int, ...]", self._returns.pattern)
            return self._names.words(turns_of_calls, of="call")
        return self._repeats or "all of it"

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

    def _take_forwards(self) -> None:
        """Forward passes with gradients that nobody uses are inference."""
        found: list[int] = []
        for end, turn in self._forward_ends:
            found += self._returns.take(turn, end)
        self._forward_ends = []
        self._cut(found)

    def _cut(self, ends: list[int]) -> None:
        """Closes steps that end at these positions."""
        done = 0
        for end in ends:
            self._close(upto=end - done)
            done = end
        if ends:
            self._stop_if_enough()

    def _without_setup(self, ends: list[int]) -> list[int]:
        """Without modules nothing says where the setup ends: the first step then is as long as the
        second, where it ends like that."""
        if not self._before_first_forward or len(ends) < 2:
            return ends
        self._before_first_forward = False
        entries = self._recorder.open_entries
        first = [at for at in range(ends[0]) if type(entries[at]) is tuple]
        second = [at for at in range(ends[0], ends[1]) if type(entries[at]) is tuple]
        extra = len(first) - len(second)
        if extra <= 0 or [entries[at][0].op for at in first[extra:]] != [
            entries[at][0].op for at in second
        ]:
            return ends
        self._close(kind="setup", upto=first[extra])
        return [end - first[extra] for end in ends]

    def _cut_repeated(self) -> None:
        """Neither modules nor a backward pass: a step is what the ops repeat, if they do."""
        entries = self._recorder.open_entries
        at = [position for position, entry in enumerate(entries) if type(entry) is tuple]
        if self._has_forward() or any(entries[position][3] != "forward" for position in at):
            return
        numbers: dict[OpSignature, int] = {}
        of_object: dict[int, int] = {}  # equal calls mostly share one signature
        for position in at:
            signature = entries[position][0]
            if id(signature) not in of_object:
                of_object[id(signature)] = numbers.setdefault(signature, len(numbers))
        ops = [of_object[id(entries[position][0])] for position in at]
        first, period, stop = repetition(ops, least=_LEAST_REPEATS)
        if not period:
            return
        ops_words = "an op that comes" if period == 1 else f"{period} ops that come"
        self._repeats = f"{ops_words} {(stop - first) // period} times"
        at.append(len(entries))
        if first:
            self._close(kind="setup", upto=at[first])
        self._cut([at[end] - at[first] for end in range(first + period, stop + 1, period)])

    def _close(self, kind: StepKind | None = None, upto: int | None = None) -> None:
        recorder = self._recorder
        recorder.drain()
        upto = len(recorder.open_entries) if upto is None else upto
        raw = recorder.open_entries[:upto]
        del recorder.open_entries[:upto]
        recorder.forget_drained(upto)
        recorder.step_ends()
        for turns in (self._updates, self._rounds, self._returns):
            turns.shift(upto)
        self._round_start = max(0, self._round_start - upto)
        self._ops_at_cut = recorder.gpu_ops
        self._forward_ends = []
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
