"""The tensor of a forecast: it claims to be on `cuda`, or is a parameter not yet filled."""

from __future__ import annotations

import copy
import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import count
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Protocol, cast

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from neusight.predictors.errors import ForecastStateError

if TYPE_CHECKING:
    import numpy

_PRIM_DEVICE = torch.ops.prim.device.default
_plain_data: Any = torch.Tensor.data
_make_subclass = torch.Tensor._make_subclass
_empty_strided = torch._C._VariableFunctions.empty_strided


class TensorListener(Protocol):
    """What a forecast tensor asks of the recorder that made it."""

    @property
    def is_open(self) -> bool:
        """Whether the program is listened to."""
        ...

    def dispatch(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Runs one op on forecast tensors."""
        ...

    def host_copy(self, tensor: ForecastTensor) -> torch.Tensor:
        """The values of a tensor on the CPU: known ones, or invented ones."""
        ...

    def without_data(self, tensor: torch.Tensor) -> ForecastTensor:
        """A tensor like that on the CPU which holds no data."""
        ...

    def address_of(self, tensor: ForecastTensor) -> int:
        """A stable, unique stub for the address of the tensor's storage."""
        ...


class _ThreadState(threading.local):
    """How often one thread is inside of neusight's own work, and whether inside of a kernel."""

    depth = 0
    in_kernel_invocation = False


class ForecastMode(FakeTensorMode):  # type: ignore[no-untyped-call, unused-ignore]
    """The fake mode that all tensors of one forecast share; it knows the recorder."""

    # Torch asks torch.cuda.is_available() here, which the facade answers with True; but no device
    # must be initialised (see "torch.tensor, lift_fresh, and device movement" in fake_tensor.py).
    avoid_device_init = True
    #: Whether neusight itself computes in this thread, so that ops are not the script's own. (Read
    #: several times an op: a number, which no function of Python reads.)
    is_inside = property(attrgetter("_local.depth"))

    def __init__(self, listener: TensorListener) -> None:
        self._local = _ThreadState()
        super().__init__(allow_non_fake_inputs=True, allow_fallback_kernels=False)
        self.listener = listener
        self.cache_enabled = False  # the recorder has its own, of which this would be a second

    @contextmanager
    def inside(self) -> Iterator[None]:
        """Ops in here are neusight's or FakeTensor's own and are not recorded."""
        local = self._local
        local.depth += 1
        try:
            yield
        finally:
            local.depth -= 1

    @contextmanager
    def outside(self) -> Iterator[None]:
        """Ops in here are the program's again, though neusight or torch's compiler called it."""
        local = self._local
        depth, local.depth = local.depth, 0
        try:
            yield
        finally:
            local.depth = depth

    # FakeTensorMode keeps this as an attribute; a tensor must not seem to be on `meta` to a thread
    # because another one is inside a kernel.
    @property
    def in_kernel_invocation(self) -> bool:
        return self._local.in_kernel_invocation

    @in_kernel_invocation.setter
    def in_kernel_invocation(self, value: bool) -> None:
        self._local.in_kernel_invocation = value

    def new_tensor(
        self,
        shape: Sequence[int],
        stride: Sequence[int],
        dtype: torch.dtype,
        device: torch.device,
    ) -> ForecastTensor:
        """A tensor with a storage of its own. Call it where no dispatch mode is active."""
        return self.wrap(_empty_strided(shape, stride, dtype=dtype, device="meta"), device)

    def wrap(self, meta: torch.Tensor, device: torch.device) -> ForecastTensor:
        """The meta tensor, claiming to be on `device`."""
        tensor: ForecastTensor = _make_subclass(
            ForecastTensor,
            meta,
            False,
            dispatch_device=True,
            device_for_backend_keys=device,
        )
        tensor._fake_device = device
        tensor.fake_mode = self
        return tensor


#: Numbers of ragged sizes, above those that torch gives (torch.nested counts from 0).
_RAGGED_SIZES = count(2**20)


def _set_fake_device(tensor: Any, device: torch.device) -> None:
    tensor.fake_device = device


class ForecastTensor(FakeTensor):
    """A FakeTensor that belongs to a forecast, and holds no data.

    Attributes that FakeTensor sets on each new object are set once on the class: making one is most
    of the cost of a recorded op.
    """

    constant = None
    pytype = None
    dispatch_keys = None
    real_tensor = None
    _nonzero_memo = None
    _item_memo = None
    _unique_memo = None
    _unique_consecutive_memo = None
    _nested_int_memo = None
    _ragged_size: Any = None
    fake_mode: ForecastMode
    #: The number of all tensors of its shape, strides, dtype and device; None until it is read,
    #: and after each op that may have changed them.
    alike: int | None = None
    if "fake_device" not in vars(FakeTensor):  # torch 2.11 keeps it under the name without "_"
        _fake_device = property(attrgetter("fake_device"), _set_fake_device)

    @staticmethod
    def __new__(cls: Any, *args: Any, **kwargs: Any) -> Any:
        """Libraries make a parameter again by its type: `type(old)(data, requires_grad=...)`."""
        if args and isinstance(args[0], torch.Tensor):
            return torch.nn.Parameter(args[0], kwargs.get("requires_grad", True))
        return super().__new__(cls, *args, **kwargs)

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if func is _PRIM_DEVICE:
            tensor = args[0]
            return (
                torch.device("meta")
                if tensor.fake_mode.in_kernel_invocation
                else tensor._fake_device
            )
        for kind in types:
            if kind is not ForecastTensor and has_own_dispatch(kind):
                return NotImplemented  # it knows the forecast tensor inside
        mode = _mode_of(args) or _mode_of(tuple((kwargs or {}).values()))
        if mode is None or mode.is_inside:
            return super().__torch_dispatch__(func, types, args, kwargs or {})
        if not mode.listener.is_open:
            raise used_outside(func)
        if len(types) > 1 and any(not issubclass(kind, FakeTensor) for kind in types):
            return NotImplemented  # the other one takes its own parts apart: nested tensors
        return mode.listener.dispatch(func, args, kwargs or {})

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return (
            f"tensor(..., device='{self._fake_device}', size={tuple(self.shape)}, "
            f"dtype={self.dtype}, forecast=True)"
        )

    def __format__(self, spec: str) -> str:
        if self.dim() == 0 and self.fake_mode.listener.is_open:
            return format(self.item(), spec)
        return object.__format__(repr(self), spec) if not spec else format(repr(self), spec)

    def numpy(self, *, force: bool = False) -> numpy.ndarray[Any, Any]:
        if self._fake_device.type == "cpu" or force:
            return self.fake_mode.listener.host_copy(self).numpy()
        raise TypeError(
            f"can't convert {self._fake_device} device type tensor to numpy. Use Tensor.cpu() to "
            "copy the tensor to host memory first."
        )

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        array = self.numpy()
        return array if dtype is None else array.astype(dtype, copy=False)

    @property
    def data(self) -> Any:
        return _plain_data.__get__(self)

    @data.setter
    def data(self, value: Any) -> None:
        if not isinstance(value, FakeTensor):
            if value.device.type == "meta":
                raise RuntimeError(
                    "Attempted to call `variable.set_data(tensor)`, but `variable` and `tensor` "
                    "have incompatible tensor type."
                )
            value = self.fake_mode.listener.without_data(value)
        _plain_data.__set__(self, value)
        self._fake_device = value._fake_device  # C++ exchanges the storage only
        self.alike = None

    def data_ptr(self) -> int:
        return self.fake_mode.listener.address_of(self)

    def is_pinned(self, device: Any = None) -> bool:
        return False

    def get_nested_int(self, *, coeff: Any = 1) -> Any:
        """The ragged size whose offsets these are: one for each tensor, as outside of tracing."""
        if self._ragged_size is None:
            from torch.nested._internal.nested_int import NestedIntNode

            node: Any = NestedIntNode
            symbolic: Any = torch.SymInt
            self._ragged_size = symbolic(node(next(_RAGGED_SIZES), coeff))
        return self._ragged_size

    @property
    def has_nested_int(self) -> bool:
        """Whether a jagged tensor was made of these offsets."""
        return self._ragged_size is not None

    @property
    def nested_int_memo(self) -> Any:
        """The same as torch's fake tensors call it."""
        return self.get_nested_int()

    @nested_int_memo.setter
    def nested_int_memo(self, value: Any) -> None:
        self._ragged_size = value

    def share_memory_(self) -> ForecastTensor:
        """Memory of a GPU is shared between processes as it is."""
        return self

    def is_shared(self) -> bool:
        """Memory of a GPU always counts as shared."""
        return self._fake_device.type == "cuda" or bool(super().is_shared())  # type: ignore[no-untyped-call, unused-ignore]

    def record_stream(self, stream: Any) -> None:
        return None

    def __deepcopy__(self, memo: dict[int, Any]) -> ForecastTensor:
        if not self.is_leaf:
            raise RuntimeError(
                "Only Tensors created explicitly by the user (graph leaves) support the deepcopy "
                "protocol at the moment."
            )
        if id(self) in memo:
            copied: ForecastTensor = memo[id(self)]
            return copied
        with torch.no_grad():
            copied = self._made_alike(self.clone())
        memo[id(self)] = copied
        if self.grad is not None:
            copied.grad = copy.deepcopy(self.grad, memo)
        return copied

    def __copy__(self) -> ForecastTensor:
        return self._made_alike(self.detach())

    def _made_alike(self, other: Any) -> ForecastTensor:
        """`other`, as a parameter and with gradients wanted if this tensor is so."""
        if self.requires_grad:
            other.requires_grad_()
        if getattr(self, "_is_param", False):
            other._is_param = True
        return cast(ForecastTensor, other)

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Pickles (torch.save, multiprocessing) as values on the CPU."""
        values: Any = self.fake_mode.listener.host_copy(self)
        if isinstance(self, torch.nn.Parameter):
            return torch._utils._rebuild_parameter, (values, self.requires_grad, OrderedDict())
        return values.__reduce_ex__(protocol)


_PLAIN_DISPATCH = torch.Tensor.__torch_dispatch__


def has_own_dispatch(kind: type) -> bool:
    """Whether it is a subclass that runs its ops itself: DTensor, nested, quantised tensors."""
    own = getattr(kind, "__torch_dispatch__", _PLAIN_DISPATCH)
    return own is not _PLAIN_DISPATCH and not issubclass(kind, FakeTensor)


def is_mask(index: torch.Tensor | None) -> bool:
    """Whether an index of a tensor is a mask, not places."""
    return index is not None and index.dtype in (torch.bool, torch.uint8)


#: Python's own errors name the class: "'Tensor' object has no attribute …", as on a GPU.
ForecastTensor.__name__ = ForecastTensor.__qualname__ = "Tensor"


def used_outside(func: Any) -> ForecastStateError:
    """The error for a forecast tensor that meets an op after its block."""
    return ForecastStateError(
        f"A tensor made inside forecast_on was used by {func} after the block had ended; it holds "
        "no data. Use it inside the block (of a notebook, in the same cell), or create it outside "
        "on the CPU and move it to the GPU inside."
    )


def _mode_of(values: Sequence[Any]) -> ForecastMode | None:
    for value in values:
        if isinstance(value, ForecastTensor):
            return value.fake_mode
        if isinstance(value, (list, tuple)):
            found = _mode_of(value)
            if found is not None:
                return found
    return None
