"""What was recorded: a program as steps of entries; a value that saves, loads and folds."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate, islice
from math import prod
from operator import mul
from typing import Any, Literal, NamedTuple, TypeVar, Union

from neusight.predictors.kernel import DTYPE_BYTES

#: The name in `Recording.options` of which of many ranks was recorded, in words.
RANK_OPTION = "rank"
#: The name there of the GPUs, among those that the program sees, on which collectives ran.
DEVICES_OPTION = "collective_devices"
#: The name there that is set where they ran before the program made any GPU the current one.
NO_CHOICE_OPTION = "no_device_chosen"
#: The name there of the streams of high priority, by number, and of the one that is set where
#: kernels of all streams start in the order of their launches (CUDA_DEVICE_MAX_CONNECTIONS=1).
URGENT_STREAMS_OPTION = "urgent_streams"
IN_ORDER_OPTION = "starts_in_order"
#: The name in `Recording.options` of what was taken for a step, in words.
STEP_OPTION = "step_is"
#: The name there that is set where it is not known what memory the program takes.
MEMORY_OPTION = "memory_is_unknown"
#: The name there of the modules that were compiled though the program does not ask for it.
TRIAL_OPTION = "compiled_on_trial"

_Kind = TypeVar("_Kind")

Phase = Literal["forward", "backward", "optimizer"]
StepKind = Literal["setup", "train", "eval"]
StorageKind = Literal[
    "activation", "parameter", "gradient", "optimizer_state", "buffer", "workspace"
]
MarkKind = Literal[
    "module_begin", "module_end", "annotation_begin", "annotation_end", "graph_begin", "graph_end",
    "compiled_begin", "compiled_end",
]  # fmt: skip


class TensorSpec(NamedTuple):
    """A tensor without data. `dtype` is torch's short name, `device` "cuda" or "cpu"; memory of the
    CPU may be pinned, so that the GPU copies it without the CPU. An argument is repeated where it
    is the very tensor of an argument before it, as in `x * x`."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: str
    device: str = "cuda"
    is_pinned: bool = False
    is_repeated: bool = False

    @property
    def numel(self) -> int:
        """Number of elements."""
        return prod(self.shape)

    @property
    def num_bytes(self) -> int:
        """Bytes of the elements that a kernel touches: an expanded dimension counts once, a
        repeated argument, which is read with the other, not at all."""
        if self.is_repeated:
            return 0
        sizes = zip(self.shape, self.stride, strict=True)
        count = prod(size for size, stride in sizes if stride != 0 or size == 0)
        return int(count * DTYPE_BYTES.get(self.dtype, 4))

    @property
    def is_contiguous(self) -> bool:
        """Row-major without gaps."""
        return self._is_dense_in(range(len(self.shape) - 1, -1, -1))

    @property
    def is_channels_last(self) -> bool:
        """NHWC or NDHWC order (and not also row-major, as for one channel)."""
        return self.is_dense_channels_last and not self.is_contiguous

    @property
    def is_dense_channels_last(self) -> bool:
        """In that order, also where the order is both (as for a 1x1 weight)."""
        rank = len(self.shape)
        return rank in (4, 5) and self._is_dense_in((1, *range(rank - 1, 1, -1), 0))

    def _is_dense_in(self, order: range | tuple[int, ...]) -> bool:
        expected = 1
        for dim in order:
            if self.shape[dim] != 1 and self.stride[dim] != expected:
                return False
            expected *= self.shape[dim]
        return True


Argument = Union[TensorSpec, int, float, bool, str, None, "tuple[Argument, ...]"]


@dataclass(frozen=True)
class OpSignature:
    """An aten op with the specs of its inputs and outputs; one object is shared by all equal calls.

    `arguments` holds every parameter of the schema in order, defaults filled in, as (name, value).
    Dtypes, devices, layouts and memory formats are their text ("torch.float16" is "float16").
    """

    op: str
    overload: str
    arguments: tuple[tuple[str, Argument], ...]
    outputs: tuple[Argument, ...]

    @cached_property
    def by_name(self) -> dict[str, Argument]:
        """Arguments by parameter name."""
        return dict(self.arguments)

    def tensor(self, name: str) -> TensorSpec:
        """The tensor argument of that name; KeyError or TypeError if there is none."""
        value = self.by_name[name]
        if not isinstance(value, TensorSpec):
            raise TypeError(f"{self.op}: argument {name} is not a tensor but {value!r}")
        return value

    def optional_tensor(self, name: str) -> TensorSpec | None:
        """The tensor argument of that name, or None where it is absent."""
        value = self.by_name.get(name)
        return value if isinstance(value, TensorSpec) else None

    @cached_property
    def input_tensors(self) -> tuple[TensorSpec, ...]:
        """Every tensor among the arguments, lists flattened, in order."""
        return tuple(flattened([value for _, value in self.arguments], TensorSpec))

    @cached_property
    def output_tensors(self) -> tuple[TensorSpec, ...]:
        """Every tensor among the outputs, lists flattened, in order."""
        return tuple(flattened(self.outputs, TensorSpec))


def contiguous_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Those of a tensor without gaps in the order of its dimensions.

    >>> contiguous_strides((2, 3, 4))
    (12, 4, 1)
    """
    steps = accumulate((max(1, size) for size in reversed(shape)), mul, initial=1)
    return tuple(islice(steps, len(shape)))[::-1]


def flattened(value: object, kind: type[_Kind]) -> list[_Kind]:
    """All of one kind in a value, lists and tuples flattened, in order.

    >>> flattened((1, [2, "three"], None, (4,)), int)
    [1, 2, 4]
    """
    if isinstance(value, kind):
        return [value]
    if isinstance(value, (list, tuple)):
        return [found for item in value for found in flattened(item, kind)]
    return []


#: The release of torch where none is known: as new as can be.
NEWEST_TORCH = (99, 0)


def release_of(version: str) -> tuple[int, int]:
    """(major, minor) of a version of torch; where it is not known, as new as can be.

    >>> release_of("2.13.0+cpu")
    (2, 13)
    """
    found = re.match(r"(\d+)\.(\d+)", version)
    return (int(found[1]), int(found[2])) if found else NEWEST_TORCH


@dataclass(frozen=True)
class MathMode:
    """The switches of torch that decide which kernels run, and the release whose kernels these
    are. `miopen`: MIOpen runs convolutions, not cuDNN; `half_dtypes`: what matrix
    units multiply in 16 bits. The GPU that prices says both (`math_mode_on`)."""

    matmul_tf32: bool = False
    cudnn_tf32: bool = True
    cudnn_benchmark: bool = False
    deterministic: bool = False
    cudnn_enabled: bool = True
    torch: tuple[int, int] = NEWEST_TORCH
    miopen: bool = False
    half_dtypes: tuple[str, ...] = ("float16", "bfloat16")


@dataclass(frozen=True, slots=True)
class OpCall:
    """One dispatched op. `module` is the dotted path that called it ("" outside any module);
    `node` the autograd node that runs it in backward ("" in forward); `sequence_nr` the autograd
    sequence number relative to the start of its step, or None; `stream` 0 is the default stream.
    `stack` holds the program's lines that led here, innermost first (in backward, to the forward
    op), where they were recorded; `thread` is the program's thread, 0 its main one. Calls that
    differ only in these are equal."""

    signature: OpSignature
    math: MathMode
    module: str = ""
    phase: Phase = "forward"
    stream: int = 0
    sequence_nr: int | None = None
    node: str = ""
    stack: tuple[str, ...] = field(default=(), compare=False)
    thread: int = field(default=0, compare=False)


class StorageRef(NamedTuple):
    """The `ordinal`-th storage allocated in the step `age` steps before the one that names it."""

    age: int
    ordinal: int


@dataclass(frozen=True, slots=True)
class Alloc:
    """A storage of `num_bytes` on the GPU was allocated; its ordinal counts up within the step.
    A `pool` other than 0 is one that CUDA graphs have for themselves."""

    ordinal: int
    num_bytes: int
    module: str = ""
    op: str = ""
    phase: Phase = "forward"
    kind: StorageKind = "activation"
    stack: tuple[str, ...] = field(default=(), compare=False)
    pool: int = 0


@dataclass(frozen=True, slots=True)
class Free:
    """The storage was freed."""

    storage: StorageRef


@dataclass(frozen=True, slots=True)
class EmptyCache:
    """torch.cuda.empty_cache was called."""


@dataclass(frozen=True, slots=True)
class Mark:
    """A begin or end of something with a name on the host lane; begins and ends nest.

    kind "module": name is the dotted path, `detail` the class, `instance` says which of the modules
    of that path, where several roots are of one class (marks that differ only in that are equal);
    kind "annotation": record_function, Optimizer.step and the like; kind "graph": a captured CUDA
    graph is launched at once, the ops between are those it was captured from, `detail` how many
    tensors torch's trees look after, if these launch it; kind "compiled": code of torch.compile
    runs, of a name in `COMPILED_CODE`, `detail` says how many inputs it has and, after a space,
    which `CompiledFrame` it is of.
    """

    kind: MarkKind
    name: str
    detail: str = ""
    instance: int = field(default=0, compare=False)


#: What compiled code does: inference, a forward with gradients, its backward (torch's own names).
COMPILED_CODE = ("Torch-Compiled Region", "CompiledFunction", "CompiledFunctionBackward")

#: Begins the names of the marks around an optimizer's step, such as "Optimizer.step#AdamW.step"
#: (torch.optim.Optimizer.profile_hook_step).
_OPTIMIZER_STEP = "Optimizer.step#"


def stepped_optimizer(mark_name: str) -> str:
    """The class of the optimizer whose step the mark of that name is about, "" for other marks.

    >>> stepped_optimizer("Optimizer.step#AdamW.step")
    'AdamW'
    """
    if not mark_name.startswith(_OPTIMIZER_STEP):
        return ""
    return mark_name.removeprefix(_OPTIMIZER_STEP).partition(".")[0]


@dataclass(frozen=True, slots=True)
class Synchronize:
    """The host waited: for one stream (None: all of the device) or one event, because of `reason`
    ("item", "copy", "synchronize", "event", "nonzero", ...) at `source` ("file.py:12"); on which
    `thread`, as for an `OpCall`."""

    reason: str
    source: str = ""
    stream: int | None = None
    event: int | None = None
    stack: tuple[str, ...] = field(default=(), compare=False)
    thread: int = field(default=0, compare=False)


#: Streams of NCCL's communicators count from here: above those that a program makes itself.
FIRST_COMMUNICATION_STREAM = 100


@dataclass(frozen=True, slots=True)
class EventRecord:
    """An event was recorded on a stream. `event` counts up from 1 within the step; `thread` as for
    an `OpCall`."""

    event: int
    stream: int
    thread: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class EventWait:
    """A stream was made to wait for an event; one below 1 was recorded in an earlier step: 0 is the
    last that the step before recorded. `thread` as for an `OpCall`."""

    event: int
    stream: int
    thread: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class HostWork:
    """The host itself was busy: CPU ops (estimated), or `time.sleep`."""

    name: str
    duration_us: float
    count: int = 1


@dataclass(frozen=True, slots=True)
class ModelInput:
    """A model is about to be called without gradients, with token ids [`samples`, `length`] or with
    something else (`length` 0; `samples` 0 where they are not known). `is_decode`: one new token
    for each sequence, after those that entered before. `drafted`: so many of the tokens are
    proposals that it verifies (speculative decoding), made by the `draft_calls` calls of another
    model before this one; 0 where they were found otherwise. `has_cache`: a prompt, or the next
    part of one, after the tokens that entered with the call before."""

    samples: int
    length: int
    is_decode: bool = False
    drafted: int = 0
    draft_calls: int = 0
    has_cache: bool = False


Entry = (
    Alloc
    | EmptyCache
    | EventRecord
    | EventWait
    | Free
    | HostWork
    | Mark
    | OpCall
    | Synchronize
    | ModelInput
)


#: How a batch is known: the user states it, a loader yields it, or it is the input of the outermost
#: module or compiled function; "" where it is not known.
BatchSource = Literal["", "stated", "loader", "input"]


@dataclass(frozen=True)
class Batch:
    """Samples and tokens of one step (None: not known), the sentence that says how known, and
    its source."""

    samples: int | None = None
    tokens: int | None = None
    known_by: str = ""
    source: BatchSource = ""

    def __bool__(self) -> bool:
        return self.samples is not None or self.tokens is not None

    def per_second(self, latency_us: float) -> tuple[float, str] | None:
        """(rate, "tokens" or "samples"), tokens where both are known; None where neither is.

        >>> Batch(samples=8, tokens=8192).per_second(4096.0)
        (2000000.0, 'tokens')
        """
        count, unit = (self.samples, "samples") if self.tokens is None else (self.tokens, "tokens")
        return None if count is None or latency_us <= 0 else (count / latency_us * 1e6, unit)

    def times(self, count: int) -> Batch:
        """What so many ranks consume together.

        >>> Batch(samples=8, tokens=8192).times(4)
        Batch(samples=32, tokens=32768, known_by='', source='')
        """
        return replace(
            self,
            samples=None if self.samples is None else self.samples * count,
            tokens=None if self.tokens is None else self.tokens * count,
        )


#: The name of an operator that says of the op after it that no program on a GPU calls it.
UNSEEN = ""
#: The name of one that says of the op after it that it is what the operator around it does itself,
#: after it called others.
WHOLE = "="


class Operator(NamedTuple):
    """An operator that torch's dispatcher called around entries of a step, or between them: it
    begins before the entry `first` and ends before the entry `last`. `depth` operators
    enclose it; they stand before it in the step. `is_node`: what autograd's engine runs in
    backward; a node itself has its `sequence_nr`, relative to the start of the step.
    `is_function`: a Python function of the program's main thread, where stacks are recorded."""

    name: str
    first: int
    last: int
    depth: int = 0
    is_node: bool = False
    sequence_nr: int | None = None
    is_function: bool = False


@dataclass(frozen=True)
class Step:
    """`count` equal steps in a row, kept once, and the batch that entered each. `operators` are in
    the order in which they began; none where they were not followed."""

    kind: StepKind
    entries: tuple[Entry, ...]
    count: int = 1
    batch: Batch = field(default_factory=Batch)
    operators: Sequence[Operator] = field(default=(), compare=False, repr=False)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "operators": tuple(self.operators)}  # it may be of another class


class GraphBreak(NamedTuple):
    """Where Dynamo could not go on, and why, in its own words. `line` is the program's innermost
    one there, `frame_line` that of the function it compiled: code that goes on begins there."""

    line: str
    frame_line: str
    reason: str


#: Begins the name of the code that Dynamo makes of a function's rest after a break; the line of the
#: break ends it (torch/_dynamo/resume_execution.py).
_RESUMED = "torch_dynamo_resume_in_"


@dataclass(frozen=True)
class CompiledFrame:
    """A function as Dynamo compiled it once. `frame_id` is torch's name for it ("0/1": the first
    function, compiled a second time), `function` and `line` say which it is, `num_ops` how many ops
    its graph has: none where it runs as it is.

    `recompiled` is torch's reason why what was compiled before did not do, "" for the first time,
    and `recompiled_at` the program's line that the reason is about.
    """

    frame_id: str
    function: str
    line: str
    num_ops: int
    recompiled: str = ""
    recompiled_at: str = ""
    breaks: tuple[GraphBreak, ...] = ()

    @property
    def resumes_at(self) -> str:
        """The line of the break after which it goes on; "" where it is a function's beginning.

        >>> CompiledFrame("1/0", "torch_dynamo_resume_in_step_at_12", "net.py:12", 3).resumes_at
        'net.py:12'
        """
        if not self.function.startswith(_RESUMED):
            return ""
        return f"{self.line.rpartition(':')[0]}:{self.function.rpartition('_at_')[2]}"


@dataclass(frozen=True)
class Recording:
    """All that a program did on the GPU, and every question it asked of it.

    `questions` maps what the script or PyTorch asked of the target ("get_device_capability(0)")
    to the answer it got; a recording can be priced for another GPU if the answers are the same.
    `made` holds the program's lines that made each module, by its path, where they were recorded.
    `compiled` are the functions that torch.compile compiled, in that order. It is what rank `rank`
    of `world_size` processes did, `gpus_per_node` of them on each host.
    """

    steps: tuple[Step, ...]
    gpu: str
    torch_version: str
    queries: tuple[tuple[str, str], ...] = ()
    warnings: tuple[str, ...] = ()
    script: str = ""
    world_size: int = 1
    rank: int = 0
    gpus_per_node: int = 1
    options: dict[str, str] = field(default_factory=dict)
    made: dict[str, tuple[str, ...]] = field(default_factory=dict, compare=False)
    compiled: tuple[CompiledFrame, ...] = ()

    @property
    def num_ops(self) -> int:
        """Ops dispatched, equal steps counted each."""
        return sum(
            step.count * sum(isinstance(entry, OpCall) for entry in step.entries)
            for step in self.steps
        )

    def as_torch(self, version: str) -> Recording:
        """The same ops with the kernels that another version of torch has for them."""
        torch = release_of(version)
        modes: dict[MathMode, MathMode] = {}

        def changed(entry: Entry) -> Entry:
            if not isinstance(entry, OpCall):
                return entry
            mode = modes.setdefault(entry.math, replace(entry.math, torch=torch))
            return replace(entry, math=mode)

        steps = tuple(
            replace(step, entries=tuple(map(changed, step.entries))) for step in self.steps
        )
        return replace(self, steps=steps, torch_version=version)


@dataclass(frozen=True)
class Replay:
    """One run through a step's entries. `index` is the step's number in the program; `represents`
    how many equal steps this run stands for; `storage_ids` gives each `StorageRef` of the step its
    identity within the whole replay (None: allocated in a step that is folded away).
    `home_of_age` holds the run of each age that the step's references have."""

    step: Step
    index: int
    represents: int
    home_of_age: Mapping[int, int]

    def storage_id(self, ref: StorageRef) -> tuple[int, int] | None:
        """The identity of a storage: the number of the replayed step and the ordinal in it."""
        home = self.home_of_age.get(ref.age, -1)
        return (home, ref.ordinal) if home >= 0 else None

    def alloc_id(self, alloc: Alloc) -> tuple[int, int]:
        """The identity of a storage allocated in this run."""
        return (self.home_of_age[0], alloc.ordinal)


#: Runs through a folded step before its steady state is taken as reached: the first differs from
#: the second (it frees what the step before left), the third confirms the second.
STEADY_REPLAYS = 3


def replays(recording: Recording, also: Collection[int] = ()) -> Iterator[Replay]:
    """Unfolds a recording just as far as schedules and memory need: each folded step a few times,
    and the steps whose numbers are in `also`.

    The last run of a folded step represents all that are left out, which are equal to it.
    """
    blocks: list[_Block] = []
    index = 0
    for step in recording.steps:
        ages = {0, *(entry.storage.age for entry in step.entries if isinstance(entry, Free))}
        oldest = max(ages)
        # Ages that reach far beyond the fold are storages of a step before it.
        reach = oldest if oldest < step.count else 0
        end = index + step.count
        early = min(step.count, STEADY_REPLAYS + reach) - 1
        numbers = [*range(index, index + early), end - 1]
        if also:
            numbers[early:early] = sorted(n for n in also if index + early <= n < end - 1)
        block = _Block(index, step.count, [])
        blocks.append(block)
        for number in numbers:
            block.runs.append(number)
            yield Replay(
                step=step,
                index=number,
                represents=step.count - len(numbers) + 1 if number == end - 1 else 1,
                home_of_age={age: _home(number - age, blocks) for age in ages},
            )
        index = end


class _Block(NamedTuple):
    """A folded step: the number of its first, how many there are, and which were run through."""

    first: int
    num_steps: int
    runs: list[int]


def _home(number: int, blocks: list[_Block]) -> int:
    """The run that holds the storages of the program's step of that number; -1 if none does.

    A step that is folded away is stood for by the run as far from the end of its fold.
    """
    if number < 0:
        return -1
    block = blocks[bisect_right(blocks, number, key=lambda block: block.first) - 1]
    if number in block.runs:
        return number
    from_end = block.first + block.num_steps - 1 - number
    return block.runs[-1 - from_end] if from_end < len(block.runs) else -1
