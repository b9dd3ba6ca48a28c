"""The kernels of one forward of a model, as functions of the batch of sequences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from typing import NamedTuple

import numpy as np

from neusight.inference.states import RecurrentLayer
from neusight.ops import map_op
from neusight.predictors.errors import RecordingError
from neusight.predictors.kernel import (
    DTYPE_BYTES,
    CollectiveSize,
    GemmSize,
    Kernel,
    KernelClass,
    RowsSize,
    Size,
    size_of,
)
from neusight.recording.recording import Entry, OpCall

#: Name of the product of a mixture's experts, a problem for each of them.
EXPERTS = "grouped_gemm"
#: Name of what stands for the kernels of a layer with a state.
SCAN = "recurrent_scan"
#: What the kernels of a norm written in ops end with.
_ROOT = "rsqrt"


class LaunchedKernel(NamedTuple):
    """A kernel that a model launches, and the module that does so. `is_unmatched`: no pattern of
    what an engine launches instead knows it."""

    kernel: Kernel
    module: str = ""
    is_unmatched: bool = False

    @property
    def parent(self) -> str:
        """The parent module."""
        return self.module.rpartition(".")[0]


class BatchTotals(NamedTuple):
    """What a batch holds: sequences, the tokens that enter, the tokens that attention reads (with
    those that enter), and the sum over sequences of the product of both."""

    sequences: float
    tokens: float
    context: float = 0.0
    pairs: float = 0.0


@dataclass(frozen=True)
class RecordedPoint:
    """A forward of `sequences`, each with `tokens` that enter after `past` in the cache."""

    sequences: int
    tokens: int
    past: int
    launches: tuple[LaunchedKernel, ...]

    @property
    def totals(self) -> BatchTotals:
        """Sums over its sequences."""
        context = self.tokens + self.past
        return BatchTotals(
            self.sequences,
            self.sequences * self.tokens,
            self.sequences * context,
            self.sequences * self.tokens * context,
        )


def is_plain_product(kernel: Kernel) -> bool:
    """Whether it is one product, with weights as a rule: of no batch and not of experts."""
    size = kernel.size
    return isinstance(size, GemmSize) and size.batch == 1 and kernel.name != EXPERTS


def expert_rows(kernel: Kernel) -> int:
    """Rows of all experts together; the size has as many for each, rounded up."""
    size = size_of(kernel, GemmSize)
    return round(kernel.flops / (2 * size.n * size.k))


def launches_of(entries: Sequence[Entry]) -> tuple[LaunchedKernel, ...]:
    """Every kernel that the recorded ops launch, in order."""
    calls = (entry for entry in entries if isinstance(entry, OpCall))
    return tuple(
        LaunchedKernel(kernel, call.module)
        for call in calls
        for kernel in map_op(call.signature, call.math).kernels
    )


def with_scans(
    launches: Sequence[LaunchedKernel], layers: Mapping[str, RecurrentLayer]
) -> tuple[LaunchedKernel, ...]:
    """The same with one kernel in the place of all that recurrent layers launch between their
    projections and norms: reference code computes states in loops and with tensors that a server's
    kernels never make. Layers are named by their modules."""
    kept: dict[int, LaunchedKernel] = {}
    last: dict[str, int] = {}
    normed = {
        item.module
        for item in launches
        if item.kernel.kernel_class is KernelClass.NORMALIZATION or item.kernel.name == _ROOT
    }
    for at, item in enumerate(launches):
        owner = item.module if item.module in layers else item.parent
        is_kept = is_plain_product(item.kernel) or item.module in normed
        if owner not in layers or (owner != item.module and is_kept):
            kept[at] = item
        else:
            last[owner] = at
    for module, at in last.items():  # its kernels are priced by what a step holds
        elements = layers[module].heads * layers[module].width
        scan = Kernel.rows(
            KernelClass.REDUCTION, SCAN, 1, elements,
            dtype=launches[at].kernel.dtype, bytes_read=elements, bytes_written=elements,
        )  # fmt: skip
        kept[at] = LaunchedKernel(scan, module)
    return tuple(kept[at] for at in sorted(kept))


#: Values of a kernel that follow the batch, beside its size.
_AMOUNTS = ("flops", "bytes_read", "bytes_written", "bytes_read_again", "num_instructions")

#: A coefficient below this share of the value that it explains is rounding.
_ROUNDING = 1e-6


@dataclass(frozen=True)
class FittedKernel:
    """A kernel as a function of the batch: each of its sizes and amounts is a constant and a share
    of every total of the batch.

    `repeats` says that each sequence launches a problem of its own (an attention written as
    products), `experts` how many experts share the tokens (0: none).
    """

    base: Kernel
    coefficients: tuple[tuple[float, ...], ...]
    repeats: bool = False
    experts: int = 0
    is_unmatched: bool = False

    @property
    def depends_on(self) -> tuple[bool, bool, bool]:
        """Whether it depends on sequences, on tokens, on what attention reads."""
        used = [any(row[at] for row in self.coefficients) for at in range(5)]
        return used[1] or self.repeats, used[2], used[3] or used[4]

    def at(self, totals: BatchTotals) -> Kernel:
        """The kernel for a batch."""
        if self.repeats:
            count = max(1.0, totals.sequences)
            kernel = self._plain(BatchTotals(1, *(total / count for total in totals[1:])))
            size, times = size_of(kernel, GemmSize), max(1, round(totals.sequences))
            amounts = [getattr(kernel, name) * times for name in _AMOUNTS]
            return _with_amounts(kernel, size._replace(batch=size.batch * times), amounts)
        kernel = self._plain(totals)
        return _shared(kernel, self.experts, totals.tokens) if self.experts else kernel

    def _plain(self, totals: BatchTotals) -> Kernel:
        features = (1.0, *totals)
        values = [
            max(0, round(sum(a * b for a, b in zip(row, features, strict=True))))
            for row in self.coefficients
        ]
        num = len(values) - len(_AMOUNTS)
        return _with_amounts(self.base, _resized(self.base.size, values[:num]), values[num:])


def _with_amounts(kernel: Kernel, size: Size, amounts: Sequence[int]) -> Kernel:
    """The kernel of another size; `amounts` in the order of `_AMOUNTS`."""
    flops, read, written, again, instructions = amounts
    return replace(
        kernel,
        size=size,
        flops=flops,
        bytes_read=read,
        bytes_written=written,
        bytes_read_again=again,
        bytes_in_place=kernel.bytes_in_place * written // max(1, kernel.bytes_written),
        num_instructions=instructions,
    )


def _shared(kernel: Kernel, experts: int, tokens: float) -> Kernel:
    """An expert product that reads the weights only of experts that a token chose. Each of `tokens`
    chooses its experts at random: one of `experts` stays unused with (1 - chosen / experts) to the
    power of tokens."""
    size = size_of(kernel, GemmSize)
    rows = size.batch * size.m
    chosen = min(1.0, rows / max(1.0, tokens) / experts)
    active = max(1, round(experts * (1.0 - (1.0 - chosen) ** tokens)))
    item = kernel.bytes_written // max(1, rows * size.n)
    weight_bytes = max(0, kernel.bytes_read - rows * size.k * item)
    return replace(
        kernel,
        size=GemmSize(active, max(1, -(-rows // active)), size.n, size.k),
        bytes_read=int(rows * size.k * item + weight_bytes * active / experts),
    )


def _sizes(kernel: Kernel) -> list[int]:
    size = kernel.size
    if isinstance(size, GemmSize) and kernel.name == EXPERTS:
        return [1, expert_rows(kernel), size.n, size.k]
    if isinstance(size, (GemmSize, RowsSize)):
        return list(size)
    return [size.num_bytes] if isinstance(size, CollectiveSize) else []


def _resized(size: Size, values: list[int]) -> Size:
    if isinstance(size, (GemmSize, RowsSize)):
        return type(size)(*values)
    return size._replace(num_bytes=values[0]) if isinstance(size, CollectiveSize) else size


def fitted_kernels(points: Sequence[RecordedPoint]) -> tuple[FittedKernel, ...]:
    """The kernels of a model as functions of the batch; attention and scans are left out, which
    have prices of their own. RecordingError where the points do not launch the same kernels.

    Five points give all coefficients: two numbers of tokens and of past tokens, and two sequences.
    Of points with as many sequences each, the logits and what follows have a row for each sequence.
    """
    first = points[0]
    for point in points[1:]:
        _require_alike(first, point)
    system = np.array([(1.0, *point.totals) for point in points])
    found = {
        at: replace(
            _fitted([point.launches[at].kernel for point in points], system, points),
            is_unmatched=launch.is_unmatched,
        )
        for at, launch in enumerate(first.launches)
        if launch.kernel.kernel_class is not KernelClass.ATTENTION and launch.kernel.name != SCAN
    }
    if len({point.sequences for point in points}) == 1:
        found.update(_for_sequences(first))
    return tuple(found[at] for at in sorted(found))


def _for_sequences(point: RecordedPoint) -> dict[int, FittedKernel]:
    """Of points with as many sequences each: the product of the logits and what follows it, which
    has a row for each of them."""
    last = len(point.launches)
    for at, item in enumerate(point.launches):
        last = at if isinstance(item.kernel.size, GemmSize) else last
    return {
        at: for_each_sequence(point.launches[at].kernel, point.sequences)
        for at in range(last, len(point.launches))
        if point.launches[at].kernel.kernel_class is not KernelClass.ATTENTION
    }


def for_each_sequence(kernel: Kernel, sequences: int) -> FittedKernel:
    """A kernel of so many sequences with as many rows, or as wide, for each of them."""
    values = [float(value) for value in _sizes(kernel)] + [
        float(getattr(kernel, name)) for name in _AMOUNTS
    ]
    fixed = [0.0] * len(values)
    size = kernel.size
    if isinstance(size, GemmSize):
        fixed[0], fixed[2], fixed[3] = 1.0, size.n, size.k
        activations = size.m * size.k * DTYPE_BYTES[kernel.dtype]
        fixed[len(size) + 1] = kernel.bytes_read - activations  # the weight
    elif isinstance(size, RowsSize):
        constant = 0 if size.rows == 1 else 1
        fixed[constant] = values[constant]
    return FittedKernel(
        kernel,
        tuple(
            (constant, (value - constant) / sequences, 0.0, 0.0, 0.0)
            for value, constant in zip(values, fixed, strict=True)
        ),
    )


def aligned(points: Sequence[RecordedPoint]) -> list[RecordedPoint]:
    """The points without the copies, and the biases added apart from their product, that only some
    of them make: a slice of one sequence is contiguous, one of several is not."""
    names = [[(item.kernel.name, item.module) for item in point.launches] for point in points]
    if all(one == names[0] for one in names):
        return list(points)
    found = list(points)
    for _ in range(len(points)):  # until none has a copy that the first has not, and back
        first = found[0]
        for at, point in enumerate(found[1:], 1):
            own, other = _common(first.launches, point.launches)
            found[0] = first = replace(first, launches=own)
            found[at] = replace(point, launches=other)
    return found


def _common(
    first: tuple[LaunchedKernel, ...], other: tuple[LaunchedKernel, ...]
) -> tuple[tuple[LaunchedKernel, ...], tuple[LaunchedKernel, ...]]:
    """Both without the copies and biases that only one of them has."""
    names = [[(item.kernel.name, item.module) for item in part] for part in (first, other)]
    if names[0] == names[1]:
        return first, other
    matcher = SequenceMatcher(a=names[0], b=names[1], autojunk=False)
    same = [block for block in matcher.get_matching_blocks() if block.size]
    of_first = {at for block in same for at in range(block.a, block.a + block.size)}
    of_other = {at for block in same for at in range(block.b, block.b + block.size)}
    return _without_needless_kernels(first, of_first), _without_needless_kernels(other, of_other)


def _without_needless_kernels(
    launches: tuple[LaunchedKernel, ...], same: set[int]
) -> tuple[LaunchedKernel, ...]:
    return tuple(
        item
        for at, item in enumerate(launches)
        if at in same
        or not (item.kernel.kernel_class is KernelClass.COPY or _is_bias(launches, at))
    )


def _is_bias(launches: Sequence[LaunchedKernel], at: int) -> bool:
    """Whether the kernel adds a bias to what the product before it wrote."""
    item, before = launches[at], launches[at - 1]
    is_behind = at > 0 and before.kernel.kernel_class is KernelClass.GEMM
    return is_behind and item.kernel.name == "add" and item.module == before.module


def _require_alike(first: RecordedPoint, other: RecordedPoint) -> None:
    for one, two in zip(first.launches, other.launches, strict=False):
        if (one.kernel.name, one.module) != (two.kernel.name, two.module):
            raise RecordingError(
                f"the model launches {one.kernel.name} in {one.module or 'the program'} for "
                f"{first.tokens} tokens and {two.kernel.name} in {two.module or 'the program'} for "
                f"{other.tokens}: its steps cannot be priced from a few recordings. A forward must "
                "take the same path for any number of tokens."
            )
    if len(first.launches) != len(other.launches):
        raise RecordingError(
            f"the model launches {len(first.launches)} kernels for {first.tokens} tokens and "
            f"{len(other.launches)} for {other.tokens}: its steps cannot be priced from a few "
            "recordings. A forward must take the same path for any number of tokens."
        )


def _fitted(
    kernels: list[Kernel], system: np.ndarray, points: Sequence[RecordedPoint]
) -> FittedKernel:
    rows = [_sizes(kernel) + [getattr(kernel, name) for name in _AMOUNTS] for kernel in kernels]
    first = kernels[0]
    if first.name == EXPERTS:
        return FittedKernel(first, _solved(rows, system), experts=size_of(first, GemmSize).batch)
    if _repeats(kernels, points):
        single = [at for at, point in enumerate(points) if point.sequences == 1]
        alone = _solved([rows[at] for at in single], system[single])
        return FittedKernel(first, alone, repeats=True)
    return FittedKernel(first, _solved(rows, system))


def _repeats(kernels: list[Kernel], points: Sequence[RecordedPoint]) -> bool:
    """Whether each sequence is a problem of its own: a batched product with twice as many problems
    for twice the sequences."""
    first = kernels[0].size
    if not isinstance(first, GemmSize):
        return False
    return any(
        isinstance(kernel.size, GemmSize)
        and kernel.size.batch * points[0].sequences == first.batch * point.sequences
        and point.sequences != points[0].sequences
        for kernel, point in zip(kernels, points, strict=True)
    )


def _solved(rows: list[list[int]], system: np.ndarray) -> tuple[tuple[float, ...], ...]:
    """The coefficients of the totals of a batch for each value."""
    values = np.array(rows, dtype=float)
    found, *_ = np.linalg.lstsq(system, values, rcond=None)
    found = _without_needless(found, system, values)
    return tuple(tuple(float(x) for x in found[:, at]) for at in range(values.shape[1]))


#: Columns of the totals that explain a value, the simplest first: a constant, tokens, sequences,
#: what attention reads.
_EXPLANATIONS = ((0,), (2,), (1,), (3,), (0, 2), (0, 1), (1, 2), (0, 3), (2, 3), (0, 4), (2, 4),
                 (4,), (0, 2, 3), (0, 1, 2), (0, 2, 4), (0, 2, 3, 4))  # fmt: skip


def _without_needless(found: np.ndarray, system: np.ndarray, values: np.ndarray) -> np.ndarray:
    """The simplest explanation of each value that is exact, else the general one. What is the same
    for two sequences as for one, but follows their tokens, is made for positions that they share;
    of a batch without padding each token has its own."""
    single = system[:, 1] == system[0, 1]
    for at in range(values.shape[1]):
        target = values[:, at]
        simple = _explained(system, target)
        if simple is None or simple[1] < 0:
            simple = _explained(system[single], target[single])
        if simple is not None:
            found[:, at] = simple
    return found


def _explained(system: np.ndarray, target: np.ndarray) -> np.ndarray | None:
    scale = max(1.0, float(np.abs(target).max()))
    for columns in map(list, _EXPLANATIONS):
        part = system[:, columns]
        coefficients, *_ = np.linalg.lstsq(part, target, rcond=None)
        if np.abs(part @ coefficients - target).max() <= _ROUNDING * scale:
            found = np.zeros(system.shape[1])
            found[columns] = coefficients
            return found
    return None
