"""Listens: a dispatch mode that writes every op on the GPU, allocation and wait into steps."""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, cast

import torch
from torch._subclasses.fake_tensor import (
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorDeviceMismatchError,
    UnsupportedOperatorException,
)
from torch.utils._python_dispatch import TorchDispatchMode

from neusight.predictors.errors import UnmappedOpError
from neusight.recording.attribution import Attribution
from neusight.recording.call_stack import CallStack, CallStacks, call_site
from neusight.recording.dispatch.eager_errors import eager_error, refused_by_cuda
from neusight.recording.recording import (
    Entry,
    EventRecord,
    EventWait,
    HostWork,
    Mark,
    MathMode,
    OpSignature,
    Synchronize,
    TensorSpec,
)
from neusight.recording.signature import signature_of
from neusight.recording.steps import EnoughSteps, StepCutter
from neusight.recording.tensor import ForecastMode, ForecastTensor, used_outside
from neusight.recording.values import HANDLERS, MAX_KNOWN_ELEMENTS, Values

__all__ = ["EnoughSteps", "Recorder", "RecordingMode", "RunawayLoop"]

aten = torch.ops.aten

#: Cost of one op on CPU tensors, and the speed of a CPU core in memory traffic and matrix work:
#: rough figures for a server core, only meant to make work on the host visible.
CPU_OP_US = 1.5
CPU_BYTES_PER_US = 10_000.0

#: Ops whose kernel depends on the switches in `MathMode`; reading those costs time.
_MATH_OPS = (
    "mm",
    "addmm",
    "bmm",
    "baddbmm",
    "addbmm",
    "addmv",
    "mv",
    "dot",
    "conv",
    "attention",
    "rnn",
)

#: Ops that a script may still run after it was stopped, to clean up, before it is stopped again.
_OPS_TO_CLEAN_UP = 1000

_DEVICE_KWARG = "device"
_NEW, _INPLACE, _VIEW, _SLOW = range(4)


class RunawayLoop(BaseException):
    """Ends the script from inside: too many ops; a loop may wait for an invented value."""


class _Out(NamedTuple):
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device


class _Known(NamedTuple):
    """What is remembered of an op with these argument metas."""

    kind: int
    signature: OpSignature
    outputs: tuple[Any, ...]
    container: type | None
    needs_math: bool
    small: bool


class _StorageWatch(weakref.ref):  # type: ignore[type-arg]
    """A weak reference to a storage that knows which storage it was."""

    __slots__ = ("key",)
    key: int


def _with_pinned(signature: OpSignature, pinned: Sequence[bool]) -> OpSignature:
    """The signature with those of its first arguments pinned that are."""
    arguments = list(signature.arguments)
    for position, is_pinned in enumerate(pinned):
        name, value = arguments[position]
        if is_pinned and isinstance(value, TensorSpec):
            arguments[position] = (name, value._replace(is_pinned=True))
    return replace(signature, arguments=tuple(arguments))


class Recorder:
    """Runs ops on forecast tensors without data and writes down what a GPU would be asked to do.

    One recorder serves one forecast. It is a listener of its tensors (`ForecastMode`), a source of
    values (`Values`) and fills steps, equal ones folded. All threads record into it, in turn. With
    `why_unmapped`, which gives the reason why an op has no kernels, it raises at the first of them.
    """

    def __init__(
        self,
        device_count: int = 1,
        steady_steps: int | None = None,
        max_ops: int | None = None,
        why_unmapped: Callable[[OpSignature], str] | None = None,
        stacks: CallStacks | None = None,
    ) -> None:
        self.is_open = False
        self.warnings: list[str] = []
        self.device_count = device_count
        self.current_stream = 0
        self.current_device = 0
        self.attribution = Attribution(self)
        self.mode = ForecastMode(self)
        self.values = Values(self)
        self.cutter = StepCutter(self, steady_steps)
        self.followers: list[Callable[[list[Any]], None]] = []
        self.on_alloc: Callable[[int], None] | None = None
        self.on_first_alloc: Callable[[], None] | None = None
        #: What the program set outside of torch, for `Recording.options`.
        self.options: dict[str, str] = {}
        #: Set while a Ctrl-C could not be raised where it came; the next op calls it.
        self.interrupted: Callable[[], None] | None = None
        self.open_entries: list[Any] = []
        self.cpu_ops = 0
        self.gpu_ops = 0
        self._max_ops = max_ops
        self._stops_at = sys.maxsize if max_ops is None else max_ops
        self._handled: dict[Any, _Known] = {}
        self._main = threading.get_ident()
        self._why_unmapped = why_unmapped
        self.stacks = stacks
        self._last_stack: CallStack = ()
        self._lock = threading.RLock()
        self._inside = threading.local()
        self._known: dict[Any, _Known] = {}
        self._drained = 0
        self._composites: dict[Any, Callable[..., Any] | None] = {}
        self._mapped: dict[int, OpSignature] = {}
        self._storages: dict[int, int] = {}
        self._alive: set[int] = set()
        self._watches: dict[int, _StorageWatch] = {}
        self._next_storage = 0
        self._marks: dict[tuple[str, str, str], Mark] = {}
        self._cpu_pending = 0
        self._cpu_pending_us = 0.0
        self._default_math = MathMode()
        self._math_modes: dict[tuple[bool, ...], MathMode] = {}
        self.kinds: dict[int, str] = {}

    # -- the listener of tensors ------------------------------------------------------------------

    @property
    def is_inside(self) -> bool:
        """Whether this thread is computing metas, so that ops are not the script's own."""
        return getattr(self._inside, "depth", 0) > 0

    @contextmanager
    def inside(self) -> Any:
        """Ops in here are neusight's or FakeTensor's own and are not recorded."""
        self._inside.depth = getattr(self._inside, "depth", 0) + 1
        try:
            yield
        finally:
            self._inside.depth -= 1

    def dispatch(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Runs one op for real (CPU tensors) or without data (forecast tensors), and records it."""
        if self.interrupted is not None:
            self.interrupted()
        cuda = lazy = False
        mode = self.mode
        for arg in args:
            if isinstance(arg, ForecastTensor):
                if arg.fake_mode is not mode:
                    raise used_outside(func)
                if arg._fake_device.type == "cuda":
                    cuda = True
                else:
                    lazy = True
            elif isinstance(arg, (list, tuple)):
                for item in arg:
                    if isinstance(item, ForecastTensor):
                        if item._fake_device.type == "cuda":
                            cuda = True
                        else:
                            lazy = True
        if kwargs:
            for name, value in kwargs.items():
                if name == _DEVICE_KWARG:
                    if value is not None and torch.device(value).type == "cuda":
                        cuda = True
                elif isinstance(value, ForecastTensor):
                    if value._fake_device.type == "cuda":
                        cuda = True
                    else:
                        lazy = True
        if not cuda:
            if lazy:
                return self.values.run_on_lazy(func, args, kwargs)
            return self._run_on_cpu(func, args, kwargs)
        with self._lock:
            return self._run_on_cuda(func, args, kwargs)

    def host_copy(self, tensor: ForecastTensor) -> torch.Tensor:
        """The tensor's values on the CPU: known, materialised or invented ones."""
        return self.values.host_copy(tensor)

    def without_data(self, tensor: torch.Tensor) -> ForecastTensor:
        """A tensor like that on the CPU which holds no data; small ones keep their values."""
        with torch.no_grad(), self.inside(), torch._C._DisableTorchDispatch():
            empty = self.mode.new_tensor(
                tuple(tensor.shape), tensor.stride(), tensor.dtype, tensor.device
            )
            if tensor.numel() <= MAX_KNOWN_ELEMENTS:
                self.values.set(empty, tensor.detach())
        return empty

    def address_of(self, tensor: ForecastTensor) -> int:
        """A unique stand-in for the storage's address."""
        return int(tensor.untyped_storage()._cdata) + int(
            tensor.storage_offset() * tensor.element_size()
        )

    # -- running ops ------------------------------------------------------------------------------

    def _run_on_cpu(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        if func is aten._pin_memory.default:
            return self.values.pin(args[0])
        if func is aten.is_pinned.default:
            return self.values.is_pinned(args[0])
        if kwargs.get("pin_memory"):
            made = func(*args, **{**kwargs, "pin_memory": False})
            return self.values.remember_pinned(made)
        out = func(*args, **kwargs)
        if threading.get_ident() == self._main:  # others do not hold up the program
            self._count_cpu_work(out)
        return out

    def _count_cpu_work(self, out: Any) -> None:
        self.cpu_ops += 1
        self._cpu_pending += 1
        size = 0
        if isinstance(out, torch.Tensor):
            size = out.numel() * out.element_size() if out.layout is torch.strided else 0
        elif isinstance(out, (list, tuple)):
            self._cpu_pending_us += CPU_OP_US * max(0, len(out) - 1)
        self._cpu_pending_us += CPU_OP_US + size / CPU_BYTES_PER_US

    def _run_on_cuda(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        handler = HANDLERS.get(func)
        if handler is not None:
            return handler(self, func, args, kwargs)
        if func not in self._composites:
            self._composites[func] = _composite_of(func)
        whole = self._composites[func]
        if whole is not None:
            # What it is made of arrives as if the script had called it, factories included.
            with RecordingMode(self):
                return whole(*args, **kwargs)
        return self.run_known(func, args, kwargs)

    def take_over(self, func: Any, function: Callable[..., Any]) -> None:
        """Answers an op that arrives whole (in inference mode) by this function instead."""
        self._composites[func] = function

    def run_known(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Runs an op from the cache where it was seen with these metas, and records it."""
        key = _cache_key(func, args, kwargs)
        known = self._known.get(key) if key is not None else None
        if known is None:
            return self._run_first_time(func, args, kwargs, key)
        kind = known.kind
        if kind == _NEW:
            new = self.mode.new_tensor
            made = [new(*o) if type(o) is _Out else o for o in known.outputs]
            self.record_op(known)
            for tensor in made:
                if isinstance(tensor, ForecastTensor):
                    self.watch(tensor, known.signature.op)
            out: Any = made[0] if known.container is None else known.container(made)
        elif kind == _INPLACE:
            out = args[0]
            self.record_op(known)
            if out is not None and isinstance(out, (list, tuple)):
                out = None
        elif kind == _VIEW:
            self.record_op(known)
            out = self._run_view(func, args, kwargs)
        else:
            return self._run_first_time(func, args, kwargs, None)
        if known.small:
            self.values.follow(func, args, kwargs, out)
        return out

    def _run_view(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        device = args[0]._fake_device
        # FakeTensor's own way (in_kernel_invocation_manager) without what a view does not need.
        with torch._C._DisableTorchDispatch(), torch._C._PreserveDispatchKeyGuard():
            torch._C._set_meta_in_tls_dispatch_include(True)
            result = func(*args, **kwargs)
        if isinstance(result, torch.Tensor):
            return self._claim(result, device)
        return [self._claim(item, device) for item in result]

    def _claim(self, result: Any, device: torch.device) -> ForecastTensor:
        if isinstance(result, FakeTensor):  # some views of subclasses keep their class
            result.fake_device = device
            result.fake_mode = self.mode
            return cast(ForecastTensor, _as_forecast(result))
        return self.mode.wrap(result, device)

    def run_fake(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Runs an op through torch's own fake kernels, without recording it."""
        kwargs = dict(kwargs)
        if kwargs.get("generator") is not None:
            kwargs["generator"] = None
        device = kwargs.get(_DEVICE_KWARG)
        if device is not None:
            kwargs[_DEVICE_KWARG] = self.checked_device(torch.device(device))
        try:
            with self._lock, self.inside():
                out = self.mode.dispatch(func, (), tuple(args), kwargs)
        except FakeTensorDeviceMismatchError:  # torch's own, which no GPU shows
            raise RuntimeError(_device_mismatch_text(func, args, kwargs)) from None
        except (UnsupportedOperatorException, DynamicOutputShapeException) as error:
            name = func._schema.name
            if not func._schema.returns:  # _fused_sgd_: it only writes into its arguments
                return None
            if name.endswith("_backward") and isinstance(args[1], ForecastTensor):
                return self.run_fake(aten.empty_like.default, (args[1],), {})  # as its input
            raise UnmappedOpError(
                f"{name} at {call_site()} has no fake kernel in torch {torch.__version__}, so "
                "nobody knows what it returns. torch.library.register_fake adds one to an op of "
                "your own."
            ) from error
        except Exception:
            said = self._eager_error(func, args, kwargs)
            if said is None:
                raise
            raise said from None  # the fake kernel says the same in other words
        return _as_forecast(out)

    def refuse(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Raises what a GPU would where the fake kernel takes operands that CUDA refuses."""
        if refused_by_cuda(func, args):
            said = self._eager_error(func, args, kwargs)
            if said is not None:
                raise said

    def _eager_error(
        self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Exception | None:
        with self._lock, self.inside():
            return eager_error(func, args, kwargs)

    def checked_device(self, device: torch.device) -> torch.device:
        """The device with its index; RuntimeError, as CUDA gives it, where there is no such GPU."""
        if device.type != "cuda":
            return device
        index = self.current_device if device.index is None else device.index
        if index >= self.device_count:
            raise RuntimeError(
                f"CUDA error: invalid device ordinal (cuda:{index}, but the forecast has "
                f"{self.device_count} GPU{'s' if self.device_count > 1 else ''})"
            )
        return torch.device("cuda", index)

    def _run_first_time(
        self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], key: Any
    ) -> Any:
        if func is aten.convolution.default:
            _check_convolution(args[0], args[1])
        self.refuse(func, args, kwargs)
        out = self.run_fake(func, args, kwargs)
        known = self._remember(func, args, kwargs, out, key)
        self.record_op(known)
        for tensor in _flat_tensors(out):
            self.watch(tensor, known.signature.op)
        if known.small:
            self.values.follow(func, args, kwargs, out)
        return out

    def _remember(
        self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], out: Any, key: Any
    ) -> _Known:
        signature = signature_of(func, args, kwargs, out)
        tensors = _flat_tensors(out)
        kind = _kind_of(func, args, kwargs, out, tensors)
        items = out if isinstance(out, (list, tuple)) else (out,)
        outputs = tuple(
            _Out(tuple(i.shape), i.stride(), i.dtype, i._fake_device)
            if isinstance(i, ForecastTensor)
            else i
            for i in items
        )
        known = _Known(
            kind=kind,
            signature=signature,
            outputs=outputs if kind == _NEW else (),
            container=list if isinstance(out, list) else tuple if isinstance(out, tuple) else None,
            needs_math=_needs_math(signature),
            small=self.values.may_know(signature),
        )
        if key is not None:
            self._known[key] = known
        return known

    # -- recording --------------------------------------------------------------------------------

    def record_op(self, known: _Known) -> None:
        """Appends one op, with who called it."""
        if self._cpu_pending:
            self._flush_cpu()
        self.gpu_ops += 1
        attribution = self.attribution
        phase, module, sequence, node = attribution.of_op()
        if self.stacks is not None:
            here = self.stacks.here()
            self._last_stack = attribution.stack_of_op(phase, sequence, here)
        if self._why_unmapped is not None:
            self._require_mapped(known.signature, self._why_unmapped)
        self.open_entries.append(
            (
                known.signature,
                self._math() if known.needs_math else self._default_math,
                module,
                phase,
                self.current_stream,
                sequence,
                node,
                self._last_stack,
            )
        )
        if self.gpu_ops > self._stops_at:
            self._stop_runaway()

    def record_handled(
        self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], out: Any
    ) -> None:
        """Appends an op that a handler ran, and follows the storages of its outputs."""
        pinned = tuple(map(self._is_pinned, args))
        key = (_cache_key(func, args, kwargs), _meta_key(out), pinned)
        known = self._handled.get(key)
        if known is None or key[0] is None:
            signature = signature_of(func, args, kwargs, out)
            if any(pinned):
                signature = _with_pinned(signature, pinned)
            known = _Known(_SLOW, signature, (), None, _needs_math(signature), False)
            self._handled[key] = known
        self.record_op(known)
        for tensor in _flat_tensors(out):
            self.watch(tensor, known.signature.op)

    def _is_pinned(self, value: Any) -> bool:
        return isinstance(value, torch.Tensor) and self.values.is_pinned(value)

    def record(self, entry: Entry) -> None:
        """Appends a mark, wait or event."""
        if not self.is_open:
            return
        if self._cpu_pending:
            self._flush_cpu()
        self.open_entries.append(entry)

    def mark(self, kind: Any, name: str, detail: str = "") -> None:
        """Appends a begin or end of a module or annotation."""
        key = (kind, name, detail)
        mark = self._marks.get(key)
        if mark is None:
            mark = self._marks[key] = Mark(kind, name, detail)
        self.record(mark)

    def synchronize(self, reason: str, stream: int | None = None, event: int | None = None) -> None:
        """The host waits here for the GPU."""
        stack = () if self.stacks is None else self.stacks.here()
        self.record(Synchronize(reason, call_site(), stream, event, stack))

    def _flush_cpu(self) -> None:
        work = HostWork("cpu ops", round(self._cpu_pending_us, 3), self._cpu_pending)
        self._cpu_pending, self._cpu_pending_us = 0, 0.0
        self.open_entries.append(work)

    def flush(self) -> None:
        """Writes down what is pending, before the entries are read."""
        if self._cpu_pending:
            self._flush_cpu()

    def _math(self) -> MathMode:
        cudnn = torch._C
        key = (
            _matmul_tf32(),
            bool(cudnn._get_cudnn_allow_tf32()),
            bool(cudnn._get_cudnn_benchmark()),
            bool(cudnn._get_deterministic_algorithms()),
            bool(cudnn._get_cudnn_enabled()),
        )
        mode = self._math_modes.get(key)
        if mode is None:
            mode = self._math_modes[key] = MathMode(*key)
        return mode

    def _require_mapped(
        self, signature: OpSignature, why_unmapped: Callable[[OpSignature], str]
    ) -> None:
        if id(signature) in self._mapped:
            return
        if reason := why_unmapped(signature):
            raise UnmappedOpError(
                f"{signature.op} at {call_site()} has no kernels registered ({reason}). "
                f'Register them with neusight.register_op("{signature.op}"), or leave out strict.'
            )
        self._mapped[id(signature)] = signature

    def step_ends(self) -> None:
        """A step was cut off: what is counted for one step starts again."""
        self.attribution.forget_earlier()
        if self._max_ops is not None:
            self._stops_at = self.gpu_ops + self._max_ops

    def _stop_runaway(self) -> None:
        self._stops_at = self.gpu_ops + _OPS_TO_CLEAN_UP
        raise RunawayLoop(
            f"stopped after {self.gpu_ops} ops at {call_site()}: a loop there may wait for a value "
            "that only a GPU can compute. Raise --max-ops, or let the loop end by a count."
        )

    # -- memory -----------------------------------------------------------------------------------

    def watch(self, tensor: ForecastTensor, op: str, kind: str = "") -> None:
        """Follows the storage of a tensor on the GPU from now to its end."""
        if tensor._fake_device.type != "cuda":
            return
        storage = tensor.untyped_storage()
        key = storage._cdata
        number = self._storages.get(key)
        if number is not None:
            if kind:
                self.kinds[number] = kind
                self.cutter.kind_known(number, kind)
            return
        number = self._next_storage
        if number == 0 and self.on_first_alloc is not None:
            self.on_first_alloc()
        self._next_storage = number + 1
        self._storages[key] = number
        self._alive.add(number)
        if kind:
            self.kinds[number] = kind
        reference = _StorageWatch(storage, self._storage_died)
        reference.key = key
        self._watches[key] = reference
        phase, module = self.attribution.phase, self.attribution.module
        num_bytes = storage.nbytes()
        self.open_entries.append([number, num_bytes, module, op, phase, self._last_stack])
        if self.on_alloc is not None:
            self.on_alloc(num_bytes)

    def mark_storage(self, tensor: torch.Tensor, kind: str) -> None:
        """Says what a storage is for: parameter, gradient, buffer, optimizer_state."""
        if isinstance(tensor, ForecastTensor) and tensor._fake_device.type == "cuda":
            self.watch(tensor, "aten::empty", kind)

    def _storage_died(self, reference: _StorageWatch) -> None:
        key = reference.key
        number = self._storages.pop(key, None)
        self._watches.pop(key, None)
        self.values.forget(key)
        if number is not None:
            self._alive.discard(number)
            if self.is_open:
                self.open_entries.append(number)

    def unwatch(self, number: int) -> None:
        """The newest storage was refused: it never was."""
        for key, known in list(self._storages.items()):
            if known == number:
                del self._storages[key]
                self._watches.pop(key, None)
        self._alive.discard(number)

    # -- closing ----------------------------------------------------------------------------------

    def drain(self) -> None:
        """Lets those who follow the program live read what is new, before entries are folded."""
        self.flush()
        fresh = self.open_entries[self._drained :]
        if fresh:
            self._drained = len(self.open_entries)
            for follower in self.followers:
                follower(fresh)

    def forget_drained(self, count: int) -> None:
        """The first `count` entries were taken away."""
        self._drained = max(0, self._drained - count)

    def reopen(self, entries: list[Any]) -> None:
        """Puts entries that were taken away back in front of the open ones."""
        self.open_entries[:0] = entries
        self._drained += len(entries)

    def take_back(self, start: int) -> list[Any]:
        """Removes and returns the ops and events recorded since `start`; allocations stay."""
        recorded = self.open_entries[start:]
        kinds = (tuple, EventRecord, EventWait)
        self.open_entries[start:] = [entry for entry in recorded if type(entry) not in kinds]
        self._drained = min(self._drained, len(self.open_entries))
        captured = [entry for entry in recorded if type(entry) in kinds]
        self.gpu_ops -= _num_ops(captured)
        return captured

    def put_again(self, captured: list[Any]) -> None:
        """Appends what was taken back, as a captured graph launches it."""
        self.open_entries.extend(captured)
        self.gpu_ops += _num_ops(captured)

    def is_alive(self, number: int) -> bool:
        """Whether the storage of that number still exists."""
        return number in self._alive

    def warn_once(self, text: str) -> None:
        """A line for the summary's warnings."""
        if text not in self.warnings:
            self.warnings.append(text)


def _num_ops(raw: list[Any]) -> int:
    return sum(type(entry) is tuple for entry in raw)


def _needs_math(signature: OpSignature) -> bool:
    return any(part in signature.op for part in _MATH_OPS)


def _composite_of(func: Any) -> Callable[..., Any] | None:
    """How to run an op that is made of others; in inference mode such ops arrive whole."""
    if not isinstance(func, torch._ops.OpOverload):
        return None
    name = f"{func._schema.name}.{func._schema.overload_name}".rstrip(".")
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    if has_kernel(name, "CompositeImplicitAutograd") and not has_kernel(name, "CUDA"):
        # Not func.decompose: that prefers Python decompositions, where dropout copies in eval mode.
        composite = torch._C.DispatchKey.CompositeImplicitAutograd
        return cast("Callable[..., Any]", partial(func._op_dk, composite))
    return None


def _as_forecast(out: Any) -> Any:
    """Makes FakeTensors that torch's fake kernels returned into forecast tensors, in place."""
    for tensor in _flat_fakes(out):
        if type(tensor) is not ForecastTensor:
            tensor.__class__ = ForecastTensor  # same layout: only methods differ
    return out


def _flat_fakes(out: Any) -> list[Any]:
    if isinstance(out, FakeTensor):
        return [out]
    if isinstance(out, (list, tuple)):
        return [tensor for item in out for tensor in _flat_fakes(item)]
    return []


def _flat_tensors(out: Any) -> list[ForecastTensor]:
    if isinstance(out, ForecastTensor):
        return [out]
    if isinstance(out, (list, tuple)):
        return [tensor for item in out for tensor in _flat_tensors(item)]
    return []


def _meta_key(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        if type(value) is ForecastTensor:
            return (value.shape, value.stride(), value.dtype, value._fake_device)
        return (value.shape, value.dtype, "cpu")
    kind = type(value)
    if kind is float:
        return "float"  # a changing learning rate is the same kernel
    if kind is bool or kind is int:
        return (kind, value)
    if kind is list or kind is tuple:
        return tuple([_meta_key(item) for item in value])
    return value


def _cache_key(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    try:
        if kwargs:
            key: Any = (
                func,
                tuple([_meta_key(a) for a in args]),
                tuple([(n, _meta_key(v)) for n, v in kwargs.items()]),
            )
        else:
            key = (func, tuple([_meta_key(a) for a in args]))
        hash(key)
    except TypeError:
        return None
    return key


def _kind_of(
    func: Any,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    out: Any,
    tensors: list[ForecastTensor],
) -> int:
    """How a repeated call can be answered: with new tensors, its first argument, a view, or not."""
    schema = func._schema
    tags = func.tags
    if torch.Tag.data_dependent_output in tags or torch.Tag.dynamic_output_shape in tags:
        return _SLOW
    if func.namespace == "aten" and func.is_view:
        return _VIEW if type(args[0]) is ForecastTensor else _SLOW
    written = [a for a in schema.arguments if a.alias_info is not None]
    if written:
        inplace = (
            schema.name.endswith("_")
            and len(written) == 1
            and schema.arguments[0].alias_info is not None
            and torch.Tag.inplace_view not in tags
            and schema.name not in _CHANGES_SIZE
        )
        return _INPLACE if inplace else _SLOW
    if any(
        isinstance(item, (list, tuple)) for item in (out if isinstance(out, (list, tuple)) else ())
    ):
        return _SLOW
    inputs = {t.untyped_storage()._cdata for t in _flat_tensors((*args, *kwargs.values()))}
    storages = [t.untyped_storage()._cdata for t in tensors]
    if len(set(storages)) != len(storages) or inputs & set(storages):
        return _SLOW  # shares storage without saying so (_unsafe_view)
    if any(t.storage_offset() != 0 or t.layout is not torch.strided for t in tensors):
        return _SLOW
    return _NEW


_CHANGES_SIZE = frozenset({"aten::resize_", "aten::resize_as_", "aten::set_"})


def _device_mismatch_text(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    """The words of torch 2.13 on a GPU: those of TensorIterator for elementwise ops, else those of
    the generated wrappers (aten/src/ATen/core/op_registration/adaption.cpp)."""
    same = "Expected all tensors to be on the same device, but "
    schema = func._schema
    if torch.Tag.pointwise in func.tags or schema.name == "aten::copy_":
        found = sorted({str(tensor.device) for tensor in _tensors_in((*args, *kwargs.values()))})
        return f"{same}found at least two devices, {found[-1]} and {found[0]}!"
    first = ""
    for position, parameter in enumerate(schema.arguments):
        value = args[position] if position < len(args) else kwargs.get(parameter.name)
        for tensor in _tensors_in((value,)):
            device = str(tensor.device)
            if first and device != first:
                method = "_".join(
                    filter(None, (schema.name.partition("::")[2], schema.overload_name))
                )
                return (
                    f"{same}got {parameter.name} is on {device}, different from other tensors on "
                    f"{first} (when checking argument in method wrapper_CUDA_{method})"
                )
            first = first or device
    return f"{same}found at least two devices!"


def _check_convolution(data: torch.Tensor, weight: torch.Tensor) -> None:
    """What a convolution says on a GPU; torch's fake one lets different devices pass."""
    if data.device == weight.device:
        return
    kinds = [
        f"{'torch.cuda' if t.is_cuda else 'torch'}.{_TENSOR_TYPES[t.dtype]}" for t in (data, weight)
    ]
    dense = (
        "" if data.is_cuda else " or input should be a MKLDNN tensor and weight is a dense tensor"
    )
    raise RuntimeError(
        f"Input type ({kinds[0]}) and weight type ({kinds[1]}) should be the same{dense}"
    )


_TENSOR_TYPES = {
    torch.float32: "FloatTensor",
    torch.float64: "DoubleTensor",
    torch.float16: "HalfTensor",
    torch.bfloat16: "BFloat16Tensor",
}


def _tensors_in(values: Sequence[Any]) -> list[torch.Tensor]:
    found: list[torch.Tensor] = []
    for value in values:
        if isinstance(value, torch.Tensor):
            found.append(value)
        elif isinstance(value, (list, tuple)):
            found.extend(_tensors_in(value))
    return found


def _matmul_tf32() -> bool:
    try:
        return bool(torch._C._get_cublas_allow_tf32())
    except RuntimeError:  # set through the newer fp32_precision, which refuses the old question
        return bool(torch.backends.cuda.matmul.fp32_precision == "tf32")


class RecordingMode(TorchDispatchMode):  # type: ignore[no-untyped-call, unused-ignore]
    """The dispatch mode of one thread; it hands every op to the recorder."""

    supports_higher_order_operators = True

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()  # type: ignore[no-untyped-call, unused-ignore]
        self.recorder = recorder

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        return True

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # True wraps every call for Dynamo: twice the cost of an op, and an import of it. Nothing
        # is compiled while a forecast is open.
        return False

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if func is torch.ops.prim.device.default:
            tensor = args[0]
            return tensor._fake_device if isinstance(tensor, ForecastTensor) else func(*args)
        recorder = self.recorder
        if recorder.is_inside or not recorder.is_open:
            return func(*args, **(kwargs or {}))
        for kind in types:
            if kind is not ForecastTensor and _has_own_dispatch(kind):
                # Not work: what it does with the tensors inside arrives here by itself.
                return NotImplemented
        if _is_in_other_fake_mode(recorder.mode):
            return func(*args, **(kwargs or {}))
        return recorder.dispatch(func, args, kwargs or {})


def _has_own_dispatch(kind: type) -> bool:
    """Whether it is a subclass that runs its ops itself: DTensor, nested, quantised tensors."""
    own = getattr(kind, "__torch_dispatch__", _PLAIN_DISPATCH)
    return own is not _PLAIN_DISPATCH and not issubclass(kind, FakeTensor)


_PLAIN_DISPATCH = torch.Tensor.__torch_dispatch__
_FAKE_MODE = torch._C._TorchDispatchModeKey.FAKE


def _is_in_other_fake_mode(own: ForecastMode) -> bool:
    """Whether somebody asks for shapes in a FakeTensorMode of theirs, as DTensor does for each op:
    such a mode lies below ours, however late it was entered. If this key moves, its questions count
    as work of the host."""
    active = torch._C._get_dispatch_mode(_FAKE_MODE)
    return active is not None and active is not own
