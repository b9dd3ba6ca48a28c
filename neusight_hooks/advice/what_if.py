"""A recorded step with one thing changed, priced again: entries in, entries out."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import NamedTuple, Protocol, TypeVar

from neusight.advice.optimizers import is_of_optimizer, with_optimizer_steps
from neusight.predictors.clusters.topology import Topology
from neusight.predictors.gpu import GPU
from neusight.predictors.kernel import COPY_ENGINE_KERNELS, Kernel, KernelClass
from neusight.predictors.predictor import Predictor
from neusight.recording.recording import (
    Alloc,
    Argument,
    Entry,
    Free,
    HostWork,
    Mark,
    MathMode,
    OpCall,
    OpSignature,
    Recording,
    Synchronize,
    TensorSpec,
)
from neusight.timeline.compiled_calls import frame_of
from neusight.timeline.host import HostProfile
from neusight.timeline.pricing import Priced, Pricer
from neusight.timeline.scheduler import Scheduler
from neusight.timeline.spans import Timeline
from neusight.timeline.steady import steady_step_of

Entries = tuple[Entry, ...]

#: Steps that are scheduled to reach the steady one: the first differs, the rest repeat.
_REPEATS = 4
_READS_A_VALUE = ("aten::_local_scalar_dense", "aten::item")
_ROW_CLASSES = (KernelClass.NORMALIZATION, KernelClass.SOFTMAX, KernelClass.REDUCTION)
_JOINABLE = (KernelClass.COPY, KernelClass.ELEMENTWISE, *_ROW_CLASSES)
MATRIX_CLASSES = (KernelClass.GEMM, KernelClass.CONVOLUTION, KernelClass.ATTENTION)


class Scheduled(Protocol):
    """A program placed in time, and what it was placed with: a forecast is one."""

    @property
    def recording(self) -> Recording:
        """What was recorded of it."""

    @property
    def timeline(self) -> Timeline:
        """Every op and kernel."""

    @property
    def gpu(self) -> GPU:
        """Where it runs."""

    @property
    def predictor(self) -> Predictor:
        """Who priced its kernels."""

    @property
    def topology(self) -> Topology | None:
        """The system that the GPU is in, where it is stated."""

    @property
    def host(self) -> HostProfile:
        """What its host costs."""


class WhatIf:
    """The steady step of a forecast, scheduled again with changed entries on the same GPU and host,
    its kernels priced by the same predictor."""

    def __init__(self, forecast: Scheduled) -> None:
        step = steady_step_of(forecast.timeline)
        self.entries: Entries = () if step is None else step.replay.step.entries
        self._forecast = forecast
        self._pricer = Pricer(forecast.gpu, forecast.predictor, forecast.topology)
        self._own: dict[int, Priced] = {}
        self._keep: list[OpCall] = []
        self.latency_us = self.latency_of(self.entries)

    def kernels_of(self, call: OpCall) -> Priced:
        """The kernels that the call launches, priced."""
        own = self._own.get(id(call.signature))
        return self._pricer(call) if own is None else own

    def launching(self, call: OpCall, kernels: Sequence[Kernel]) -> OpCall:
        """A call in place of others that launches these kernels, whatever its op is."""
        stub = replace(call, signature=replace(call.signature))
        estimates = self._forecast.predictor.predict(list(kernels), self._forecast.gpu)
        self._own[id(stub.signature)] = tuple(zip(kernels, estimates, strict=True))
        self._keep.append(stub)  # identities must not be used again
        return stub

    def latency_of(self, entries: Entries) -> float:
        """Microseconds that a loop of such steps takes for each."""
        if not entries:
            return 0.0
        scheduler = Scheduler(self.kernels_of, self._forecast.host)
        done_ns = latency_ns = 0
        for _ in range(_REPEATS):
            scheduler.feed(entries)
            done_ns, latency_ns = scheduler.device_ns, scheduler.device_ns - done_ns
            scheduler.cut()
        return latency_ns / 1000


# -- the host --------------------------------------------------------------------------------------


def without_waits(entries: Entries) -> Entries:
    """The host never waits for the GPU; what it copied is copied all the same."""
    return tuple(entry for entry in entries if not isinstance(entry, Synchronize))


def without_break(entries: Entries, line: str, resumed: Collection[str]) -> Entries:
    """Compiled code goes on at a line where it broke off: the host neither waits there nor calls
    what goes on after it, of torch's names `resumed`. Its kernels stay: what fusion across the line
    would save is not known."""
    place = line.rpartition("/")[2]
    return tuple(
        entry
        for entry in entries
        if not (isinstance(entry, Synchronize) and entry.source == place)
        and not (
            isinstance(entry, Mark)
            and entry.kind.startswith("compiled")
            and frame_of(entry) in resumed
        )
    )


def as_cuda_graphs(entries: Entries) -> Entries:
    """Each stretch of ops without a wait, a copy from or to the host or work on the CPU becomes one
    graph launch; the CPU's own work in the optimizer goes (capturable=True). Module and annotation
    marks go, for no Python runs."""
    found: list[Entry] = []
    stretch: list[Entry] = []

    def end_stretch() -> None:
        if any(isinstance(entry, OpCall) for entry in stretch):
            name = "what if"
            found.extend((Mark("graph_begin", name), *stretch, Mark("graph_end", name)))
        else:
            found.extend(stretch)
        stretch.clear()

    for entry, in_optimizer in with_optimizer_steps(entries):
        if isinstance(entry, Mark):
            continue
        if isinstance(entry, HostWork) and in_optimizer:
            continue
        if _ends_a_graph(entry):
            end_stretch()
            found.append(entry)
        else:
            stretch.append(entry)
    end_stretch()
    return tuple(found)


def _ends_a_graph(entry: Entry) -> bool:
    if isinstance(entry, OpCall):
        if entry.signature.op in _READS_A_VALUE:
            return True
        specs = (*entry.signature.input_tensors, *entry.signature.output_tensors)
        return len({spec.device for spec in specs if spec.shape}) > 1
    return isinstance(entry, (Synchronize, HostWork))


# -- fewer kernels ---------------------------------------------------------------------------------


class _Link(NamedTuple):
    """A call in a chain of calls that become one kernel: where it stands, its kernels, and which of
    them writes its result; the others stay beside."""

    position: int
    call: OpCall
    kernels: tuple[Kernel, ...]
    main: int

    @property
    def kernel(self) -> Kernel:
        return self.kernels[self.main]


def compiled(what_if: WhatIf, entries: Entries) -> Entries:
    """As torch.compile would run it, at least: between products, convolutions and other kernels
    that stay, calls that read what another wrote, over equally many elements, become one kernel:
    pointwise ones and casts, with one norm, softmax or sum among them. It reads what the first
    reads and what the others read besides its result, and writes what is still needed after it.
    Views, modules and autograd nodes cost the host nothing. The optimizer stays as it is."""
    found: list[Entry] = []
    chains: list[list[_Link]] = []
    short_lived = _short_lived(what_if, entries)

    def end_chains() -> None:
        found.extend(_joined(what_if, chain, short_lived) for chain in chains)
        chains.clear()

    for position, (entry, in_optimizer) in enumerate(with_optimizer_steps(entries)):
        if not isinstance(entry, OpCall) or in_optimizer:
            if isinstance(entry, (OpCall, Synchronize, HostWork)) or is_of_optimizer(entry):
                end_chains()
            if not isinstance(entry, Mark) or in_optimizer or is_of_optimizer(entry):
                found.append(entry)
            continue
        priced = what_if.kernels_of(entry)
        if not priced:
            continue
        call = replace(entry, node="") if entry.node else entry
        link = _link(position, call, tuple(kernel for kernel, _ in priced))
        if link is None:
            end_chains()
            found.append(call)
            continue
        chain = next((chain for chain in chains if _continues(chain, link)), None)
        if chain is None:
            chains.append([link])
        else:
            chain.append(link)
    end_chains()
    return tuple(found)


def _link(position: int, call: OpCall, kernels: tuple[Kernel, ...]) -> _Link | None:
    """The call as part of a chain; None where the compiler does not write all its kernels itself,
    and where nothing of it is a tensor of the GPU's own."""
    are_joinable = all(
        kernel.kernel_class in _JOINABLE and kernel.name not in COPY_ENGINE_KERNELS
        for kernel in kernels
    )
    if not are_joinable or not call.signature.output_tensors:
        return None
    main = max(range(len(kernels)), key=lambda index: kernels[index].bytes_written)
    return _Link(position, call, kernels, main)


def _continues(chain: Sequence[_Link], link: _Link) -> bool:
    """Whether the call reads what the last one wrote, as many elements of the same dtype, and they
    can be one kernel."""
    last = chain[-1]
    result = last.call.signature.output_tensors[0]
    by_row = [item.kernel.kernel_class in _ROW_CLASSES for item in (link, *chain)]
    if by_row[0] and any(by_row[1:]):
        return False
    return last.call.stream == link.call.stream and any(
        spec.numel == result.numel and spec.dtype == result.dtype
        for spec in link.call.signature.input_tensors
    )


def _joined(what_if: WhatIf, chain: Sequence[_Link], short_lived: set[int]) -> OpCall:
    """One call that launches what the chain would."""
    first, *others = chain
    if not others:
        return first.call
    beside = [
        kernel for link in chain for index, kernel in enumerate(link.kernels) if index != link.main
    ]
    return what_if.launching(first.call, [*beside, _fused(chain, short_lived)])


def _short_lived(what_if: WhatIf, entries: Entries) -> set[int]:
    """Positions of calls whose result is freed before two more calls launch kernels: what only the
    next kernel reads, so that a fused one need not write it."""
    found: set[int] = set()
    maker: dict[int, int] = {}  # ordinal of a storage of this step -> position of its call
    before: list[Alloc] = []
    recent: list[int] = []
    last: tuple[int, OpCall] | None = None
    for position, entry in enumerate(entries):
        if isinstance(entry, Alloc):
            if last is not None and last[1].signature.op == entry.op:
                maker[entry.ordinal] = last[0]
            else:
                before.append(entry)
        elif isinstance(entry, OpCall):
            maker |= {item.ordinal: position for item in before if item.op == entry.signature.op}
            before.clear()
            last = position, entry
            if what_if.kernels_of(entry):
                recent = [*recent[-1:], position]
        elif isinstance(entry, Free) and entry.storage.age == 0:
            made_at = maker.get(entry.storage.ordinal)
            if made_at is not None and made_at in recent:
                found.add(made_at)
    return found


def _fused(chain: Sequence[_Link], short_lived: set[int]) -> Kernel:
    kernels = [link.kernel for link in chain]
    last = kernels[-1]
    read, written = kernels[0].bytes_read, last.bytes_written
    for link, after in zip(chain, kernels[1:], strict=False):
        read += max(0, after.bytes_read - link.kernel.bytes_written)
        written += 0 if link.position in short_lived else link.kernel.bytes_written
    flops = sum(kernel.flops for kernel in kernels)
    by_row = next((kernel for kernel in kernels if kernel.kernel_class in _ROW_CLASSES), None)
    if by_row is not None:
        return replace(by_row, bytes_read=read, bytes_written=written, flops=flops)
    return Kernel.rows(
        KernelClass.ELEMENTWISE,
        "fused",
        1,
        chain[-1].call.signature.output_tensors[0].numel,
        dtype=kernels[0].dtype,
        out_dtype=last.out_dtype,
        bytes_read=read,
        bytes_written=written,
        flops=flops,
    )


# -- other shapes and types ------------------------------------------------------------------------

TensorChange = Callable[[TensorSpec], TensorSpec]


_T = TypeVar("_T")


def _once(change: Callable[[_T], _T]) -> Callable[[_T], _T]:
    """The change made once of each object, so that calls that share it are priced once."""
    known: dict[int, tuple[_T, _T]] = {}

    def changed(item: _T) -> _T:
        if id(item) not in known:
            known[id(item)] = item, change(item)
        return known[id(item)][1]

    return changed


def _with_signatures(entries: Entries, change: Callable[[OpSignature], OpSignature]) -> Entries:
    """The entries with each op's signature changed."""
    signatures = _once(change)
    return tuple(
        replace(entry, signature=signatures(entry.signature))
        if isinstance(entry, OpCall)
        else entry
        for entry in entries
    )


def _changed(value: Argument, change: TensorChange) -> Argument:
    if isinstance(value, TensorSpec):
        return change(value)
    if isinstance(value, tuple):
        return tuple(_changed(item, change) for item in value)
    return value


def _with_tensors(signature: OpSignature, change: TensorChange) -> OpSignature:
    return replace(
        signature,
        arguments=tuple((name, _changed(value, change)) for name, value in signature.arguments),
        outputs=tuple(_changed(value, change) for value in signature.outputs),
    )


def with_tf32(entries: Entries) -> Entries:
    """Matrix products of float32 in TF32."""

    def in_tf32(math: MathMode) -> MathMode:
        return replace(math, matmul_tf32=True)

    mode = _once(in_tf32)
    return tuple(
        replace(entry, math=mode(entry.math)) if isinstance(entry, OpCall) else entry
        for entry in entries
    )


def with_low_precision(what_if: WhatIf, entries: Entries, dtype: str) -> Entries:
    """Matrix products, convolutions and attention of float32 in `dtype`, each with a cast of every
    operand before and of every result after it: autocast casts no more than that."""

    def lowered(spec: TensorSpec) -> TensorSpec:
        return spec._replace(dtype=dtype) if spec.dtype == "float32" else spec

    signatures = _once(lambda signature: _with_tensors(signature, lowered))
    casts: dict[tuple[TensorSpec, str], OpSignature] = {}

    def cast(call: OpCall, spec: TensorSpec, to: str) -> OpCall:
        target = spec._replace(dtype=to)
        signature = casts.setdefault(
            (spec, to), OpSignature("aten::_to_copy", "default", (("self", spec),), (target,))
        )
        return replace(call, signature=signature)

    found: list[Entry] = []
    for entry in entries:
        if not isinstance(entry, OpCall) or not _is_matrix_op(what_if, entry):
            found.append(entry)
            continue
        inputs = dict.fromkeys(s for s in entry.signature.input_tensors if s.dtype == "float32")
        outputs = [s for s in entry.signature.output_tensors if s.dtype == "float32"]
        found.extend(cast(entry, spec, dtype) for spec in inputs)
        found.append(replace(entry, signature=signatures(entry.signature)))
        found.extend(cast(entry, lowered(spec), "float32") for spec in outputs)
    return tuple(found)


def with_float16(entries: Entries) -> Entries:
    """Every tensor of bfloat16 in float16 instead: of the same size, on other units."""

    def halved(spec: TensorSpec) -> TensorSpec:
        return spec._replace(dtype="float16") if spec.dtype == "bfloat16" else spec

    def changed(signature: OpSignature) -> OpSignature:
        made = _with_tensors(signature, halved)
        named = tuple(
            (name, "float16" if value == "bfloat16" else value) for name, value in made.arguments
        )
        return replace(made, arguments=named)

    return _with_signatures(entries, changed)


def _is_matrix_op(what_if: WhatIf, call: OpCall) -> bool:
    return call.phase != "optimizer" and any(
        kernel.kernel_class in MATRIX_CLASSES for kernel, _ in what_if.kernels_of(call)
    )


#: Sizes below this may equal another dimension by chance, and are not padded.
SMALLEST_ODD_SIZE = 1000
#: What sizes of weights should be a multiple of (NVIDIA, "Matrix Multiplication Background User's
#: Guide", table 1: 64 elements of 16 bits on A100 and later for the best efficiency).
GOOD_MULTIPLE = 64
_WEIGHTS_OF = {"aten::addmm": "mat2", "aten::mm": "mat2", "aten::embedding": "weight"}


def odd_sizes(entries: Entries) -> dict[int, str]:
    """Sizes of weights that are no multiple of `GOOD_MULTIPLE`, with the module that has each."""
    found: dict[int, str] = {}
    for entry in entries:
        if not isinstance(entry, OpCall) or entry.phase != "forward" or not entry.module:
            continue
        name = _WEIGHTS_OF.get(entry.signature.op)
        weight = entry.signature.optional_tensor(name) if name else None
        for size in weight.shape if weight is not None else ():
            if size >= SMALLEST_ODD_SIZE and size % GOOD_MULTIPLE:
                found.setdefault(size, entry.module)
    return found


def with_padding(entries: Entries, size: int, padded: int) -> Entries:
    """Every dimension of that size, or a multiple of it, is padded; strides follow."""

    def scaled(value: int) -> int:
        return value // size * padded if value and value % size == 0 else value

    def change(spec: TensorSpec) -> TensorSpec:
        return spec._replace(
            shape=tuple(map(scaled, spec.shape)), stride=tuple(map(scaled, spec.stride))
        )

    def changed(signature: OpSignature) -> OpSignature:
        wider = _with_tensors(signature, change)
        numbers = tuple(
            (name, padded if value == size and isinstance(value, int) else value)
            for name, value in wider.arguments
        )
        return replace(wider, arguments=numbers)

    return _with_signatures(entries, changed)


def in_channels_last(entries: Entries) -> Entries:
    """Every dense tensor of four dimensions in NHWC order, as model.to(memory_format=...) makes."""

    def change(spec: TensorSpec) -> TensorSpec:
        if len(spec.shape) != 4 or not spec.is_contiguous:
            return spec
        _, channels, height, width = spec.shape
        stride = (channels * height * width, 1, width * channels, channels)
        return spec._replace(stride=stride)

    return _with_signatures(entries, lambda signature: _with_tensors(signature, change))
