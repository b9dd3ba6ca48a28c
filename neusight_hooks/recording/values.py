"""What a program reads from the GPU: values that are known, and invented ones.

Storages of up to 64 elements carry their real value while every input of it is known. Parameters
made inside a forecast hold no data until CPU code computes on them; then they get seeded random
values. Everything else that is read is invented by a stated policy and reported with its line.
"""

from __future__ import annotations

import math
import weakref
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from neusight.recording.call_stack import call_site
from neusight.recording.recording import OpSignature
from neusight.recording.tensor import ForecastTensor

if TYPE_CHECKING:
    from neusight.recording.recorder import Recorder

__all__ = ["HANDLERS", "MAX_KNOWN_ELEMENTS", "Values", "handles", "new_tensor"]

aten = torch.ops.aten

#: Largest tensor of floats, in elements, whose real value is followed.
MAX_KNOWN_ELEMENTS = 64

#: The same for integers and truth values: tokens, positions and padding masks come from the CPU,
#: and what Hugging Face's models make of them decides which attention kernel runs.
MAX_KNOWN_INTEGERS = 2**20

#: Largest tensor, in elements, that a copy to the CPU fills at once; larger ones stay without data
#: until they are computed on.
MAX_COPIED_ELEMENTS = 2**20

#: Unknown floats start here and shrink by this factor at each read of the same line, so that
#: `while loss > 0.5` ends and early stopping sees progress.
FIRST_FLOAT = 2.0
FLOAT_DECAY = 0.99

#: Unknown integers (a token, a length, a count).
UNKNOWN_INT = 1

#: Share of True in a mask whose values nobody knows.
MASK_DENSITY = 0.5

#: Standard deviation of parameters that are filled when CPU code computes on them.
PARAMETER_STD = 0.02

#: Predicates that hold for healthy numbers.
_TRUE_WHEN_UNKNOWN = frozenset({"aten::all", "aten::isfinite", "aten::isclose", "aten::allclose"})

_COMPARISONS = frozenset({"aten::lt", "aten::le", "aten::gt", "aten::ge"})

#: What a healthy number says of itself: `x != x` asks for NaN.
_OF_ITSELF = {
    **dict.fromkeys(("aten::eq", "aten::le", "aten::ge"), True),
    **dict.fromkeys(("aten::ne", "aten::lt", "aten::gt"), False),
}

Handler = Callable[["Recorder", Any, Sequence[Any], Mapping[str, Any]], Any]
HANDLERS: dict[Any, Handler] = {}


def handles(*functions: Any) -> Callable[[Handler], Handler]:
    """Registers how an op whose result depends on values is run."""

    def register(handler: Handler) -> Handler:
        for function in functions:
            HANDLERS[function] = handler
        return handler

    return register


class _Watch(weakref.ref):  # type: ignore[type-arg]
    __slots__ = ("key",)
    key: int


class Values:
    """Known values by storage, and the policy for unknown ones."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._flat: dict[int, torch.Tensor] = {}
        self._watches: dict[int, _Watch] = {}
        self._invented: set[int] = set()
        self._pinned: set[int] = set()
        self._reads: Counter[str] = Counter()
        self.invented_reads: dict[str, str] = {}
        self.materialised_bytes = 0

    # -- known values ---------------------------------------------------------------------------

    def may_know(self, signature: OpSignature) -> bool:
        """Whether the value of an op of this signature is worth following: all of it is small."""
        outputs = signature.output_tensors
        small_outputs = all(_is_small(t.numel, t.dtype) for t in outputs)
        small_inputs = all(_is_small(t.numel, t.dtype) for t in signature.input_tensors)
        writes = signature.op.endswith("_") or signature.overload == "out"
        if writes:
            return any(_is_small(t.numel, t.dtype) for t in signature.input_tensors)
        if any(t.dtype == "bool" and t.numel <= MAX_KNOWN_ELEMENTS for t in outputs):
            return True
        return bool(outputs) and small_outputs and small_inputs

    def follow(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], out: Any) -> None:
        """Computes the op on known values, or forgets what it wrote over."""
        outputs = out if isinstance(out, (list, tuple)) else [out]
        if getattr(func, "is_view", False):
            return
        if not self._compute(func, args, kwargs, outputs):
            self._forget_written(func, args, kwargs)
            if func._schema.name in _OF_ITSELF and _is_same(*args[:2]):
                self._assume(outputs[0], _OF_ITSELF[func._schema.name])
            elif not (func._schema.name in _COMPARISONS and self._compare(func, args, outputs)):
                self._guess_booleans(func, outputs)

    def _compute(
        self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], outputs: Sequence[Any]
    ) -> bool:
        if torch.Tag.nondeterministic_seeded in func.tags:
            return False
        try:
            real_args = [self._real(a) for a in args]
            real_kwargs = {n: self._real(v) for n, v in kwargs.items()}
        except KeyError:
            return False
        if "device" in real_kwargs:
            real_kwargs["device"] = torch.device("cpu")
        try:
            with torch.no_grad(), self._recorder.inside():
                result = func(*real_args, **real_kwargs)
        except (RuntimeError, NotImplementedError, TypeError, ValueError, IndexError):
            return False  # no CPU kernel for it: the value is unknown, nothing is lost
        invented = any(self._is_invented(t) for t in _tensors(args))
        results = result if isinstance(result, (list, tuple)) else [result]
        for mine, value in zip(outputs, results, strict=False):
            if isinstance(mine, ForecastTensor) and isinstance(value, torch.Tensor):
                if mine.untyped_storage()._cdata not in self._flat:
                    self.set(mine, value)
                if invented:
                    self._invented.add(mine.untyped_storage()._cdata)
        return True

    def _real(self, value: Any) -> Any:
        if isinstance(value, ForecastTensor):
            return self._view(value, self._flat[value.untyped_storage()._cdata])
        if isinstance(value, (list, tuple)):
            return [self._real(item) for item in value]
        if isinstance(value, torch.Tensor) and not is_small(value):
            raise KeyError
        return value

    def _forget_written(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        if not self._flat:
            return
        for position, parameter in enumerate(func._schema.arguments):
            if parameter.alias_info is None or not parameter.alias_info.is_write:
                continue
            value = args[position] if position < len(args) else kwargs.get(parameter.name)
            for tensor in _tensors((value,)):
                if isinstance(tensor, ForecastTensor):
                    self.forget(tensor.untyped_storage()._cdata)

    def _compare(self, func: Any, args: Sequence[Any], outputs: Sequence[Any]) -> bool:
        """Compares numbers that nobody knows by what reading them would give: a loop may end either
        when `loss < 0.5` or with `while loss > 0.5`."""
        tensors = _tensors(args)
        if any(t.numel() > MAX_KNOWN_ELEMENTS or not t.is_floating_point() for t in tensors):
            return False
        numbers = [
            torch.full(tuple(a.shape), self._invent(a.dtype), dtype=a.dtype)
            if isinstance(a, ForecastTensor) and not self.is_known(a)
            else self._real(a)
            for a in args
        ]
        with torch.no_grad(), self._recorder.inside():
            self.set(outputs[0], func(*numbers))
        self._invented.add(outputs[0].untyped_storage()._cdata)
        return True

    def _guess_booleans(self, func: Any, outputs: Sequence[Any]) -> None:
        for tensor in outputs:
            if (
                isinstance(tensor, ForecastTensor)
                and tensor.dtype is torch.bool
                and tensor.numel() <= MAX_KNOWN_ELEMENTS
            ):
                self._assume(tensor, func._schema.name in _TRUE_WHEN_UNKNOWN)

    def _assume(self, tensor: Any, truth: bool) -> None:
        if tensor.numel() <= MAX_KNOWN_ELEMENTS:
            self.set(tensor, torch.full(tuple(tensor.shape), truth))
            self._invented.add(tensor.untyped_storage()._cdata)

    def set(self, tensor: ForecastTensor, value: torch.Tensor) -> None:
        """Notes the value of a tensor that has a storage of its own."""
        storage = tensor.untyped_storage()
        flat = torch.zeros(storage.nbytes(), dtype=torch.uint8)
        self._keep(storage, flat)
        view = self._view(tensor, flat)
        if view.shape == value.shape:
            view.copy_(value)

    def _keep(self, storage: Any, flat: torch.Tensor) -> None:
        key = storage._cdata
        self._flat[key] = flat
        self._invented.discard(key)
        watch = _Watch(storage, lambda reference: self.forget(reference.key))
        watch.key = key
        self._watches[key] = watch

    def forget(self, key: int) -> None:
        """The value of this storage is no longer known."""
        self._flat.pop(key, None)
        self._watches.pop(key, None)
        self._invented.discard(key)

    def is_sure(self, tensor: torch.Tensor) -> bool:
        """Whether the tensor's value is known without anything invented."""
        return not isinstance(tensor, ForecastTensor) or (
            self.is_known(tensor) and not self._is_invented(tensor)
        )

    def is_known(self, tensor: ForecastTensor) -> bool:
        """Whether the tensor's storage has a value, computed or guessed."""
        return tensor.untyped_storage()._cdata in self._flat

    def _is_invented(self, tensor: torch.Tensor) -> bool:
        return (
            isinstance(tensor, ForecastTensor) and tensor.untyped_storage()._cdata in self._invented
        )

    def _view(self, tensor: ForecastTensor, flat: torch.Tensor) -> torch.Tensor:
        size = flat.numel() // tensor.element_size() * tensor.element_size()
        return torch.as_strided(
            flat[:size].view(tensor.dtype),
            tuple(tensor.shape),
            tensor.stride(),
            int(tensor.storage_offset()),
        )

    # -- reading --------------------------------------------------------------------------------

    def read(self, tensor: torch.Tensor) -> torch.Tensor:
        """The values of a small tensor: known, or invented by the policy and reported."""
        if not isinstance(tensor, ForecastTensor):
            return tensor
        if tensor._fake_device.type != "cuda":
            return self.real_of_lazy(tensor)
        flat = self._flat.get(tensor.untyped_storage()._cdata)
        if flat is not None:
            if tensor.untyped_storage()._cdata in self._invented:
                self._report()
            return self._view(tensor, flat).clone()
        self._report()
        return torch.full(tuple(tensor.shape), self._invent(tensor.dtype), dtype=tensor.dtype)

    def _report(self) -> None:
        site = call_site()
        self.invented_reads.setdefault(site, "value")

    def _invent(self, dtype: torch.dtype) -> bool | int | float:
        if dtype is torch.bool:
            return False
        if not dtype.is_floating_point and not dtype.is_complex:
            return UNKNOWN_INT
        site = call_site()
        count = self._reads[site]
        self._reads[site] = count + 1
        return FIRST_FLOAT * FLOAT_DECAY**count

    def host_copy(self, tensor: ForecastTensor) -> torch.Tensor:
        """The tensor on the CPU, for numpy, printing and pickling; a large unknown one as one
        repeated element."""
        if tensor._fake_device.type != "cuda" and (
            self.is_known(tensor) or tensor.numel() <= MAX_COPIED_ELEMENTS
        ):
            return self.real_of_lazy(tensor)
        if tensor.numel() <= MAX_KNOWN_ELEMENTS or self.is_known(tensor):
            return self.read(tensor)
        return torch.zeros(1, dtype=tensor.dtype).expand(tuple(tensor.shape))

    # -- parameters without data ----------------------------------------------------------------

    def run_on_lazy(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Runs an op on CPU parameters that hold no data: without data where it initialises, copies
        or views them, else for real, filling them first."""
        tensors = _tensors((*args, *kwargs.values()))
        if getattr(func, "is_view", False):
            return self._recorder.run_fake(func, args, kwargs)
        if func._schema.name in _LIKE:
            return func(_uninitialised(args[0]), *args[1:], **kwargs)
        known = all(self.is_known(t) for t in tensors if isinstance(t, ForecastTensor))
        if not known and _needs_no_data(func, args, tensors):
            self._forget_written(func, args, kwargs)
            return self._recorder.run_fake(func, args, kwargs)
        real_args = [self._filled(a) for a in args]
        real_kwargs = {n: self._filled(v) for n, v in kwargs.items()}
        out = func(*real_args, **real_kwargs)
        for mine, real in zip(args, real_args, strict=True):
            if out is real:
                return mine
        return out

    def _filled(self, value: Any) -> Any:
        if isinstance(value, ForecastTensor):
            return self.real_of_lazy(value)
        if isinstance(value, (list, tuple)):
            return [self._filled(item) for item in value]
        return value

    def real_of_lazy(self, tensor: ForecastTensor) -> torch.Tensor:
        """A real view of a CPU tensor that held no data, filled with seeded random values."""
        storage = tensor.untyped_storage()
        flat = self._flat.get(storage._cdata)
        if flat is None:
            flat = torch.zeros(storage.nbytes(), dtype=torch.uint8)
            if tensor.dtype.is_floating_point:
                generator = torch.Generator("cpu")
                generator.manual_seed(storage.nbytes())
                size = flat.numel() // tensor.element_size() * tensor.element_size()
                with torch.no_grad(), self._recorder.inside():
                    flat[:size].view(tensor.dtype).normal_(0.0, PARAMETER_STD, generator=generator)
            self.materialised_bytes += storage.nbytes()
            self._keep(storage, flat)
        return self._view(tensor, flat)

    # -- pinned memory --------------------------------------------------------------------------

    def pin(self, tensor: torch.Tensor) -> torch.Tensor:
        """Pinned memory is ordinary memory that is remembered as pinned."""
        with self._recorder.inside():
            pinned = tensor.clone() if not isinstance(tensor, ForecastTensor) else tensor
        return self.remember_pinned(pinned)

    def remember_pinned(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor, whose memory counts as pinned from now on."""
        storage = tensor.untyped_storage()
        self._pinned.add(storage._cdata)
        weakref.finalize(storage, self._pinned.discard, storage._cdata)
        return tensor

    def is_pinned(self, tensor: torch.Tensor) -> bool:
        """Whether it was made so."""
        if isinstance(tensor, ForecastTensor) and tensor._fake_device.type == "cuda":
            return False
        if not self._pinned or tensor.layout is not torch.strided:
            return False
        return tensor.untyped_storage()._cdata in self._pinned


#: Ops that ask their argument for its shape only.
_LIKE = frozenset(
    f"aten::{name}"
    for name in (
        "empty_like", "zeros_like", "ones_like", "full_like", "rand_like", "randn_like",
        "randint_like", "new_empty", "new_empty_strided", "new_zeros", "new_ones", "new_full",
    )
)  # fmt: skip

_COPIES = frozenset({"aten::clone", "aten::_to_copy"})


def _needs_no_data(func: Any, args: Sequence[Any], tensors: Sequence[torch.Tensor]) -> bool:
    """Whether the op only copies parameters or writes over them; else its result is a number that
    somebody wants."""
    name = func._schema.name
    if name == "aten::copy_":
        return isinstance(args[0], ForecastTensor)
    if any(not isinstance(t, ForecastTensor) and t.dim() > 0 for t in tensors):
        return False
    return name in _COPIES or name.endswith("_")


def _is_same(first: Any, second: Any) -> bool:
    """Whether two arguments are the same elements of the same storage."""
    if not isinstance(first, ForecastTensor) or not isinstance(second, ForecastTensor):
        return False
    return first is second or (
        first.untyped_storage()._cdata == second.untyped_storage()._cdata
        and first.storage_offset() == second.storage_offset()
        and first.shape == second.shape
        and first.stride() == second.stride()
        and first.dtype == second.dtype
    )


def _uninitialised(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty_strided(tuple(tensor.shape), tensor.stride(), dtype=tensor.dtype)


def _is_small(num_elements: int, dtype: str) -> bool:
    is_float = dtype.startswith(("float", "bfloat", "complex"))
    return num_elements <= (MAX_KNOWN_ELEMENTS if is_float else MAX_KNOWN_INTEGERS)


def is_small(tensor: torch.Tensor) -> bool:
    """Whether the tensor's value is followed where it is known."""
    return _is_small(tensor.numel(), str(tensor.dtype)[6:])


def _tensors(values: Sequence[Any]) -> list[torch.Tensor]:
    found: list[torch.Tensor] = []
    for value in values:
        if isinstance(value, torch.Tensor):
            found.append(value)
        elif isinstance(value, (list, tuple)):
            found.extend(_tensors(value))
    return found


# -- ops whose answer or shape depends on values --------------------------------------------------


def new_tensor(
    recorder: Recorder, shape: Sequence[int], dtype: torch.dtype, like: Any
) -> ForecastTensor:
    """A contiguous tensor on the device of `like`."""
    stride: list[int] = []
    step = 1
    for size in reversed(list(shape)):
        stride.insert(0, step)
        step *= max(1, size)
    return recorder.mode.new_tensor(tuple(shape), tuple(stride), dtype, like._fake_device)


@handles(aten._local_scalar_dense.default)
def _item(recorder: Recorder, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    recorder.record_handled(func, args, kwargs, None)
    recorder.synchronize("item", stream=recorder.current_stream)
    with recorder.inside():
        return recorder.values.read(args[0]).reshape(-1)[0].item()


@handles(aten.is_nonzero.default)
def _is_nonzero(
    recorder: Recorder, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Any:
    return bool(_item(recorder, aten._local_scalar_dense.default, args, {}))


@handles(aten._is_all_true.default)
def _is_all_true(
    recorder: Recorder, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Any:
    """How torch asks whether arguments are valid (torch.distributions): those that nobody knows
    are, so that no invented value fails a check."""
    out = recorder.run_known(func, args, kwargs)
    if not recorder.values.is_sure(args[0]):
        recorder.values.set(out, torch.tensor(True))
    return out


@handles(aten._sample_dirichlet.default, aten._dirichlet_grad.default, aten.binomial.default)
def _sampled(recorder: Recorder, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Torch has no fake kernels for these; each gives a tensor like its first argument."""
    out = recorder.run_fake(aten.empty_like.default, (args[0],), {})
    recorder.record_handled(func, args, kwargs, out)
    return out


@handles(aten.allclose.default)
def _allclose(recorder: Recorder, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    recorder.record_handled(func, args, kwargs, None)
    recorder.synchronize("item", stream=recorder.current_stream)
    values = recorder.values
    if all(not isinstance(t, ForecastTensor) or values.is_known(t) for t in args[:2]):
        with recorder.inside():
            return torch.allclose(values.read(args[0]), values.read(args[1]), *args[2:], **kwargs)
    return True


@handles(aten.equal.default)
def _equal(recorder: Recorder, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    recorder.record_handled(func, args, kwargs, None)
    recorder.synchronize("equal", stream=recorder.current_stream)
    values = recorder.values
    known = all(not isinstance(t, ForecastTensor) or values.is_known(t) for t in args)
    if known and args[0].shape == args[1].shape:
        with recorder.inside():
            return torch.equal(values.read(args[0]), values.read(args[1]))
    return tuple(args[0].shape) == tuple(args[1].shape)


def _num_selected(recorder: Recorder, mask: Any) -> int:
    """How many elements a mask selects: counted where known, else by the assumed density."""
    values = recorder.values
    if isinstance(mask, ForecastTensor) and values.is_known(mask):
        with recorder.inside():
            return int(torch.count_nonzero(values.read(mask)).item())
    if not isinstance(mask, ForecastTensor):
        return int(torch.count_nonzero(mask).item())
    return max(1, int(mask.numel() * MASK_DENSITY)) if mask.numel() else 0


@handles(aten.nonzero.default)
def _nonzero(recorder: Recorder, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    mask = args[0]
    out = new_tensor(recorder, (_num_selected(recorder, mask), mask.dim()), torch.int64, mask)
    recorder.record_handled(func, args, kwargs, out)
    if recorder.values.is_known(mask):
        with recorder.inside():
            recorder.values.set(out, recorder.values.read(mask).nonzero())
    recorder.synchronize("nonzero", stream=recorder.current_stream)
    return out


@handles(aten.masked_select.default)
def _masked_select(
    recorder: Recorder, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Any:
    recorder.refuse(func, args, kwargs)
    source, mask = args[0], args[1]
    broadcast: Any = torch.broadcast_shapes  # torch leaves it without annotations
    whole = math.prod(broadcast(source.shape, mask.shape))
    num_selected = _num_selected(recorder, mask) * whole // max(1, mask.numel())
    out = new_tensor(recorder, (num_selected,), source.dtype, source)
    recorder.record_handled(func, args, kwargs, out)
    recorder.synchronize("masked_select", stream=recorder.current_stream)
    return out


@handles(
    aten._unique2.default,
    aten._unique.default,
    aten.unique_dim.default,
    aten.unique_consecutive.default,
)
def _unique(recorder: Recorder, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    source, values = args[0], recorder.values
    if values.is_known(source):
        with recorder.inside():
            found = func(values.read(source), *args[1:], **kwargs)
        out = tuple(new_tensor(recorder, tuple(t.shape), t.dtype, source) for t in found)
        for mine, value in zip(out, found, strict=True):
            values.set(mine, value)
    else:
        by_dim = func is aten.unique_dim.default
        size = source.shape[args[1]] if by_dim else source.numel()
        num_unique = max(1, int(size * MASK_DENSITY))
        shape, inverse = [num_unique], tuple(source.shape)
        if by_dim:
            shape, inverse = list(source.shape), (size,)
            shape[args[1]] = num_unique
        out = (
            new_tensor(recorder, shape, source.dtype, source),
            new_tensor(recorder, inverse, torch.int64, source),
            new_tensor(recorder, (num_unique,), torch.int64, source),
        )[: len(func._schema.returns)]
    recorder.record_handled(func, args, kwargs, out)
    recorder.synchronize("unique", stream=recorder.current_stream)
    return out


@handles(aten.repeat_interleave.Tensor)
def _repeat_interleave(
    recorder: Recorder, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Any:
    size = kwargs.get("output_size")
    repeats = args[0]
    if size is None:
        if recorder.values.is_known(repeats):
            with recorder.inside():
                size = int(recorder.values.read(repeats).sum().item())
        else:
            size = repeats.numel()
        recorder.synchronize("repeat_interleave", stream=recorder.current_stream)
    out = new_tensor(recorder, (size,), torch.int64, repeats)
    recorder.record_handled(func, args, kwargs, out)
    return out


@handles(aten.bincount.default)
def _bincount(recorder: Recorder, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    minlength = kwargs.get("minlength", args[2] if len(args) > 2 else 0)
    out = new_tensor(recorder, (max(1, minlength),), torch.int64, args[0])
    recorder.record_handled(func, args, kwargs, out)
    recorder.synchronize("bincount", stream=recorder.current_stream)
    return out


#: What its kernel says where they are not (PackedSequence.cpp, 2.13).
_UNSORTED_LENGTHS = (
    "`lengths` array must be sorted in decreasing order when `enforce_sorted` is True. You can "
    "pass `enforce_sorted=False` to pack_padded_sequence and/or pack_sequence to sidestep this "
    "requirement if you do not need ONNX exportability."
)


@handles(aten._pack_padded_sequence.default)
def _pack_padded_sequence(
    recorder: Recorder, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Any:
    """As its one kernel for all devices does it (aten/src/ATen/native/PackedSequence.cpp)."""
    data, lengths, batch_first = args
    data = data.transpose(0, 1) if batch_first else data
    steps, batch_sizes = [], []
    done = 0
    with recorder.inside():
        ends = [int(length) for length in recorder.values.read(lengths).tolist()]
    if ends != sorted(ends, reverse=True):
        raise RuntimeError(_UNSORTED_LENGTHS)
    for batch_size, end in zip(range(len(ends), 0, -1), reversed(ends), strict=True):
        if end > done:
            rows = data[done:end, :batch_size]
            steps.append(rows.reshape(-1, *data.shape[2:]))
            batch_sizes.extend([batch_size] * (end - done))
            done = end
    return torch.cat(steps), torch.tensor(batch_sizes)


def _integer_indices(recorder: Recorder, indices: Sequence[Any]) -> list[Any]:
    """Boolean masks among indices as the integer indices they become, with the wait that costs."""
    result: list[Any] = []
    for index in indices:
        if index is not None and index.dtype in (torch.bool, torch.uint8):
            if isinstance(index, ForecastTensor):
                found = _nonzero(recorder, aten.nonzero.default, (index,), {})
                result.extend(
                    new_tensor(recorder, (found.shape[0],), torch.int64, index)
                    for _ in range(index.dim())
                )
            else:
                result.extend(index.nonzero(as_tuple=True))
        else:
            result.append(index)
    return result


def _has_mask(indices: Sequence[Any]) -> bool:
    return any(i is not None and i.dtype in (torch.bool, torch.uint8) for i in indices)


@handles(aten.index.Tensor)
def _index(recorder: Recorder, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    if not _has_mask(args[1]):
        return recorder.run_known(func, args, kwargs)
    recorder.refuse(func, args, kwargs)
    return recorder.run_known(func, (args[0], _integer_indices(recorder, args[1])), kwargs)


@handles(aten.index_put.default, aten.index_put_.default, aten._index_put_impl_.default)
def _index_put(
    recorder: Recorder, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Any:
    if not _has_mask(args[1]):
        return recorder.run_known(func, args, kwargs)
    recorder.refuse(func, args, kwargs)
    value = args[2]
    if value.dim() > 0 and value.numel() > 1:
        # As many values are put as were selected before: the shape of the value says how many.
        recorder.synchronize("nonzero", stream=recorder.current_stream)
        out = (
            args[0]
            if func is not aten.index_put.default
            else recorder.run_fake(aten.clone.default, (args[0],), {})
        )
        recorder.record_handled(func, args, kwargs, out)
        return out
    return recorder.run_known(
        func, (args[0], _integer_indices(recorder, args[1]), *args[2:]), kwargs
    )


@handles(aten._to_copy.default)
def _to_copy(recorder: Recorder, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    source = args[0]
    values = recorder.values
    target = kwargs.get("device")
    target = None if target is None else torch.device(target)
    from_cuda = isinstance(source, ForecastTensor) and source._fake_device.type == "cuda"
    if target is None or (target.type == "cuda") == from_cuda:
        return recorder.run_known(func, args, kwargs)
    dtype = kwargs.get("dtype") or source.dtype
    non_blocking = bool(kwargs.get("non_blocking", False))
    if target.type == "cuda":
        fake_kwargs = {k: v for k, v in kwargs.items() if k != "pin_memory"}
        out = recorder.run_fake(func, (source,), fake_kwargs)
        recorder.record_handled(func, args, kwargs, out)
        if not non_blocking:
            recorder.synchronize("copy", stream=recorder.current_stream)
        is_known = not isinstance(source, ForecastTensor) or values.is_known(source)
        if is_small(source) and is_known:
            with torch.no_grad(), recorder.inside():
                values.set(out, values.read(source).detach().to(dtype))
        return out
    recorder.record_handled(func, args, kwargs, None)
    if not non_blocking:
        recorder.synchronize("copy", stream=recorder.current_stream)
    with recorder.inside():
        if source.numel() <= MAX_KNOWN_ELEMENTS or values.is_known(source):
            return values.read(source).to(dtype)
        values._report()
        if source.numel() <= MAX_COPIED_ELEMENTS:
            return torch.full(tuple(source.shape), values._invent(dtype), dtype=dtype)
    return recorder.mode.new_tensor(
        tuple(source.shape), source.stride(), dtype, torch.device("cpu")
    )


@handles(aten.copy_.default)
def _copy(recorder: Recorder, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    target, source = args[0], args[1]
    non_blocking = bool(args[2] if len(args) > 2 else kwargs.get("non_blocking", False))
    target_on_gpu = isinstance(target, ForecastTensor) and target._fake_device.type == "cuda"
    source_on_gpu = isinstance(source, ForecastTensor) and source._fake_device.type == "cuda"
    if target_on_gpu and source_on_gpu:
        return recorder.run_known(func, args, kwargs)
    recorder.record_handled(func, args, kwargs, None)
    if not non_blocking:
        recorder.synchronize("copy", stream=recorder.current_stream)
    values = recorder.values
    if target_on_gpu:
        values.follow(func, args, kwargs, target)
    elif isinstance(target, ForecastTensor):
        values.forget(target.untyped_storage()._cdata)
    elif source.numel() <= MAX_KNOWN_ELEMENTS or values.is_known(source):
        with recorder.inside():
            target.copy_(values.read(source))
    else:
        values._report()
    return target


@handles(aten._amp_foreach_non_finite_check_and_unscale_.default)
def _amp_check(
    recorder: Recorder, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Any:
    recorder.record_handled(
        func, args, kwargs, None
    )  # gradients are taken as finite: found_inf stays 0


@handles(aten._amp_update_scale_.default)
def _amp_update(
    recorder: Recorder, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Any:
    recorder.record_handled(func, args, kwargs, None)  # the scale stays: growth is every 2000 steps
    return args[0]


@handles(aten._pin_memory.default)
def _pin_memory(
    recorder: Recorder, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Any:
    raise RuntimeError("cannot pin 'torch.cuda.FloatTensor' only dense CPU tensors can be pinned")


@handles(aten.is_pinned.default)
def _is_pinned(
    recorder: Recorder, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Any:
    return False
