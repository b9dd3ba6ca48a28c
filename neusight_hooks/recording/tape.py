"""The tape: what was recorded since the last step was cut off, one cheap entry at a time."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Generic, NamedTuple, ParamSpec, cast

from neusight.recording.call_stack import (
    CallStack,
    CallStacks,
    ProgramThreads,
    call_site,
    is_elsewhere,
)
from neusight.recording.recording import (
    BatchSource,
    EmptyCache,
    EventRecord,
    EventWait,
    HostWork,
    Mark,
    MarkKind,
    MathMode,
    OpSignature,
    Phase,
    StorageKind,
    Synchronize,
)

P = ParamSpec("P")

#: Work on the CPU, of several ops.
CPU_WORK = "cpu ops"

#: Numbers in the names of marks.
_NUMBERS = re.compile(r"\d+")

#: Ops that a script may still run to clean up after it was stopped, before it is stopped again.
_OPS_TO_CLEAN_UP = 1000


class EnoughSteps(BaseException):
    """Raised in the script to end it: enough steady steps were recorded."""


class RunawayLoop(BaseException):
    """Raised in the script to end it: too many ops; a loop may wait for an invented value."""


@dataclass(slots=True)
class TapedOp:
    """An op as it was dispatched. `sequence_nr` is autograd's own, which counts through all of the
    program; an `OpCall` counts from the start of its step. (Not frozen: it is made for every op,
    and freezing would double what that costs.)"""

    signature: OpSignature
    math: MathMode
    module: str = ""
    phase: Phase = "forward"
    stream: int = 0
    sequence_nr: int | None = None
    node: str = ""
    stack: CallStack = ()
    thread: int = 0


@dataclass(slots=True)
class TapedAlloc:
    """A storage on the GPU was made; `number` counts storages through all of the program, `pool`
    is a private one of CUDA graphs if not 0."""

    number: int
    num_bytes: int
    module: str = ""
    op: str = ""
    phase: Phase = "forward"
    stack: CallStack = ()
    pool: int = 0
    #: While the program runs another kind may be reported later.
    kind: ClassVar[StorageKind] = "activation"


@dataclass(slots=True)
class TapedFree:
    """The storage of that number was freed."""

    number: int


#: Tokens that a draft model proposes at most for one call of the model that verifies them.
MOST_DRAFTS = 64


class TensorIdentity(NamedTuple):
    """Equal for tensors with the same values: their storage, place in it, shape and version."""

    storage: int
    offset: int
    shape: tuple[int, ...]
    version: int


@dataclass(slots=True, eq=False)
class TapedInput:
    """A loader yielded a batch here, or the program called an outermost module or compiled
    function, by its input: `what` the tensor is, its shape, samples and tokens where they are
    known. No entry of a step: what they say together is the step's `Batch`.

    `is_inference`: a call without gradients; `is_function`: of a compiled function;
    `follows_encoder`: of a module after another one; `is_decode`: of token ids, one new for each
    sequence; `is_prompt`: of the ids before those that another function decodes; `drafted`: with so
    many proposed tokens, which are verified, made by `draft_calls` of another model; `has_cache`:
    of token ids that lie behind those of the call before, or with tensors that it made, which are
    the storages from `first_storage` to `last_storage`; `is_transposed`: of ids [tokens,
    sequences]; `is_product`: no call, but a product of data with what is trained, outside of
    modules.
    `owner` is the same for all of one loader, module or function; `tensor` for all calls with the
    same values, None where that is not known. `origin` is the call whose output the input is made
    of. Autograd's numbers of what the call computed begin with `first_sequence` and end before
    `last_sequence`; `backward` is the first backward pass that came to one of them.
    """

    source: BatchSource
    owner: object
    name: str
    line: str
    what: str
    shape: tuple[int, ...]
    samples: int | None = None
    tokens: int | None = None
    is_inference: bool = False
    is_function: bool = False
    follows_encoder: bool = False
    is_decode: bool = False
    is_prompt: bool = False
    drafted: int = 0
    draft_calls: int = 0
    has_cache: bool = False
    first_storage: int = 0
    last_storage: int = 0
    is_transposed: bool = False
    is_product: bool = False
    tensor: TensorIdentity | None = None
    origin: TapedInput | None = None
    first_sequence: int = 0
    last_sequence: int = 0
    backward: int | None = None

    def is_used_by(self, backward: int) -> None:
        """A backward pass came to what the call computed, and so to what its input is made of."""
        for call in (self, self.origin):
            if call is not None and call.backward is None:
                call.backward = backward


@dataclass(frozen=True, slots=True, eq=False)
class CallToken:
    """An operator of this name begins, or what autograd's engine runs; one object for each name."""

    name: str
    is_node: bool = False


#: What is written as operators are called: one begins; a number of autograd's, of the node that
#: began before it, from that of the op that follows, or of the last one in a node; (None) the
#: innermost ends.
CallEvent = CallToken | int | None


@dataclass(slots=True, eq=False)
class TapedCalls:
    """Operators begin and end here, after which these are `running`. No entry of a step: what they
    say together is the step's `operators`. The same object stands wherever a program does the same
    (`OperatorHistory`): `following` are those that came before the next entry, by what that does;
    `gaps` those ahead, so many entries on, before which operators are missing so far (None: which
    may be others the next time). One that `is_empty` need not be written."""

    events: tuple[CallEvent, ...]
    running: tuple[CallToken, ...]
    following: dict[Hashable, TapedCalls] = field(default_factory=dict, repr=False)
    gaps: Sequence[tuple[TapedCalls | None, int]] = ()
    is_gap: bool = False
    is_empty: bool = False


class PythonCall(NamedTuple):
    """A Python function runs, called at an instruction of the one around it."""

    name: str
    called_at: int


@dataclass(slots=True, eq=False)
class TapedFunctions:
    """These Python functions run before the next entry, from the outermost on. No entry of a step:
    they are among the step's `operators`."""

    functions: tuple[PythonCall, ...]


#: What is no entry of a step, but says what ran around its entries.
AROUND_ENTRIES = (TapedCalls, TapedFunctions)

#: One thing that happened.
SingleEntry = (
    TapedOp
    | TapedAlloc
    | TapedCalls
    | TapedFree
    | TapedFunctions
    | TapedInput
    | EmptyCache
    | EventRecord
    | EventWait
    | HostWork
    | Mark
    | Synchronize
)


@dataclass(frozen=True, eq=False)
class RepeatedCall:
    """What a call left on the tape that others repeat: ops, marks, allocations, and frees of all
    but its `outputs`, which are the positions of those allocations among the entries; `ordinals`
    among the allocations."""

    entries: tuple[SingleEntry, ...]
    outputs: tuple[int, ...]
    ordinals: tuple[int, ...]
    num_ops: int
    num_allocs: int

    @staticmethod
    def of(entries: Sequence[TapeEntry], outputs: Sequence[int]) -> RepeatedCall | None:
        """Of a call that left these entries, with storages of these numbers alive at its end, in
        that order; None where it did more: slept, waited but for a copy, or freed what others made.
        Operators are not repeated.
        """
        entries = [entry for entry in entries if not isinstance(entry, AROUND_ENTRIES)]
        allocated: dict[int, int] = {}
        freed: set[int] = set()
        for position, entry in enumerate(entries):
            if isinstance(entry, TapedAlloc):
                allocated[entry.number] = position
            elif isinstance(entry, TapedFree) and entry.number in allocated:
                freed.add(entry.number)
            elif not (isinstance(entry, (TapedOp, Mark)) or _is_cpu_work(entry) or _is_wait(entry)):
                return None
        if set(outputs) != allocated.keys() - freed:
            return None
        order = list(allocated)
        return RepeatedCall(
            tuple(cast("Sequence[SingleEntry]", entries)),
            tuple(allocated[number] for number in outputs),
            tuple(order.index(number) for number in outputs),
            _num_ops(entries),
            len(order),
        )


@dataclass(slots=True, eq=False)
class TapedCall:
    """A call that was not run since it repeats an earlier one; its outputs have these numbers. (All
    other storages are gone when it ends, so their numbers are free to be used again.)"""

    repeated: RepeatedCall
    numbers: tuple[int, ...]

    def expanded(self) -> list[SingleEntry]:
        """What the call would have left on the tape."""
        entries = list(self.repeated.entries)
        for position, number in zip(self.repeated.outputs, self.numbers, strict=True):
            entries[position] = replace(cast("TapedAlloc", entries[position]), number=number)
        return entries


TapeEntry = SingleEntry | TapedCall

#: Entries about memory: operators are not written before them.
_OF_MEMORY = (TapedAlloc, TapedFree, TapedInput)

#: Writes what operators did.
CallWriter = Callable[[Hashable, TapedOp | None], None]

#: Reads what is new on the tape while the program runs.
Follower = Callable[[Sequence[SingleEntry]], None]

#: What a captured CUDA graph launches again, with what enters it; the host's part happened once.
Launched = TapedOp | TapedInput | EventRecord | EventWait


class Listeners(Generic[P]):
    """The functions that are called at an event, in the order in which they subscribed.

    >>> waits, reasons = Listeners[[str]](), []
    >>> end = waits.subscribe(reasons.append)
    >>> waits("item")
    >>> end()
    >>> waits("item")
    >>> reasons
    ['item']
    """

    __slots__ = ("functions",)

    def __init__(self) -> None:
        self.functions: tuple[Callable[P, object], ...] = ()

    def subscribe(self, function: Callable[P, object]) -> Callable[[], None]:
        """Calls it at each event until the function that is returned is called."""
        if function not in self.functions:
            self.functions = (*self.functions, function)

        def unsubscribe() -> None:
            self.functions = tuple(known for known in self.functions if known != function)

        return unsubscribe

    def __bool__(self) -> bool:
        return bool(self.functions)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> None:
        for function in self.functions:
            function(*args, **kwargs)


class Tape:
    """What was recorded and belongs to no step yet.

    Followers read each entry once, at the latest before it is cut off. After `max_ops` ops without
    a cut the script is stopped.
    """

    def __init__(self, max_ops: int | None = None, stacks: CallStacks | None = None) -> None:
        #: Whether the program is listened to.
        self.is_open = False
        self.entries: list[TapeEntry] = []
        self.followers: list[Follower] = []
        #: Gives the program's lines, where they are wanted.
        self.stacks = stacks
        self.threads = ProgramThreads()
        #: For which entries that is written: from the first on, and before the second.
        self._calls_from = self._calls_to = 0
        self._cut_had_all_calls = False
        #: Writes what operators did before an entry that is not about memory, by what it does and,
        #: if it is an op on the GPU, the op; by None where a position may be the end of a step.
        self.before_entry: CallWriter | None = None
        #: Calls of compiled code that run, one in the other.
        self.num_compiled = 0
        self.gpu_ops = 0
        self.cpu_ops = 0
        #: How often entries were cut off.
        self.num_cuts = 0
        self._num_events = 0
        self._max_ops = max_ops
        self._stops_at = sys.maxsize if max_ops is None else max_ops
        self._num_read = 0
        self._marks: dict[tuple[str, str, str, int], tuple[Mark, Hashable]] = {}
        self._cpu_pending = 0
        self._cpu_pending_us = 0.0

    # -- writing ----------------------------------------------------------------------------------

    def add_op(self, op: TapedOp) -> None:
        """An op on the GPU; RunawayLoop where it is one too many."""
        if self._cpu_pending:
            self.flush()
        if self.before_entry is not None and (not op.thread or not is_elsewhere(op)):
            self.before_entry((op.signature.op, op.node), op)
        self.gpu_ops += 1
        self.entries.append(op)
        if self.gpu_ops > self._stops_at:
            self._stop_runaway()

    def add_call(self, call: TapedCall) -> None:
        """A call that repeats an earlier one."""
        self.flush()
        if self.before_entry is not None:
            self.before_entry(TapedCall.__name__, None)
        self.gpu_ops += call.repeated.num_ops
        self.entries.append(call)

    def add_cpu_op(self, duration_us: float, op: Hashable = None) -> None:
        """An op on the CPU; those in a row become one entry."""
        if self.before_entry is not None:
            self.before_entry(op, None)
        self.cpu_ops += 1
        self._cpu_pending += 1
        self._cpu_pending_us += duration_us

    def add(self, entry: TapeEntry, does: Hashable = None) -> None:
        """A mark, wait or event, while the program is listened to; what it `does`, if not what its
        type says."""
        if not self.is_open:
            return
        if self._cpu_pending:
            self.flush()
        kind = type(entry)
        if self.before_entry is not None and kind not in _OF_MEMORY and not is_elsewhere(entry):
            self.before_entry(does or kind.__name__, None)
        self.entries.append(entry)

    def mark(self, kind: MarkKind, name: str, detail: str = "", instance: int = 0) -> None:
        """A begin or end of a module, an annotation or a graph."""
        key = (kind, name, detail, instance)
        known = self._marks.get(key)
        if known is None:  # parts of a list do the same
            does = (kind, _NUMBERS.sub("#", name), detail)
            known = self._marks[key] = Mark(kind, name, detail, instance), does
        self.add(*known)
        if kind == "compiled_begin":
            self.num_compiled += 1
        elif kind == "compiled_end":
            self.num_compiled -= 1

    def synchronize(self, reason: str, stream: int | None = None, event: int | None = None) -> None:
        """The host waits here for the GPU."""
        stack = () if self.stacks is None else self.stacks.here()
        thread = self.threads.number()
        self.add(Synchronize(reason, call_site(), stream, event, stack, thread))

    def write_calls(self, writer: CallWriter | None) -> None:
        """Sets the function that writes operators; None stops it."""
        self.before_entry = writer
        if writer is not None:
            self._calls_from, self._calls_to = len(self.entries), sys.maxsize
        else:
            self._calls_to = min(self._calls_to, len(self.entries))

    def has_all_calls(self, upto: int | None = None) -> bool:
        """Whether operators were written for the first `upto` entries, or all."""
        upto = len(self.entries) if upto is None else upto
        return self._calls_from == 0 and upto <= self._calls_to

    def new_event(self) -> int:
        """The number of an event; they count through all of the program."""
        self._num_events += 1
        return self._num_events

    def record_event(self, stream: int) -> int:
        """An event behind all that the stream holds; returns its number."""
        event = self.new_event()
        self.add(EventRecord(event, stream, self.threads.number()))
        return event

    def wait_for_event(self, event: int, stream: int) -> None:
        """The stream goes on only after the event."""
        self.add(EventWait(event, stream, self.threads.number()))

    def flush(self) -> None:
        """Appends what is pending; called before the entries are read."""
        if self._cpu_pending:
            if self.before_entry is not None:
                self.before_entry(CPU_WORK, None)
            work = HostWork(CPU_WORK, round(self._cpu_pending_us, 3), self._cpu_pending)
            self._cpu_pending, self._cpu_pending_us = 0, 0.0
            self.entries.append(work)

    def _stop_runaway(self) -> None:
        self._stops_at = self.gpu_ops + _OPS_TO_CLEAN_UP
        raise RunawayLoop(
            f"stopped after {self.gpu_ops} ops at {call_site()}: a loop there may wait for a value "
            "that only a GPU can compute. Raise --max-ops, or let the loop end by a count."
        )

    # -- reading and cutting ----------------------------------------------------------------------

    def position(self) -> int:
        """The position after all that happened so far."""
        self.flush()
        if self.before_entry is not None:
            self.before_entry(None, None)
        return len(self.entries)

    def drain(self) -> None:
        """Calls the followers of the running program with the new entries."""
        self.flush()
        if self._num_read < len(self.entries):
            fresh = _expanded(self.entries[self._num_read :])
            self._num_read = len(self.entries)
            for follower in self.followers:
                follower(fresh)

    def cut(self, upto: int | None = None) -> list[TapeEntry]:
        """Takes the first `upto` entries off, or all; ops are counted again up to `max_ops`."""
        self.drain()
        upto = self.position() if upto is None else upto
        self._cut_had_all_calls = self.has_all_calls(upto)
        taken = self.entries[:upto]
        del self.entries[:upto]
        self._move_calls(-upto)
        self.num_cuts += 1
        self._num_read = max(0, self._num_read - upto)
        if self._max_ops is not None:
            self._stops_at = self.gpu_ops + self._max_ops
        return taken

    def _move_calls(self, by: int) -> None:
        self._calls_from = max(0, self._calls_from + by)
        if self._calls_to < sys.maxsize:
            self._calls_to = max(0, self._calls_to + by)

    def put_back(self, entries: Sequence[TapeEntry]) -> None:
        """Puts the entries that were cut off last, and so are read, back in front of the others."""
        self.entries[:0] = entries
        self._move_calls(len(entries))
        if self._cut_had_all_calls:
            self._calls_from = 0
        self._num_read += len(entries)

    # -- CUDA graphs ------------------------------------------------------------------------------

    def take_launched(self, start: int) -> list[Launched]:
        """Removes and returns the ops and events since `start`: they are captured, not launched.
        Allocations stay."""
        recorded = self.entries[start:]
        captured = [entry for entry in recorded if isinstance(entry, Launched)]
        self.entries[start:] = [entry for entry in recorded if not isinstance(entry, Launched)]
        self._num_read = min(self._num_read, len(self.entries))
        self.gpu_ops -= _num_ops(captured)
        return captured

    def launch(self, captured: Sequence[Launched]) -> None:
        """Appends ops and events as a captured graph launches them."""
        self.entries.extend(captured)
        self.gpu_ops += _num_ops(captured)


def _is_wait(entry: TapeEntry) -> bool:
    """Whether the host waits for a copy; what it then reads is watched apart."""
    return isinstance(entry, Synchronize) and entry.reason == "copy"


def _is_cpu_work(entry: TapeEntry) -> bool:
    return isinstance(entry, HostWork) and entry.name == CPU_WORK


def _expanded(entries: list[TapeEntry]) -> list[SingleEntry]:
    if TapedCall not in set(map(type, entries)):  # of tens of thousands mostly none
        return cast("list[SingleEntry]", entries)
    found: list[SingleEntry] = []
    for entry in entries:
        if isinstance(entry, TapedCall):
            found += entry.expanded()
        else:
            found.append(entry)
    return found


def _num_ops(entries: Sequence[TapeEntry]) -> int:
    return sum(type(entry) is TapedOp for entry in entries)
