"""What ops return, without their data: torch's own fake kernels, made to speak as a GPU does."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, cast

import torch
from torch._subclasses.fake_tensor import (
    DynamicOutputShapeException,
    FakeTensor,
    UnsupportedOperatorException,
)

from neusight.predictors.errors import UnmappedOpError
from neusight.recording.call_stack import call_site
from neusight.recording.dispatch.eager_errors import (
    SCALAR_TYPES,
    dtype_error,
    eager_error,
    refused_by_cuda,
    require_deterministic,
)
from neusight.recording.dispatch.meta_kernels import by_meta_kernel, is_row_major, is_view
from neusight.recording.recording import flattened
from neusight.recording.tensor import ForecastMode, ForecastTensor

aten = torch.ops.aten

#: Ops whose fake kernels came with torch 2.12 (or, the second, 2.13): what they return is as their
#: first argument.
_LIKE_THEIR_INPUT = ("aten::_standard_gamma", "aten::_transformer_encoder_layer_fwd")


#: Keyword arguments that change nothing of what an op returns but its values, and that its fake
#: kernel cannot be given: that of this one lacks the parameter `out`, so its positional arguments
#: reach as far as `scale` (torch 2.13).
_IGNORED_KEYWORDS = {aten._efficient_attention_backward.default: ("scale", "window_size")}


#: What torch says of a generator of another kind of device (aten/src/ATen/core/Generator.h).
_GENERATOR_TEXT = "Expected a '{wanted}' device type for generator but found '{found}'"


#: How torch begins to say that an op of the program's own has no fake kernel, and whose ops are not
#: (torch/_library/custom_ops.py).
_NO_FAKE = "There was no fake impl registered"
_OF_TORCH = ("aten", "prims", "prim", "quantized", "c10d", "_c10d_functional")


class Devices:
    """How many GPUs the forecast has, and which one is current."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.current = 0
        #: CUDA starts with the first use of a GPU; until then DeviceMesh chooses one by LOCAL_RANK.
        self.is_used = False
        #: Whether the program, or a library, made one the current one.
        self.is_chosen = False
        #: Whether this process was forked from one that had used a GPU.
        self.is_forked = False

    def use(self, index: int) -> None:
        """Makes a GPU the current one, in torch's C++ core also where there are several."""
        self.current, self.is_chosen = index, True
        if self.count > 1:
            torch._C._accelerator_setDeviceIndex(index)

    def start(self) -> None:
        """CUDA starts, unless it has already; RuntimeError where it refuses to in this process."""
        if self.is_forked:
            raise RuntimeError(
                "Cannot re-initialize CUDA in forked subprocess. To use CUDA with multiprocessing, "
                "you must use the 'spawn' start method"
            )
        self.is_used = True

    def checked(self, device: torch.device) -> torch.device:
        """The device with its index; RuntimeError, as CUDA gives it, where there is no such GPU."""
        if device.type != "cuda":
            return device
        index = self.current if device.index is None else device.index
        if index >= self.count:
            raise RuntimeError(
                f"CUDA error: invalid device ordinal (cuda:{index}, but the forecast has "
                f"{self.count} GPU{'s; LOCAL_RANK says which is whose' if self.count > 1 else ''})"
            )
        self.start()
        return torch.device("cuda", index)


class FakeKernels:
    """Runs ops on forecast tensors by torch's fake kernels; nothing of that is recorded."""

    def __init__(self, mode: ForecastMode, devices: Devices) -> None:
        #: Held by the thread whose op runs.
        self.lock = threading.RLock()
        #: Addresses of the generators that are of a GPU: ops are given others for the same.
        self.gpu_generators: set[int] = set()
        self._operands: Sequence[Any] = ()
        self._mode = mode
        self._devices = devices

    def run(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """What the op returns; where it fails, with the words of a GPU."""
        if func._schema.is_mutable:
            _forget_likeness(args)
            _forget_likeness(kwargs.values())
        with self.lock, self._mode.inside():
            if is_view(func) and type(args[0]) is ForecastTensor:
                with suppress(Exception):  # torch's fake mode says why it fails
                    return self.view(func, args, kwargs)
            out = by_meta_kernel(self._mode, func, args, kwargs)
        if out is not NotImplemented:
            return out
        kwargs = dict(kwargs)
        for name in _IGNORED_KEYWORDS.get(func, ()):
            kwargs.pop(name, None)
        generator = kwargs.get("generator")
        if generator is not None:
            if generator._cdata not in self.gpu_generators:
                raise RuntimeError(_GENERATOR_TEXT.format(wanted="cuda", found="cpu"))
            kwargs["generator"] = None
        device = kwargs.get("device")
        self._operands = args
        if device is not None:
            kwargs["device"] = self._devices.checked(torch.device(device))
        try:
            with self.lock, self._mode.inside():
                operands = tuple(args)
                if func is aten._to_copy.default or flattened(args, ForecastTensor):
                    operands = tuple([self._without_data(arg) for arg in args])
                out = self._mode.dispatch(func, (), operands, kwargs)
        except (UnsupportedOperatorException, DynamicOutputShapeException) as error:
            return self._without_kernel(func, args, kwargs, error)
        except Exception as error:
            if _is_device_mismatch(error):  # torch's own words, which no GPU shows
                raise RuntimeError(_device_mismatch_text(func, args, kwargs)) from None
            if str(error).startswith(_NO_FAKE):
                raise UnmappedOpError(_no_fake_text(func)) from error
            stated = self.stated_error(func, args, kwargs)
            if stated is None:
                raise
            raise stated from None  # the fake kernel says the same in other words
        finally:
            self._operands = ()  # nothing that the program lets go of is kept
        return as_forecast(out)

    def view(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """What a view returns that is known to work."""
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
            result.fake_mode = self._mode
            return cast(ForecastTensor, as_forecast(result))
        return self._mode.wrap(result, device)

    def copied(self, source: torch.Tensor, kwargs: Mapping[str, Any]) -> Any:
        """A copy of a tensor as `_to_copy` makes it; one without gaps stays as it is."""
        is_kept = kwargs.get("memory_format") in (None, torch.preserve_format)
        if is_kept and type(source) in (*_PLAIN, ForecastTensor) and is_row_major(source):
            device = self._devices.checked(torch.device(kwargs["device"]))
            dtype = kwargs.get("dtype") or source.dtype
            with self.lock, self._mode.inside(), torch._C._DisableTorchDispatch():
                return self._mode.new_tensor(source.shape, source.stride(), dtype, device)
        with self._mode.inside():
            bare = source.detach()  # without the ragged size that its offsets may stand for
        return self.run(aten._to_copy.default, (bare,), kwargs)

    def _without_data(self, value: Any) -> Any:
        """A tensor of the CPU as one that holds no data, as the fake mode would make it
        in ten times the time."""
        if type(value) in _PLAIN and value.layout is torch.strided and value.device.type == "cpu":
            return self._mode.new_tensor(value.shape, value.stride(), value.dtype, value.device)
        if type(value) is list or type(value) is tuple:
            return type(value)([self._without_data(item) for item in value])
        return value

    def _without_kernel(
        self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], error: Exception
    ) -> Any:
        name = func._schema.name
        written = [kwargs[a.name] for a in func._schema.arguments if a.is_out and a.name in kwargs]
        if written:  # the caller knows what comes back
            return written[0] if len(written) == 1 else tuple(written)
        if not func._schema.returns:  # _fused_sgd_: it only writes into its arguments
            return None
        is_one = len(func._schema.returns) == 1
        if is_one and name.endswith("_backward") and isinstance(args[1], ForecastTensor):
            return self.run(aten.empty_like.default, (args[1],), {})  # as its input
        if name.partition("::")[0] not in _OF_TORCH:
            raise UnmappedOpError(_no_fake_text(func)) from error
        if name in _LIKE_THEIR_INPUT:
            return self.run(aten.empty_like.default, (args[0],), {})
        raise UnmappedOpError(
            f"{name} at {call_site()} has no fake kernel in torch {torch.__version__}, so what it "
            "returns is not known. Leave it out for the forecast, or put ops in its place that are "
            "known."
        ) from error

    def most_rows(self) -> int:
        """The most rows that an operand has of the op that runs now."""
        tensors = flattened(self._operands, torch.Tensor)
        return max((int(tensor.shape[0]) for tensor in tensors if tensor.dim()), default=1)

    def check_generator_of_cpu(self, generator: Any) -> None:
        """Raises what torch says where an op on the CPU is given the generator of a GPU."""
        if generator._cdata in self.gpu_generators:
            raise RuntimeError(_GENERATOR_TEXT.format(wanted="cpu", found="cuda"))

    def refuse(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Raises what a GPU would where the fake kernel takes operands that CUDA refuses."""
        if torch.are_deterministic_algorithms_enabled():
            require_deterministic(func, args)
        if func is aten.convolution.default:
            _check_convolution(*args[:3])
        if func in _INDEXED and not args[0].is_cuda:
            _check_indices(args[1])
        if refused_by_cuda(func, args, kwargs):
            stated = self.stated_error(func, args, kwargs)
            if stated is not None:
                raise stated
        with self.lock, self._mode.inside():
            missing = dtype_error(func, args)
        if missing is not None:
            raise missing

    def require_one_device(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Raises what torch says where the operands of an op are on several devices."""
        tensors = flattened((*args, *kwargs.values()), torch.Tensor)
        if len({tensor.device for tensor in tensors}) > 1:
            raise RuntimeError(_device_mismatch_text(func, args, kwargs))

    def stated_error(
        self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Exception | None:
        """The error that the op raises on a GPU; None where it is not known."""
        with self.lock, self._mode.inside():
            return eager_error(func, args, kwargs)


def _no_fake_text(func: Any) -> str:
    """What to write so that an op of the program's own can be forecast."""
    schema = func._schema
    name = schema.name if schema.overload_name == "" else f"{schema.name}.{schema.overload_name}"
    names = ", ".join(argument.name for argument in schema.arguments)
    like = next((a.name for a in schema.arguments if "Tensor" in str(a.type)), "…")
    return (
        f"{name} at {call_site()} is an operator of the program's own without a fake kernel, so "
        "what it returns is not "
        "known. These lines, after its definition, say it:\n"
        f'    @torch.library.register_fake("{name}")\n'
        f"    def _({names}):\n"
        f"        return torch.empty_like({like})  # the shape, dtype and device of what it returns"
    )


def _is_device_mismatch(error: Exception) -> bool:
    """Whether operands were on different devices. Torch 2.13 has a class for it, 2.11 and 2.12 only
    the first of these words; the second are those of indexing."""
    is_new = type(error).__name__ == "FakeTensorDeviceMismatchError"
    words = ("Unhandled FakeTensor Device Propagation", "Mismatching aten.index_put")
    return is_new or str(error).startswith(words)


#: Tensors of these classes are what they are; others may hold several.
_PLAIN = (torch.Tensor, torch.nn.Parameter)


def _forget_likeness(values: Iterable[Any]) -> None:
    """The op may give its arguments other shapes (`t_`, `resize_`, `out=`)."""
    for tensor in flattened(tuple(values), ForecastTensor):
        tensor.alike = None


def as_forecast(out: Any) -> Any:
    """Makes FakeTensors that torch's fake kernels returned into forecast tensors, in place."""
    for tensor in flattened(out, FakeTensor):
        if not isinstance(tensor, ForecastTensor):
            tensor.__class__ = ForecastTensor  # same layout: only methods differ
    return out


def _device_mismatch_text(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    """The words of torch 2.13 on a GPU: those of TensorIterator for elementwise ops, else those of
    the generated wrappers (aten/src/ATen/core/op_registration/adaption.cpp)."""
    same = "Expected all tensors to be on the same device, but "
    schema = func._schema
    if torch.Tag.pointwise in func.tags or func is aten.copy_.default or func in _INDEXED:
        tensors = flattened((*args, *kwargs.values()), torch.Tensor)
        found = sorted({str(tensor.device) for tensor in tensors})
        return f"{same}found at least two devices, {found[-1]} and {found[0]}!"
    first = ""
    for position, parameter in enumerate(schema.arguments):
        value = args[position] if position < len(args) else kwargs.get(parameter.name)
        for tensor in flattened(value, torch.Tensor):
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


#: Ops that take a list of indices.
_INDEXED = (
    aten.index.Tensor, aten.index_put.default, aten.index_put_.default,
    aten._index_put_impl_.default,
)  # fmt: skip


def _check_indices(indices: Sequence[Any]) -> None:
    """What indexing says (aten/src/ATen/TensorIndexing.h); torch's fake one lets them pass."""
    if any(index is not None and index.is_cuda for index in indices):
        raise RuntimeError(
            "indices should be either on cpu or on the same device as the indexed tensor (cpu)"
        )


def _check_convolution(data: torch.Tensor, weight: torch.Tensor, bias: Any) -> None:
    """What a convolution says on a GPU; torch's fake one lets other devices and dtypes pass."""
    for name, other in (("weight", weight), ("bias", bias)):
        if other is None or (data.device == other.device and data.dtype == other.dtype):
            continue
        kinds = [
            f"{'torch.cuda' if t.is_cuda else 'torch'}.{SCALAR_TYPES[t.dtype]}Tensor"
            for t in (data, other)
        ]
        dense = f" or input should be a MKLDNN tensor and {name} is a dense tensor"
        raise RuntimeError(
            f"Input type ({kinds[0]}) and {name} type ({kinds[1]}) should be the same"
            + ("" if data.is_cuda else dense)
        )
