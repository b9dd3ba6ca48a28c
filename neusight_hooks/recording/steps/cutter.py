"""Where one step ends and the next begins, found without the script's help."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from typing import cast

import torch

from neusight.recording.attribution import Attribution
from neusight.recording.inputs.batch import batch_of_step
from neusight.recording.recording import Mark, OpSignature, Phase, Step, StepKind
from neusight.recording.steps.folding import FoldedSteps
from neusight.recording.steps.methods import MethodCall
from neusight.recording.steps.optimizers import Optimizers
from neusight.recording.steps.period_detection import (
    Lookahead,
    PeriodDetector,
    StepEndNames,
    repetition,
)
from neusight.recording.steps.writer import StepWriter
from neusight.recording.storages import StorageWatch
from neusight.recording.tape import (
    AROUND_ENTRIES,
    MOST_DRAFTS,
    EnoughSteps,
    Listeners,
    Tape,
    TapedFree,
    TapedInput,
    TapedOp,
    TapeEntry,
)

#: Ops that draw random numbers: an agent's choice of what to do.
_DRAWS = frozenset(
    f"aten::{name}"
    for name in ("multinomial", "normal", "normal_", "bernoulli", "bernoulli_", "randn", "rand",
                 "uniform_", "exponential_", "randn_like", "rand_like", "randint")
)  # fmt: skip

#: Forward passes with gradients, but without a backward among them, after which a script is taken
#: to infer: a GAN runs its networks a few times before the first backward, and some programs call
#: one layer after the other.
_FORWARDS_OF_INFERENCE = 32

#: Rounds of forward and backward without an optimizer, after which a script is taken to train by
#: hand: an optimizer made before the block is first known when it steps, and gradients may be
#: accumulated until then.
_ROUNDS_BY_HAND = 32

#: How often ops must repeat to be the steps of a loop without modules: fewer may be one thing.
_LEAST_REPEATS = 4


#: Ops (about 20 seconds) after which the end of a method that calls modules is not awaited, and
#: (about a second) after which one such call beyond the first is enough.
_MAX_OPS_OF_METHOD = 1_000_000
_OPS_OF_LONG_METHOD = 50_000

#: Updates by one of several optimizers, each right after one call in evaluation mode, after which
#: such a call is taken for a part of their cycle: an agent acts, and they learn from what it saw.
_CALLS_BEFORE_UPDATES = 3

#: Steps beyond enough ones that the first results of the program's profiler are waited for.
_STEPS_FOR_PROFILER = 100

#: Calls without gradients before an update that may be of a teacher; more are of a rollout.
_FEW_CALLS = 4


# Over 300 lines: what may end a step is decided in one place, each way a short method.
class StepCutter:
    """Cuts the tape into steps.

    A step ends (a) where the script says so, else (b) with the optimizer step that closes a cycle,
    else (c) where a forward follows a backward and there is no optimizer, else (d) when the
    outermost module returns and nothing is trained, else (e) where the ops of a loop repeat. What
    makes a cycle is found by `PeriodDetector`. What comes before the first forward is the setup.
    `steady_steps` ends the script after that many steps beyond the first; `may_draft` says whether
    what is decoded now may be proposals that another model verifies.
    """

    def __init__(
        self,
        tape: Tape,
        attribution: Attribution,
        storages: StorageWatch,
        steady_steps: int | None = None,
        may_draft: Callable[[], bool] = lambda: False,
    ) -> None:
        self._may_be_draft = may_draft
        #: Set by the first op of a backward pass in the open step.
        self.backward_seen = False
        #: The program's thread of the last one.
        self.backward_thread = 0
        #: While a CUDA graph is captured nothing happens yet.
        self.is_paused = False
        #: Set while the program's profiler has no results yet: it is not ended before that, unless
        #: that takes long.
        self.waits_for_profiler = False
        #: Called once, instead of ending the script, where there are enough steady steps.
        self.on_enough = Listeners[[]]()
        #: Called after each step, and whether it equals the one before.
        self.on_step = Listeners[[Step, bool]]()
        #: How long something longer than what repeats is looked for.
        self.lookahead = Lookahead()
        self.writer = StepWriter(storages)
        self._folded = FoldedSteps()
        self._tape = tape
        self._attribution = attribution
        self._steady_steps = steady_steps
        self._explicit = False
        self.is_stopped = False
        self._before_first_forward = True
        # What may end a step: optimizers that stepped, rounds of forward and backward without an
        # optimizer, and modules that returned. Only one of them has open turns at a time.
        self._updates = PeriodDetector()
        self._rounds = PeriodDetector(starts_differently=True)
        self._returns = PeriodDetector(starts_differently=True)
        self._num_rounds = 0
        self._round_start = 0
        # Calls without gradients of what is trained, since an optimizer stepped: a rollout; and of
        # the longest one.
        self._rolled_out = 0
        self._most_rolled_out = 0
        self._call_start = 0
        # Calls in evaluation mode since an optimizer stepped; how many updates in a row had one
        # before them, by optimizer; whether such calls are part of a cycle.
        self._evaluated = 0
        self._evaluated_before: Counter[int] = Counter()
        self._acts = False
        self._names = StepEndNames()
        self._repeats = ""
        # Ends of forward passes that may turn out to be inference.
        self._forward_ends: list[tuple[int, int]] = []
        self._infers = False
        self._method: MethodCall | None = None
        # Whether a method that runs another model is taken to draft with it.
        self._may_draft = True
        self._optimizers = Optimizers()

    @property
    def steps(self) -> list[Step]:
        """Those that ended, equal ones in a row folded."""
        return self._folded.steps

    # -- what happens in the script -------------------------------------------------------------

    def optimizer_created(self, optimizer: torch.optim.Optimizer) -> None:
        """A script with an optimizer is going to train, even if it evaluates first."""
        self._optimizers.created(optimizer)

    def explicit_step(self) -> None:
        """The script (or its profiler) says that a step ends here; from now on only it does."""
        if not self._explicit:
            self._explicit = True
            last = self._folded.last
            if last is not None and last.kind != "setup" and not _has_forward(self._tape.entries):
                self._folded.take_back()
                self._tape.put_back(self.writer.take_back())
            # What was cut before the script spoke is none of the steps that it means.
            self._folded.count_as_setup()
            for turns in (self._updates, self._rounds, self._returns):
                turns.clear()
        self._close()
        self._stop_if_enough()

    def outermost_forward_begins(self, module: torch.nn.Module | None = None) -> None:
        """A module, or (None) a compiled function, is called from outside any other."""
        self._raise_again()
        self._follow_method(module)
        self._call_start = self._tape.position()
        if self._is_ignoring or self._attribution.phase != "forward":
            return
        if self._before_first_forward:
            self._before_first_forward = False
            if _ops_in(self._tape.entries):
                self._close(kind="setup")
        elif self.backward_seen:
            self.round_ends()
        elif self._infers or len(self._forward_ends) >= _FORWARDS_OF_INFERENCE:
            self._infers = not self._optimizers.any_alive
            if self._infers:
                self._take_forwards()
        elif self._returns and torch.is_grad_enabled():
            self._cut(self._returns.flush())

    def followed_op_comes(self, thread: int) -> None:
        """An op that autograd follows is called from outside any module, after a backward pass."""
        if thread == self.backward_thread:
            self.round_ends()

    def round_ends(self) -> None:
        """A forward follows a backward, which ends a step where no optimizer does."""
        self._forward_ends.clear()
        if self._is_ignoring or self._has_optimizer:
            return
        end = self._tape.position()
        token = tuple(_names_of(_ops_in(self._tape.entries[self._round_start : end])))
        self.backward_seen = False
        self._num_rounds += 1
        self._round_start = end
        # A script that is ended early was followed from its start, with all its optimizers.
        knows_all = self._steady_steps is not None or self._num_rounds >= _ROUNDS_BY_HAND
        self._take(self._rounds, token, end, may_decide=knows_all)

    def outermost_forward_ends(self, module: torch.nn.Module) -> None:
        """It returned."""
        self._optimizers.called(module)
        if self._is_ignoring or self._attribution.phase != "forward":
            return
        if torch.is_grad_enabled():
            if not self.backward_seen and not self._updates:
                turn = self._names.of_module(module)
                self._forward_ends.append((self._tape.position(), turn))
            return
        if self._is_within_training(module):
            return
        # Validation after training whose cycle may not be known yet.
        self._cut(self._updates.flush())
        self._cut(self._rounds.flush())
        self._call_ends(self._names.of_module(module))

    def function_begins(self) -> None:
        """A compiled function is called from outside any module or other such function."""
        if not self._may_train:
            self.outermost_forward_begins()

    def function_ends(self, function: object, name: str) -> None:
        """It returned. In a program that trains it may be an optimizer's step or a part of the
        loss, and ends none."""
        if self._may_train or self._is_ignoring or self._attribution.phase != "forward":
            return
        turn = self._names.of_function(function, name)
        if torch.is_grad_enabled():
            self._forward_ends.append((self._tape.position(), turn))
        else:
            self._call_ends(turn)

    # -- methods that call modules ----------------------------------------------------------------

    def _call_ends(self, turn: int) -> None:
        """A call without gradients returned, which ends a step of inference unless a method that
        is running made it."""
        position = self._tape.position()
        if self._method is None:
            self._take(self._returns, turn, position, may_decide=not self._may_be_draft())
        else:
            self._method.called.append((position, turn))

    def _follow_method(self, module: torch.nn.Module | None) -> None:
        """A module is called: by a method that is running, by another one, or by none."""
        method = self._method
        if method is not None:
            num_ops = self._tape.gpu_ops - method.begin
            if method.end is not None:
                self._method_ends(method.end, num_ops)
            elif method.drafts and method.module() is module:
                self._method = None  # what was drafted is a part of this call
            elif method.drafts and len(method.called) >= MOST_DRAFTS:
                self._may_draft = False
                self._forget_method()
            elif method.module() is module or num_ops > _MAX_OPS_OF_METHOD:
                self._forget_method()
        may_be_called = module is not None and not (torch.is_grad_enabled() or self._may_train)
        if self._method is None and may_be_called and not self._is_ignoring:
            assert module is not None
            method = MethodCall.find(module, self._tape.gpu_ops, self._tape.position)
            self._method = None if method and method.drafts and not self._may_draft else method

    def _method_ends(self, end: int, num_ops: int) -> None:
        assert self._method is not None
        if self._method.drafts:
            self._forget_method()  # its own model was not called after what was drafted
            return
        if num_ops > _OPS_OF_LONG_METHOD and self._steady_steps is not None:
            self._steady_steps = min(self._steady_steps, 1)
        turn = self._names.of_method(self._method.name)
        self._method = None
        self._take(self._returns, turn, end)

    def _forget_method(self) -> None:
        """The calls that the method made end steps themselves."""
        method, self._method = self._method, None
        found: list[int] = []
        for end, turn in () if method is None else method.called:
            found += self._returns.take(turn, end)
        self._cut(found)

    @property
    def _is_on_policy(self) -> bool:
        """Whether a step is one rollout and the updates that use it, by the same optimizers again
        and again or after many calls. Targets that other networks compute come before more updates
        than the first, or each optimizer steps once."""
        turns = cast("tuple[tuple[int, bool], ...]", self._updates.pattern)
        num_rollouts = sum(rolled_out for _, rolled_out in turns)
        uses_again = len({turn for turn, _ in turns}) < len(turns)
        is_long = self._most_rolled_out > _FEW_CALLS
        return num_rollouts > 0 and (is_long or (num_rollouts == 1 and uses_again))

    @property
    def _may_train(self) -> bool:
        return self._has_optimizer or self._num_rounds > 0 or self.backward_seen

    def optimizer_begins(self, optimizer: torch.optim.Optimizer) -> None:
        """An optimizer is about to step."""
        self._raise_again()
        self._infers = False
        self._forget_method()
        self._forward_ends.clear()
        self._rounds.clear()
        self._optimizers.record_trained(optimizer)
        if not self._is_ignoring:
            self._cut(self._returns.flush())

    def optimizer_ends(
        self, optimizer: torch.optim.Optimizer, *, is_within_other: bool = False
    ) -> None:
        """It has stepped; `is_within_other` where another one steps it."""
        self._optimizers.stepped(optimizer)
        if is_within_other:
            return
        updated = self._optimizers.updated_by(optimizer)
        self._step_may_end(self._names.of_optimizer(optimizer, updated))

    def graph_begins(self) -> None:
        """A captured CUDA graph is about to be launched."""
        self._raise_again()

    def graph_ends(self, graph: int, phases: set[Phase]) -> None:
        """It was launched: one with an optimizer in it steps, one with a forward alone infers."""
        turn = self._names.of_graph(graph)
        if "optimizer" in phases:
            self._step_may_end(turn)
        elif phases == {"forward"} and not self._optimizers.any_train and not self._is_ignoring:
            self._call_ends(turn)

    @property
    def _is_ignoring(self) -> bool:
        return self._explicit or self.is_paused

    @property
    def _has_optimizer(self) -> bool:
        return self._optimizers.any_train or self._optimizers.any_alive

    def _is_within_training(self, module: torch.nn.Module) -> bool:
        """A call without gradients, but of a teacher or a generator inside a training step, or to
        gather what the model then learns from. In evaluation mode it does so where it draws random
        actions; else it validates."""
        if not self._optimizers.any_train:
            return self._num_rounds > 0 and module.training
        trains = self._optimizers.train(module)
        rolls_out = self._rolled_out > 0 or any(
            op.signature.op in _DRAWS for _, op in _ops_in(self._tape.entries[self._call_start :])
        )
        if not module.training and trains and not (rolls_out or self._acts):
            self._evaluated += 1
            return False
        if self._rolled_out or trains:
            self._rolled_out += 1
        return True

    def _step_may_end(self, turn: int) -> None:
        if self._is_ignoring:
            return
        self._before_first_forward = False
        self._count_evaluated(turn)
        self._most_rolled_out = max(self._most_rolled_out, self._rolled_out)
        rolled_out, self._rolled_out = self._rolled_out > 0, 0
        may_decide = not self._optimizers.any_waits
        self._take(self._updates, (turn, rolled_out), self._tape.position(), may_decide=may_decide)

    def _count_evaluated(self, turn: int) -> None:
        """An optimizer has stepped, after some calls in evaluation mode."""
        before, evaluated = self._evaluated_before, self._evaluated
        self._evaluated = 0
        before[turn] = before[turn] + 1 if evaluated == 1 else 0
        is_one_of_several = self._optimizers.num_known > 1
        if not self._acts and is_one_of_several and before[turn] == _CALLS_BEFORE_UPDATES:
            self._acts = True
            self._folded.count_as_setup()  # the calls cut what is one cycle

    def _take(
        self, turns: PeriodDetector, token: Hashable, end: int, *, may_decide: bool = True
    ) -> None:
        found = turns.take(token, end, may_decide=may_decide)
        # Drafts alone say nothing: the call that verifies them ends the step.
        waits = not found and not turns.pattern and (may_decide or turns is not self._returns)
        is_longer = turns is self._updates and self._most_rolled_out > 0
        if waits and self.lookahead.is_over(len(turns), self._tape.gpu_ops, is_longer=is_longer):
            found = turns.settle()
        if turns is self._rounds and found:
            found = self._without_setup(found)
        self._cut(found)

    def finish(self) -> None:
        """The block ends: what is open becomes the last step."""
        self._steady_steps = None
        self._tape.flush()
        if self._method is not None and self._method.end is not None:
            self._method_ends(self._method.end, 0)
        self._forget_method()
        if self._forward_ends and not self.backward_seen and not self._optimizers.any_alive:
            self._take_forwards()
        self._cut(self._updates.flush())
        self._cut(self._without_setup(self._rounds.flush(is_cut_short=True)))
        self._cut(self._returns.flush())
        if not self._explicit and all(step.kind == "setup" for step in self.steps):
            self._cut_repeated()
        entries = self._tape.entries
        if any(type(entry) not in (*AROUND_ENTRIES, TapedFree, TapedInput) for entry in entries):
            is_round = self._num_rounds > 0 and _kind_of(entries) == "train"
            works = is_round or _has_forward(self._tape.entries) or not self.steps
            self._close(kind=None if works else "setup")
        self._folded.correct_kinds(self.writer.late_kinds)

    @property
    def may_skip_calls(self) -> bool:
        """Whether equal calls say nothing new: nothing has trained, and the script ends early."""
        trains = self._optimizers.num_stepped > 0 or self._num_rounds > 0 or self.backward_seen
        return self._steady_steps is not None and not (trains or self._is_ignoring)

    @property
    def step_is(self) -> str:
        """What was taken for a step, in words."""
        if self._explicit:
            return "what the script says, from one step() to the next"
        if self._folded.num_train and self._updates.pattern:
            turns = cast("tuple[tuple[int, bool], ...]", self._updates.pattern)
            words = self._names.words([turn for turn, _ in turns], of="step")
            if not any(rolled_out for _, rolled_out in turns):
                return words
            count = self._most_rolled_out
            calls = f"{count:,} calls" if count > 1 else "one call"
            return f"{calls} without gradients, then {words}"
        if self._folded.num_train and self._rounds.pattern:
            times = len(self._rounds.pattern)
            passes = "forward and backward" if times == 1 else f"{times} times forward and backward"
            return f"{passes}, up to the next forward (no torch.optim)"
        if self._folded.num_eval and self._returns.pattern:
            ends_of_calls = cast("tuple[int, ...]", self._returns.pattern)
            return self._names.words(ends_of_calls, of="call")
        return self._repeats or "all of it"

    # -- cutting --------------------------------------------------------------------------------

    def _take_forwards(self) -> None:
        """Forward passes with gradients that are not used are inference."""
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
        start = _start_of_steps(self._tape.entries, ends[0], ends[1])
        if start:
            self._close(kind="setup", upto=start)
        return [end - start for end in ends]

    def _cut_repeated(self) -> None:
        """Neither modules nor a backward pass: a step is what the ops repeat, if they do."""
        ops = _ops_in(self._tape.entries)
        if _has_forward(self._tape.entries) or any(op.phase != "forward" for _, op in ops):
            return
        first, period, stop = repetition(_numbered(ops), least=_LEAST_REPEATS)
        if not period:
            return
        ops_words = "an op that comes" if period == 1 else f"{period} ops that come"
        self._repeats = f"{ops_words} {(stop - first) // period} times"
        at = [position for position, _ in ops] + [len(self._tape.entries)]
        if first:
            self._close(kind="setup", upto=at[first])
        self._cut([at[end] - at[first] for end in range(first + period, stop + 1, period)])

    def _close(self, kind: StepKind | None = None, upto: int | None = None) -> None:
        has_all_calls = self._tape.has_all_calls(upto)
        taped = self._tape.cut(upto)
        self._attribution.forget_earlier()
        for turns in (self._updates, self._rounds, self._returns):
            turns.shift(len(taped))
        if self._method is not None:
            self._method.shift(len(taped))
        self._round_start = max(0, self._round_start - len(taped))
        self._call_start = max(0, self._call_start - len(taped))
        self.lookahead.begin(self._tape.gpu_ops)
        self._forward_ends = []
        self.backward_seen = False
        if any(type(entry) not in (*AROUND_ENTRIES, TapedInput) for entry in taped):
            kind = kind or _kind_of(taped)
            batch = batch_of_step(taped, trains=kind == "train", rolls_out=self._is_on_policy)
            entries = self.writer.write(taped)
            operators = self.writer.operators if has_all_calls else ()
            step = Step(kind, entries, batch=batch, operators=operators)
            is_repeated = self._folded.add(step)
            self.on_step(step, is_repeated)

    def _stop_if_enough(self) -> None:
        if self._steady_steps is None:
            return
        trains = self._folded.num_train > 0 or self._optimizers.any_alive
        counted = self._folded.num_train if trains else self._folded.num_eval
        wanted = self._steady_steps + (_STEPS_FOR_PROFILER if self.waits_for_profiler else 0)
        if counted > wanted and self.on_enough:
            self._steady_steps = None
            self.on_enough()
        elif counted > wanted and threading.current_thread() is threading.main_thread():
            self.is_stopped = True
            self._raise_again()

    def _raise_again(self) -> None:
        """A bare `except:` in the script may have swallowed the end; this one is as good. Ops alone
        do not raise: clean-up code after the end may need some."""
        if self.is_stopped and self._steady_steps is not None:
            raise EnoughSteps


#: Ops, each with its position among the entries it was taken from.
_Ops = list[tuple[int, TapedOp]]


def _ops_in(entries: Sequence[TapeEntry]) -> _Ops:
    return [(at, entry) for at, entry in enumerate(entries) if isinstance(entry, TapedOp)]


def _names_of(ops: _Ops) -> list[str]:
    return [op.signature.op for _, op in ops]


def _has_forward(entries: Sequence[TapeEntry]) -> bool:
    """Whether a module ran."""
    return any(isinstance(entry, Mark) and entry.kind == "module_begin" for entry in entries)


def _start_of_steps(entries: Sequence[TapeEntry], first_end: int, second_end: int) -> int:
    """Where the first step begins whose ops are those of the second; 0 if with the first entry."""
    first = _ops_in(entries[:first_end])
    second = _ops_in(entries[first_end:second_end])
    extra = len(first) - len(second)
    if extra <= 0 or _names_of(first[extra:]) != _names_of(second):
        return 0
    return first[extra][0]


def _numbered(ops: _Ops) -> list[int]:
    """A number for each op, the same for equal ones on one stream."""
    numbers: dict[tuple[OpSignature, int], int] = {}
    of_object: dict[tuple[int, int], int] = {}  # equal calls mostly share one signature
    found = []
    for _, op in ops:
        key = (id(op.signature), op.stream)
        if key not in of_object:
            of_object[key] = numbers.setdefault((op.signature, op.stream), len(numbers))
        found.append(of_object[key])
    return found


def _kind_of(taped: Sequence[TapeEntry]) -> StepKind:
    for entry in taped:
        if isinstance(entry, TapedOp) and entry.phase != "forward":
            return "train"
    return "eval"
