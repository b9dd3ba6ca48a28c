"""Listens: a dispatch mode that writes every op on the GPU, allocation and wait onto a tape."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, cast

import torch
from torch._C._dynamo.eval_frame import set_eval_frame
from torch._library.custom_ops import OPDEFS
from torch._library.triton import triton_ops_to_kernels
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.utils._python_dispatch import TorchDispatchMode

from neusight.predictors.errors import UnmappedOpError
from neusight.recording.attribution import Attribution
from neusight.recording.call_stack import CallStacks, call_site, is_elsewhere
from neusight.recording.dispatch.fake_kernels import Devices, FakeKernels
from neusight.recording.dispatch.math_settings import MathSettings
from neusight.recording.dispatch.op_cache import KnownOp, OpCache, Output, cache_key
from neusight.recording.dispatch.operator_calls import OperatorCalls
from neusight.recording.dispatch.python_functions import PythonFunctions
from neusight.recording.dispatch.torchscript import (
    NUMBERS,
    is_traced,
    recorded_as,
    tensors_for_numbers,
    traced,
    untraced,
)
from neusight.recording.hooks import ProgramHooks
from neusight.recording.inputs.inputs import StepInputs
from neusight.recording.recording import (
    URGENT_STREAMS_OPTION,
    CompiledFrame,
    OpSignature,
    contiguous_strides,
    flattened,
)
from neusight.recording.repeats.calls import RepeatedCalls
from neusight.recording.steps.cutter import StepCutter
from neusight.recording.steps.operators import StepsToFollow
from neusight.recording.storages import StorageWatch
from neusight.recording.tape import Listeners, Tape, TapedOp
from neusight.recording.tensor import (
    ForecastMode,
    ForecastTensor,
    has_own_dispatch,
    used_outside,
)
from neusight.recording.values.bounds import INDEXING, out_of_bounds
from neusight.recording.values.invention import Invention
from neusight.recording.values.known import MAX_KNOWN_ELEMENTS, KnownValues, may_be_known
from neusight.recording.values.lazy import LazyParameters
from neusight.recording.values.pinned import PinnedMemory
from neusight.recording.values.values import Values

aten = torch.ops.aten

#: Cost of one op on CPU tensors, and the speed of a CPU core in memory traffic and matrix work:
#: rough figures for a server core, only meant to make work on the host visible.
CPU_OP_US = 1.5
CPU_BYTES_PER_US = 10_000.0

#: Ops that a tensor without data answers as one with data.
#: Under inference mode `pin_memory` comes undivided: nothing decomposes it before the mode.
_OF_PINNED_MEMORY = frozenset(
    {aten._pin_memory.default, aten.pin_memory.default, aten.is_pinned.default}
)

#: Runs an op whose result depends on values, or which has no fake kernel.
Handler = Callable[["Recorder", Any, Sequence[Any], Mapping[str, Any]], Any]


#: Runs an op on tensors of the CPU otherwise than torch does.
CpuHandler = Callable[[Any, Sequence[Any], Mapping[str, Any]], Any]


class _CurrentStream(threading.local):
    """The stream that a thread has made current; the default one at its start."""

    number = 0


# Over 300 lines: all that happens to an op between its dispatch and the tape is in one place; each
# further call on this path costs time thousands of times a step.
class Recorder:
    """Runs ops on forecast tensors without data and writes down what a GPU would be asked to do.

    One recorder serves one forecast. It is the listener of its tensors (`ForecastMode`): each op
    comes to `dispatch`, and goes to the tape, from which steps are cut. All threads record into it,
    in turn. With `why_unmapped`, which gives the reason why an op has no kernels, it raises at the
    first of them. Ops have the kernels of `torch_version` (None: of the installed torch).
    """

    def __init__(
        self,
        device_count: int = 1,
        steady_steps: int | None = None,
        max_ops: int | None = None,
        why_unmapped: Callable[[OpSignature], str] | None = None,
        stacks: CallStacks | None = None,
        with_functions: bool = False,
        torch_version: str | None = None,
    ) -> None:
        self.torch_version = torch_version or str(torch.__version__)
        self.warnings: list[str] = []
        self._streams = _CurrentStream()
        #: Ops that are run by a function of their own: who has one adds it.
        self.handlers: dict[Any, Handler] = {}
        #: The same for tensors on the CPU, which hold data.
        self.cpu_handlers: dict[Any, CpuHandler] = {}
        self.devices = Devices(device_count)
        self.mode = ForecastMode(self)
        self.tape = Tape(max_ops, stacks)
        self.attribution = Attribution()
        self.storages = StorageWatch(self.tape, self.attribution)
        self.inputs = StepInputs(self.tape, self.attribution, self.storages)
        self.cutter = StepCutter(
            self.tape, self.attribution, self.storages, steady_steps, self.inputs.may_draft
        )
        functions = PythonFunctions(stacks) if stacks is not None and with_functions else None
        self.operators = OperatorCalls(self.tape, self.mode, functions)
        self.cutter.writer.shows_functions = functions is not None
        self.cutter.on_step.subscribe(StepsToFollow(self.operators).step_ends)
        self.fake_kernels = FakeKernels(self.mode, self.devices)
        self.pinned = PinnedMemory(self.mode)
        self.known = KnownValues()
        self.invention = Invention()
        self.repeats = RepeatedCalls(
            self.mode, self.tape, self.attribution, self.storages, self.known, self.invention,
            self.handlers,
            lambda: self.cutter.may_skip_calls and not self.operators.is_profiled,
        )  # fmt: skip
        self.hooks = ProgramHooks(
            self.mode, self.tape, self.attribution, self.storages, self.cutter, self.inputs,
            self.repeats,
        )  # fmt: skip
        self.lazy = LazyParameters(self.mode, self.known, self.fake_kernels)
        self.values = Values(self.mode, self.known, self.lazy, self.invention)
        self.storages.on_death.subscribe(self.known.forget)
        #: Called before each op on the GPU that no handler runs.
        self.before_op = Listeners[[Any, Sequence[Any], Mapping[str, Any]]]()
        #: Called with the reason before the host waits for the GPU to read or copy.
        self.on_wait = Listeners[[str]]()
        #: Moves a nested tensor of the CPU (strided layout) to a device, as a dtype.
        self.move_nested: Callable[[torch.Tensor, Any, Any], Any] | None = None
        #: Called with the seconds of each virtual sleep of the program.
        self.on_sleep = Listeners[[float]]()
        #: What the program set outside of torch, for `Recording.options`.
        self.options: dict[str, str] = {}
        #: What torch.compile compiled of the program, for `Recording.compiled`.
        self.compiled: list[CompiledFrame] = []
        #: What takes long just now and is none of the program's work, in words.
        self.doing = ""
        #: Set while a Ctrl-C could not be raised where it came; the next op calls it.
        self.interrupted: Callable[[], None] | None = None
        self._why_unmapped = why_unmapped
        self._math = MathSettings(self.torch_version)
        self._cache = OpCache(may_be_known)
        self._composites: dict[Any, Callable[..., Any] | None] = {}
        self._mapped: dict[int, OpSignature] = {}

    # -- the listener of tensors ------------------------------------------------------------------

    @property
    def is_open(self) -> bool:
        """Whether the program is listened to."""
        return self.tape.is_open

    @property
    def current_stream(self) -> int:
        """The stream on which the thread that asks launches kernels."""
        return self._streams.number

    @current_stream.setter
    def current_stream(self, number: int) -> None:
        self._streams.number = number

    def record_urgent(self, stream: int) -> None:
        """The stream has high priority."""
        known = self.options.get(URGENT_STREAMS_OPTION, "").split(",")
        numbers = sorted({stream, *(int(number) for number in known if number)})
        self.options[URGENT_STREAMS_OPTION] = ",".join(map(str, numbers))

    def dispatch(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Runs one op for real (CPU tensors) or without data (forecast tensors), and records it."""
        if self.interrupted is not None:
            self.interrupted()
        if self.repeats.watch is not None:
            self.repeats.watch.see_op(func, args, kwargs)
        return self.operators.answer(self._dispatch, func, args, kwargs)

    def _dispatch(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
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
            elif type(arg) is torch.device and arg.type == "cuda":  # `to` in inference mode
                cuda = True
        if kwargs:
            for name, value in kwargs.items():
                if name == "device":
                    if value is not None and torch.device(value).type == "cuda":
                        cuda = True
                elif isinstance(value, ForecastTensor):
                    if value._fake_device.type == "cuda":
                        cuda = True
                    else:
                        lazy = True
        if not cuda:
            if lazy and func not in _OF_PINNED_MEMORY:
                return self.lazy.run(func, args, kwargs)
            return self._run_on_cpu(func, args, kwargs)
        with self.fake_kernels.lock:
            return self._run_on_cuda(func, args, kwargs)

    def host_copy(self, tensor: ForecastTensor) -> torch.Tensor:
        """The tensor's values on the CPU: known, materialised or invented ones."""
        return self.values.host_copy(tensor)

    def without_data(self, tensor: torch.Tensor) -> ForecastTensor:
        """A tensor like that on the CPU which holds no data; small ones keep their values."""
        with torch.no_grad(), self.mode.inside(), torch._C._DisableTorchDispatch():
            empty = self.mode.new_tensor(
                tuple(tensor.shape), tensor.stride(), tensor.dtype, tensor.device
            )
            if tensor.numel() <= MAX_KNOWN_ELEMENTS:
                self.known.set(empty, tensor.detach())
        return empty

    def address_of(self, tensor: ForecastTensor) -> int:
        """A unique stub for the storage's address."""
        return int(tensor.untyped_storage()._cdata) + int(
            tensor.storage_offset() * tensor.element_size()
        )

    def new_tensor(self, shape: Sequence[int], dtype: torch.dtype, like: Any) -> ForecastTensor:
        """A contiguous tensor on the device of `like`."""
        return self.mode.new_tensor(shape, contiguous_strides(shape), dtype, like._fake_device)

    # -- running ops ------------------------------------------------------------------------------

    def _run_on_cpu(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        if func is aten._pin_memory.default:
            return self.pinned.pin(args[0])
        if func is aten.is_pinned.default:
            return self.pinned.holds(args[0])
        if func is aten.pin_memory.default:
            return args[0] if self.pinned.holds(args[0]) else self.pinned.pin(args[0])
        if kwargs.get("pin_memory"):
            made = func(*args, **{**kwargs, "pin_memory": False})
            return self.pinned.remember(made)
        if kwargs.get("generator") is not None:
            self.fake_kernels.check_generator_of_cpu(kwargs["generator"])
        handler = self.cpu_handlers.get(func)
        run = self.operators.run_on_cpu if handler is None else handler
        out = run(func, args, kwargs)
        if threading.get_ident() == self.tape.threads.main:  # others do not hold up the program
            self.tape.add_cpu_op(_cpu_us(out), id(func))
        return out

    def _run_on_cuda(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        handler = self.handlers.get(func)
        if handler is not None:
            return handler(self, func, args, kwargs)
        if self.before_op.functions:
            self.before_op(func, args, kwargs)
        if func not in self._composites:
            self._composites[func] = _composite_of(func)
        whole = self._composites[func]
        if whole is not None:
            # What it is made of arrives as if the script had called it, factories included.
            with RecordingMode(self):
                return self.operators.call(whole, args, kwargs)
        return self.run_known(func, args, kwargs)

    def take_over(self, func: Any, function: Callable[..., Any]) -> None:
        """Answers an op that arrives whole (in inference mode) by this function instead."""
        self._composites[func] = function

    def take_apart(self, func: Any) -> None:
        """Runs an op by its kernel for CUDA, a function in Python that is made of others."""
        self._composites[func] = partial(func._op_dk, torch._C.DispatchKey.CUDA)

    def run_known(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Runs an op from the cache where it was seen with these metas, and records it."""
        key = cache_key(func, args, kwargs)
        known = self._cache.find(key)
        if known is None:
            return self._run_first_time(func, args, kwargs, key)
        answer = known.answer
        if answer == "new":
            new = self.mode.new_tensor
            made = [new(*o) if type(o) is Output else o for o in known.outputs]
            op = self.record_op(known)
            for tensor in made:
                if isinstance(tensor, ForecastTensor):
                    self.storages.follow(tensor, op)
            if op.sequence_nr is not None and not op.module and not op.node:
                self.inputs.multiplied(op, args)
            out: Any = made[0] if known.container is None else known.container(made)
        elif answer == "inplace":
            out = args[0] if func._schema.returns else None
            self.record_op(known)
        elif answer == "view":
            self.record_op(known)
            out = self.fake_kernels.view(func, args, kwargs)
        else:
            return self._run_first_time(func, args, kwargs, None)
        self._follow(known, func, args, kwargs, out)
        return out

    def _run_first_time(
        self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], key: Any
    ) -> Any:
        self.fake_kernels.refuse(func, args, kwargs)
        out = self.fake_kernels.run(func, args, kwargs)
        known = self._cache.learn(key, func, args, kwargs, out)
        op = self._record_with_outputs(known, out)
        if op.sequence_nr is not None and not op.module and not op.node:
            self.inputs.multiplied(op, args)
        self._follow(known, func, args, kwargs, out)
        return out

    def _follow(
        self, known: KnownOp, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], out: Any
    ) -> None:
        """Keeps values up to date with what an op returned or wrote over."""
        if func in INDEXING and not self.invention.sites:
            self._require_in_bounds(func, args)
        if known.may_be_known:
            self.values.follow(func, args, kwargs, out)
        elif self.known.long_floats and known.answer != "new":
            self.known.forget_written(func, args, kwargs)

    def _require_in_bounds(self, func: Any, args: Sequence[Any]) -> None:
        """Raises what a GPU stops the program with; the values that indices have are the program's
        own as long as it has read none that is invented."""
        wrong = out_of_bounds(func, args, self.known, self.mode.inside)
        if wrong:
            raise RuntimeError(
                "CUDA error: device-side assert triggered: "
                f"{func._schema.name} at {call_site()}: {wrong}"
            )

    # -- recording --------------------------------------------------------------------------------

    def record_op(self, known: KnownOp) -> TapedOp:
        """Puts one op on the tape, with who called it."""
        math = self._math.now() if known.needs_math else self._math.default
        thread = self.tape.threads.number()
        op = self.attribution.op(known.signature, math, self._streams.number, thread)
        cutter = self.cutter
        if op.node:
            cutter.backward_seen, cutter.backward_thread = True, thread
            if op.sequence_nr is not None:
                self.inputs.used_in_backward(op.sequence_nr)
        elif cutter.backward_seen and op.sequence_nr is not None and not op.module:
            cutter.followed_op_comes(thread)
        stacks = self.tape.stacks
        if stacks is not None:
            self.attribution.record_stack(op, stacks.here())
        if self._why_unmapped is not None:
            self._require_mapped(known.signature, self._why_unmapped)
        if self.operators.is_listening and (not thread or not is_elsewhere(op)):
            self.operators.is_recorded(known.signature.op)
        self.tape.add_op(op)
        return op

    def record_handled(
        self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], out: Any
    ) -> None:
        """Records an op that a handler ran, and follows the storages of its outputs."""
        pinned = tuple(isinstance(arg, torch.Tensor) and self.pinned.holds(arg) for arg in args)
        self._record_with_outputs(self._cache.handled(func, args, kwargs, out, pinned), out)

    def _record_with_outputs(self, known: KnownOp, out: Any) -> TapedOp:
        op = self.record_op(known)
        for tensor in flattened(out, ForecastTensor):
            self.storages.follow(tensor, op)
        return op

    def wait(self, reason: str) -> None:
        """The host waits for the stream that is current."""
        self.on_wait(reason)
        self.tape.synchronize(reason, stream=self.current_stream)

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

    @contextmanager
    def while_doing(self, words: str) -> Iterator[None]:
        """States what takes long, for the display of progress."""
        before, self.doing, self.operators.is_paused = self.doing, words, True
        try:
            yield
        finally:
            self.doing, self.operators.is_paused = before, bool(before)

    def warn_once(self, text: str) -> None:
        """A line for the summary's warnings."""
        if text not in self.warnings:
            self.warnings.append(text)


def _cpu_us(out: Any) -> float:
    """What an op on the CPU takes that returned this."""
    if isinstance(out, torch.Tensor):
        size = out.numel() * out.element_size() if out.layout is torch.strided else 0
        return CPU_OP_US + size / CPU_BYTES_PER_US
    return CPU_OP_US * (max(1, len(out)) if isinstance(out, (list, tuple)) else 1)


def _composite_of(func: Any) -> Callable[..., Any] | None:
    """How to run an op that is made of others; in inference mode such ops arrive whole."""
    if isinstance(func, torch._ops.HigherOrderOperator):
        # Flex attention that is not compiled; random numbers that compiled code draws twice.
        keys = torch._C.DispatchKey
        kernels = func.py_kernels
        return kernels.get(keys.CompositeExplicitAutograd) or kernels.get(keys.CUDA)
    if not isinstance(func, torch._ops.OpOverload):
        return None
    if func._schema.name in triton_ops_to_kernels:  # it is what its Python function launches
        return cast("Callable[..., Any]", OPDEFS[func._schema.name]._backend_fns[None])
    name = f"{func._schema.name}.{func._schema.overload_name}".rstrip(".")
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    if has_kernel(name, "CompositeImplicitAutograd") and not has_kernel(name, "CUDA"):
        # Not func.decompose: that prefers Python decompositions, where dropout copies in eval mode.
        composite = torch._C.DispatchKey.CompositeImplicitAutograd
        return cast("Callable[..., Any]", partial(func._op_dk, composite))
    return None


class RecordingMode(TorchDispatchMode):  # type: ignore[no-untyped-call, unused-ignore]
    """The dispatch mode of one thread; it passes every op to the recorder."""

    supports_higher_order_operators = True

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()  # type: ignore[no-untyped-call, unused-ignore]
        self.recorder = recorder

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        return True

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # True wraps every call for Dynamo: twice the cost of an op, and an import of it.
        return False

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if func is _DEVICE:  # most of what C++ asks of tensors
            tensor = args[0]
            known = getattr(tensor, "_fake_device", None)
            return func(*args) if known is None else known
        recorder = self.recorder
        if recorder.mode.is_inside or not recorder.tape.is_open:
            return func(*args, **(kwargs or {}))
        for kind in types:
            if kind is FunctionalTensor:  # a trace that is none of ours: its own modes lie below
                return func(*args, **(kwargs or {}))
            if kind is not ForecastTensor and has_own_dispatch(kind):
                # Not work: what it does with the tensors inside arrives here by itself.
                return NotImplemented
        # DTensor enters another FakeTensorMode for the shapes of each op: it lies below ours,
        # however late it was entered. If this key moves, its questions count as work of the host.
        fake_mode = torch._C._get_dispatch_mode(_FAKE_MODE)
        if fake_mode is not None and fake_mode is not recorder.mode:
            return func(*args, **(kwargs or {}))
        if args and type(args[0]) in NUMBERS:
            args = tensors_for_numbers(func, args)
        if is_traced() is not None:
            return self._run_traced(func, args, kwargs or {})
        compiles = set_eval_frame(None)  # nothing of ours is a frame for Dynamo
        try:
            return recorder.dispatch(func, args, kwargs or {})
        finally:
            set_eval_frame(compiles)

    def _run_traced(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        whole = recorded_as(func, args)
        if whole is not None:
            with traced(), RecordingMode(self.recorder):
                return whole[0](*whole[1])
        with untraced():
            return self.recorder.dispatch(func, args, kwargs)


_DEVICE = torch.ops.prim.device.default
_FAKE_MODE = torch._C._TorchDispatchModeKey.FAKE
