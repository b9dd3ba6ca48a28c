"""What a step takes in: samples and tokens, read off what a model looks up or multiplies first."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from neusight.recording.recording import Entry, Mark, OpCall, TensorSpec, stepped_optimizer

__all__ = ["SAMPLES_OPTION", "TOKENS_OPTION", "Batch", "BatchSource", "batch_of", "stated_batch"]

#: How a batch is known: the user stated it, a loader yielded it, it is the input of the outermost
#: module or compiled function; "" where it is not known.
BatchSource = Literal["", "stated", "loader", "input"]

#: Names in `Recording.options` of what the user says a step takes in.
SAMPLES_OPTION, TOKENS_OPTION = "samples_per_step", "tokens_per_step"

_EMBEDDINGS = ("aten::embedding",)
_CONVOLUTIONS = ("aten::convolution", "aten::cudnn_convolution", "aten::miopen_convolution")
_PRODUCTS = {"aten::addmm": "mat1", "aten::mm": "self"}
_INTEGERS = ("int64", "int32")

#: What makes rows that are no samples: [batch, sequence, features] taken as [tokens, features],
#: nodes picked for edges.
_REGROUPING = (
    "aten::view",
    "aten::_unsafe_view",
    "aten::_reshape_alias",
    "aten::index",
    "aten::index_select",
)


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
        """What so many take in together.

        >>> Batch(samples=8, tokens=8192).times(4)
        Batch(samples=32, tokens=32768, known_by='', source='')
        """
        return replace(
            self,
            samples=None if self.samples is None else self.samples * count,
            tokens=None if self.tokens is None else self.tokens * count,
        )


def stated_batch(options: Mapping[str, str]) -> Batch:
    """What the user said a step takes in.

    >>> stated_batch({"tokens_per_step": "4096"}).tokens
    4096
    """
    samples, tokens = options.get(SAMPLES_OPTION), options.get(TOKENS_OPTION)
    return Batch(
        samples=None if samples is None else int(samples),
        tokens=None if tokens is None else int(tokens),
        known_by="as stated",
        source="" if samples is None and tokens is None else "stated",
    )


class _FirstInput(NamedTuple):
    """What comes into an op: its shape, and the op's module."""

    shape: tuple[int, ...]
    module: str


class _Intake:
    """What one outermost forward takes in: a lookup in its largest table, the input of its first
    convolution, and of its first product unless its rows were made by `_REGROUPING` (None).
    """

    def __init__(self, root: str) -> None:
        self.root = root
        self.indices: OpCall | None = None
        self.image: _FirstInput | None = None
        self.features: _FirstInput | None = None
        self.has_product = False
        self.regrouped: set[tuple[int, ...]] = set()


def batch_of(entries: Iterable[Entry]) -> Batch:
    """What the entries of one step take in.

    Integer indices [batch, sequence] into the largest embedding table in the forward of the first
    model that has one: samples and tokens. Else the leading dimension of the first convolution's
    input, else of the first product's where its rows come in as they are: samples, but not where
    several optimizers take turns (the discriminator of a GAN sees a batch more than once). Calls of
    that model in the step (gradient accumulation) add up.

    >>> batch_of([])
    Batch(samples=None, tokens=None, known_by='', source='')
    """
    entries = list(entries)
    intakes = list(_intakes(entries))
    texts = [intake for intake in intakes if intake.indices is not None]
    if texts:
        return _of_texts([item for item in texts if item.root == texts[0].root])
    if _num_optimizers(entries) > 1:
        return Batch()
    images = [(intake.root, intake.image) for intake in intakes if intake.image is not None]
    rows = [(intake.root, intake.features) for intake in intakes if intake.features is not None]
    return _of_inputs(images or rows)


def _intakes(entries: list[Entry]) -> Iterator[_Intake]:
    """One for each outermost module's forward; one for what runs outside of modules."""
    outside, inside, depth = _Intake(""), _Intake(""), 0
    for entry in entries:
        if isinstance(entry, OpCall):
            if entry.phase == "forward":
                _look_at(entry, inside if depth else outside)
        elif isinstance(entry, Mark):
            if entry.kind == "module_begin":
                if depth == 0:
                    inside = _Intake(entry.name)
                depth += 1
            elif entry.kind == "module_end" and depth:
                depth -= 1
                if depth == 0:
                    yield inside
    if depth:
        yield inside
    yield outside


def _look_at(call: OpCall, intake: _Intake) -> None:
    op = call.signature.op
    if op in _EMBEDDINGS:
        indices = call.signature.optional_tensor("indices")
        if indices is None or len(indices.shape) < 2 or indices.dtype not in _INTEGERS:
            return
        if intake.indices is None or _weight(call) > _weight(intake.indices):
            intake.indices = call
    elif op in _CONVOLUTIONS and intake.image is None:
        image = call.signature.optional_tensor("input") or call.signature.optional_tensor("self")
        if image is not None and image.shape:
            intake.image = _FirstInput(image.shape, call.module)
    elif op in _PRODUCTS and not intake.has_product:
        intake.has_product = True
        shape = call.signature.tensor(_PRODUCTS[op]).shape
        if call.module and shape not in intake.regrouped:
            intake.features = _FirstInput(shape, call.module)
    elif op in _REGROUPING:
        before, after = call.signature.input_tensors[:1], call.signature.output_tensors[:1]
        if before and after and before[0].shape[:1] != after[0].shape[:1]:
            intake.regrouped.add(after[0].shape)


def _weight(call: OpCall) -> tuple[int, int]:
    """Which lookup tells the tokens: that in the largest table (the vocabulary, not positions or
    buckets of distances), and of those the one of most indices."""
    table = call.signature.optional_tensor("weight")
    return (table.shape[0] if table is not None and table.shape else 0), _indices(call).numel


def _indices(call: OpCall) -> TensorSpec:
    return call.signature.tensor("indices")


def _of_texts(intakes: list[_Intake]) -> Batch:
    calls = [intake.indices for intake in intakes if intake.indices is not None]
    shapes = [_indices(call).shape for call in calls]
    return Batch(
        samples=sum(shape[0] for shape in shapes),
        tokens=sum(_indices(call).numel for call in calls),
        known_by=_told("token ids", shapes, calls[0].module),
        source="input",
    )


def _of_inputs(inputs: list[tuple[str, _FirstInput]]) -> Batch:
    """The samples of the first model's calls, which add up."""
    calls = [item for root, item in inputs if root == inputs[0][0]]
    if not calls:
        return Batch()
    shapes = [item.shape for item in calls]
    known_by = _told("inputs", shapes, calls[0].module)
    return Batch(samples=sum(shape[0] for shape in shapes), known_by=known_by, source="input")


def _told(what: str, shapes: list[tuple[int, ...]], module: str) -> str:
    shape = " x ".join(str(size) for size in shapes[0])
    times = f"{len(shapes)} times " if len(shapes) > 1 else ""
    return f"{what} {times}[{shape}] in {module or 'the step'}"


def _num_optimizers(entries: list[Entry]) -> int:
    return sum(
        isinstance(entry, Mark)
        and entry.kind == "annotation_begin"
        and bool(stepped_optimizer(entry.name))
        for entry in entries
    )
