"""Writes on the tape what enters the program's steps, where it happens."""

from __future__ import annotations

import inspect
import sys
import weakref
from collections import deque
from collections.abc import Mapping, Sequence
from itertools import takewhile
from types import FrameType
from typing import Any

import torch

from neusight.recording.attribution import Attribution
from neusight.recording.call_stack import program_line
from neusight.recording.inputs.sizes import (
    size_of,
    size_of_loaded,
    tensors_held_by,
    tensors_in,
)
from neusight.recording.storages import StorageWatch
from neusight.recording.tape import MOST_DRAFTS, Tape, TapedInput, TapedOp, TensorIdentity
from neusight.recording.tensor import ForecastTensor

#: Calls that a backward pass may still come to, and calls whose outputs are known as such.
_MAX_RECENT = 256

#: Ops by which data meet what is trained in a program of plain functions, each with the place of
#: the data among its arguments.
_PRODUCTS = {
    "aten::mm": 0,
    "aten::addmm": 1,
    "aten::bmm": 0,
    "aten::baddbmm": 1,
    "aten::convolution": 0,
    "aten::embedding": 1,
}

#: Autograd nodes looked at to find which call an input was computed from.
_MAX_NODES = 32

#: Tokens that enter a draft model at most to decode one: its own last one, where it was accepted,
#: and the one that was chosen after it.
_MOST_ENTERING = 2

#: Tokens with which a decoder starts at most whose prompt an encoder reads.
_MOST_START_TOKENS = 4

#: Dimensions of keys and values: sequences, tokens, elements.
_LEAST_DIMENSIONS_OF_KEYS = 3

#: The loop of transformers (4.30 to 5.24) in which proposed tokens are verified, the method that
#: calls it and other loops, and frames above the call of a model in which they are looked for.
_ASSISTED_DECODING, _GENERATE = "_assisted_decoding", "generate"
_MOST_FRAMES = 32

_sequence_nr = torch.autograd._get_sequence_nr  # type: ignore[attr-defined]
_graph_task = torch._C._current_graph_task_id


class StepInputs:
    """Batches that loaders yield, and calls of outermost modules and compiled functions."""

    def __init__(self, tape: Tape, attribution: Attribution, storages: StorageWatch) -> None:
        self._tape = tape
        self._attribution = attribution
        self._storages = storages
        self._open: TapedInput | None = None
        self._recent: deque[TapedInput] = deque(maxlen=_MAX_RECENT)
        #: Calls by the storages of their outputs.
        self._made_by: dict[int, TapedInput] = {}
        #: The last call of token ids of each owner.
        self._last_ids: dict[object, TapedInput] = {}
        self._last_inference: TapedInput | None = None
        #: Calls of token ids without gradients, of all owners.
        self._ids: deque[TapedInput] = deque(maxlen=MOST_DRAFTS + 2)
        #: The most tokens that entered each of them at once.
        self._longest: dict[object, int] = {}
        #: What the last op in backward was about: its pass, and the numbers of its call.
        self._last_use = (-1, 0, 0)
        #: Whether a product was seen since the last backward pass.
        self._has_product = False
        self._batch_first: weakref.WeakKeyDictionary[torch.nn.Module, bool] = (
            weakref.WeakKeyDictionary()
        )

    # -- loaders ----------------------------------------------------------------------------------

    def loaded(
        self, data: Any, *, dataset: object, num_items: int | None, num_workers: int = 0
    ) -> None:
        """A loader yielded `data`, made of so many items of its data set, to the program. What its
        workers take is not of the forecast."""
        if not self._tape.is_open:
            return
        with torch._C.DisableTorchFunctionSubclass():
            size = size_of_loaded(tensors_in(data), num_items=num_items)
        if size is not None:
            line = program_line()
            owner = ("loader", id(dataset), line)
            name = "the DataLoader"
            if num_workers:
                name += f" (num_workers={num_workers}: taken to keep up)"
            self._tape.add(TapedInput("loader", owner, name, line, *size))

    # -- calls ------------------------------------------------------------------------------------

    def module_begins(
        self, module: torch.nn.Module, name: str, args: Any, kwargs: Mapping[str, Any]
    ) -> None:
        """The program calls a module from outside of any other."""
        if self._open is None and self._attribution.phase == "forward":
            named = _in_order_of_forward(module, kwargs) if kwargs else ()
            is_batch_first = self._batch_first.get(module)
            if is_batch_first is None:
                is_batch_first = self._batch_first[module] = _is_batch_first(module)
            self._begin(id(module), name, tensors_in(args, *named), (args, kwargs), is_batch_first)

    def function_begins(
        self, function: object, name: str, args: Any, kwargs: Mapping[str, Any]
    ) -> bool:
        """The program calls a compiled function; whether it is the outermost and has an input."""
        is_outermost = self._open is None and self._attribution.is_outside()
        if not is_outermost or self._attribution.phase != "forward":
            return False
        tensors = tensors_in(args, *kwargs.values())
        self._begin(id(function), name, tensors, (args, kwargs), is_function=True)
        return self._open is not None

    def _begin(
        self,
        owner: object,
        name: str,
        tensors: Sequence[torch.Tensor],
        arguments: Any,
        batch_first: bool = True,
        *,
        is_function: bool = False,
    ) -> None:
        with torch._C.DisableTorchFunctionSubclass():  # nothing here is the program's work
            size = size_of(tensors, batch_first=batch_first)
            if size is None or not self._tape.is_open:
                return
            data = next(tensor for tensor in tensors if tensor.dim() > 1)
            identity, origin = self._identity(data), self._origin(data)
        call = TapedInput(
            "input", owner, name, program_line(), *size, first_sequence=_sequence_nr(),
            last_sequence=sys.maxsize, tensor=identity, origin=origin,
        )  # fmt: skip
        call.is_inference, call.is_function = not torch.is_grad_enabled(), is_function
        if call.is_inference:
            call.first_storage = self._storages.next_number
            self._record_inference(call, arguments)
        self._open = call
        self._recent.append(call)
        self._tape.add(call)

    def _record_inference(self, call: TapedInput, arguments: Any) -> None:
        """Compares a call without gradients with those before it."""
        before, self._last_inference = self._last_inference, call
        if call.what != "token ids":
            return
        last = self._last_ids.get(call.owner)
        self._last_ids[call.owner] = call
        is_other = before is not None and before.owner != call.owner
        if before is not None and is_other and not before.is_decode:
            if call.is_function or before.is_function:
                before.is_prompt = _goes_on(before, call)
                last = last or before  # one function reads the prompt, another one decodes
            else:
                call.follows_encoder = True
        if last is not None and self._is_transposed(last, call, arguments):
            for laid_out in (last, call):
                laid_out.is_transposed, laid_out.samples = True, laid_out.shape[1]
            call.is_decode = call.shape[0] == 1
        elif last is not None:
            call.drafted, call.draft_calls = self._drafts_of(last, call)
            call.is_decode = not call.drafted and _goes_on(last, call)
            if not (call.drafted or call.is_decode):
                call.has_cache = _is_next_part(last, call) or self._are_given(last, arguments)
        self._ids.append(call)
        self._longest[call.owner] = max(call.shape[1], self._longest.get(call.owner, 0))

    def _is_transposed(self, last: TapedInput, call: TapedInput, arguments: Any) -> bool:
        """Whether ids are laid out [tokens, sequences]: one follows for each sequence, with what
        the call before kept of them, or they were before."""
        is_next = call.shape[0] == 1 < last.shape[0] and call.shape[1] == last.shape[1]
        return last.is_transposed or (is_next and self._are_given(last, arguments))

    def _are_given(self, last: TapedInput, arguments: Any) -> bool:
        """Whether arguments hold keys and values that an earlier call made."""
        made = range(last.first_storage, last.last_storage)
        tensors = tensors_held_by(arguments, num_dims=_LEAST_DIMENSIONS_OF_KEYS)
        return any(self._storage(tensor) in made for tensor in tensors)

    def _drafts_of(self, last: TapedInput, call: TapedInput) -> tuple[int, int]:
        """How many of a call's tokens are proposals that it verifies, and how many calls of another
        model came before it: where transformers says so, or another model that has read the prompt
        too has decoded so many tokens since this one's last call."""
        drafted = call.shape[1] - 1
        if not 0 < drafted <= MOST_DRAFTS:
            return 0, 0
        since = list(takewhile(lambda other: other.owner != call.owner, reversed(self._ids)))
        if _is_in_assisted_decoding():
            return drafted, len(since)
        is_prompt = not last.drafted
        if not drafted <= len(since) <= drafted + 1 or last.shape[1] <= drafted + is_prompt:
            return 0, 0
        draft = since[0].owner
        decoding = since[:-1] if since[-1].shape[1] > _MOST_ENTERING else since
        are_drafts = self._longest[draft] > _MOST_START_TOKENS and all(
            (other.owner, other.shape[0], other.drafted) == (draft, call.shape[0], 0)
            and other.shape[1] <= _MOST_ENTERING
            for other in decoding
        )
        return (drafted, len(since)) if decoding and are_drafts else (0, 0)

    def may_draft(self) -> bool:
        """Whether the last call decoded for another model, which has read a prompt as well: it was
        called before, and not too long ago."""
        if not self._ids or self._ids[-1] is not self._last_inference:
            return False
        call = self._ids[-1]
        if call.drafted:
            return False
        since = list(takewhile(lambda other: other.owner == call.owner, reversed(self._ids)))
        if len(since) > MOST_DRAFTS or len(since) == len(self._ids):
            return False
        other = self._ids[-1 - len(since)]
        have_read = min(self._longest[call.owner], self._longest[other.owner])
        return other.shape[0] == call.shape[0] and have_read > _MOST_START_TOKENS

    def multiplied(self, op: TapedOp, args: Sequence[Any]) -> None:
        """An op that autograd follows ran outside of modules: the first product of a pass says what
        enters a program of plain functions, if one factor is data and another one is trained."""
        place = _PRODUCTS.get(op.signature.op)
        if place is None or self._has_product or self._open is not None or op.sequence_nr is None:
            return
        self._has_product = True
        data, *others = args[place], *args[:place], *args[place + 1 :]
        is_trained = any(isinstance(t, torch.Tensor) and t.requires_grad for t in others)
        if data.requires_grad or not is_trained:
            return
        size = size_of([_unfolded(data)])
        if size is not None:
            name, line = f"torch.{op.signature.op.rpartition('::')[2]}", program_line()
            call = TapedInput(
                "input", ("product", line), name, line, *size, is_product=True,
                tensor=self._identity(data), first_sequence=op.sequence_nr,
                last_sequence=op.sequence_nr + 1,
            )  # fmt: skip
            self._recent.append(call)
            self._tape.add(call)

    def call_ends(self, output: Any) -> None:
        """The outermost module or function that was called returned."""
        call, self._open = self._open, None
        if call is None:
            return
        call.last_sequence = _sequence_nr()
        call.last_storage = self._storages.next_number
        if len(self._made_by) > _MAX_RECENT:
            self._made_by.clear()
        for tensor in tensors_in(output):
            number = self._storage(tensor)
            if number is not None:
                self._made_by[number] = call

    def used_in_backward(self, sequence_nr: int) -> None:
        """An op of a backward pass belongs to what autograd gave this number in the forward."""
        self._has_product = False
        backward, first, last = self._last_use
        task = _graph_task()
        if task == backward and first <= sequence_nr < last:
            return
        call = self._call_of(sequence_nr)
        if call is not None:
            call.is_used_by(task)
            if call is not self._open:
                self._last_use = (task, call.first_sequence, call.last_sequence)

    def _call_of(self, sequence_nr: int) -> TapedInput | None:
        """The call in which autograd gave that number."""
        for call in reversed(self._recent):
            if sequence_nr >= call.last_sequence:
                return None
            if sequence_nr >= call.first_sequence:
                return call
        return None

    # -- tensors ----------------------------------------------------------------------------------

    def _storage(self, tensor: torch.Tensor) -> int | None:
        return self._storages.number_of(tensor) if isinstance(tensor, ForecastTensor) else None

    def _identity(self, tensor: torch.Tensor) -> TensorIdentity | None:
        """None where the storage is not known."""
        number = self._storage(tensor)
        if number is None:
            return None
        version = 0 if tensor.is_inference() else tensor._version
        return TensorIdentity(number, int(tensor.storage_offset()), tuple(tensor.shape), version)

    def _origin(self, tensor: torch.Tensor) -> TapedInput | None:
        """The call that computed a tensor, or what it was computed from; of a chain the first."""
        call = self._maker(tensor)
        return call if call is None or call.origin is None else call.origin

    def _maker(self, tensor: torch.Tensor) -> TapedInput | None:
        number = self._storage(tensor)
        call = None if number is None else self._made_by.get(number)
        if call is not None or tensor.grad_fn is None:
            return call
        nodes: deque[Any] = deque([tensor.grad_fn])
        for _ in range(_MAX_NODES):
            if not nodes:
                return None
            node = nodes.popleft()
            found = self._call_of(node._sequence_nr())
            if found is not None:
                return found
            nodes.extend(following for following, _ in node.next_functions if following)
        return None


def _unfolded(data: torch.Tensor) -> torch.Tensor:
    """What a product was given: torch.matmul folds all dimensions but the last."""
    whole = data._base
    if whole is None or whole.numel() != data.numel() or whole.shape[-1] != data.shape[-1]:
        return data
    return whole


def _is_in_assisted_decoding() -> bool:
    frame: FrameType | None = sys._getframe(1)
    for _ in range(_MOST_FRAMES):
        if frame is None or frame.f_code.co_name == _GENERATE:
            return False
        if frame.f_code.co_name == _ASSISTED_DECODING:
            return True
        frame = frame.f_back
    return False


def _goes_on(last: TapedInput | None, call: TapedInput) -> bool:
    """Whether a call without gradients decodes: it has one new token for each sequence, after those
    that the call before it had (all of them, where there is no cache)."""
    length = call.shape[1]
    if last is None or last.shape[0] != call.shape[0] or last.what != call.what:
        return False
    return length in (1, last.shape[1] + 1) or (last.is_decode and length == last.shape[1])


def _is_next_part(last: TapedInput, call: TapedInput) -> bool:
    """Whether the ids of a call lie behind those of the call before in one tensor: a prompt in
    parts, also where modules keep the cache, as static ones do."""
    if last.tensor is None or call.tensor is None or last.shape[0] != call.shape[0]:
        return False
    behind = last.tensor.offset + last.shape[-1]
    return call.tensor._replace(shape=()) == last.tensor._replace(offset=behind, shape=())


def _in_order_of_forward(module: torch.nn.Module, kwargs: Mapping[str, Any]) -> list[Any]:
    """Arguments by keyword, in the order of the parameters of what a module wraps."""
    while True:
        wrapped = next(
            (found for name in _WRAPPED if (found := module._modules.get(name)) is not None), None
        )
        if wrapped is None:
            break
        module = wrapped
    try:
        parameters = list(inspect.signature(module.forward).parameters)
    except (TypeError, ValueError):
        parameters = []
    places = {name: at for at, name in enumerate(parameters)}
    return [kwargs[name] for name in sorted(kwargs, key=lambda name: places.get(name, len(places)))]


#: Names under which wrappers (DistributedDataParallel, torch.compile, FSDP) hold the module.
_WRAPPED = ("_orig_mod", "module", "_fsdp_wrapped_module")


def _is_batch_first(module: torch.nn.Module) -> bool:
    """Whether no part of it takes [sequence, batch, ...], as torch's recurrent layers and attention
    do unless the program says otherwise."""
    return all(getattr(part, "batch_first", True) for part in module.modules())
