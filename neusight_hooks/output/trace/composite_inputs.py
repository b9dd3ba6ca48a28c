"""What an operator without arguments of its own was called with, by the arguments of ops.

An op of a recording has its arguments; of an operator around ops or below one only the name is
known. Tables say which argument of which op is which of its own. Tensors are followed back through
casts and views to those that came in. An operator without a row, or without the ops of its row,
shows no inputs.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from functools import cache

from neusight.output.trace.arguments import UNKNOWN, passed, shape_arguments
from neusight.output.trace.events import members
from neusight.recording.recording import Argument, OpSignature, TensorSpec
from neusight.timeline.spans import HostSpan

# In the texts below `op.argument` is that of the first such op, `a|b` is b where there is no a,
# `=x` the value x, `=` what was not given, and `?` a number that is not known.


def _of(op: str, names: str) -> str:
    return " ".join(name if name[0] in "=?" else f"{op}.{name}" for name in names.split())


_LOSS = "target weight reduction ignore_index"
_ATTENTION = ("flash", "efficient", "cudnn")


#: Operators around ops.
_AROUND: dict[str, str] = {
    "aten::linear": "addmm.mat1|mm.self addmm.mat2|mm.mat2 addmm.self|=",
    "aten::matmul": "mm.self|bmm.self|mv.self|dot.self mm.mat2|bmm.mat2|mv.vec|dot.tensor",
    "aten::dropout": _of("native_dropout", "input p train"),
    "aten::layer_norm": _of("native_layer_norm", "input normalized_shape weight bias eps =True"),
    "aten::conv2d": _of("convolution", "input weight bias stride padding dilation groups"),
    "aten::batch_norm": _of(
        "cudnn_batch_norm",
        "input weight bias running_mean running_var training exponential_average_factor epsilon "
        "=True",
    ),
    "aten::max_pool2d": _of(
        "max_pool2d_with_indices", "self kernel_size stride padding dilation ceil_mode"
    ),
    "aten::log_softmax": _of("_log_softmax", "self dim ="),
    "aten::softmax": _of("_softmax", "self dim ="),
    "aten::cross_entropy_loss": f"_log_softmax.self {_of('nll_loss_forward', _LOSS)} =0.",
    "aten::nll_loss_nd": _of("nll_loss_forward", f"self {_LOSS}"),
    "aten::nll_loss": _of("nll_loss_forward", f"self {_LOSS}"),
    "aten::scaled_dot_product_attention": " ".join(
        name if name[0] == "=" else
        "|".join(f"_scaled_dot_product_{kind}_attention.{name}" for kind in _ATTENTION)
        for name in ["query", "key", "value", "=", "dropout_p", "is_causal", "scale", "=False"]
    ),
    "aten::contiguous": _of("clone", "self memory_format"),
    "aten::reshape": "view.self|clone.self view.size|_unsafe_view.size",
    "aten::chunk": _of("split", "self ? dim"),
    "aten::flatten": "view.self|clone.self ? ?",
    "aten::embedding_backward": _of(
        "embedding_dense_backward",
        "grad_output indices num_weights padding_idx scale_grad_by_freq =False",
    ),
    "torch::autograd::AccumulateGrad": "detach.self|add_.other|add.other",
}  # fmt: skip
_COMPOSITES = frozenset((*_AROUND, "aten::to"))
_TO_DEVICE = _of(
    "_to_copy", "self dtype layout device pin_memory non_blocking =False memory_format"
)
_TO_DTYPE = _of("_to_copy", "self dtype non_blocking =False memory_format")

#: Operators below ops, whose first tensor is `op.in`, and their result `op.out`.
_BELOW: dict[tuple[str, str], str] = {
    (f"aten::{op}", name): text
    for name, text, ops in (
        ("aten::as_strided", "op.in op.shape op.stride =",
         "t transpose permute expand select slice unsqueeze squeeze diagonal unfold"),
        ("aten::transpose", "op.in =0 =1", "t"),
        ("detach", "op.in", "detach"),
        ("aten::copy_", "op.out op.in op.non_blocking", "_to_copy clone"),
        ("aten::narrow", "op.in ? ? ?", "split split_with_sizes chunk"),
        ("aten::slice", "op.in ? ? ? =1", "split split_with_sizes chunk"),
        ("aten::empty_like", "op.in = = = = =", "zeros_like ones_like full_like native_dropout"),
        ("aten::zero_", "op.out", "zeros zeros_like new_zeros"),
        ("aten::fill_", "op.out ?", "zeros ones full zeros_like ones_like full_like zero_"),
    )
    for op in ops.split()
}  # fmt: skip

#: Ops that return their first tensor in another form.
_FORMS = frozenset(
    f"aten::{name}"
    for name in ("_to_copy", "view", "_unsafe_view", "t", "transpose", "expand", "clone")
)
#: Ops whose outputs all have gradients; of others the first has.
_LISTS = frozenset(("aten::split", "aten::split_with_sizes", "aten::unbind", "aten::chunk"))

_Alternatives = tuple[str, ...]


def composite_arguments(name: str, within: Sequence[OpSignature]) -> tuple[Argument, ...]:
    """Arguments of an operator around these ops; none where they are not known."""
    text = _AROUND.get(name, "")
    if name == "aten::to":
        is_moved = any(op.by_name.get("device") is not None for op in within[:1])
        text = _TO_DEVICE if is_moved else _TO_DTYPE
    first: dict[str, int] = {}
    for at, op in enumerate(within):
        first.setdefault(op.op.removeprefix("aten::"), at)
    found: list[Argument] = []
    for alternatives in _parsed(text):
        for alternative in alternatives:
            inner, _, argument = alternative.partition(".")
            if alternative[0] in "=?":
                found.append(_constant(alternative))
                break
            place = first.get(inner)
            given = {} if place is None else within[place].by_name
            if argument in given:
                found.append(_origin(given[argument], within[:place]))
                break
        else:
            return ()
    return tuple(found)


def inner_arguments(name: str, op: OpSignature) -> tuple[Argument, ...]:
    """Arguments of an operator below an op; none where they are not known."""
    if not op.input_tensors or not op.output_tensors:
        return ()
    given, made = op.input_tensors[0], op.output_tensors[0]
    known: dict[str, Argument] = {
        "op.in": given, "op.out": made, "op.shape": made.shape, "op.stride": made.stride,
        "op.non_blocking": op.by_name.get("non_blocking", False),
    }  # fmt: skip
    return tuple(
        known[text] if text in known else _constant(text)
        for (text,) in _parsed(_BELOW.get((op.op, name), ""))
    )


@cache
def _parsed(text: str) -> tuple[_Alternatives, ...]:
    return tuple(tuple(word.split("|")) for word in text.split())


def _constant(text: str) -> Argument:
    """The value that a word of a table stands for."""
    if text == "=":
        return None
    value: Argument = ast.literal_eval(text[1:]) if text[0] == "=" else UNKNOWN
    return value


def _origin(value: Argument, before: Sequence[OpSignature]) -> Argument:
    for op in reversed(before):
        if isinstance(value, TensorSpec) and op.op in _FORMS and value in op.output_tensors:
            value = op.input_tensors[0]
    return value


#: Spans within an operator that are looked at for its inputs: those of few operators are more.
_MOST_WITHIN = 100


class ShownInputs:
    """The inputs of spans as text, each made once; "" for all where they are not wanted."""

    def __init__(self, spans: Sequence[HostSpan], *, is_wanted: bool) -> None:
        self._spans = spans
        self._is_wanted = is_wanted
        # By the names of spans and the identities of signatures, which the timeline keeps.
        self._known: dict[tuple[str | int, ...], str] = {}
        self._forward: dict[int, OpSignature] = {}

    def of_op(self, signature: OpSignature) -> str:
        """Those of an op."""
        if not self._is_wanted:
            return ""
        key = ("", id(signature))
        if key not in self._known:
            self._known[key] = _text(passed(signature))
        return self._known[key]

    def of_operator(self, position: int, span: HostSpan) -> str:
        """Those of an operator around ops, or below one."""
        if not self._is_wanted:
            return ""
        above = position
        while above >= 0 and self._spans[above].kind == "operator":
            above = self._spans[above].parent
        op = self._spans[above].call if above >= 0 and self._spans[above].kind == "op" else None
        if op is None and span.name not in _COMPOSITES:
            return ""
        if op is None:
            within = self._ops_within(position)
            composite: tuple[str | int, ...] = (span.name, *map(id, within))
            if composite not in self._known:
                self._known[composite] = _text(composite_arguments(span.name, within))
            return self._known[composite]
        key = (span.name, id(op.signature))
        if key not in self._known:
            shapes = self.of_op(op.signature) if span.call else ""
            self._known[key] = _text(inner_arguments(span.name, op.signature)) or shapes
        return self._known[key]

    def _ops_within(self, position: int) -> list[OpSignature]:
        found: list[OpSignature] = []
        for at in range(position + 1, min(len(self._spans), position + 1 + _MOST_WITHIN)):
            span = self._spans[at]
            if span.parent < position:
                break
            if span.kind == "op" and span.call is not None:
                found.append(span.call.signature)
        return found

    def returned(self, number: int, signature: OpSignature) -> None:
        """An op of forward has this number of autograd's."""
        self._forward.setdefault(number, signature)

    def of_node(self, position: int, span: HostSpan, number: int | None) -> str:
        """The gradients that autograd calls a node with."""
        forward = None if number is None else self._forward.get(number)
        if forward is None or not self._is_wanted:
            return self.of_operator(position, span)
        key = (span.name, id(forward))
        if key not in self._known:
            outputs = forward.output_tensors
            self._known[key] = _text(outputs if forward.op in _LISTS else outputs[:1])
        return self._known[key]


def _text(arguments: Sequence[Argument]) -> str:
    return members(shape_arguments(arguments)) if arguments else ""
