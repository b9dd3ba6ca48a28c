"""From a profile to measurements: operators are called again, in a forecast, to get their kernels.

A profile shows how long an operator's kernels took, not what problem they solved. Called again with
the recorded shapes, strides, types and values, it describes its kernels as in any forecast.
"""

from __future__ import annotations

import ast
import logging
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from statistics import mean, median
from typing import TYPE_CHECKING, Any, NamedTuple

from neusight.integrations.profiles.aliases import class_of_name
from neusight.integrations.profiles.reading.older_ops import (
    CONVOLUTIONS,
    OlderConvolution,
    older_convolution,
)
from neusight.integrations.profiles.reading.profile import DeviceEvent, Profile
from neusight.ops import is_mapped, map_op
from neusight.ops.math_mode import math_mode_on
from neusight.predictors.errors import CalibrationError
from neusight.predictors.gpu import GPU
from neusight.predictors.kernel import Kernel, KernelClass
from neusight.predictors.measuring.calibration import Measurement
from neusight.recording.recording import Mark, OpCall, Recording, release_of

if TYPE_CHECKING:
    import torch

_HOST_COPIES = ("HtoD", "DtoH")

#: Operators that torch takes apart before a forecast (or a GPU) sees them; autocast casts what
#: these are called with.
_TAKEN_APART = frozenset(
    {
        "aten::linear", "aten::contiguous", "aten::softmax", "aten::log_softmax",
        "aten::conv1d", "aten::conv2d", "aten::conv3d", "aten::conv_transpose1d",
        "aten::conv_transpose2d", "aten::conv_transpose3d",
    }
)  # fmt: skip

#: Ops on lists of tensors by which optimizers step.
_MULTI_TENSOR = ("aten::_foreach", "aten::_fused", "aten::_amp_foreach")

#: Share of the kernel time from which on a reason is shown by itself.
_NAMED_SHARE = 0.01

#: Marks the calls in the recording.
_MARK = "neusight call "

#: Lists within each other in what an operator was called with: lists of tensors have 3.
_MOST_DEPTH = 4

#: Kernels that compute in TF32 say so by their name (cuBLAS, cuDNN, CUTLASS).
_TF32_NAMES = ("tf32", "s1688")

#: C++ names of element types, as profiles write them ("Int" and "Bool" are values, not tensors).
_DTYPES = {
    "float": "float32",
    "double": "float64",
    "c10::Half": "float16",
    "c10::BFloat16": "bfloat16",
    "long int": "int64",
    "long": "int64",
    "int": "int32",
    "short": "int16",
    "short int": "int16",
    "signed char": "int8",
    "unsigned char": "uint8",
    "bool": "bool",
    "c10::complex<float>": "complex64",
    "c10::complex<double>": "complex128",
    "c10::Float8_e4m3fn": "float8_e4m3fn",
    "c10::Float8_e5m2": "float8_e5m2",
}
#: c10::ScalarType by its number (c10/core/ScalarType.h), for arguments named dtype.
_SCALAR_TYPES = (
    "uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64", "complex32",
    "complex64", "complex128", "bool", "", "", "", "bfloat16",
)  # fmt: skip
#: c10::MemoryFormat by its number (c10/core/MemoryFormat.h).
_MEMORY_FORMATS = ("contiguous_format", "preserve_format", "channels_last", "channels_last_3d")


@dataclass(frozen=True)
class TraceMeasurements:
    """What a profile measured, and how many nanoseconds of its `total_ns` of kernel time were of
    no use, by reason."""

    measurements: tuple[Measurement, ...]
    total_ns: int
    left_out_ns: Mapping[str, int] = field(default_factory=dict)

    @property
    def share(self) -> float:
        """The part of the kernel time that the measurements hold."""
        return 1.0 - sum(self.left_out_ns.values()) / self.total_ns

    @property
    def notes(self) -> tuple[str, ...]:
        """What was left out, in words."""
        return tuple(reported_left_out(self.left_out_ns, self.total_ns))


class RecordedCall(NamedTuple):
    """An operator with all that a profile says of its arguments, and the release of torch that ran
    it (empty: the newest)."""

    name: str
    dims: tuple[Any, ...]
    strides: tuple[Any, ...]
    types: tuple[str, ...]
    values: tuple[str, ...]
    is_tf32: bool
    torch_version: str = ""


class _Unusable(Exception):
    """The call cannot be made again; the text says why."""


def measurements_of(profile: Profile, gpu: GPU) -> TraceMeasurements:
    """What each operator's kernels took, as measurements for `neusight.calibrate`.

    The profile must have been read with `keep_arguments=True`. CalibrationError where it has no
    kernels, no shapes, or is itself a forecast.
    """
    _require_shapes(profile)
    owners = outermost_ops(profile)
    calls: dict[RecordedCall, list[int]] = defaultdict(list)
    reasons: Counter[str] = Counter()
    for position, events in events_by_op(profile, owners).items():
        spent_ns = sum(event.duration_ns for event in events)
        if all(class_of_name(event.name) is KernelClass.COLLECTIVE for event in events):
            reasons["collectives, which wait for the other GPUs"] += spent_ns
            continue
        if position < 0:
            reasons["kernels of operators that neusight does not know"] += spent_ns
            continue
        if spent_ns <= 0:  # shorter than the clock of older profiles, a microsecond
            continue
        call = call_of(profile, position, events)
        if call is None:
            reasons["copies to and from the host"] += spent_ns
            continue
        calls[call].append(spent_ns)
    # Times in whole microseconds are right on average, not one by one.
    is_coarse = all(event.duration_ns % 1000 == 0 for event in profile.events)
    typical_ns = mean if is_coarse else median
    described = dict(zip(calls, kernels_of_calls(list(calls), gpu), strict=True))
    found = []
    for call, times_ns in calls.items():
        kernels = described[call]
        if isinstance(kernels, str):
            reasons[kernels] += sum(times_ns)
            continue
        found.append(Measurement(kernels, typical_ns(times_ns) / 1000))
    return TraceMeasurements(
        measurements=tuple(found),
        total_ns=max(1, sum(event.duration_ns for event in profile.events)),
        left_out_ns=dict(reasons),
    )


def reported_left_out(left_out_ns: Mapping[str, int], total_ns: int) -> Iterator[str]:
    """What was left out of that much kernel time and why, the most first, small parts together."""
    rest_ns = 0
    for reason, spent_ns in sorted(left_out_ns.items(), key=lambda item: (-item[1], item[0])):
        if spent_ns < _NAMED_SHARE * total_ns:
            rest_ns += spent_ns
        else:
            yield f"{spent_ns / total_ns:.1%} of the kernel time was left out: {reason}"
    if rest_ns:
        yield f"{rest_ns / total_ns:.1%} of the kernel time was left out for smaller reasons"


def _require_shapes(profile: Profile) -> None:
    if profile.is_forecast:
        raise CalibrationError(
            f"{profile.source} is a forecast itself, not a profile. Calibrate with what "
            "torch.profiler wrote on the real GPU."
        )
    if not profile.events:
        raise CalibrationError(
            f"{profile.source} holds no kernels: it was made without a GPU, or without "
            "ProfilerActivity.CUDA. There is nothing to calibrate with."
        )
    if not any(op.arguments for op in profile.ops) and any(op.shapes for op in profile.ops):
        raise CalibrationError(
            f"{profile.source} was read without the arguments of its operators. Read it with "
            "read_profile(path, keep_arguments=True), or give its path."
        )
    if not any(op.shapes for op in profile.ops):
        raise CalibrationError(
            f"{profile.source} has no shapes: what its kernels computed is unknown. Profile "
            "again with torch.profiler.profile(record_shapes=True), or use `neusight measure`."
        )


def outermost_ops(profile: Profile) -> list[int]:
    """For each operator of the profile the outermost one around it, itself included, that
    neusight can describe; -1 where there is none."""
    known: dict[str, bool] = {}
    owners = [-1] * len(profile.ops)
    open_ops: dict[str, list[int]] = defaultdict(list)
    for position, op in enumerate(profile.ops):  # in order of start, longer ones first
        stack = open_ops[op.thread]
        while stack and profile.ops[stack[-1]].end_ns <= op.start_ns:
            stack.pop()
        owner = owners[stack[-1]] if stack else -1
        if op.name not in known:
            is_whole = "::" in op.name and op.name not in _TAKEN_APART
            known[op.name] = is_whole and (is_mapped(op.name) or op.name in CONVOLUTIONS)
        owners[position] = position if owner < 0 and known[op.name] else owner
        stack.append(position)
    return owners


def events_by_op(profile: Profile, owners: Sequence[int]) -> dict[int, list[DeviceEvent]]:
    found: dict[int, list[DeviceEvent]] = defaultdict(list)
    for event in profile.events:
        found[owners[event.op] if event.op >= 0 else -1].append(event)
    return found


def call_of(profile: Profile, position: int, events: Sequence[DeviceEvent]) -> RecordedCall | None:
    """The call of that operator; None where the host's link carried it."""
    if any(word in event.name for event in events for word in _HOST_COPIES):
        return None
    op = profile.ops[position]
    known = op.arguments or {}
    names = [event.name.lower() for event in events]
    call = RecordedCall(
        name=op.name,
        dims=frozen(_listed(known.get("Input Dims", known.get("Input dims")))),
        strides=frozen(_listed(known.get("Input Strides"))),
        types=tuple(map(str, _listed(known.get("Input type")))),
        values=tuple(map(str, _listed(known.get("Concrete Inputs")))),
        is_tf32=any(word in name for name in names for word in _TF32_NAMES),
    )
    if op.name not in CONVOLUTIONS or call.values:
        return call
    inner = [profile.ops[event.op].name for event in events if event.op >= 0]
    is_first = not any(name.endswith("_input") for name in inner)
    return _as_today(call, _shapes_after(profile, position), is_first=is_first)


def _shapes_after(profile: Profile, position: int) -> Iterator[tuple[int, ...]]:
    """The shapes that the next operators on the thread are first called with."""
    done = profile.ops[position]
    for op in profile.ops[position + 1 : position + _LOOKED_AHEAD]:
        if op.thread == done.thread and op.start_ns >= done.end_ns and op.shapes:
            yield op.shapes[0]


#: Operators in which the result of one is looked for: those inside of it come first.
_LOOKED_AHEAD = 40


def _as_today(
    call: RecordedCall, results: Iterator[tuple[int, ...]], *, is_first: bool
) -> RecordedCall:
    """A convolution of an older torch as the operator that today's has for it, where its shapes
    determine its stride."""
    shapes = [tuple(shape) for shape in call.dims]
    found = older_convolution(call.name, shapes, results, is_first=is_first)
    if found is None:
        return call
    rest = len(found.values)
    tensors = [kind for kind in call.types if kind in _DTYPES][: len(found.shapes)]
    return call._replace(
        name=found.name,
        dims=(*found.shapes, *((),) * rest),
        strides=(),
        types=(*tensors, *_kinds(found)),
        values=(*("",) * len(found.shapes), *found.values),
    )


def _kinds(found: OlderConvolution) -> tuple[str, ...]:
    """The types of the arguments behind the tensors, as profiles write them."""
    return tuple("ScalarList" if text.startswith("[") else "Scalar" if text else ""
                 for text in found.values)  # fmt: skip


def _listed(value: object) -> list[object]:
    return value if isinstance(value, list) else []


def frozen(value: object, depth: int = 0) -> Any:
    """Lists as tuples, so that equal calls are found; () for what no operator is called with."""
    if isinstance(value, list):
        return tuple(frozen(item, depth + 1) for item in value) if depth < _MOST_DEPTH else ()
    return value if isinstance(value, (bool, int, float, str)) else ()


# -- calling again ---------------------------------------------------------------------------------


def kernels_of_calls(calls: Sequence[RecordedCall], gpu: GPU) -> list[tuple[Kernel, ...] | str]:
    """The kernels that each call launches on that GPU, or why they are not known."""
    return [
        ops if isinstance(ops, str) else _kernels(call, ops)
        for call, ops in zip(calls, ops_of_calls(calls, gpu), strict=True)
    ]


def ops_of_calls(calls: Sequence[RecordedCall], gpu: GPU) -> list[tuple[OpCall, ...] | str]:
    """The ops that each call dispatches on that GPU, in the profile's arithmetic and release of
    torch, or why it cannot be made again."""
    import torch

    from neusight.forecast import forecast_options
    from neusight.session import Session, SessionOptions

    dtypes = _Dtypes(calls)
    reasons: dict[int, str] = {}
    with Session(SessionOptions(forecast_options(gpu))) as forecast, torch.no_grad(), _quiet():
        for number, call in enumerate(calls):
            try:
                overload, arguments, options = _bound(call, dtypes)
                with torch.profiler.record_function(f"{_MARK}{number}"):
                    overload(*arguments, **options)
            except _Unusable as error:
                reasons[number] = str(error)
            except Exception as error:  # torch refuses what was not recorded whole
                reasons[number] = f"{call.name} cannot be called again ({type(error).__name__})"
    ops = _ops_by_call(forecast.recording)
    return [
        reasons.get(number) or tuple(_as_it_ran(call, item, gpu) for item in ops[number])
        for number, call in enumerate(calls)
    ]


def _as_it_ran(call: RecordedCall, op: OpCall, gpu: GPU) -> OpCall:
    release = release_of(call.torch_version)
    math = replace(op.math, matmul_tf32=call.is_tf32, cudnn_tf32=call.is_tf32, torch=release)
    return replace(op, math=math_mode_on(gpu, math))


@contextmanager
def _quiet() -> Iterator[None]:
    """Keeps torch from printing the calls that it refuses."""
    logger = logging.getLogger("torch._subclasses.fake_tensor")
    was, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = was


def _ops_by_call(recording: Recording) -> dict[int, list[OpCall]]:
    """The ops between the marks of each call."""
    found: dict[int, list[OpCall]] = defaultdict(list)
    current = -1
    for step in recording.steps:
        for entry in step.entries:
            if isinstance(entry, Mark) and entry.name.startswith(_MARK):
                begins = entry.kind == "annotation_begin"
                current = int(entry.name.removeprefix(_MARK)) if begins else -1
            elif isinstance(entry, OpCall) and current >= 0:
                found[current].append(entry)
    return found


def _kernels(call: RecordedCall, ops: Sequence[OpCall]) -> tuple[Kernel, ...] | str:
    kernels: list[Kernel] = []
    for item in ops:
        mapping = map_op(item.signature, item.math)
        if not mapping.is_mapped:
            return f"{item.signature.op} is not described"
        kernels += mapping.kernels
    if not kernels:
        return f"{call.name} launches kernels that neusight does not expect"
    return tuple(kernels)


class _Dtypes:
    """The types in lists of tensors, which profiles do not state."""

    def __init__(self, calls: Sequence[RecordedCall]) -> None:
        self._of: dict[tuple[int, ...], set[str]] = defaultdict(set)
        self._all: set[str] = set()
        for call in calls:
            for shape, kind in zip(call.dims, call.types, strict=False):
                dtype = _DTYPES.get(kind, "")
                if shape and "float" in dtype:
                    self._of[shape].add(dtype)
                    self._all.add(dtype)

    def of(self, shape: tuple[int, ...], name: str, call: RecordedCall) -> str | None:
        """That of the call's own tensors, of all tensors of the shape, or of all, where they
        agree; optimizers step FP32 weights where there are any."""
        if name == "indices":
            return "int64"
        own = {_DTYPES[kind] for kind in call.types if "float" in _DTYPES.get(kind, "")}
        for known in (own, self._of.get(shape, set()), self._all):
            if len(known) == 1:
                return next(iter(known))
            if known and call.name.startswith(_MULTI_TENSOR) and "float32" in known:
                return "float32"
            if known:
                return None
        return None


def _bound(call: RecordedCall, dtypes: _Dtypes) -> tuple[Any, list[Any], dict[str, Any]]:
    """The overload that takes those arguments, and the arguments; _Unusable where none does."""
    import torch

    namespace, _, name = call.name.partition("::")
    packet = getattr(getattr(torch.ops, namespace), name, None)
    problem = ""
    for overload_name in packet.overloads() if packet is not None else ():
        overload = getattr(packet, overload_name)
        schema = overload._schema.arguments
        if len(schema) != len(call.types):
            continue
        try:
            values = [
                (item, _value(item, index, call, dtypes)) for index, item in enumerate(schema)
            ]
        except _Unusable as error:
            problem = problem or str(error)
            continue
        arguments = [value for item, value in values if not item.kwarg_only]
        return overload, arguments, {i.name: value for i, value in values if i.kwarg_only}
    raise _Unusable(problem or f"{call.name} is no operator of this torch, or has other arguments")


def _value(item: Any, index: int, call: RecordedCall, dtypes: _Dtypes) -> Any:
    """What to pass for a parameter of the schema."""
    kind, wanted = call.types[index], str(item.real_type)
    shape = call.dims[index] if index < len(call.dims) else ()
    strides = call.strides[index] if index < len(call.strides) else None
    if wanted in ("Tensor", "Optional[Tensor]"):
        return _tensor_or_none(kind, shape, strides, wanted, call)
    if "Tensor" in wanted:
        if kind != "TensorList":
            raise _Unusable(f"{call.name} was recorded without its list of tensors")
        return [_listed_tensor(one, item.name, call, dtypes) for one in shape]
    if kind in _DTYPES or kind == "TensorList":
        raise _Unusable(f"{call.name} takes no tensor there")
    if item.name == "device":
        return None
    return _plain_value(item, wanted, call.values[index] if index < len(call.values) else "", call)


def _plain_value(item: Any, wanted: str, text: str, call: RecordedCall) -> Any:
    """A number, a list of them or a setting. Older profiles have none: scale factors, epsilons and
    thresholds change no time, and become 1."""
    if not text:
        if item.has_default_value() and (call.values or wanted.startswith("Optional[")):
            return item.default_value
        if wanted.startswith("Optional["):
            return None
        if wanted in ("number", "float"):
            return 1
        if item.name == "training":
            return True
        raise _Unusable(
            "operators without the values of their arguments (newer torch records them)"
        )
    value = _literal(text)
    if isinstance(value, list) != ("List[" in wanted):
        raise _Unusable(f"{call.name} takes no list there")
    if "ScalarType" in wanted:
        return _setting(_SCALAR_TYPES, value)
    if "MemoryFormat" in wanted:
        return _setting(_MEMORY_FORMATS, value)
    if "Layout" in wanted:
        return None
    return value


def _setting(names: Sequence[str], value: object) -> Any:
    """A setting by its number, or by its name as forecasts write it."""
    import torch

    if value in names:
        return getattr(torch, str(value))
    if isinstance(value, int) and 0 <= value < len(names) and names[value]:
        return getattr(torch, names[value])
    raise _Unusable(f"setting {value!r} is not known")


def _literal(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        try:
            return float(text)
        except ValueError:
            return text


def _tensor_or_none(
    kind: str, shape: Any, strides: Any, wanted: str, call: RecordedCall
) -> torch.Tensor | None:
    dtype = _DTYPES.get(kind)
    if dtype is None:
        if kind:
            raise _Unusable(f"{call.name} takes a tensor there")
        # C++ passes undefined tensors where Python cannot: one without elements costs as much.
        return None if wanted.startswith("Optional") else _tensor((0,), None, "float32", "cuda")
    # A Python number is recorded as a tensor without dimensions, of Python's own types.
    is_number = shape == () and dtype in ("float64", "int64") and any(call.dims)
    return _tensor(shape, strides, dtype, "cpu" if is_number else "cuda")


def _listed_tensor(shape: Any, name: str, call: RecordedCall, dtypes: _Dtypes) -> torch.Tensor:
    dtype = dtypes.of(shape, name, call)
    if dtype is None:
        raise _Unusable("operators on lists of tensors whose types are unknown")
    return _tensor(shape, None, dtype, "cuda")


def _tensor(shape: Any, strides: Any, dtype: str, device: str) -> torch.Tensor:
    import torch

    kind = getattr(torch, dtype)
    if device == "cpu":
        return torch.ones((), dtype=kind)
    if not isinstance(strides, tuple) or len(strides) != len(shape):
        return torch.empty(shape, dtype=kind, device=device)
    return torch.empty_strided(shape, strides, dtype=kind, device=device)
